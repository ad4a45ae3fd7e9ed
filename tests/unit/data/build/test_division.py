from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from torchrelay.core.errors import DataError
from torchrelay.data.build import division as division_module
from torchrelay.data.build.division import (
    Division,
    check_shares,
    choose_split,
    cut_document,
    cut_parts,
    divide,
    find_bad_byte,
    find_boundary,
)
from torchrelay.data.build.document import Document, Intake


def spans(text: bytes, rule: str, share: float) -> list[tuple[str, bytes]]:
    found = divide(memoryview(text), rule, share)
    return [(span.split, text[span.start : span.stop]) for span in found]


def test_a_document_goes_to_one_side_by_its_text_alone() -> None:
    texts = [f"text {number}".encode() for number in range(2000)]
    sides = [spans(text, "document", 0.1)[0][0] for text in texts]
    assert 140 < sides.count("validation") < 260
    assert sides == [spans(text, "document", 0.1)[0][0] for text in texts]


def test_a_larger_share_keeps_what_was_validation() -> None:
    for number in range(500):
        text = f"text {number}".encode()
        if spans(text, "document", 0.1)[0][0] == "validation":
            assert spans(text, "document", 0.3)[0][0] == "validation"


def test_the_side_of_a_text_never_changes() -> None:
    """Pinned: a later version must keep validation in validation."""
    sides = [spans(f"{n}".encode(), "document", 0.3)[0][0][0] for n in range(24)]
    assert "".join(sides) == "vttttttvtvtvttvttttttttt"


@given(text=st.text(min_size=1, max_size=60), share=st.floats(0.01, 0.99))
def test_the_tail_is_cut_between_characters_and_nothing_is_lost(text: str, share: float) -> None:
    found = spans(text.encode(), "tail", share)
    assert b"".join(part for _, part in found) == text.encode()
    assert "".join(part.decode() for _, part in found) == text
    assert [split for split, _ in found] in (["train", "validation"], ["train"], ["validation"])


def test_ninety_percent_of_a_file_is_where_others_cut_it() -> None:
    (train, text), _ = spans(b"x" * 1_115_394, "tail", 0.1)
    assert (train, len(text)) == ("train", int(1_115_394 * 0.9))


@given(text=st.text(alphabet="aé€🙂\n", max_size=200), most=st.integers(8, 40))
def test_parts_cover_the_text_and_break_no_character(text: str, most: int) -> None:
    data = text.encode()
    parts = [bytes(memoryview(data)[part.start : part.stop]) for part in cut_parts(memoryview(data), most)]
    assert b"".join(parts) == data
    assert all(len(part) <= most for part in parts)
    assert "".join(part.decode() for part in parts) == text


def test_parts_end_after_a_line_where_one_is_near() -> None:
    data = memoryview(b"aaaaaa\nbbbb\ncccccccccccccccccccc")
    assert [bytes(data[part.start : part.stop]) for part in cut_parts(data, 14)][0] == b"aaaaaa\nbbbb\n"


def test_bytes_that_are_not_text_are_cut_anywhere() -> None:
    assert find_boundary(memoryview(b"\x80" * 20), 10) == 10


@pytest.mark.parametrize(
    ("validation", "test"), [(1.0, 0.0), (-0.1, 0.0), (0.5, 0.5), (0.0, 2.0), (float("nan"), 0.0)]
)
def test_shares_that_leave_nothing_for_training_are_refused(validation: float, test: float) -> None:
    with pytest.raises(DataError, match="leave nothing for training"):
        check_shares(validation, test)


def test_no_validation_is_a_share_too() -> None:
    check_shares(0.0, 0.0)
    assert {choose_split(number << 54, 0.0, 0.0) for number in range(1024)} == {"train"}


@given(
    ids=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50),
    validation=st.floats(0, 0.4),
    test=st.floats(0, 0.4),
    other=st.floats(0, 0.4),
)
def test_one_share_moves_nothing_in_or_out_of_the_other_split(
    ids: list[int], validation: float, test: float, other: float
) -> None:
    for number in ids:
        split = choose_split(number, validation, test)
        assert (split == "validation") == (choose_split(number, validation, other) == "validation")
        assert (split == "test") == (choose_split(number, other, test) == "test")


def test_the_tail_has_validation_before_test() -> None:
    found = divide(memoryview(b"x" * 100), "tail", 0.2, 0.1)
    assert [(span.split, span.start, span.stop) for span in found] == [
        ("train", 0, 70),
        ("validation", 70, 90),
        ("test", 90, 100),
    ]


def cut(document: Document, division: Division, tmp_path: Path) -> list[tuple[str, str | bytes, int]]:
    intake = Intake(on_bad="skip", scratch=tmp_path)
    return [
        (piece.split, piece.text if isinstance(piece.text, str) else bytes(piece.text), piece.document_id)
        for piece in cut_document(document, division, intake)
    ]


def test_an_own_id_decides_instead_of_the_text(tmp_path: Path) -> None:
    division = Division(validation=0.3)
    one = cut(Document(memoryview(b"one"), "w", key=b"k"), division, tmp_path)
    two = cut(Document(memoryview(b"two"), "w", key=b"k"), division, tmp_path)
    assert one[0][0] == two[0][0] and one[0][2] == two[0][2] == xxhash.xxh3_64_intdigest(b"k")


def test_a_given_split_is_obeyed_whatever_the_rule(tmp_path: Path) -> None:
    document = Document(memoryview(b"text"), "w", split="test")
    for rule in ("document", "tail"):
        division = Division(rule=rule, validation=0.5, is_text=True)
        assert cut(document, division, tmp_path) == [("test", "text", xxhash.xxh3_64_intdigest(b"text"))]


def test_a_bad_document_is_refused_before_any_piece_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(division_module, "PART_BYTES", 16)
    text = memoryview(b"line\n" * 20 + b"\xff" + b"line\n" * 3)
    intake = Intake(on_bad="skip", scratch=tmp_path)
    assert list(cut_document(Document(text, "w"), Division(is_text=True), intake)) == []
    assert (intake.documents, intake.problems) == (0, ["w is not valid UTF-8 at byte 100"])
    assert find_bad_byte(text) == 100


def test_a_long_document_comes_in_pieces_of_which_one_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(division_module, "PART_BYTES", 16)
    intake = Intake(on_bad="stop", scratch=tmp_path)
    pieces = list(cut_document(Document(memoryview(b"line\n" * 10), "w"), Division(validation=0), intake))
    assert b"".join(bytes(piece.text) for piece in pieces) == b"line\n" * 10  # type: ignore[arg-type]
    assert [piece.is_last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert intake.documents == 1

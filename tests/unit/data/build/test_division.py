import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchrelay.core.errors import DataError
from torchrelay.data.build.division import check_share, cut_parts, divide, find_boundary


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


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 2.0, float("nan")])
def test_a_share_that_leaves_a_side_empty_is_refused(share: float) -> None:
    with pytest.raises(DataError, match="leaves one split empty"):
        check_share(share)

from pathlib import Path

import pytest

from torchrelay.data.build import division as division_module
from torchrelay.data.build import text_unit as text_unit_module
from torchrelay.data.build.division import Division, Piece
from torchrelay.data.build.document import Intake
from torchrelay.data.build.input import TextFiles

Found = list[tuple[str, bytes, int, bool]]


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are cut from 64 bytes on."""
    for module in (division_module, text_unit_module):
        monkeypatch.setattr(module, "PART_BYTES", 64)


def look(piece: Piece) -> tuple[str, bytes, int, bool]:
    text = piece.text.encode() if isinstance(piece.text, str) else bytes(piece.text)
    return piece.split, text, piece.document_id, piece.is_last


def read(folder: Path, division: Division, unit_bytes: int) -> tuple[Found, Intake, int]:
    intake = Intake(on_bad="skip", scratch=folder)
    units = list(TextFiles([f"{folder}/*.txt"]).units(division, unit_bytes))
    found = [look(piece) for unit in units for piece in unit.prepared().pieces(division, intake)]
    return found, intake, len(units)


@pytest.mark.parametrize("rule", ["document", "tail"])
@pytest.mark.parametrize("is_text", [True, False])
def test_a_large_file_gives_the_same_pieces_in_many_units(tmp_path: Path, rule: str, is_text: bool) -> None:
    (tmp_path / "a.txt").write_text("short\n")
    (tmp_path / "b.txt").write_text("".join(f"line {number} é\n" for number in range(300)))
    (tmp_path / "c.txt").write_text("x" * 700)
    division = Division(rule=rule, validation=0.3, test=0.1, is_text=is_text)  # type: ignore[arg-type]
    whole, counted, units = read(tmp_path, division, 10**9)
    assert units == 1
    for unit_bytes in (1, 100, 500):
        found, intake, units = read(tmp_path, division, unit_bytes)
        assert units > 5
        assert found == whole
        assert (intake.documents, intake.problems) == (counted.documents, []) == (3, [])


def test_a_bad_byte_anywhere_leaves_out_the_whole_file_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"line\n" * 100 + b"\xff" + b"line\n" * 100)
    (tmp_path / "b.txt").write_bytes(b"good\n" * 100)
    found, intake, units = read(tmp_path, Division(validation=0, is_text=True), 100)
    assert units > 8
    assert b"".join(text for _, text, _, _ in found) == b"good\n" * 100
    assert intake.problems == [f"{tmp_path}/a.txt is not valid UTF-8 at byte 500"]
    assert intake.documents == 1


def test_packs_need_files_in_one_piece(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"line\n" * 100)
    assert read(tmp_path, Division(validation=0, whole=True), 100)[2] == 1

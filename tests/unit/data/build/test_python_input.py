from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchrelay.core.errors import DataError, RecipeError
from torchrelay.data.build.dataset_build import BuildRequest, build_dataset
from torchrelay.data.build.division import Division
from torchrelay.data.build.document import Fields, Intake
from torchrelay.data.build.python_input import PythonDocuments
from torchrelay.store.files import FileStore

HERE = __name__


def words(count: int = 10, kind: str = "str") -> Iterator[Any]:
    for number in range(count):
        text = f"word {number} " * 20
        yield {"str": text, "bytes": text.encode(), "dict": {"t": text, "more": object()}}[kind]


def broken() -> list[Any]:
    return [{"t": "good"}, {"t": 5}, {"t": "good"}]


def nothing() -> int:
    return 5


def odd() -> list[Any]:
    return ["good", 7]


def texts(source: PythonDocuments, tmp_path: Path, unit_bytes: int = 10**9) -> list[str]:
    division, intake = Division(validation=0, is_text=True), Intake(on_bad="stop", scratch=tmp_path)
    units = source.units(division, unit_bytes)
    return [str(piece.text) for unit in units for piece in unit.pieces(division, intake)]


@pytest.mark.parametrize("kind", ["str", "bytes", "dict"])
def test_texts_and_dicts_are_taken_in_batches(tmp_path: Path, kind: str) -> None:
    source = PythonDocuments(
        reference=f"{HERE}:words", options={"kind": kind, "count": 7}, fields=Fields(text="t")
    )
    expected = [f"word {number} " * 20 for number in range(7)]
    assert texts(source, tmp_path) == texts(source, tmp_path, 300) == expected
    assert len(list(source.units(Division(), 300))) == 4
    assert source.total_bytes() is None


def test_what_is_no_text_is_named_by_its_place(tmp_path: Path) -> None:
    source = PythonDocuments(reference=f"{HERE}:broken", fields=Fields(text="t"))
    with pytest.raises(DataError, match=f"{HERE}:broken: item 1: field 't' is 5, not a text"):
        texts(source, tmp_path)
    with pytest.raises(DataError, match=f"{HERE}:odd: item 1 is 7, neither a text nor a dict"):
        texts(PythonDocuments(reference=f"{HERE}:odd"), tmp_path)
    with pytest.raises(DataError, match=f"{HERE}:nothing gave int, not an iterable of documents"):
        texts(PythonDocuments(reference=f"{HERE}:nothing"), tmp_path)
    with pytest.raises(RecipeError, match="has no 'absent'"):
        PythonDocuments(reference=f"{HERE}:absent").fingerprint()


@pytest.mark.parametrize(
    ("items", "said"),
    [
        (["a", "b", {"t": "c"}], "item 0 is a text, but item 2 is a dict, {'t': 'c'}"),
        ([{"t": "c"}, "b"], "item 0 is a dict, but item 1 is a text, 'b'"),
    ],
)
def test_texts_mixed_with_dicts_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, items: list[Any], said: str
) -> None:
    monkeypatch.setitem(globals(), "odd", lambda: items)
    with pytest.raises(DataError, match="mixes texts and dicts") as caught:
        texts(PythonDocuments(reference=f"{HERE}:odd", fields=Fields(text="t")), tmp_path)
    assert said in caught.value.message


def test_a_function_that_raises_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising() -> Iterator[str]:
        yield "text"
        raise OSError("gone")

    monkeypatch.setitem(globals(), "odd", raising)
    request = BuildRequest(documents=PythonDocuments(reference=f"{HERE}:odd"), work=tmp_path / "work")
    with pytest.raises(DataError, match=f"{HERE}:odd: item 1: OSError: gone"):
        build_dataset(FileStore(tmp_path / "s"), "d", request, progress=lambda _: None)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("processes", [1, 2])
def test_a_function_that_gives_something_else_after_a_restart_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    from torchrelay.data.build.journal import Journal

    given: list[str] = [f"text {number} " * 50 for number in range(60)]
    monkeypatch.setitem(globals(), "broken", lambda: given)
    source = PythonDocuments(reference=f"{HERE}:broken")
    request = BuildRequest(
        documents=source, shard_bytes=2048, unit_bytes=1000, work=tmp_path / "work", processes=processes
    )
    add, count = Journal.add_shard, 0

    def stop(self: Journal, *arguments: Any) -> None:
        nonlocal count
        count += 1
        if count > 3:
            raise KeyboardInterrupt
        add(self, *arguments)

    monkeypatch.setattr(Journal, "add_shard", stop)
    with pytest.raises(KeyboardInterrupt):
        build_dataset(FileStore(tmp_path / "s"), "d", request, progress=lambda _: None)
    monkeypatch.setattr(Journal, "add_shard", add)
    given[0] = "something else"
    with pytest.raises(DataError, match="is not what it was when this build was first started"):
        build_dataset(FileStore(tmp_path / "s"), "d", request, progress=lambda _: None)
    given[0] = "text 0 " * 50
    made = build_dataset(FileStore(tmp_path / "s"), "d", request, progress=lambda _: None)
    assert sum(made.manifest.totals(split).samples for split in made.manifest.splits) == 60

from pathlib import Path

import pytest

from torchrelay.core.errors import DataError, RecipeError
from torchrelay.data.build.dataset_build import BuildRequest, BuildResult, build_dataset
from torchrelay.data.build.input import TextFiles
from torchrelay.data.build.share_check import name_count
from torchrelay.store.base import Store


def build(store: Store, folder: Path, texts: list[str], **options: object) -> BuildResult:
    (folder / "in").mkdir(exist_ok=True)
    for number, text in enumerate(texts):
        (folder / "in" / f"{number:03d}.txt").write_text(text)
    chosen: dict[str, object] = {"validation": 0.3, "work": folder / "work", **options}
    request = BuildRequest(documents=TextFiles([f"{folder}/in/*"]), **chosen)  # type: ignore[arg-type]
    return build_dataset(store, "d", request, clock=lambda: 0.0, progress=lambda _: None)


def test_equal_documents_are_counted_once_where_a_split_would_be_empty(store: Store, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="be empty: 1 distinct document .60 in all; equal") as caught:
        build(store, tmp_path, ["same"] * 60)
    assert "different documents" in caught.value.hint


def test_shares_that_equal_documents_shift_are_noted(store: Store, tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(30)]
    assert build(store, tmp_path, texts, validation=0.5).notes == ()
    (note,) = build(store, tmp_path, [*texts, *["same"] * 400], validation=0.5).notes
    assert "not 50.0%: only 31 of 430 documents are distinct" in note


def test_shares_that_are_asked_for_need_an_input_without_splits(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    source = TextFiles([f"{tmp_path}/a.txt"], {"validation": [f"{tmp_path}/b.txt"]})
    request = BuildRequest(documents=source, shares_asked=True, work=tmp_path / "work")
    with pytest.raises(RecipeError, match="the input says which split every document belongs to"):
        build_dataset(store, "d", request, progress=lambda _: None)
    assert list(store.list("datasets")) == []


def test_counts_are_named() -> None:
    assert name_count(60, 3, "sample").startswith("3 distinct samples (60 in all;")
    assert name_count(1, 1, "sample") == "1 sample" and name_count(2, None, "sample") == "2 samples"

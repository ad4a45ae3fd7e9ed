import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.data.token_shards import read_shard
from torchrelay.core.errors import DataError
from torchrelay.data.build import division as division_module
from torchrelay.data.build.dataset_build import BuildRequest, BuildResult, build_dataset
from torchrelay.data.build.input import JsonLines, TextFiles
from torchrelay.store.base import Store

LENGTHS = [5, 90, 30, 61, 12, 40, 99, 3, 50, 20]


def build(store: Store, folder: Path, lengths: list[int] = LENGTHS, **options: Any) -> BuildResult:
    lines = [json.dumps({"t": chr(97 + number) * length}) for number, length in enumerate(lengths)]
    (folder / "a").write_text("\n".join(lines))
    chosen = {"shard_bytes": 1024, "validation": 0.0, "pack": 100, "work": folder / "work", **options}
    request = BuildRequest(documents=JsonLines(patterns=[str(folder / "a")], field="t"), **chosen)
    return build_dataset(store, "d", request, progress=lambda _: None)


def test_packs_hold_every_document_whole(store: Store, tmp_path: Path) -> None:
    result = build(store, tmp_path)
    assert result.manifest.content.pack_length == 100
    documents = []
    for entry in result.manifest.splits["train"]:
        shard = read_shard(store, entry, "datasets/d")
        assert shard.packs is not None and len(shard.packs.ends) == entry.packs
        lengths = np.diff(shard.ends.astype(int), prepend=0)
        for pack in np.split(shard.packs.order, shard.packs.ends[:-1]):
            assert lengths[pack].sum() <= 100
            documents += (lengths[pack] - 1).tolist()
    assert sorted(documents) == sorted(LENGTHS)


def test_the_same_documents_without_packs_are_another_version(store: Store, tmp_path: Path) -> None:
    packed, plain = build(store, tmp_path).manifest, build(store, tmp_path, pack=None).manifest
    assert packed.version != plain.version and plain.content.pack_length is None
    assert sum(entry.packs for entry in plain.splits["train"]) == 0


def test_a_document_longer_than_a_pack_is_refused_with_the_figures(store: Store, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a:2 has 101 tokens with its end mark, a pack holds 100") as caught:
        build(store, tmp_path, [5, 100])
    assert "--long-documents truncate" in caught.value.hint
    result = build(store, tmp_path, [5, 100], on_bad="skip")
    assert (result.manifest.build.skipped, result.manifest.totals("train").samples) == (1, 1)


def test_a_document_longer_than_a_pack_is_cut_where_that_is_asked_for(store: Store, tmp_path: Path) -> None:
    result = build(store, tmp_path, [5, 500, 99], long_documents="truncate")
    assert result.truncated == 1
    (entry,) = result.manifest.splits["train"]
    shard = read_shard(store, entry, "datasets/d")
    assert np.diff(shard.ends.astype(int), prepend=0).tolist() == [6, 100, 100]
    assert shard.tokens[6:106].tolist() == [ord("b")] * 99 + [256]
    assert entry.text_bytes == 5 + 99 + 99


def test_a_long_file_is_cut_without_holding_all_of_it(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(division_module, "PART_BYTES", 64)
    (tmp_path / "long.txt").write_text("line\n" * 2000)
    request = BuildRequest(
        documents=TextFiles([f"{tmp_path}/long.txt"]),
        validation=0.0,
        pack=50,
        shard_bytes=1024,
        long_documents="truncate",
        work=tmp_path / "work",
    )
    result = build_dataset(store, "d", request, progress=lambda _: None)
    (entry,) = result.manifest.splits["train"]
    assert (entry.tokens, entry.text_bytes, result.truncated) == (50, 49, 1)


@pytest.mark.parametrize("pack", [1, 257])
def test_a_pack_that_no_shard_holds_is_refused(store: Store, tmp_path: Path, pack: int) -> None:
    with pytest.raises(DataError, match=rf"--pack {pack} is out of range: a shard of 1.00 KiB holds packs"):
        build(store, tmp_path, pack=pack)

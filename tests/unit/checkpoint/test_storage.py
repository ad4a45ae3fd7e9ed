from pathlib import Path

import pytest
import torch

from tests.unit.checkpoint.support import Trained
from torchrelay.checkpoint.shelf import Shelf
from torchrelay.checkpoint.storage import ChunkReader, dtype_name, dtype_of, read_tensors
from torchrelay.core.errors import CheckpointError, DamagedError
from torchrelay.store.files import FileStore


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(FileStore(tmp_path), "t")


def test_types_have_short_names_and_back() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        assert dtype_of(dtype_name(dtype)) is dtype
    for name in ("float33", "nn", "load", ""):
        with pytest.raises(DamagedError, match="unknown dtype"):
            dtype_of(name)


def test_tensors_of_every_shape_and_type_are_read_back_bit_for_bit(shelf: Shelf) -> None:
    trained = Trained()
    tensors = {
        "model/a": torch.randn(3, 5, 2),
        "model/b": torch.tensor(3.5),
        "model/c": torch.randn(4, 4).to(torch.bfloat16),
        "model/d": torch.arange(6).view(2, 3),
        "model/e": torch.zeros(0, 4),
        "model/f": torch.randn(6, 4)[::2].T,
        "model/g": torch.tensor([True, False]),
        "model/h": torch.tensor([float("nan"), float("-inf")]),
    }
    trained.tensors = lambda: tensors  # type: ignore[method-assign]
    commit = trained.save(shelf, 5)
    manifest = shelf.read_manifest(commit)
    read = dict(read_tensors(shelf.store, f"{shelf.prefix}/{commit.checkpoint}", manifest.tensors))
    assert list(read) == sorted(tensors)
    for name, tensor in tensors.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        assert (
            read[name]
            .contiguous()
            .view(-1)
            .view(torch.uint8)
            .equal(tensor.contiguous().view(-1).view(torch.uint8))
        )


def test_the_manifest_says_where_every_chunk_lies(shelf: Shelf) -> None:
    commit = Trained().save(shelf, 5)
    manifest = shelf.read_manifest(commit)
    path = shelf.store.local_path(f"{shelf.prefix}/{commit.checkpoint}/rank-00000.bin")
    assert path is not None
    assert manifest.parts[0].num_bytes == path.stat().st_size
    chunks = sorted((c for t in manifest.tensors.values() for c in t.chunks), key=lambda c: c.start)
    assert [c.start for c in chunks[1:]] == [c.start + c.num_bytes for c in chunks[:-1]]
    assert sum(c.num_bytes for c in chunks) == path.stat().st_size


def test_a_chunk_that_changed_is_named_with_its_file_and_tensor(shelf: Shelf) -> None:
    commit = Trained().save(shelf, 5)
    manifest = shelf.read_manifest(commit)
    chunk = manifest.tensors["model/2.weight"].chunks[0]
    folder = f"{shelf.prefix}/{commit.checkpoint}"
    path = shelf.store.local_path(f"{folder}/{chunk.file}")
    assert path is not None
    content = bytearray(path.read_bytes())
    content[chunk.start] ^= 1
    path.write_bytes(content)
    reader = ChunkReader(shelf.store, folder, manifest.tensors)
    with pytest.raises(DamagedError, match=r"rank-00000.bin: model/2.weight at byte \d+ has checksum"):
        reader.read_chunk(chunk, "model/2.weight")
    other = manifest.tensors["model/0.weight"].chunks[0]
    assert reader.read_chunk(other, "model/0.weight").shape == (3, 5)


def test_a_file_that_ends_early_is_named(shelf: Shelf) -> None:
    commit = Trained().save(shelf, 5)
    manifest = shelf.read_manifest(commit)
    folder = f"{shelf.prefix}/{commit.checkpoint}"
    path = shelf.store.local_path(f"{folder}/rank-00000.bin")
    assert path is not None
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DamagedError, match="rank-00000.bin ends early"):
        list(read_tensors(shelf.store, folder, manifest.tensors))
    path.unlink()
    with pytest.raises(DamagedError, match="rank-00000.bin is missing"):
        list(read_tensors(shelf.store, folder, manifest.tensors))


def test_only_tensors_can_be_saved(shelf: Shelf) -> None:
    trained = Trained()
    trained.tensors = lambda: {"model/a": torch.ones(2), "model/b": "text"}  # type: ignore[method-assign, dict-item, return-value]
    with pytest.raises(CheckpointError, match="model/b is no tensor"):
        trained.save(shelf, 5)
    assert shelf.all() == []

import hashlib
import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.checkpoint.support import Trained
from torchrelay.checkpoint.digest import digest_checkpoint, digest_tensors
from torchrelay.checkpoint.manifest import Chunk, Manifest, SavedTensor, commit_of
from torchrelay.checkpoint.shelf import Shelf
from torchrelay.core.errors import DamagedError
from torchrelay.store.files import FileStore
from torchrelay.store.open import open_store

_numbers = itertools.count()


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(FileStore(tmp_path), "t")


def recut(shelf: Shelf, whole: Manifest, cuts: list[int], folder: str) -> Manifest:
    """The same tensors in a new folder, every matrix cut into row blocks over several files."""
    store, source = shelf.store, f"{shelf.prefix}/{whole.checkpoint}"
    files: dict[str, bytearray] = {}
    tensors = {}
    for name, saved in whole.tensors.items():
        (chunk,) = saved.chunks
        data = store.get(f"{source}/{chunk.file}", start=chunk.start, length=chunk.num_bytes)
        rows = saved.shape[0] if saved.shape else 1
        edges = sorted({0, rows, *(cut % (rows + 1) for cut in cuts)}) if saved.shape else [0, 1]
        pieces = []
        for number, (first, last) in enumerate(zip(edges, edges[1:], strict=False)):
            piece = data[len(data) * first // rows : len(data) * last // rows]
            file = f"rank-{number:05d}.bin"
            content = files.setdefault(file, bytearray())
            offsets = (first, *(0 for _ in saved.shape[1:])) if saved.shape else ()
            sizes = (last - first, *saved.shape[1:]) if saved.shape else ()
            digest = xxhash.xxh3_128_hexdigest(piece)
            pieces.append(Chunk(offsets, sizes, file, len(content), len(piece), digest))
            content += piece
        tensors[name] = SavedTensor(saved.dtype, saved.shape, tuple(reversed(pieces)))
    for file, content in files.items():
        store.put(f"{shelf.prefix}/{folder}/{file}", bytes(content))
    return replace(whole, checkpoint=folder, tensors=tensors)


def test_the_hash_is_over_names_types_shapes_and_bytes_in_name_order() -> None:
    tensor = torch.tensor([[1.0, 2.0]])
    expected = hashlib.sha256(b"a float32 [1, 2]\n" + tensor.numpy().tobytes()).hexdigest()
    assert digest_tensors([("a", tensor)]) == expected
    for other in ([("b", tensor)], [("a", tensor.T)], [("a", tensor.double())], [("a", -tensor)], []):
        assert digest_tensors(other) != expected


def test_the_layout_in_memory_does_not_matter() -> None:
    tensor = torch.randn(4, 6)
    assert digest_tensors([("a", tensor.T.contiguous().T)]) == digest_tensors([("a", tensor)])
    assert digest_tensors([("a", torch.zeros(0, 3))]) != digest_tensors([("a", torch.zeros(3, 0))])


def test_two_saves_of_the_same_state_have_the_same_hashes(shelf: Shelf) -> None:
    trained = Trained()
    hashes = []
    for step in (5, 10):
        commit = trained.save(shelf, step)
        hashes.append(digest_checkpoint(shelf, commit, shelf.read_manifest(commit)))
    assert hashes[0] == hashes[1]
    assert hashes[0][0] != hashes[0][1]
    trained.move()
    moved = trained.save(shelf, 15)
    weights, optimizer = digest_checkpoint(shelf, moved, shelf.read_manifest(moved))
    assert weights != hashes[0][0]
    assert optimizer != hashes[0][1]


@settings(max_examples=30)
@given(cuts=st.lists(st.integers(0, 100), max_size=4))
def test_the_hash_does_not_depend_on_how_tensors_are_cut(cuts: list[int]) -> None:
    shelf = Shelf(open_store(f"memory://digest-{next(_numbers)}"), "t")
    commit = Trained().save(shelf, 5)
    whole = shelf.read_manifest(commit)
    cut = recut(shelf, whole, cuts, "step-000000005/a-2-bb")
    cut_commit = commit_of(cut, cut.to_bytes(), number=2)
    assert digest_checkpoint(shelf, cut_commit, cut) == digest_checkpoint(shelf, commit, whole)


def test_a_damaged_checkpoint_has_no_hash(shelf: Shelf) -> None:
    commit = Trained().save(shelf, 5)
    path = shelf.store.local_path(f"{shelf.prefix}/{commit.checkpoint}/rank-00000.bin")
    assert path is not None
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedError):
        digest_checkpoint(shelf, commit, shelf.read_manifest(commit))

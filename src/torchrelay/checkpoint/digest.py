"""One hash for all weights, whatever the sharding they were saved with.

sha256 over the tensors in name order: for each its name, dtype, shape and the bytes of the whole
tensor in row-major order. Two checkpoints have the same hash exactly when their tensors are
bitwise equal, at any process count and engine.
"""

import hashlib
from collections.abc import Iterable

import torch

from torchrelay.checkpoint.manifest import Commit, Manifest
from torchrelay.checkpoint.shelf import Shelf
from torchrelay.checkpoint.state import MODEL, OPTIMIZER
from torchrelay.checkpoint.storage import dtype_name, read_tensors


def digest_tensors(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """sha256 of (name, tensor) pairs that come in name order, 64 hex digits."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {dtype_name(tensor.dtype)} {list(tensor.shape)}\n".encode())
        data = tensor.detach().cpu().contiguous().view(-1)
        digest.update(memoryview(data.view(torch.uint8).numpy().data if data.numel() else b""))
    return digest.hexdigest()


def digest_checkpoint(shelf: Shelf, commit: Commit, manifest: Manifest) -> tuple[str, str]:
    """(weights_sha256, optimizer_sha256); reads and checks every byte of the checkpoint."""
    folder = f"{shelf.prefix}/{commit.checkpoint}"
    hashes = []
    for prefix in (MODEL, OPTIMIZER):
        own = {name: saved for name, saved in manifest.tensors.items() if name.startswith(prefix)}
        stripped = ((name.removeprefix(prefix), t) for name, t in read_tensors(shelf.store, folder, own))
        hashes.append(digest_tensors(stripped))
    return hashes[0], hashes[1]

"""Write a checkpoint's weights for others: `final-models/<run>/` with safetensors and config.

Reads the checkpoint's files tensor by tensor, on one process, with no collective and no GPU, so
that nobody waits for it. Peak memory is about two shards of the export.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from safetensors.torch import save

from torchrelay.checkpoint.manifest import Commit, Manifest
from torchrelay.checkpoint.shelf import Shelf
from torchrelay.checkpoint.state import MODEL
from torchrelay.checkpoint.storage import dtype_of, read_tensors
from torchrelay.store.base import Store

SHARD_BYTES = 2**30
"""Largest safetensors file, unless one tensor alone is larger."""
DONE_FILE = "torchrelay.json"
"""Where the model comes from; written last, so that it marks a complete export."""

Convert = Callable[[str, torch.Tensor], Sequence[tuple[str, torch.Tensor]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What is written beside the weights, and how their names change."""

    convert: Convert
    extra: Callable[[], Sequence[tuple[str, torch.Tensor]]]
    files: Mapping[str, bytes]
    """Configuration, tokenizer and the like, by file name."""
    lineage: Mapping[str, object]
    """Content of `torchrelay.json`."""


def final_model_prefix(run: str) -> str:
    """Where a run's final model lies in the store."""
    return f"final-models/{run}"


def export_model(shelf: Shelf, commit: Commit, manifest: Manifest, export: Export) -> int:
    """Write the model of a commit and return its bytes. An older export of the run is replaced.

    While it is being written there is no `torchrelay.json`.
    """
    store, prefix = shelf.store, final_model_prefix(shelf.run)
    store.delete(f"{prefix}/{DONE_FILE}")
    stale = {entry.key for entry in store.list(prefix)}
    written = _write_weights(
        store, prefix, _tensors(shelf, commit, manifest, export), _plan(manifest, export)
    )
    for name, content in export.files.items():
        store.put(f"{prefix}/{name}", content)
        written[f"{prefix}/{name}"] = len(content)
    for key in stale - set(written):
        store.delete(key)
    lineage = {**export.lineage, "step": commit.step, "checkpoint": commit.checkpoint}
    store.put(f"{prefix}/{DONE_FILE}", json.dumps(lineage, indent=1).encode())
    return sum(written.values())


def _tensors(
    shelf: Shelf, commit: Commit, manifest: Manifest, export: Export
) -> Iterator[tuple[str, torch.Tensor]]:
    own = {name: saved for name, saved in manifest.tensors.items() if name.startswith(MODEL)}
    for name, tensor in read_tensors(shelf.store, f"{shelf.prefix}/{commit.checkpoint}", own):
        yield from export.convert(name.removeprefix(MODEL), tensor)
    yield from export.extra()


def _plan(manifest: Manifest, export: Export) -> list[list[str]]:
    """Names of the exported tensors, cut into files; found on the meta device, without reading."""
    sizes: list[tuple[str, int]] = []
    for name in sorted(n for n in manifest.tensors if n.startswith(MODEL)):
        saved = manifest.tensors[name]
        like = torch.empty(saved.shape, dtype=dtype_of(saved.dtype), device="meta")
        sizes += [
            (new, t.numel() * t.element_size()) for new, t in export.convert(name.removeprefix(MODEL), like)
        ]
    sizes += [(name, t.numel() * t.element_size()) for name, t in export.extra()]
    files: list[list[str]] = [[]]
    room = SHARD_BYTES
    for name, size in sizes:
        if files[-1] and size > room:
            files.append([])
            room = SHARD_BYTES
        files[-1].append(name)
        room -= size
    return files


def _write_weights(
    store: Store, prefix: str, tensors: Iterator[tuple[str, torch.Tensor]], plan: list[list[str]]
) -> dict[str, int]:
    written: dict[str, int] = {}
    index: dict[str, str] = {}
    for number, names in enumerate(plan, start=1):
        file = f"model-{number:05d}-of-{len(plan):05d}.safetensors" if len(plan) > 1 else "model.safetensors"
        shard = {name: tensor.contiguous() for name, tensor in (next(tensors) for _ in names)}
        content = save(shard, metadata={"format": "pt"})
        store.put(f"{prefix}/{file}", content)
        written[f"{prefix}/{file}"] = len(content)
        index |= dict.fromkeys(shard, file)
    if len(plan) > 1:
        total = sum(written.values())
        content = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=1).encode()
        store.put(f"{prefix}/model.safetensors.index.json", content)
        written[f"{prefix}/model.safetensors.index.json"] = len(content)
    return written

"""torch DCP's storage interfaces over our store and manifest.

DCP plans who writes and reads which box of which tensor (so any layout loads into any other);
this file carries the bytes. It writes raw tensor bytes, hashes every chunk, and gives DCP the
metadata back from JSON; nothing is pickled. Names from `torch.distributed.checkpoint` are used
here and in save.py/load.py only.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import xxhash
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from torchrelay.checkpoint.manifest import Chunk, Part, SavedTensor
from torchrelay.core.errors import CheckpointError, DamagedError, NotFoundError
from torchrelay.store.base import Store, Writer


@contextmanager
def quietly() -> Iterator[None]:
    """Without DCP's warning that one process saves or loads alone, which is just what it was told to do."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def dtype_name(dtype: torch.dtype) -> str:
    """The short name: float32 for torch.float32."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """The dtype of `dtype_name`; DamagedError for anything else."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise DamagedError(f"the manifest names an unknown dtype {name!r}")
    return dtype


class ChunkWriter(StorageWriter):
    """Writes this rank's file; on the coordinator, `tensors` and `parts` are complete after the save.

    Called by DCP on every rank, in one thread.
    """

    def __init__(self, store: Store, folder: str, rank: int) -> None:
        self._store = store
        self._folder = folder
        self._name = f"rank-{rank:05d}.bin"
        self.tensors: dict[str, SavedTensor] = {}
        self.parts: tuple[Part, ...] = ()

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the planned boxes one after another; the file is durable when this returns."""
        results: list[WriteResult] = []
        whole = xxhash.xxh3_128()
        start = 0
        if plan.items:
            with self._store.open_writer(f"{self._folder}/{self._name}") as writer:
                for item in plan.items:
                    chunk = self._write(writer, item, planner, start)
                    whole.update(chunk[1])
                    start += chunk[0].num_bytes
                    results.append(WriteResult(item.index, chunk[0].num_bytes, chunk[0]))
            part = Part(self._name, start, whole.hexdigest())
            results.append(WriteResult(MetadataIndex("part"), start, part))
        return _done(results)

    def _write(
        self, writer: Writer, item: WriteItem, planner: SavePlanner, start: int
    ) -> tuple[Chunk, memoryview]:
        value = planner.resolve_data(item)
        if not isinstance(value, torch.Tensor) or item.tensor_data is None:
            raise CheckpointError(f"{item.index.fqn} is no tensor and cannot be saved")
        tensor = value.detach().to("cpu").contiguous()
        data = memoryview(tensor.view(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
        writer.write(data)
        box = item.tensor_data.chunk
        digest = xxhash.xxh3_128(data).hexdigest()
        return Chunk(tuple(box.offsets), tuple(box.sizes), self._name, start, data.nbytes, digest), data

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the coordinator: gather what every rank wrote."""
        written = [result for of_rank in results for result in of_rank]
        self.parts = tuple(r.storage_data for r in written if isinstance(r.storage_data, Part))
        chunks: dict[str, list[Chunk]] = {}
        for result in written:
            if isinstance(result.storage_data, Chunk):
                chunks.setdefault(result.index.fqn, []).append(result.storage_data)
        for name, entry in metadata.state_dict_metadata.items():
            if not isinstance(entry, TensorStorageMetadata):
                raise CheckpointError(f"{name} is no tensor and cannot be saved")
            own = tuple(sorted(chunks.get(name, []), key=lambda chunk: chunk.offsets))
            self.tensors[name] = SavedTensor(dtype_name(entry.properties.dtype), tuple(entry.size), own)

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing is kept between saves."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: FBT001
        """Nothing to prepare: the folder is new."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """The plan is taken as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """The plans are taken as they are."""
        return plans

    def storage_meta(self) -> StorageMeta | None:
        """Our manifest holds what DCP would keep here."""
        return None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Places are given as a store and a folder, never as an id."""
        return False


class ChunkReader(StorageReader):
    """Reads chunks, checks each against its checksum, and hands out the asked-for boxes.

    Called by DCP on every rank, in one thread.
    """

    def __init__(self, store: Store, folder: str, tensors: dict[str, SavedTensor]) -> None:
        self._store = store
        self._folder = folder
        self._tensors = tensors

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """DCP's description of the manifest's tensors."""
        return Metadata(
            {
                name: TensorStorageMetadata(
                    TensorProperties(dtype=dtype_of(saved.dtype)),
                    torch.Size(saved.shape),
                    [ChunkStorageMetadata(torch.Size(c.offsets), torch.Size(c.sizes)) for c in saved.chunks],
                )
                for name, saved in self._tensors.items()
            }
        )

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill the planned boxes; DamagedError names file and tensor of a chunk that changed."""
        by_chunk: dict[Chunk, list[ReadItem]] = {}
        for item in plan.items:
            by_chunk.setdefault(self._chunk(item), []).append(item)
        for chunk in sorted(by_chunk, key=lambda c: (c.file, c.start)):
            items = by_chunk[chunk]
            source = self.read_chunk(chunk, items[0].storage_index.fqn)
            for item in items:
                box = tuple(slice(o, o + n) for o, n in zip(item.storage_offsets, item.lengths, strict=True))
                target = planner.resolve_tensor(item).detach()
                target.copy_(source[box])
                planner.commit_tensor(item, target)
        return _done(None)

    def _chunk(self, item: ReadItem) -> Chunk:
        offset = tuple(item.storage_index.offset or ())
        for chunk in self._tensors[item.storage_index.fqn].chunks:
            if chunk.offsets == offset or not offset:
                return chunk
        raise DamagedError(f"{item.storage_index.fqn} has no chunk at {offset}")

    def read_chunk(self, chunk: Chunk, name: str) -> torch.Tensor:
        """One chunk of the tensor `name`, checked; DamagedError names file and tensor."""
        where = f"{self._folder}/{chunk.file}"
        try:
            data = bytearray(self._store.get(where, start=chunk.start, length=chunk.num_bytes))
        except NotFoundError as error:
            raise DamagedError(f"{chunk.file} is missing") from error
        if len(data) != chunk.num_bytes:
            raise DamagedError(
                f"{chunk.file} ends early: {name} needs bytes up to {chunk.start + chunk.num_bytes}"
            )
        digest = xxhash.xxh3_128(data).hexdigest()
        if digest != chunk.xxh3:
            raise DamagedError(
                f"{chunk.file}: {name} at byte {chunk.start} has checksum {digest}, not {chunk.xxh3}"
            )
        dtype = dtype_of(self._tensors[name].dtype)
        return (
            torch.frombuffer(data, dtype=dtype).view(chunk.sizes)
            if data
            else torch.empty(chunk.sizes, dtype=dtype)
        )

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing is kept between loads."""

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:  # noqa: FBT001
        """Nothing to prepare."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """The plan is taken as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """The plans are taken as they are."""
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Places are given as a store and a folder, never as an id."""
        return False


def read_tensors(
    store: Store, folder: str, tensors: dict[str, SavedTensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every saved tensor whole, one at a time, in name order; for one process, no collectives.

    Peak memory: the largest tensor and its largest chunk.
    """
    reader = ChunkReader(store, folder, tensors)
    for name in sorted(tensors):
        saved = tensors[name]
        whole = torch.empty(saved.shape, dtype=dtype_of(saved.dtype))
        for chunk in saved.chunks:
            box = tuple(slice(o, o + n) for o, n in zip(chunk.offsets, chunk.sizes, strict=True))
            whole[box] = reader.read_chunk(chunk, name)
        yield name, whole


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future

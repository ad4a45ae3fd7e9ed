"""Hugging Face datasets: Parquet files, streamed, shards in random order and a buffer of 1,000 samples.

Resuming is asked of it without the shuffle, because with it samples are lost and repeated.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import meter
import workload


def convert(job: meter.Job) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    make, kind, count = {
        "tok": (workload.row, pa.list_(pa.int32()), workload.ROWS_PER_SHARD),
        "img": (workload.image, pa.binary(), workload.SHARD_BYTES // 19_700),
        "small": (int, pa.int64(), workload.SHARD_BYTES // 8),
    }[job.workload]
    place = Path(job.place)
    place.mkdir(parents=True, exist_ok=True)
    for shard, numbers in enumerate(meter.chunked(range(job.samples), count)):
        column = pa.array([make(number) for number in numbers], kind)
        pq.write_table(pa.table({"data": column}), place / f"{shard:06d}.parquet", compression="none")


class HuggingFace:
    """An IterableDataset behind torch's DataLoader; see `meter.Opened`."""

    def __init__(self, job: meter.Job, state: Any) -> None:
        from torch.utils.data import DataLoader

        self._job = job
        self._dataset = _open(job)
        if state is not None:
            self._dataset.load_state_dict(state)
        self._loader = DataLoader(self._dataset, batch_size=job.share, num_workers=job.workers)

    def epoch(self) -> Iterator[Any]:
        """See `meter.Opened.epoch`."""
        yield from self._loader

    def size(self, batch: Any) -> int:
        """See `meter.Opened.size`."""
        return len(batch["data"])

    def ids(self, batch: Any) -> list[int]:
        """See `meter.Opened.ids`."""
        if self._job.workload == "img":
            return [workload.image_number(image) for image in batch["data"]]
        return (batch["data"][:, 0] if self._job.workload == "tok" else batch["data"]).tolist()

    def state(self) -> Any:
        """See `meter.Opened.state`."""
        return self._dataset.state_dict() if self._job.workers == 0 else None


def _open(job: meter.Job) -> Any:
    from datasets import load_dataset
    from datasets.distributed import split_dataset_by_node

    if job.is_remote:
        files, options = f"{job.place}/*.parquet", {"storage_options": _storage()}
    else:
        files, options = sorted(map(str, Path(job.place).glob("*.parquet"))), {}
    dataset = load_dataset("parquet", data_files=files, split="train", streaming=True, **options)
    if not job.lean:
        dataset = dataset.shuffle(seed=1, buffer_size=1000)
    if job.world > 1:
        dataset = split_dataset_by_node(dataset, rank=job.rank, world_size=job.world)
    return dataset if job.workload == "img" else dataset.with_format("torch")


def _storage() -> dict[str, Any]:
    return {
        "key": os.environ["AWS_ACCESS_KEY_ID"],
        "secret": os.environ["AWS_SECRET_ACCESS_KEY"],
        "client_kwargs": {
            "endpoint_url": os.environ["AWS_ENDPOINT_URL"],
            "region_name": os.environ["AWS_REGION"],
        },
    }


def deep(job: meter.Job, samples: int) -> Any:
    """The state behind the first sample, moved on to another shard and another row."""
    dataset = _open(job)
    next(iter(dataset))
    state = dataset.state_dict()
    shard, row = divmod(samples, workload.SHARD_BYTES // 8)
    outer = state["examples_iterable"]  # gives the rows of tables one by one
    at = {**outer["previous_state"], "shard_idx": shard, "shard_example_idx": 0}
    ahead = {**at, "shard_example_idx": min(workload.SHARD_BYTES // 8, job.samples)}
    outer |= {"previous_state": at, "examples_iterable": ahead}
    outer |= {"batch_idx": row, "num_chunks_since_previous_state": row}
    return state


def prepare() -> None:
    import datasets  # noqa: F401
    import torch.utils.data  # noqa: F401


if __name__ == "__main__":
    meter.run(
        meter.Loader(
            packages=("datasets", "pyarrow"), convert=convert, open=HuggingFace, deep=deep, prepare=prepare
        )
    )

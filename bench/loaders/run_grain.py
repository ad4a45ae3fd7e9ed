"""Grain: ArrayRecord files and a MapDataset, which shuffles all samples without a table.

It reads from a file system only; for an object store its documentation mounts one.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import meter
import numpy as np
import workload


def convert(job: meter.Job) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    place = Path(job.place)
    place.mkdir(parents=True, exist_ok=True)
    if job.workload == "small":  # a range has the same order, and ten million records would fill the disk
        return
    make, count = {
        "tok": (lambda number: workload.row(number).tobytes(), workload.ROWS_PER_SHARD),
        "img": (workload.image, workload.SHARD_BYTES // 19_700),
    }[job.workload]
    for shard, numbers in enumerate(meter.chunked(range(job.samples), count)):
        writer = ArrayRecordWriter(str(place / f"{shard:06d}.array_record"), "group_size:1")
        for number in numbers:
            writer.write(make(number))
        writer.close()


class Grain:
    """A MapDataset and its iterator; see `meter.Opened`."""

    def __init__(self, job: meter.Job, state: Any) -> None:
        import grain

        files = sorted(map(str, Path(job.place).glob("*.array_record")))
        if job.workload == "small":
            source = grain.sources.RangeDataSource(0, job.samples, 1)
        else:
            source = grain.sources.ArrayRecordDataSource(files)
        dataset = grain.MapDataset.source(source).seed(1).shuffle()
        if job.world > 1:
            dataset = dataset[job.rank :: job.world]
        if job.workload == "tok":
            dataset = dataset.map(lambda data: np.frombuffer(data, np.int32))
        stack = np.stack if job.workload == "tok" else list
        dataset = dataset.batch(job.share, batch_fn=stack).to_iter_dataset()
        if job.workers:
            dataset = dataset.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(job.workers))
        self._workload = job.workload
        self._dataset = dataset
        self._state = state
        self._iterator: Any = None

    def epoch(self) -> Iterator[Any]:
        """See `meter.Opened.epoch`."""
        self._iterator = iter(self._dataset)
        if self._state is not None:
            self._iterator.set_state(self._state)
            self._state = None
        return self._iterator

    def size(self, batch: Any) -> int:
        """See `meter.Opened.size`."""
        return len(batch)

    def ids(self, batch: Any) -> list[int]:
        """See `meter.Opened.ids`."""
        if self._workload == "tok":
            return batch[:, 0].tolist()
        if self._workload == "small":
            return list(batch)
        return [workload.image_number(data) for data in batch]

    def state(self) -> Any:
        """See `meter.Opened.state`."""
        return self._iterator.get_state()


def deep(job: meter.Job, samples: int) -> Any:
    opened = Grain(job, None)
    next(opened.epoch())
    return opened.state() | {"next_index": samples // job.batch}


def prepare() -> None:
    import grain  # noqa: F401


if __name__ == "__main__":
    from absl import flags

    flags.FLAGS.mark_as_parsed()
    meter.run(
        meter.Loader(
            packages=("grain", "array_record"), convert=convert, open=Grain, deep=deep, prepare=prepare
        )
    )

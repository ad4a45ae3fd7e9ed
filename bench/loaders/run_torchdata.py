"""torchdata's StatefulDataLoader over a memory map: torch's own sampler, and a state to resume from.

It reads no format and no store of its own, so the file is what a careful person would write: all
samples one after another, and where each begins.
"""

import base64
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import meter
import numpy as np
import workload


def convert(job: meter.Job) -> None:
    place = Path(job.place)
    place.mkdir(parents=True, exist_ok=True)
    if job.workload == "small":
        np.arange(job.samples).tofile(place / "data.bin")
        np.save(place / "starts.npy", np.arange(job.samples + 1) * 8)
        return
    make = workload.image if job.workload == "img" else lambda number: workload.row(number).tobytes()
    starts = [0]
    with (place / "data.bin").open("wb") as file:
        for number in range(job.samples):
            data = make(number)
            file.write(data)
            starts.append(starts[-1] + len(data))
    np.save(place / "starts.npy", np.array(starts))


class Mapped:
    """Samples by their number."""

    def __init__(self, job: meter.Job) -> None:
        self._bytes = np.memmap(Path(job.place) / "data.bin", np.uint8, "r")
        self._starts = np.load(Path(job.place) / "starts.npy", mmap_mode="r")
        self._workload = job.workload

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, number: int) -> Any:
        data = self._bytes[self._starts[number] : self._starts[number + 1]]
        if self._workload == "tok":
            return data.view(np.int32)
        return data.tobytes() if self._workload == "img" else int(data.view(np.int64)[0])


class Stateful:
    """The package's loader; see `meter.Opened`."""

    def __init__(self, job: meter.Job, state: Any) -> None:
        from torch import Generator
        from torch.utils.data import DistributedSampler
        from torchdata.stateful_dataloader import StatefulDataLoader

        self._workload = job.workload
        dataset = Mapped(job)
        how = {"shuffle": True, "generator": Generator().manual_seed(1)}
        if job.action == "ids":
            how = {"sampler": DistributedSampler(dataset, job.world, job.rank, seed=1)}
        self._loader = StatefulDataLoader(dataset, batch_size=job.share, num_workers=job.workers, **how)
        if state is not None:
            self._loader.load_state_dict(pickle.loads(base64.b64decode(state)))  # noqa: S301 - our own file

    def epoch(self) -> Iterator[Any]:
        """See `meter.Opened.epoch`."""
        return iter(self._loader)

    def size(self, batch: Any) -> int:
        """See `meter.Opened.size`."""
        return len(batch)

    def ids(self, batch: Any) -> list[int]:
        """See `meter.Opened.ids`."""
        if self._workload == "img":
            return [workload.image_number(image) for image in batch]
        return (batch[:, 0] if self._workload == "tok" else batch).tolist()

    def state(self) -> Any:
        """See `meter.Opened.state`."""
        return _text(self._loader.state_dict())


def _text(state: Any) -> str:
    return base64.b64encode(pickle.dumps(state)).decode()


def deep(job: meter.Job, samples: int) -> Any:
    """The state behind the first batch, with the counts of a later one."""
    opened = Stateful(job, None)
    next(opened.epoch())
    state = opened._loader.state_dict()
    _move(state, samples, samples // job.batch)
    return _text(state)


def _move(state: dict[str, Any], samples: int, batches: int) -> None:
    """Sets every count of samples and of batches in the nested state."""
    for key, value in state.items():
        if isinstance(value, dict):
            _move(value, samples, batches)
        elif key == "yielded":
            state[key] = samples
        elif key in ("_num_yielded", "samples_yielded", "_sampler_iter_yielded"):
            state[key] = batches


def prepare() -> None:
    import torchdata.stateful_dataloader  # noqa: F401


if __name__ == "__main__":
    meter.run(
        meter.Loader(packages=("torchdata",), convert=convert, open=Stateful, deep=deep, prepare=prepare)
    )

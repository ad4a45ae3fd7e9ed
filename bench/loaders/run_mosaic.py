"""mosaicml-streaming: MDS shards, `py1e` shuffle, its own data loader; every option at its default."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import meter
import workload

_COLUMNS = {
    "tok": {"tokens": f"ndarray:int32:{workload.ROW}"},
    "img": {"image": "bytes"},
    "small": {"number": "int64"},
}


def stand_in() -> None:
    """Empty classes for what the package imports of torchvision and transformers and never uses here."""
    names = {
        "torchvision.datasets": ("VisionDataset", "CIFAR10", "ImageFolder"),
        "torchvision.transforms.functional": ("to_tensor",),
        "transformers.feature_extraction_utils": ("BatchFeature",),
        "transformers.tokenization_utils_base": ("BatchEncoding",),
        "transformers.models.auto.tokenization_auto": ("AutoTokenizer",),
    }
    for name, classes in names.items():
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:length]), ModuleType(".".join(parts[:length])))
        for found in classes:
            setattr(sys.modules[name], found, type(found, (), {}))


def prepare() -> None:
    stand_in()
    import streaming  # noqa: F401


def convert(job: meter.Job) -> None:
    from streaming import MDSWriter

    make = {
        "tok": lambda number: {"tokens": workload.row(number)},
        "img": lambda number: {"image": workload.image(number)},
        "small": lambda number: {"number": number},
    }[job.workload]
    columns = _COLUMNS[job.workload]
    with MDSWriter(out=job.place, columns=columns, size_limit=workload.SHARD_BYTES) as writer:
        for number in range(job.samples):
            writer.write(make(number))


class Mosaic:
    """The package's loader; see `meter.Opened`."""

    def __init__(self, job: meter.Job, state: Any) -> None:
        from streaming import StreamingDataLoader, StreamingDataset

        where = {"remote": job.place, "local": job.cache} if job.is_remote else {"local": job.place}
        self._workload = job.workload
        self._dataset = StreamingDataset(**where, shuffle=True, shuffle_seed=1, batch_size=job.share)
        self._loader = StreamingDataLoader(self._dataset, batch_size=job.share, num_workers=job.workers)
        if state is not None:
            self._loader.load_state_dict(state)

    def epoch(self) -> Iterator[Any]:
        """See `meter.Opened.epoch`."""
        return iter(self._loader)

    def size(self, batch: Any) -> int:
        """See `meter.Opened.size`."""
        return len(next(iter(batch.values())))

    def ids(self, batch: Any) -> list[int]:
        """See `meter.Opened.ids`."""
        if self._workload == "img":
            return [workload.image_number(image) for image in batch["image"]]
        return (batch["tokens"][:, 0] if self._workload == "tok" else batch["number"]).tolist()

    def state(self) -> Any:
        """See `meter.Opened.state`."""
        return self._loader.state_dict()


def deep(job: meter.Job, samples: int) -> Any:
    return {
        "epoch": 0,
        "sample_in_epoch": samples,
        "num_canonical_nodes": 1,
        "shuffle_seed": 1,
        "initial_physical_nodes": 1,
    }


if __name__ == "__main__":
    meter.run(
        meter.Loader(
            packages=("mosaicml-streaming",), convert=convert, open=Mosaic, deep=deep, prepare=prepare
        )
    )

"""torchrelay: its own shards in a store, read as the training loop reads them, every option at its default.

`workers` is the depth of its read-ahead, in threads: that is how it is meant to be used where
samples are cheap to decode.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import meter
import numpy as np
import workload

_LENGTHS = {"tok": workload.ROW - 1, "small": 4}
_SHARD_ROWS = {"tok": workload.ROWS_PER_SHARD, "small": workload.SHARD_BYTES // 16}


def convert(job: meter.Job) -> None:
    from torchrelay.data.manifest import TRAIN
    from torchrelay.data.publish import publish

    store, folder = _store(job.place, job.workload)
    Path(job.place).mkdir(parents=True, exist_ok=True)
    content, file = (
        _write_images(job, store, folder) if job.workload == "img" else _write_tokens(job, store, folder)
    )
    assert content.splits[TRAIN]
    publish(store, _manifest(job.workload, content), file)


def _manifest(name: str, content: Any) -> Any:
    from torchrelay import __version__
    from torchrelay.data.manifest import BuildRecord, make_manifest

    return make_manifest(
        name, content, BuildRecord(arguments={}, code=__version__, created="2026-01-01T00:00:00Z")
    )


def _write_tokens(job: meter.Job, store: Any, folder: str) -> Any:
    """Shards of windows that overlap by one token, as a stream of tokens has them."""
    from torchrelay.data.build.token_writer import ShardSettings, ShardWriter
    from torchrelay.data.manifest import TRAIN, Content
    from torchrelay.data.tokenizer import ByteTokenizer, describe_tokenizer

    length = _LENGTHS[job.workload]
    size = (_SHARD_ROWS[job.workload] * length + 1) * 4
    settings = ShardSettings(token_dtype="u32", end_token=0, labelled=False, shard_bytes=size)
    writer = ShardWriter(store, folder, settings)
    for numbers in meter.chunked(range(job.samples), _SHARD_ROWS[job.workload]):
        rows = np.zeros((len(numbers), length), np.uint32)
        if job.workload == "tok":
            for place, number in enumerate(numbers):
                rows[place] = workload.row(number)[:length]
        rows[:, 0] = numbers
        writer.append(rows.reshape(-1), rows.nbytes)
        writer.end_document(numbers[0], None)
    content = Content(
        kind="tokens",
        format="tok",
        splits={TRAIN: writer.close()},
        tokenizer=describe_tokenizer(ByteTokenizer()),
        token_dtype="u32",
    )
    return content, ByteTokenizer().to_json()


def _write_images(job: meter.Job, store: Any, folder: str) -> Any:
    raise SystemExit("not yet")


def _store(place: str, workload: str) -> Any:
    from torchrelay.data.layout import dataset_folder
    from torchrelay.store.open import open_store

    return open_store(place), dataset_folder(workload)


class TorchRelay:
    """A split's reader, asked for the slots of every step; see `meter.Opened`."""

    def __init__(self, job: meter.Job, state: Any) -> None:
        from torchrelay.data.loader import open_split
        from torchrelay.data.manifest import TRAIN
        from torchrelay.recipe.data_schema import CacheSection, DataSection

        self._job = job
        section = DataSection(
            dataset=job.workload,
            sequence_length=_LENGTHS.get(job.workload, 1024),
            cache=CacheSection(folder=job.cache or None),
        )
        self._reader = open_split(section, _store(job.place, job.workload)[0], TRAIN, seed=1)
        self._slot = 0 if state is None else state["global_slot"]

    def epoch(self) -> Iterator[Any]:
        """The steps that hold the rest of the epoch's slots; the last may end early."""
        from torchrelay.data.loader import read_ahead

        depth = self._job.workers
        count = self._reader.num_samples
        end = (self._slot // count + 1) * count
        ranges = self._ranges(end)
        for batch in read_ahead(self._reader, ranges, depth) if depth else map(self._reader.read, ranges):
            self._slot = min(self._slot + self._job.batch, end)
            yield batch

    def _ranges(self, end: int) -> Iterator[Any]:
        for start in range(self._slot, end, self._job.batch):
            first = start + self._job.rank * self._job.share
            stop = min(first + self._job.share, end)
            if first < stop:
                yield np.arange(first, stop)

    def size(self, batch: Any) -> int:
        """See `meter.Opened.size`."""
        return len(batch.sample_ids)

    def ids(self, batch: Any) -> list[int]:
        """See `meter.Opened.ids`."""
        return batch.tensors["tokens"][:, 0].tolist()

    def state(self) -> Any:
        """What has been trained on; how far was read ahead is not in it."""
        return {"global_slot": self._slot}


def deep(job: meter.Job, samples: int) -> Any:
    return {"global_slot": samples}


def prepare() -> None:
    import torch  # noqa: F401

    import torchrelay.data.loader  # noqa: F401


if __name__ == "__main__":
    meter.run(
        meter.Loader(packages=("torchrelay",), convert=convert, open=TorchRelay, deep=deep, prepare=prepare)
    )

"""torchrelay: its own shards in a store, read as its training loop reads them, every option at its default.

With workers it reads that many steps ahead, in a thread: what is recommended where samples are cheap
to decode. Images are handed over as they are, as the peers do.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import meter
import numpy as np
import workload

_LENGTHS = {"tok": workload.ROW - 1, "small": 4}
_SHARD_ROWS = {"tok": workload.ROWS_PER_SHARD, "small": workload.SHARD_BYTES // 16}
_ALL_STEPS = 2**40
_VIRTUAL_SHARD = 2**16


def convert(job: meter.Job) -> None:
    from torchrelay import __version__
    from torchrelay.data.manifest import BuildRecord, make_manifest
    from torchrelay.data.publish import publish

    Path(job.place).mkdir(parents=True)
    content, tokenizer = (_write_images if job.workload == "img" else _write_tokens)(job)
    record = BuildRecord(arguments={}, code=__version__, created="2026-01-01T00:00:00Z")
    publish(_store(job), make_manifest(job.workload, content, record), tokenizer)


def _write_tokens(job: meter.Job) -> tuple[Any, bytes]:
    """A shard is one document, read in windows that overlap by a token, as a stream of tokens has them."""
    from torchrelay.data.build.token_shard import Content as ShardContent
    from torchrelay.data.build.token_shard import ShardSettings, write_shard
    from torchrelay.data.layout import dataset_folder
    from torchrelay.data.manifest import TRAIN, Content
    from torchrelay.data.tokenizer import ByteTokenizer, describe_tokenizer

    length, entries = _LENGTHS[job.workload], []
    for numbers in meter.chunked(range(job.samples), _SHARD_ROWS[job.workload]):
        rows = np.zeros((len(numbers), length), np.uint32)
        if job.workload == "tok":
            rows[:] = [workload.row(number)[:length] for number in numbers]
        rows[:, 0] = numbers
        stored = ShardContent(
            tokens=[rows.tobytes(), bytes(4)],
            ends=np.array([rows.size + 1]),
            ids=np.array([numbers[0]], np.uint64),
            labels=np.zeros(0, np.int32),
            text_bytes=0,
            carried=0,
        )
        settings = ShardSettings(token_dtype="u32")
        entries.append(write_shard(stored, settings, _store(job), dataset_folder(job.workload)))
    tokenizer = ByteTokenizer()
    content = Content(
        kind="tokens",
        format="tok",
        splits={TRAIN: tuple(entries)},
        tokenizer=describe_tokenizer(tokenizer),
        token_dtype="u32",
    )
    return content, tokenizer.to_json()


def _write_images(job: meter.Job) -> tuple[Any, None]:
    from torchrelay.data.build.sample_writer import SampleWriter
    from torchrelay.data.formats.mds import SampleEncoder
    from torchrelay.data.layout import dataset_folder
    from torchrelay.data.manifest import TRAIN, Column, Content

    columns = (Column(name="image", dtype="bytes"),)
    encoder = SampleEncoder(columns)
    writer = SampleWriter(_store(job), dataset_folder(job.workload), columns, workload.SHARD_BYTES)
    for number in range(job.samples):
        writer.append(encoder.encode({"image": workload.image(number)}), number)
    return Content(kind="samples", format="mds", columns=columns, splits={TRAIN: writer.close()}), None


def _store(job: meter.Job) -> Any:
    from torchrelay.store.open import open_store

    return open_store(job.place)


class TorchRelay:
    """The feed of one rank; see `meter.Opened`."""

    def __init__(self, job: meter.Job, state: Any) -> None:
        from torchrelay.data.loader import open_split
        from torchrelay.data.manifest import TRAIN
        from torchrelay.data.order.outlook import SlotPattern
        from torchrelay.data.order.position import DataPosition
        from torchrelay.train.feed import Feed
        from torchrelay.train.units import Share

        self._workload, self._batch, self._step = job.workload, job.batch, 0
        section = _section(job)
        self._reader = open_split(section, _store(job), TRAIN, seed=1, global_batch=job.batch)
        if state is not None:
            self._step = state["step"]
            self._reader.go_on(DataPosition.from_json(state["position"]), step=self._step)
        pattern = SlotPattern(job.batch, job.rank * job.share, job.share)
        self._follower = self._reader.follow(pattern, step=self._step, last_step=_ALL_STEPS)
        self._epoch_steps = -(-self._reader.num_samples // job.batch)
        self._feed = Feed(
            reader=self._reader,
            world=_alone(job),
            share=Share(first=job.rank, count=1, rounds=1),
            global_batch=job.batch,
            micro_batch=job.share,
            seed=1,
            section=section,
        )

    def epoch(self) -> Iterator[Any]:
        """The steps up to the one with the epoch's last sample, which may hold some of the next epoch."""
        last = (self._step // self._epoch_steps + 1) * self._epoch_steps
        for (batch,) in self._feed.stream(self._step + 1, last):
            self._follower.advance(self._step * self._batch)
            self._step += 1
            yield batch

    def size(self, batch: Any) -> int:
        """See `meter.Opened.size`."""
        return len(batch.sample_ids)

    def ids(self, batch: Any) -> list[int]:
        """See `meter.Opened.ids`; what only fills up the last step comes behind the samples."""
        if self._workload == "img":
            starts = np.append(0, batch.tensors["ends"][:-1])
            images = batch.tensors["image"].numpy()
            return [workload.image_number(images[start : start + 8].tobytes()) for start in starts]
        return batch.tensors["tokens"][: len(batch.sample_ids), 0].tolist()

    def state(self) -> Any:
        """What has been trained on; how far was read ahead is not in it."""
        position = self._reader.position(self._step)
        return {"step": self._step, "position": dataclasses.asdict(position)}


def _section(job: meter.Job) -> Any:
    from torchrelay.recipe.data_schema import CacheSection, DataSection

    images = {"decode": "raw_image:decode", "collate": "raw_image:collate"} if job.workload == "img" else {}
    return DataSection(
        dataset=job.workload,
        sequence_length=_LENGTHS.get(job.workload, 1024),
        prefetch=job.workers,
        epoch_end="stop" if job.action == "ids" else "endless",
        cache=CacheSection(folder=job.cache or None),
        **images,
    )


def _alone(job: meter.Job) -> Any:
    """What a feed asks of a world where no rank has to talk to another."""
    import torch

    return SimpleNamespace(rank=job.rank, size=job.world, device=torch.device("cpu"))


class Virtual:
    """The order of a dataset that has no bytes; see `meter.Opened`."""

    def __init__(self, job: meter.Job, slot: int) -> None:
        from torchrelay.data.order.order import Order, OrderSettings

        settings = OrderSettings(seed=1, lanes=64, window_shards=10, shuffle=True)
        self._order = Order(np.full(job.samples // _VIRTUAL_SHARD, _VIRTUAL_SHARD), settings)
        self._slot, self._batch = slot, job.batch

    def epoch(self) -> Iterator[Any]:
        """The one batch at the slot."""
        yield self._order.samples(np.arange(self._slot, self._slot + self._batch)).sample_ids

    def size(self, batch: Any) -> int:
        """See `meter.Opened.size`."""
        return len(batch)

    def ids(self, batch: Any) -> list[int]:
        """See `meter.Opened.ids`."""
        return batch.tolist()

    def state(self) -> Any:
        """See `meter.Opened.state`."""
        return self._slot


def open_loader(job: meter.Job, state: Any) -> meter.Opened:
    """The order alone, or the data."""
    return Virtual(job, state) if job.action == "virtual" else TorchRelay(job, state)


def deep(job: meter.Job, samples: int) -> Any:
    """What a checkpoint would hold."""
    if job.action == "virtual":
        return samples
    opened = TorchRelay(job, None)
    position = opened._reader.position(samples // job.batch)
    return {"step": samples // job.batch, "position": dataclasses.asdict(position)}


def prepare() -> None:
    import torch  # noqa: F401

    import torchrelay.data.loader
    import torchrelay.train.feed  # noqa: F401


if __name__ == "__main__":
    meter.run(
        meter.Loader(packages=("torchrelay",), convert=convert, open=open_loader, deep=deep, prepare=prepare)
    )

"""What a rank trains on: micro-batches of tensors for the slots it asks for.

A reader holds no position. The trainer counts slots itself and asks for those of its step, so
reading ahead, a failed step or another number of processes cannot change what is read.
"""

from collections import deque
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from torchrelay.core.errors import DataError
from torchrelay.data.batch import DataFacts, MicroBatch
from torchrelay.data.cache.choose import open_bytes
from torchrelay.data.dataset import Dataset, open_dataset
from torchrelay.data.formats.opener import token_opener
from torchrelay.data.manifest import TRAIN, VALIDATION, Manifest
from torchrelay.data.open_shards import OpenShards
from torchrelay.data.order.order import ORDER_VERSION, Order
from torchrelay.data.order.position import DataPosition
from torchrelay.data.reading import (
    Reading,
    check_split_name,
    choose_reading,
    make_order,
    open_reading,
    order_settings,
)
from torchrelay.data.source import Arrays, Source, load_source, open_source_reading
from torchrelay.data.tokenizer import fetch_tokenizer_file
from torchrelay.recipe.data_schema import DataSection
from torchrelay.store.base import Store

Slots = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitReader:
    """One split of the data in its order; made by `open_split`. One thread at a time."""

    facts: DataFacts
    """What the model must know."""
    version: str
    """Version of the dataset (64 hex digits) or of the Python source."""
    seed: int
    num_samples: int
    """Samples of one epoch."""
    is_endless: bool
    """train: slots go on without end, epoch after epoch. validation: slot = sample id, once."""
    tokens_per_sample: int | None
    """Tokens that every sample predicts, in the packed reading; else None."""
    targets_per_sample: int | None
    """Loss terms of every sample where all have equally many; None in the unlabelled documents reading."""
    is_uniform: bool
    """Whether every sample has equally many tokens and targets and is cheap to read ahead."""
    bytes_per_token: float | None
    """Bytes of text a token stands for, on average over the split; None for a Python source."""
    files: Mapping[str, bytes]
    """Files that belong beside a model trained on this data: its tokenizer, by file name."""
    order: Order
    reading: Reading

    def read(self, slots: Slots) -> MicroBatch:
        """The samples of `slots`, int64 [n], n ≥ 1, in the order given. All tensors are new.

        The first touch of a shard opens and checks it: DataError names it when it is damaged.
        """
        if not self.is_endless and int(slots.max()) >= self.num_samples:
            raise DataError(
                f"slot {int(slots.max()):,} is beyond the {self.num_samples:,} samples of the split"
            )
        located = self.order.samples(slots)
        rows = self.reading.read(located)
        return MicroBatch(
            tensors={name: torch.from_numpy(array) for name, array in rows.arrays.items()},
            num_targets=rows.num_targets,
            num_tokens=rows.num_tokens,
            sample_ids=located.sample_ids,
        )

    def position(self, global_slot: int) -> DataPosition:
        """The record of a run that has committed `global_slot` samples."""
        return DataPosition(
            dataset_version=self.version,
            seed=self.seed,
            order_version=ORDER_VERSION,
            global_slot=global_slot,
        )


def open_split(section: DataSection, store: Store, split: str, *, seed: int) -> SplitReader:
    """The reader of `train` or `validation`; every rank opens its own.

    `store` holds the dataset and is not used for a Python source. DataError says what is missing,
    damaged, too short or too long, with the figures.
    """
    check_split_name(split)
    if section.source is not None:
        return _open_source(section, load_source(section, split), split, seed)
    return _open_tokens(section, open_dataset(store, section.dataset or ""), split, seed)


def open_validation(section: DataSection, store: Store, *, seed: int) -> SplitReader | None:
    """The reader of the validation split, or None where a Python source has none."""
    if section.source is not None:
        source = load_source(section, VALIDATION)
        return _open_source(section, source, VALIDATION, seed) if len(source) else None
    return open_split(section, store, VALIDATION, seed=seed)


def read_ahead(reader: SplitReader, slot_ranges: Iterable[Slots], depth: int) -> Generator[MicroBatch]:
    """The micro-batches of `slot_ranges` in their order, up to `depth` ≥ 1 of them read ahead by a thread.

    `slot_ranges` may be endless; it is advanced in the caller's thread. An error of the thread is
    raised where its batch would have come. Closing the iterator waits for the read that is under
    way. While it is open, nobody else may use the reader.
    """
    ranges = iter(slot_ranges)
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead")
    try:
        waiting: deque[Future[MicroBatch]] = deque(
            pool.submit(reader.read, slots) for slots in islice(ranges, depth)
        )
        while waiting:
            batch = waiting.popleft().result()
            waiting.extend(pool.submit(reader.read, slots) for slots in islice(ranges, 1))
            yield batch
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _open_source(section: DataSection, source: Source, split: str, seed: int) -> SplitReader:
    order = Order([len(source)], order_settings(section, split, seed))
    return SplitReader(
        facts=DataFacts(vocabulary=None, sequence_length=None, num_labels=None, end_token=None),
        version=source.version,
        seed=seed,
        num_samples=order.num_samples,
        is_endless=split == TRAIN,
        tokens_per_sample=None,
        targets_per_sample=1,
        is_uniform=isinstance(source, Arrays),
        bytes_per_token=None,
        files={},
        order=order,
        reading=open_source_reading(source),
    )


def _open_tokens(section: DataSection, dataset: Dataset, split: str, seed: int) -> SplitReader:
    manifest = dataset.manifest
    order = make_order(section, manifest, split, seed)
    shards = OpenShards(open_bytes(dataset), manifest.splits[split], token_opener(manifest.content))
    totals = manifest.totals(split)
    is_packed = choose_reading(section) == "packed"
    return SplitReader(
        facts=DataFacts(
            vocabulary=manifest.tokenizer.vocabulary,
            sequence_length=section.sequence_length,
            num_labels=None if is_packed else manifest.num_labels,
            end_token=manifest.tokenizer.end_token,
        ),
        version=manifest.version,
        seed=seed,
        num_samples=order.num_samples,
        is_endless=split == TRAIN,
        tokens_per_sample=section.sequence_length if is_packed else None,
        targets_per_sample=_count_targets(section, manifest),
        is_uniform=is_packed,
        bytes_per_token=totals.text_bytes / totals.tokens,
        files={_tokenizer_file(manifest): fetch_tokenizer_file(dataset.store, manifest)},
        order=order,
        reading=open_reading(section, manifest, shards),
    )


def _tokenizer_file(manifest: Manifest) -> str:
    """`tokenizer.json` is what other libraries read; our own kinds go by another name."""
    return "tokenizer.json" if manifest.tokenizer.kind == "file" else "torchrelay_tokenizer.json"


def _count_targets(section: DataSection, manifest: Manifest) -> int | None:
    if choose_reading(section) == "packed":
        return section.sequence_length
    return None if manifest.content.label_names is None else 1

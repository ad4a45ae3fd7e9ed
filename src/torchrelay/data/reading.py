"""What a sample of a dataset is, as the recipe says, and how many every shard has.

All of it follows from the recipe and the manifest alone; the arrays are made in `readings`.
Sequence length is not baked into a dataset. No torch here.
"""

import os
from typing import Any, Literal, NamedTuple

from torchrelay.core.errors import DataError
from torchrelay.data.decode import make_collate, make_decoder
from torchrelay.data.formats.tok import TokenShard
from torchrelay.data.manifest import SPLITS, TRAIN, Content, Manifest, ShardEntry, sum_shards
from torchrelay.data.open_shards import OpenShards
from torchrelay.data.order.order import Order, OrderSettings
from torchrelay.data.readings.documents import Documents, LabelledDocuments
from torchrelay.data.readings.lengths import DocumentLengths
from torchrelay.data.readings.packed import BoundedWindows, PackedWindows, count_windows
from torchrelay.data.readings.packs import PlannedPacks
from torchrelay.data.readings.rows import Reading, padded_length
from torchrelay.data.readings.samples import DecodedSamples
from torchrelay.recipe.data_schema import DataSection

MOST_THREADS = 4
"""Decoders such as Pillow work side by side in threads; Python code between them does not."""

Kind = Literal["packed", "packs", "documents", "samples"]


class Traits(NamedTuple):
    """What all samples of a reading have in common, as far as the recipe and the manifest tell."""

    kind: Kind
    tokens_per_sample: int | None
    """Tokens that every sample predicts, so that a run can be measured in tokens; else None."""
    targets_per_sample: int | None
    """Loss terms of every sample where all have equally many; else None."""
    is_uniform: bool
    """Whether a batch may be cut anywhere: all samples have equally many tokens and targets."""
    num_labels: int | None
    """Classes of documents, where the reading gives them."""
    has_bounds: bool
    """Whether batches tell documents apart (`positions` and `documents`)."""


def find_traits(section: DataSection, content: Content) -> Traits:
    """The traits of the reading that the recipe asks for."""
    kind, alike = choose_reading(section, content), not may_mask(section)
    length = section.sequence_length
    if kind == "packed":
        bounded = section.document_bounds
        uniform = alike and not bounded
        return Traits(kind, length, length if uniform else None, uniform, None, bounded)
    if kind == "packs":
        return Traits(kind, None, None, False, None, True)
    if kind == "samples":
        return Traits(kind, None, 1 if alike else None, False, None, False)
    names = content.label_names
    targets = 1 if alike and names is not None else None
    return Traits(kind, None, targets, False, None if names is None else len(names), False)


def may_mask(section: DataSection) -> bool:
    """Whether batches may have places without a sample."""
    return section.epoch_end == "stop"


def choose_reading(section: DataSection, content: Content) -> Kind:
    """The reading that `data.reading` stands for with this dataset; DataError when it has no such samples."""
    wanted = section.reading
    if wanted == "auto":
        return (
            "samples" if content.kind == "samples" else "packed" if content.pack_length is None else "packs"
        )
    if (wanted == "samples") != (content.kind == "samples"):
        fitting = "samples" if content.kind == "samples" else "packed, packs or documents"
        raise DataError(
            f"data.reading {wanted} does not fit a dataset of {content.kind}", hint=f"use {fitting}"
        )
    if wanted == "packs" and content.pack_length is None:
        raise DataError(
            "data.reading packs needs a dataset with planned packs",
            hint="build it with torchrelay data build --pack LENGTH, or use data.reading: documents",
        )
    return wanted


def count_samples(section: DataSection, content: Content, split: str) -> list[int]:
    """Samples of every shard of a split."""
    entries, kind = content.splits.get(split, ()), choose_reading(section, content)
    if kind == "packed":
        return [count_windows(entry.tokens, section.sequence_length) for entry in entries]
    return [entry.packs if kind == "packs" else entry.samples for entry in entries]


def check_split_name(split: str) -> None:
    """DataError when there is no such split."""
    if split not in SPLITS:
        raise DataError(f"there is no split {split!r}", hint=f"the splits are {', '.join(SPLITS)}")


def check_split(section: DataSection, manifest: Manifest, split: str) -> None:
    """DataError when no sample can be read from the split, with the figures."""
    check_split_name(split)
    entries = manifest.splits.get(split, ())
    where = f"the {split} split of {manifest.name} ({manifest.short_version})"
    kind = choose_reading(section, manifest.content)
    if kind in ("documents", "packs") and any(entry.continues for entry in entries):
        raise DataError(
            f"{where} has a document that is larger than a shard; it cannot be read as one sample",
            hint="use data.reading: packed, or build the dataset again with a larger --shard-size",
        )
    if kind == "packed":
        _check_windows(section, entries, where)
    elif kind == "packs":
        _check_packs(section, manifest.content)


def make_order(section: DataSection, manifest: Manifest, split: str, seed: int) -> Order:
    """The order of a split, from the manifest alone; DataError when no sample can be read from it."""
    check_split(section, manifest, split)
    return Order(count_samples(section, manifest.content, split), order_settings(section, split, seed))


def order_settings(section: DataSection, split: str, seed: int) -> OrderSettings:
    """How the recipe wants a split ordered; validation is always read in stored order."""
    return OrderSettings(
        seed=seed,
        lanes=section.lanes,
        window_shards=section.window_shards,
        shuffle=section.shuffle and split == TRAIN,
    )


def open_reading(
    section: DataSection, content: Content, shards: OpenShards[Any], seed: int, *, training: bool
) -> Reading:
    """The reading that the recipe asks for; DataError when documents are too long for it.

    `seed` and `training` are for samples, which may be changed at random while training.
    """
    kind, length = choose_reading(section, content), section.sequence_length
    if kind == "samples":
        decoder = make_decoder(section, content, seed, training=training)
        return DecodedSamples(
            shards, decoder, make_collate(section), threads=decode_threads(section, training=training)
        )
    if kind == "packed":
        return BoundedWindows(shards, length) if section.document_bounds else PackedWindows(shards, length)
    if kind == "packs":
        return PlannedPacks(shards, length)
    longest = sum_shards(tuple(shards.entries)).longest
    lengths = DocumentLengths(shards, content)
    if longest > length + 1 and section.long_documents == "refuse":
        raise _too_long(length, shards, lengths, longest)
    is_labelled = content.label_names is not None
    row_length = min(length, longest) if is_labelled else max(1, min(length, longest - 1))
    _check_budget(section, row_length)
    kind_of = LabelledDocuments if is_labelled else Documents
    return kind_of(shards, lengths, row_length, section.pad)


def decode_threads(section: DataSection, *, training: bool) -> int:
    """Threads that decode the samples of a micro-batch; in a worker, which reads for training, one."""
    return 1 if section.workers and training else min(MOST_THREADS, len(os.sched_getaffinity(0)))


def _check_windows(section: DataSection, entries: tuple[ShardEntry, ...], where: str) -> None:
    most = max((entry.tokens for entry in entries), default=0)
    if count_windows(most, section.sequence_length) == 0:
        raise DataError(
            f"{where} has {sum_shards(entries).tokens:,} tokens, {most:,} in its largest shard; a sample "
            f"of data.sequence_length {section.sequence_length:,} needs {section.sequence_length + 1:,}",
            hint=f"use a data.sequence_length of at most {max(1, most - 1):,}, or a larger dataset",
        )


def _check_packs(section: DataSection, content: Content) -> None:
    planned = content.pack_length or 0
    if planned > section.sequence_length + 1:
        raise DataError(
            f"the packs of the dataset hold up to {planned:,} tokens, a row of data.sequence_length "
            f"{section.sequence_length:,} holds {section.sequence_length + 1:,}",
            hint=f"set data.sequence_length: {planned - 1}",
        )


def _check_budget(section: DataSection, row_length: int) -> None:
    needed = padded_length(row_length, row_length)
    if section.batch_tokens is not None and section.batch_tokens < needed:
        raise DataError(
            f"data.batch_tokens {section.batch_tokens:,} is less than the longest document takes, {needed:,}",
            hint=f"set data.batch_tokens: {needed} or more",
        )


def _too_long(
    length: int, shards: OpenShards[TokenShard], lengths: DocumentLengths, longest: int
) -> DataError:
    """Counts in the footers of only those shards that hold a document that is too long."""
    suspects = [number for number, entry in enumerate(shards.entries) if entry.longest > length + 1]
    count = sum(int((lengths.shard(number) > length + 1).sum()) for number in suspects)
    return DataError(
        f"documents longer than data.sequence_length {length:,}: {count:,}; "
        f"the longest has {longest - 1:,} tokens",
        hint=f"set data.sequence_length: {longest - 1}, or data.long_documents: truncate",
    )

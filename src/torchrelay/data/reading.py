"""What a sample of a token dataset is: a packed window, a document, or a labelled document.

A reading says how many samples every shard holds (in closed form, from the manifest alone) and
turns located samples into arrays. No torch here. Sequence length is not baked into a dataset.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from torchrelay.core.errors import DataError
from torchrelay.data.formats.tok import Footer, TokenShard, footer_start, parse_footer
from torchrelay.data.manifest import SPLITS, TRAIN, Manifest, ShardEntry, TokenDtype, sum_shards
from torchrelay.data.open_shards import OpenShards
from torchrelay.data.order.order import Located, Order, OrderSettings
from torchrelay.recipe.data_schema import DataSection

IGNORED = -100
"""Label of a position that is not predicted; `batch.IGNORE_LABEL`, which lies beyond torch."""


class Rows(NamedTuple):
    """The samples of one micro-batch; see `batch.MicroBatch` for the arrays."""

    arrays: dict[str, NDArray[Any]]
    num_targets: int
    num_tokens: int


class Reading(Protocol):
    """Turns located samples into arrays. One thread at a time."""

    def read(self, located: Located) -> Rows:
        """The samples, in the order given; every array is new."""


class PackedWindows:
    """Sample i of a shard is tokens [i·L, i·L + L], so that L tokens are predicted."""

    def __init__(self, shards: OpenShards[TokenShard], length: int) -> None:
        self._shards = shards
        self._length = length
        self._only = _view_windows(shards.shard(0).tokens, length) if len(shards) == 1 else None

    def read(self, located: Located) -> Rows:
        """See `Reading.read`; `tokens` and `labels` are overlapping views of one array."""
        if self._only is not None:
            rows = self._only[located.indexes].astype(np.int64)
        else:
            rows = np.empty((located.indexes.size, self._length + 1), np.int64)
            for number, (shard, index) in enumerate(_pairs(located)):
                start = index * self._length
                rows[number] = self._shards.shard(shard).tokens[start : start + self._length + 1]
        count = located.indexes.size * self._length
        return Rows({"tokens": rows[:, :-1], "labels": rows[:, 1:]}, count, count)


class Documents:
    """Sample i of a shard is its i-th document; every token but the first is predicted."""

    def __init__(self, shards: OpenShards[TokenShard], row_length: int) -> None:
        self._shards = shards
        self._row_length = row_length

    def read(self, located: Located) -> Rows:
        """See `Reading.read`; rows are padded with token 0, which is not predicted."""
        shape = (located.indexes.size, self._row_length)
        tokens, labels = np.zeros(shape, np.int64), np.full(shape, IGNORED, np.int64)
        count = 0
        for number, (shard, index) in enumerate(_pairs(located)):
            document, _ = _document(self._shards, shard, index)
            targets = document[1 : self._row_length + 1]
            tokens[number, : targets.size] = document[: targets.size]
            labels[number, : targets.size] = targets
            count += targets.size
        return Rows({"tokens": tokens, "labels": labels}, count, count)


class LabelledDocuments:
    """Sample i of a shard is its i-th document and its class; an end mark that does not fit is left out."""

    def __init__(self, shards: OpenShards[TokenShard], row_length: int) -> None:
        self._shards = shards
        self._row_length = row_length

    def read(self, located: Located) -> Rows:
        """See `Reading.read`; rows are padded with token 0, where `attention_mask` is 0."""
        shape = (located.indexes.size, self._row_length)
        tokens, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        labels = np.empty(located.indexes.size, np.int64)
        for number, (shard, index) in enumerate(_pairs(located)):
            document, labels[number] = _document(self._shards, shard, index)
            document = document[: self._row_length]
            tokens[number, : document.size] = document
            mask[number, : document.size] = 1
        arrays = {"tokens": tokens, "attention_mask": mask, "labels": labels}
        return Rows(arrays, labels.size, int(mask.sum()))


def count_windows(tokens: int, length: int) -> int:
    """Packed samples of `length` predicted tokens in a shard of `tokens` tokens."""
    return max(0, (tokens - 1) // length)


def count_samples(section: DataSection, entries: Sequence[ShardEntry]) -> list[int]:
    """Samples of every shard, from the manifest alone."""
    if section.reading == "documents":
        return [entry.samples for entry in entries]
    return [count_windows(entry.tokens, section.sequence_length) for entry in entries]


def choose_reading(section: DataSection) -> str:
    """What `data.reading: auto` stands for."""
    return "packed" if section.reading == "auto" else section.reading


def check_split_name(split: str) -> None:
    """DataError when there is no such split."""
    if split not in SPLITS:
        raise DataError(f"there is no split {split!r}", hint=f"the splits are {' and '.join(SPLITS)}")


def check_split(section: DataSection, manifest: Manifest, split: str) -> None:
    """DataError when no sample can be read from the split, with the figures."""
    check_split_name(split)
    entries = manifest.splits.get(split, ())
    where = f"the {split} split of {manifest.name} ({manifest.short_version})"
    if section.reading == "documents":
        if any(entry.continues for entry in entries):
            raise DataError(
                f"{where} has a document that is larger than a shard; it cannot be read as one sample",
                hint="use data.reading: packed, or build the dataset again with a larger --shard-size",
            )
        return
    most = max((entry.tokens for entry in entries), default=0)
    if count_windows(most, section.sequence_length) == 0:
        raise DataError(
            f"{where} has {sum_shards(entries).tokens:,} tokens, {most:,} in its largest shard; a sample "
            f"of data.sequence_length {section.sequence_length:,} needs {section.sequence_length + 1:,}",
            hint=f"use a data.sequence_length of at most {max(1, most - 1):,}, or a larger dataset",
        )


def make_order(section: DataSection, manifest: Manifest, split: str, seed: int) -> Order:
    """The order of a split, from the manifest alone; DataError when no sample can be read from it."""
    check_split(section, manifest, split)
    entries = manifest.splits.get(split, ())
    return Order(count_samples(section, entries), order_settings(section, split, seed))


def order_settings(section: DataSection, split: str, seed: int) -> OrderSettings:
    """How the recipe wants a split ordered; validation is always read in stored order."""
    return OrderSettings(
        seed=seed,
        lanes=section.lanes,
        window_shards=section.window_shards,
        shuffle=section.shuffle and split == TRAIN,
    )


def open_reading(section: DataSection, manifest: Manifest, shards: OpenShards[TokenShard]) -> Reading:
    """The reading that the recipe asks for; DataError when documents are too long for it."""
    if choose_reading(section) == "packed":
        return PackedWindows(shards, section.sequence_length)
    longest = sum_shards(tuple(shards.entries)).longest
    if longest > section.sequence_length + 1 and section.long_documents == "refuse":
        raise _too_long(section, shards, longest, manifest.token_dtype)
    if manifest.content.label_names is None:
        return Documents(shards, max(1, min(section.sequence_length, longest - 1)))
    return LabelledDocuments(shards, min(section.sequence_length, longest))


def _too_long(
    section: DataSection, shards: OpenShards[TokenShard], longest: int, dtype: TokenDtype
) -> DataError:
    """Counts in the footers of only those shards that hold a document that is too long."""
    most = section.sequence_length + 1
    suspects = [number for number, entry in enumerate(shards.entries) if entry.longest > most]
    count = sum(
        int((np.diff(_footer(shards, number, dtype).ends, prepend=np.uint64(0)) > most).sum())
        for number in suspects
    )
    return DataError(
        f"documents longer than data.sequence_length {section.sequence_length:,}: {count:,}; "
        f"the longest has {longest - 1:,} tokens",
        hint=f"set data.sequence_length: {longest - 1}, or data.long_documents: truncate",
    )


def _footer(shards: OpenShards[TokenShard], number: int, dtype: TokenDtype) -> Footer:
    """What stands behind a shard's tokens, without reading those."""
    entry = shards.entries[number]
    try:
        return parse_footer(shards.source.tail(entry, footer_start(entry.tokens, dtype)))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"shard {entry.key} is damaged: {error}") from error


def _view_windows(tokens: NDArray[Any], length: int) -> NDArray[Any]:
    """The windows of a shard as overlapping rows of its tokens; nothing is copied."""
    shape = (count_windows(tokens.size, length), length + 1)
    strides = (length * tokens.itemsize, tokens.itemsize)
    view: NDArray[Any] = np.lib.stride_tricks.as_strided(tokens, shape, strides, writeable=False)
    return view


def _pairs(located: Located) -> "zip[tuple[int, int]]":
    return zip(located.shards.tolist(), located.indexes.tolist(), strict=True)


def _document(shards: OpenShards[TokenShard], number: int, index: int) -> tuple[NDArray[Any], int]:
    """Tokens of a document with its end mark, and its label (0 where it has none)."""
    shard = shards.shard(number)
    start = int(shard.ends[index - 1]) if index else 0
    label = 0 if shard.labels is None else int(shard.labels[index])
    return shard.tokens[start : int(shard.ends[index])], label

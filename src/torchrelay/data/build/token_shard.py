"""Puts staged tokens together into one shard and writes it into the store under the hash of its content."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from torchrelay.data.build.packing import pack_documents
from torchrelay.data.build.shard_plan import ShardPlan
from torchrelay.data.build.staging import StagedSplit, Table
from torchrelay.data.formats.tok import Footer, Packs, encode_footer
from torchrelay.data.layout import shard_key
from torchrelay.data.manifest import TOKEN_BYTES, ShardEntry, TokenDtype
from torchrelay.store.base import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSettings:
    """What all shards of a version have in common."""

    token_dtype: TokenDtype
    labelled: bool = False
    pack_length: int | None = None
    """Most tokens of a pack; None plans none. No document may be longer."""


class Assembled(NamedTuple):
    """A shard that is in the store."""

    entry: ShardEntry
    ids: NDArray[np.uint64]
    """Of the documents that end in it."""


class Content(NamedTuple):
    """The tokens of one shard and what they mean."""

    tokens: Sequence[bytes]
    """Parts that follow each other, of the shard's token type."""
    ends: NDArray[np.int64]
    """Position after the end mark of every document that ends in it."""
    ids: NDArray[np.uint64]
    labels: NDArray[np.int32]
    text_bytes: int
    carried: int
    """Tokens of its first document that are in earlier shards."""


def collect_tokens(plan: ShardPlan, parts: Sequence[StagedSplit], token_dtype: TokenDtype) -> Content:
    """What a plan's spans hold; `parts` are the staged splits of its spans, in their order."""
    width = TOKEN_BYTES[token_dtype]
    ends, ids, labels, tokens = [], [], [], []
    filled = text_bytes = 0
    for span, staged in zip(plan.spans, parts, strict=True):
        table = staged.table
        row_ends = np.cumsum(table.sizes)
        first, stop = np.searchsorted(row_ends, (span.start, span.stop), "right")
        rows = np.flatnonzero(table.is_last[first:stop]) + first
        ends.append(row_ends[rows] - span.start + filled)
        ids.append(table.ids[rows])
        labels.append(table.labels[rows])
        tokens.append(staged.payload(span.start * width, span.stop * width))
        text_bytes += _text_before(table, row_ends, span.stop) - _text_before(table, row_ends, span.start)
        filled += span.stop - span.start
    return Content(
        tokens,
        np.concatenate(ends),
        np.concatenate(ids),
        np.concatenate(labels),
        text_bytes,
        plan.first.carried,
    )


def write_shard(content: Content, settings: ShardSettings, store: Store, folder: str) -> ShardEntry:
    """Put the shard into `folder` of the store, even where it is there: a damaged one is healed."""
    num_tokens = sum(map(len, content.tokens)) // TOKEN_BYTES[settings.token_dtype]
    lengths = np.diff(content.ends, prepend=-content.carried)
    packs: Packs | None = None
    if settings.pack_length is not None:
        packs = pack_documents(lengths.tolist(), settings.pack_length)
    footer = Footer(
        tokens=num_tokens,
        token_dtype=settings.token_dtype,
        ends=content.ends.astype(np.uint64),
        ids=content.ids,
        labels=content.labels if settings.labelled else None,
        packs=packs,
        continues=content.carried > 0,
    )
    # In parts, because joining them would copy all of the tokens.
    parts = [*content.tokens, encode_footer(footer)]
    sha256, xxh3_128 = hashlib.sha256(), xxhash.xxh3_128()
    for part in parts:
        sha256.update(part)
        xxh3_128.update(part)
    entry = ShardEntry(
        key=shard_key(sha256.hexdigest()),
        samples=len(content.ends),
        tokens=num_tokens,
        bytes=sum(map(len, parts)),
        text_bytes=content.text_bytes,
        longest=int(lengths.max(initial=0)),
        continues=content.carried > 0,
        packs=0 if packs is None else len(packs.ends),
        sha256=sha256.hexdigest(),
        xxh3_128=xxh3_128.hexdigest(),
    )
    with store.open_writer(f"{folder}/{entry.key}") as writer:
        for part in parts:
            writer.write(part)
    return entry


def _text_before(table: Table, row_ends: NDArray[np.int64], place: int) -> int:
    """Bytes of text that the first `place` tokens stand for; within a row in proportion."""
    row = int(np.searchsorted(row_ends, place, "right"))
    whole = int(table.text_bytes[:row].sum())
    inside = place - (int(row_ends[row - 1]) if row else 0)
    if inside == 0:
        return whole
    return whole + int(table.text_bytes[row]) * inside // int(table.sizes[row])

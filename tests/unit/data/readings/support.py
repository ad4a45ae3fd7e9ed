"""Datasets of tokens in memory, made of documents as they are written down."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from torchrelay.data.formats.opener import token_opener
from torchrelay.data.formats.tok import Footer, Packs, TokenShard, encode_footer, numpy_type
from torchrelay.data.manifest import (
    BuildRecord,
    Content,
    Manifest,
    ShardEntry,
    TokenizerRecord,
    make_manifest,
)
from torchrelay.data.open_shards import OpenShards
from torchrelay.data.order.order import Located
from torchrelay.recipe.data_schema import DataSection

END = 256
Document = list[int]
"""Tokens, the end mark included."""


class HeldBytes:
    """Shards in memory that remember what they were asked for."""

    def __init__(self, held: dict[str, bytes]) -> None:
        self.held = held
        self.opened: list[str] = []
        self.tails: list[str] = []

    def open(self, entry: ShardEntry) -> memoryview:
        self.opened.append(entry.key)
        return memoryview(self.held[entry.key])

    def tail(self, entry: ShardEntry, start: int) -> bytes:
        self.tails.append(entry.key)
        return self.held[entry.key][start:]

    def index(self, entry: ShardEntry) -> bytes | None:
        return None


def document(first: int, length: int) -> Document:
    """`length` tokens from `first` on, and the end mark."""
    return [(first + n) % END for n in range(length)] + [END]


def located(*places: tuple[int, int]) -> Located:
    """Places (shard, index); (-1, -1) holds no sample. The id of (s, i) is 100·s + i."""
    shards, indexes = (np.array(column, np.int64) for column in zip(*places, strict=True))
    return Located(np.where(indexes < 0, -1, 100 * shards + indexes), shards, indexes)


def epochs(located: Located) -> Any:
    return np.zeros_like(located.indexes)


class Tokens:
    """A dataset of one split."""

    def __init__(
        self,
        shards: Sequence[Sequence[Document]],
        *,
        labels: bool = False,
        packs: Sequence[Sequence[Sequence[int]]] | None = None,
        pack_length: int | None = None,
        continues: bool = False,
    ) -> None:
        """`packs`: of every shard, as numbers of documents. The label of a document is its length."""
        self.documents = shards
        entries, held = [], {}
        for number, documents in enumerate(shards):
            plan = None if packs is None else _plan(packs[number])
            data = _encode(documents, labels=labels, packs=plan, continues=continues)
            entry = _entry(number, documents, data, 0 if plan is None else len(plan.ends))
            entries.append(entry if not continues else _continuing(entry))
            held[entry.key] = data
        self.entries = tuple(entries)
        self.source = HeldBytes(held)
        self.content = Content(
            kind="tokens",
            format="tok",
            splits={"train": self.entries, "validation": self.entries},
            tokenizer=TokenizerRecord(kind="bytes", vocabulary=257, end_token=END, end_text=None, sha256="0"),
            token_dtype="u16",
            pack_length=pack_length,
            label_names=("a", "b") if labels else None,
        )
        build = BuildRecord(arguments={}, code="0", created="")
        self.manifest: Manifest = make_manifest("d", self.content, build)

    def shards(self) -> OpenShards[TokenShard]:
        return OpenShards(self.source, self.entries, token_opener(self.content))


def section(**changes: Any) -> DataSection:
    return DataSection(**{"dataset": "d", "sequence_length": 16, **changes})


def _plan(packs: Sequence[Sequence[int]]) -> Packs:
    order = [number for pack in packs for number in pack]
    ends = np.cumsum([len(pack) for pack in packs])
    return Packs(np.array(order, np.uint32), ends.astype(np.uint32))


def _encode(documents: Sequence[Document], *, labels: bool, packs: Packs | None, continues: bool) -> bytes:
    tokens = np.concatenate([np.array(document) for document in documents])
    footer = Footer(
        tokens=tokens.size,
        token_dtype="u16",
        ends=np.cumsum([len(document) for document in documents]).astype(np.uint64),
        ids=np.arange(len(documents), dtype=np.uint64),
        labels=np.array([len(document) for document in documents], np.int32) if labels else None,
        packs=packs,
        continues=continues,
    )
    return tokens.astype(numpy_type("u16")).tobytes() + encode_footer(footer)


def _entry(number: int, documents: Sequence[Document], data: bytes, packs: int) -> ShardEntry:
    return ShardEntry(
        key=f"shards/{number}.tok",
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        xxh3_128="0" * 32,
        samples=len(documents),
        tokens=sum(len(document) for document in documents),
        longest=max(len(document) for document in documents),
        packs=packs,
    )


def _continuing(entry: ShardEntry) -> ShardEntry:
    return replace(entry, continues=True)

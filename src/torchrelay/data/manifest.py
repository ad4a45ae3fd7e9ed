"""What one version of a dataset consists of. Pure: no file, store or clock is touched here.

A version is named by the sha256 of everything that decides what a training run reads: the shards
of every split, the columns, the tokenizer and the labels. Building the same input again gives the
same name. `manifest_json` writes and reads the file.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Literal

SCHEMA = 2
TRAIN = "train"
VALIDATION = "validation"
SPLITS = (TRAIN, VALIDATION, "test")
"""Names a split may have; `train` is always there."""
SHOWN_DIGITS = 12
"""Digits of a version that people are shown."""

Kind = Literal["tokens", "samples"]
"""tokens: documents as one stream of token ids. samples: records of named columns."""
Format = Literal["tok", "mds", "webdataset", "parquet", "megatron", "litdata"]
"""How the bytes of a shard are laid out; `tok` and `mds` are what `data build` writes."""
Unpack = Literal["zstd", "gzip", "arrow"]
"""What must be done to a shard once, when it arrives, so that samples can be read in place."""
TokenDtype = Literal["u8", "u16", "u32", "i32", "i64"]
TOKEN_BYTES: dict[str, int] = {"u8": 1, "u16": 2, "u32": 4, "i32": 4, "i64": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """One immutable span of bytes: a whole object, or a part of a large one.

    A field with a default is left out of the file where it has that value.
    """

    key: str
    """Object, relative to `Manifest.base`, or to the dataset's folder where there is none."""
    bytes: int
    """Size of the span."""
    sha256: str
    """Identity: 64 hex digits over the span."""
    xxh3_128: str
    """Quick check: 32 hex digits over the span."""
    samples: int
    """Samples in it; of tokens: the documents that end in it."""
    start: int = 0
    """Byte of the object at which the span begins."""
    tokens: int = 0
    """Tokens in it, the marks between documents included."""
    text_bytes: int = 0
    """Bytes of text that its tokens stand for; 0 where that is not known."""
    longest: int = 0
    """Tokens of the longest document that ends in it, with its end mark."""
    continues: bool = False
    """Whether its first tokens belong to the document that the shard before it did not finish."""
    packs: int = 0
    """Packs of whole documents that were planned when it was built."""
    unpack: Unpack | None = None
    """What is done to it when it arrives, or None where it is read as it lies."""
    unpacked_bytes: int = 0
    """Its size afterwards, about; 0 where it is not unpacked."""
    index: str | None = None
    """Where its samples begin: a file in the dataset's folder, named `indexes/<sha256>.idx`, or None
    where the span tells itself."""

    @property
    def disk_bytes(self) -> int:
        """What it needs on a node's disk."""
        return self.unpacked_bytes if self.unpack else self.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One named value of every sample."""

    name: str
    dtype: str
    """A numpy type (`uint8`, `float32`, `int64`…), `str`, `bytes`, `json`, `jpeg` or `png`."""
    shape: tuple[int, ...] | None = None
    """Shape of an array, () of a single number; None where samples differ or there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerRecord:
    """Which tokenizer made the tokens."""

    kind: Literal["bytes", "chars", "file", "unknown"]
    """unknown: the tokens came without their tokenizer."""
    vocabulary: int
    """Number of token ids, the end mark included."""
    end_token: int | None
    """Id of the mark after every document, or None where there is none."""
    end_text: str | None
    """What the mark is called in a tokenizer file, or None where it has no text."""
    sha256: str
    """64 hex digits over the version's `tokenizer.json`; empty where it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRecord:
    """How the version came to be; decides nothing."""

    arguments: Mapping[str, Any]
    """What was asked for, in the words of the command line."""
    code: str
    """Version of torchrelay."""
    created: str
    """UTC, as `core.clock.iso_time` writes it."""
    parent: str | None = None
    """Version that was the newest before; None for the first."""
    skipped: int = 0
    """Bad inputs that were left out (`--on-bad skip`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over the shards of a split."""

    samples: int
    tokens: int
    text_bytes: int
    longest: int
    """Tokens of the longest document, with its end mark."""
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """All that decides what a run reads; its hash is the version."""

    kind: Kind
    format: Format
    splits: Mapping[str, tuple[ShardEntry, ...]]
    """By name, in the order of SPLITS, each in stored order; no split is empty."""
    columns: tuple[Column, ...] = ()
    """Of a dataset of samples."""
    tokenizer: TokenizerRecord | None = None
    """Of a dataset of tokens."""
    token_dtype: TokenDtype | None = None
    pack_length: int | None = None
    """Most tokens of a planned pack, or None where none were planned."""
    label_names: tuple[str, ...] | None = None
    """Names of the classes, label i is the i-th; None where nothing is labelled or names are unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One version of a dataset; make it with `make_manifest` or `manifest_json.parse_manifest`."""

    name: str
    version: str
    """64 hex digits; see `compute_version`."""
    content: Content
    base: str | None
    """URL that shard keys are relative to where the data lies elsewhere (adopted); else None."""
    build: BuildRecord

    @property
    def short_version(self) -> str:
        """The version as people are shown it."""
        return self.version[:SHOWN_DIGITS]

    @property
    def splits(self) -> Mapping[str, tuple[ShardEntry, ...]]:
        """See `Content.splits`."""
        return self.content.splits

    @property
    def num_labels(self) -> int | None:
        """Number of classes, or None where there are no labels."""
        names = self.content.label_names
        return None if names is None else len(names)

    @property
    def tokenizer(self) -> TokenizerRecord:
        """Of a dataset of tokens; ValueError for samples, which have none."""
        if self.content.tokenizer is None:
            raise ValueError(f"{self.name} is a dataset of samples")
        return self.content.tokenizer

    @property
    def token_dtype(self) -> TokenDtype:
        """Of a dataset of tokens; ValueError for samples, which have none."""
        if self.content.token_dtype is None:
            raise ValueError(f"{self.name} is a dataset of samples")
        return self.content.token_dtype

    def totals(self, split: str) -> Totals:
        """Sums over the shards of `split`; all zero where there is no such split."""
        return sum_shards(self.splits.get(split, ()))


def sum_shards(shards: tuple[ShardEntry, ...]) -> Totals:
    """Totals of some shards; all zero for none."""
    return Totals(
        samples=sum(shard.samples for shard in shards),
        tokens=sum(shard.tokens for shard in shards),
        text_bytes=sum(shard.text_bytes for shard in shards),
        longest=max((shard.longest for shard in shards), default=0),
        bytes=sum(shard.bytes for shard in shards),
    )


def choose_token_dtype(vocabulary: int) -> TokenDtype:
    """The narrowest type that `data build` writes and that holds every id below `vocabulary`."""
    return "u16" if vocabulary <= 2**16 else "u32"


def make_manifest(name: str, content: Content, build: BuildRecord, *, base: str | None = None) -> Manifest:
    """A manifest with its version computed."""
    return Manifest(name=name, version=compute_version(content), content=content, base=base, build=build)


def compute_version(content: Content) -> str:
    """64 hex digits over all that decides what is read; name, place, time and arguments do not."""
    tree = {"schema": SCHEMA, **content_tree(content)}
    canonical = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def content_tree(content: Content) -> dict[str, Any]:
    """The content as plain JSON values."""
    return {
        "kind": content.kind,
        "format": content.format,
        "columns": [plain(column) for column in content.columns],
        "tokenizer": None if content.tokenizer is None else asdict(content.tokenizer),
        "token_dtype": content.token_dtype,
        "pack_length": content.pack_length,
        "label_names": content.label_names,
        "splits": {split: [plain(shard) for shard in shards] for split, shards in content.splits.items()},
    }


def plain(record: Any) -> dict[str, Any]:
    """A flat frozen record as a dict, fields that have their default left out."""
    return {
        field.name: value
        for field in fields(record)
        if (value := getattr(record, field.name)) != field.default or field.default is MISSING
    }

"""What an adoption is going to read, as the layout of the data says it. Records alone."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torchrelay.data.adopt.stream import Stream
from torchrelay.data.manifest import Column, Format, TokenDtype, Unpack
from torchrelay.store.base import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """What was found in one shard; see `ShardEntry` for the fields of the same names."""

    samples: int
    tokens: int = 0
    longest: int = 0
    continues: bool = False
    unpack: Unpack | None = None
    unpacked_bytes: int = 0
    index: bytes | None = None
    """Content of its index file."""
    columns: tuple[Column, ...] = ()
    highest: int = -1
    """Highest token id."""
    skipped: int = 0
    """Files of a tar without an extension, or documents without a token: they are left out."""


Scan = Callable[[Stream], Scanned]
"""Reads a shard; ValueError says what is wrong with it and at which byte."""


class Work(NamedTuple):
    """One shard to read."""

    split: str
    key: str
    start: int
    length: int
    scan: Scan


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All shards, in stored order within each split."""

    format: Format
    works: list[Work]
    token_dtype: TokenDtype | None = None
    """Of tokens; None for samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFacts:
    """What the user knows of the tokens, where the data does not tell it."""

    vocabulary: int | None = None
    """Number of ids; None: one more than the highest that occurs."""
    end_token: int | None = None
    """Id with which every document ends; None where it is not known or there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The files that make the data."""

    store: Store
    """What their keys are relative to."""
    sizes: Mapping[str, int]
    """Bytes of every file that lies there, by key."""
    splits: Mapping[str, tuple[str, ...]]
    """By name of the split, sorted: tars or Parquet files, or the files that name the shards
    (`index.json`, `.idx`)."""

"""What one version of a dataset consists of. Pure: no file, store or clock is touched here.

A version is named by the sha256 of everything that decides what a training run reads: the shards
of every split, the tokenizer and the labels. Building the same input again gives the same name.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeVar, cast

from torchrelay.core.errors import DataError

SCHEMA = 1
TRAIN = "train"
VALIDATION = "validation"
SPLITS = (TRAIN, VALIDATION)
SHOWN_DIGITS = 12
"""Digits of a version that people are shown."""

TokenDtype = Literal["u16", "u32"]
_TOKEN_BYTES: dict[str, int] = {"u16": 2, "u32": 4}
_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """One immutable file of tokens."""

    key: str
    """Where it is, relative to the dataset's folder in the store."""
    documents: int
    """Documents that end in it."""
    tokens: int
    """Tokens in it, the marks between documents included."""
    bytes: int
    """Size of the file."""
    text_bytes: int
    """Bytes of text that its tokens stand for."""
    longest_document: int
    """Tokens of the longest document that ends in it, with its end mark."""
    continues: bool
    """Whether its first tokens belong to the document that the shard before it did not finish."""
    sha256: str
    """Identity: 64 hex digits over the whole file."""
    xxh3_128: str
    """Quick check: 32 hex digits over the whole file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerRecord:
    """Which tokenizer made the tokens."""

    kind: Literal["bytes", "chars", "file"]
    vocabulary: int
    """Number of token ids, the end mark included."""
    end_token: int
    """Id of the mark after every document."""
    end_text: str | None
    """What the mark is called in a tokenizer file, or None where it has no text."""
    sha256: str
    """64 hex digits over the version's `tokenizer.json`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRecord:
    """How the version came to be; decides nothing."""

    arguments: Mapping[str, Any]
    """What was asked for, in the words of the command line."""
    code: str
    """Version of torchrelay."""
    created: str
    """UTC, as `core.clock.iso_time` writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over the shards of a split."""

    documents: int
    tokens: int
    text_bytes: int
    longest_document: int
    """Tokens of the longest document, with its end mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One version of a dataset; make it with `make_manifest` or `parse_manifest`."""

    name: str
    version: str
    """64 hex digits; see `compute_version`."""
    tokenizer: TokenizerRecord
    token_dtype: TokenDtype
    splits: Mapping[str, tuple[ShardEntry, ...]]
    """`train` and `validation`, each in stored order."""
    label_names: tuple[str, ...] | None
    """Names of the document classes, label i is the i-th; None where documents have no label."""
    build: BuildRecord

    @property
    def short_version(self) -> str:
        """The version as people are shown it."""
        return self.version[:SHOWN_DIGITS]

    @property
    def num_labels(self) -> int | None:
        """Number of document classes, or None where documents have no label."""
        return None if self.label_names is None else len(self.label_names)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in a shard."""
        return _TOKEN_BYTES[self.token_dtype]

    def totals(self, split: str) -> Totals:
        """Sums over the shards of `split`."""
        return sum_shards(self.splits[split])


def sum_shards(shards: tuple[ShardEntry, ...]) -> Totals:
    """Totals of some shards; all zero for none."""
    return Totals(
        documents=sum(shard.documents for shard in shards),
        tokens=sum(shard.tokens for shard in shards),
        text_bytes=sum(shard.text_bytes for shard in shards),
        longest_document=max((shard.longest_document for shard in shards), default=0),
    )


def choose_token_dtype(vocabulary: int) -> TokenDtype:
    """The narrowest type that holds every id below `vocabulary`."""
    return "u16" if vocabulary <= 2**16 else "u32"


def make_manifest(
    name: str,
    *,
    tokenizer: TokenizerRecord,
    splits: Mapping[str, tuple[ShardEntry, ...]],
    label_names: tuple[str, ...] | None,
    build: BuildRecord,
) -> Manifest:
    """A manifest with its version computed."""
    token_dtype = choose_token_dtype(tokenizer.vocabulary)
    return Manifest(
        name=name,
        version=compute_version(tokenizer, token_dtype, splits, label_names),
        tokenizer=tokenizer,
        token_dtype=token_dtype,
        splits=splits,
        label_names=label_names,
        build=build,
    )


def compute_version(
    tokenizer: TokenizerRecord,
    token_dtype: TokenDtype,
    splits: Mapping[str, tuple[ShardEntry, ...]],
    label_names: tuple[str, ...] | None,
) -> str:
    """64 hex digits over all that decides what is read; name, place, time and arguments do not."""
    content = {
        "schema": SCHEMA,
        "kind": "tokens",
        "tokenizer": asdict(tokenizer),
        "token_dtype": token_dtype,
        "splits": {split: [_plain(shard) for shard in shards] for split, shards in splits.items()},
        "label_names": label_names,
    }
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def write_manifest(manifest: Manifest) -> bytes:
    """JSON that `parse_manifest` reads back; the same manifest gives the same bytes."""
    tree = {
        "schema": SCHEMA,
        "name": manifest.name,
        "kind": "tokens",
        "version": manifest.version,
        "tokenizer": asdict(manifest.tokenizer),
        "token_dtype": manifest.token_dtype,
        "splits": {split: [_plain(shard) for shard in shards] for split, shards in manifest.splits.items()},
        "totals": {split: asdict(manifest.totals(split)) for split in manifest.splits},
        "num_labels": manifest.num_labels,
        "label_names": manifest.label_names,
        "build": asdict(manifest.build),
    }
    return json.dumps(tree, indent=1).encode() + b"\n"


def parse_manifest(data: bytes, where: str) -> Manifest:
    """The manifest in `data`; DataError that names `where` when it is damaged or too new."""
    tree = _parse_object(data, where)
    if tree.get("schema") != SCHEMA:
        raise DataError(
            f"{where} has schema {tree.get('schema')!r}; this torchrelay reads schema {SCHEMA}",
            hint="install the torchrelay that built it, or a newer one",
        )
    try:
        manifest = _from_tree(tree)
        totals = {split: asdict(manifest.totals(split)) for split in manifest.splits}
    except (KeyError, TypeError, AttributeError) as error:
        raise _damaged(where, f"{type(error).__name__}: {error}") from error
    if tree.get("totals") != totals:
        raise _damaged(where, "the totals do not match the shards")
    version = compute_version(manifest.tokenizer, manifest.token_dtype, manifest.splits, manifest.label_names)
    if version != manifest.version:
        raise _damaged(where, f"its content hashes to {version}, it says {manifest.version}")
    return manifest


def _parse_object(data: bytes, where: str) -> dict[str, Any]:
    try:
        tree = json.loads(data)
    except ValueError as error:
        raise _damaged(where, f"not valid JSON: {error}") from error
    if not isinstance(tree, dict):
        raise _damaged(where, "not a JSON object")
    return tree


def _from_tree(tree: dict[str, Any]) -> Manifest:
    if tree["kind"] != "tokens":
        raise TypeError(f"unknown kind {tree['kind']!r}")
    splits = {split: tuple(_record(ShardEntry, shard) for shard in tree["splits"][split]) for split in SPLITS}
    labels = tree["label_names"]
    return Manifest(
        name=_typed(str, tree, "name"),
        version=_typed(str, tree, "version"),
        tokenizer=_record(TokenizerRecord, tree["tokenizer"]),
        token_dtype=cast(TokenDtype, _known(tree["token_dtype"], _TOKEN_BYTES)),
        splits=splits,
        label_names=None if labels is None else tuple(str(label) for label in labels),
        build=_record(BuildRecord, tree["build"]),
    )


_TYPES: dict[Any, tuple[type, ...]] = {
    int: (int,),
    str: (str,),
    bool: (bool,),
    str | None: (str, type(None)),
    Mapping[str, Any]: (dict,),
}


def _record(make: Callable[..., _Record], tree: dict[str, Any]) -> _Record:
    """A flat record from JSON, every field present and of its type, and no other."""
    kinds = {field.name: field.type for field in fields(cast(Any, make))}
    if set(tree) != set(kinds):
        raise KeyError(", ".join(sorted(set(tree) ^ set(kinds))))
    for name, kind in kinds.items():
        if type(tree[name]) not in _TYPES.get(kind, (str,)):
            raise TypeError(f"{name} is {tree[name]!r}")
    return make(**tree)


def _typed(kind: type[_Record], tree: dict[str, Any], name: str) -> _Record:
    value = tree[name]
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {value!r}")
    return value


def _known(value: Any, choices: Mapping[str, Any]) -> str:
    if value not in choices:
        raise KeyError(f"unknown {value!r}")
    return str(value)


def _plain(shard: ShardEntry) -> dict[str, Any]:
    return {field.name: getattr(shard, field.name) for field in fields(shard)}


def _damaged(where: str, why: str) -> DataError:
    return DataError(
        f"{where} is damaged: {why}",
        hint="build the dataset again from the same input; that writes the same version anew",
    )

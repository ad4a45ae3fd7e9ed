"""The manifest as a file: written once, checked in full when it is read. Pure."""

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, fields
from typing import Any, TypeVar, cast, get_args

from torchrelay.core.errors import DataError
from torchrelay.data.manifest import (
    SCHEMA,
    SPLITS,
    TOKEN_BYTES,
    TRAIN,
    BuildRecord,
    Column,
    Content,
    Format,
    Kind,
    Manifest,
    ShardEntry,
    TokenizerRecord,
    Unpack,
    compute_version,
    content_tree,
    plain,
)

_Record = TypeVar("_Record")


def write_manifest(manifest: Manifest) -> bytes:
    """JSON that `parse_manifest` reads back; the same manifest gives the same bytes."""
    tree = {
        "schema": SCHEMA,
        "name": manifest.name,
        "version": manifest.version,
        "base": manifest.base,
        **content_tree(manifest.content),
        "totals": {split: asdict(manifest.totals(split)) for split in manifest.splits},
        "build": plain(manifest.build),
    }
    return json.dumps(tree, indent=1).encode() + b"\n"


def parse_manifest(data: bytes, where: str) -> Manifest:
    """The manifest in `data`; DataError that names `where` when it is damaged or of another schema."""
    tree = _parse_object(data, where)
    if tree.get("schema") != SCHEMA:
        raise _foreign_schema(tree.get("schema"), where)
    try:
        manifest = _from_tree(tree)
        totals = {split: asdict(manifest.totals(split)) for split in manifest.splits}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _damaged(where, f"{type(error).__name__}: {error}") from error
    if tree.get("totals") != totals:
        raise _damaged(where, "the totals do not match the shards")
    version = compute_version(manifest.content)
    if version != manifest.version:
        raise _damaged(where, f"its content hashes to {version}, it says {manifest.version}")
    return manifest


def _foreign_schema(schema: object, where: str) -> DataError:
    older = isinstance(schema, int) and schema < SCHEMA
    return DataError(
        f"{where} has schema {schema!r}; this torchrelay reads schema {SCHEMA}",
        hint="build the dataset again" if older else "install the torchrelay that built it, or a newer one",
    )


def _parse_object(data: bytes, where: str) -> dict[str, Any]:
    try:
        tree = json.loads(data)
    except ValueError as error:
        raise _damaged(where, f"not valid JSON: {error}") from error
    if not isinstance(tree, dict):
        raise _damaged(where, "not a JSON object")
    return tree


def _from_tree(tree: dict[str, Any]) -> Manifest:
    return Manifest(
        name=_typed(str, tree["name"], "name"),
        version=_typed(str, tree["version"], "version"),
        base=_optional(str, tree["base"], "base"),
        content=_content(tree),
        build=_record(BuildRecord, tree["build"]),
    )


def _content(tree: dict[str, Any]) -> Content:
    splits = tree["splits"]
    if TRAIN not in splits:
        raise KeyError(f"no {TRAIN} split")
    labels, tokenizer = tree["label_names"], tree["tokenizer"]
    content = Content(
        kind=cast(Kind, _known(tree["kind"], get_args(Kind))),
        format=cast(Format, _known(tree["format"], get_args(Format))),
        columns=tuple(_column(column) for column in tree["columns"]),
        tokenizer=None if tokenizer is None else _record(TokenizerRecord, tokenizer),
        token_dtype=None if tree["token_dtype"] is None else _known(tree["token_dtype"], TOKEN_BYTES),
        pack_length=_optional(int, tree["pack_length"], "pack_length"),
        label_names=None if labels is None else tuple(str(label) for label in labels),
        splits={_known(split, SPLITS): _shards(shards) for split, shards in splits.items()},
    )
    has_tokens = content.tokenizer is not None and content.token_dtype is not None
    if has_tokens != (content.kind == "tokens"):
        raise ValueError(f"a dataset of {content.kind} with tokenizer {tokenizer!r}")
    return content


def _shards(trees: list[dict[str, Any]]) -> tuple[ShardEntry, ...]:
    shards = tuple(_record(ShardEntry, tree) for tree in trees)
    for shard in shards:
        if shard.unpack is not None:
            _known(shard.unpack, get_args(Unpack))
    return shards


def _column(tree: dict[str, Any]) -> Column:
    column = dict(tree)
    if column.get("shape") is not None:
        column["shape"] = tuple(_typed(int, size, "shape") for size in column["shape"])
    return _record(Column, column)


_TYPES: dict[Any, tuple[type, ...]] = {
    int: (int,),
    str: (str,),
    bool: (bool,),
    str | None: (str, type(None)),
    int | None: (int, type(None)),
    Unpack | None: (str, type(None)),
    tuple[int, ...] | None: (tuple, type(None)),
    Mapping[str, Any]: (dict,),
}


def _record(make: Callable[..., _Record], tree: dict[str, Any]) -> _Record:
    """A flat record from JSON: every field of its type, only those with a default left out, no other."""
    known = {field.name: field for field in fields(cast(Any, make))}
    needed = {name for name, field in known.items() if field.default is MISSING}
    if not needed <= set(tree) <= set(known):
        raise KeyError(", ".join(sorted((needed - set(tree)) | (set(tree) - set(known)))))
    for name, value in tree.items():
        if type(value) not in _TYPES.get(known[name].type, (str,)):
            raise TypeError(f"{name} is {value!r}")
    return make(**tree)


def _typed(kind: type[_Record], value: Any, name: str) -> _Record:
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {value!r}")
    return value


def _optional(kind: type[_Record], value: Any, name: str) -> _Record | None:
    return None if value is None else _typed(kind, value, name)


def _known(value: Any, choices: Any) -> Any:
    if value not in choices:
        raise KeyError(f"unknown {value!r}")
    return value


def _damaged(where: str, why: str) -> DataError:
    return DataError(
        f"{where} is damaged: {why}",
        hint="build the dataset again from the same input; that writes the same version anew",
    )

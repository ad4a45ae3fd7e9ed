import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchrelay.core.errors import DataError
from torchrelay.data.manifest import (
    BuildRecord,
    Column,
    Content,
    Manifest,
    ShardEntry,
    TokenizerRecord,
    make_manifest,
)
from torchrelay.data.manifest_json import parse_manifest, write_manifest

TOKENIZER = TokenizerRecord(kind="bytes", vocabulary=257, end_token=256, end_text=None, sha256="00" * 32)
BUILD = BuildRecord(arguments={"text": ["a"], "validation": 0.05}, code="0", created="2026")


def shard(number: int = 0, **changes: Any) -> ShardEntry:
    entry = ShardEntry(
        key=f"shards/{number}.tok",
        samples=3,
        tokens=100 + number,
        bytes=300,
        text_bytes=97,
        longest=50 + number,
        sha256=f"{number:064x}",
        xxh3_128=f"{number:032x}",
    )
    return replace(entry, **changes)


def manifest(**changes: Any) -> Manifest:
    content: dict[str, Any] = {
        "kind": "tokens",
        "format": "tok",
        "tokenizer": TOKENIZER,
        "token_dtype": "u16",
        "splits": {"train": (shard(1), shard(2)), "validation": (shard(3),)},
    }
    return make_manifest("d", Content(**{**content, **changes}), BUILD)


entries = st.builds(
    shard,
    st.integers(0, 10**6),
    samples=st.integers(0, 10**9),
    tokens=st.integers(0, 10**12),
    start=st.integers(0, 10**12),
    continues=st.booleans(),
    unpack=st.sampled_from([None, "zstd", "gzip", "arrow"]),
    index=st.sampled_from([None, "indexes/0.idx"]),
)


@given(
    train=st.lists(entries, max_size=5).map(tuple),
    validation=st.lists(entries, max_size=3).map(tuple),
    labels=st.none() | st.lists(st.text(), min_size=1).map(tuple),
)
def test_a_manifest_of_tokens_survives_being_written(
    train: tuple[ShardEntry, ...], validation: tuple[ShardEntry, ...], labels: tuple[str, ...] | None
) -> None:
    made = manifest(splits={"train": train, "validation": validation}, label_names=labels)
    assert parse_manifest(write_manifest(made), "here") == made


@given(
    shapes=st.lists(st.none() | st.lists(st.integers(0, 9)).map(tuple), max_size=4),
    base=st.none() | st.text(min_size=1),
)
def test_a_manifest_of_samples_survives_being_written(
    shapes: list[tuple[int, ...] | None], base: str | None
) -> None:
    columns = tuple(Column(name=f"c{i}", dtype="uint8", shape=shape) for i, shape in enumerate(shapes))
    content = Content(kind="samples", format="mds", columns=columns, splits={"train": (shard(1),)})
    made = make_manifest("d", content, BUILD, base=base)
    assert parse_manifest(write_manifest(made), "here") == made


def test_what_has_its_default_is_left_out_of_the_file() -> None:
    written = json.loads(write_manifest(manifest()))["splits"]["train"][0]
    assert "continues" not in written and "start" not in written
    assert len(written) == 8


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda tree: tree.update(version="0" * 64), "its content hashes to"),
        (lambda tree: tree["splits"]["train"][0].update(tokens=5), "the totals do not match"),
        (lambda tree: tree["splits"]["train"][0].update(sha256="f" * 64), "its content hashes to"),
        (lambda tree: tree["splits"]["train"][0].update(tokens="5"), "tokens is '5'"),
        (lambda tree: tree["splits"]["train"][0].pop("key"), "key"),
        (lambda tree: tree["splits"].pop("train"), "no train split"),
        (lambda tree: tree.pop("tokenizer"), "tokenizer"),
        (lambda tree: tree.update(token_dtype="u7"), "unknown 'u7'"),
        (lambda tree: tree.update(token_dtype=None), "a dataset of tokens with tokenizer"),
        (lambda tree: tree["splits"].update(spare=[]), "unknown 'spare'"),
        (lambda tree: tree["splits"]["train"][0].update(unpack="rar"), "unknown 'rar'"),
        (lambda tree: tree["splits"]["train"][0].update(colour=1), "colour"),
        (lambda tree: tree.update(format="tfrecord"), "unknown 'tfrecord'"),
        (lambda tree: tree.update(kind="pictures"), "unknown 'pictures'"),
        (lambda tree: tree.update(splits=[]), "no train split"),
        (lambda tree: tree.update(columns=3), "TypeError"),
    ],
)
def test_damage_is_named_with_the_place(damage: Any, reason: str) -> None:
    tree = json.loads(write_manifest(manifest()))
    damage(tree)
    with pytest.raises(DataError, match=reason) as caught:
        parse_manifest(json.dumps(tree).encode(), "store/manifest.json")
    assert caught.value.message.startswith("store/manifest.json is damaged")
    assert "build the dataset again" in caught.value.hint


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"\xff\xfe"])
def test_what_is_no_json_object_is_damaged(data: bytes) -> None:
    with pytest.raises(DataError, match="is damaged: not"):
        parse_manifest(data, "here")


@pytest.mark.parametrize(
    ("schema", "hint"), [(3, "or a newer one"), ("x", "or a newer one"), (1, "build the")]
)
def test_another_schema_says_what_to_do(schema: object, hint: str) -> None:
    tree = json.loads(write_manifest(manifest())) | {"schema": schema}
    with pytest.raises(DataError, match=f"has schema {schema!r}; this torchrelay reads schema 2") as caught:
        parse_manifest(json.dumps(tree).encode(), "here")
    assert hint in caught.value.hint

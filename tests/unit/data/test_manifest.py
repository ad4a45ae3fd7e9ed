import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchrelay.core.errors import DataError
from torchrelay.data.manifest import (
    BuildRecord,
    Manifest,
    ShardEntry,
    TokenizerRecord,
    choose_token_dtype,
    make_manifest,
    parse_manifest,
    write_manifest,
)

TOKENIZER = TokenizerRecord(kind="bytes", vocabulary=257, end_token=256, end_text=None, sha256="00" * 32)
BUILD = BuildRecord(arguments={"text": ["a"], "validation": 0.05}, code="0", created="2026")


def shard(number: int = 0, **changes: Any) -> ShardEntry:
    entry = ShardEntry(
        key=f"shards/{number}.tok",
        documents=3,
        tokens=100 + number,
        bytes=300,
        text_bytes=97,
        longest_document=50 + number,
        continues=False,
        sha256=f"{number:064x}",
        xxh3_128=f"{number:032x}",
    )
    return replace(entry, **changes)


def manifest(**changes: Any) -> Manifest:
    arguments: dict[str, Any] = {
        "tokenizer": TOKENIZER,
        "splits": {"train": (shard(1), shard(2)), "validation": (shard(3),)},
        "label_names": None,
        "build": BUILD,
    }
    return make_manifest("d", **{**arguments, **changes})


entries = st.builds(
    shard,
    st.integers(0, 10**6),
    documents=st.integers(0, 10**9),
    tokens=st.integers(1, 10**12),
    continues=st.booleans(),
)


@given(
    train=st.lists(entries, max_size=5),
    validation=st.lists(entries, max_size=3),
    labels=st.none() | st.lists(st.text(), min_size=1).map(tuple),
)
def test_a_manifest_survives_being_written(
    train: list[ShardEntry], validation: list[ShardEntry], labels: tuple[str, ...] | None
) -> None:
    made = manifest(splits={"train": tuple(train), "validation": tuple(validation)}, label_names=labels)
    assert parse_manifest(write_manifest(made), "here") == made


def test_totals_are_sums_and_the_longest() -> None:
    totals = manifest().totals("train")
    assert (totals.documents, totals.tokens, totals.text_bytes, totals.longest_document) == (6, 203, 194, 52)


def test_time_arguments_code_and_name_do_not_change_the_version() -> None:
    other = make_manifest(
        "other",
        tokenizer=TOKENIZER,
        splits=manifest().splits,
        label_names=None,
        build=BuildRecord(arguments={}, code="9", created="2027"),
    )
    assert other.version == manifest().version


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer": replace(TOKENIZER, sha256="11" * 32)},
        {"tokenizer": replace(TOKENIZER, end_token=255)},
        {"splits": {"train": (shard(2), shard(1)), "validation": (shard(3),)}},
        {"splits": {"train": (shard(1),), "validation": (shard(2), shard(3))}},
        {"label_names": ("a", "b")},
    ],
)
def test_whatever_changes_what_is_read_changes_the_version(change: dict[str, Any]) -> None:
    assert manifest(**change).version != manifest().version


def test_the_version_of_a_manifest_stays_what_it_is() -> None:
    """Published versions are named by this; a change makes every one of them look damaged."""
    assert manifest().version == "9b4a9c0122246988c8da8c6748daa6d423647c5ff8220cbd76aca6852acb26dc"
    assert manifest().short_version == "9b4a9c012224"


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda tree: tree.update(version="0" * 64), "its content hashes to"),
        (lambda tree: tree["splits"]["train"][0].update(tokens=5), "the totals do not match"),
        (lambda tree: tree["splits"]["train"][0].update(sha256="f" * 64), "its content hashes to"),
        (lambda tree: tree["splits"]["train"][0].update(tokens="5"), "tokens is '5'"),
        (lambda tree: tree["splits"]["train"][0].pop("key"), "key"),
        (lambda tree: tree["splits"].pop("validation"), "validation"),
        (lambda tree: tree.pop("tokenizer"), "tokenizer"),
        (lambda tree: tree.update(token_dtype="u8"), "unknown 'u8'"),
        (lambda tree: tree.update(kind="pictures"), "unknown kind 'pictures'"),
        (lambda tree: tree.update(splits=[]), "TypeError"),
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


def test_a_newer_schema_asks_for_a_newer_torchrelay() -> None:
    tree = json.loads(write_manifest(manifest())) | {"schema": 2}
    with pytest.raises(DataError, match="has schema 2; this torchrelay reads schema 1"):
        parse_manifest(json.dumps(tree).encode(), "here")


def test_tokens_take_two_bytes_up_to_65536_ids() -> None:
    assert [choose_token_dtype(n) for n in (257, 65536, 65537)] == ["u16", "u16", "u32"]

from dataclasses import replace
from typing import Any

import pytest

from torchrelay.data.manifest import (
    BuildRecord,
    Content,
    Manifest,
    ShardEntry,
    TokenizerRecord,
    choose_token_dtype,
    make_manifest,
)

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


def test_totals_are_sums_and_the_longest() -> None:
    totals = manifest().totals("train")
    assert (totals.samples, totals.tokens, totals.text_bytes, totals.longest) == (6, 203, 194, 52)
    assert totals.bytes == 600


def test_a_split_that_is_not_there_has_no_sample() -> None:
    assert manifest().totals("test").samples == 0


def test_time_arguments_code_name_and_place_do_not_change_the_version() -> None:
    build = BuildRecord(arguments={}, code="9", created="2027", parent="0" * 64)
    other = make_manifest("other", manifest().content, build, base="s3://elsewhere")
    assert other.version == manifest().version


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer": replace(TOKENIZER, sha256="11" * 32)},
        {"tokenizer": replace(TOKENIZER, end_token=255)},
        {"token_dtype": "u32"},
        {"splits": {"train": (shard(2), shard(1)), "validation": (shard(3),)}},
        {"splits": {"train": (shard(1),), "validation": (shard(2), shard(3))}},
        {"splits": {"train": (shard(1, start=8), shard(2)), "validation": (shard(3),)}},
        {"label_names": ("a", "b")},
        {"pack_length": 64},
        {"format": "megatron"},
    ],
)
def test_whatever_changes_what_is_read_changes_the_version(change: dict[str, Any]) -> None:
    assert manifest(**change).version != manifest().version


def test_the_version_of_a_manifest_stays_what_it_is() -> None:
    """Published versions are named by this; a change makes every one of them look damaged."""
    assert manifest().version == "8353b3ce780058984f42fdf370349cff9c50e156473be2d79858eef62bf182ba"
    assert manifest().short_version == "8353b3ce7800"


def test_a_shard_takes_on_disk_what_it_is_unpacked_to() -> None:
    assert shard(unpack="zstd", unpacked_bytes=900).disk_bytes == 900
    assert shard().disk_bytes == 300


def test_samples_have_no_tokenizer() -> None:
    images = manifest(kind="samples", format="mds", tokenizer=None, token_dtype=None)
    with pytest.raises(ValueError, match="is a dataset of samples"):
        _ = images.tokenizer
    with pytest.raises(ValueError, match="is a dataset of samples"):
        _ = images.token_dtype


def test_tokens_take_two_bytes_up_to_65536_ids() -> None:
    assert [choose_token_dtype(n) for n in (257, 65536, 65537)] == ["u16", "u16", "u32"]

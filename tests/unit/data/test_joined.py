from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from torchrelay.core.errors import DataError
from torchrelay.data.dataset import open_dataset
from torchrelay.data.joined import join_content, join_shards, open_shards
from torchrelay.data.manifest import Column, Content, Manifest, make_manifest
from torchrelay.data.open_shards import OpenShards
from torchrelay.data.shard_bytes import ShardBytes
from torchrelay.recipe.data_schema import DataSection
from torchrelay.store.base import Store

Build = Callable[..., Any]
SECTION = DataSection(dataset="a", sequence_length=16)


@pytest.fixture
def parts(store: Store, build: Build, stories: list[str]) -> list[OpenShards[Any]]:
    """`b` begins with the very shards of `a`."""
    build(stories, name="a")
    build(stories, name="b")
    build(stories[:9], name="c")
    return [open_shards(SECTION, open_dataset(store, name), "train") for name in ("a", "b", "c")]


def test_shards_are_numbered_on_from_part_to_part(parts: list[OpenShards[Any]]) -> None:
    joined = join_shards(parts)
    expected = [part.shard(number) for part in parts for number in range(len(part))]
    assert len(joined) == len(expected) == sum(map(len, parts))
    for number, shard in enumerate(expected):
        assert joined.shard(number).tokens.tobytes() == shard.tokens.tobytes()
        entry = joined.entries[number]
        assert joined.source.tail(entry, entry.bytes - 4) == parts[0].source.tail(entry, entry.bytes - 4)
        assert joined.source.index(entry) is None


def test_one_part_stays_as_it_is(parts: list[OpenShards[Any]]) -> None:
    assert join_shards(parts[:1]) is parts[0]


class Releases:
    """A source that tells its readers to let go."""

    def __init__(self, source: ShardBytes) -> None:
        self.open, self.tail, self.index = source.open, source.tail, source.index
        self.listeners: list[Any] = []

    def on_release(self, listener: Any) -> None:
        self.listeners.append(listener)


def test_a_part_that_needs_room_is_heard(parts: list[OpenShards[Any]]) -> None:
    source = Releases(parts[2].source)
    parts[2].source = source
    joined = join_shards(parts)
    opened = joined.shard(0)
    assert len(source.listeners) == 1
    source.listeners[0]({joined.entries[0].sha256})
    assert joined.shard(0) is not opened


def manifest(name: str, **changes: Any) -> Callable[[Manifest], Manifest]:
    return lambda base: make_manifest(name, replace(base.content, **changes), base.build)


@pytest.fixture
def base(store: Store, build: Build, stories: list[str]) -> Manifest:
    return build(stories, name="a").manifest


def test_what_differs_is_named_with_both_sides(base: Manifest) -> None:
    tokenizer = replace(base.tokenizer, vocabulary=300)
    for changes, named in (
        ({"tokenizer": tokenizer}, "tokenizer, .*257.* and .*300"),
        ({"label_names": ("x", "y")}, "labels, None and .'x', 'y'"),
        ({"pack_length": 16}, "reading, packed and packs"),
        ({"columns": (Column(name="x", dtype="str"),)}, "columns"),
    ):
        other = manifest("b", **changes)(base)
        with pytest.raises(DataError, match=f"a and b cannot be mixed: they differ in {named}"):
            join_content(SECTION, [base, other])


def test_shards_of_different_make_are_only_read_by_themselves(base: Manifest) -> None:
    def joined(*others: Manifest) -> Content:
        return join_content(SECTION, [base, *others])

    assert joined(manifest("b")(base)) == base.content
    assert joined(manifest("b", token_dtype="i32")(base)).token_dtype is None
    assert joined(manifest("b", format="megatron")(base)).token_dtype is None

"""What every store promises, checked over each of them: a folder, memory, and a real S3 server."""

import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from torchrelay.core.errors import AlreadyExistsError, NotFoundError, StoreError
from torchrelay.store.base import Store
from torchrelay.store.open import check_writable, open_store

MIB = 2**20


def store_url(scheme: str, request: pytest.FixtureRequest) -> str:
    """A fresh place in a store of this kind."""
    name = uuid.uuid4().hex
    if scheme == "file":
        folder: Path = request.getfixturevalue("tmp_path")
        return f"file://{folder}/store"
    if scheme == "memory":
        return f"memory://{name}/inner"
    return f"s3://{request.getfixturevalue('s3').bucket}/{name}/inner"


@pytest.fixture(params=["file", "memory", pytest.param("s3", marks=pytest.mark.services)])
def store(request: pytest.FixtureRequest) -> Store:
    return open_store(store_url(request.param, request), retry_s=20)


def keys(store: Store, prefix: str = "") -> list[str]:
    return [entry.key for entry in store.list(prefix)]


def test_what_is_put_is_got(store: Store) -> None:
    store.put("a/b.json", b"one")
    store.put("empty", b"")
    store.put("a/b.json", bytearray(b"two"))
    assert store.get("a/b.json") == b"two"
    assert store.get("empty") == b""


def test_opening_the_url_again_gives_the_same_objects(store: Store) -> None:
    store.put("a", b"1")
    assert open_store(store.url, retry_s=20).get("a") == b"1"


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [
        (0, 2, b"01"),
        (3, 2, b"34"),
        (8, None, b"89"),
        (8, 9, b"89"),
        (3, 0, b""),
        (10, 1, b""),
        (99, 5, b""),
        (99, None, b""),
    ],
)
def test_a_range_is_cut_at_the_end_of_the_object(
    store: Store, start: int, length: int | None, expected: bytes
) -> None:
    store.put("digits", b"0123456789")
    assert store.get("digits", start=start, length=length) == expected


def test_an_absent_object_is_named(store: Store) -> None:
    with pytest.raises(NotFoundError, match=r"/no/such does not exist"):
        store.get("no/such")
    with pytest.raises(NotFoundError):
        store.get("no/such", start=3, length=2)


def test_a_folder_is_not_an_object(store: Store) -> None:
    store.put("a/b", b"1")
    with pytest.raises(NotFoundError):
        store.get("a")


def test_a_listing_is_sorted_and_stays_inside_the_folder(store: Store) -> None:
    for key in ["b/2", "b/10", "b.txt", "b-x/1", "a", "b/c/d", "bb/1"]:
        store.put(key, b"12345")
    assert keys(store) == ["a", "b-x/1", "b.txt", "b/10", "b/2", "b/c/d", "bb/1"]
    assert keys(store, "b") == keys(store, "b/") == ["b/10", "b/2", "b/c/d"]
    assert keys(store, "a") == keys(store, "nothing") == []
    (entry,) = store.list("bb")
    assert entry.size == 5
    assert entry.modified_s > 1.7e9


def test_keys_may_hold_any_printable_characters(store: Store) -> None:
    key = "ä b/50% #1?/x+y=z&'(~)"
    store.put(key, b"1")
    assert store.get(key) == b"1"
    assert keys(store) == [key]


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/../../b", "a/./b", "a\0b", "a.writing-1"])
def test_what_is_not_a_key_is_refused(store: Store, key: str) -> None:
    for act in (
        store.get,
        store.delete,
        lambda k: store.put(k, b"1"),
        lambda k: store.open_writer(k).__enter__(),
    ):
        with pytest.raises(StoreError, match="is not a key"):
            act(key)


@pytest.mark.parametrize("prefix", ["..", "/", "a/../..", "/etc"])
def test_a_listing_cannot_climb_out(store: Store, prefix: str) -> None:
    if prefix == "/":
        assert keys(store, prefix) == []
        return
    with pytest.raises(StoreError, match="is not a key"):
        keys(store, prefix)


def test_deleting_twice_is_no_error(store: Store) -> None:
    store.put("a/b/c", b"1")
    store.put("a/d", b"1")
    store.delete("a/b/c")
    store.delete("a/b/c")
    store.delete("never/there")
    assert keys(store) == ["a/d"]


def test_create_only_refuses_a_taken_key_and_keeps_its_content(store: Store) -> None:
    store.put("claim", b"first", if_absent=True)
    with pytest.raises(AlreadyExistsError, match=r"/claim exists already"):
        store.put("claim", b"second", if_absent=True)
    assert store.get("claim") == b"first"


def test_of_eight_creating_at_once_exactly_one_wins(store: Store) -> None:
    def claim(race: int, writer: int) -> int | None:
        try:
            store.put(f"race/{race}", b"%d" % writer, if_absent=True)
        except AlreadyExistsError:
            return None
        return writer

    with ThreadPoolExecutor(8) as pool:
        for race in range(3):
            winners = [who for who in pool.map(claim, [race] * 8, range(8), timeout=60) if who is not None]
            assert len(winners) == 1
            assert store.get(f"race/{race}") == b"%d" % winners[0]


def test_a_large_stream_is_seen_only_when_it_is_whole(store: Store) -> None:
    block = os.urandom(MIB)
    with store.open_writer("large") as writer:
        for number in range(40):
            writer.write(memoryview(block)[number:])
        assert keys(store) == []
        with pytest.raises(NotFoundError):
            store.get("large")
    (entry,) = store.list("")
    assert entry.size == 40 * MIB - sum(range(40))
    assert store.get("large", start=MIB, length=100) == block[1:101]
    assert store.get("large", start=entry.size - 5) == block[-5:]


@pytest.mark.parametrize("blocks", [1, 40])
def test_an_aborted_stream_leaves_what_was_there(store: Store, blocks: int) -> None:
    store.put("kept", b"old")

    def fail() -> Iterator[None]:
        for key in ("kept", "new"):
            with store.open_writer(key) as writer:
                for _ in range(blocks):
                    writer.write(bytes(MIB))
                raise FileNotFoundError("the reader's own file")
            yield

    with pytest.raises(FileNotFoundError, match="own file"):
        next(fail())
    assert keys(store) == ["kept"]
    assert store.get("kept") == b"old"


def test_a_stream_replaces_an_object(store: Store) -> None:
    store.put("a", b"old")
    with store.open_writer("a") as writer:
        writer.write(b"ne")
        writer.write(b"")
        writer.write(b"w")
    assert store.get("a") == b"new"


def test_a_writable_place_is_left_as_it_was(store: Store) -> None:
    check_writable(store.url, "runs")
    assert keys(store) == []

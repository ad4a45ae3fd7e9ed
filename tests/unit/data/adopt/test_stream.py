import hashlib
from pathlib import Path

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrelay.data.adopt import stream as stream_module
from torchrelay.data.adopt.stream import PieceReader, Stream
from torchrelay.store.base import Store
from torchrelay.store.files import FileStore
from torchrelay.store.open import open_store

DATA = bytes(range(256)) * 40


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    opened = FileStore(tmp_path) if request.param == "file" else open_store(f"memory://stream-{tmp_path}")
    opened.put("x", DATA)
    return opened


def test_a_span_is_hashed_whoever_reads_how_much_of_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "PIECE_BYTES", 1000)
    counts: list[int] = []
    for taken in (0, 1, 3, 99):
        stream = Stream(store, "x", 100, 5000, counts.append)
        got = b"".join(piece for piece, _ in zip(stream.pieces(), range(taken), strict=False))
        assert DATA[100:5100].startswith(got)
        assert stream.hashes() == (
            hashlib.sha256(DATA[100:5100]).hexdigest(),
            xxhash.xxh3_128_hexdigest(DATA[100:5100]),
        )
    assert sum(counts) == 4 * 5000


def test_an_object_that_became_shorter_is_named_with_its_byte(store: Store) -> None:
    stream = Stream(store, "x", 0, len(DATA) + 5, lambda count: None)
    with pytest.raises(ValueError, match=rf"it ends at byte {len(DATA):,}; {len(DATA) + 5:,} were there"):
        stream.drain()


def test_a_file_is_given_in_place_and_an_object_as_a_copy(store: Store) -> None:
    stream = Stream(store, "x", 0, len(DATA), lambda count: None)
    with stream.as_file() as path:
        assert path.read_bytes() == DATA
        assert (path == store.local_path("x")) == (store.local_path("x") is not None)
    assert stream.hashes()[0] == hashlib.sha256(DATA).hexdigest()
    assert path.exists() == (store.local_path("x") is not None)


@settings(deadline=None)
@given(
    data=st.binary(max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=8),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=10),
)
def test_a_reader_takes_and_skips_as_if_it_had_one_piece(
    data: bytes, cuts: list[int], steps: list[tuple[bool, int]]
) -> None:
    borders = [0, *sorted(cuts), len(data)]
    pieces = [data[a:b] for a, b in zip(borders, borders[1:], strict=False)]
    whole = b"".join(pieces)
    reader, place = PieceReader(pieces), 0
    for takes, count in steps:
        if takes:
            assert reader.take(count) == whole[place : place + count]
        else:
            assert reader.skip(count) == len(whole[place : place + count])
        place = min(len(whole), place + count)
        assert reader.position == place
    assert b"".join(reader.rest()) == whole[place:]
    assert reader.position == len(whole)

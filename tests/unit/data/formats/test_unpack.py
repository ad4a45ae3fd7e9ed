import gzip
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrelay.core.errors import DataError
from torchrelay.data.formats.unpack import stream_unpacker, unpack

zstandard = importlib.import_module("zstandard")

PACK = {"gzip": gzip.compress, "zstd": zstandard.compress}
DATA = np.random.default_rng(0).integers(0, 5, 300_000, np.uint8).tobytes()


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_file_is_unpacked(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a").write_bytes(PACK[kind](DATA))
    (tmp_path / "b").write_bytes(b"what was there before, and is longer" * 10_000)
    unpack(kind, tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == DATA


@settings(deadline=None)
@given(
    parts=st.lists(st.binary(max_size=300), min_size=1, max_size=4),
    kind=st.sampled_from(["gzip", "zstd"]),
    step=st.integers(1, 400),
)
def test_streams_behind_each_other_are_one(parts: list[bytes], kind: str, step: int) -> None:
    packed = b"".join(map(PACK[kind], parts))
    pieces = [packed[start : start + step] for start in range(0, len(packed), step)]
    assert b"".join(stream_unpacker(kind)(pieces)) == b"".join(parts)


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
@pytest.mark.parametrize("size", [0, 1, 20, 1000, -1])
def test_a_stream_that_is_cut_off_is_named(tmp_path: Path, kind: str, size: int) -> None:
    (tmp_path / "a").write_bytes(PACK[kind](DATA)[:size])
    with pytest.raises(DataError, match=rf"cannot unpack {tmp_path}/a: the {kind} stream is cut off at byte"):
        unpack(kind, tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_stream_that_is_something_else_is_named(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a").write_bytes(DATA)
    with pytest.raises(DataError, match=rf"cannot unpack .*: the {kind} stream is damaged near byte 0"):
        unpack(kind, tmp_path / "a", tmp_path / "b")


def test_what_is_not_packed_passes_through() -> None:
    assert list(stream_unpacker(None)([b"a", b"b"])) == [b"a", b"b"]


@pytest.mark.parametrize(("kind", "package"), [("zstd", "zstandard"), ("arrow", "pyarrow")])
def test_a_missing_package_is_told_with_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(DataError, match=f"needs the package {package}") as caught:
        unpack(kind, tmp_path / "a", tmp_path / "b")
    assert caught.value.hint == "pip install 'torchrelay[data]'"

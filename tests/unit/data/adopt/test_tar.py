import io
import tarfile
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrelay.data.adopt.stream import PieceReader
from torchrelay.data.adopt.tar import walk_tar


def make_tar(files: list[tuple[str, bytes]], *, style: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=style) as tar:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return iter([data[start : start + size] for start in range(0, len(data), size)])


def walk(data: bytes, size: int = 700) -> list[tuple[str, bytes]]:
    return [(m.name, data[m.start : m.start + m.size]) for m in walk_tar(PieceReader(pieces(data, size)))]


@pytest.mark.parametrize("style", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("piece", [1, 511, 512, 5000, 10**6])
def test_every_style_of_tar_is_read_in_pieces_of_any_size(style: int, piece: int) -> None:
    files = [
        ("a.txt", b"one"),
        ("d/" * 60 + "b.txt", b"x" * 513),
        ("empty", b""),
        ("c", bytes(range(256)) * 4),
    ]
    assert walk(make_tar(files, style=style), piece) == files


@pytest.mark.parametrize("style", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_foreign_names_are_whole(style: int) -> None:
    files = [("ü" * 200 + ".jpg", b"1"), ("b.jpg", b"2"), ("=\n7 x=y.jpg", b"3")]
    assert walk(make_tar(files, style=style)) == files


@settings(deadline=None)
@given(st.lists(st.tuples(st.text("ab./é", min_size=1, max_size=150), st.binary(max_size=1200)), max_size=5))
def test_what_tarfile_writes_is_read_back(files: list[tuple[str, bytes]]) -> None:
    names = [(f"x{name}", content) for name, content in files]
    expected = []
    with tarfile.open(fileobj=io.BytesIO(make_tar(names))) as tar:
        for info in tar:
            reader = tar.extractfile(info)
            expected.append((info.name.rstrip("/"), reader.read() if reader else b""))
    assert [(name.rstrip("/"), content) for name, content in walk(make_tar(names))] == expected


def test_folders_and_links_are_no_files() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind in (("folder", tarfile.DIRTYPE), ("soft", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "a"
            tar.addfile(info)
        info = tarfile.TarInfo("a")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"abc"))
    assert walk(out.getvalue()) == [("a", b"abc")]


def test_a_large_size_in_binary_is_understood() -> None:
    data = bytearray(make_tar([("a", b"x" * 700)], style=tarfile.USTAR_FORMAT))
    data[124:136] = b"\x80" + (700).to_bytes(11, "big")
    header = bytes(data[:148]) + b" " * 8 + bytes(data[156:512])
    data[148:156] = f"{sum(header):06o}\0 ".encode()
    assert walk(bytes(data)) == [("a", b"x" * 700)]


FILES = [("a.txt", b"x" * 600), ("b.txt", b"y" * 600)]


@pytest.mark.parametrize("size", [0, 1, 512, 1000, 1536, 1537, 2048, 3071, 3072])
def test_a_tar_that_is_cut_off_anywhere_is_named_with_its_byte(size: int) -> None:
    data = make_tar(FILES)
    with pytest.raises(ValueError, match=f"it is cut off at byte {size:,}"):
        walk(data[:size])


def test_a_damaged_header_is_named_with_its_byte() -> None:
    data = bytearray(make_tar(FILES))
    data[1536 + 3] ^= 1
    with pytest.raises(ValueError, match="there is no tar header at byte 1,536"):
        walk(bytes(data))


def test_tars_behind_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="there are bytes behind its end"):
        walk(make_tar(FILES) + make_tar(FILES))


@pytest.mark.parametrize("content", [b"5 path=x\n", b"nonsense", b"20 path=x\n", b"12 size=12x\n"])
def test_a_damaged_pax_header_is_refused(content: bytes) -> None:
    data = bytearray(make_tar([("n" * 200, b"1")]))
    size = len(content)
    data[124:136] = f"{size:011o}\0".encode()
    header = bytes(data[:148]) + b" " * 8 + bytes(data[156:512])
    data[148:156] = f"{sum(header):06o}\0 ".encode()
    data[512 : 512 + size] = content
    with pytest.raises(ValueError, match="pax header at byte 0 is damaged|no tar header"):
        walk(bytes(data))

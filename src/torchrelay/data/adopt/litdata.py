"""LitData folders: an `index.json` and chunks of samples or tokens; see `formats.litdata`."""

import json
import mmap
import struct
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchrelay.core.errors import DataError
from torchrelay.data.adopt.columns import merge_columns
from torchrelay.data.adopt.index_json import IndexFile, check_size, read_index_file
from torchrelay.data.adopt.plan import Found, Plan, Scanned, TokenFacts, Work
from torchrelay.data.adopt.rows import PICTURE_BYTES, RowScan, picture_dtype
from torchrelay.data.adopt.stream import PieceReader, Stream
from torchrelay.data.adopt.token_scan import TOKEN_DTYPES, TokenScan
from torchrelay.data.formats.arrow import read_batches
from torchrelay.data.formats.litdata import (
    ROWS_TAIL_BYTES,
    find_leaf,
    find_rows,
    parse_array_head,
    write_leaves,
)
from torchrelay.data.formats.unpack import stream_unpacker
from torchrelay.data.manifest import TOKEN_BYTES, Column, TokenDtype

_ARRAYS = ("tensor", "numpy")
_ARRAY_HEAD_BYTES = 8 + 4 * 32


class _Chunk(NamedTuple):
    """One chunk as the index tells it."""

    key: str
    items: int
    raw_bytes: int
    tokens: int


class _Layout(NamedTuple):
    """What is true of all chunks of a folder."""

    leaves: list[tuple[str, str]]
    """Name and encoding of every leaf of a sample."""
    token_dtype: TokenDtype | None
    """Of chunks of tokens; None for samples."""
    compressed: bool


def plan_litdata(found: Found, facts: TokenFacts) -> Plan:
    """The chunks of every split; DataError when one is missing or of another size, or is not read here."""
    works: list[Work] = []
    layouts: list[tuple[str, _Layout]] = []
    for split, keys in found.splits.items():
        for key in keys:
            index = read_index_file(found.store, key)
            try:
                layout = _read_layout(index.tree["config"])
                chunks = [_read_chunk(index, tree) for tree in index.tree["chunks"]]
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise DataError(f"{index.where}: {_describe(error)}") from error
            layouts.append((index.where, layout))
            works += _works(found, index, split, layout, chunks, facts)
    other = next(((where, layout) for where, layout in layouts if layout[:2] != layouts[0][1][:2]), None)
    if other is not None:
        raise DataError(f"{other[0]} tells of other data than {layouts[0][0]}")
    return Plan(format="litdata", works=works, token_dtype=layouts[0][1].token_dtype)


def scan_samples(stream: Stream, chunk: _Chunk, layout: _Layout) -> Scanned:
    """Check every item of a chunk; ValueError that names the first which is damaged."""
    rows = find_rows(stream.tail(ROWS_TAIL_BYTES), stream.length)
    if rows is not None:
        return scan_rows(stream, chunk, rows)
    reader, offsets = _open(stream, chunk, layout)
    columns: tuple[Column, ...] | None = None
    for number, (start, stop) in enumerate(zip(offsets, offsets[1:], strict=False)):
        try:
            found = _read_item(reader, layout.leaves, int(start), int(stop))
            columns = found if columns is None else merge_columns(columns, found)
        except ValueError as error:
            raise ValueError(f"item {number:,} at byte {int(start):,}: {error}") from error
    if any(True for _ in reader.rest()):
        raise ValueError(f"there are bytes behind its last item, at byte {chunk.raw_bytes:,}")
    return Scanned(
        samples=chunk.items,
        columns=columns or (),
        index=write_leaves(layout.leaves),
        unpack="zstd" if layout.compressed else None,
        unpacked_bytes=chunk.raw_bytes if layout.compressed else 0,
    )


def scan_rows(stream: Stream, chunk: _Chunk, place: slice) -> Scanned:
    """Check the rows of a chunk that holds an Arrow file."""
    rows = RowScan()
    with stream.as_file() as path, path.open("rb") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        for batch in read_batches(view[place]):
            rows.feed(batch)
    if rows.count != chunk.items:
        raise ValueError(f"it has {rows.count:,} rows, its index says {chunk.items:,}")
    return Scanned(samples=rows.count, columns=rows.columns())


def scan_tokens(
    stream: Stream, chunk: _Chunk, layout: _Layout, dtype: TokenDtype, facts: TokenFacts
) -> Scanned:
    """Check the tokens of a chunk, each item of which is a document."""
    reader, offsets = _open(stream, chunk, layout)
    ends = (offsets[1:].astype(np.int64) - int(offsets[0])) // TOKEN_BYTES[dtype]
    lengths = np.diff(ends, prepend=0)
    kept = ends[lengths > 0]
    if not kept.size or int(kept[-1]) != chunk.tokens:
        raise ValueError(f"it holds {int(ends.max(initial=0)):,} tokens, its index says {chunk.tokens:,}")
    scan = TokenScan(dtype, kept, facts)
    for piece in reader.rest():
        scan.feed(piece)
    return Scanned(
        samples=len(kept),
        tokens=chunk.tokens,
        longest=int(lengths.max()),
        highest=scan.highest,
        skipped=len(ends) - len(kept),
        unpack="zstd" if layout.compressed else None,
        unpacked_bytes=chunk.raw_bytes if layout.compressed else 0,
    )


def _works(
    found: Found, index: IndexFile, split: str, layout: _Layout, chunks: list[_Chunk], facts: TokenFacts
) -> Iterator[Work]:
    for chunk in chunks:
        if not layout.compressed:
            check_size(found, index, chunk.key, chunk.raw_bytes)
        elif chunk.key not in found.sizes:
            raise DataError(f"{found.store.url}/{chunk.key} is missing; {index.where} names it")
        scan = partial(scan_samples, chunk=chunk, layout=layout)
        if layout.token_dtype is not None:
            scan = partial(scan_tokens, chunk=chunk, layout=layout, dtype=layout.token_dtype, facts=facts)
        yield Work(split, chunk.key, 0, found.sizes[chunk.key], scan)


def _open(stream: Stream, chunk: _Chunk, layout: _Layout) -> tuple[PieceReader, NDArray[np.uint32]]:
    """A reader at the first item, and where the items begin."""
    reader = PieceReader(stream_unpacker("zstd" if layout.compressed else None)(stream.pieces()))
    items = int.from_bytes(reader.take(4), "little")
    if items != chunk.items:
        raise ValueError(f"it has {items:,} items, its index says {chunk.items:,}")
    offsets = np.frombuffer(reader.take(4 * (items + 1)), "<u4")
    if len(offsets) != items + 1 or int(offsets[0]) != reader.position or (offsets[1:] < offsets[:-1]).any():
        raise ValueError(f"the offsets of its {items:,} items are damaged")
    if int(offsets[-1]) != chunk.raw_bytes:
        raise ValueError(f"its items end at byte {int(offsets[-1]):,}, its index says {chunk.raw_bytes:,}")
    return reader, offsets


def _read_item(
    reader: PieceReader, leaves: list[tuple[str, str]], start: int, stop: int
) -> tuple[Column, ...]:
    """The columns of the next item, as far as it tells them itself."""
    head = reader.take(4 * len(leaves))
    sizes = struct.unpack(f"<{len(leaves)}I", head) if len(head) == 4 * len(leaves) else ()
    if len(head) + sum(sizes) != stop - start:
        raise ValueError(f"its leaves do not fill its {stop - start:,} bytes")
    columns = []
    for (name, encoding), size in zip(leaves, sizes, strict=True):
        leaf = find_leaf(encoding)
        dtype, shape, after = leaf.dtype, leaf.shape, size
        if encoding in _ARRAYS:
            array = reader.take(min(size, _ARRAY_HEAD_BYTES))
            dtype, shape, _ = parse_array_head(encoding, memoryview(array))
            after -= len(array)
        elif encoding == "json":
            leaf.decode(memoryview(reader.take(size)))
            after = 0
        elif encoding == "bytes":
            head = reader.take(min(size, PICTURE_BYTES))
            dtype = picture_dtype(head)
            after -= len(head)
        if reader.skip(after) < after:
            raise ValueError(f"it is cut off at byte {reader.position:,}")
        columns.append(Column(name=name, dtype=dtype or "bytes", shape=shape))
    return tuple(columns)


def _read_layout(config: dict[str, Any]) -> _Layout:
    encodings = [str(encoding) for encoding in config["data_format"]]
    if config.get("encryption"):
        raise ValueError("the chunks are encrypted, which is not read")
    if config.get("ipc_compression"):
        raise ValueError(
            f"rows that are compressed with {config['ipc_compression']} inside their chunk are not read; "
            "write them without compression"
        )
    level = config.get("compression_level")
    compression = str(config.get("compression") or "").partition(":")[0]
    if compression not in ("", "zstd") or level not in (None, "chunk"):
        raise ValueError(
            f"chunks with the compression {compression!r} of every {level or 'chunk'} are not read; "
            "write them with compression_level='chunk', or without"
        )
    if config.get("item_loader") == "TokensLoader":
        return _Layout([], _token_dtype(encodings), bool(compression))
    names = [*_leaf_names(json.loads(config["data_spec"])[1], "")]
    for name, encoding in zip(names, encodings, strict=True):
        _check_encoding(name, encoding)
    return _Layout([*zip(names, encodings, strict=True)], None, bool(compression))


def _check_encoding(name: str, encoding: str) -> None:
    if encoding == "pickle":
        raise ValueError(
            f"{name!r} is a pickle, which could run any code when it is read; write it as numbers, text "
            "or bytes"
        )
    try:
        find_leaf(encoding)
    except ValueError as error:
        raise ValueError(f"{name!r}: {error}") from error


def _token_dtype(encodings: list[str]) -> TokenDtype:
    dtype = find_leaf(encodings[0]).dtype if len(encodings) == 1 else None
    if dtype not in TOKEN_DTYPES:
        raise ValueError(f"tokens of {', '.join(encodings)} are not read")
    return TOKEN_DTYPES[dtype]


def _leaf_names(spec: dict[str, Any], prefix: str) -> Iterator[str]:
    """Names of the leaves in stored order: `a.b` for what lies in a dict in a dict, numbers in a list."""
    children = spec["children_spec"]
    if not children:
        yield prefix or "value"
        return
    context = json.loads(spec["context"]) if spec["type"] == "builtins.dict" else None
    for number, child in enumerate(children):
        name = str(number if context is None else context[number])
        yield from _leaf_names(child, f"{prefix}.{name}" if prefix else name)


def _read_chunk(index: IndexFile, tree: dict[str, Any]) -> _Chunk:
    return _Chunk(
        index.key(tree["filename"]), int(tree["chunk_size"]), int(tree["chunk_bytes"]), int(tree["dim"] or 0)
    )


def _describe(error: Exception) -> str:
    return f"there is no {error}" if isinstance(error, KeyError) else str(error)

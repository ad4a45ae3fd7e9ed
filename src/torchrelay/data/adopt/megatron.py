"""Megatron's `.bin` and `.idx`: documents of tokens, cut into spans that are read as shards."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchrelay.core.errors import DataError
from torchrelay.data.adopt.plan import Found, Plan, Scanned, TokenFacts, Work
from torchrelay.data.adopt.stream import Stream
from torchrelay.data.adopt.token_scan import TOKEN_DTYPES, TokenScan
from torchrelay.data.formats.megatron import write_ends
from torchrelay.data.manifest import TOKEN_BYTES, TokenDtype
from torchrelay.store.base import Store

SUFFIXES = (".idx",)
SPAN_BYTES = 64 * 2**20
"""Most bytes of a shard; it ends with a document where it can."""

_MAGIC = b"MMIDIDX\x00\x00"
_VERSION = 1
_HEAD_BYTES = 34
_DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16",
}  # fmt: skip

Ends = NDArray[np.int64]


class _Span(NamedTuple):
    """Tokens [start, stop) of a file."""

    start: int
    stop: int
    ends: Ends
    """Of the documents that end in it, counted from its start."""
    longest: int
    continues: bool


class _Documents(NamedTuple):
    """What an `.idx` tells."""

    dtype: TokenDtype
    ends: Ends
    """Tokens from the start of the file to the end of every document that has one."""
    empty: int


def plan_megatron(found: Found, facts: TokenFacts) -> Plan:
    """The spans of every `.bin`; DataError when an `.idx` is damaged or does not fit its `.bin`."""
    works: list[Work] = []
    dtypes: dict[TokenDtype, str] = {}
    for split, keys in found.splits.items():
        for key in keys:
            documents = _read_documents(found, key)
            dtypes[documents.dtype] = key
            works += _works(split, key, documents, facts)
    if len(dtypes) > 1:
        told = ", ".join(f"{dtype} in {key}" for dtype, key in dtypes.items())
        raise DataError(f"the files hold tokens of different types: {told}", hint="adopt them one by one")
    return Plan(format="megatron", works=works, token_dtype=next(iter(dtypes)))


def cut_spans(ends: Ends, most: int) -> Iterator[_Span]:
    """Spans of at most `most` tokens that cover all documents; only a longer document is cut."""
    start, first, document = 0, 0, 0  # of the span, its first document end, the document that goes on
    while first < len(ends):
        # The last document that fits whole; if there is none, the document is cut.
        last = int(np.searchsorted(ends, start + most, side="right"))
        stop = int(ends[last - 1]) if last > first else start + most
        inside = ends[first:last]
        longest = int(np.diff(inside, prepend=document).max(initial=0))
        yield _Span(start, stop, inside - start, longest, continues=document < start)
        document = int(inside[-1]) if inside.size else document
        start, first = stop, last


def scan_span(stream: Stream, dtype: TokenDtype, span: _Span, facts: TokenFacts, skipped: int) -> Scanned:
    """Check the tokens of a span; ValueError that names the first which cannot be one."""
    scan = TokenScan(dtype, span.ends, facts)
    for piece in stream.pieces():
        scan.feed(piece)
    return Scanned(
        samples=len(span.ends),
        tokens=span.stop - span.start,
        longest=span.longest,
        continues=span.continues,
        index=write_ends(span.ends),
        highest=scan.highest,
        skipped=skipped,
    )


def _works(split: str, key: str, documents: _Documents, facts: TokenFacts) -> Iterator[Work]:
    width = TOKEN_BYTES[documents.dtype]
    for number, span in enumerate(cut_spans(documents.ends, SPAN_BYTES // width)):
        skipped = 0 if number else documents.empty
        scan = partial(scan_span, dtype=documents.dtype, span=span, facts=facts, skipped=skipped)
        length = (span.stop - span.start) * width
        yield Work(split, _bin_key(key), span.start * width, length, scan)


def _read_documents(found: Found, key: str) -> _Documents:
    where = f"{found.store.url}/{key}"
    head = found.store.get(key, length=_HEAD_BYTES)
    if len(head) < _HEAD_BYTES or head[:9] != _MAGIC:
        raise DataError(f"{where} is no index of Megatron: it begins with {head[:9]!r}")
    version = int.from_bytes(head[9:17], "little")
    if version != _VERSION:
        raise DataError(f"{where} is of version {version}; this torchrelay reads version {_VERSION}")
    name = _DTYPES.get(head[17], f"the unknown type {head[17]}")
    if name not in TOKEN_DTYPES:
        raise DataError(
            f"{where} holds values of {name}; tokens are {', '.join(sorted(TOKEN_DTYPES))}",
            hint="build the dataset from its text, or write it again with another type",
        )
    dtype = TOKEN_DTYPES[name]
    ends = _read_ends(found.store, key, head, TOKEN_BYTES[dtype], where)
    _check_bin(found, key, int(ends[-1]) * TOKEN_BYTES[dtype])
    kept = ends[np.diff(ends, prepend=0) > 0]
    return _Documents(dtype, kept, len(ends) - len(kept))


def _read_ends(store: Store, key: str, head: bytes, width: int, where: str) -> Ends:
    """Where the documents end, in tokens; DataError when the index contradicts itself."""
    sequences, borders = (int.from_bytes(head[at : at + 8], "little") for at in (18, 26))
    wanted = 12 * sequences + 8 * borders
    body = store.get(key, start=_HEAD_BYTES, length=wanted)
    if len(body) < wanted:
        raise DataError(
            f"{where} is cut off at byte {_HEAD_BYTES + len(body):,}: {sequences:,} sequences and "
            f"{borders:,} document borders need {_HEAD_BYTES + wanted:,}"
        )
    lengths = np.frombuffer(body, "<i4", sequences)
    pointers = np.frombuffer(body, "<i8", sequences, 4 * sequences)
    documents = np.frombuffer(body, "<i8", borders, 12 * sequences)
    ends = np.cumsum(lengths, dtype=np.int64)
    if (lengths < 0).any() or not np.array_equal(pointers, (ends - lengths) * width):
        raise DataError(f"{where}: its sequences do not follow each other without a gap")
    if borders < 2 or documents[0] != 0 or documents[-1] != sequences or (np.diff(documents) < 0).any():
        raise DataError(f"{where}: its documents do not cover its {sequences:,} sequences")
    if not ends[-1:].any():
        raise DataError(f"{where}: there is no token in it")
    found: Ends = np.concatenate([[0], ends])[documents[1:]]
    return found


def _check_bin(found: Found, key: str, wanted: int) -> None:
    data = _bin_key(key)
    size = found.sizes.get(data)
    if size is None:
        raise DataError(f"{found.store.url}/{data} is missing; {key} describes it")
    if size != wanted:
        raise DataError(f"{found.store.url}/{data} has {size:,} bytes, {key} tells of {wanted:,}")


def _bin_key(key: str) -> str:
    return key.removesuffix(".idx") + ".bin"

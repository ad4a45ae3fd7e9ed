"""The shard of tokens that `data build` writes.

tokens        little-endian u16 or u32, from byte 0, filled with zeros to a multiple of 8 bytes
ends          u64 [documents]: position after each document's end mark
ids           u64 [documents]: hash by which each document was put into its split
labels        i32 [documents], only where documents have labels
pack order    u32 [documents]: the documents of pack after pack, only where packs were planned
pack ends     u32 [packs]: place in the pack order after each pack's last document
trailer       JSON: format, token_dtype, tokens, documents, labels, packs, continues
last 12 bytes u32 length of the trailer, then the magic
"""

import json
import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchrelay.data.manifest import TOKEN_BYTES, ShardEntry, TokenDtype
from torchrelay.store.base import Buffer

MAGIC = b"RELAYTOK"
FORMAT = 2

_NUMPY_TYPES: dict[str, str] = {"u8": "|u1", "u16": "<u2", "u32": "<u4", "i32": "<i4", "i64": "<i8"}
_TAIL = struct.Struct("<I8s")


class Packs(NamedTuple):
    """Which documents of a shard are read together; see `build.packing`."""

    order: NDArray[np.uint32]
    """Documents, pack after pack, [documents]."""
    ends: NDArray[np.uint32]
    """Place in `order` after each pack's last document, [packs]."""


class TokenShard(NamedTuple):
    """The arrays of one shard, read-only views of its bytes."""

    tokens: NDArray[np.integer[Any]]
    """[tokens], of the manifest's type."""
    ends: NDArray[np.uint64]
    """Position after the end mark of every document that ends here, [documents]."""
    ids: NDArray[np.uint64] | None
    """Hash by which each of those documents was put into its split; None where the format has none."""
    labels: NDArray[np.int32] | None
    """Class of each of those documents, or None where documents have no label."""
    packs: Packs | None
    """None where none were planned."""
    continues: bool
    """Whether the first tokens belong to a document that began in the shard before."""


class Footer(NamedTuple):
    """What stands behind the tokens; see TokenShard for the arrays."""

    tokens: int
    token_dtype: TokenDtype
    ends: NDArray[np.uint64]
    ids: NDArray[np.uint64]
    labels: NDArray[np.int32] | None
    packs: Packs | None
    continues: bool


def numpy_type(token_dtype: TokenDtype) -> "np.dtype[np.integer[Any]]":
    """How numpy names the type of a token in a file."""
    return np.dtype(_NUMPY_TYPES[token_dtype])


def encode_footer(footer: Footer) -> bytes:
    """All bytes that follow the tokens, the zeros in between included."""
    trailer = {
        "format": FORMAT,
        "token_dtype": footer.token_dtype,
        "tokens": footer.tokens,
        "documents": len(footer.ends),
        "labels": footer.labels is not None,
        "packs": None if footer.packs is None else len(footer.packs.ends),
        "continues": footer.continues,
    }
    text = json.dumps(trailer, sort_keys=True).encode()
    packs = () if footer.packs is None else footer.packs
    parts = [
        bytes(-footer.tokens * TOKEN_BYTES[footer.token_dtype] % 8),
        footer.ends.astype("<u8").tobytes(),
        footer.ids.astype("<u8").tobytes(),
        b"" if footer.labels is None else footer.labels.astype("<i4").tobytes(),
        *(part.astype("<u4").tobytes() for part in packs),
        text,
        _TAIL.pack(len(text), MAGIC),
    ]
    return b"".join(parts)


def footer_start(tokens: int, token_dtype: TokenDtype) -> int:
    """Byte at which the footer begins."""
    return -(-tokens * TOKEN_BYTES[token_dtype] // 8) * 8


def parse_footer(tail: Buffer) -> Footer:
    """The footer in the bytes from `footer_start` on; ValueError that says what is wrong."""
    view = memoryview(tail)
    trailer, stop = _parse_trailer(view)
    documents, num_packs = trailer["documents"], trailer["packs"]
    labels = documents if trailer["labels"] else 0
    order = 0 if num_packs is None else documents
    expected = 16 * documents + 4 * (labels + order + (num_packs or 0))
    if stop != expected:
        raise ValueError(f"{documents} documents need {expected} bytes of footer, there are {stop}")
    packs_at = 16 * documents + 4 * labels
    packs = None
    if num_packs is not None:
        ends = np.frombuffer(view, "<u4", num_packs, packs_at + 4 * order)
        packs = Packs(np.frombuffer(view, "<u4", order, packs_at), ends)
    return Footer(
        tokens=trailer["tokens"],
        token_dtype=trailer["token_dtype"],
        ends=np.frombuffer(view, "<u8", documents),
        ids=np.frombuffer(view, "<u8", documents, 8 * documents),
        labels=np.frombuffer(view, "<i4", documents, 16 * documents) if labels or trailer["labels"] else None,
        packs=packs,
        continues=trailer["continues"],
    )


def open_tok(data: Buffer, entry: ShardEntry, token_dtype: TokenDtype) -> TokenShard:
    """The arrays of a shard whose bytes are `data`; ValueError that says what does not fit its entry."""
    footer = parse_footer(memoryview(data)[footer_start(entry.tokens, token_dtype) :])
    num_packs = 0 if footer.packs is None else len(footer.packs.ends)
    told = (entry.tokens, entry.samples, entry.packs, entry.continues, token_dtype)
    found = (footer.tokens, len(footer.ends), num_packs, footer.continues, footer.token_dtype)
    if told != found:
        raise ValueError(
            f"its trailer tells {found}, the manifest {told} (tokens, documents, packs, continues, type)"
        )
    tokens = np.frombuffer(data, numpy_type(token_dtype), entry.tokens)
    return TokenShard(tokens, footer.ends, footer.ids, footer.labels, footer.packs, footer.continues)


def _parse_trailer(view: memoryview) -> tuple[dict[str, Any], int]:
    """The trailer, and the bytes that stand before it."""
    if len(view) < _TAIL.size:
        raise ValueError(f"only {len(view)} bytes stand behind the tokens")
    length, magic = _TAIL.unpack(view[-_TAIL.size :])
    if magic != MAGIC:
        raise ValueError(f"it ends with {magic!r}, not with {MAGIC!r}")
    stop = len(view) - _TAIL.size - length
    if stop < 0:
        raise ValueError(f"a trailer of {length} bytes does not fit")
    trailer: dict[str, Any] = json.loads(bytes(view[stop : len(view) - _TAIL.size]))
    if trailer["format"] != FORMAT or trailer["token_dtype"] not in _NUMPY_TYPES:
        raise ValueError(f"unknown format {trailer['format']!r} of {trailer['token_dtype']!r}")
    return trailer, stop

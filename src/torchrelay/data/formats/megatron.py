"""Megatron's `.bin`: the tokens of all documents behind each other, nothing else.

A shard is a span of the file that begins and ends with a document where it can. Its index file
(`index_file`) tells where the documents end:

header   {"format": "megatron"}
numbers  u64 [documents]: tokens from the start of the span to the end of each document that ends in it
"""

import numpy as np
from numpy.typing import NDArray

from torchrelay.data.formats.index_file import parse_index, write_index
from torchrelay.data.formats.tok import TokenShard, numpy_type
from torchrelay.data.manifest import ShardEntry, TokenDtype

FORMAT = "megatron"


def write_ends(ends: NDArray[np.int64]) -> bytes:
    """The index file of a span; see the module."""
    return write_index({"format": FORMAT}, ends.astype(np.uint64))


def open_megatron(data: memoryview, entry: ShardEntry, index: bytes | None, dtype: TokenDtype) -> TokenShard:
    """The arrays of a span whose bytes are `data`; ValueError that says what does not fit its entry."""
    header, ends = parse_index(index)
    if header["format"] != FORMAT or ends.size != entry.samples:
        raise ValueError(f"its index file is one of {header['format']} with {ends.size} documents")
    tokens = np.frombuffer(data, numpy_type(dtype))
    if tokens.size != entry.tokens or (ends.size and int(ends[-1]) > tokens.size):
        raise ValueError(f"it holds {tokens.size:,} tokens, the manifest says {entry.tokens:,}")
    return TokenShard(tokens, ends, None, None, None, entry.continues)

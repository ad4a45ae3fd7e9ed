"""Checks the ids of a stream of tokens, piece by piece."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchrelay.data.adopt.plan import TokenFacts
from torchrelay.data.formats.tok import numpy_type
from torchrelay.data.manifest import TokenDtype

TOKEN_DTYPES: dict[str, TokenDtype] = {
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "int32": "i32", "int64": "i64",
}  # fmt: skip
"""Numpy types in which a dataset may keep tokens."""


class TokenScan:
    """Finds the highest id; ValueError at one that is negative, too high, or no end mark at an end."""

    def __init__(self, dtype: TokenDtype, ends: NDArray[np.int64], facts: TokenFacts) -> None:
        """`ends` are the positions after the documents, ascending."""
        self.highest = -1
        self._dtype = numpy_type(dtype)
        self._ends = ends
        self._facts = facts
        self._done = 0
        """Tokens seen."""
        self._left = b""

    def feed(self, piece: bytes | memoryview) -> None:
        """Take in the bytes that follow; a token may lie across two pieces."""
        data = self._left + piece if self._left else piece
        count = len(data) // self._dtype.itemsize
        self._left = bytes(data[count * self._dtype.itemsize :])
        tokens = np.frombuffer(data, self._dtype, count)
        if count:
            self._check_range(tokens)
            if self._facts.end_token is not None:
                self._check_ends(tokens, self._facts.end_token)
        self._done += count

    def _check_range(self, tokens: NDArray[np.integer[Any]]) -> None:
        lowest, highest = int(tokens.min()), int(tokens.max())
        limit = self._facts.vocabulary
        if lowest < 0 or (limit is not None and highest >= limit):
            bad = lowest if lowest < 0 else highest
            place = self._done + int((tokens == bad).argmax())
            known = "" if limit is None else f", the vocabulary has {limit:,}"
            raise ValueError(f"token {place:,} (byte {place * self._dtype.itemsize:,}) is {bad:,}{known}")
        self.highest = max(self.highest, highest)

    def _check_ends(self, tokens: NDArray[np.integer[Any]], end_token: int) -> None:
        first, stop = np.searchsorted(self._ends, [self._done + 1, self._done + len(tokens) + 1])
        places = self._ends[first:stop] - 1 - self._done
        wrong = np.flatnonzero(tokens[places] != end_token)
        if wrong.size:
            token = int(tokens[places[wrong[0]]])
            raise ValueError(
                f"document {int(first + wrong[0]):,} ends with token {token:,}, "
                f"not with the end mark {end_token:,}"
            )

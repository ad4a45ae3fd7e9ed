"""How long the documents of a shard are, without fetching its tokens."""

import threading
from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchrelay.core.errors import DataError
from torchrelay.data.formats.tok import TokenShard, footer_start, parse_footer
from torchrelay.data.manifest import Content
from torchrelay.data.open_shards import OpenShards
from torchrelay.data.order.order import Located
from torchrelay.data.readings.rows import Ints

MOST_REMEMBERED = 8_000_000
"""Documents whose lengths are kept: 32 MB."""


class DocumentLengths:
    """Tokens of every document with its end mark, by shard. Thread-safe."""

    def __init__(self, shards: OpenShards[TokenShard], content: Content) -> None:
        self._shards = shards
        self._content = content
        self._known: OrderedDict[int, NDArray[np.int32]] = OrderedDict()
        self._lock = threading.Lock()

    def located(self, located: Located) -> Ints:
        """Tokens of each sample, int64 [samples]; 0 for a place without one."""
        found = np.zeros(located.indexes.size, np.int64)
        for shard in np.unique(located.shards[located.indexes >= 0]).tolist():
            chosen = (located.shards == shard) & (located.indexes >= 0)
            found[chosen] = self.shard(shard)[located.indexes[chosen]]
        return found

    def shard(self, number: int) -> NDArray[np.int32]:
        """Tokens of each document that ends in the shard, int32 [documents]."""
        with self._lock:
            known = self._known.get(number)
            if known is None:
                known = np.diff(self._ends(number).astype(np.int64), prepend=0).astype(np.int32)
                self._known[number] = known
                self._forget()
            self._known.move_to_end(number)
        return known

    def _ends(self, number: int) -> NDArray[Any]:
        entry, dtype = self._shards.entries[number], self._content.token_dtype
        if self._content.format != "tok" or dtype is None:
            return self._shards.shard(number).ends
        try:
            return parse_footer(self._shards.source.tail(entry, footer_start(entry.tokens, dtype))).ends
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"shard {entry.key} is damaged: {error}") from error

    def _forget(self) -> None:
        """Drop what was not asked for the longest; at least one shard stays."""
        kept = sum(lengths.size for lengths in self._known.values())
        while kept > MOST_REMEMBERED and len(self._known) > 1:
            kept -= self._known.popitem(last=False)[1].size

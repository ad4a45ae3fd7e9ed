"""Shards of tokens written from plain lists, for tests that read them."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from torchrelay.data.build.shard_plan import Position, ShardPlanner
from torchrelay.data.build.staging import StagedSplit, Table
from torchrelay.data.build.token_shard import ShardSettings, collect_tokens, write_shard
from torchrelay.data.formats.tok import TokenShard, numpy_type, open_tok
from torchrelay.data.manifest import TOKEN_BYTES, ShardEntry, TokenDtype
from torchrelay.store.base import Store


class StagedInMemory:
    """Stands for a `StagedSplit` whose documents are lists of tokens that end with `end_token`."""

    def __init__(
        self,
        documents: Sequence[Sequence[int]],
        end_token: int,
        token_dtype: TokenDtype = "u16",
        labels: Sequence[int] | None = None,
    ) -> None:
        sizes = [len(document) + 1 for document in documents]
        count = len(sizes)
        self.table = Table(
            np.array(sizes, np.int64),
            np.array([3 * (size - 1) for size in sizes], np.int64),
            np.arange(count, dtype=np.uint64),
            np.array(labels or [0] * count, np.int32),
            np.ones(count, np.bool_),
        )
        tokens = [token for document in documents for token in (*document, end_token)]
        self._payload = np.array(tokens, numpy_type(token_dtype)).tobytes()

    def payload(self, start: int, stop: int) -> bytes:
        """See `StagedSplit.payload`."""
        return self._payload[start:stop]


def write_tokens(
    store: Store,
    documents: Sequence[Sequence[int]],
    *,
    folder: str = "f",
    end_token: int = 999,
    shard_bytes: int = 40,
    token_dtype: TokenDtype = "u16",
    labels: Sequence[int] | None = None,
    pack_length: int | None = None,
) -> tuple[ShardEntry, ...]:
    """The entries of shards of at most `shard_bytes` bytes of tokens.

    Ids count from 0; every token stands for 3 bytes of text.
    """
    staged = StagedInMemory(documents, end_token, token_dtype, labels)
    planner = ShardPlanner("train", shard_bytes // TOKEN_BYTES[token_dtype], Position(), cuts=True)
    plans = [*planner.add(0, staged.table.sizes, staged.table.is_last), *planner.close()]
    settings = ShardSettings(token_dtype=token_dtype, labelled=labels is not None, pack_length=pack_length)
    parts = cast("list[StagedSplit]", [staged])
    return tuple(
        write_shard(collect_tokens(plan, parts, token_dtype), settings, store, folder) for plan in plans
    )


def read_shard(
    store: Store, entry: ShardEntry, folder: str = "f", token_dtype: TokenDtype = "u16"
) -> TokenShard:
    """One shard, opened without a check of its hashes."""
    data: Any = store.get(f"{folder}/{entry.key}")
    return open_tok(data, entry, token_dtype)

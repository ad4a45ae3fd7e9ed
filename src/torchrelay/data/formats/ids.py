"""The ids by which documents or samples were put into their split, read without the rest of a shard."""

import numpy as np
from numpy.typing import NDArray

from torchrelay.core.errors import DataError
from torchrelay.data.formats.mds import parse_tail, tail_start
from torchrelay.data.formats.tok import footer_start, parse_footer
from torchrelay.data.manifest import Content, ShardEntry
from torchrelay.data.shard_bytes import ShardBytes


def read_ids(source: ShardBytes, entry: ShardEntry, content: Content) -> NDArray[np.uint64] | None:
    """The u64 id of every document that ends in the shard, or of every sample, in stored order.

    None where the format keeps none, as in data that was adopted. DataError when the shard is damaged.
    """
    if entry.unpack is not None:
        return None
    try:
        if content.format == "tok" and content.token_dtype is not None:
            return parse_footer(source.tail(entry, footer_start(entry.tokens, content.token_dtype))).ids
        if content.format == "mds" and tail_start(entry) >= 0:
            return parse_tail(source.tail(entry, tail_start(entry)), entry.samples)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"shard {entry.key} is damaged: {error}", hint="torchrelay data verify lists all that is damaged"
        ) from error
    return None

"""How much disk a shard needs. Pure."""

from torchrelay.data.manifest import ShardEntry

CHECK_BYTES = 16
"""xxh3_128 behind the bytes of a shard that was unpacked here: what it is depends on a library."""


def room_for(entry: ShardEntry) -> int:
    """Bytes kept free for a shard while it is fetched; an unpacked size is only about right."""
    if entry.unpack is None:
        return entry.bytes
    unpacked = entry.unpacked_bytes or 4 * entry.bytes
    return entry.bytes + unpacked + unpacked // 20 + CHECK_BYTES

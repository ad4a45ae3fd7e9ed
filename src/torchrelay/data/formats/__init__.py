"""How the bytes of a shard become samples, one file a format."""

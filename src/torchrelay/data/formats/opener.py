"""Which function reads a dataset's shards. What a format needs is imported only when it is used."""

from torchrelay.data.formats.sample import SampleShard
from torchrelay.data.formats.tok import TokenShard, open_tok
from torchrelay.data.manifest import Content, ShardEntry
from torchrelay.data.open_shards import Decode


def token_opener(content: Content) -> Decode[TokenShard]:
    """How a dataset of tokens is opened."""
    dtype = content.token_dtype
    if dtype is None:
        raise ValueError("not a dataset of tokens")
    if content.format == "megatron":
        from torchrelay.data.formats.megatron import open_megatron

        return lambda data, entry, index: open_megatron(data, entry, index, dtype)
    if content.format == "litdata":
        from torchrelay.data.formats.litdata import open_litdata_tokens

        return lambda data, entry, index: open_litdata_tokens(data, entry, dtype)
    return lambda data, entry, index: open_tok(data, entry, dtype)


def sample_opener(content: Content) -> Decode[SampleShard]:
    """How a dataset of samples is opened."""
    return lambda data, entry, index: _open_samples(content, data, entry, index)


def _open_samples(content: Content, data: memoryview, entry: ShardEntry, index: bytes | None) -> SampleShard:
    if content.format == "webdataset":
        from torchrelay.data.formats.webdataset import open_webdataset

        return open_webdataset(data, entry, index)
    if content.format == "parquet":
        from torchrelay.data.formats.arrow import open_arrow

        return open_arrow(data, content.columns)
    if content.format == "litdata":
        from torchrelay.data.formats.litdata import open_litdata

        return open_litdata(data, entry, index)
    from torchrelay.data.formats.mds import open_mds

    return open_mds(data, entry, content.columns)

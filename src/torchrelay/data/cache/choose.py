"""How the shards of a dataset are reached from here."""

from torchrelay.data.cache.fetched import FetchedBytes
from torchrelay.data.dataset import Dataset
from torchrelay.data.shard_bytes import LocalBytes, ShardBytes, join_key


def open_bytes(dataset: Dataset) -> ShardBytes:
    """Files of this machine are mapped; everything else is fetched."""
    store, folder = dataset.shard_place()
    local = store.local_path(join_key(folder, "x")) is not None
    make = LocalBytes if local else FetchedBytes
    return make(store, folder, dataset.store, dataset.folder)

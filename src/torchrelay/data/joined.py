"""The datasets of a mixture as one: do they fit together, and their shards under one numbering."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchrelay.core.errors import DataError
from torchrelay.data.cache.choose import open_bytes
from torchrelay.data.dataset import Dataset
from torchrelay.data.formats.opener import sample_opener, token_opener
from torchrelay.data.manifest import Content, Manifest, ShardEntry
from torchrelay.data.open_shards import OpenShards, Releasing
from torchrelay.data.reading import find_traits
from torchrelay.recipe.data_schema import DataSection


def join_content(section: DataSection, manifests: Sequence[Manifest]) -> Content:
    """What a reading must know of all of them; DataError that names two that do not fit together."""
    first = manifests[0]
    for other in manifests[1:]:
        for what, ours, theirs in _compare(section, first, other):
            if ours != theirs:
                raise DataError(
                    f"{first.name} and {other.name} cannot be mixed: they differ in {what}, "
                    f"{_shown(ours)} and {_shown(theirs)}",
                    hint="build them alike, or take one out of data.mixture",
                )
    formats = {(manifest.content.format, manifest.content.token_dtype) for manifest in manifests}
    # How bytes become tokens differs by shard then, so nothing may be read but by its shard.
    return first.content if len(formats) == 1 else replace(first.content, token_dtype=None)


def open_shards(section: DataSection, dataset: Dataset, split: str) -> OpenShards[Any]:
    """The shards of a split of one dataset."""
    content = dataset.manifest.content
    decode = sample_opener(content) if content.kind == "samples" else token_opener(content)
    return OpenShards(open_bytes(dataset, section.cache), dataset.manifest.splits[split], decode)


def join_shards(parts: Sequence[OpenShards[Any]]) -> OpenShards[Any]:
    """The shards of all parts, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    # Two datasets may share a shard: it is the same bytes in both.
    owners = {entry: part for part in parts for entry in part.entries}
    entries = [entry for part in parts for entry in part.entries]
    return OpenShards(_JoinedBytes(owners), entries, lambda *shard: owners[shard[1]].decode(*shard))


class _JoinedBytes:
    """The bytes of the shards of several datasets."""

    def __init__(self, owners: Mapping[ShardEntry, OpenShards[Any]]) -> None:
        self._owners = owners

    def open(self, entry: ShardEntry) -> memoryview:
        """See `ShardBytes.open`."""
        return self._owners[entry].source.open(entry)

    def tail(self, entry: ShardEntry, start: int) -> bytes:
        """See `ShardBytes.tail`."""
        return self._owners[entry].source.tail(entry, start)

    def on_release(self, listener: Callable[[Collection[str] | None], None]) -> None:
        """See `open_shards.Releasing`."""
        for part in {id(part): part for part in self._owners.values()}.values():
            if isinstance(part.source, Releasing):
                part.source.on_release(listener)

    def index(self, entry: ShardEntry) -> bytes | None:
        """See `ShardBytes.index`."""
        return self._owners[entry].source.index(entry)


def _compare(section: DataSection, first: Manifest, other: Manifest) -> list[tuple[str, Any, Any]]:
    ours, theirs = first.content, other.content
    return [
        ("kind", ours.kind, theirs.kind),
        ("tokenizer", _tokenizer(first), _tokenizer(other)),
        ("columns", _columns(ours), _columns(theirs)),
        ("labels", ours.label_names, theirs.label_names),
        ("reading", find_traits(section, ours).kind, find_traits(section, theirs).kind),
    ]


def _tokenizer(manifest: Manifest) -> tuple[Any, ...] | None:
    record = manifest.content.tokenizer
    return None if record is None else (record.vocabulary, record.end_token, record.sha256[:12])


def _columns(content: Content) -> list[tuple[Any, ...]]:
    return [(column.name, column.dtype, column.shape) for column in content.columns]


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."

"""Reads every byte of a version and says what is wrong, shard by shard."""

import hashlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import xxhash

from torchrelay.core.errors import DataError, NotFoundError
from torchrelay.data.dataset import Dataset
from torchrelay.data.diff import collect_ids
from torchrelay.data.formats.opener import sample_opener, token_opener
from torchrelay.data.formats.sample import SampleShard
from torchrelay.data.formats.tok import TokenShard
from torchrelay.data.layout import tokenizer_key
from torchrelay.data.manifest import Content, ShardEntry
from torchrelay.data.shard_bytes import join_key, read_index
from torchrelay.data.tokenizer import load_tokenizer

Progress = Callable[[int, int], None]
"""Called with bytes checked and bytes in all."""


class Finding(NamedTuple):
    """One thing that is wrong."""

    split: str
    """Split of the shard, or empty where it concerns the whole version."""
    key: str
    """Shard or file, relative to the dataset's folder; or the split where it concerns all of one."""
    problem: str


def verify_dataset(dataset: Dataset, *, progress: Progress) -> list[Finding]:
    """Check both hashes and the content of every shard, the tokenizer, and that no sample is in two
    splits; empty when all is sound. Holds one shard in memory.
    """
    manifest = dataset.manifest
    findings = list(_check_tokenizer(dataset))
    pairs = [(split, entry) for split, entries in manifest.splits.items() for entry in entries]
    total = sum(entry.bytes for _, entry in pairs)
    done = 0
    for split, entry in pairs:
        findings += [Finding(split, entry.key, problem) for problem in _check_shard(dataset, entry)]
        done += entry.bytes
        progress(done, total)
    return findings or list(_check_splits(dataset))


def _check_tokenizer(dataset: Dataset) -> Iterator[Finding]:
    record = dataset.manifest.content.tokenizer
    if record is None or record.kind == "unknown":
        return
    try:
        load_tokenizer(dataset.store, dataset.manifest)
    except DataError as error:
        key = tokenizer_key(dataset.manifest.name, dataset.manifest.version)
        yield Finding("", key.removeprefix(f"{dataset.folder}/"), error.message)


def _check_splits(dataset: Dataset) -> Iterator[Finding]:
    """The same sample in two splits would be learned by heart and then measured."""
    ids = {split: collect_ids(dataset, split) for split in dataset.manifest.splits}
    names = list(ids)
    for number, split in enumerate(names):
        for other in names[:number]:
            mine, theirs = ids[split], ids[other]
            if mine is None or theirs is None:
                continue
            both = np.intersect1d(mine, theirs, assume_unique=True)
            if len(both):
                yield Finding(
                    split, split, f"{len(both):,} samples are in {other} too, id {both[0]:016x} first"
                )


def _check_shard(dataset: Dataset, entry: ShardEntry) -> Iterator[str]:
    try:
        data = _read(dataset, entry)
        index = read_index(dataset.store, dataset.folder, entry)
    except NotFoundError:
        yield "is missing"
        return
    except DataError as error:
        yield error.message
        return
    wrong = list(_check_bytes(data, entry))
    yield from wrong or _check_content(dataset.manifest.content, memoryview(data), entry, index)


def _check_bytes(data: bytes, entry: ShardEntry) -> Iterator[str]:
    if len(data) != entry.bytes:
        yield f"has {len(data):,} bytes, the manifest says {entry.bytes:,}"
        return
    sha256, xxh3 = hashlib.sha256(data).hexdigest(), xxhash.xxh3_128_hexdigest(data)
    if sha256 != entry.sha256:
        yield f"sha256 is {sha256}, the manifest says {entry.sha256}"
    elif xxh3 != entry.xxh3_128:  # the bytes are right, so the manifest is not
        yield f"xxh3_128 is {xxh3}, the manifest says {entry.xxh3_128}"


def _check_content(
    content: Content, data: memoryview, entry: ShardEntry, index: bytes | None
) -> Iterator[str]:
    """What the hashes cannot tell: whether the bytes are what the manifest says they are."""
    if entry.unpack is not None:  # its hashes are right, and unpacking is what made its counts
        return
    try:
        if content.kind == "tokens":
            yield from _check_tokens(token_opener(content)(data, entry, index), entry, content)
        else:
            yield from _check_samples(sample_opener(content)(data, entry, index), entry)
    except (ValueError, KeyError, TypeError) as error:
        yield str(error)
    except DataError as error:
        yield error.message


def _check_samples(shard: SampleShard, entry: ShardEntry) -> Iterator[str]:
    if len(shard) != entry.samples:
        yield f"has {len(shard):,} samples, the manifest says {entry.samples:,}"
        return
    for index in range(len(shard)):
        shard.sample(index)


def _check_tokens(shard: TokenShard, entry: ShardEntry, content: Content) -> Iterator[str]:
    tokenizer = content.tokenizer
    if tokenizer is None:
        return
    highest = int(shard.tokens.max(initial=0))
    if highest >= tokenizer.vocabulary:
        yield f"holds token {highest}, the vocabulary has {tokenizer.vocabulary}"
    ends = shard.ends.astype(np.int64)
    if (np.diff(ends, prepend=0) < 1).any() or int(ends.max(initial=0)) > entry.tokens:
        yield "its document ends are not in order"
    elif tokenizer.end_token is not None and (shard.tokens[ends - 1] != tokenizer.end_token).any():
        yield "a document does not end with the end mark"
    yield from _check_labels(shard, content)
    yield from _check_packs(shard, content)


def _check_labels(shard: TokenShard, content: Content) -> Iterator[str]:
    names = content.label_names
    if (shard.labels is None) != (names is None):
        yield "has labels where the manifest has none, or the other way round"
    elif shard.labels is not None and names is not None:
        lowest, highest = int(shard.labels.min(initial=0)), int(shard.labels.max(initial=0))
        if lowest < 0 or highest >= len(names):
            yield f"holds label {highest if lowest >= 0 else lowest}, there are {len(names)} classes"


def _check_packs(shard: TokenShard, content: Content) -> Iterator[str]:
    if shard.packs is None or content.pack_length is None:
        return
    order = shard.packs.order
    if not np.array_equal(np.sort(order), np.arange(len(shard.ends), dtype=np.uint32)):
        yield "its packs do not hold every document once"
        return
    lengths = np.diff(shard.ends.astype(np.int64), prepend=0)[order]
    sums = np.diff(np.cumsum(lengths)[shard.packs.ends.astype(np.int64) - 1], prepend=0)
    longest = int(sums.max(initial=0))
    if longest > content.pack_length:
        yield f"a pack has {longest:,} tokens, the manifest says at most {content.pack_length:,}"


def _read(dataset: Dataset, entry: ShardEntry) -> bytes:
    """The span; of a whole object one byte more, so that an object that is too long is seen."""
    store, folder = dataset.shard_place()
    extra = 1 if entry.start == 0 and dataset.manifest.base is None else 0
    return store.get(join_key(folder, entry.key), start=entry.start, length=entry.bytes + extra)

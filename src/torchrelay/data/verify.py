"""Reads every byte of a version and says what is wrong, shard by shard."""

import hashlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import xxhash

from torchrelay.core.errors import DataError, NotFoundError
from torchrelay.data.dataset import Dataset
from torchrelay.data.formats.tok import TokenShard, open_tok
from torchrelay.data.layout import tokenizer_key
from torchrelay.data.manifest import Manifest, ShardEntry
from torchrelay.data.shard_bytes import join_key
from torchrelay.data.tokenizer import load_tokenizer

Progress = Callable[[int, int], None]
"""Called with bytes checked and bytes in all."""


class Finding(NamedTuple):
    """One thing that is wrong."""

    split: str
    """Split of the shard, or empty where it concerns the whole version."""
    key: str
    """Shard or file, relative to the dataset's folder."""
    problem: str


def verify_dataset(dataset: Dataset, *, progress: Progress) -> list[Finding]:
    """Check size, both hashes, footer and token range of every shard, and the tokenizer; empty when sound."""
    manifest = dataset.manifest
    findings = list(_check_tokenizer(dataset))
    pairs = [(split, entry) for split, entries in manifest.splits.items() for entry in entries]
    total = sum(entry.bytes for _, entry in pairs)
    done = 0
    for split, entry in pairs:
        findings += [Finding(split, entry.key, problem) for problem in _check_shard(dataset, entry)]
        done += entry.bytes
        progress(done, total)
    return findings


def _check_tokenizer(dataset: Dataset) -> Iterator[Finding]:
    try:
        load_tokenizer(dataset.store, dataset.manifest)
    except DataError as error:
        key = tokenizer_key(dataset.manifest.name, dataset.manifest.version)
        yield Finding("", key.removeprefix(f"{dataset.folder}/"), error.message)


def _check_shard(dataset: Dataset, entry: ShardEntry) -> Iterator[str]:
    try:
        data = _read(dataset, entry)
    except NotFoundError:
        yield "is missing"
        return
    if len(data) != entry.bytes:
        yield f"has {len(data):,} bytes, the manifest says {entry.bytes:,}"
        return
    hashes = {
        "sha256": (hashlib.sha256(data).hexdigest(), entry.sha256),
        "xxh3_128": (xxhash.xxh3_128_hexdigest(data), entry.xxh3_128),
    }
    wrong = [
        f"{name} is {got}, the manifest says {told}" for name, (got, told) in hashes.items() if got != told
    ]
    yield from wrong
    if wrong:
        return
    try:
        shard = open_tok(data, entry, dataset.manifest.token_dtype)
    except (ValueError, KeyError, TypeError) as error:
        yield str(error)
        return
    yield from _check_content(shard, entry, dataset.manifest)


def _check_content(shard: TokenShard, entry: ShardEntry, manifest: Manifest) -> Iterator[str]:
    vocabulary, end_token = manifest.tokenizer.vocabulary, manifest.tokenizer.end_token
    highest = int(shard.tokens.max(initial=0))
    if highest >= vocabulary:
        yield f"holds token {highest}, the vocabulary has {vocabulary}"
    ends = shard.ends.astype(np.int64)
    if (np.diff(ends, prepend=0) < 1).any() or int(ends.max(initial=0)) > entry.tokens:
        yield "its document ends are not in order"
    elif (shard.tokens[ends - 1] != end_token).any():
        yield "a document does not end with the end mark"
    if (shard.labels is None) != (manifest.num_labels is None):
        yield "has labels where the manifest has none, or the other way round"
    elif shard.labels is not None and manifest.num_labels is not None:
        lowest, highest = int(shard.labels.min(initial=0)), int(shard.labels.max(initial=0))
        if lowest < 0 or highest >= manifest.num_labels:
            yield f"holds label {highest if lowest >= 0 else lowest}, there are {manifest.num_labels} classes"


def _read(dataset: Dataset, entry: ShardEntry) -> bytes:
    store, folder = dataset.shard_place()
    return store.get(join_key(folder, entry.key), start=entry.start, length=entry.bytes + 1)

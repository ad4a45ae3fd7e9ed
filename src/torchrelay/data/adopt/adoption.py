"""Make a version of a dataset out of data that lies somewhere, without copying or changing it.

Every shard is read once, several at a time: hashed, counted, checked. Nothing becomes visible before
all of it was sound. Adopting the same data again gives the same version; all of it is read again.
"""

import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import NamedTuple

from torchrelay import __version__
from torchrelay.core.clock import Clock, iso_time, system_clock
from torchrelay.core.errors import DataError
from torchrelay.data.adopt.columns import merge_columns
from torchrelay.data.adopt.detect import Layout, find_data
from torchrelay.data.adopt.litdata import plan_litdata
from torchrelay.data.adopt.mds import plan_mds
from torchrelay.data.adopt.megatron import plan_megatron
from torchrelay.data.adopt.parquet import plan_parquet
from torchrelay.data.adopt.plan import Found, Plan, Scanned, TokenFacts, Work
from torchrelay.data.adopt.share import check_distinct, set_aside
from torchrelay.data.adopt.stream import Stream
from torchrelay.data.adopt.webdataset import plan_webdataset
from torchrelay.data.layout import check_name, dataset_folder
from torchrelay.data.manifest import (
    TRAIN,
    BuildRecord,
    Column,
    Content,
    Manifest,
    ShardEntry,
    TokenizerRecord,
    make_manifest,
)
from torchrelay.data.publish import publish
from torchrelay.data.tokenizer import FileTokenizer, describe_tokenizer, read_tokenizer_file
from torchrelay.store.base import Store

MOST_THREADS = 8
"""Shards read at once; each holds a piece of 8 MiB, of Parquet one row group."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, bytes done, and bytes in all."""

_PLANNERS: Mapping[Layout, Callable[[Found, TokenFacts], Plan]] = {
    "mds": plan_mds,
    "webdataset": plan_webdataset,
    "parquet": plan_parquet,
    "megatron": plan_megatron,
    "litdata": plan_litdata,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptRequest:
    """What to adopt."""

    url: str
    """Folder, file or pattern."""
    layout: str = "auto"
    """A `detect.Layout`, or auto."""
    split_folders: Mapping[str, str] = field(default_factory=dict)
    """Folder of each split; empty: train, val, valid, validation and test where there are such folders."""
    validation: float | None = None
    """Share of the shards that are set aside for validation, chosen by their hash; None: no shard is."""
    vocabulary: int | None = None
    """Number of token ids; None: one more than the highest that occurs."""
    end_token: int | None = None
    """Id of the mark after every document."""
    tokenizer: str | None = None
    """Path of the tokenizer file that made the tokens."""


class AdoptResult(NamedTuple):
    """What was adopted."""

    manifest: Manifest
    ref: int
    is_new: bool
    """False when the dataset had this version as its newest before."""


class _Shard(NamedTuple):
    """One shard that was read."""

    work: Work
    entry: ShardEntry
    scanned: Scanned


def adopt_dataset(
    store: Store, name: str, request: AdoptRequest, *, clock: Clock = system_clock, progress: Progress
) -> AdoptResult:
    """Point a new ref of dataset `name` to the data at `request.url`.

    DataError says what is wrong with the data, by file and byte; no ref is made then.
    """
    check_name(name)
    layout, found = find_data(request.url, request.layout, request.split_folders)
    tokenizer = _read_tokenizer(request)
    facts = _token_facts(request, tokenizer)
    plan = _PLANNERS[layout](found, facts)
    _check_request(request, plan)
    with tempfile.TemporaryDirectory(prefix="torchrelay-adopt-") as folder:
        shards = _scan_all(found.store, plan, Path(folder), progress)
        splits = _divide(shards, request)
        content = _describe(plan, shards, splits, facts, tokenizer)
        for path in sorted(Path(folder).iterdir()):
            store.put(f"{dataset_folder(name)}/indexes/{path.name}", path.read_bytes())
    record = BuildRecord(
        arguments=_arguments(request, layout),
        code=__version__,
        created=iso_time(clock()),
        skipped=sum(shard.scanned.skipped for shard in shards),
    )
    manifest = make_manifest(name, content, record, base=found.store.url)
    published = publish(store, manifest, tokenizer.to_json() if tokenizer else None)
    return AdoptResult(manifest, published.number, published.is_new)


def _check_request(request: AdoptRequest, plan: Plan) -> None:
    told = (request.vocabulary, request.end_token, request.tokenizer)
    if plan.token_dtype is None and any(option is not None for option in told):
        raise DataError(
            f"{request.url} holds samples, not tokens",
            hint="leave --vocabulary, --end-token and --tokenizer out; to train on a text column of it, make "
            "tokens of it with torchrelay data build",
        )
    if request.validation is not None and len({work.split for work in plan.works}) > 1:
        raise DataError(f"{request.url} has its own splits; leave --validation out")


def _read_tokenizer(request: AdoptRequest) -> FileTokenizer | None:
    if request.tokenizer is None:
        return None
    if request.vocabulary is not None or request.end_token is not None:
        raise DataError("--tokenizer tells the vocabulary and the end mark; leave the other options out")
    return read_tokenizer_file(Path(request.tokenizer).expanduser(), None)


def _token_facts(request: AdoptRequest, tokenizer: FileTokenizer | None) -> TokenFacts:
    if tokenizer is not None:
        return TokenFacts(vocabulary=tokenizer.vocabulary, end_token=tokenizer.end_token)
    return TokenFacts(vocabulary=request.vocabulary, end_token=request.end_token)


def _scan_all(store: Store, plan: Plan, folder: Path, progress: Progress) -> list[_Shard]:
    """Read every shard; the error of the first bad one, in stored order, is raised."""
    total, done = sum(work.length for work in plan.works), 0
    counting, stopped = threading.Lock(), threading.Event()

    def count(new: int) -> None:
        nonlocal done
        if stopped.is_set():
            raise ValueError("not read: another shard was bad")
        with counting:
            done += new
            progress("adopting", done, total)

    with ThreadPoolExecutor(min(MOST_THREADS, 2 * (os.cpu_count() or 1))) as pool:
        futures = [pool.submit(_scan, store, work, folder, count) for work in plan.works]
        try:
            shards = [future.result() for future in futures]
        except BaseException:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    kept = [shard for shard in shards if shard.entry.samples or shard.entry.tokens]
    if not kept:
        raise DataError(f"there is no sample in {store.url}: {len(shards)} empty shards")
    return kept


def _scan(store: Store, work: Work, folder: Path, on_bytes: Callable[[int], None]) -> _Shard:
    stream = Stream(store, work.key, work.start, work.length, on_bytes)
    try:
        scanned = work.scan(stream)
        sha256, xxh3_128 = stream.hashes()
    except ValueError as error:
        raise DataError(
            f"{store.url}/{work.key}: {error}",
            hint="write the file again, or leave it out; nothing was adopted",
        ) from error
    entry = ShardEntry(
        key=work.key,
        bytes=work.length,
        sha256=sha256,
        xxh3_128=xxh3_128,
        samples=scanned.samples,
        start=work.start,
        tokens=scanned.tokens,
        longest=scanned.longest,
        continues=scanned.continues,
        unpack=scanned.unpack,
        unpacked_bytes=scanned.unpacked_bytes,
        index=None if scanned.index is None else _write_index(folder, scanned.index),
    )
    return _Shard(work, entry, scanned)


def _write_index(folder: Path, content: bytes) -> str:
    """Keep an index file until all is known to be sound; its key in the dataset's folder."""
    name = f"{hashlib.sha256(content).hexdigest()}.idx"
    (folder / name).write_bytes(content)
    return f"indexes/{name}"


def _divide(shards: Sequence[_Shard], request: AdoptRequest) -> dict[str, tuple[ShardEntry, ...]]:
    splits: dict[str, list[ShardEntry]] = {}
    for shard in shards:
        splits.setdefault(shard.work.split, []).append(shard.entry)
    if TRAIN not in splits:
        raise DataError(f"the {TRAIN} split of {request.url} has no sample")
    check_distinct(splits)
    if request.validation is None:
        return {split: tuple(entries) for split, entries in splits.items()}
    return set_aside(splits[TRAIN], request.validation)


def _describe(
    plan: Plan,
    shards: Sequence[_Shard],
    splits: Mapping[str, tuple[ShardEntry, ...]],
    facts: TokenFacts,
    tokenizer: FileTokenizer | None,
) -> Content:
    if plan.token_dtype is None:
        return Content(kind="samples", format=plan.format, splits=splits, columns=_columns(shards))
    record = TokenizerRecord(
        kind="unknown",
        vocabulary=facts.vocabulary or 1 + max(shard.scanned.highest for shard in shards),
        end_token=facts.end_token,
        end_text=None,
        sha256="",
    )
    return Content(
        kind="tokens",
        format=plan.format,
        splits=splits,
        tokenizer=record if tokenizer is None else describe_tokenizer(tokenizer),
        token_dtype=plan.token_dtype,
    )


def _columns(shards: Sequence[_Shard]) -> tuple[Column, ...]:
    """What is true of all shards."""

    def merge(columns: tuple[Column, ...], shard: _Shard) -> tuple[Column, ...]:
        try:
            return merge_columns(columns, shard.scanned.columns)
        except ValueError as error:
            raise DataError(f"{shard.entry.key}: {error}, such as {shards[0].entry.key}") from error

    return reduce(merge, shards[1:], shards[0].scanned.columns)


def _arguments(request: AdoptRequest, layout: Layout) -> dict[str, object]:
    return {
        "adopt": request.url,
        "kind": layout,
        "split": dict(request.split_folders),
        "validation": request.validation,
        "vocabulary": request.vocabulary,
        "end_token": request.end_token,
        "tokenizer": request.tokenizer,
    }

"""Turn what people have into a version of a dataset: input → split → tokens → shards → manifest → ref.

Nothing becomes visible before all of it is in the store. The same input gives the same version,
whatever the number of processes and however often the build was killed and started again.
"""

import time
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import NamedTuple

from torchrelay import __version__
from torchrelay.core.clock import Clock, iso_time, system_clock
from torchrelay.core.errors import RecipeError
from torchrelay.data.build.job import Job
from torchrelay.data.build.journal import Journal, Progress
from torchrelay.data.build.merge import Merge, NotWholeError, Status
from torchrelay.data.build.pool import Inline, Pool, Setup, Workers
from torchrelay.data.build.request import BuildRequest as BuildRequest
from torchrelay.data.build.request import check_request
from torchrelay.data.build.sample_job import SampleJob, check_sample_request
from torchrelay.data.build.sample_job import SampleRequest as SampleRequest
from torchrelay.data.build.share_check import count_distinct, note_shares
from torchrelay.data.build.split_check import find_shared_id
from torchrelay.data.build.token_job import TokenJob
from torchrelay.data.build.version import (
    count_lost,
    describe_version,
    list_shards,
    list_skipped,
    sweep_store,
    take_splits,
)
from torchrelay.data.build.work_folder import (
    begin_anew,
    choose_folder,
    hold_folder,
    remove_folder,
    sweep_stale,
)
from torchrelay.data.build.workbench import BenchSetup, Spec
from torchrelay.data.layout import check_name, dataset_folder
from torchrelay.data.manifest import TRAIN, Manifest
from torchrelay.data.publish import publish
from torchrelay.data.shard_bytes import LocalBytes
from torchrelay.store.base import Store

Report = Callable[[Status], None]


class BuildResult(NamedTuple):
    """What was built."""

    manifest: Manifest
    ref: int
    is_new: bool
    """False when the dataset had this version as its newest before."""
    empty_documents: int
    """Documents without text, which were left out."""
    truncated: int = 0
    """Documents that were cut at the length of a pack."""
    skipped: tuple[str, ...] = ()
    """The first bad inputs that were left out (`--on-bad skip`); the manifest counts all of them."""
    skipped_list: Path | None = None
    """A file that names all of them, one JSON object a line."""
    notes: tuple[str, ...] = ()
    """What is stored otherwise than it came, or is not as it was asked for, in words."""
    healed: int = 0
    """Shards of a version that was there already which were missing, or of another size."""


def build_dataset(
    store: Store,
    name: str,
    request: BuildRequest | SampleRequest,
    *,
    clock: Clock = system_clock,
    progress: Report,
) -> BuildResult:
    """Build a version of dataset `name` and point a ref to it.

    After it was killed, the same call goes on where it was. DataError says what is wrong with the
    input, by file and line, row or byte; no ref is made then. One build of a request at a time.
    """
    check_name(name)
    job = _make_job(request)
    _check_shares(job)
    identity = {**job.identity(), "store": store.url, "name": name, "code": __version__}
    work = choose_folder(identity, job.settings.work)
    with hold_folder(work):
        sweep_stale(work.parent)
        try:
            result = _Build(store, name, job, work, progress).run(clock)
        except BaseException:
            if not _has_shards(work):  # so little is lost that nothing need be kept
                remove_folder(work)
            raise
        remove_folder(work)
    return result


class _Build:
    """One build, in its work folder."""

    def __init__(self, store: Store, name: str, job: Job, work: Path, progress: Report) -> None:
        self._store = store
        self._name = name
        self._job = job
        self._work = work
        self._report = progress
        self._total = job.total_bytes()
        self._started_s = time.time()

    def run(self, clock: Clock) -> BuildResult:
        """All of it."""
        before = list_shards(self._store, self._name)
        plan = self._job.plan(
            self._work,
            lambda setup: self._pool(setup, setup.open),
            lambda done: self._report(Status("reading", done, self._total)),
        )
        try:
            progress, resumed = self._make_shards(plan.spec)
        except NotWholeError:
            begin_anew(self._work)
            progress, resumed = self._make_shards(plan.spec)
        if self._job.given:
            self._check_ids(progress)
        content = self._job.content(plan.spec, take_splits(progress))
        manifest = describe_version(
            self._store,
            self._name,
            content,
            self._job.describe(),
            skipped=progress.problems,
            created=iso_time(clock()),
        )
        published = publish(self._store, manifest, plan.tokenizer_file)
        if resumed:
            sweep_store(self._store, manifest, published.number, self._started_s)
        healed = 0 if published.is_new else count_lost(before, content.splits)
        skipped, listing = list_skipped(self._work) if progress.problems else ((), None)
        return BuildResult(
            manifest,
            published.number,
            published.is_new,
            empty_documents=progress.empty,
            truncated=progress.truncated,
            skipped=skipped,
            skipped_list=listing,
            notes=(*plan.notes, *self._note_shares(manifest)),
            healed=healed,
        )

    def _make_shards(self, spec: Spec) -> tuple[Progress, bool]:
        """What was done in all, and whether a part of it was done by an earlier process."""
        setup = BenchSetup(
            spec=spec,
            on_bad=self._job.settings.on_bad,
            work=self._work,
            store_url=self._store.url,
            folder=dataset_folder(self._name),
            keeps_ids=self._job.given,
        )
        journal = Journal(self._work)
        progress = journal.progress
        resumed = progress.units > 0
        pool = self._pool(setup, lambda: setup.bench(self._store))
        try:
            if resumed:
                self._tell_resumed(progress)
            merge = Merge(setup, journal, pool, window=2 * self._job.settings.processes + 2)
            merge.run(self._job.units(), self._check_splits, lambda *made: self._tell(progress, *made))
        finally:
            pool.close()
            journal.close()
        return progress, resumed

    def _pool(self, setup: Setup, local: Callable[[], Callable[..., object]]) -> Pool:
        """Processes, or this one where it is alone, the input is small or the store is in its memory."""
        most = self._job.settings.processes
        if self._total is not None:
            most = min(most, -(-self._total // self._job.settings.unit_bytes))
        if most <= 1 or self._store.url.startswith("memory:"):
            return Inline(local())
        return Workers(setup, most)

    def _tell_resumed(self, progress: Progress) -> None:
        if count_lost(list_shards(self._store, self._name), progress.entries):
            raise NotWholeError
        shards = sum(map(len, progress.entries.values()))
        self._report(
            Status(
                "going on", progress.input_bytes, self._total, progress.documents, 0, shards, is_resumed=True
            )
        )

    def _note_shares(self, manifest: Manifest) -> Iterator[str]:
        if self._job.settings.divides_whole:
            folder = dataset_folder(self._name)
            source = LocalBytes(self._store, folder, self._store, folder)
            yield from note_shares(manifest, self._job.shares, source, self._job.settings.noun)

    def _tell(self, progress: Progress, items: int, shards: int) -> None:
        self._report(
            Status(
                self._job.settings.phase, progress.input_bytes, self._total, progress.documents, items, shards
            )
        )

    def _check_splits(self, found: Set[str], progress: Progress) -> None:
        """DataError when a split got nothing. Small corpora have no shard in the store at this point."""
        for split in (TRAIN, *self._job.shares):
            if split not in found:
                raise self._job.nothing_for(split, progress, count_distinct(self._work))

    def _check_ids(self, progress: Progress) -> None:
        shards = {split: len(entries) for split, entries in progress.entries.items()}
        shared = find_shared_id(self._work, shards)
        if shared is not None:
            raise self._job.shared_id(shared, self._work)


def _make_job(request: BuildRequest | SampleRequest) -> Job:
    if isinstance(request, SampleRequest):
        check_sample_request(request)
        return SampleJob(request)
    check_request(request)
    return TokenJob(request)


def _check_shares(job: Job) -> None:
    if job.settings.shares_asked and job.given:
        raise RecipeError(
            f"--validation and --test divide what has no split, but the input says which split every "
            f"{job.settings.noun} belongs to",
            hint="leave --validation and --test out, or give an input without splits",
        )


def _has_shards(work: Path) -> bool:
    """Whether a shard is in the store that need not be made again."""
    journal = Journal(work)
    journal.close()
    return bool(journal.progress.entries)

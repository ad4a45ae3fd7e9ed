"""What a rank trains on: micro-batches of tensors for the turns it asks for.

A reader counts nothing. The trainer counts steps itself and asks for the turns of its step, so
reading ahead, a failed step or another number of processes cannot change what is read. The course of
a resumed run is set once, before the first read (`SplitReader.go_on`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchrelay.core.errors import DataError
from torchrelay.data.batch import DataFacts, MicroBatch, make_batch
from torchrelay.data.dataset import Dataset, open_dataset
from torchrelay.data.figures import Figures, Meter, Metered
from torchrelay.data.follower import Follower, Part, Span, check_parts, start_follower
from torchrelay.data.joined import join_content, join_shards, open_shards
from torchrelay.data.manifest import TRAIN, VALIDATION, Content, Manifest
from torchrelay.data.open_shards import OpenShards
from torchrelay.data.order import course
from torchrelay.data.order.course import Plan
from torchrelay.data.order.history import Source as OrderSource
from torchrelay.data.order.itinerary import Itinerary, Stops
from torchrelay.data.order.order import Order
from torchrelay.data.order.outlook import SlotPattern
from torchrelay.data.order.position import DataPosition
from torchrelay.data.reader_spec import ReaderSpec
from torchrelay.data.reading import check_split_name, find_traits, make_order, open_reading, order_settings
from torchrelay.data.readings.failure import SampleFailure
from torchrelay.data.readings.rows import Reading, Rows
from torchrelay.data.recipe_plan import make_plan, pin_versions, plan_once, references
from torchrelay.data.sample_shape import find_arrays, find_label_names
from torchrelay.data.source import Arrays, load_source, open_source_reading
from torchrelay.data.tokenizer import fetch_tokenizer_file
from torchrelay.recipe.data_schema import CacheSection, DataSection
from torchrelay.store.base import Store
from torchrelay.store.open import open_store

Turns = NDArray[np.int64]
_NO_STORE = "memory://"
"""Another process cannot see into it."""


@dataclass(slots=True, kw_only=True)
class SplitReader:
    """One split of the data in its order; made by `open_split`. One thread at a time."""

    facts: DataFacts
    """What the model must know."""
    plan: Plan
    """What the recipe wants of the order; `plan.version` names the data."""
    num_samples: int
    """Samples of one epoch; of a mixture, of one epoch of each part together."""
    is_endless: bool
    """train: turns go on without end, epoch after epoch. Other splits: turn = sample id, once."""
    tokens_per_sample: int | None
    """Tokens that every sample predicts, in the packed reading; else None."""
    targets_per_sample: int | None
    """Loss terms of every turn where all have equally many; else None."""
    is_uniform: bool
    """Whether every turn has equally many tokens and targets and is cheap to read ahead."""
    bytes_per_token: float | None
    """Bytes of text a token stands for, on average over the split; None where that is not known, and
    where classes are predicted, not tokens."""
    files: Mapping[str, bytes]
    """Files that belong beside a model trained on this data: its tokenizer, by file name."""
    reading: Reading
    orders: tuple[Order, ...]
    """Of each part of the data."""
    shards: tuple[OpenShards[Any], ...]
    """Of each part of the data; none for a Python source."""
    cache: CacheSection
    itinerary: Itinerary
    """Where the samples of all turns are, from where the run was started or resumed on."""
    spec: ReaderSpec | None
    """What another process needs to read the same; None where the store is within this process."""
    workers: Meter = field(default_factory=Meter)
    """What reading has cost the decode workers that read in its place."""

    def read(self, turns: Turns) -> MicroBatch:
        """The samples of `turns`, int64 [n], n ≥ 1, in the order given. All tensors are new.

        The first touch of a shard opens and checks it: DataError names it when it is damaged.
        """
        return make_batch(*self.read_rows(turns))

    def read_rows(self, turns: Turns) -> tuple[Rows, NDArray[np.int64]]:
        """As `read`, without torch: the arrays, and the id of every turn (-1 where it has no sample)."""
        located, epochs = self.locate(turns)
        try:
            return self.reading.read(located, epochs), located.sample_ids
        except SampleFailure as failure:
            at = (located.sample_ids == failure.place.sample_id) & (epochs == failure.place.epoch)
            slots = self.itinerary.course.turns.slots(turns[at]).tolist() if self.is_endless else []
            error = failure.tell(slots[0] if slots else None)
            raise error from error.__cause__

    def lengths(self, turns: Turns) -> NDArray[np.int64] | None:
        """Positions that the samples of `turns` take before padding; None where all are alike."""
        return self.reading.lengths(self.locate(turns).located)

    def locate(self, turns: Turns) -> Stops:
        """Where the samples of `turns` are; nothing is read."""
        if not self.is_endless and int(turns.max()) >= self.num_samples:
            raise DataError(
                f"slot {int(turns.max()):,} is beyond the {self.num_samples:,} samples of the split"
            )
        return self.itinerary.locate(turns)

    def position(self, step: int) -> DataPosition:
        """The record of a run whose first `step` steps are committed."""
        return self.itinerary.course.position(step * self.plan.batch)

    def go_on(self, saved: DataPosition, *, step: int) -> None:
        """Read on from `saved`, the position after `step` steps; DataError when that cannot be exact."""
        resumed = course.resume(self.plan, saved, step=step)
        self.itinerary = Itinerary(resumed, self.orders)
        if self.spec is not None:
            self.spec = replace(self.spec, position=saved, step=step)

    def check_room(self, node: SlotPattern | None) -> None:
        """RecipeError, with the figure needed, when the node's cache is too small for this data.

        `node`: the turns that all processes of the node read, None where it may be any of a step.
        """
        if self.shards:
            check_parts(self.itinerary.course, self._parts(), node, self.cache)

    def _parts(self) -> list[Part]:
        return [Part(*part) for part in zip(self.orders, self.shards, strict=True)]

    def follow(self, pattern: SlotPattern | None, *, step: int, last_step: int) -> Follower:
        """Begin to fetch shards ahead, as this process goes on after `step` steps up to `last_step`.

        `pattern`: the turns that it reads, None where it may be any of a step. With
        `data.cache.staging: full` this returns when all is here.
        """
        batch = self.plan.batch
        turns = Span(step * batch, last_step * batch)
        if not self.shards or step >= last_step:
            return Follower(self.itinerary.course)
        return start_follower(self.itinerary.course, self._parts(), pattern, turns, self.cache)

    def figures(self) -> Figures | None:
        """What reading has cost since the last call, `workers` included; None where nothing is fetched."""
        meters = [shards.source.meter for shards in self.shards if isinstance(shards.source, Metered)]
        return sum((meter.take() for meter in meters), self.workers.take()) if meters else None


def open_split(
    section: DataSection, store: Store, split: str, *, seed: int, global_batch: int = 1
) -> SplitReader:
    """The reader of a split; every rank opens its own.

    `store` holds the datasets and is not used for a Python source. `global_batch` is the number of
    samples of a step, which decides where a step begins. DataError says what is missing, damaged, too
    short or too long, with the figures.
    """
    check_split_name(split)
    if section.source is not None:
        return _open_source(section, split, seed, global_batch)
    datasets = [open_dataset(store, reference) for reference in references(section)]
    for dataset in datasets:
        if split not in dataset.manifest.splits:
            manifest = dataset.manifest
            raise DataError(f"{manifest.name} ({manifest.short_version}) has no {split} split")
    return _open_datasets(section, datasets, split, seed, global_batch)


def open_validation(section: DataSection, store: Store, *, seed: int) -> SplitReader | None:
    """The reader of the validation split, of all parts that have one; None where there is none."""
    if section.source is not None:
        has_samples = len(load_source(section, VALIDATION)) > 0
        return _open_source(section, VALIDATION, seed, 1) if has_samples else None
    datasets = [open_dataset(store, reference) for reference in references(section)]
    measured = [dataset for dataset in datasets if VALIDATION in dataset.manifest.splits]
    return _open_datasets(section, measured, VALIDATION, seed, 1) if measured else None


def open_reader(spec: ReaderSpec) -> SplitReader:
    """The reader that another process has."""
    store = open_store(spec.store)
    reader = open_split(spec.section, store, spec.split, seed=spec.seed, global_batch=spec.global_batch)
    if spec.position is not None:
        reader.go_on(spec.position, step=spec.step)
    return reader


def _open_source(section: DataSection, split: str, seed: int, global_batch: int) -> SplitReader:
    source = load_source(section, split)
    order = Order([len(source)], order_settings(section, split, seed))
    part = OrderSource(section.source or "", source.version, order.num_samples)
    plan = _make_plan(section, [part], split, seed=seed, batch=global_batch, tokens_per_sample=None)
    return SplitReader(
        facts=DataFacts(vocabulary=None, sequence_length=None, num_labels=None, end_token=None),
        plan=plan,
        num_samples=order.num_samples,
        is_endless=split == TRAIN,
        tokens_per_sample=None,
        targets_per_sample=None if plan.fills_epochs else 1,
        is_uniform=isinstance(source, Arrays) and not plan.fills_epochs,
        bytes_per_token=None,
        files={},
        reading=open_source_reading(source, seed),
        orders=(order,),
        shards=(),
        cache=section.cache,
        itinerary=_first_itinerary(plan, (order,), split),
        spec=ReaderSpec(section=section, store=_NO_STORE, split=split, seed=seed, global_batch=global_batch),
    )


def _open_datasets(
    section: DataSection, datasets: Sequence[Dataset], split: str, seed: int, global_batch: int
) -> SplitReader:
    manifests = [dataset.manifest for dataset in datasets]
    content = join_content(section, manifests)
    traits = find_traits(section, content)
    orders = tuple(make_order(section, manifest, split, seed) for manifest in manifests)
    parts = [
        OrderSource(manifest.name, manifest.version, order.num_samples)
        for manifest, order in zip(manifests, orders, strict=True)
    ]
    tokens_per_sample = traits.tokens_per_sample
    plan = _make_plan(
        section, parts, split, seed=seed, batch=global_batch, tokens_per_sample=tokens_per_sample
    )
    shards = tuple(open_shards(section, dataset, split) for dataset in datasets)
    return SplitReader(
        facts=_find_facts(section, content),
        plan=plan,
        num_samples=sum(order.num_samples for order in orders),
        is_endless=split == TRAIN,
        tokens_per_sample=tokens_per_sample,
        targets_per_sample=None if plan.fills_epochs else traits.targets_per_sample,
        is_uniform=traits.is_uniform and not plan.fills_epochs,
        # The loss of a class says nothing of the bytes of its document.
        bytes_per_token=None if traits.num_labels is not None else _bytes_per_token(manifests, split),
        files=_tokenizer_files(datasets[0]),
        reading=open_reading(section, content, join_shards(shards), seed, training=split == TRAIN),
        orders=orders,
        shards=shards,
        cache=section.cache,
        itinerary=_first_itinerary(plan, orders, split),
        spec=_make_spec(section, datasets, split, seed, global_batch),
    )


def _make_plan(
    section: DataSection,
    sources: Sequence[OrderSource],
    split: str,
    *,
    seed: int,
    batch: int,
    tokens_per_sample: int | None,
) -> Plan:
    if split != TRAIN:
        return plan_once(sources, seed=seed)
    return make_plan(section, sources, seed=seed, batch=batch, tokens_per_sample=tokens_per_sample)


def _first_itinerary(plan: Plan, orders: tuple[Order, ...], split: str) -> Itinerary:
    return Itinerary(course.begin(plan) if split == TRAIN else course.read_once(plan), orders)


def _find_facts(section: DataSection, content: Content) -> DataFacts:
    traits, tokenizer = find_traits(section, content), content.tokenizer
    return DataFacts(
        vocabulary=None if tokenizer is None else tokenizer.vocabulary,
        sequence_length=None if tokenizer is None else section.sequence_length,
        num_labels=traits.num_labels,
        end_token=None if tokenizer is None else tokenizer.end_token,
        has_labels=content.label_names is not None,
        has_bounds=traits.has_bounds,
        label_names=find_label_names(section, content),
        arrays=find_arrays(section, content),
    )


def _make_spec(
    section: DataSection, datasets: Sequence[Dataset], split: str, seed: int, global_batch: int
) -> ReaderSpec | None:
    """With versions pinned: a newer one may be published before another process looks."""
    url = datasets[0].store.url
    versions = {dataset.manifest.name: dataset.manifest.version for dataset in datasets}
    pinned = pin_versions(section, versions)
    spec = ReaderSpec(section=pinned, store=url, split=split, seed=seed, global_batch=global_batch)
    return None if url.startswith(_NO_STORE) else spec


def _bytes_per_token(manifests: Sequence[Manifest], split: str) -> float | None:
    totals = [manifest.totals(split) for manifest in manifests]
    text_bytes, tokens = sum(t.text_bytes for t in totals), sum(t.tokens for t in totals)
    return text_bytes / tokens if text_bytes and tokens else None


def _tokenizer_files(dataset: Dataset) -> dict[str, bytes]:
    """`tokenizer.json` is what other libraries read; our own kinds go by another name."""
    tokenizer = dataset.manifest.content.tokenizer
    if tokenizer is None or tokenizer.kind == "unknown":
        return {}
    name = "tokenizer.json" if tokenizer.kind == "file" else "torchrelay_tokenizer.json"
    return {name: fetch_tokenizer_file(dataset.store, dataset.manifest)}

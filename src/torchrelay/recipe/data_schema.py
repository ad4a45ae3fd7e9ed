"""The `data` section of the recipe: what is learned from, in which order, and how it gets here."""

from typing import Any, Literal

from pydantic import Field

from torchrelay.recipe.types import Listed, PositiveInt, Seconds, Section, Size, safe


class MixturePart(Section):
    """One dataset of a mixture."""

    dataset: str
    """`NAME`, `NAME@REF` or `NAME@VERSION`, as in `data.dataset`."""
    weight: float = Field(gt=0)
    """Share of the samples, in proportion to the other weights."""


class CurriculumPoint(Section):
    """From here on the mixture has other weights."""

    at: int | str
    """Steps (1000, "1000 steps") or tokens ("2B tokens") from the start of the run."""
    weights: dict[str, float]
    """New weight by the `dataset` of the mixture's part; 0 leaves a part out. Every part is named."""


class CacheSection(Section):
    """The node's folder for shards of a remote store, shared by all processes and runs of the node."""

    folder: str | None = safe(None)
    """A folder on a fast local disk. Default: `$TORCHRELAY_CACHE`, else `~/.cache/torchrelay`."""
    size: Size | Literal["auto"] = safe("auto")
    """Most bytes of shards in it, such as "200GiB". auto: what the data needs, at most three quarters
    of the disk's free space."""
    staging: Literal["stream", "full"] = safe("stream")
    """full: copy every shard that this node reads before the first step."""
    downloads: PositiveInt = safe(4)
    """Shards that one process downloads at a time."""


class DataSection(Section):
    """What is learned from: a dataset in a store, a mixture of several, or a Python source."""

    dataset: str | None = safe(None)
    """`NAME`, `NAME@REF`, `NAME@TAG` or `NAME@VERSION` of a dataset in a store. A resumed run must find
    the same version under it."""
    mixture: Listed[MixturePart] | None = safe(None)
    """Several datasets, read in exact proportion to their weights. New weights, parts that are added and
    parts that are dropped count from where a run resumes; validation reads all parts, one after the
    other."""
    curriculum: Listed[CurriculumPoint] = safe(())
    """Later weights of the mixture, in ascending order of `at`. A point that lies behind a run holds: to
    go on with other weights change that point, or add one."""
    migrate_from: str | None = safe(None)
    """Version (its first digits) that a resumed run has read so far: allows another version of the
    dataset, which is read from its start from then on."""
    skip: Listed[str] = safe(())
    """Slots that are left out, such as "12000..12800" (up to, not including, the second). A slot is a
    sample's number in the endless order of the run; a loss that is not a number is reported with its slots.
    Other samples follow instead, the length of the run stays. What was read already is not changed."""
    store: str | None = safe(None)
    """URL of the store that holds the datasets. Default: `run.store`."""
    source: str | None = None
    """`package.module:function` called with `split` ("train" or "validation") that returns an object
    with `__len__`, `read(index)` (a dict of arrays) and `version` (text)."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the `source` function."""
    reading: Literal["auto", "packed", "packs", "documents", "samples"] = "auto"
    """packed: documents joined, cut in windows of `sequence_length`. packs: whole documents put together
    as planned by `data build --pack`. documents: one document a sample, padded. samples: one sample of a
    dataset of samples. auto: samples where the dataset has them, packs where it has a plan, else packed."""
    sequence_length: PositiveInt = 1024
    """Tokens of a sample that are predicted; documents may be at most this long plus one."""
    long_documents: Literal["refuse", "truncate"] = "refuse"
    """What to do with documents longer than that, in the `documents` reading."""
    document_bounds: bool = False
    """packed and packs: also give `positions` (from 0 in every document) and `documents` (number of the
    document in the row), so that a model neither attends nor predicts across documents."""
    pad: Literal["fixed", "longest"] = "fixed"
    """documents: pad to `sequence_length`, or to the longest document of the micro-batch. longest also
    puts documents of like length into the same micro-batch of a step."""
    batch_tokens: PositiveInt | None = None
    """documents with `pad: longest`: most positions of a micro-batch, padding included, instead of
    `train.micro_batch` samples; so many short documents or few long ones. A step still has
    `train.global_batch` samples."""
    decode: str | None = None
    """samples: `image`, or `package.module:function` called with a sample (a dict of columns) and, if it
    takes a second argument, a `numpy.random.Generator` of that sample and epoch; returns a dict of
    arrays. Called from several threads at a time."""
    decode_options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of `decode`. Those of `image`, which gives `pixel_values` and `labels`: `column`,
    `label`, `size` (224 or [height, width]), `resize` (crop or squash), `mean` and `std` of the channels,
    `augment` (none, flip or crop_flip, while training only), `channels` (3 or 1)."""
    collate: str | None = None
    """samples: `package.module:function` called with a list of decoded samples; returns a dict of
    arrays. Default: arrays of equal shape are stacked."""
    shuffle: bool = True
    """False reads the samples in their stored order."""
    lanes: PositiveInt = 64
    """Spans that an epoch is cut in and read side by side; more lanes mix better, fewer need a
    smaller cache."""
    window_shards: PositiveInt = 10
    """Shards of a lane that are shuffled together."""
    epoch_end: Literal["endless", "stop"] = "endless"
    """endless: batches go over from one epoch into the next. stop: an epoch's last batch is filled up
    with samples that do not count."""
    prefetch: int = safe(0, ge=0, le=64)
    """Steps read ahead; 0 reads in the training thread, best for tokens on disk."""
    prefetch_bytes: Size = safe(256 * 2**20, gt=0)
    """Most bytes of batches that wait to be used, in one process."""
    workers: int = safe(0, ge=0, le=128)
    """Processes per rank that decode samples; 0 decodes in threads. Worth it above 0.3 ms a sample."""
    worker_timeout: Seconds = safe(300.0, gt=0)
    """Longest time a worker may take for one micro-batch; then it is replaced. Waiting for shards to arrive
    counts, so that it must be longer than the slowest download."""
    cache: CacheSection = CacheSection()
    """The node's folder for shards of a remote store."""

"""The commented recipes that `torchrelay init` writes, one for each kind of start. Pure text."""

import shlex
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple


class StartKind(StrEnum):
    """What a person starts from."""

    TEXT = "text"
    """Text files of their own, and a model of ours."""
    HUGGINGFACE = "huggingface"
    """A model folder of the transformers library, tuned on text of their own."""
    PYTHON = "python"
    """Any `torch.nn.Module` and any data, as Python functions."""


class Template(NamedTuple):
    """What is written for one kind; `fill` puts the names in."""

    run: str
    """Name of the run, another one for each kind, so that two starts do not meet in one store."""
    recipe: str
    """The YAML text; passes `torchrelay recipe check` as it is."""
    modules: Mapping[str, str]
    """Python files that lie next to the recipe: name to text."""
    commands: tuple[str, ...]
    """What to type next, `{recipe}` standing for the recipe's file name."""


_HEAD = """\
# A torchrelay recipe: the only place where this run is configured.
# Every key with its meaning:  torchrelay recipe reference
# Check this file:             torchrelay recipe check {recipe}
# Any key can be set for one start:  --set train.steps=50

run:
  name: {run}# starting the same name again resumes it
  store: relay-store      # a folder, or file:///shared/folder, or s3://bucket/prefix
  seed: 1                 # initial weights, order of the data, randomness in the model
"""

_TAIL = """
parallel:
  engine: auto            # ddp: every process holds the model; fsdp: it is sharded
  # shard: auto           # fsdp: processes that share one copy of the model

checkpoint:
  every: 5min             # or: 500 steps
  keep_last: 3            # older ones are removed

# observe:
#   sample_log: true      # record which samples every process used in every step
"""

_TEXT = """
model:
  decoder:
    architecture: llama   # or gpt2
    layers: 6
    width: 192
    heads: 6              # divides width
    # kv_heads: 2         # grouped-query attention; divides heads
    # preset: 1m          # a named size instead of the four keys above

data:
  dataset: my-text        # made by: torchrelay data build my-text --text "texts/**/*.txt"
  sequence_length: 256    # tokens of one sample

train:
  steps: 1000             # or epochs: 2, or tokens: 300M
  global_batch: 32        # samples of one step, whatever the number of processes
  # micro_batch: 8        # samples of one forward pass; smaller needs less memory
  precision: fp32         # bf16 is faster on recent GPUs
  optimizer:
    name: adamw           # or sgd, lion, package.module:Class
    lr: 1e-3              # the peak
    weight_decay: 0.1
  schedule:
    kind: cosine          # or constant, linear, wsd
    warmup: 100           # steps, or "2M tokens"
    final: 0.1            # share of the peak left at the end
  clip_norm: 1.0          # null never clips
  validate_every: 200 steps
"""

_HUGGINGFACE = """
model:
  huggingface:
    path: my-model        # a local folder with config.json and weights
    # from_scratch: true  # take the folder's shape, not its weights
    task: causal-lm       # or sequence-classification or image-classification, with labelled data

data:
  dataset: my-text        # use the model's own tokenizer, so that token ids fit the model:
                          # torchrelay data build my-text --text "texts/**/*.txt" \\
                          #   --tokenizer my-model/tokenizer.json
  sequence_length: 512    # tokens of one sample; at most what the model allows

train:
  epochs: 1               # or steps: 1000, or tokens: 300M
  global_batch: 16        # samples of one step, whatever the number of processes
  # micro_batch: 2        # samples of one forward pass; smaller needs less memory
  precision: fp32         # bf16 is faster on recent GPUs
  recompute: none         # full saves memory and costs a second forward pass
  optimizer:
    name: adamw
    lr: 2e-5              # the peak; small, so that what the model knows is not washed out
    weight_decay: 0.01
  schedule:
    kind: linear
    warmup: 50
    final: 0.0
  clip_norm: 1.0
"""

_PYTHON = """
model:
  python: my_model:build_model      # package.module:function that returns a torch.nn.Module
  options:                          # its keyword arguments
    width: 32

data:
  source: my_model:open_points      # package.module:function, called with split and the options
  options:
    count: 4000

train:
  epochs: 20                        # or steps: 1000
  global_batch: 100                 # samples of one step, whatever the number of processes
  optimizer:
    name: adamw
    lr: 1e-2
  schedule:
    kind: cosine
    warmup: 20
"""

_MODULE = '''\
"""The model and the data of the recipe next to this file. Replace both with your own."""

import numpy as np
import torch
from torch import nn


class Classifier(nn.Module):
    """Says of a point of the plane whether it lies inside the unit circle."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss of every sample, shape [samples]; torchrelay sums and divides.

        `batch` holds each array that `read` returned, stacked along a new first dimension.
        """
        scores = self.layers(batch["point"])
        return nn.functional.cross_entropy(scores, batch["inside"], reduction="none")


def build_model(width: int = 32) -> nn.Module:
    """The module to train; the arguments are `model.options` of the recipe."""
    return Classifier(width)


class Points:
    """Random points; a real source would read sample `index` from a file or an array."""

    version = "points-1"
    """Change it whenever the samples change: a run refuses to go on with other data."""

    def __init__(self, seed: int, count: int) -> None:
        self._seed = seed
        self._count = count

    def __len__(self) -> int:
        return self._count

    def read(self, index: int) -> dict[str, np.ndarray]:
        """Sample `index`; must depend on nothing but the index. The order is not its business."""
        point = np.random.default_rng([self._seed, index]).uniform(-1.5, 1.5, size=2)
        inside = np.int64(np.hypot(*point) < 1)
        return {"point": point.astype(np.float32), "inside": np.asarray(inside)}


def open_points(split: str, count: int = 4000) -> Points:
    """The data of a split, "train" or "validation"; the other arguments are `data.options`."""
    return Points(0, count) if split == "train" else Points(1, count // 10)
'''

_CHECK_AND_TRAIN = ("torchrelay recipe check {recipe}", "torchrelay train {recipe}")

TEMPLATES: Mapping[StartKind, Template] = MappingProxyType(
    {
        StartKind.TEXT: Template(
            "my-text-run",
            _HEAD + _TEXT + _TAIL,
            MappingProxyType({}),
            ('torchrelay data build my-text --text "texts/**/*.txt" --tokenizer bytes', *_CHECK_AND_TRAIN),
        ),
        StartKind.HUGGINGFACE: Template(
            "my-tuning",
            _HEAD + _HUGGINGFACE + _TAIL,
            MappingProxyType({}),
            (
                'torchrelay data build my-text --text "texts/**/*.txt" --tokenizer my-model/tokenizer.json',
                *_CHECK_AND_TRAIN,
            ),
        ),
        StartKind.PYTHON: Template(
            "my-model-run",
            _HEAD + _PYTHON + _TAIL,
            MappingProxyType({"my_model.py": _MODULE}),
            _CHECK_AND_TRAIN,
        ),
    }
)


def fill(template: Template, recipe_name: str) -> Template:
    """The template with its run's name and the name of the recipe's file put in."""
    return template._replace(
        recipe=template.recipe.replace("{recipe}", recipe_name).replace("{run}", f"{template.run:<18}"),
        commands=tuple(
            command.replace("{recipe}", shlex.quote(recipe_name)) for command in template.commands
        ),
    )

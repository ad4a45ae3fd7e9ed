"""Models and decoders for samples of every kind; the runs of `test_data_kinds` name them in recipes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

CLASSES = 7


class Classifier(nn.Module):
    """Two layers on whatever numbers a sample has; the loss of every sample."""

    def __init__(self, inputs: list[str], width: int, label: str) -> None:
        super().__init__()
        self._inputs = inputs
        self._label = label
        self.layers = nn.Sequential(nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, CLASSES))

    def forward(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        parts = [tensors[name].float().flatten(1) for name in self._inputs if tensors[name].dim() > 1]
        parts += [tensors[name].float()[:, None] for name in self._inputs if tensors[name].dim() == 1]
        scores = self.layers(torch.cat(parts, dim=1))
        return nn.functional.cross_entropy(scores, tensors[self._label].long(), reduction="none")


def classifier(inputs: list[str], width: int, label: str = "label") -> nn.Module:
    return Classifier(inputs, width, label)


def decode(
    sample: Mapping[str, Any],
    rng: np.random.Generator,
    *,
    matrix: str = "matrix",
    label: str = "label",
    training: bool = True,
) -> dict[str, NDArray[Any]]:
    """The matrix of an adopted sample with noise of its own in training, and its class."""
    values = np.asarray(sample[matrix], np.float32) / 30
    noise = rng.standard_normal(values.shape, np.float32) if training else 0
    return {"x": values + np.float32(0.1) * noise, "label": np.int64(int(sample[label]))}


def decode_ragged(sample: Mapping[str, Any], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """The numbers of a sample, of which there are one to four, in an order that is drawn."""
    return {"steps": rng.permutation(sample["steps"]), "label": np.int64(int(sample["label"]))}


def collate(samples: list[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Filled up with zeros to four numbers each."""
    x = np.zeros((len(samples), 4), np.float32)
    for row, sample in zip(x, samples, strict=True):
        row[: len(sample["steps"])] = sample["steps"] / 30
    return {"x": x, "label": np.array([sample["label"] for sample in samples])}

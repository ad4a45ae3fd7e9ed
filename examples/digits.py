"""Handwritten digits (scikit-learn's, 8 × 8 pixels): a model and a data source of one's own.

The model knows nothing of torchrelay, and the source nothing of order, ranks or epochs.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from torchrelay.data.source import Arrays


class Classifier(nn.Module):
    """A small convolutional network whose forward returns the loss of every image."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            nn.GELU(),
            nn.Conv2d(16, 32, kernel_size=3, padding=1, stride=2),
            nn.GELU(),
        )
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(32 * 4 * 4, hidden), nn.GELU(), nn.Linear(hidden, 10)
        )

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """batch: `image` float32 [samples, 1, 8, 8], `digit` int64 [samples]. Returns losses [samples]."""
        scores = self.head(self.convolutions(batch["image"]))
        return F.cross_entropy(scores, batch["digit"], reduction="none")


def classifier(hidden: int) -> nn.Module:
    """The model; `hidden` comes from the recipe's options."""
    return Classifier(hidden)


def images(split: str) -> Arrays:
    """1,797 digits; every fifth is kept for validation."""
    digits = load_digits()
    held_out = np.arange(len(digits.target)) % 5 == 0
    chosen = held_out if split == "validation" else ~held_out
    pixels = (digits.images[chosen, None] / 16).astype(np.float32)
    return Arrays({"image": pixels, "digit": digits.target[chosen]})


def accuracy(model: Classifier, split: str = "validation") -> float:
    """Share of digits that the model gets right."""
    data = images(split)
    batch = data.take(np.arange(len(data)))
    with torch.no_grad():
        scores = model.head(model.convolutions(torch.from_numpy(batch["image"])))
    return (scores.argmax(1).numpy() == batch["digit"]).mean().item()

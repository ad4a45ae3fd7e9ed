"""Handwritten digits (scikit-learn's, 8 × 8 pixels): a model and a data source of one's own.

The model knows nothing of torchrelay, and the source nothing of order, ranks or epochs.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F


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


class Images:
    """1,797 digits; every fifth is kept for validation."""

    version = "sklearn-digits-1"

    def __init__(self, split: str) -> None:
        digits = load_digits()
        held_out = np.arange(len(digits.target)) % 5 == 0
        chosen = held_out if split == "validation" else ~held_out
        self._images = (digits.images[chosen] / 16).astype(np.float32)
        self._digits = digits.target[chosen]

    def __len__(self) -> int:
        return len(self._digits)

    def read(self, index: int) -> dict[str, NDArray[np.generic]]:
        """One image and its digit."""
        return {"image": self._images[index][None], "digit": self._digits[index]}


def classifier(hidden: int) -> nn.Module:
    """The model; `hidden` comes from the recipe's options."""
    return Classifier(hidden)


def images(split: str) -> Images:
    """The data of a split."""
    return Images(split)


def accuracy(model: nn.Module, split: str = "validation") -> float:
    """Share of digits that the model gets right."""
    source = Images(split)
    pixels = torch.stack([torch.as_tensor(source.read(i)["image"]) for i in range(len(source))])
    truth = torch.tensor([int(source.read(i)["digit"]) for i in range(len(source))])
    assert isinstance(model, Classifier)
    with torch.no_grad():
        return (model.head(model.convolutions(pixels)).argmax(1) == truth).float().mean().item()

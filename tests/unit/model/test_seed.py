import random

import numpy as np
import pytest
import torch

from torchrelay.model.seed import seeded


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_inside_the_seed_decides_what_is_drawn() -> None:
    with seeded(3):
        first = draw()
    draw()
    with seeded(3):
        assert draw() == first
    with seeded(4):
        other = draw()
    assert all(a != b for a, b in zip(first, other, strict=True))


def test_outside_nothing_changes_even_after_an_error() -> None:
    torch.manual_seed(11)
    random.seed(11)
    np.random.seed(11)
    expected = [draw(), draw()]
    torch.manual_seed(11)
    random.seed(11)
    np.random.seed(11)
    found = [draw()]
    with pytest.raises(KeyError), seeded(3):
        draw()
        raise KeyError
    assert [*found, draw()] == expected

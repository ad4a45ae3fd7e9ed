import math

import pytest
import torch

from torchrelay.model.initial import initial_parameter


def initial(name: str, *shape: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return initial_parameter(name, torch.Size(shape), generator, scaled=frozenset({"out"}), layers=8)


def test_biases_are_zero_and_norms_one() -> None:
    assert torch.equal(initial("layers.0.in.bias", 7), torch.zeros(7))
    assert torch.equal(initial("layers.0.norm.weight", 7), torch.ones(7))


@pytest.mark.parametrize(("name", "std"), [("a.in.weight", 0.02), ("a.out.weight", 0.02 / math.sqrt(16))])
def test_matrices_are_normal_and_smaller_at_the_end_of_a_branch(name: str, std: float) -> None:
    values = initial(name, 300, 200)
    assert values.dtype == torch.float32
    assert float(values.std()) == pytest.approx(std, rel=0.02)
    assert float(values.mean()) == pytest.approx(0, abs=std / 50)


def test_the_generator_alone_decides_the_values() -> None:
    assert torch.equal(initial("a.in.weight", 4, 4), initial("a.in.weight", 4, 4))
    assert not torch.equal(initial("a.in.weight", 4, 4), initial("a.in.weight", 4, 4, seed=2))

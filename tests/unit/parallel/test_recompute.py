import pytest
import torch
from torch import nn

from tests.unit.parallel.support import Stack
from torchrelay.parallel.recompute import apply_recompute


class Counted(nn.Linear):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).calls += 1
        return super().forward(x)


def test_a_block_is_computed_again_in_backward_and_only_then() -> None:
    block = Counted(3, 3)
    Counted.calls = 0
    apply_recompute([block])
    loss = block(torch.randn(2, 3)).sum()
    assert Counted.calls == 1
    loss.backward()
    assert Counted.calls == 2


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_gradients_are_the_same_bits_with_dropout_too(dropout: float) -> None:
    grads = []
    for recompute in (False, True):
        torch.manual_seed(0)
        module = Stack(dropout)
        nn.init.ones_(module.scale)
        if recompute:
            apply_recompute(list(module.blocks))
        torch.manual_seed(1)
        module(torch.ones(2, 4)).sum().backward()
        grads.append([parameter.grad for parameter in module.parameters()])
    assert all(a.equal(b) for a, b in zip(*grads, strict=True))


def test_names_of_parameters_do_not_change() -> None:
    module = Stack(0.0)
    names = list(module.state_dict())
    apply_recompute(list(module.blocks))
    assert list(module.state_dict()) == names

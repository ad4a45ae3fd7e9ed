import pytest
import torch
from torch import nn

from torchrelay.train.lion import Lion


def reference(
    weight: torch.Tensor, grads: list[torch.Tensor], lr: float, betas: tuple[float, float], decay: float
) -> torch.Tensor:
    """The algorithm as the paper writes it, one number at a time."""
    weights = weight.double().flatten().tolist()
    momenta = [0.0] * len(weights)
    for grad in grads:
        for index, g in enumerate(grad.double().flatten().tolist()):
            direction = betas[0] * momenta[index] + (1 - betas[0]) * g
            sign = (direction > 0) - (direction < 0)
            weights[index] -= lr * (sign + decay * weights[index])
            momenta[index] = betas[1] * momenta[index] + (1 - betas[1]) * g
    return torch.tensor(weights, dtype=torch.float32).view_as(weight)


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("betas", [(0.9, 0.99), (0.5, 0.1)])
def test_it_does_what_the_paper_says(decay: float, betas: tuple[float, float]) -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(3, 4))
    before = weight.detach().clone()
    grads = [torch.randn(3, 4) for _ in range(6)]
    grads[2].zero_()
    optimizer = Lion([weight], lr=0.01, betas=betas, weight_decay=decay)
    for grad in grads:
        weight.grad = grad.clone()
        optimizer.step()
    torch.testing.assert_close(weight.detach(), reference(before, grads, 0.01, betas, decay))


def test_parameters_without_a_gradient_are_left_alone() -> None:
    moved, still = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = Lion([moved, still], lr=0.1, weight_decay=0.5)
    moved.grad = torch.ones(2)
    optimizer.step()
    assert still.equal(torch.ones(2))
    assert not moved.equal(torch.ones(2))
    assert set(optimizer.state) == {moved}
    assert list(optimizer.state[moved]) == ["momentum"]


def test_groups_have_their_own_values() -> None:
    first, second = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizer = Lion([{"params": [first], "lr": 0.5}, {"params": [second]}], lr=0.1)
    for parameter in (first, second):
        parameter.grad = torch.ones(1)
    optimizer.step()
    assert (first.item(), second.item()) == (-0.5, pytest.approx(-0.1))

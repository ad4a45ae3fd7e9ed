import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from torchrelay.parallel import engine
from torchrelay.parallel.engine import Unit, autocast, local_gradients, run_units, squared_norm, to_device

CPU = torch.device("cpu")


class Recorder:
    """Runs units over a linear layer and notes when gradients were held back."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 1)
        self.notes: list[str] = []

    def loss(self, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        self.notes.append("loss")
        return self.layer(tensors["x"]).sum()

    @contextmanager
    def holding_back(self) -> Iterator[None]:
        self.notes.append("hold")
        yield
        self.notes.append("release")


def units(*weights: float) -> list[Unit]:
    generator = torch.Generator().manual_seed(1)
    return [
        Unit({"x": torch.randn(2, 3, generator=generator)}, weight, 5 + i) for i, weight in enumerate(weights)
    ]


def test_gradients_are_exchanged_once_with_the_last_unit() -> None:
    recorder = Recorder()
    run_units(units(1.0, 1.0, 1.0), recorder.loss, recorder.holding_back, CPU)
    assert recorder.notes == ["hold", "loss", "release", "hold", "loss", "release", "loss"]


def test_units_add_up_with_their_weights() -> None:
    recorder = Recorder()
    given = units(0.5, 2.0)
    total = run_units(given, recorder.loss, recorder.holding_back, CPU)
    weighted = sum(unit.weight * recorder.loss(unit.tensors) for unit in given)
    (expected,) = torch.autograd.grad(weighted, [recorder.layer.weight])
    assert recorder.layer.weight.grad is not None
    torch.testing.assert_close(recorder.layer.weight.grad, expected)
    torch.testing.assert_close(total, sum(recorder.loss(unit.tensors) for unit in given).detach())


@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0)])
def test_a_unit_without_weight_takes_part_but_counts_nothing(weights: tuple[float, ...]) -> None:
    recorder, alone = Recorder(), Recorder()
    given = units(*weights)
    total = run_units(given, recorder.loss, recorder.holding_back, CPU)
    counting = [unit for unit in given if unit.weight]
    assert total.equal(run_units(counting, alone.loss, alone.holding_back, CPU))
    assert recorder.notes.count("loss") == 2
    assert recorder.layer.weight.grad is not None
    assert recorder.layer.weight.grad.equal(alone.layer.weight.grad)


def test_only_units_without_weight_have_no_loss() -> None:
    recorder = Recorder()
    assert run_units(units(0.0), recorder.loss, recorder.holding_back, CPU).item() == 0.0


def test_randomness_belongs_to_the_unit_and_not_to_what_was_drawn_before() -> None:
    drawn: list[float] = []

    def loss(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        drawn.append(torch.rand(1).item())
        return (tensors["x"] * torch.ones(1, requires_grad=True)).sum()

    first, second = units(1.0, 1.0)
    recorder = Recorder()
    run_units([first, second], loss, recorder.holding_back, CPU)
    torch.manual_seed(99)
    run_units([second], loss, recorder.holding_back, CPU)
    assert drawn[1] == drawn[2] != drawn[0]


@pytest.mark.parametrize("flat", [True, False])
def test_the_norm_is_that_of_all_elements_together(monkeypatch: pytest.MonkeyPatch, flat: bool) -> None:
    monkeypatch.setattr(engine, "_FLAT_ELEMENTS", 10**9 if flat else 0)
    tensors = [torch.tensor([[3.0, 0.0]]), torch.tensor([4.0]), torch.empty(0, 5)]
    assert squared_norm(tensors) == pytest.approx(25.0)
    assert squared_norm([]) == 0.0
    assert math.isnan(squared_norm([torch.tensor([float("nan")]), torch.ones(2)]))
    assert squared_norm([torch.tensor([float("inf")])]) == float("inf")


def test_tensors_of_several_types_have_one_norm() -> None:
    tensors = [torch.tensor([3.0]), torch.tensor([4.0], dtype=torch.bfloat16)]
    assert squared_norm(tensors) == pytest.approx(25.0, rel=1e-2)


def test_only_gradients_that_exist_are_taken_and_they_are_not_copies() -> None:
    layer = nn.Linear(2, 1)
    layer.weight.grad = torch.ones(1, 2)
    (grad,) = local_gradients(layer.parameters())
    assert grad is layer.weight.grad


def test_on_the_cpu_tensors_stay_where_they_are() -> None:
    tensors = {"x": torch.ones(1)}
    moved = to_device(tensors, CPU)
    assert moved["x"] is tensors["x"]
    assert moved is not tensors  # the model may take things out of it


def test_bf16_is_only_on_when_asked_for() -> None:
    layer = nn.Linear(2, 2)
    for bf16, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        with autocast(CPU, bf16=bf16):
            assert layer(torch.ones(1, 2)).dtype is dtype

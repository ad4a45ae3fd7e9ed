import pytest
import torch
from torch import nn

from torchrelay.train.adamw import FusedAdamW

VALUES = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8}


def layers() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape)) for shape in ((5, 3), (3,), (4, 4), ())]


def groups(parameters: list[nn.Parameter]) -> list[dict[str, object]]:
    return [
        {"params": parameters[:1] + parameters[2:3], "weight_decay": 0.1},
        {"params": parameters[1:2] + parameters[3:], "weight_decay": 0.0},
    ]


def give_gradients(parameters: list[nn.Parameter], step: int, *, missing: int | None = None) -> None:
    generator = torch.Generator().manual_seed(step)
    for index, parameter in enumerate(parameters):
        parameter.grad = torch.randn(parameter.shape, generator=generator)
        if index == missing:
            parameter.grad = None


def test_it_equals_torch_s_own_bit_for_bit_and_so_does_its_state() -> None:
    ours, theirs = layers(), layers()
    fast = FusedAdamW(groups(ours), **VALUES)  # type: ignore[arg-type]
    slow = torch.optim.AdamW(groups(theirs), fused=True, **VALUES)  # type: ignore[arg-type]
    for step in range(1, 8):
        for parameters, optimizer in ((ours, fast), (theirs, slow)):
            for group in optimizer.param_groups:
                group["lr"] = 0.01 / step
            # One parameter takes part only later, so that counters differ.
            give_gradients(parameters, step, missing=2 if step < 4 else None)
            optimizer.step()  # type: ignore[attr-defined]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.equal(other)
        assert fast.state[mine].keys() == slow.state[other].keys()
        assert all(fast.state[mine][key].equal(slow.state[other][key]) for key in fast.state[mine])


def test_parameters_begun_together_share_a_counter_that_counts_once_a_step() -> None:
    parameters = layers()
    optimizer = FusedAdamW(groups(parameters), **VALUES)  # type: ignore[arg-type]
    for step in (1, 2, 3):
        give_gradients(parameters, step)
        optimizer.step()
    assert [optimizer.state[p]["step"].item() for p in parameters] == [3.0] * 4
    assert optimizer.state[parameters[0]]["step"] is optimizer.state[parameters[2]]["step"]


def test_gradients_are_dropped_and_not_set_to_nought() -> None:
    parameters = layers()
    optimizer = FusedAdamW(groups(parameters), **VALUES)  # type: ignore[arg-type]
    give_gradients(parameters, 1)
    optimizer.zero_grad()
    assert [p.grad for p in parameters] == [None] * 4
    before = parameters[0].detach().clone()
    optimizer.step()
    assert parameters[0].equal(before)
    assert optimizer.state == {}


def test_groups_keep_what_they_were_given() -> None:
    optimizer = FusedAdamW([{"params": [], "lr": 0.5}], lr=0.1, betas=(0.1, 0.2), eps=0.3)
    (group,) = optimizer.param_groups
    assert (group["lr"], group["betas"], group["eps"]) == (0.5, (0.1, 0.2), pytest.approx(0.3))


def test_a_parameter_that_sits_a_step_out_does_not_count_it_before_and_after_a_resume() -> None:
    ours, theirs = layers(), layers()
    fast = FusedAdamW(groups(ours), **VALUES)  # type: ignore[arg-type]
    slow = torch.optim.AdamW(groups(theirs), fused=True, **VALUES)  # type: ignore[arg-type]
    for step in range(1, 9):
        if step == 6:  # as a checkpoint gives it back: every parameter with a counter of its own
            for state in fast.state.values():
                state["step"] = state["step"].clone()
        for parameters, optimizer in ((ours, fast), (theirs, slow)):
            give_gradients(parameters, step, missing=2 if step in (3, 7) else None)
            optimizer.step()  # type: ignore[attr-defined]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.equal(other)
        assert fast.state[mine]["step"].equal(slow.state[other]["step"])

import pytest
import torch
from torch import nn

from tests.unit.checkpoint.support import Trained
from torchrelay.checkpoint.state import (
    allocate_optimizer_state,
    group_values,
    model_state,
    optimizer_state,
    optimizer_values,
    restore_groups,
    restore_values,
)
from torchrelay.core.errors import CheckpointError


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(2, 2, bias=False)
        self.b = nn.Linear(2, 2, bias=False)
        self.b.weight = self.a.weight
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("table", torch.zeros(2), persistent=False)


def test_a_tied_parameter_is_saved_once_and_only_persistent_buffers() -> None:
    assert list(model_state(Tied())) == ["model/a.weight", "model/mean"]


def test_state_is_a_view_of_the_module_without_a_copy() -> None:
    trained = Trained()
    state = model_state(trained.module)
    assert not any(tensor.requires_grad for tensor in state.values())
    state["model/0.weight"].fill_(3.0)
    assert (trained.module[0].weight == 3.0).all()


def test_optimizer_state_is_named_by_its_parameter() -> None:
    trained = Trained()
    names = set(optimizer_state(trained.module, trained.optimizer))
    assert names == {
        f"optimizer/{parameter}/{key}"
        for parameter in ("0.weight", "0.bias", "1.weight", "1.bias", "2.weight")
        for key in ("step", "exp_avg", "exp_avg_sq")
    }
    fresh = torch.optim.AdamW(trained.module.parameters())
    assert optimizer_state(trained.module, fresh) == {}


def test_room_is_made_for_saved_state_in_a_fresh_optimizer() -> None:
    trained = Trained()
    saved = optimizer_state(trained.module, trained.optimizer)
    fresh = torch.optim.AdamW(trained.module.parameters(), lr=0.01)
    shapes = {name: (tuple(t.shape), t.dtype) for name, t in saved.items()}
    targets = allocate_optimizer_state(trained.module, fresh, shapes)
    assert targets.keys() == saved.keys()
    for name, target in targets.items():
        target.copy_(saved[name])
    again = optimizer_state(trained.module, fresh)
    assert all(again[name].equal(saved[name]) for name in saved)


@pytest.mark.parametrize(
    ("flags", "beside"), [({}, False), ({"fused": True}, True), ({"capturable": True}, True)]
)
def test_step_counters_lie_where_the_kernel_reads_them(flags: dict[str, bool], beside: bool) -> None:
    class Optimizer:
        """Groups and state; no real optimizer takes parameters on a device that is not there."""

    module = nn.Linear(2, 2, device="meta")
    optimizer = Optimizer()
    optimizer.param_groups = [{"params": list(module.parameters()), **flags}]  # type: ignore[attr-defined]
    optimizer.state = {}  # type: ignore[attr-defined]
    shapes = {
        "optimizer/weight/step": ((), torch.float32),
        "optimizer/weight/exp_avg": ((2, 2), torch.float32),
        "optimizer/weight/factor": ((2,), torch.float32),
    }
    targets = allocate_optimizer_state(module, optimizer, shapes)  # type: ignore[arg-type]
    devices = {name.rsplit("/", 1)[1]: tensor.device.type for name, tensor in targets.items()}
    assert devices == {"step": "meta" if beside else "cpu", "exp_avg": "meta", "factor": "meta"}


def test_plain_values_of_groups_come_back_but_not_what_the_recipe_decides() -> None:
    trained = Trained()
    trained.optimizer.param_groups[0]["k"] = 5
    saved = group_values(trained.optimizer)
    assert saved[0]["k"] == 5
    assert "params" not in saved[0]
    fresh = torch.optim.AdamW(trained.module.parameters(), lr=0.5)
    fresh.param_groups[0]["k"] = 0
    restore_groups(fresh, [saved[0] | {"unknown": 1}], keep=["lr"])
    assert (fresh.param_groups[0]["k"], fresh.param_groups[0]["lr"]) == (5, 0.5)
    assert "unknown" not in fresh.param_groups[0]


class Counting:
    """An optimizer that counts in plain numbers, as many do."""

    def __init__(self, module: nn.Module, value: object) -> None:
        self.param_groups = [{"params": list(module.parameters())}]
        self.state = {p: {"step": value, "average": torch.zeros_like(p)} for p in module.parameters()}


def test_plain_values_of_the_state_are_given_back() -> None:
    module = nn.Linear(2, 3)
    saved = optimizer_values(module, Counting(module, 7))
    assert saved == {"weight": {"step": 7}, "bias": {"step": 7}}
    fresh = Counting(module, 0)
    restore_values(module, fresh, saved)
    assert [fresh.state[p]["step"] for p in module.parameters()] == [7, 7]


def test_state_that_could_not_be_given_back_is_refused() -> None:
    module = nn.Linear(2, 3)
    with pytest.raises(CheckpointError, match="keeps 'step' of weight as list"):
        optimizer_values(module, Counting(module, [1]))

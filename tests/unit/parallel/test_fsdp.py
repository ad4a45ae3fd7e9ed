from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from tests.unit.parallel.support import StackTask, count_calls, placement
from tests.unit.parallel.test_world import environment
from torchrelay.core.errors import ModelError
from torchrelay.parallel.ddp import build_ddp_engine
from torchrelay.parallel.engine import Unit
from torchrelay.parallel.fsdp import build_fsdp_engine, build_mesh
from torchrelay.parallel.world import World, join_world

X = {"x": torch.linspace(-1, 1, 12).view(3, 4)}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with join_world(environment(), timeout_s=20.0) as world:
        yield world


def test_weights_are_sharded_and_equal_those_of_ddp(world: World) -> None:
    sharded = build_fsdp_engine(StackTask(), placement(world=world))
    whole = build_ddp_engine(StackTask(), placement())
    pairs = list(zip(sharded.module.named_parameters(), whole.module.named_parameters(), strict=True))
    assert all(isinstance(ours, DTensor) for (_, ours), _ in pairs)
    assert all(name == other for (name, _), (other, _) in pairs)
    assert all(ours.full_tensor().equal(theirs) for (_, ours), (_, theirs) in pairs)


@pytest.mark.parametrize("recompute", [False, True])
def test_one_shard_computes_what_ddp_computes(world: World, recompute: bool) -> None:
    sharded = build_fsdp_engine(StackTask(), placement(world=world, recompute=recompute))
    whole = build_ddp_engine(StackTask(), placement())
    calls = count_calls(sharded.module)
    units = [Unit(X, 1.0, 5), Unit(X, 0.5, 6), Unit(X, 0.0, 6)]
    assert sharded.forward_backward(units).item() == pytest.approx(whole.forward_backward(units).item())
    for ours, theirs in zip(sharded.gradients(), whole.gradients(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert len(calls) == (12 if recompute else 6)
    assert sharded.norm_share() == pytest.approx(whole.norm_share())
    assert sharded.loss(X).item() == pytest.approx(whole.loss(X).item())


def test_bf16_computes_in_bf16_and_keeps_weights_and_gradients_in_fp32(world: World) -> None:
    plain = build_fsdp_engine(StackTask(), placement(world=world))
    rough = build_fsdp_engine(StackTask(), placement(world=world, bf16=True))
    losses = [engine.forward_backward([Unit(X, 1.0, 5)]).item() for engine in (plain, rough)]
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    assert {grad.dtype for grad in rough.gradients()} == {torch.float32}


def test_the_mesh_has_a_dimension_for_copies_only_where_there_are_some(world: World) -> None:
    assert build_mesh(placement(world=world)).mesh_dim_names == ("shard",)


def test_a_model_without_parameters_is_refused(world: World) -> None:
    class Frozen(StackTask):
        def build(self, seed: int) -> nn.Module:
            return super().build(seed).requires_grad_(False)

    with pytest.raises(ModelError, match="no parameter to train"):
        build_fsdp_engine(Frozen(), placement(world=world))

import pytest
import torch
from torch import nn

from tests.unit.parallel.support import StackTask, count_calls, placement
from torchrelay.parallel.ddp import build_ddp_engine
from torchrelay.parallel.engine import Unit

X = {"x": torch.linspace(-1, 1, 12).view(3, 4)}


def test_alone_the_module_is_not_wrapped_and_the_norm_is_whole() -> None:
    engine = build_ddp_engine(StackTask(), placement())
    loss = engine.forward_backward([Unit(X, 1.0, 5)])
    grads = engine.gradients()
    assert loss.item() == pytest.approx(engine.loss(X).item())
    assert len(grads) == len(list(engine.module.parameters()))
    expected = sum(float(grad.double().square().sum()) for grad in grads)
    assert engine.norm_share() == pytest.approx(expected, rel=1e-6)


def test_measuring_a_loss_leaves_no_gradient() -> None:
    engine = build_ddp_engine(StackTask(), placement())
    assert not engine.loss(X).requires_grad
    assert engine.gradients() == []


def test_recompute_runs_every_block_twice_and_changes_no_gradient() -> None:
    engines = [build_ddp_engine(StackTask(), placement(recompute=recompute)) for recompute in (False, True)]
    calls = [count_calls(engine.module) for engine in engines]
    for engine in engines:
        engine.forward_backward([Unit(X, 1.0, 5), Unit(X, 0.5, 6)])
    assert [len(notes) for notes in calls] == [4, 8]
    first, second = (engine.gradients() for engine in engines)
    assert all(a.equal(b) for a, b in zip(first, second, strict=True))


def test_bf16_computes_in_bf16_and_keeps_weights_and_gradients_in_fp32() -> None:
    engines = [build_ddp_engine(StackTask(), placement(bf16=bf16)) for bf16 in (False, True)]
    plain, rough = (engine.forward_backward([Unit(X, 1.0, 5)]).item() for engine in engines)
    assert plain != rough
    assert rough == pytest.approx(plain, rel=0.05)
    assert {grad.dtype for grad in engines[1].gradients()} == {torch.float32}
    assert {p.dtype for p in engines[1].module.parameters()} == {torch.float32}


def test_parameters_that_are_not_trained_are_left_out() -> None:
    class Frozen(StackTask):
        def build(self, seed: int) -> nn.Module:
            module = super().build(seed)
            module.get_submodule("blocks.0").requires_grad_(False)
            return module

    engine = build_ddp_engine(Frozen(), placement())
    engine.forward_backward([Unit(X, 1.0, 5)])
    assert len(engine.gradients()) == 2

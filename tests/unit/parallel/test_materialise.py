import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.parallel.support import StackTask
from torchrelay.parallel.materialise import materialise, name_seed

CPU = torch.device("cpu")


def made(task: StackTask, seed: int, *, reverse: bool = False) -> dict[str, torch.Tensor]:
    module = task.build(seed)
    if reverse:
        for part in module.modules():
            part._parameters = dict(reversed(part._parameters.items()))
    materialise(module, task, seed=seed, device=CPU)
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def test_everything_on_meta_gets_memory_and_its_first_value() -> None:
    task = StackTask()
    tensors = made(task, 7)
    assert set(task.asked) == set(tensors)
    assert not any(tensor.is_meta for tensor in tensors.values())
    expected = torch.randn(4, 4, generator=torch.Generator().manual_seed(name_seed(7, "blocks.0.0.weight")))
    assert tensors["blocks.0.0.weight"].equal(expected)
    assert "scale" in tensors


def test_a_first_value_does_not_depend_on_the_order_of_creation() -> None:
    forward, backward = StackTask(), StackTask()
    first, second = made(forward, 7), made(backward, 7, reverse=True)
    assert forward.asked != backward.asked
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)


def test_another_seed_gives_other_weights() -> None:
    first, second = made(StackTask(), 7), made(StackTask(), 8)
    assert not any(first[name].equal(second[name]) for name in first)


def test_what_is_real_already_is_left_alone() -> None:
    task = StackTask(on_meta=False)
    module = task.build(7)
    before = {name: parameter.clone() for name, parameter in module.named_parameters()}
    materialise(module, task, seed=7, device=CPU)
    assert task.asked == []
    assert all(parameter.equal(before[name]) for name, parameter in module.named_parameters())


def test_no_generator_of_the_process_is_touched() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    made(StackTask(), 7)
    assert torch.rand(1).equal(expected)


@given(st.integers(0, 2**63 - 1), st.text(max_size=30))
def test_seeds_of_names_fit_torch(seed: int, name: str) -> None:
    found = name_seed(seed, name)
    assert 0 <= found < 2**63
    assert found == name_seed(seed, name)
    assert found != name_seed(seed, name + "x")


@pytest.mark.parametrize("pair", [((1, "a"), (1, "b")), ((1, "a"), (2, "a")), ((1, "2/a"), (12, "/a"))])
def test_different_names_and_seeds_do_not_meet(pair: tuple[tuple[int, str], tuple[int, str]]) -> None:
    assert name_seed(*pair[0]) != name_seed(*pair[1])

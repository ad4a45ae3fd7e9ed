from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.model.support import TOKENS
from torchrelay.core.errors import ModelError, RecipeError
from torchrelay.core.plugins import load_plugin
from torchrelay.model.python import build_python_task
from torchrelay.model.task import Task
from torchrelay.recipe.model_schema import ModelSection

NOT_CALLABLE = 3
BATCH = {"x": torch.ones(4, 3)}


class Returns(nn.Module):
    """Forward returns whatever the test says."""

    def __init__(self, answer: Any = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.answer = answer

    def forward(self, tensors: dict[str, torch.Tensor]) -> Any:
        return self.answer(tensors["x"] * self.weight)


class Plain(nn.Module):
    def __init__(self, width: int, *, scale: float = 1.0) -> None:
        super().__init__()
        self.inner = nn.Linear(3, width)
        self.scale = scale


def a_list() -> list[nn.Module]:
    return [nn.Linear(1, 1)]


def anything(size: int, **rest: int) -> nn.Module:
    return nn.Linear(size, 1)


def on_meta() -> nn.Module:
    return nn.Linear(2, 2, device="meta")


def meta_buffer() -> nn.Module:
    module = nn.Linear(2, 2)
    module.register_buffer("table", torch.empty(2, device="meta"))
    return module


def nested() -> nn.Module:
    module = nn.Module()
    module.activations = nn.ModuleList([nn.ReLU(), nn.ReLU()])
    module.trunk = nn.ModuleList([nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)])
    module.head = nn.Sequential(nn.Linear(2, 2))
    return module


def task_of(name: str, **options: Any) -> Task:
    return build_python_task(ModelSection(python=f"{__name__}:{name}", options=options), TOKENS)


def returning(answer: Any) -> tuple[Task, nn.Module]:
    task = task_of("Returns", answer=answer)
    return task, task.build(seed=1)


def refusal(answer: Any) -> str:
    task, module = returning(answer)
    with pytest.raises(ModelError) as caught:
        task.loss(module, BATCH)
    assert f"{__name__}:Returns" in caught.value.message
    assert "[samples]" in caught.value.hint
    return caught.value.message


def test_the_entry_point_leads_here() -> None:
    assert load_plugin("task", "python") is build_python_task


def test_losses_of_samples_are_summed() -> None:
    task, module = returning(lambda y: y.sum(1))
    assert task.loss(module, BATCH).item() == 12.0


def test_a_mean_counts_for_all_its_samples() -> None:
    task, module = returning(lambda y: y.sum(1).mean())
    assert task.loss(module, BATCH).item() == 12.0


def test_one_sample_may_answer_either_way() -> None:
    for answer in (lambda y: y.sum(1), lambda y: y.sum()):
        task, module = returning(answer)
        assert task.loss(module, {"x": torch.ones(1, 3)}).item() == 3.0


def test_half_precision_losses_are_summed_to_fp32() -> None:
    task, module = returning(lambda y: y.sum(1).bfloat16())
    assert task.loss(module, BATCH).dtype == torch.float32


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda y: None, "returned None"),
        (lambda y: y, "a tensor of shape [4, 3] and type float32 for 4 samples"),
        (lambda y: y.sum(1)[:2], "a tensor of shape [2] and type float32 for 4 samples"),
        (lambda y: (y.sum(), y), "an object of type tuple"),
        (lambda y: {"loss": y.sum()}, "an object of type dict"),
        (lambda y: y.sum().item(), "an object of type float"),
        (lambda y: y.sum(1).long(), "a tensor of shape [4] and type int64"),
        (lambda y: y.sum(1).detach(), "that no parameter was used for"),
    ],
)
def test_what_is_no_loss_is_described(answer: Any, said: str) -> None:
    assert said in refusal(answer)


def test_in_validation_a_loss_needs_no_gradient() -> None:
    task, module = returning(lambda y: y.sum(1).detach())
    with torch.no_grad():
        assert task.loss(module, BATCH).item() == 12.0


def test_options_reach_the_function() -> None:
    module = task_of("Plain", width=5, scale=2.0).build(seed=1)
    assert isinstance(module, Plain)
    assert (module.inner.out_features, module.scale) == (5, 2.0)


def test_options_that_do_not_fit_are_found_before_anything_is_built() -> None:
    with pytest.raises(RecipeError) as caught:
        task_of("Plain", widht=5)
    plain = f"{__name__}:Plain"
    assert f"model.options.widht: {plain} has no such argument; did you mean 'width'?" in str(caught.value)
    assert f"model.options.width: is missing, {plain} needs it" in str(caught.value)


def test_a_function_may_take_any_option() -> None:
    assert task_of("anything", size=3, other=4).build(seed=1).weight.shape == (1, 3)


def test_the_seed_decides_the_weights() -> None:
    a, b, c = (task_of("Plain", width=5, scale=1.0).build(seed=seed).inner.weight for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_a_reference_that_leads_nowhere_is_named() -> None:
    with pytest.raises(RecipeError, match=r"model\.python"):
        task_of("nothing")


def test_something_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(ModelError, match="an object of type int, expected a function"):
        task_of("NOT_CALLABLE")


def test_another_kind_of_model_is_refused() -> None:
    with pytest.raises(ModelError, match=r"no model\.python"):
        build_python_task(ModelSection(plugin="x"), TOKENS)


def test_only_a_module_is_accepted() -> None:
    with pytest.raises(
        ModelError, match=r":a_list returned an object of type list, expected a torch\.nn\.Module"
    ):
        task_of("a_list").build(seed=1)


def test_parameters_need_values() -> None:
    with pytest.raises(ModelError, match=r":on_meta left 2 parameters without values, weight first"):
        task_of("on_meta").build(seed=1)


def test_buffers_need_values() -> None:
    task = task_of("meta_buffer")
    with pytest.raises(ModelError, match=":meta_buffer left the buffer table without values"):
        task.initial("table", torch.empty(2, device="meta"), torch.Generator())


def test_blocks_are_the_first_list_with_parameters() -> None:
    task = task_of("nested")
    module = task.build(seed=1)
    assert list(task.blocks(module)) == [module.trunk[0], module.trunk[2]]


def test_a_module_without_lists_has_no_blocks() -> None:
    task = task_of("Plain", width=2)
    assert list(task.blocks(task.build(seed=1))) == []


def test_weights_are_exported_as_they_are() -> None:
    export = task_of("Plain", width=2).export()
    weight = torch.ones(2)
    assert export.config is None
    assert list(export.convert("inner.weight", weight)) == [("inner.weight", weight)]
    assert list(export.extra()) == []

import pytest
from pydantic import BaseModel, ValidationError

from torchrelay.recipe.invalid import key_path, say_invalid
from torchrelay.recipe.types import Listed, PositiveInt


class Options(BaseModel):
    size: PositiveInt | Listed[PositiveInt] | None = None


def said(**values: object) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        Options.model_validate(values)
    return [f"{key_path(item['loc'])}: {say_invalid(item)}" for item in caught.value.errors()]


def test_the_types_that_a_value_may_have_are_no_keys() -> None:
    assert said(size=0) == [
        "size: input should be greater than or equal to 1, got 0",
        "size: input should be a list, got 0",
    ]
    assert said(size=[1, 0])[1] == "size[1]: input should be greater than or equal to 1, got 0"


@pytest.mark.parametrize(
    ("location", "path"),
    [
        (("data", "skip", 0), "data.skip[0]"),
        (("data", "mixture", 1, "weight"), "data.mixture[1].weight"),
        (("train", "micro_batch", "literal['auto']"), "train.micro_batch"),
        ((), ""),
    ],
)
def test_a_path_counts_items_in_brackets(location: tuple[str | int, ...], path: str) -> None:
    assert key_path(location) == path

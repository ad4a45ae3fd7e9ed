import pytest

from torchrelay.cli.build_input import parse_options
from torchrelay.core.errors import RecipeError


def test_values_are_json_where_they_can_be() -> None:
    words = ["n=3", "x=0.5", "name=a b", "list=[1, 2]", 'text="3"', "equation=a=b", "empty="]
    assert parse_options(words, "--option") == {
        "n": 3,
        "x": 0.5,
        "name": "a b",
        "list": [1, 2],
        "text": "3",
        "equation": "a=b",
        "empty": "",
    }


@pytest.mark.parametrize("word", ["novalue", "=3"])
def test_a_word_without_a_key_is_named(word: str) -> None:
    with pytest.raises(RecipeError, match=f"--option '{word}' is not of the form key=value"):
        parse_options([word], "--option")

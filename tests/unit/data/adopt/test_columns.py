import pytest

from torchrelay.data.adopt.columns import check_names, merge_columns
from torchrelay.data.manifest import Column


def columns(**dtypes: str) -> tuple[Column, ...]:
    return tuple(Column(name=name, dtype=dtype, shape=(2,)) for name, dtype in dtypes.items())


def test_what_differs_becomes_what_is_true_of_both() -> None:
    first = (Column(name="a", dtype="jpeg"), Column(name="b", dtype="int64", shape=(2, 3)))
    second = (Column(name="b", dtype="int64", shape=(2, 4)), Column(name="a", dtype="png"))
    assert merge_columns(first, second) == (Column(name="a", dtype="bytes"), Column(name="b", dtype="int64"))
    assert merge_columns(first, first) == first


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (columns(a="int64", b="float32"), "'b' is float32, in others int64"),
        (columns(a="int64"), "it has no 'b'"),
        (columns(a="int64", b="int64", c="str"), "it has 'c', which others do not have"),
        (columns(a="str", b="int64"), "'a' is str, in others int64"),
    ],
)
def test_what_cannot_be_both_is_named(second: tuple[Column, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        merge_columns(columns(a="int64", b="int64"), second)


def test_the_order_of_names_does_not_matter() -> None:
    check_names(["b", "a"], ["a", "b"])

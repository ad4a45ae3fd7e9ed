from dataclasses import replace
from typing import Any

import pytest

from torchrelay.core.errors import RecipeError
from torchrelay.data.manifest import Column, Content
from torchrelay.data.sample_shape import find_arrays, find_label_names
from torchrelay.recipe.data_schema import DataSection

PICTURES = Content(
    kind="samples",
    format="mds",
    splits={},
    columns=(Column(name="image", dtype="png"), Column(name="label", dtype="int64", shape=())),
    label_names=("cat", "dog"),
)


def section(**fields: Any) -> DataSection:
    return DataSection(dataset="pictures", **fields)


def images(**options: Any) -> DataSection:
    return section(decode="image", decode_options=options)


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"size": 8}, (3, 8, 8)),
        ({"size": [8, 6], "channels": 1}, (1, 8, 6)),
        ({}, (3, -1, -1)),
    ],
)
def test_images_have_the_shape_of_the_options(options: Any, shape: tuple[int, ...]) -> None:
    assert find_arrays(images(**options), PICTURES) == {"pixel_values": shape, "labels": ()}


def test_images_without_a_class_have_no_labels() -> None:
    content = replace(PICTURES, columns=PICTURES.columns[:1], label_names=None)
    assert find_arrays(images(size=8), content) == {"pixel_values": (3, 8, 8)}


def test_samples_that_are_not_decoded_are_their_columns() -> None:
    columns = (Column(name="x", dtype="float32", shape=(2, 3)), Column(name="y", dtype="float32"))
    assert find_arrays(section(), replace(PICTURES, columns=columns)) == {"x": (2, 3), "y": None}


def test_what_functions_make_and_texts_are_not_known() -> None:
    assert find_arrays(section(decode="own:decode"), PICTURES) is None
    assert find_arrays(section(decode="image", collate="own:collate"), PICTURES) is None
    assert find_arrays(section(), replace(PICTURES, kind="tokens", format="tok")) is None


def test_a_wrong_option_is_told() -> None:
    with pytest.raises(RecipeError, match="sise: unknown option"):
        find_arrays(images(sise=8), PICTURES)


def test_the_names_are_those_of_the_builds_label_alone() -> None:
    assert find_label_names(images(size=8), PICTURES) == ("cat", "dog")
    assert find_label_names(images(label="label"), PICTURES) == ("cat", "dog")
    assert find_label_names(images(label="image"), PICTURES) is None

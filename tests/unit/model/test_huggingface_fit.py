"""What of images a model cannot learn from; the problems of text are tested in `test_huggingface`."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.model.support import DOCUMENTS, IMAGES, TINY_VIT
from tests.unit.model.test_huggingface import refusal, task_of
from torchrelay.data.batch import DataFacts

TASK = "image-classification"


def refused(facts: DataFacts, **config: Any) -> str:
    return refusal(facts, config={**TINY_VIT, **config}, task=TASK)


def shaped(*shape: int) -> DataFacts:
    return replace(IMAGES, arrays={"pixel_values": shape, "labels": ()})


def test_texts_are_no_images() -> None:
    text = refused(DOCUMENTS)
    assert "1 problem" in text
    assert "model.huggingface.task: image-classification learns from images, and the data has tokens" in text
    assert "torchrelay data build --images" in text


def test_images_are_no_text() -> None:
    text = refusal(IMAGES, config={"model_type": "gpt2"})
    assert "causal-lm learns from tokens, and the data has none (set it to image-classification)" in text


def test_a_model_that_does_not_classify_images_is_refused() -> None:
    text = refusal(IMAGES, config={"model_type": "bert"}, task=TASK)
    assert "transformers has no image-classification model of type 'bert'" in text


def test_samples_need_images_and_labels() -> None:
    text = refused(replace(IMAGES, arrays={"height": (), "label": ()}))
    assert "needs pixel_values, and the samples have height, label (set data.decode: image" in text
    text = refused(replace(IMAGES, arrays={"pixel_values": (3, 8, 8)}, label_names=None))
    assert "1 problem" in text
    assert "needs labels, and the data has none (build the dataset from one folder of images a class" in text


@pytest.mark.parametrize(
    ("shape", "config", "said"),
    [
        ((3, 8, 6), {}, "images are 3 x 8 x 6, the model takes 3 x 8 x 8"),
        ((1, -1, -1), {}, "images are 1 x any x any, the model takes 3 x 8 x 8"),
        ((3, 8, 8), {"image_size": [8, 16]}, "images are 3 x 8 x 8, the model takes 3 x 8 x 16"),
        ((8, 8), {}, "images are 8 x 8, the model takes 3 x 8 x 8"),
    ],
)
def test_images_of_another_shape_are_refused(shape: tuple[int, ...], config: Any, said: str) -> None:
    text = refused(shaped(*shape), **config)
    assert f"data.decode_options: {said} (set size and channels to what the model takes)" in text


def test_what_is_not_known_before_reading_is_not_refused() -> None:
    for facts in (shaped(3, -1, -1), replace(IMAGES, arrays=None)):
        task_of(facts, config=TINY_VIT, task=TASK)
    task_of(shaped(3, 7, 99), config={"model_type": "resnet"}, task=TASK)  # takes images of any size


def test_the_classes_are_those_of_the_data() -> None:
    text = refused(IMAGES, num_labels=7)
    assert "config.num_labels: the model has 7 classes, the dataset 3 (leave num_labels" in text
    nameless = replace(IMAGES, label_names=None)
    assert "config.num_labels: num_labels is missing, and the data does not tell" in refused(nameless)
    task = task_of(nameless, config={**TINY_VIT, "num_labels": 7}, task=TASK)
    assert task.build(seed=1).get_parameter("classifier.weight").shape == (7, 16)

"""What of a transformers configuration does not fit the recipe or the data, as problems to be listed.

Nothing here imports transformers; the configurations are given.
"""

import difflib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchrelay.data.batch import DataFacts
from torchrelay.recipe.model_schema import HuggingFaceSection
from torchrelay.recipe.problem import Problem

WHERE = "model.huggingface"
IMAGES = "pixel_values"
LABELS = "labels"
"""What image models are given, by the names of the arrays."""


def key_problems(source: HuggingFaceSection, config: Any) -> Iterator[Problem]:
    """Transformers takes any key; one that is nearly the name of a real one is a slip."""
    kind = type(config)
    known = {*inspect.signature(kind.__init__).parameters, *kind.attribute_map, *dir(kind)}
    for key in source.config or {}:
        close = difflib.get_close_matches(key, known, n=1, cutoff=0.8)
        if close and key not in known:
            yield Problem(f"{WHERE}.config.{key}", f"unknown key; did you mean {close[0]!r}?")


def data_problems(source: HuggingFaceSection, config: Any, facts: DataFacts) -> Iterator[Problem]:
    """Sizes of the model that are too small for the data."""
    text = config.get_text_config()
    vocabulary = getattr(text, "vocab_size", None)
    context = getattr(text, "max_position_embeddings", None)
    if vocabulary is not None and facts.vocabulary is not None and vocabulary < facts.vocabulary:
        yield Problem(
            _key_path(source, "vocab_size"),
            f"vocab_size {vocabulary} is smaller than the dataset's {facts.vocabulary} token ids",
            "build the dataset with the model's tokenizer",
        )
    if context is not None and facts.sequence_length is not None and context < facts.sequence_length:
        yield Problem(
            "data.sequence_length",
            f"{facts.sequence_length} is longer than the {context} positions of the model",
            f"lower it to {context}",
        )


def token_problems(facts: DataFacts) -> Iterator[Problem]:
    """What a causal-lm cannot learn from."""
    if facts.vocabulary is None:
        has_images = IMAGES in (facts.arrays or {})
        yield Problem(
            f"{WHERE}.task",
            "causal-lm learns from tokens, and the data has none",
            "set it to image-classification" if has_images else "use model.python",
        )
    if facts.num_labels is not None:
        yield Problem(
            f"{WHERE}.task",
            f"causal-lm predicts tokens, but the documents carry one of {facts.num_labels} classes",
            "set it to sequence-classification, or data.reading to packed",
        )


def label_problems(
    source: HuggingFaceSection, given: dict[str, Any], config: Any, facts: DataFacts
) -> Iterator[Problem]:
    """What a sequence-classification cannot learn from; `given` is what the recipe or `config.json` says."""
    if facts.vocabulary is not None and facts.num_labels is None and facts.has_labels:
        yield Problem(
            "data.reading",
            "sequence-classification needs documents with labels, and this reading leaves the labels out",
            "set data.reading: documents",
        )
    elif facts.vocabulary is None or facts.num_labels is None:
        yield Problem(
            f"{WHERE}.task",
            "sequence-classification needs documents with labels, and the data has none",
            "build the dataset with labels and set data.reading to documents",
        )
    else:
        yield from _count_problems(source, given, config, facts.num_labels)
    if config.get_text_config().pad_token_id is None and facts.end_token is None:
        yield Problem(
            _key_path(source, "pad_token_id"),
            "pad_token_id is missing",
            "give the id of a token no document holds",
        )


def image_problems(
    source: HuggingFaceSection, given: Mapping[str, Any], config: Any, facts: DataFacts
) -> Iterator[Problem]:
    """What an image-classification cannot learn from, as far as it is known before reading."""
    if facts.vocabulary is not None:
        yield Problem(
            f"{WHERE}.task",
            "image-classification learns from images, and the data has tokens",
            "use a dataset of torchrelay data build --images, or another task",
        )
        return
    if facts.arrays is not None:
        yield from _array_problems(facts.arrays, config)
    if facts.label_names is not None:
        yield from _count_problems(source, given, config, len(facts.label_names))
    elif not _tells_classes(given) and LABELS in (facts.arrays or [LABELS]):
        yield Problem(
            _key_path(source, "num_labels"),
            "num_labels is missing, and the data does not tell how many classes it has",
            "give it; labels are numbers from 0",
        )


def image_misfit(config: Any, shape: Sequence[int]) -> str | None:
    """How images of `shape` [channels, height, width], -1 where unknown, differ from the model's."""
    channels, size = getattr(config, "num_channels", None), getattr(config, "image_size", None)
    height, width = size if isinstance(size, list | tuple) and len(size) == 2 else (size, size)
    wanted = [side if isinstance(side, int) else -1 for side in (channels, height, width)]
    if len(shape) == 3 and all(-1 in pair or pair[0] == pair[1] for pair in zip(shape, wanted, strict=True)):
        return None
    return f"images are {_shown(shape)}, the model takes {_shown(wanted)}"


def _array_problems(arrays: Mapping[str, tuple[int, ...] | None], config: Any) -> Iterator[Problem]:
    if IMAGES not in arrays:
        yield Problem(
            f"{WHERE}.task",
            f"image-classification needs {IMAGES}, and the samples have {', '.join(arrays)}",
            "set data.decode: image for a dataset of images",
        )
        return
    if LABELS not in arrays:
        yield Problem(
            f"{WHERE}.task",
            "image-classification needs labels, and the data has none",
            "build the dataset from one folder of images a class, or name the column of the class in "
            "data.decode_options.label",
        )
    shape = arrays[IMAGES]
    misfit = None if shape is None else image_misfit(config, shape)
    if misfit:
        yield Problem("data.decode_options", misfit, "set size and channels to what the model takes")


def _count_problems(
    source: HuggingFaceSection, given: Mapping[str, Any], config: Any, num_labels: int
) -> Iterator[Problem]:
    if _tells_classes(given) and config.num_labels != num_labels:
        yield Problem(
            _key_path(source, "num_labels"),
            f"the model has {config.num_labels} classes, the dataset {num_labels}",
            "leave num_labels and id2label out to take the dataset's",
        )


def _tells_classes(given: Mapping[str, Any]) -> bool:
    return "id2label" in given or "num_labels" in given


def _shown(shape: Sequence[int]) -> str:
    return " x ".join("any" if side == -1 else str(side) for side in shape)


def _key_path(source: HuggingFaceSection, key: str) -> str:
    return f"{WHERE}.path" if source.config is None else f"{WHERE}.config.{key}"

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import xxhash

from tests.unit.data.build.sample_support import build, plan
from torchrelay.core.errors import DataError
from torchrelay.data.build.division import choose_split
from torchrelay.data.build.sample_columns import KEY
from torchrelay.data.build.sample_input import BadSample, Cell, RawSample


@dataclass
class Listed:
    """An input of samples in a list."""

    values: Sequence[dict[str, Any]]
    names: tuple[str, ...] | None = None
    default_label: str | None = None
    split: str | None = None
    broken: set[int] = field(default_factory=set)
    id = where = "listed"
    size = 1

    def units(self) -> list["Listed"]:
        return [self]

    def label_names(self) -> tuple[str, ...] | None:
        return self.names

    def samples(self) -> Iterator[RawSample | BadSample]:
        for number, values in enumerate(self.values):
            if number in self.broken:
                yield BadSample(f"row {number}", "is broken", "mend it")
            else:
                yield RawSample(values, f"row {number}", f"key {number}")

    preview = samples


def ids(values: Sequence[dict[str, Any]], **options: Any) -> list[int]:
    return [item.sample_id for item in build(Listed(values), **options).encoded]


def test_the_split_is_decided_by_the_id_alone() -> None:
    built = build(Listed([{"x": number} for number in range(300)]))
    assert {item.split for item in built.encoded} == {"train", "validation"}
    assert all(item.split == choose_split(item.sample_id, 0.3, 0.0) for item in built.encoded)
    assert 50 < sum(item.split == "validation" for item in built.encoded) < 130


def test_equal_samples_have_equal_ids_and_others_have_not() -> None:
    first, second, third = ids([{"a": "x", "b": "y"}, {"a": "x", "b": "y"}, {"a": "xy", "b": ""}])
    assert first == second != third


def test_the_label_and_its_number_are_no_part_of_the_id() -> None:
    few = ids([{"x": 1, "k": "b"}, {"x": 2, "k": "b"}], label_column="k")
    more = ids([{"x": 1, "k": "b"}, {"x": 2, "k": "a"}], label_column="k")
    assert few == more
    assert len(set(ids([{"k": "a"}, {"k": "b"}], label_column="k"))) == 2


def test_a_column_can_be_the_id() -> None:
    found = ids([{"n": "a", "x": 1}, {"n": "a", "x": 2}, {"n": "ä", "x": 2}], id_column="n")
    assert found == [xxhash.xxh3_64_intdigest(text.encode()) for text in ("a", "a", "ä")]
    assert ids([{"x": 1}], id_column=KEY) == [xxhash.xxh3_64_intdigest(b"key 0")]
    assert ids([{"x": Cell("12")}], id_column="x") == ids([{"x": 12}], id_column="x")


def test_a_given_split_counts_more_than_the_id() -> None:
    built = build(Listed([{"x": number} for number in range(20)], split="test"))
    assert {item.split for item in built.encoded} == {"test"}


def test_bad_samples_stop_the_build_or_are_listed() -> None:
    source = Listed([{"x": 1}] * 3, broken={1})
    with pytest.raises(DataError, match="row 1: is broken") as caught:
        build(source)
    assert caught.value.hint == "mend it; or leave out what is bad with --on-bad skip"
    built = build(source, on_bad="skip")
    assert len(built.samples) == 2 and built.problems == ["row 1: is broken"]


def test_samples_that_do_not_fit_are_listed_with_the_reason() -> None:
    values = [{"x": 1}, {"x": 2}, {"x": "text"}, {"x": None}, {"y": 1}, {"x": np.zeros(3)}, {"x": 3}]
    source = Listed([*values[:5], values[6]])
    built = build(source, on_bad="skip")
    assert [sample["x"] for sample in built.samples] == [1, 2, 3]
    assert [problem.partition(":")[0] for problem in built.problems] == ["row 2", "row 3", "row 4"]
    assert "'text' is not a number" in built.problems[0]
    assert "has no value" in built.problems[1] and "x, y" in built.problems[2]


def test_none_in_a_json_column_is_kept() -> None:
    built = build(Listed([{"x": {"a": 1}}, {"x": None}]), types={"x": "json"})
    assert [sample["x"] for sample in built.samples] == [{"a": 1}, None]


def test_classes_are_numbered_in_their_order() -> None:
    built = build(Listed([{"k": 10, "x": 0}, {"k": 9, "x": 0}]), label_column="k")
    assert built.plan.label_names == ("9", "10")
    assert [sample["label"] for sample in built.samples] == [1, 0]
    with pytest.raises(DataError, match="labels are of two types: 'b' at row 1, 9 at row 0"):
        plan(Listed([{"k": 9}, {"k": "b"}]), label_column="k")


def test_classes_that_the_input_names_keep_their_numbers() -> None:
    source = Listed([{"k": 2, "x": 0}, {"k": 0, "x": 0}], names=("c", "b", "a"), default_label="k")
    built = build(source)
    assert built.plan.label_names == ("c", "b", "a")
    assert [sample["label"] for sample in built.samples] == [2, 0]
    with pytest.raises(DataError, match="row 0: the label 3 is none of the 3 classes"):
        build(Listed([{"k": 3}], names=("c", "b", "a"), default_label="k"))


def test_a_default_label_that_is_not_there_is_no_label() -> None:
    built = build(Listed([{"x": 1}], default_label="cls"))
    assert built.plan.label is None and built.plan.classes is None

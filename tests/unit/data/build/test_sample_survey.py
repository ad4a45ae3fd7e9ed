from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchrelay.core.errors import DataError
from torchrelay.data.build import sample_survey
from torchrelay.data.build.sample_input import Cell, ImageBytes, RawSample
from torchrelay.data.build.sample_survey import Survey, class_of, describe_value


def survey(samples: Sequence[dict[str, Any]], first: int = 0, label: str | None = None) -> Survey:
    found = Survey(label)
    for number, values in enumerate(samples, start=first):
        found.add(RawSample(values, f"row {number}", str(number)))
    return found


@pytest.mark.parametrize(("value", "kind", "dtype", "shape"), [
    (1, "number", "int64", ()), (2**63, "number", "uint64", ()), (0.5, "number", "float64", ()),
    (True, "number", "uint8", ()), (np.float16(1), "number", "float16", ()),
    (np.zeros((2, 0), bool), "number", "uint8", (2, 0)), ([1, 2], "number", "int64", (2,)),
    ([[1.0], [2.0]], "number", "float64", (2, 1)), ([], "number", "", (0,)),
    ([[1], [2, 3]], "json", "", None),
    (["a", "b"], "json", "", None), ([1, None], "json", "", None), ({"a": 1}, "json", "", None),
    ("x", "str", "", None), (b"x", "bytes", "", None), (None, "none", "", None),
    (ImageBytes(b"\xff\xd8\xffx"), "image:jpeg", "", None), (ImageBytes(b"GIF"), "image:other", "", None),
    (Cell("5"), "cell:int64", "", None), (Cell(""), "cell:empty", "", None),
])  # fmt: skip
def test_what_a_value_is(value: Any, kind: str, dtype: str, shape: tuple[int, ...] | None) -> None:
    assert describe_value(value, "c", "here")[:3] == (kind, dtype, shape)


@pytest.mark.parametrize(
    "value", [object(), np.array(["a"]), np.array([1j]), {1, 2}, np.datetime64("2020-01-01")]
)
def test_what_no_dataset_holds_is_named(value: Any) -> None:
    with pytest.raises(
        DataError, match=f"here: the column 'c' holds {type(value).__name__}, which is not stored"
    ):
        describe_value(value, "c", "here")


_VALUE = st.one_of(
    st.integers(-300, 300), st.floats(), st.text(max_size=3), st.none(), st.lists(st.integers(), max_size=2),
    st.sampled_from(["1", "x", "", "0.5"]).map(Cell), st.sampled_from([np.int8(1), np.float32(2)]),
)  # fmt: skip
_SAMPLES = st.lists(st.dictionaries(st.sampled_from("ab"), _VALUE), max_size=12)


@given(samples=_SAMPLES, cut=st.integers(0, 12))
def test_surveys_of_parts_merge_to_the_survey_of_the_whole(samples: list[dict[str, Any]], cut: int) -> None:
    parts = survey(samples[:cut])
    parts.merge(survey(samples[cut:], first=min(cut, len(samples))))
    assert parts == survey(samples)


def test_classes_are_collected_with_their_first_place() -> None:
    found = survey([{"k": Cell("7")}, {"k": Cell("b")}, {"k": Cell("7")}], label="k")
    assert found.classes == {7: "row 0", "b": "row 1"}


@pytest.mark.parametrize("value", [1.5, True, None, "", [1], b"x", np.array([1])])
def test_what_is_no_class_is_named(value: Any) -> None:
    with pytest.raises(DataError, match="here: the label 'k' is"):
        class_of(value, "k", "here")


def test_too_many_classes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_survey, "MOST_CLASSES", 2)
    with pytest.raises(DataError, match="'k' has more than 2 classes"):
        survey([{"k": 1}, {"k": 2}, {"k": 3}], label="k")

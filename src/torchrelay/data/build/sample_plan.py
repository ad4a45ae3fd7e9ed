"""From units of input to encoded samples: survey all units, make one plan, encode every unit by it.

Surveying and encoding a unit depend on nothing but their arguments, so any process can do either, in
any order; results are put together in the order of the units.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import xxhash

from torchrelay.core.errors import DataError
from torchrelay.data.build.division import choose_split
from torchrelay.data.build.document import Intake, say_count, show
from torchrelay.data.build.sample_columns import KEY, LABEL, SampleOptions, infer_columns
from torchrelay.data.build.sample_image import OTHER, check_image
from torchrelay.data.build.sample_input import (
    BadSample,
    Cell,
    ImageBytes,
    RawSample,
    SampleInput,
    SampleUnit,
)
from torchrelay.data.build.sample_survey import Survey, class_of
from torchrelay.data.formats.mds import SampleEncoder
from torchrelay.data.formats.mds_encoding import NUMBER_TYPES
from torchrelay.data.manifest import Column
from torchrelay.store.base import Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePlan:
    """All that decides how a sample of the input is stored. Can be pickled."""

    columns: tuple[Column, ...]
    label: str | None
    """Column of the input that becomes `label`."""
    classes: tuple[int | str, ...] | None
    """The i-th is class i; None where there is no label."""
    id_column: str | None
    """See `SampleOptions`."""
    validation: float
    test: float
    """Shares of the samples of units that are in no split."""
    notes: tuple[str, ...] = ()
    """What is stored otherwise than it came, in words."""

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """Names of the classes, for the manifest."""
        return None if self.classes is None else tuple(str(name) for name in self.classes)


class Encoded(NamedTuple):
    """One sample as it is stored."""

    split: str
    sample_id: int
    data: bytes


def survey_unit(unit: SampleUnit, label: str | None, intake: Intake) -> Survey:
    """What is seen in a unit; `label` is what `choose_label` says. Bad samples go to `intake.refuse`."""
    survey = Survey(label)
    for sample in unit.preview():
        try:
            survey.add(_sound(sample))
        except DataError as error:
            intake.refuse(error)
    return survey


def choose_label(source: SampleInput, options: SampleOptions) -> str | None:
    """The column of the input that holds the class, if it has that column."""
    return options.label_column or source.default_label


def make_plan(
    survey: Survey, source: SampleInput, options: SampleOptions, *, validation: float, test: float = 0.0
) -> SamplePlan:
    """The plan for an input from the surveys of all its units; DataError where samples do not fit."""
    columns = infer_columns(survey, options)
    label = survey.label if survey.label in survey.columns else None
    names = source.label_names() if label == source.default_label else None
    classes: tuple[int | str, ...] | None = None
    if label is not None:
        classes = names or number_classes(survey.classes)
    return SamplePlan(
        columns=columns,
        label=label,
        classes=classes,
        id_column=options.id_column,
        validation=validation,
        test=test,
        notes=(*_list_changes(survey), *_list_texts(survey, columns, options)),
    )


def _list_changes(survey: Survey) -> Iterator[str]:
    for name, kinds in survey.columns.items():
        images = kinds.get(f"image:{OTHER}")
        if images is not None:
            yield (
                f"column {name!r}: {say_count(images.count, 'image')} neither jpeg nor png, stored as png "
                f"(the first is {images.where})"
            )


def _list_texts(survey: Survey, columns: Iterable[Column], options: SampleOptions) -> Iterator[str]:
    """Columns of text tables that would be numbers but for some fields."""
    texts = {column.name for column in columns if column.dtype == "str"} - options.types.keys()
    for name, kinds in survey.columns.items():
        text = kinds.get("cell:str")
        numbers = sum(kinds[kind].count for kind in ("cell:int64", "cell:float64") if kind in kinds)
        if text is not None and name in texts and numbers >= text.count:
            yield (
                f"column {name!r} is text because of {show(text.first)} at {text.where}; "
                f"{say_count(numbers, 'field')} of it could be numbers"
            )


def number_classes(classes: dict[int | str, str]) -> tuple[int | str, ...]:
    """Classes in their order; DataError when some are numbers and some are texts."""
    numbers = sorted(label for label in classes if isinstance(label, int))
    texts = sorted(label for label in classes if isinstance(label, str))
    if numbers and texts:
        raise DataError(
            f"labels are of two types: {texts[0]!r} at {classes[texts[0]]}, "
            f"{numbers[0]!r} at {classes[numbers[0]]}"
        )
    return (*numbers, *texts)


def encode_unit(unit: SampleUnit, plan: SamplePlan, intake: Intake) -> Iterator[Encoded]:
    """The samples of a unit in order; counts them. Bad ones go to `intake.refuse`."""
    encoder = UnitEncoder(plan)
    for sample in unit.samples():
        try:
            encoded = encoder.encode(_sound(sample), unit.split)
        except DataError as error:
            intake.refuse(error)
            continue
        intake.documents += 1
        yield encoded


def _sound(sample: RawSample | BadSample) -> RawSample:
    if isinstance(sample, BadSample):
        raise sample.error()
    return sample


class UnitEncoder:
    """Encodes samples by a plan. One thread."""

    def __init__(self, plan: SamplePlan) -> None:
        self._plan = plan
        self._encoder = SampleEncoder(plan.columns)
        self._class_numbers = {label: number for number, label in enumerate(plan.classes or ())}
        self._names_given = plan.classes is not None and all(isinstance(c, str) for c in plan.classes)
        self._sources = [(column, self._source(column)) for column in plan.columns]
        self._cells = {source: _cell_reader(column.dtype) for column, source in self._sources}
        self._id_places = [k for k, column in enumerate(plan.columns) if self._is_id(column)]
        self._id_sizes = struct.Struct(f"<{len(self._id_places)}Q")

    def encode(self, sample: RawSample, split: str | None) -> Encoded:
        """One sample; `split` as the unit tells. DataError that names where it is when it does not fit."""
        self._check_layout(sample)
        converted = {column.name: self._convert(column, name, sample) for column, name in self._sources}
        try:
            values = self._encoder.values(converted)
            data = self._encoder.join(values)
        except DataError as error:
            raise DataError(f"{sample.where}: {error.message}", hint=error.hint) from error
        sample_id = self._id(sample, values)
        plan = self._plan
        return Encoded(split or choose_split(sample_id, plan.validation, plan.test), sample_id, data)

    def _source(self, column: Column) -> str:
        """The column of the input that gives a column."""
        is_label = self._plan.label is not None and column.name == LABEL
        return str(self._plan.label) if is_label else column.name

    def _is_id(self, column: Column) -> bool:
        return self._plan.label is None or column.name != LABEL or len(self._plan.columns) == 1

    def _check_layout(self, sample: RawSample) -> None:
        if len(sample.values) == len(self._sources) and all(
            name in sample.values for _, name in self._sources
        ):
            return
        names = {name for _, name in self._sources}
        other = sorted(names ^ set(sample.values))
        raise DataError(f"{sample.where}: its columns differ from those of the dataset in {', '.join(other)}")

    def _convert(self, column: Column, name: str, sample: RawSample) -> Any:
        value = sample.values[name]
        if name == self._plan.label:
            return self._class_number(value, sample.where)
        try:
            if isinstance(value, Cell):
                return self._cells[name](value)
            if isinstance(value, ImageBytes):
                return check_image(value).data
        except ValueError as error:
            raise DataError(f"{sample.where}: column {name!r}: {error}") from error
        if value is None and column.dtype != "json":
            raise DataError(f"{sample.where}: the column {name!r} has no value")
        return value

    def _class_number(self, value: Any, where: str) -> int:
        label = class_of(value, str(self._plan.label), where)
        if isinstance(label, int) and self._names_given:  # classes that the input numbers itself
            number = label if 0 <= label < len(self._class_numbers) else None
        else:
            number = self._class_numbers.get(label)
        if number is None:
            raise DataError(
                f"{where}: the label {label!r} is none of the {len(self._class_numbers):,} classes"
            )
        return number

    def _id(self, sample: RawSample, values: list[Buffer]) -> int:
        if self._plan.id_column is not None:
            own = sample.key if self._plan.id_column == KEY else sample.values[self._plan.id_column]
            data = own if isinstance(own, bytes) else str(own).encode()
            return xxhash.xxh3_64_intdigest(data)
        parts = [values[place] for place in self._id_places]
        return xxhash.xxh3_64_intdigest(b"".join((self._id_sizes.pack(*map(len, parts)), *parts)))


def _cell_reader(dtype: str) -> Callable[[str], Any]:
    """What makes a value of a column of a field of a text table; ValueError when it cannot."""
    if dtype in NUMBER_TYPES:
        return float if dtype.startswith("float") else int
    return str.encode if dtype == "bytes" else str

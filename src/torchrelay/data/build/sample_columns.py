"""Which columns a dataset gets, decided from the survey of all its samples. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from torchrelay.core.errors import DataError
from torchrelay.core.plugins import nearest
from torchrelay.data.build.document import OnBad
from torchrelay.data.build.sample_survey import NUMBER, Seen, Survey
from torchrelay.data.formats.mds_encoding import NUMBER_TYPES
from torchrelay.data.manifest import Column

TEXT_TYPES = ("str", "bytes", "json", "jpeg", "png")
LABEL = "label"
"""The column that holds the number of the class."""
KEY = "__key__"
"""As `id_column`: what the input calls a sample, such as its path below the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOptions:
    """How samples are to be understood."""

    label_column: str | None = None
    """Column that holds the class; it is stored as `label`, a number from 0. None takes the input's own."""
    id_column: str | None = None
    """Column whose value says which samples are one and the same in all versions, or KEY. None: all that
    is in a sample but its label."""
    ragged: Collection[str] = ()
    """Columns whose arrays may differ in shape."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Type by column, where it is not to be the narrowest that holds all values."""
    on_bad: OnBad = "stop"


def infer_columns(survey: Survey, options: SampleOptions) -> tuple[Column, ...]:
    """The columns, sorted by name; the one of `survey.label` becomes `label`.

    DataError that names two places when samples differ in what a dataset must have in common.
    """
    names = _choose_names(survey, options)
    asked = [*options.ragged, *options.types, *([options.label_column] if options.label_column else [])]
    if options.id_column not in (None, KEY):
        asked.append(str(options.id_column))
    lost = next((name for name in asked if name not in names), None)
    if lost is not None:
        raise DataError(
            f"there is no column {lost!r}",
            hint=f"columns there: {', '.join(names)}{nearest(lost, list(names))}",
        )
    columns = [_infer(name, survey, options) for name in names if name != survey.label]
    if survey.label in names:
        columns.append(Column(name=LABEL, dtype="int64", shape=()))
        if survey.label != LABEL and LABEL in names:
            raise DataError(
                f"the class of column {survey.label!r} is stored as {LABEL!r}, which is there already",
                hint=f"rename the column {LABEL!r} of the input",
            )
    return tuple(sorted(columns, key=lambda column: column.name))


def _choose_names(survey: Survey, options: SampleOptions) -> tuple[str, ...]:
    """Columns that every sample must have."""
    if not survey.layouts or () in survey.layouts:
        what = "samples have no columns" if survey.layouts else "there are no samples in the input"
        raise DataError(what, hint="check the files")
    layouts = list(survey.layouts.items())
    if len(layouts) == 1 or options.on_bad == "skip":
        return max(layouts, key=lambda item: item[1][0])[0]
    (first, (_, where)), (second, (_, other)) = layouts[:2]
    lost, more = sorted(set(first) - set(second)), sorted(set(second) - set(first))
    parts = [f"lacks {', '.join(lost)}"] * bool(lost) + [f"also has {', '.join(more)}"] * bool(more)
    raise DataError(
        f"samples have different columns: {other} {' and '.join(parts)}, compared with {where}",
        hint="give every sample the same columns, or leave such samples out with --on-bad skip",
    )


def _infer(name: str, survey: Survey, options: SampleOptions) -> Column:
    kinds = survey.columns[name]
    declared = options.types.get(name)
    if declared is not None:
        return _declare(name, declared, kinds, options)
    group = _choose_group(name, kinds, options)
    found = [kind for kind in kinds if _group(kind) == group]
    if group == NUMBER:
        return _array(name, kinds[NUMBER], options)
    if group == "image":
        dtypes = {kind.partition(":")[2].replace("other", "png") for kind in found}
        return Column(name=name, dtype=dtypes.pop() if len(dtypes) == 1 else "bytes")
    if group == "cell":
        return _cell(name, kinds, options)
    return Column(name=name, dtype=group)


def _choose_group(name: str, kinds: Mapping[str, Seen], options: SampleOptions) -> str:
    """The kind of value that the column is for."""
    counts: dict[str, int] = {}
    for kind, seen in kinds.items():
        counts[_group(kind)] = counts.get(_group(kind), 0) + seen.count
    if set(counts) == {NUMBER, "json"} and kinds[NUMBER].is_list:
        return "json"
    if len(counts) > 1 and options.on_bad == "stop":
        first, second = list(kinds.values())[:2]
        what = [_say(kind) for kind in list(kinds)[:2]]
        raise DataError(
            f"the column {name!r} has {what[0]} at {first.where} and {what[1]} at {second.where}",
            hint="mend the input, or leave such samples out with --on-bad skip",
        )
    counts.pop("none", None)
    if not counts:
        raise DataError(f"the column {name!r} has no value in any sample")
    return max(counts, key=lambda group: counts[group])


def _array(name: str, seen: Seen, options: SampleOptions) -> Column:
    dtype = seen.dtype or "float64"
    if dtype == "object":
        raise DataError(
            f"the column {name!r} has whole numbers that no one type holds (from {seen.where} on)",
            hint=f"declare its type, such as --column-type {name}=float64",
        )
    return Column(name=name, dtype=dtype, shape=_shape(name, seen, options))


def _shape(name: str, seen: Seen, options: SampleOptions) -> tuple[int, ...] | None:
    if name in options.ragged:
        return None
    if seen.odd is not None:
        raise DataError(
            f"the column {name!r} has arrays of different shapes: {seen.shape} at {seen.where}, "
            f"{seen.odd[1]} at {seen.odd[0]}",
            hint=f"if that is meant, declare it with --ragged {name}",
        )
    return seen.shape


def _cell(name: str, kinds: Mapping[str, Seen], options: SampleOptions) -> Column:
    types = {kind.partition(":")[2] for kind in kinds if _group(kind) == "cell"}
    if types == {"empty"} or "str" in types:
        return Column(name=name, dtype="str")
    if "empty" in types and options.on_bad == "stop":
        raise DataError(
            f"{kinds['cell:empty'].where}: the column {name!r} is empty here, elsewhere it has numbers",
            hint=f"fill it, leave such rows out with --on-bad skip, or keep texts: --column-type {name}=str",
        )
    return Column(name=name, dtype="float64" if "float64" in types else "int64", shape=())


def _declare(name: str, dtype: str, kinds: Mapping[str, Seen], options: SampleOptions) -> Column:
    if dtype in TEXT_TYPES:
        return Column(name=name, dtype=dtype)
    if dtype not in NUMBER_TYPES:
        known = [*sorted(NUMBER_TYPES), *TEXT_TYPES]
        raise DataError(
            f"the column {name!r} cannot be of type {dtype!r}{nearest(dtype, known)}",
            hint=f"types: {', '.join(known)}",
        )
    seen = kinds.get(NUMBER)
    return Column(name=name, dtype=dtype, shape=() if seen is None else _shape(name, seen, options))


def _group(kind: str) -> str:
    return kind.partition(":")[0]


def _say(kind: str) -> str:
    """A kind in the words of an error."""
    group = _group(kind)
    words = {NUMBER: "a number or array", "str": "a text", "none": "no value", "json": "a list or dict"}
    return words.get(group, {"image": "an image", "cell": "a field"}.get(group, group))

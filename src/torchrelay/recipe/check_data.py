"""Combinations of the data section that cannot work. Pure."""

from collections import Counter
from collections.abc import Iterator

from torchrelay.recipe.data_schema import CurriculumPoint, DataSection, MixturePart
from torchrelay.recipe.horizon import Horizon, parse_horizon, parse_range
from torchrelay.recipe.problem import Problem

LEAST_SHARE = 2**-20
"""Smallest share of a part of a mixture; `order.mixture` works in blocks that hold each part."""


def data_problems(data: DataSection) -> Iterator[Problem]:
    """Every problem of the section, in its order."""
    given = [key for key in ("dataset", "mixture", "source") if getattr(data, key) is not None]
    if len(given) != 1:
        yield Problem(
            "data",
            f"give exactly one of dataset, mixture, source; got {' and '.join(given) or 'none'}",
            f"--set data.{given[0]}=null takes one away" if given else "",
        )
    if data.mixture is not None:
        yield from _mixture_problems(data.mixture)
    yield from _curriculum_problems(data)
    yield from _skip_problems(data)
    if data.source and ":" not in data.source:
        yield Problem("data.source", f"{data.source!r} is not of the form package.module:function")
    if data.options and not data.source:
        yield Problem("data.options", "only a source takes options")
    if data.batch_tokens is not None and (data.reading != "documents" or data.pad != "longest"):
        yield Problem("data.batch_tokens", "it needs reading: documents and pad: longest")
    if data.epoch_end == "stop" and data.mixture is not None:
        yield Problem(
            "data.epoch_end", "the parts of a mixture end their epochs at different times", "leave it endless"
        )


def may_count_tokens(data: DataSection) -> bool:
    """Whether tokens may be counted ahead; with `reading: auto` the dataset decides in the end."""
    return data.source is None and data.reading in ("auto", "packed")


def _mixture_problems(mixture: tuple[MixturePart, ...]) -> Iterator[Problem]:
    path = "data.mixture"
    if not mixture:
        yield Problem(path, "it has no part")
    names = Counter(part.dataset.partition("@")[0] for part in mixture)
    for name in [name for name, count in names.items() if count > 1]:
        yield Problem(path, f"{name} is in it more than once", "name it once, with the sum of the weights")
    yield from _share_problems(path, {part.dataset: part.weight for part in mixture})


def _share_problems(path: str, weights: dict[str, float]) -> Iterator[Problem]:
    total = sum(weights.values())
    for name, weight in weights.items():
        if 0 < weight < LEAST_SHARE * total:
            yield Problem(path, f"{name} has less than a millionth of the weight: {weight:g} of {total:g}")


def _curriculum_problems(data: DataSection) -> Iterator[Problem]:
    if data.curriculum and data.mixture is None:
        yield Problem("data.curriculum", "only a mixture has weights that may change")
        return
    before = Horizon(0, "steps")
    for number, point in enumerate(data.curriculum):
        path = f"data.curriculum[{number}]"
        yield from _point_problems(path, point, data)
        try:
            at = parse_horizon(point.at)
        except ValueError as error:
            yield Problem(f"{path}.at", str(error))
            continue
        if at.unit == "tokens" and not may_count_tokens(data):
            yield Problem(
                f"{path}.at", "tokens can only be counted ahead in the packed reading", "give steps"
            )
        if at.amount == 0 or (at.unit == before.unit and at.amount <= before.amount):
            yield Problem(f"{path}.at", f"{point.at} does not come after the point before it")
        before = at


def _point_problems(path: str, point: CurriculumPoint, data: DataSection) -> Iterator[Problem]:
    parts = [part.dataset for part in data.mixture or ()]
    wrong = sorted(set(point.weights) ^ set(parts))
    if wrong:
        yield Problem(
            f"{path}.weights",
            f"it must name each part of data.mixture as it is written there; see {', '.join(wrong)}",
        )
    if any(weight < 0 for weight in point.weights.values()) or not any(point.weights.values()):
        yield Problem(f"{path}.weights", "weights are 0 or more, and one of them above 0")
    else:
        yield from _share_problems(f"{path}.weights", point.weights)


def _skip_problems(data: DataSection) -> Iterator[Problem]:
    for number, text in enumerate(data.skip):
        try:
            parse_range(text)
        except ValueError as error:
            yield Problem(f"data.skip[{number}]", str(error))

"""What the recipe says about the order, as an `order.course.Plan`. Pure."""

from collections.abc import Sequence

from torchrelay.core.errors import RecipeError
from torchrelay.data.layout import parse_reference
from torchrelay.data.order.course import Change, Plan
from torchrelay.data.order.gaps import Gap
from torchrelay.data.order.history import Source
from torchrelay.recipe.data_schema import DataSection
from torchrelay.recipe.horizon import parse_horizon, parse_range


def make_plan(
    section: DataSection,
    sources: Sequence[Source],
    *,
    seed: int,
    batch: int,
    tokens_per_sample: int | None,
) -> Plan:
    """The plan for the training split; `sources` are in the order of the recipe."""
    return Plan(
        seed=seed,
        batch=batch,
        sources=tuple(sources),
        changes=_list_changes(section, tokens_per_sample and tokens_per_sample * batch),
        skip=tuple(Gap(*parse_range(text)) for text in section.skip),
        fills_epochs=section.epoch_end == "stop",
        migrate_from=section.migrate_from,
        may_add=section.mixture is not None,
    )


def plan_once(sources: Sequence[Source], *, seed: int) -> Plan:
    """The plan for a split that is read once, in stored order."""
    return Plan(seed=seed, batch=1, sources=tuple(sources), changes=(Change(0, (1.0,) * len(sources)),))


def references(section: DataSection) -> list[str]:
    """The datasets of the recipe, `NAME` or `NAME@PIN`; none for a Python source."""
    if section.mixture is not None:
        return [part.dataset for part in section.mixture]
    return [] if section.dataset is None else [section.dataset]


def pin_versions(section: DataSection, versions: dict[str, str]) -> DataSection:
    """The recipe with datasets pinned to the versions given by name; the others stay as they are."""

    def pin(reference: str) -> str:
        name = parse_reference(reference).name
        return f"{name}@{versions[name]}" if name in versions else reference

    if section.mixture is None:
        return section.model_copy(update={"dataset": section.dataset and pin(section.dataset)})
    mixture = tuple(part.model_copy(update={"dataset": pin(part.dataset)}) for part in section.mixture)
    curriculum = tuple(
        point.model_copy(update={"weights": {pin(name): weight for name, weight in point.weights.items()}})
        for point in section.curriculum
    )
    return section.model_copy(update={"mixture": mixture, "curriculum": curriculum})


def _list_changes(section: DataSection, tokens_per_step: int | None) -> tuple[Change, ...]:
    if section.mixture is None:
        return (Change(0, (1.0,)),)
    changes = [Change(0, tuple(part.weight for part in section.mixture))]
    for point in section.curriculum:
        horizon = parse_horizon(point.at)
        if horizon.unit == "tokens" and tokens_per_step is None:
            raise RecipeError(
                f"data.curriculum: {point.at} cannot be counted ahead in this reading",
                hint="give data.curriculum[].at in steps, or use data.reading: packed",
            )
        weights = tuple(point.weights[part.dataset] for part in section.mixture)
        changes.append(Change(horizon.steps(tokens_per_step or 1), weights))
    return tuple(changes)

"""Say everything in the recipe that a model cannot be built from, in one error."""

from collections.abc import Iterable

from torchrelay.core.errors import RecipeError
from torchrelay.recipe.problem import Problem


def demand_fit(problems: Iterable[Problem]) -> None:
    """Raise RecipeError that lists every problem with its recipe path; return when there is none."""
    rows = [_row(problem) for problem in problems]
    if not rows:
        return
    count = "1 problem" if len(rows) == 1 else f"{len(rows)} problems"
    raise RecipeError(
        f"the model cannot be built, {count}:\n" + "\n".join(rows),
        hint="torchrelay recipe reference lists every key with its meaning",
    )


def _row(problem: Problem) -> str:
    hint = f" ({problem.hint})" if problem.hint else ""
    return f"  {problem.path}: {problem.message}{hint}"

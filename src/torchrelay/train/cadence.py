"""When something recurring is due. Pure."""

from torchrelay.core.units import Every


def is_due(every: Every | None, *, step: int, elapsed_s: float) -> bool:
    """Whether it is time after `step` updates, `elapsed_s` seconds after the last time."""
    if every is None:
        return False
    if every.unit == "steps":
        return step % int(every.amount) == 0
    return elapsed_s >= every.amount

"""Where a run is in its data: one small record, the same on every rank. Pure.

`global_slot` is set from the committed step. What a loader has read ahead is not in it.
"""

from dataclasses import dataclass

from torchrelay.core.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPosition:
    """All that is needed to go on with exactly the next sample."""

    dataset_version: str
    seed: int
    order_version: int
    """`order.ORDER_VERSION` of the code that trained."""
    global_slot: int
    """Samples consumed since the start of the run."""


def check_position(saved: DataPosition, live: DataPosition) -> None:
    """DataError, with both sides, unless going on from `saved` with the data of `live` reads on exactly.

    The slots are not compared: `live` may stand anywhere.
    """
    if saved.dataset_version != live.dataset_version:
        raise DataError(
            f"the run has read version {saved.dataset_version[:12]} of its data up to sample "
            f"{saved.global_slot:,}; now data.dataset gives version {live.dataset_version[:12]}",
            hint=f"pin the version with NAME@{saved.dataset_version[:12]}, or start a new run",
        )
    if saved.seed != live.seed:
        raise DataError(
            f"the run has read its data in the order of run.seed {saved.seed}; now the seed is {live.seed}",
            hint=f"set run.seed back to {saved.seed}, or start a new run",
        )
    if saved.order_version != live.order_version:
        raise DataError(
            f"the run was made with order version {saved.order_version}; "
            f"this torchrelay has order version {live.order_version}",
            hint="resume with the torchrelay that started the run, or start a new run",
        )

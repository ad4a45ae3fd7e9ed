"""Where a run is in its data: one small record, the same on every rank. Pure.

`global_slot` is set from the committed step. What a loader has read ahead is not in it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

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

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return asdict(self)


def parse_position(tree: Mapping[str, Any]) -> DataPosition:
    """The record that `to_dict` wrote; DataError when it is not one."""
    kinds = {"dataset_version": str, "seed": int, "order_version": int, "global_slot": int}
    wrong = [name for name, kind in kinds.items() if type(tree.get(name)) is not kind]
    if wrong or set(tree) != set(kinds) or tree["global_slot"] < 0:
        raise DataError(
            f"{dict(tree)!r} is not a position in data"
            + (f": {', '.join(wrong)} missing or of the wrong type" if wrong else "")
        )
    return DataPosition(**tree)


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

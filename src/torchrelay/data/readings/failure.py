"""A sample that cannot be decoded: which one it is, where it lies, and how a run gets past it."""

import json
from typing import NamedTuple

from torchrelay.core.errors import DataError
from torchrelay.data.order.gaps import list_ranges


class Place(NamedTuple):
    """Where a sample lies, and when it was read."""

    sample_id: int
    epoch: int
    key: str
    """Of the shard."""
    row: int
    """Number of the sample in the shard."""


class SampleFailure(Exception):
    """A reading cannot give a sample. Never seen by users: a reader turns it into `tell`, with the slot."""

    def __init__(self, place: Place, reason: DataError) -> None:
        super().__init__(place)
        self.place = place
        self.reason = reason

    def tell(self, slot: int | None) -> DataError:
        """The error that names the sample; `slot` is None where the recipe cannot leave it out."""
        sample_id, epoch, key, row = self.place
        named = f"sample {sample_id}" if slot is None else f"sample {sample_id}, slot {slot}"
        hint = self.reason.hint
        if slot is not None:
            hint += f"; or leave it out with data.skip: {json.dumps(list_ranges([slot]))}"
        message = f"{named}, epoch {epoch} (sample {row} of shard {key}): {self.reason.message}"
        error = DataError(message, hint=hint.removeprefix("; or "))
        error.__cause__ = self.reason.__cause__ or self.reason
        return error

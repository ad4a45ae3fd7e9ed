"""Every error torchrelay raises on purpose.

RelayError
├── RecipeError          78  the recipe (or a command line) cannot be carried out
├── StoreError           78  a store cannot be reached, denies access, or lacks an object
│   ├── NotFoundError        the object is not there
│   └── AlreadyExistsError   a create-only write found the object already there
├── DataError            78  a dataset is missing, damaged, or not what the recipe says
├── CheckpointError       1  a checkpoint could not be written
│   └── DamagedError     78  nothing that was saved can be trusted
├── ModelError           78  the model does not keep the contract of its kind
├── NumericsError        93  loss or gradients are not finite; trying again would repeat it
├── DeadlineError         1  somebody did not arrive in time
└── RankLostError         1  a training process died

An error says what happened with its values, where (recipe path, file, shard), and one hint.
The number is the process exit code (see `ExitCode`).
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """What a scheduler should do next."""

    DONE = 0
    RETRYABLE = 1
    CHECKPOINTED = 75
    """Saved on request; requeue to go on."""
    BAD_INPUT = 78
    """Never retry without a change."""
    NO_PROGRESS = 93
    """Do not requeue."""
    BAD_NODE = 94
    BUDGET_STOP = 95


class RelayError(Exception):
    """Base of the tree. `hint` is one sentence that says what to do next, or empty."""

    exit_code = ExitCode.RETRYABLE

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n\nhint: {self.hint}" if self.hint else self.message


class RecipeError(RelayError):
    """The recipe or the command line cannot be carried out; lists every problem found."""

    exit_code = ExitCode.BAD_INPUT


class StoreError(RelayError):
    """A store cannot be reached, denies access, or answered something unusable."""

    exit_code = ExitCode.BAD_INPUT


class NotFoundError(StoreError):
    """The object is not in the store."""


class AlreadyExistsError(StoreError):
    """A create-only write found the object already there."""


class DataError(RelayError):
    """A dataset is missing, damaged, or not what the recipe says."""

    exit_code = ExitCode.BAD_INPUT


class CheckpointError(RelayError):
    """A checkpoint could not be written; what was committed before is untouched."""


class DamagedError(CheckpointError):
    """Saved state exists, but nothing of it can be trusted."""

    exit_code = ExitCode.BAD_INPUT


class ModelError(RelayError):
    """The model does not keep the contract of its kind."""

    exit_code = ExitCode.BAD_INPUT


class NumericsError(RelayError):
    """Loss or gradients are not finite; the update was not applied."""

    exit_code = ExitCode.NO_PROGRESS


class DeadlineError(RelayError):
    """A wait ended without everybody; the message names who is missing."""


class RankLostError(RelayError):
    """A training process died."""

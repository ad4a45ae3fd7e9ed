"""What the launcher tells a rank through environment variables; the only reader of them.

`torchrelay train` and `torchrun` set the same standard names (RANK, WORLD_SIZE, LOCAL_RANK,
MASTER_ADDR, MASTER_PORT); torchrelay's own launcher adds the TORCHRELAY_* ones.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from torchrelay.core.errors import RecipeError

ERROR_FOLDER = "TORCHRELAY_ERROR_FOLDER"
LOG_FOLDER = "TORCHRELAY_LOG_FOLDER"
LISTEN_FD = "TORCHRELAY_LISTEN_FD"
PARENT_PID = "TORCHRELAY_PARENT_PID"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnvironment:
    """Where this process stands among all; one process without a launcher is rank 0 of 1."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    address: str | None
    """Host of the rendezvous store; None when there is no launcher."""
    port: int
    listen_fd: int | None
    """An open listening socket that rank 0 is to serve the rendezvous store on."""
    error_folder: str | None
    """Folder for this rank's error report, read by the launcher."""
    log_folder: str | None
    parent_pid: int | None
    """The launcher; this process ends when it does."""

    @property
    def alone(self) -> bool:
        """No launcher: nobody to meet."""
        return self.address is None


def read_environment(variables: Mapping[str, str] = os.environ) -> RankEnvironment:
    """Parse the variables; RecipeError when they contradict each other."""
    try:
        rank = int(variables.get("RANK", "0"))
        world = int(variables.get("WORLD_SIZE", "1"))
        environment = RankEnvironment(
            rank=rank,
            world=world,
            local_rank=int(variables.get("LOCAL_RANK", str(rank))),
            local_world=int(variables.get("LOCAL_WORLD_SIZE", str(world))),
            address=variables.get("MASTER_ADDR") if "RANK" in variables else None,
            port=int(variables.get("MASTER_PORT", "0")),
            listen_fd=_optional_int(variables.get(LISTEN_FD)),
            error_folder=variables.get(ERROR_FOLDER),
            log_folder=variables.get(LOG_FOLDER),
            parent_pid=_parent_pid(variables),
        )
    except ValueError as error:
        raise RecipeError(f"RANK, WORLD_SIZE, LOCAL_RANK and MASTER_PORT must be numbers: {error}") from error
    if not 0 <= environment.rank < environment.world:
        raise RecipeError(f"RANK={environment.rank} is not below WORLD_SIZE={environment.world}")
    if environment.alone and environment.world > 1:
        raise RecipeError(f"WORLD_SIZE={environment.world}, but RANK or MASTER_ADDR is missing")
    return environment


def _parent_pid(variables: Mapping[str, str]) -> int | None:
    if PARENT_PID in variables:
        return int(variables[PARENT_PID])
    # torchrun's agent does not say who it is; its ranks would outlive it.
    return os.getppid() if "TORCHELASTIC_RUN_ID" in variables else None


def _optional_int(text: str | None) -> int | None:
    return None if text is None else int(text)

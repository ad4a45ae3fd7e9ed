"""All processes of an attempt, met and connected.

Three groups, so that none can delay another: torch's default one for gradients, `control` for
the loop's small exchanges, `checkpoint` for saving and loading (DCP hangs when it shares the
default group). Control and checkpoint are gloo, on the CPU, everywhere.
"""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from torchrelay.core.environment import RankEnvironment
from torchrelay.core.errors import DeadlineError, RankLostError, RecipeError, RelayError
from torchrelay.core.units import format_seconds

T = TypeVar("T")
_POLL_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One process among all. Methods are collectives: every rank calls them, or none."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    """Processes on this node; their ranks follow each other."""
    host: str
    device: torch.device
    control: dist.ProcessGroup
    checkpoint: dist.ProcessGroup

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which writes what is written once."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Add a small CPU tensor over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values, group=self.control)
        return values

    def share(self, value: T) -> T:
        """Rank 0's value, on every rank; any value that pickles."""
        if self.size == 1:
            return value
        box: list[Any] = [value]
        dist.broadcast_object_list(box, src=0, group=self.control)
        result: T = box[0]
        return result

    def lead(self, act: Callable[[], T]) -> T:
        """What `act` returns on rank 0, on every rank; its RelayError is raised on every rank too."""
        outcome: T | RelayError
        if self.leads:
            try:
                outcome = act()
            except RelayError as error:
                outcome = error
        else:
            outcome = RelayError("")
        outcome = self.share(outcome)
        if isinstance(outcome, RelayError):
            raise outcome
        return outcome

    def collect(self, value: T) -> list[T]:
        """Every rank's value, on every rank, by rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.control)
        return values


@contextmanager
def join_world(environment: RankEnvironment, *, timeout_s: float) -> Iterator[World]:
    """Meet all ranks within `timeout_s`, and leave cleanly at the end.

    DeadlineError names the ranks that did not come and the recipe key of the deadline.
    """
    device = _choose_device(environment)
    store = _open_rendezvous(environment, timeout_s)
    _wait_for_all(store, environment, timeout_s)
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("world", store),
        rank=environment.rank,
        world_size=environment.world,
        timeout=timeout,
        device_id=device if device.type == "cuda" else None,
    )
    try:
        with explaining(timeout_s):
            yield World(
                rank=environment.rank,
                size=environment.world,
                local_rank=environment.local_rank,
                local_size=environment.local_world,
                host=socket.gethostname(),
                device=device,
                control=dist.new_group(backend="gloo", timeout=timeout),
                checkpoint=dist.new_group(backend="gloo", timeout=timeout),
            )
    finally:
        dist.destroy_process_group()


@contextmanager
def explaining(timeout_s: float) -> Iterator[None]:
    """Raise errors of collectives in our words."""
    try:
        yield
    except RuntimeError as error:
        explained = explain(error, timeout_s)
        if explained is error:
            raise
        raise explained from error


_EXCHANGE = ("gloo", "nccl", "processgroup", "tcpstore", "application timeout caused pair closure")
"""One of these is in what torch says when an exchange fails."""


def explain(error: RuntimeError, timeout_s: float) -> Exception:
    """An error of a collective in our words; any other error, such as one of the model, unchanged."""
    text = str(error)
    if not isinstance(error, dist.DistError) and not any(sign in text.lower() for sign in _EXCHANGE):
        return error
    if "timed out" in text.lower() or "timeout" in text.lower():
        return DeadlineError(
            f"another rank did not take part in an exchange within {format_seconds(timeout_s)}: {text[:300]}",
            hint="its log says what it did; parallel.timeout sets how long to wait",
        )
    if any(
        sign in text for sign in ("Connection reset", "Connection closed", "Broken pipe", "closed by peer")
    ):
        return RankLostError(f"lost contact with another rank: {text[:300]}")
    return error


def _choose_device(environment: RankEnvironment) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if environment.local_rank >= count:
        raise RecipeError(
            f"{environment.local_world} processes on this node, but it has {count} GPUs",
            hint=f"use --nproc {count} or fewer",
        )
    device = torch.device("cuda", environment.local_rank)
    torch.cuda.set_device(device)
    return device


def _open_rendezvous(environment: RankEnvironment, timeout_s: float) -> dist.Store:
    if environment.alone:
        return dist.HashStore()
    timeout = timedelta(seconds=timeout_s)
    if environment.listen_fd is not None:
        return dist.TCPStore(
            environment.address or "127.0.0.1",
            environment.port,
            is_master=True,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=environment.listen_fd,
        )
    store, _, _ = next(dist.rendezvous("env://", environment.rank, environment.world, timeout=timeout))
    result: dist.Store = store
    return result


def _wait_for_all(store: dist.Store, environment: RankEnvironment, timeout_s: float) -> None:
    """Every rank signs in; whoever is missing at the deadline is named."""
    meeting = dist.PrefixStore("arrived", store)
    meeting.set(str(environment.rank), socket.gethostname())
    deadline = time.monotonic() + timeout_s
    missing = list(range(environment.world))
    while missing:
        missing = [rank for rank in missing if not meeting.check([str(rank)])]
        if missing and time.monotonic() > deadline:
            raise DeadlineError(
                f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))} of "
                f"{environment.world} did not arrive within {format_seconds(timeout_s)}",
                hint="look at their logs; parallel.timeout sets how long to wait",
            )
        if missing:
            time.sleep(_POLL_S)

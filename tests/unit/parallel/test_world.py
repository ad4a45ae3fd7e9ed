import socket
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from tests.unit.checkpoint.support import ALONE
from torchrelay.core.environment import RankEnvironment
from torchrelay.core.errors import DeadlineError, RankLostError, RecipeError
from torchrelay.parallel.world import explain, explaining, join_world


def environment(**fields: object) -> RankEnvironment:
    alone = RankEnvironment(
        rank=0,
        world=1,
        local_rank=0,
        local_world=1,
        address=None,
        port=0,
        listen_fd=None,
        error_folder=None,
        log_folder=None,
        parent_pid=None,
    )
    return replace(alone, **fields)


@pytest.mark.parametrize(
    "text",
    [
        "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:35220.",
        "[gloo/transport/tcp/pair.cc:553] Read error: Connection reset by peer",
        "[gloo/transport/tcp/buffer.cc:1] Broken pipe",
    ],
)
def test_a_lost_peer_is_an_echo_of_another_failure(text: str) -> None:
    assert isinstance(explain(RuntimeError(text), 30.0), RankLostError)


@pytest.mark.parametrize(
    "text",
    [
        "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete",
        "Application timeout caused pair closure",
    ],
)
def test_a_peer_that_does_not_come_is_told_with_the_deadline_and_its_key(text: str) -> None:
    explained = explain(RuntimeError(text), 90.0)
    assert isinstance(explained, DeadlineError)
    assert "within 1 min 30 s" in explained.message
    assert "parallel.timeout" in explained.hint


def test_an_error_of_the_rendezvous_store_is_one_of_an_exchange() -> None:
    assert isinstance(explain(dist.DistStoreError("wait timeout after 600000ms"), 1.0), DeadlineError)


@pytest.mark.parametrize(
    "text",
    [
        "the database did not answer: timeout",
        "Connection reset by peer",
        "mat1 and mat2 shapes cannot be multiplied",
        "",
    ],
)
def test_an_error_of_the_model_is_never_taken_for_one_of_an_exchange(text: str) -> None:
    error = RuntimeError(text)
    assert explain(error, 1.0) is error
    with pytest.raises(RuntimeError) as caught, explaining(1.0):
        raise error
    assert caught.value is error
    assert caught.value.__cause__ is None


def test_a_gloo_error_keeps_its_cause() -> None:
    error = RuntimeError("[gloo/x.cc:1] Connection closed by peer")
    with pytest.raises(RankLostError) as caught, explaining(1.0):
        raise error
    assert caught.value.__cause__ is error


def test_alone_every_exchange_is_one_s_own_value() -> None:
    values = torch.tensor([1.0, 2.0])
    assert ALONE.sum(values) is values
    assert ALONE.share("x") == "x"
    assert ALONE.collect("x") == ["x"]
    assert ALONE.lead(lambda: "x") == "x"
    assert ALONE.leads


def test_an_error_of_the_leader_is_raised() -> None:
    def fail() -> None:
        raise RecipeError("no", hint="yes")

    with pytest.raises(RecipeError, match="no"):
        ALONE.lead(fail)


def test_one_process_meets_itself_and_leaves_cleanly() -> None:
    with join_world(environment(), timeout_s=5.0) as world:
        assert (world.rank, world.size, world.leads) == (0, 1, True)
        assert dist.is_initialized()
    assert not dist.is_initialized()


def test_the_world_is_left_after_an_error_too() -> None:
    with pytest.raises(RecipeError), join_world(environment(), timeout_s=5.0):
        raise RecipeError("x")
    assert not dist.is_initialized()


def test_ranks_that_do_not_arrive_are_named_with_the_key_of_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listen_fd = listener.detach()
    with socket.socket(fileno=listen_fd) as listener:
        port = listener.getsockname()[1]
        there = environment(world=3, address="127.0.0.1", port=port, listen_fd=listener.detach())
        with (
            pytest.raises(DeadlineError, match="ranks 1, 2 of 3 did not arrive within 0.2 s") as caught,
            join_world(there, timeout_s=0.2),
        ):
            pass
    assert "parallel.timeout" in caught.value.hint

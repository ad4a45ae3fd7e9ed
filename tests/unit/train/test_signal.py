import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from torchrelay.core.errors import RankLostError
from torchrelay.train.signal import StopFlag, die_with_launcher

REQUESTS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in REQUESTS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    for number in REQUESTS:
        signal.signal(number, signal.SIG_IGN)  # what still waits goes nowhere
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", REQUESTS)
def test_a_request_sets_the_flag_and_does_nothing_else(number: int) -> None:
    flag = StopFlag()
    flag.install()
    assert not flag.raised
    os.kill(os.getpid(), number)
    assert flag.raised


def test_a_request_that_came_before_the_rank_was_ready_is_not_lost() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, REQUESTS)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # another thread may not take it
    flag = StopFlag()
    flag.install()
    assert flag.raised


def test_a_rank_without_a_launcher_binds_itself_to_nobody() -> None:
    die_with_launcher(None)


def test_a_rank_whose_launcher_is_gone_already_says_so() -> None:
    code = (
        "from torchrelay.train.signal import die_with_launcher\n"
        "try:\n    die_with_launcher(999999)\n"
        "except Exception as error:\n    print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith(f"{RankLostError.__name__} the launcher (process 999999) is gone")

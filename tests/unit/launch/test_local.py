"""The launcher over small shell programs instead of ranks."""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from torchrelay.core.environment import ERROR_FOLDER, LISTEN_FD, PARENT_PID, read_environment
from torchrelay.core.errors import RecipeError
from torchrelay.launch import local
from torchrelay.launch.local import Outcome, Wishes, run_local
from torchrelay.observe.failure import announce_run, report_failure

DEADLINE_S = 20.0

Launch = Callable[..., Outcome]


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Launch:
    """Start each rank as `sh -c` with the program given for it."""
    seen: dict[int, Mapping[str, str]] = {}
    monkeypatch.setattr(local, "GRACE_S", 0.2)

    def launch(*programs: str) -> Outcome:
        def start(arguments, rank, environment, listener, log) -> subprocess.Popen[bytes]:
            seen[rank] = environment
            descriptors = (listener.fileno(),) if rank == 0 else ()
            return subprocess.Popen(
                ["sh", "-c", programs[rank]],
                env=environment,
                stdout=log,
                stderr=log,
                pass_fds=descriptors,
                start_new_session=True,
            )

        monkeypatch.setattr(local, "_start", start)
        outcome = run_local([], num_processes=len(programs), wishes=wishes(tmp_path / "logs"))
        launch.seen = seen  # type: ignore[attr-defined]  # for the test that looks at the environment
        return outcome

    return launch


def wishes(logs: Path | None, told: list[int] | None = None) -> Wishes:
    return Wishes(keep_logs=lambda run: logs, tell_request=[].append if told is None else told.append)


def when(condition: Callable[[], bool], act: Callable[[], object]) -> threading.Thread:
    """Do something from a thread as soon as a condition holds."""

    def wait() -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > deadline:
                return
            threading.Event().wait(0.005)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_all_done_is_done(launch: Launch) -> None:
    outcome = launch("exit 0", "exit 0")
    assert (outcome.exit_code, outcome.cause, outcome.log) == (0, None, None)


def test_all_saved_is_75(launch: Launch) -> None:
    assert launch("exit 75", "exit 75").exit_code == 75


def test_a_rank_that_fails_takes_the_others_down_and_is_named_with_its_log(
    launch: Launch, tmp_path: Path
) -> None:
    begun = time.monotonic()
    outcome = launch(f"echo $$ > {tmp_path}/pid; exec sleep 60", "kill -9 $$")
    assert time.monotonic() - begun < DEADLINE_S
    assert outcome.exit_code == 1
    assert outcome.cause is not None
    assert outcome.cause.rank == 1
    assert outcome.log is not None
    assert outcome.log.name == "rank-00001.log"
    assert outcome.log.exists()
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_what_ranks_print_is_in_the_logs_of_their_run(launch: Launch, tmp_path: Path) -> None:
    announce = """echo '{"run": "t", "attempt": 1}' > $TORCHRELAY_ERROR_FOLDER/run.json"""
    launch(f"{announce}; echo zero >&2", "echo one")
    assert (tmp_path / "logs/rank-00000.log").read_text() == "zero\n"
    assert (tmp_path / "logs/rank-00001.log").read_text() == "one\n"


def test_what_failed_before_the_run_was_known_leaves_its_logs_elsewhere(
    launch: Launch, tmp_path: Path
) -> None:
    outcome = launch("echo zero >&2; exit 3")
    assert not (tmp_path / "logs").exists()
    assert outcome.log is not None
    assert outcome.log.read_text() == "zero\n"


def test_what_a_rank_had_started_ends_with_it(launch: Launch, tmp_path: Path) -> None:
    launch(f"sleep 60 & echo $! > {tmp_path}/child; exit 0")
    deadline = time.monotonic() + DEADLINE_S
    while not is_gone(int((tmp_path / "child").read_text())):
        assert time.monotonic() < deadline


def test_the_report_and_the_announced_run_of_a_rank_are_read(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(folder: str) -> None:
        announce_run(folder, run="t-2", attempt=3)
        report_failure(folder, RecipeError("no such thing", hint="try another"), rank=0)

    leave(str(tmp_path))
    copy = f'cp {tmp_path}/rank-00000.json {tmp_path}/run.json "${ERROR_FOLDER}"; exit 78'
    outcome = launch(copy)
    assert (outcome.exit_code, outcome.run, outcome.attempt) == (78, "t-2", 3)
    assert outcome.cause is not None
    assert outcome.cause.message == "no such thing"


def test_the_first_request_to_stop_is_passed_on_so_that_ranks_can_save(
    launch: Launch, tmp_path: Path
) -> None:
    thread = when(
        lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists(),
        lambda: os.kill(os.getpid(), signal.SIGINT),
    )
    saving = _ready_rank("os._exit(75)", tmp_path)
    outcome = launch(saving, saving)
    thread.join()
    assert outcome.exit_code == 75


def test_the_second_request_ends_at_once(launch: Launch, tmp_path: Path) -> None:
    ready = when((tmp_path / "0").exists, lambda: os.kill(os.getpid(), signal.SIGTERM))
    again = when((tmp_path / "told").exists, lambda: os.kill(os.getpid(), signal.SIGINT))
    outcome = launch(_ready_rank(f"open({str(tmp_path / 'told')!r}, 'w').close()", tmp_path))
    ready.join()
    again.join()
    assert (outcome.exit_code, outcome.cause) == (1, None)


def test_a_request_while_ranks_still_load_waits_for_them(launch: Launch, tmp_path: Path) -> None:
    thread = when(
        (tmp_path / "loading").exists,
        lambda: (os.kill(os.getpid(), signal.SIGTERM), (tmp_path / "asked").touch()),
    )
    wait = f"""
open({str(tmp_path / "loading")!r}, "w").close()
while not os.path.exists({str(tmp_path / "asked")!r}):
    pass
"""
    outcome = launch(_ready_rank("os._exit(75)", tmp_path, before=wait))
    thread.join()
    assert outcome.exit_code == 75


def test_a_request_before_the_last_rank_is_started_reaches_all(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def environment(rank: int, *rest: object) -> dict[str, str]:
        if rank == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return make_environment(rank, *rest)

    make_environment = local._environment
    monkeypatch.setattr(local, "_environment", environment)
    saving = _ready_rank("os._exit(75)", tmp_path)
    assert launch(saving, saving).exit_code == 75


def test_the_launchers_own_signals_are_put_back(launch: Launch) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    launch("exit 0")
    assert (signal.getsignal(signal.SIGTERM), signal.pthread_sigmask(signal.SIG_BLOCK, ())) == before


def test_every_rank_is_told_where_it_stands(launch: Launch) -> None:
    launch("exit 0", "exit 0", "exit 0")
    environments = [read_environment(launch.seen[rank]) for rank in range(3)]  # type: ignore[attr-defined]
    assert [(e.rank, e.world, e.local_rank, e.local_world) for e in environments] == [
        (rank, 3, rank, 3) for rank in range(3)
    ]
    assert len({e.port for e in environments}) == 1
    assert [e.listen_fd is not None for e in environments] == [True, False, False]
    assert {e.parent_pid for e in environments} == {os.getpid()}
    assert {LISTEN_FD, PARENT_PID} <= set(launch.seen[0])  # type: ignore[attr-defined]


def test_logs_get_a_folder_of_their_own_where_the_run_has_none(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local.tempfile, "tempdir", str(tmp_path))
    launch("exit 3")
    outcome = run_local([], num_processes=1, wishes=wishes(None))
    assert outcome.log is not None
    assert outcome.log.parent.parent == tmp_path
    assert json.loads(json.dumps(outcome.exit_code)) == 1


def _ready_rank(action: str, folder: Path, *, before: str = "") -> str:
    """A program that answers SIGTERM with `action` once it is ready, as a rank does; it says so by a file."""
    code = f"""
import os, signal
{before}
signal.signal(signal.SIGTERM, lambda *_: {action})
signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
open(os.path.join({str(folder)!r}, os.environ["RANK"]), "w").close()
while True:
    signal.pause()
"""
    return f"exec {shlex.join([sys.executable, '-S', '-c', code])}"

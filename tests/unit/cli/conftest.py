"""A finished run to look at with the command line."""

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.parallel.test_world import environment
from tests.unit.train.support import recipe
from torchrelay.cli.app import run
from torchrelay.train.rank import run_rank

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The store of a run `t` of six steps, with checkpoints of steps 2, 4 and 6."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    store = tmp_path_factory.mktemp("trained")
    run_rank(recipe(store), environment(), fresh=False)
    yield store
    for number, old in before.items():
        signal.signal(number, old)


@pytest.fixture
def store(trained: Path, tmp_path: Path) -> Path:
    """A copy of that store, to be damaged at will."""
    shutil.copytree(trained, tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], store: Path) -> Command:
    """Run a command on the store; gives exit code, output and errors."""

    def run_command(*words: str) -> tuple[int, str, str]:
        code = run([*words, "--store", str(store)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run_command

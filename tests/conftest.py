"""What every test may rely on: small processes, no credentials from outside, missing tools that count."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Tests start many small processes; several threads in each would only fight for the cores.
os.environ["OMP_NUM_THREADS"] = "1"
# Nothing may be looked up on a network, and no key of the developer may reach a test.
os.environ["HF_HUB_OFFLINE"] = "1"
for _name in [name for name in os.environ if name.startswith("AWS_")]:
    del os.environ[_name]
# Where there is no key at all, a client would ask the machine's metadata service for one.
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
os.environ["AWS_METADATA_ENDPOINT"] = "http://127.0.0.1:1"
os.environ["GOOGLE_BEARER_TOKEN"] = "of-nobody"
os.environ["AWS_SHARED_CREDENTIALS_FILE"] = os.environ["AWS_CONFIG_FILE"] = os.devnull

REPOSITORY = Path(__file__).parents[1]


def missing_tool(reason: str) -> None:
    """Skip where a tool is missing on somebody's machine; fail in CI, where it must be there."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason} (CI=true, so this may not be skipped)")
    pytest.skip(reason)


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Cached shards and the work folders of builds do not lie in the developer's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHRELAY_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def require_tool() -> Callable[[str], str]:
    """The path of a program that the test extras or the system bring, or a skip (a failure in CI)."""

    def require(name: str) -> str:
        beside = Path(sys.executable).with_name(name)
        found = str(beside) if beside.exists() else shutil.which(name)
        if found is None:
            missing_tool(f"the program {name!r} is not installed")
        return str(found)

    return require


@pytest.fixture
def torchrelay(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in a process of its own, in the test's folder."""

    def run(*arguments: str, timeout_s: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(Path(sys.executable).with_name("torchrelay")), *arguments],
            cwd=tmp_path,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    return run

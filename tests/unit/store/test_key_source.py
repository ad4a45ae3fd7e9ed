import json
import os
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path

import pytest

from torchrelay.core.errors import StoreError
from torchrelay.store.key_source import MARGIN_S, RECHECK_S, KeySource

NOW_S = 1.8e9
SECRET = "a-secret-nobody-may-see"


class Clock:
    def __init__(self) -> None:
        self.now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".aws").mkdir()
    return tmp_path


def source(home: Path, clock: Clock) -> KeySource:
    return KeySource({"HOME": str(home)}, clock=clock)


def write(home: Path, key: str) -> None:
    path = home / ".aws/credentials"
    old_ns = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {SECRET}\n")
    os.utime(path, ns=(old_ns + 10**9, old_ns + 10**9))  # a coarse clock of the file system must not matter


def write_command(home: Path, *lines: str) -> Path:
    program, runs = home / "keys.py", home / "runs"
    program.write_text("\n".join([f"open({str(runs)!r}, 'a').write('x')", *lines]))
    (home / ".aws/config").write_text(f'[default]\ncredential_process = "{sys.executable}" "{program}"\n')
    return runs


def printing(**more: object) -> str:
    return f"print({json.dumps({'Version': 1, 'AccessKeyId': 'id', 'SecretAccessKey': SECRET, **more})!r})"


def expiry_s(credential: dict[str, object]) -> float:
    moment = credential["expires_at"]
    assert isinstance(moment, datetime)
    return moment.timestamp()


def test_keys_of_a_file_are_to_be_asked_for_again_soon(home: Path, clock: Clock) -> None:
    write(home, "one")
    credential = source(home, clock)()
    assert (credential["access_key_id"], credential["secret_access_key"]) == ("one", SECRET)
    assert credential["token"] is None
    assert expiry_s(credential) == NOW_S + MARGIN_S + RECHECK_S


def test_a_file_is_read_again_only_when_it_has_changed(
    home: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchrelay.store import key_source

    reads: list[int] = []
    real = key_source.read_credentials
    monkeypatch.setattr(key_source, "read_credentials", lambda v: (reads.append(1), real(v))[1])
    write(home, "one")
    keys = source(home, clock)
    assert [keys()["access_key_id"] for _ in range(3)] == ["one"] * 3
    assert len(reads) == 1
    write(home, "two")
    assert keys()["access_key_id"] == "two"
    assert len(reads) == 2


def test_what_was_refused_is_read_again(home: Path, clock: Clock) -> None:
    runs = write_command(home, printing())
    keys = source(home, clock)
    keys()
    keys()
    assert runs.read_text() == "x"
    keys.forget()
    keys()
    assert runs.read_text() == "xx"


def test_a_command_is_run_again_some_minutes_before_its_keys_expire(home: Path, clock: Clock) -> None:
    expires = datetime.fromtimestamp(NOW_S + 3600, UTC).isoformat()
    runs = write_command(home, printing(SessionToken="t", Expiration=expires))
    keys = source(home, clock)
    first = keys()
    assert first["token"] == "t"
    clock.now_s = NOW_S + 3600 - MARGIN_S - 1
    assert expiry_s(keys()) == NOW_S + 3600
    assert runs.read_text() == "x"
    clock.now_s += 2
    keys()
    keys()  # the command printed the same: it is not run for every request
    assert runs.read_text() == "xx"
    clock.now_s += RECHECK_S
    keys()
    assert runs.read_text() == "xxx"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ((f"raise SystemExit({SECRET!r})",), "failed with exit code 1"),
        ((f"print({SECRET!r})",), "printed something else than keys"),
        (("print('[]')",), "printed something else than keys"),
        (('print(\'{"AccessKeyId": "x"}\')',), "printed something else than keys"),
        ((printing(Expiration="soon"),), "printed something else than keys"),
    ],
)
def test_a_command_that_gives_no_keys_is_told_without_its_output(
    home: Path, clock: Clock, lines: tuple[str, ...], told: str
) -> None:
    write_command(home, *lines)
    with pytest.raises(StoreError, match=told) as caught:
        source(home, clock)()
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_command_that_does_not_end_is_stopped(
    home: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchrelay.store.key_source.COMMAND_S", 0.5)
    write_command(home, "import time", "time.sleep(60)")
    with pytest.raises(StoreError, match="did not end"):
        source(home, clock)()


@pytest.mark.parametrize("command", ["/nothing/there", "'unfinished"])
def test_a_command_that_cannot_be_started_is_told(home: Path, clock: Clock, command: str) -> None:
    (home / ".aws/config").write_text(f"[default]\ncredential_process = {command}\n")
    with pytest.raises(StoreError, match="cannot be started"):
        source(home, clock)()


def test_keys_that_vanish_from_the_file_are_told(home: Path, clock: Clock) -> None:
    write(home, "one")
    keys = source(home, clock)
    keys()
    (home / ".aws/credentials").unlink()
    with pytest.raises(StoreError, match="no keys any more"):
        keys()


def test_a_secret_is_not_shown(home: Path, clock: Clock) -> None:
    write(home, "one")
    keys = source(home, clock)
    keys()
    assert SECRET not in repr(keys)

"""Locks that end with their holder."""

import os
import shutil
import threading
from pathlib import Path

import pytest

from torchrelay.data.cache.lock import hold, is_locked


def test_a_lock_is_seen_by_others_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with hold(path, 1.0):
        assert is_locked(path)
        with pytest.raises(TimeoutError, match="another process has held"), hold(path, 0.01):
            pass
    assert not is_locked(path)


def test_a_deleted_lock_file_does_not_let_two_in(tmp_path: Path) -> None:
    path = tmp_path / "f" / "x"
    path.parent.mkdir()
    with hold(path, 1.0):
        old = os.open(path, os.O_RDWR)
        shutil.rmtree(path.parent)
        path.parent.mkdir()
        with hold(path, 1.0):
            assert is_locked(path)
        os.close(old)


def test_those_who_wait_get_it_one_after_the_other(tmp_path: Path) -> None:
    inside, most = [0], [0]

    def work() -> None:
        for _ in range(20):
            with hold(tmp_path / "x", 20.0):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    assert most == [1] and inside == [0]

import errno
import os
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from torchrelay.core.errors import AlreadyExistsError, NotFoundError, StoreError
from torchrelay.store import files
from torchrelay.store.files import FileStore


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


@pytest.fixture(params=["tmpfs", "limit"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A place where a few megabytes are too many: a real full disk, and a limit of this process."""
    place = tmp_path / "small"
    place.mkdir()
    if request.param == "tmpfs":
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
        if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
            pytest.skip("only root may mount a small disk; the limit of the process stands in")
        yield place
        subprocess.run(["umount", "-l", str(place)], check=True)
        return
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    quiet = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    yield place
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, quiet)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_an_object_is_a_file_under_the_root(store: FileStore, tmp_path: Path) -> None:
    store.put("a/b", b"1")
    assert store.local_path("a/b") == tmp_path / "store/a/b"
    assert names(tmp_path) == ["store/a/b"]


@pytest.mark.parametrize("key", ["..", "../x", "a/../../x", "/etc/passwd", ""])
def test_a_key_cannot_name_a_file_outside(store: FileStore, key: str) -> None:
    for act in (store.local_path, store.get, store.delete, lambda key: list(store.list(key or ".."))):
        with pytest.raises(StoreError, match="is not a key"):
            act(key)


def test_of_eight_creating_at_once_exactly_one_wins(store: FileStore, tmp_path: Path) -> None:
    def claim(race: int, writer: int) -> int | None:
        try:
            store.put(f"{race}/claim", b"%d" % writer, if_absent=True)
        except AlreadyExistsError:
            return None
        return writer

    with ThreadPoolExecutor(8) as pool:
        for race in range(40):
            won = [who for who in pool.map(claim, [race] * 8, range(8)) if who is not None]
            assert len(won) == 1
            assert store.get(f"{race}/claim") == b"%d" % won[0]
    assert len(names(tmp_path)) == 40


def test_writers_of_one_key_never_mix_their_bytes(store: FileStore) -> None:
    def write(number: int) -> None:
        with store.open_writer("shared") as writer:
            for _ in range(20):
                writer.write(bytes([number]) * 1000)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(32)))
    content = store.get("shared")
    assert len(content) == 20_000
    assert len(set(content)) == 1


def test_folders_vanish_with_their_last_object_while_others_write(store: FileStore, tmp_path: Path) -> None:
    def put_and_delete(number: int) -> None:
        for _ in range(30):
            store.put(f"deep/er/{number}", b"1")
            store.delete(f"deep/er/{number}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(put_and_delete, range(4)))
    assert list((tmp_path / "store").iterdir()) == []


def test_a_killed_writer_leaves_nothing_to_be_seen(store: FileStore, tmp_path: Path) -> None:
    store.put("a/kept", b"old")
    program = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        from torchrelay.store.files import FileStore
        with FileStore(Path(sys.argv[1])).open_writer("a/kept") as writer:
            writer.write(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    command = [sys.executable, "-c", program, str(tmp_path / "store")]
    assert subprocess.run(command, timeout=60, check=False).returncode == -signal.SIGKILL
    assert len(names(tmp_path / "store")) == 2, "the half-written file is there"
    assert [entry.key for entry in store.list("")] == ["a/kept"]
    assert store.get("a/kept") == b"old"
    store.put("a/kept", b"new")  # and it is in nobody's way
    assert store.get("a/kept") == b"new"


def test_a_full_disk_is_an_oserror_and_keeps_the_old_object(small_disk: Path) -> None:
    store = FileStore(small_disk / "store")
    store.put("a/kept", b"old")
    for write in (lambda: store.put("a/kept", bytes(3 * 2**20)), lambda: _stream(store, "a/kept")):
        with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is checked
            write()
        assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)
    assert names(small_disk) == ["store/a/kept"]
    assert store.get("a/kept") == b"old"


def _stream(store: FileStore, key: str) -> None:
    with store.open_writer(key) as writer:
        for _ in range(30):
            writer.write(bytes(100_000))


def test_a_place_under_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = FileStore(tmp_path / "file" / "store")
    with pytest.raises(StoreError, match="cannot write") as caught:
        store.put("a", b"1")
    assert "--store" in caught.value.hint
    with pytest.raises(NotFoundError):
        store.get("a")
    assert list(store.list("")) == []
    store.delete("a")


def test_an_object_cannot_replace_a_folder(store: FileStore) -> None:
    store.put("a/b", b"1")
    with pytest.raises(StoreError, match="cannot write"):
        store.put("a", b"1")
    with pytest.raises(StoreError, match="cannot delete"):
        store.delete("a")
    with pytest.raises(StoreError, match="cannot write"):
        store.put("a/b/c", b"1")
    assert [entry.key for entry in store.list("")] == ["a/b"]


def test_a_folder_that_cannot_be_read_is_not_taken_for_an_empty_one(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a/b", b"1")

    def denied(folder: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    monkeypatch.setattr(files.os, "scandir", denied)
    with pytest.raises(StoreError, match="cannot list .*: Permission denied"):
        list(store.list(""))


def test_a_read_error_names_the_object(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("a", b"1")

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "open", broken)
    with pytest.raises(StoreError, match="cannot read file://.*/a: Input/output error"):
        store.get("a")


def test_file_and_folders_are_synced_before_the_object_is_seen(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    real_fsync, real_rename, real_link = os.fsync, Path.rename, os.link

    def fsync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        events.append("file" if "writing" in path else str(Path(path).relative_to(tmp_path)))
        real_fsync(descriptor)

    def rename(source: Path, target: Path) -> Path:
        events.append("seen")
        return real_rename(source, target)

    def link(source: Path, target: Path) -> None:
        events.append("seen")
        real_link(source, target)

    monkeypatch.setattr(files.os, "fsync", fsync)
    monkeypatch.setattr(files.os, "link", link)
    monkeypatch.setattr(Path, "rename", rename)
    store.put("a/b", b"1")
    new_folders = ["store", "."]  # each folder's own entry, in its parent
    assert events == [*new_folders, "file", "seen", "store/a"]
    events.clear()
    store.put("a/c", b"1", if_absent=True)
    assert events == ["file", "seen", "store/a"]


def test_a_long_name_fits_beside_its_temporary_one(store: FileStore) -> None:
    for name in ("x" * 255, "ä" * 127):
        store.put(name, b"1")
        assert store.get(name) == b"1"
    with pytest.raises(StoreError, match="File name too long"):
        store.put("x" * 256, b"1")

"""`file://`: a folder as a store, durable against power loss.

Our own rather than obstore's local store because a commit protocol needs what that one leaves
out, fsync of the file and of its folders (see docs/decisions/0001-own-local-store.md), and because
it may be used after a fork. Create-only writes are atomic (`os.link`). Temporary names carry a
random part, so a killed writer never blocks another.
"""

import errno
import os
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path

from torchrelay.core.errors import AlreadyExistsError, NotFoundError, StoreError
from torchrelay.store.base import TEMPORARY_MARK, Buffer, Entry, check_key, check_prefix

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PIECE_BYTES = 2**20
_ELSEWHERE = "choose another place with run.store or --store, or give yourself write access"


class FileWriter:
    """Appends to a temporary file; `FileStore.open_writer` renames it when all went well."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: Buffer) -> None:
        """Append all of `data`; raises OSError when the disk is full."""
        view = memoryview(data).cast("B")
        while view:
            view = view[os.write(self._descriptor, view) :]


class FileStore:
    """Objects are files under one root folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def url(self) -> str:
        """`file://` and the absolute folder."""
        return f"file://{self._root}"

    def local_path(self, key: str) -> Path:
        """The file that holds `key`, whether or not it exists."""
        return self._root / check_key(key)

    def put(self, key: str, data: Buffer, *, if_absent: bool = False) -> None:
        """See `Store.put`."""
        with self._replacing(key, create_only=if_absent) as writer:
            writer.write(data)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """See `Store.get`."""
        try:
            with self.local_path(key).open("rb") as file:
                file.seek(start)
                return file.read(-1 if length is None else length)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise NotFoundError(f"{self.url}/{key} does not exist") from error
        except OSError as error:
            raise StoreError(f"cannot read {self.url}/{key}: {error.strerror}") from error

    def stream(self, key: str, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        """See `Store.stream`."""
        left = sys.maxsize if length is None else length
        while piece := self.get(key, start=start, length=min(left, _PIECE_BYTES)):
            yield piece
            start, left = start + len(piece), left - len(piece)

    def list(self, prefix: str) -> Iterator[Entry]:
        """See `Store.list`."""
        prefix = check_prefix(prefix)
        return self._walk(self._root / prefix, f"{prefix}/" if prefix else "")

    def list_folders(self, prefix: str) -> Sequence[str]:
        """See `Store.list_folders`; one that was made for an object not yet written counts."""
        folder = self._root / check_prefix(prefix)
        return sorted(entry.name for entry in _scan(folder) if entry.is_dir(follow_symlinks=False))

    def delete(self, key: str) -> None:
        """See `Store.delete`; folders that become empty go too."""
        path = self.local_path(key)
        try:
            path.unlink(missing_ok=True)
        except NotADirectoryError:
            return
        except OSError as error:
            raise StoreError(f"cannot delete {self.url}/{key}: {error.strerror}") from error
        for parent in takewhile(lambda folder: folder != self._root, path.parents):
            try:
                parent.rmdir()
            except OSError:
                break

    @contextmanager
    def open_writer(self, key: str) -> Iterator[FileWriter]:
        """See `Store.open_writer`."""
        with self._replacing(key, create_only=False) as writer:
            yield writer

    def _walk(self, folder: Path, prefix: str) -> Iterator[Entry]:
        found = _scan(folder)
        names = {f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name for entry in found}
        for name in sorted(names):  # with the "/" the order is that of the whole keys
            if name.endswith("/"):
                yield from self._walk(folder / name, prefix + name)
            elif TEMPORARY_MARK not in name:
                with suppress(FileNotFoundError):
                    status = (folder / name).stat()
                    yield Entry(prefix + name, status.st_size, status.st_mtime)

    @contextmanager
    def _replacing(self, key: str, *, create_only: bool) -> Iterator[FileWriter]:
        path = self.local_path(key)
        temporary = path.with_name(f"{path.name[:50]}{TEMPORARY_MARK}{uuid.uuid4().hex}")
        with _told(path):
            descriptor = _create_with_folders(temporary)
        try:
            try:
                yield FileWriter(descriptor)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            with _told(path):
                (_link if create_only else _rename)(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        with suppress(FileNotFoundError):  # somebody deleted the object, and its folder, at once
            _fsync_folder(path.parent)


def _scan(folder: Path) -> Sequence[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [*entries]
    except (FileNotFoundError, NotADirectoryError):  # never there, or deleted while we walk
        return ()
    except OSError as error:  # an unreadable folder must not look like an empty one
        raise StoreError(f"cannot list {folder}: {error.strerror}") from error


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """A full disk stays an OSError; everything else that the system refuses is a StoreError."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise
        raise StoreError(f"cannot write {path}: {error.strerror}", hint=_ELSEWHERE) from error


def _create_with_folders(path: Path, tries: int = 5) -> int:
    for _ in range(tries - 1):
        # Another process may delete the folder in between because its last object went; mkdir then
        # finds it there and, a moment later, not there.
        with suppress(FileNotFoundError, FileExistsError):
            _make_folder(path.parent)
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    _make_folder(path.parent)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)


def _make_folder(folder: Path) -> None:
    """Durable too: a file is lost with the folder whose own entry was never written out."""
    missing = list(takewhile(lambda path: not path.exists(), (folder, *folder.parents)))
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        _fsync_folder(made.parent)


def sweep_temporaries(folder: Path) -> None:
    """Remove what killed writers left below a folder that nobody writes to at the moment."""
    for path in folder.rglob(f"*{TEMPORARY_MARK}*"):
        path.unlink(missing_ok=True)


def _link(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError as error:
        raise AlreadyExistsError(f"file://{path} exists already") from error


def _rename(temporary: Path, path: Path) -> None:
    temporary.rename(path)


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""`file://`: a folder as a store, durable against power loss.

Our own rather than obstore's local store because a commit protocol needs what that one leaves
out: fsync of the file and of its folder, and a create-only write that is atomic (`os.link`).
Temporary names carry a random part, so a killed writer never blocks another.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torchrelay.core.errors import AlreadyExistsError, NotFoundError, StoreError
from torchrelay.store.base import Buffer, Entry

TEMPORARY_MARK = ".writing-"
"""Part of the name of a file that is not complete; listings leave such files out."""


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
        path = self._root / key
        if not key or ".." in path.parts or key.startswith("/"):
            raise StoreError(f"{key!r} is not a key")
        return path

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
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFoundError(f"{self.url}/{key} does not exist") from error
        except (PermissionError, IsADirectoryError) as error:
            raise StoreError(f"cannot read {self.url}/{key}: {error.strerror}") from error

    def list(self, prefix: str) -> Iterator[Entry]:
        """See `Store.list`."""
        folder = self._root / prefix
        for parent, folders, files in os.walk(folder):
            folders.sort()
            for name in sorted(files):
                path = Path(parent, name)
                if TEMPORARY_MARK not in name:
                    with suppress(FileNotFoundError):  # deleted while we walk
                        status = path.stat()
                        key = path.relative_to(self._root).as_posix()
                        yield Entry(key, status.st_size, status.st_mtime)

    def delete(self, key: str) -> None:
        """See `Store.delete`; folders that become empty go too."""
        path = self.local_path(key)
        path.unlink(missing_ok=True)
        for parent in path.parents:
            if parent == self._root:
                break
            try:
                parent.rmdir()
            except OSError:
                break

    @contextmanager
    def open_writer(self, key: str) -> Iterator[FileWriter]:
        """See `Store.open_writer`."""
        with self._replacing(key, create_only=False) as writer:
            yield writer

    @contextmanager
    def _replacing(self, key: str, *, create_only: bool) -> Iterator[FileWriter]:
        path = self.local_path(key)
        temporary = path.with_name(f"{path.name}{TEMPORARY_MARK}{uuid.uuid4().hex}")
        descriptor = self._create(temporary)
        try:
            try:
                yield FileWriter(descriptor)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if create_only:
                _link(temporary, path, f"{self.url}/{key}")
            else:
                temporary.rename(path)
        finally:
            temporary.unlink(missing_ok=True)
        _fsync_folder(path.parent)

    def _create(self, path: Path) -> int:
        try:
            return _create_with_folders(path)
        except (PermissionError, NotADirectoryError, FileExistsError) as error:
            raise StoreError(
                f"cannot write under {path.parent}: {error.strerror}",
                hint="choose another place with run.store or --store, or give yourself write access",
            ) from error
        except OSError as error:
            if error.errno == 30:  # EROFS
                raise StoreError(f"cannot write under {path.parent}: read-only file system") from error
            raise


def _create_with_folders(path: Path, tries: int = 5) -> int:
    for _ in range(tries - 1):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Another process may delete the folder in between because its last object went.
        with suppress(FileNotFoundError):
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)


def _link(temporary: Path, path: Path, shown: str) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError as error:
        raise AlreadyExistsError(f"{shown} exists already") from error


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

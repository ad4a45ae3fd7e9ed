"""Brings shards from the store to the node's folder: one fetch for all processes, within the budget."""

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import xxhash

from torchrelay.data.cache.folder import Arriving, Incoming, shard_name
from torchrelay.data.cache.ledger import Busy, Due, Ledger, NoRoomError
from torchrelay.data.cache.lock import is_locked
from torchrelay.data.cache.origin import TRIES, Origin
from torchrelay.data.cache.room import room_for
from torchrelay.data.figures import Meter
from torchrelay.data.formats.unpack import unpack
from torchrelay.data.manifest import ShardEntry
from torchrelay.data.shard_bytes import damaged

FETCH_PATIENCE_S = 300.0
"""How long another process may make no progress on a shard that is waited for."""
_POLL_S = 0.01
_PIECE_BYTES = 2**20
_FULL = (errno.ENOSPC, errno.EDQUOT)
_AGAIN = (*_FULL, errno.ENOENT, errno.ESTALE)
"""What another try may mend: some room is made, or a folder that was deleted is made anew."""

Stopped = Callable[[], bool]


class Carrier:
    """Safe from any thread. OSError where the folder has no room or cannot be used."""

    def __init__(
        self, origin: Origin, ledger: Ledger, meter: Meter, *, patience_s: float = FETCH_PATIENCE_S
    ) -> None:
        self._origin = origin
        self._ledger = ledger
        self._meter = meter
        self._patience_s = patience_s
        self.checked: dict[str, int] = {}
        """Name of a shard → inode of the file whose bytes this process knows to be right."""

    def bring(self, entry: ShardEntry, due: Due, stopped: Stopped = lambda: False) -> Arriving | None:
        """Fetch a shard to the folder unless it is there; what others are fetching already is returned.

        DataError where it is damaged in the store.
        """
        shortage = 0
        for _ in range(TRIES - 1):
            try:
                return self._bring_once(entry, due, shortage, stopped)
            except NoRoomError:
                raise
            except OSError as error:
                if error.errno not in _AGAIN:
                    raise
                shortage = room_for(entry) if error.errno in _FULL else 0
        return self._bring_once(entry, due, shortage, stopped)

    def bring_or_wait(
        self, entry: ShardEntry, due: Due, let_go: Callable[[], None], room_patience_s: float
    ) -> None:
        """Until the shard is in the folder, or was a moment ago.

        Where there is no room `let_go` closes what this process keeps open without need; then others
        get `room_patience_s` to do the same.
        """
        deadline, has_let_go = time.monotonic() + room_patience_s, False
        while True:
            try:
                arriving = self.bring(entry, due)
            except NoRoomError:
                if has_let_go and time.monotonic() >= deadline:
                    raise
                time.sleep(_POLL_S if has_let_go else 0)
                let_go()
                has_let_go = True
                continue
            if arriving is None:
                return
            await_arrival(arriving, entry, self._patience_s)

    def _bring_once(self, entry: ShardEntry, due: Due, shortage: int, stopped: Stopped) -> Arriving | None:
        name = shard_name(entry)
        incoming = self._ledger.reserve(name, room_for(entry), due, shortage=shortage)
        if incoming is None:
            return None
        if isinstance(incoming, Busy):
            return incoming.arriving
        try:
            self._fetch(entry, name, incoming, stopped)
        finally:
            incoming.close()
        return None

    def _fetch(self, entry: ShardEntry, name: str, incoming: Incoming, stopped: Stopped) -> None:
        bad = self._origin.fetch(entry, incoming, self._meter, stopped)
        if bad is not None:
            kept = self._ledger.quarantine(incoming.path, name)
            where = f"; what came is in {kept}" if kept else ""
            why = bad.against(entry) + where
            raise damaged(self._origin.place, entry, why, adopted=self._origin.adopted)
        if entry.unpack is None:
            self._ledger.commit(incoming, incoming.path, name)
            self.checked[name] = os.fstat(incoming.descriptor).st_ino
            return
        unpack(entry.unpack, incoming.path, incoming.unpacked)
        size = entry.bytes + append_check(incoming.unpacked)
        if size > room_for(entry):
            self._ledger.enlarge(incoming, name, size)
        self._ledger.commit(incoming, incoming.unpacked, name)


def append_check(path: Path) -> int:
    """Write the hash of a file behind its bytes; its size with that."""
    digest = xxhash.xxh3_128()
    with path.open("r+b") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
        file.write(digest.digest())
        return file.tell()


def await_arrival(arriving: Arriving, entry: ShardEntry, patience_s: float) -> None:
    """Until another process is done with a shard or dead; TimeoutError when it makes no progress."""
    began = moved = time.monotonic()
    written = -1
    with suppress(FileNotFoundError):
        while is_locked(arriving.path):
            size = arriving.path.stat().st_size
            now = time.monotonic()
            if size != written:
                written, moved = size, now
            if now - moved > patience_s:
                raise TimeoutError(
                    f"process {arriving.holder} has been fetching shard {entry.key} for {now - began:.0f} s "
                    f"or more and is stuck at {written:,} of {entry.bytes:,} bytes"
                )
            time.sleep(_POLL_S)

"""The checkpoints of one run as they lie in the store: list, commit, quarantine, prune, verify.

No torch: `torchrelay checkpoint list` starts fast. One process at a time commits or prunes.
"""

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass

import xxhash

from torchrelay.checkpoint.manifest import (
    Commit,
    Manifest,
    Part,
    check_record,
    choose_deletions,
    commit_of,
    parse_name,
)
from torchrelay.core.clock import iso_time
from torchrelay.core.errors import (
    AlreadyExistsError,
    CheckpointError,
    DamagedError,
    NotFoundError,
    StoreError,
)
from torchrelay.store.base import Store
from torchrelay.store.files import sweep_temporaries

_READ_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelved:
    """One committed checkpoint and whether it may be used."""

    commit: Commit
    quarantine_reason: str | None
    is_recorded: bool = False
    """Whether the store holds the reason; a commit record that cannot be read is out of use without."""


class Shelf:
    """Everything below `runs/<id>/checkpoints/`."""

    def __init__(self, store: Store, run: str) -> None:
        self.store = store
        self.run = run
        self.prefix = f"runs/{run}/checkpoints"

    def all(self) -> list[Shelved]:
        """Every commit, oldest first; a record that cannot be read counts as quarantined."""
        commits: dict[tuple[int, int], Commit | str] = {}
        reasons: dict[tuple[int, int], str] = {}
        for name in self._record_names():
            kind, step, number = parse_name(name) or ("", 0, 0)
            content = self.store.get(f"{self.prefix}/{name}")
            if kind == "COMMITTED":
                commits[step, number] = _read_commit(content, name)
            elif kind == "QUARANTINE":
                reasons[step, number] = _read_reason(content)
        return [
            Shelved(
                commit=_placeholder(self.run, *key) if isinstance(value, str) else value,
                quarantine_reason=value if isinstance(value, str) else reasons.get(key),
                is_recorded=key in reasons,
            )
            for key, value in sorted(commits.items(), key=lambda item: item[0])
        ]

    def usable(self) -> list[Commit]:
        """Commits that are not quarantined, newest first."""
        return [s.commit for s in reversed(self.all()) if s.quarantine_reason is None]

    def read_manifest(self, commit: Commit) -> Manifest:
        """The manifest, checked against the commit record; DamagedError says what differs."""
        key = f"{self.prefix}/{commit.checkpoint}/manifest.json"
        try:
            content = self.store.get(key)
        except NotFoundError as error:
            raise DamagedError(f"{commit.checkpoint}/manifest.json is missing") from error
        digest = hashlib.sha256(content).hexdigest()
        if digest != commit.manifest_sha256:
            raise DamagedError(
                f"{commit.checkpoint}/manifest.json was changed: {len(content)} bytes with sha256 "
                f"{digest[:12]}…, committed were {commit.manifest_bytes} with {commit.manifest_sha256[:12]}…"
            )
        manifest = Manifest.from_bytes(content)
        check_record(commit, manifest, content)
        return manifest

    def commit(self, manifest: Manifest) -> Commit:
        """Check that all parts are there, then write manifest and commit record, the record last."""
        sizes = self._sizes(manifest.checkpoint)
        for part in manifest.parts:
            if sizes.get(part.name) != part.num_bytes:
                raise CheckpointError(
                    f"{manifest.checkpoint}/{part.name} has {sizes.get(part.name)} bytes, "
                    f"{part.num_bytes} were written"
                )
        content = manifest.to_bytes()
        self.store.put(f"{self._folder(manifest.checkpoint)}/manifest.json", content, if_absent=True)
        taken = [s.commit.number for s in self.all() if s.commit.step == manifest.progress.step]
        commit = commit_of(manifest, content, number=max(taken, default=0) + 1)
        try:
            self.store.put(f"{self.prefix}/{commit.name}", commit.to_bytes(), if_absent=True)
        except AlreadyExistsError as error:  # by another process, or by a retry whose answer was lost
            if self.store.get(f"{self.prefix}/{commit.name}") != commit.to_bytes():
                raise CheckpointError(f"{commit.name} was committed by another process meanwhile") from error
        with suppress(StoreError, OSError):  # only a hint: failing to write it changes nothing
            self.store.put(f"{self.prefix}/LATEST.json", commit.to_bytes())
        return commit

    def quarantine(self, commit: Commit, reason: str, now_s: float) -> None:
        """Take a commit out of use for good; a second reason for the same commit is dropped.

        A store that cannot be written leaves no record: whoever loads next finds the damage again.
        """
        facts = {"reason": reason, "checkpoint": commit.checkpoint, "at": iso_time(now_s)}
        with suppress(StoreError, OSError):
            self.store.put(
                f"{self.prefix}/{commit.quarantine_name}", json.dumps(facts).encode(), if_absent=True
            )

    def prune(self, *, keep_last: int, keep_every: int | None) -> list[Commit]:
        """Delete what retention lets go, and attempts older than the newest commit that never committed."""
        shelved = self.all()
        quarantined = frozenset(s.commit.name for s in shelved if s.quarantine_reason is not None)
        commits = [s.commit for s in shelved]
        gone = choose_deletions(commits, quarantined=quarantined, keep_last=keep_last, keep_every=keep_every)
        for commit in gone:
            # The record goes first: a reader then sees no checkpoint rather than half of one.
            self.store.delete(f"{self.prefix}/{commit.name}")
            self.discard(commit.checkpoint)
        self._delete_uncommitted(commits)
        return gone

    def verify(self, commit: Commit) -> list[str]:
        """Read every byte; what is wrong with the checkpoint, one line a finding. Empty is good."""
        if not commit.checkpoint:
            return [f"the commit record {commit.name} cannot be read"]
        try:
            manifest = self.read_manifest(commit)
        except DamagedError as error:
            return [error.message]
        sizes, findings = self._sizes(commit.checkpoint), []
        for part in manifest.parts:
            where = f"{commit.checkpoint}/{part.name}"
            fault = _find_fault(self.store, f"{self.prefix}/{where}", part, sizes.get(part.name))
            findings += [where + fault] if fault else []
        return findings

    def sweep(self) -> None:
        """Remove half-written files of killed attempts. Only while no attempt of the run is saving."""
        folder = self.store.local_path(self.prefix)
        if folder is not None:
            sweep_temporaries(folder)

    def discard(self, checkpoint: str) -> None:
        """Delete an attempt that is not committed (any more)."""
        for entry in list(self.store.list(self._folder(checkpoint))):
            self.store.delete(entry.key)

    def _delete_uncommitted(self, commits: list[Commit]) -> None:
        kept = {c.checkpoint for c in commits}
        unclear = {c.step for c in commits if not c.checkpoint}  # one of its folders may be the committed one
        newest = max((c.step for c in commits), default=0)
        for checkpoint in self._attempt_folders():
            step = int(checkpoint.split("/")[0].removeprefix("step-"))
            if checkpoint not in kept and step <= newest and step not in unclear:
                self.discard(checkpoint)

    def _sizes(self, checkpoint: str) -> dict[str, int]:
        return {e.key.rsplit("/", 1)[1]: e.size for e in self.store.list(self._folder(checkpoint))}

    def _folder(self, checkpoint: str) -> str:
        return f"{self.prefix}/{checkpoint}"

    def _record_names(self) -> list[str]:
        depth = self.prefix.count("/") + 1
        keys = [entry.key for entry in self.store.list(self.prefix)]
        return [key.rsplit("/", 1)[1] for key in keys if key.count("/") == depth]

    def _attempt_folders(self) -> set[str]:
        depth = self.prefix.count("/") + 1
        folders = set()
        for entry in self.store.list(self.prefix):
            parts = entry.key.split("/")
            if len(parts) == depth + 3 and parts[depth].startswith("step-"):
                folders.add(f"{parts[depth]}/{parts[depth + 1]}")
        return folders


def _find_fault(store: Store, key: str, part: Part, size: int | None) -> str:
    """What is wrong with a part whose file has `size` bytes, as it follows its name; empty for nothing."""
    if size is None:
        return " is missing"
    if size != part.num_bytes:
        return f": {size} bytes instead of {part.num_bytes}"
    digest = _hash_object(store, key, size)
    return "" if digest == part.xxh3 else f": checksum {digest} instead of {part.xxh3}"


def _hash_object(store: Store, key: str, size: int) -> str:
    digest = xxhash.xxh3_128()
    for start in range(0, size, _READ_BYTES):
        digest.update(store.get(key, start=start, length=min(_READ_BYTES, size - start)))
    return digest.hexdigest()


def _read_commit(content: bytes, name: str) -> Commit | str:
    try:
        return Commit.from_bytes(content, name)
    except DamagedError as error:
        return error.message


def _read_reason(content: bytes) -> str:
    try:
        return str(json.loads(content)["reason"])
    except (ValueError, KeyError, TypeError):
        return "quarantined; the reason cannot be read"


def _placeholder(run: str, step: int, number: int) -> Commit:
    return Commit(
        run=run, step=step, number=number, checkpoint="", samples=0, tokens=0, num_bytes=0, files=0, world=0,
        attempt=0, created_s=0.0, manifest_bytes=0, manifest_sha256="",
    )  # fmt: skip

"""What a checkpoint consists of, as JSON. Pure; no torch, no store.

    checkpoints/step-000001200/a-1-5f0c21aa/     an attempt: a fresh folder, never written again
        rank-00000.bin …                         raw tensor bytes, one file a rank
        manifest.json                            this module's Manifest
    checkpoints/COMMITTED-000001200-1.json       the commit record; the checkpoint exists from here on
    checkpoints/QUARANTINE-000001200-1.json      why that commit is not used any more
    checkpoints/LATEST.json                      a hint for people; never needed

Nothing is pickled. Every chunk carries the xxh3_128 of its bytes, so whoever reads a chunk knows
whether it is what was saved, at any process count.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torchrelay.core.errors import DamagedError
from torchrelay.data.order.position import DataPosition

SCHEMA = 2
_COMMIT_NAME = re.compile(r"(COMMITTED|QUARANTINE)-(\d{12})-(\d+)\.json")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A box of a tensor, stored as contiguous bytes of one file."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    """Byte at which it begins in the file."""
    num_bytes: int
    xxh3: str
    """xxh3_128 of the bytes, 32 hex digits."""


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A whole tensor, made of chunks that do not overlap."""

    dtype: str
    """Name as torch prints it, without "torch."."""
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """One rank's file."""

    name: str
    num_bytes: int
    xxh3: str
    """xxh3_128 of the whole file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where training stands after `step` updates."""

    step: int
    samples: int
    """Samples trained on; places that had none do not count."""
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What the state belongs to."""

    run: str
    attempt: int
    """Attempt of the run that saved it."""
    world: int
    engine: str
    replicate: int
    shard: int
    micro_batch: int
    recipe_hash: str
    code: str
    created_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything about one attempt to save."""

    checkpoint: str
    """Folder of the attempt, `step-…/a-…`."""
    progress: Progress
    origin: Origin
    position: DataPosition
    """Where the run is in its data after these updates."""
    tensors: dict[str, SavedTensor]
    """By name: `model/<parameter>` and `optimizer/<parameter>/<state>`."""
    optimizer_groups: list[dict[str, Any]]
    """Plain values of the optimizer's parameter groups."""
    optimizer_values: dict[str, dict[str, Any]]
    """Plain values of the optimizer's state, by parameter."""
    random_states: list[dict[str, Any]]
    """Random generators of each rank, in JSON."""
    parts: tuple[Part, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.num_bytes for part in self.parts)

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        content = {"schema": SCHEMA, **asdict(self)}
        return json.dumps(content, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Manifest":
        """Parse; DamagedError when it is not a manifest of this schema."""
        try:
            fields = json.loads(content)
            if fields.pop("schema") != SCHEMA:
                raise ValueError(f"its schema is not {SCHEMA}")
            fields["progress"] = Progress(**fields["progress"])
            fields["origin"] = Origin(**fields["origin"])
            fields["position"] = DataPosition.from_json(fields["position"])
            fields["parts"] = tuple(Part(**part) for part in fields["parts"])
            fields["tensors"] = {name: _tensor(value) for name, value in fields["tensors"].items()}
            return cls(**fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DamagedError(f"the checkpoint's manifest is damaged: {error}") from error


def _tensor(fields: dict[str, Any]) -> SavedTensor:
    chunks = tuple(
        Chunk(tuple(c["offsets"]), tuple(c["sizes"]), c["file"], c["start"], c["num_bytes"], c["xxh3"])
        for c in fields["chunks"]
    )
    return SavedTensor(fields["dtype"], tuple(fields["shape"]), chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The record that makes a checkpoint exist."""

    run: str
    step: int
    number: int
    """1, or more when earlier commits of this step were quarantined."""
    checkpoint: str
    """Folder of the attempt below `checkpoints/`."""
    samples: int
    tokens: int
    num_bytes: int
    files: int
    world: int
    attempt: int
    created_s: float
    manifest_bytes: int
    manifest_sha256: str

    @property
    def name(self) -> str:
        """Key of the record below `checkpoints/`."""
        return f"COMMITTED-{self.step:012d}-{self.number}.json"

    @property
    def quarantine_name(self) -> str:
        """Key of the record that takes it out of use."""
        return f"QUARANTINE-{self.step:012d}-{self.number}.json"

    def to_bytes(self) -> bytes:
        """JSON for people and machines."""
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def from_bytes(cls, content: bytes, name: str) -> "Commit":
        """Parse the record that lies under `name`; DamagedError naming it."""
        try:
            commit = cls(**json.loads(content))
            if commit.name != name:
                raise ValueError(f"it says that it is {commit.name}")
        except (ValueError, TypeError) as error:
            raise DamagedError(f"the commit record {name} is damaged: {error}") from error
        return commit


def parse_name(name: str) -> tuple[str, int, int] | None:
    """(COMMITTED or QUARANTINE, step, number) of a record's name, or None for any other name."""
    match = _COMMIT_NAME.fullmatch(name)
    return (match.group(1), int(match.group(2)), int(match.group(3))) if match else None


def commit_of(manifest: Manifest, content: bytes, *, number: int) -> Commit:
    """The commit record for a manifest that was written as `content`."""
    return Commit(
        run=manifest.origin.run,
        step=manifest.progress.step,
        number=number,
        checkpoint=manifest.checkpoint,
        samples=manifest.progress.samples,
        tokens=manifest.progress.tokens,
        num_bytes=manifest.num_bytes,
        files=len(manifest.parts) + 1,
        world=manifest.origin.world,
        attempt=manifest.origin.attempt,
        created_s=manifest.origin.created_s,
        manifest_bytes=len(content),
        manifest_sha256=hashlib.sha256(content).hexdigest(),
    )


def check_record(commit: Commit, manifest: Manifest, content: bytes) -> None:
    """DamagedError unless `commit` is the record of `manifest`, which was read from `content`."""
    held = asdict(commit_of(manifest, content, number=commit.number))
    wrong = [
        f"{name} {value!r} ({held[name]!r})" for name, value in asdict(commit).items() if value != held[name]
    ]
    if wrong:
        raise DamagedError(f"{commit.name} is not the record of its manifest: it says {', '.join(wrong)}")


def choose_deletions(
    commits: Sequence[Commit], *, quarantined: frozenset[str], keep_last: int, keep_every: int | None
) -> list[Commit]:
    """Commits that may go, oldest first. Quarantined ones never count as kept, and are kept for a look.

    `quarantined` holds names of commit records. At least one good commit always stays.
    """
    good = sorted((c for c in commits if c.name not in quarantined), key=lambda c: (c.step, c.number))
    recent = {c.name for c in good[-max(1, keep_last) :]}
    return [c for c in good if c.name not in recent and not (keep_every and c.step % keep_every == 0)]

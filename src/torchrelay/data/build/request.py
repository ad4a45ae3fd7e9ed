"""What a build is asked for."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchrelay.core.errors import DataError
from torchrelay.core.units import format_bytes
from torchrelay.data.build.division import TEST, Division, SplitRule, check_shares
from torchrelay.data.build.document import OnBad
from torchrelay.data.build.token_maker import LongDocuments
from torchrelay.data.build.unit import Input
from torchrelay.data.manifest import VALIDATION

SHARD_BYTES = 64 * 2**20
UNIT_BYTES = 8 * 2**20
_FEWEST_SHARD_BYTES = 2**10
_MOST_SHARD_BYTES = 2**30
BUILT_IN = ("bytes", "chars")
"""Tokenizers that need no file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """What to build. The first group decides the version; the second only how it is made."""

    documents: Input
    tokenizer: str = "bytes"
    """`bytes`, `chars`, or the path of a tokenizer file."""
    end_token: str | None = None
    """Text of the end mark in a tokenizer file; None takes the usual one."""
    validation: float = 0.05
    """Share for validation, 0 to below 1; not used where the input gives the splits."""
    test: float = 0.0
    """Share for the test split, likewise."""
    split: SplitRule = "document"
    """Whether whole documents go to validation, or the end of every document."""
    shard_bytes: int = SHARD_BYTES
    """Most bytes of tokens in one shard, 1 KiB to 1 GiB."""
    pack: int | None = None
    """Plan packs of whole documents of at most that many tokens, end marks included."""
    long_documents: LongDocuments = "refuse"
    """What becomes of a document that is longer than a pack."""

    shares_asked: bool = False
    """Whether somebody named the shares; an input that gives the splits itself is then refused."""
    on_bad: OnBad = "stop"
    """Whether a bad document ends the build or is left out, counted and listed."""
    processes: int = 1
    """Processes that read and write; 1: all is done in this one."""
    unit_bytes: int = UNIT_BYTES
    """Bytes of input that a process takes at a time, where the input can be cut."""
    work: Path | None = None
    """Folder on a local disk in which the build makes one of its own. None: `builds` in
    `$TORCHRELAY_CACHE`, else in `~/.cache/torchrelay`."""

    @property
    def division(self) -> Division:
        """How documents are divided between the splits."""
        return Division(
            rule=self.split,
            validation=self.validation,
            test=self.test,
            is_text=self.tokenizer != "bytes",
            whole=self.pack is not None,
        )

    def shares(self) -> dict[str, float]:
        """The share of every split that must get something; none where the input gives the splits."""
        if self.documents.given:
            return {}
        return name_shares(self.validation, self.test)

    def describe(self) -> dict[str, Any]:
        """The arguments for the build record, in the words of the command line."""
        given = self.documents.given
        packs = {} if self.pack is None else {"pack": self.pack, "long_documents": self.long_documents}
        return {
            **self.documents.describe(),
            "tokenizer": self.tokenizer,
            "end_token": self.end_token,
            **({} if given else {"validation": self.validation, "test": self.test, "split": self.split}),
            "shard_bytes": self.shard_bytes,
            **packs,
        }

    def identity(self) -> Mapping[str, Any]:
        """All that decides what a work folder holds; DataError when there is no input."""
        tokenizer = None
        if self.tokenizer not in BUILT_IN:
            tokenizer = _hash_file(Path(self.tokenizer).expanduser())
        return {
            **self.describe(),
            "input": self.documents.fingerprint(),
            "tokenizer_sha256": tokenizer,
            "unit_bytes": self.unit_bytes,
        }


def name_shares(validation: float, test: float) -> dict[str, float]:
    """The shares that are not zero, by their split."""
    return {split: share for split, share in ((VALIDATION, validation), (TEST, test)) if share}


def check_request(request: BuildRequest) -> None:
    """DataError when the request cannot be carried out whatever the input is."""
    check_shares(request.validation, request.test)
    check_sizes(request.shard_bytes, request.processes, request.unit_bytes)
    if request.split == "tail" and request.documents.labelled:
        raise DataError(
            "--split tail would put the same labelled document into both splits",
            hint="use --split document, with a larger --validation if there are few documents",
        )
    if request.split == "tail" and request.documents.given:
        raise DataError("--split tail divides every document, but the input says where each belongs")
    if request.end_token is not None and request.tokenizer in BUILT_IN:
        raise DataError(f"--tokenizer {request.tokenizer} has an end mark of its own; leave --end-token out")
    _check_pack(request)


def check_sizes(shard_bytes: int, processes: int, unit_bytes: int) -> None:
    """DataError when a size is out of range."""
    if not _FEWEST_SHARD_BYTES <= shard_bytes <= _MOST_SHARD_BYTES:
        raise DataError(
            f"a shard of {shard_bytes:,} bytes is out of range", hint="use 1KiB to 1GiB; 64MiB is usual"
        )
    if processes < 1 or unit_bytes < 1:
        raise DataError(f"{processes} processes and units of {unit_bytes} bytes do nothing")


def _check_pack(request: BuildRequest) -> None:
    most = request.shard_bytes // 4
    if request.pack is not None and not 2 <= request.pack <= most:
        raise DataError(
            f"--pack {request.pack:,} is out of range: a shard of {format_bytes(request.shard_bytes)} holds "
            f"packs of 2 to {most:,} tokens",
            hint="use a larger --shard-size" if request.pack > most else "",
        )


def _hash_file(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(
            f"cannot read the tokenizer {path}: {error.strerror}",
            hint="--tokenizer takes bytes, chars or the path of a tokenizer.json",
        ) from error

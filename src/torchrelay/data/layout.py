"""Where the parts of a dataset lie in a store, and how people name a version. Pure.

datasets/<name>/shards/<aa>/<sha256>.tok            tokens (.mds: samples), named by their content
datasets/<name>/indexes/<sha256>.idx                where the samples of an adopted shard begin
datasets/<name>/versions/<version>/manifest.json    what a version consists of
datasets/<name>/versions/<version>/tokenizer.json   how its text became tokens
datasets/<name>/refs/<000001>.json                  created once, in order; the newest is the default
datasets/<name>/tags/<tag>.json                     created once: a version by a name of one's own
"""

import re
from typing import NamedTuple

from torchrelay.core.errors import DataError

ROOT = "datasets"
SHORTEST_VERSION = 6
"""Digits of a version that are enough to name it."""

_VERSION = re.compile(rf"[0-9a-f]{{{SHORTEST_VERSION},64}}")
_TAG = re.compile(r"[a-zA-Z][a-zA-Z0-9._-]{0,99}")
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,99}")


class Reference(NamedTuple):
    """`NAME`, `NAME@3`, `NAME@<tag>` or `NAME@<version>`."""

    name: str
    pin: str | None
    """What stands after the @: the number of a ref, a tag or the start of a version; None: the newest."""

    @property
    def number(self) -> int | None:
        """The pin as the number of a ref, where it can be one."""
        return int(self.pin) if self.pin is not None and self.pin.isdigit() else None

    @property
    def version(self) -> str | None:
        """The pin as the start of a version, where it can be one."""
        pin = (self.pin or "").lower()
        return pin if _VERSION.fullmatch(pin) else None

    @property
    def tag(self) -> str | None:
        """The pin as a tag, where it can be one."""
        return self.pin if self.pin is not None and is_tag(self.pin) else None


def parse_reference(text: str) -> Reference:
    """Split `NAME[@REF]`; DataError when it is neither."""
    name, at, pin = text.partition("@")
    reference = Reference(check_name(name), pin if at else None)
    if at and reference.number is None and reference.version is None and reference.tag is None:
        raise DataError(
            f"{text!r}: {pin!r} is neither the number of a ref, nor a tag, nor the start of a version",
            hint=f"write NAME, NAME@3, NAME@TAG or NAME@ and at least {SHORTEST_VERSION} digits of a version",
        )
    return reference


def is_tag(text: str) -> bool:
    """Whether a version can be tagged so: not what could be the start of a version."""
    return bool(_TAG.fullmatch(text)) and not _VERSION.fullmatch(text.lower())


def check_tag(tag: str) -> str:
    """`tag` itself; DataError when no version can be tagged so."""
    if not is_tag(tag):
        raise DataError(
            f"{tag!r} is not a tag",
            hint="begin with a letter, use letters, digits, '.', '_' and '-', and no word that could be "
            "the digits of a version",
        )
    return tag


def check_name(name: str) -> str:
    """`name` itself; DataError when no dataset can be called so."""
    if not _NAME.fullmatch(name):
        raise DataError(
            f"{name!r} is not a name for a dataset",
            hint="use letters, digits, '.', '_' and '-', beginning with a letter or digit, at most 100",
        )
    return name


def dataset_folder(name: str) -> str:
    """Folder of everything that belongs to the dataset."""
    return f"{ROOT}/{name}"


def shard_key(sha256: str, suffix: str = ".tok") -> str:
    """Key of a shard, relative to the dataset's folder; `suffix` is .tok or .mds."""
    return f"shards/{sha256[:2]}/{sha256}{suffix}"


def manifest_key(name: str, version: str) -> str:
    """Key of a version's manifest."""
    return f"{ROOT}/{name}/versions/{version}/manifest.json"


def tokenizer_key(name: str, version: str) -> str:
    """Key of a version's tokenizer file."""
    return f"{ROOT}/{name}/versions/{version}/tokenizer.json"


def ref_key(name: str, number: int) -> str:
    """Key of a ref, from 1."""
    return f"{ROOT}/{name}/refs/{number:06d}.json"


def tag_key(name: str, tag: str) -> str:
    """Key of a tag."""
    return f"{ROOT}/{name}/tags/{tag}.json"

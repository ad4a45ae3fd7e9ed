"""Tar files in the WebDataset layout: files whose name is equal up to its first dot are one sample.

`a/0001.jpg`, `a/0001.cls` and `a/0001.json` are the sample `a/0001` with the columns `image`, `cls`
and `json`. A tar file may be compressed as a whole.
"""

import io
import json
import lzma
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, Any

import numpy as np

from torchrelay.data.build.files import Stamp, find_files, hash_parts, open_file
from torchrelay.data.build.sample_folder import IMAGE
from torchrelay.data.build.sample_image import SUFFIXES
from torchrelay.data.build.sample_input import BadSample, ImageBytes, RawSample

CLASS = "cls"


@dataclass(frozen=True, slots=True)
class TarUnit:
    """One tar file; see `SampleUnit`."""

    file: Stamp
    split: str | None

    @property
    def id(self) -> str:
        """See `SampleUnit.id`."""
        return hash_parts("tar", self.file, self.split)

    @property
    def where(self) -> str:
        """See `SampleUnit.where`."""
        return self.file.path

    @property
    def size(self) -> int:
        """See `SampleUnit.size`."""
        return self.file.size

    def prepared(self) -> "TarUnit":
        """See `SampleUnit.prepared`."""
        return self

    def samples(self) -> Iterator[RawSample | BadSample]:
        """See `SampleUnit.samples`."""
        with open_file(self.file) as file:
            try:
                with tarfile.open(fileobj=file, mode="r|*") as archive:
                    yield from self._groups(archive)
            except (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError) as error:
                why = f"the rest of the file cannot be read: {error}"
                yield BadSample(self.file.path, why, "fetch or pack the file again")

    def preview(self) -> Iterator[RawSample | BadSample]:
        """See `SampleUnit.preview`."""
        return self.samples()

    def _groups(self, archive: tarfile.TarFile) -> Iterator[RawSample | BadSample]:
        key, files = "", dict[str, bytes]()
        for member in archive:
            if not member.isfile() or PurePosixPath(member.name).name.startswith("."):
                continue
            stem, suffix = split_name(member.name)
            if stem != key and files:
                yield self._sample(key, files)
                files = {}
            key = stem
            content: IO[bytes] | None = archive.extractfile(member)
            files[suffix] = content.read() if content is not None else b""
        if files:
            yield self._sample(key, files)

    def _sample(self, key: str, files: dict[str, bytes]) -> RawSample | BadSample:
        where = f"{self.file.path}: {key}"
        values: dict[str, Any] = {}
        for suffix, data in files.items():
            name = column_name(suffix)
            if name in values:
                return BadSample(where, f"has two files for the column {name!r}")
            try:
                values[name] = _parse(suffix, data)
            except (ValueError, EOFError, RecursionError) as error:
                return BadSample(f"{where}.{suffix}", str(error))
        return RawSample(values, where, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class TarFiles:
    """Tar files that patterns match; see `SampleInput`."""

    patterns: Sequence[str]
    split: str | None = None

    @property
    def default_label(self) -> str | None:
        """See `SampleInput.default_label`."""
        return CLASS

    def units(self) -> Sequence[TarUnit]:
        """See `SampleInput.units`; sorted by path."""
        return [TarUnit(file, self.split) for file in find_files(self.patterns)]

    def label_names(self) -> None:
        """See `SampleInput.label_names`; they are found by reading."""

    def describe(self) -> dict[str, Any]:
        """See `SampleInput.describe`."""
        return {"tar": list(self.patterns)}


def split_name(name: str) -> tuple[str, str]:
    """Key and suffix of a file: what stands before and after the first dot of its last part."""
    folder, slash, file = name.rpartition("/")
    stem, _, suffix = file.partition(".")
    return f"{folder}{slash}{stem}", suffix.lower()


def column_name(suffix: str) -> str:
    """The column that a file with this suffix gives."""
    return IMAGE if f".{suffix}" in SUFFIXES else suffix or "data"


def _parse(suffix: str, data: bytes) -> Any:
    """What the last part of the suffix says the bytes are; bytes where it says nothing known."""
    last = suffix.rpartition(".")[2]
    if f".{last}" in SUFFIXES:
        return ImageBytes(data)
    if last in ("txt", "text", "caption"):
        return data.decode()
    if last in ("cls", "id", "index"):
        text = data.decode().strip()
        return int(text) if text.lstrip("-").isdigit() else text
    if last == "json":
        return json.loads(data)
    if last == "npy":
        return np.load(io.BytesIO(data), allow_pickle=False)
    return data

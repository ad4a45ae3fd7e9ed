"""Documents from files: plain text, JSON lines, Parquet, Arrow, and folders of Hugging Face datasets.

An input gives the same documents in the same order every time it is read, so a build may read it
twice. Every error names the file and the line, row or byte.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchrelay.data.build.division import Division
from torchrelay.data.build.document import Fields
from torchrelay.data.build.files import Stamp, find_files, hash_parts
from torchrelay.data.build.files import match_files as match_files
from torchrelay.data.build.line_unit import cut_lines
from torchrelay.data.build.saved_folder import saved_files
from torchrelay.data.build.table_unit import cut_arrow, cut_parquet, load_arrow
from torchrelay.data.build.text_unit import group_texts
from torchrelay.data.build.unit import Input as Input
from torchrelay.data.build.unit import Unit
from torchrelay.data.manifest import TRAIN

Cut = Callable[[Stamp, Fields, str | None, int], Iterator[Unit]]


@dataclass(frozen=True, slots=True)
class TextFiles:
    """Every file that a pattern matches is a document."""

    patterns: Sequence[str]
    more: Mapping[str, Sequence[str]] | None = None
    """Patterns of files for other splits; the others are then all for training."""

    labelled = False

    @property
    def given(self) -> bool:
        """See `Input`."""
        return bool(self.more)

    def fingerprint(self) -> str:
        """See `Input`."""
        return hash_parts(_find_all(self.patterns, self.more))

    def total_bytes(self) -> int:
        """See `Input`."""
        return _sum_sizes(_find_all(self.patterns, self.more))

    def units(self, division: Division, unit_bytes: int) -> Iterator[Unit]:
        """See `Input`; sorted by path."""
        for split, files in _find_all(self.patterns, self.more):
            yield from group_texts(files, split, division, unit_bytes)

    def describe(self) -> dict[str, Any]:
        """See `Input`."""
        return {"text": list(self.patterns), **_describe_more(self.more)}


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLines:
    """Every line of a file that a pattern matches is a document: `field` of a JSON object."""

    patterns: Sequence[str]
    field: str
    label_field: str | None = None
    id_field: str | None = None
    split_field: str | None = None
    more: Mapping[str, Sequence[str]] | None = None
    """Patterns of files for other splits; the others are then all for training."""

    @property
    def labelled(self) -> bool:
        """See `Input`."""
        return self.label_field is not None

    @property
    def given(self) -> bool:
        """See `Input`."""
        return bool(self.more) or self.split_field is not None

    def fingerprint(self) -> str:
        """See `Input`."""
        return hash_parts(_find_all(self.patterns, self.more))

    def total_bytes(self) -> int:
        """See `Input`."""
        return _sum_sizes(_find_all(self.patterns, self.more))

    def units(self, division: Division, unit_bytes: int) -> Iterator[Unit]:
        """See `Input`; sorted by path, then by line. Blank lines are left out."""
        for split, files in _find_all(self.patterns, self.more):
            yield from cut_lines(files, self._fields(), split, unit_bytes)

    def describe(self) -> dict[str, Any]:
        """See `Input`."""
        return {"jsonl": list(self.patterns), **self._fields().describe(), **_describe_more(self.more)}

    def _fields(self) -> Fields:
        return Fields(text=self.field, label=self.label_field, id=self.id_field, split=self.split_field)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tables:
    """Every row of a file is a document."""

    option: str
    patterns: Sequence[str]
    fields: Fields
    more: Mapping[str, Sequence[str]] | None
    cut: Cut

    @property
    def labelled(self) -> bool:
        """See `Input`."""
        return self.fields.label is not None

    @property
    def given(self) -> bool:
        """See `Input`."""
        return bool(self.more) or self.fields.split is not None

    def fingerprint(self) -> str:
        """See `Input`."""
        load_arrow()
        return hash_parts(_find_all(self.patterns, self.more))

    def total_bytes(self) -> int:
        """See `Input`."""
        return _sum_sizes(_find_all(self.patterns, self.more))

    def units(self, division: Division, unit_bytes: int) -> Iterator[Unit]:
        """See `Input`; sorted by path, then by row."""
        for split, files in _find_all(self.patterns, self.more):
            for file in files:
                yield from self.cut(file, self.fields, split, unit_bytes)

    def describe(self) -> dict[str, Any]:
        """See `Input`."""
        return {self.option: list(self.patterns), **self.fields.describe(), **_describe_more(self.more)}


def json_lines(
    patterns: Sequence[str], fields: Fields, more: Mapping[str, Sequence[str]] | None = None
) -> Input:
    """Every line of a file that a pattern matches is a document."""
    return JsonLines(
        patterns=patterns,
        field=fields.text,
        label_field=fields.label,
        id_field=fields.id,
        split_field=fields.split,
        more=more,
    )


def parquet_files(
    patterns: Sequence[str], fields: Fields, more: Mapping[str, Sequence[str]] | None = None
) -> Input:
    """Every row of a Parquet file that a pattern matches is a document."""
    return _Tables(option="parquet", patterns=patterns, fields=fields, more=more, cut=cut_parquet)


def arrow_files(
    patterns: Sequence[str], fields: Fields, more: Mapping[str, Sequence[str]] | None = None
) -> Input:
    """Every row of an Arrow IPC file or stream that a pattern matches is a document."""
    return _Tables(option="arrow", patterns=patterns, fields=fields, more=more, cut=cut_arrow)


@dataclass(frozen=True, slots=True)
class HuggingFaceFolder:
    """What `save_to_disk` of Hugging Face `datasets` wrote; the splits of a `DatasetDict` are given."""

    folder: str
    fields: Fields

    @property
    def labelled(self) -> bool:
        """See `Input`."""
        return self.fields.label is not None

    @property
    def given(self) -> bool:
        """See `Input`; a dict with no more than a train split gives none."""
        found = {split for split, _ in saved_files(Path(self.folder))}
        return self.fields.split is not None or found not in ({None}, {TRAIN})

    def fingerprint(self) -> str:
        """See `Input`."""
        load_arrow()
        return hash_parts(saved_files(Path(self.folder)))

    def total_bytes(self) -> int:
        """See `Input`."""
        return sum(file.size for _, file in saved_files(Path(self.folder)))

    def units(self, division: Division, unit_bytes: int) -> Iterator[Unit]:
        """See `Input`; in the order of the splits, then as stored."""
        given = self.given
        for split, file in saved_files(Path(self.folder)):
            yield from cut_arrow(file, self.fields, split if given else None, unit_bytes)

    def describe(self) -> dict[str, Any]:
        """See `Input`."""
        return {"hf": self.folder, **self.fields.describe()}


def _find_all(
    patterns: Sequence[str], more: Mapping[str, Sequence[str]] | None
) -> list[tuple[str | None, list[Stamp]]]:
    """Files by the split that is given for them, None where none is."""
    first = TRAIN if more else None
    given = [(split, find_files(globs)) for split, globs in (more or {}).items()]
    return [(first, find_files(patterns)), *given]


def _sum_sizes(found: list[tuple[str | None, list[Stamp]]]) -> int:
    return sum(file.size for _, files in found for file in files)


def _describe_more(more: Mapping[str, Sequence[str]] | None) -> dict[str, Any]:
    return {f"{split}_from": list(globs) for split, globs in (more or {}).items()}

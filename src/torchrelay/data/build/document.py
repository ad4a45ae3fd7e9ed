"""Documents as they come out of an input, and what becomes of bad ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torchrelay.core.errors import DataError
from torchrelay.data.manifest import SPLITS, TRAIN, VALIDATION

Label = int | str
OnBad = Literal["stop", "skip"]

_SKIP = "--on-bad skip"
_SPLIT_WORDS = {
    **{split: split for split in SPLITS},
    "training": TRAIN,
    "valid": VALIDATION,
    "val": VALIDATION,
    "dev": VALIDATION,
    "eval": VALIDATION,
}


class Document(NamedTuple):
    """One document as it came."""

    text: memoryview
    """Bytes, UTF-8 where the input is text."""
    where: str
    """File, file:line, or file and row."""
    label: Label | None = None
    """Its class, where the input has labels."""
    split: str | None = None
    """Where it must go, where the input says so."""
    key: bytes | None = None
    """What its id is a hash of; None takes the text."""


@dataclass(slots=True, kw_only=True)
class Intake:
    """Counts what is taken in and refuses what is bad, while one unit is read. One process."""

    on_bad: OnBad
    scratch: Path
    """Folder on a local disk for temporary files without a name."""
    documents: int = 0
    """Including the empty ones, without the bad ones."""
    empty: int = 0
    truncated: int = 0
    problems: list[str] = field(default_factory=list)
    """One for every bad input that was left out."""

    def refuse(self, error: DataError) -> None:
        """Raise, or note what is wrong and let the reader go on with the next document."""
        if self.on_bad == "stop":
            raise _add_hint(error)
        self.problems.append(error.message)


def _add_hint(error: DataError) -> DataError:
    """The error, whose hint also tells how to go on without mending the input."""
    if _SKIP in error.hint:
        return error
    hint = f"{error.hint or 'mend the input'}; or leave out what is bad with {_SKIP}"
    return DataError(error.message, hint=hint).with_traceback(error.__traceback__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Which fields of a record make a document."""

    text: str
    label: str | None = None
    id: str | None = None
    split: str | None = None

    def names(self) -> list[str]:
        """The fields that are read, each once."""
        found = (self.text, self.label, self.id, self.split)
        return list(dict.fromkeys(name for name in found if name is not None))

    def describe(self) -> dict[str, str]:
        """For the build record: by the name of the command's option."""
        options = {
            "field": self.text,
            "label_field": self.label,
            "id_field": self.id,
            "split_field": self.split,
        }
        return {option: name for option, name in options.items() if name is not None}

    def document(self, record: Mapping[str, Any], where: str) -> Document:
        """The document that the record holds; DataError that says which field is wrong."""
        text = _find(record, self.text, where)
        label = None if self.label is None else _label(record, self.label, where)
        key = None if self.id is None else _key(record, self.id, where)
        split = None if self.split is None else parse_split(_find(record, self.split, where), where)
        return Document(_encode(text, self.text, where), where, label, split, key)


def parse_split(word: Any, where: str) -> str:
    """The split that people call `word`; DataError when it is none."""
    split = _SPLIT_WORDS.get(word.lower()) if isinstance(word, str) else None
    if split is None:
        raise DataError(
            f"{where}: {show(word)} is not a split",
            hint=f"splits are {', '.join(SPLITS)}; valid, val, dev and eval also mean validation",
        )
    return split


def say_count(count: int, noun: str) -> str:
    """`1 document`, `1,200 documents`."""
    return f"{count:,} {noun}{'s'[: count != 1]}"


def show(value: Any) -> str:
    """A value as an error quotes it, as JSON writes it and not longer than 41 characters."""
    words = {None: "null", True: "true", False: "false"}
    text = words[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _find(record: Mapping[str, Any], name: str, where: str) -> Any:
    if name not in record:
        there = ", ".join(sorted(map(str, record))) or "none"
        raise DataError(f"{where}: there is no field {name!r}", hint=f"fields there: {there}")
    return record[name]


def _encode(text: Any, name: str, where: str) -> memoryview:
    if isinstance(text, bytes):
        return memoryview(text)
    if not isinstance(text, str):
        raise DataError(f"{where}: field {name!r} is {show(text)}, not a text")
    try:
        return memoryview(text.encode())
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: field {name!r} holds half of a surrogate pair at character {error.start}"
        ) from error


def _label(record: Mapping[str, Any], name: str, where: str) -> Label:
    label = _find(record, name, where)
    if isinstance(label, bool) or not isinstance(label, int | str):
        raise DataError(f"{where}: label field {name!r} is {show(label)}, not a whole number or text")
    return label


def _key(record: Mapping[str, Any], name: str, where: str) -> bytes:
    key = _find(record, name, where)
    if isinstance(key, bool) or not isinstance(key, int | str):
        raise DataError(f"{where}: id field {name!r} is {show(key)}, not a whole number or text")
    return str(key).encode(errors="surrogatepass")

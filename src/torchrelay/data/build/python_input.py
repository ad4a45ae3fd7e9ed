"""Documents from a user's own code: `package.module:function` gives texts, or dicts with a field.

The function is called here, in the main process, once for every pass and once more when a build goes
on after it was killed; it must always give the same.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchrelay.core.errors import DataError
from torchrelay.data.build.division import Division, Piece, cut_document
from torchrelay.data.build.document import Fields, Intake, show
from torchrelay.data.build.files import hash_parts
from torchrelay.data.build.user_code import call_function, iterate, load_function

TEXT = "text"
_OVERHEAD_BYTES = 64
"""What a record counts besides its text, so that a unit of tiny ones is bounded too."""


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Some of what the function gave, in order."""

    reference: str
    first: int
    records: tuple[Mapping[str, Any], ...]
    fields: Fields
    size: int

    @property
    def id(self) -> str:
        """See `Unit`."""
        return hash_parts("python", self.reference, self.first, self.records, self.fields)

    @property
    def where(self) -> str:
        """See `Unit`."""
        return f"{self.reference} (items {self.first:,} to {self.first + len(self.records):,})"

    def prepared(self) -> "RecordBatch":
        """See `Unit`."""
        return self

    def pieces(self, division: Division, intake: Intake) -> Iterator[Piece]:
        """See `Unit`."""
        for number, record in enumerate(self.records, start=self.first):
            try:
                document = self.fields.document(record, f"{self.reference}: item {number}")
            except DataError as error:
                intake.refuse(error)
                continue
            yield from cut_document(document, division, intake)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonDocuments:
    """What a function gives, one after the other: `str`, `bytes`, or dicts with the fields."""

    reference: str
    """`package.module:function`."""
    fields: Fields = Fields(text=TEXT)
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function; plain JSON values."""

    @property
    def labelled(self) -> bool:
        """See `Input`."""
        return self.fields.label is not None

    @property
    def given(self) -> bool:
        """See `Input`."""
        return self.fields.split is not None

    def fingerprint(self) -> str:
        """See `Input`; what the function gives shows only when it is called."""
        load_function(self.reference)
        return hash_parts(self.reference, sorted(self.options.items()))

    def total_bytes(self) -> None:
        """See `Input`: nobody knows."""

    def units(self, division: Division, unit_bytes: int) -> Iterator[RecordBatch]:
        """See `Input`."""
        records: list[Mapping[str, Any]] = []
        size = first = 0
        first_kind = ""
        for item in self._items():
            number = first + len(records)
            first_kind = first_kind or _kind(item)
            record = self._record(item, number, first_kind)
            records.append(record)
            size += _OVERHEAD_BYTES + _measure(record.get(self.fields.text))
            if size >= unit_bytes:
                yield RecordBatch(self.reference, first, tuple(records), self.fields, size)
                first, records, size = first + len(records), [], 0
        if records:
            yield RecordBatch(self.reference, first, tuple(records), self.fields, size)

    def describe(self) -> dict[str, Any]:
        """See `Input`."""
        options = {"options": dict(self.options)} if self.options else {}
        return {"python": self.reference, **self.fields.describe(), **options}

    def _items(self) -> Iterable[Any]:
        found = call_function(self.reference, self.options)
        if isinstance(found, str | bytes | Mapping) or not isinstance(found, Iterable):
            raise DataError(f"{self.reference} gave {type(found).__name__}, not an iterable of documents")
        return iterate(self.reference, found, "item")

    def _record(self, item: Any, number: int, first_kind: str) -> Mapping[str, Any]:
        """No more than the fields that are needed, so that little is sent to other processes."""
        if _kind(item) != first_kind and isinstance(item, str | bytes | Mapping):
            raise DataError(
                f"{self.reference} mixes texts and dicts: item 0 is {first_kind}, "
                f"but item {number} is {_kind(item)}, {show(item)}",
                hint="give texts alone, or dicts alone with the field that --field names",
            )
        if isinstance(item, str | bytes):
            return {self.fields.text: item}
        if isinstance(item, Mapping):
            return {name: item[name] for name in self.fields.names() if name in item}
        raise DataError(
            f"{self.reference}: item {number} is {show(item)}, neither a text nor a dict",
            hint="yield str, bytes, or dicts with the field that --field names",
        )


def _kind(item: Any) -> str:
    return "a dict" if isinstance(item, Mapping) else "a text"


def _measure(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes) else 0

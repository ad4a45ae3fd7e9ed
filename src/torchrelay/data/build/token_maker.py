"""How documents are staged as tokens, and how those become shards."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchrelay.core.errors import DataError
from torchrelay.data.build.division import Division, Piece
from torchrelay.data.build.document import Intake, Label
from torchrelay.data.build.shard_plan import ShardPlan
from torchrelay.data.build.staging import Row, StagedSplit, StageWriter
from torchrelay.data.build.token_shard import Assembled, ShardSettings, collect_tokens, write_shard
from torchrelay.data.build.unit import Unit
from torchrelay.data.formats.tok import numpy_type
from torchrelay.data.manifest import TOKEN_BYTES, TokenDtype, TokenizerRecord
from torchrelay.data.tokenizer import CharacterSurvey, Tokenizer, parse_tokenizer
from torchrelay.store.base import Store

LongDocuments = Literal["refuse", "truncate"]
_BATCH_BYTES = 2**20
_BATCH_PIECES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpec:
    """All that a process needs to know to make tokens and shards of them. Can be pickled."""

    tokenizer_file: bytes
    tokenizer: TokenizerRecord
    token_dtype: TokenDtype
    division: Division
    labels: Mapping[Label, int] | None
    """Number of every label; None where documents have none."""
    shard_bytes: int
    pack_length: int | None
    long_documents: LongDocuments

    @property
    def capacity(self) -> int:
        """See `workbench.Spec`."""
        return self.shard_bytes // TOKEN_BYTES[self.token_dtype]

    @property
    def cuts(self) -> bool:
        """See `workbench.Spec`."""
        return True

    @property
    def overhead(self) -> int:
        """See `workbench.Spec`."""
        return 0

    def open(self) -> "TokenMaker":
        """Load the tokenizer; in the process that uses it."""
        return TokenMaker(self)


class TokenMaker:
    """Stages units as tokens and puts them together. One thread."""

    def __init__(self, spec: TokenSpec) -> None:
        self._spec = spec
        self._tokenizer: Tokenizer = parse_tokenizer(spec.tokenizer_file, spec.tokenizer, "the tokenizer")

    def stage(self, unit: Unit, intake: Intake, writer: StageWriter) -> None:
        """Tokenise a unit."""
        rows = self._rows(unit, intake)
        for split, tokens, row, _ in rows if self._spec.pack_length is None else self._whole(rows, intake):
            writer.append(split, tokens.view(np.uint8).data, row)

    def assemble(self, plan: ShardPlan, parts: Sequence[StagedSplit], store: Store, folder: str) -> Assembled:
        """Write the shard of a plan into `folder` of the store."""
        content = collect_tokens(plan, parts, self._spec.token_dtype)
        settings = ShardSettings(
            token_dtype=self._spec.token_dtype,
            labelled=self._spec.labels is not None,
            pack_length=self._spec.pack_length,
        )
        return Assembled(write_shard(content, settings, store, folder), content.ids)

    def _rows(self, unit: Unit, intake: Intake) -> Iterator["_Made"]:
        kind = numpy_type(self._spec.token_dtype)
        end_token = self._tokenizer.end_token
        for batch in _gather(unit.pieces(self._spec.division, intake)):
            for piece, ids in zip(
                batch, self._tokenizer.encode_many([piece.text for piece in batch]), strict=True
            ):
                tokens = np.empty(ids.size + piece.is_last, kind)
                tokens[: ids.size] = ids
                if piece.is_last:
                    tokens[-1] = end_token
                row = Row(tokens.size, piece.size, piece.document_id, self._label(piece), piece.is_last)
                yield _Made(piece.split, tokens, row, piece.document.where)

    def _label(self, piece: Piece) -> int:
        label = piece.document.label
        return 0 if self._spec.labels is None or label is None else self._spec.labels[label]

    def _whole(self, rows: Iterable["_Made"], intake: Intake) -> Iterator["_Made"]:
        """Documents in one row each, none longer than a pack."""
        most = self._spec.pack_length or 0
        kept: list[NDArray[Any]] = []
        size = text_bytes = 0
        for made in rows:
            if size < most:  # of a longer document no more than a pack is ever needed
                kept.append(made.tokens[: most - size])
            size += made.row.size
            text_bytes += made.row.text_bytes
            if made.row.is_last:
                yield from self._fit(made, np.concatenate(kept), size, text_bytes, intake)
                kept, size, text_bytes = [], 0, 0

    def _fit(
        self, made: "_Made", tokens: NDArray[Any], size: int, text_bytes: int, intake: Intake
    ) -> Iterator["_Made"]:
        most = self._spec.pack_length or 0
        if size > most and self._spec.long_documents == "refuse":
            intake.documents -= 1
            intake.refuse(_too_long(made.where, size, most))
            return
        if size > most:
            intake.truncated += 1
            text_bytes = text_bytes * (most - 1) // (size - 1)
            tokens[-1] = self._tokenizer.end_token
        row = made.row._replace(size=tokens.size, text_bytes=text_bytes)
        yield made._replace(tokens=tokens, row=row)


class Survey(NamedTuple):
    """What must be known of all units before the first token."""

    characters: str
    """All that occur, by code point; empty where that is not asked for."""
    labels: dict[Label, str]
    """The place where each was met first."""


def survey_unit(unit: Unit, division: Division, intake: Intake, *, characters: bool) -> Survey:
    """Read a unit for its characters and labels."""
    seen = CharacterSurvey()
    labels: dict[Label, str] = {}
    for piece in unit.pieces(division, intake):
        if characters and isinstance(piece.text, str):
            seen.add(piece.text)
        if piece.document.label is not None:
            labels.setdefault(piece.document.label, piece.document.where)
    found = seen.tokenizer()
    return Survey(found.decode(np.arange(found.end_token)), labels)


class _Made(NamedTuple):
    split: str
    tokens: NDArray[Any]
    row: Row
    where: str


def _gather(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Pieces in groups that are worth tokenising together."""
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += piece.size
        if size >= _BATCH_BYTES or len(batch) == _BATCH_PIECES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _too_long(where: str, size: int, most: int) -> DataError:
    return DataError(
        f"{where} has {size:,} tokens with its end mark, a pack holds {most:,}",
        hint="use a larger --pack, or --long-documents truncate; --on-bad skip leaves such documents out",
    )

"""Turn files into a version of a dataset: documents → split → tokens → shards → manifest → ref.

Nothing becomes visible before all of it is in the store. The same input gives the same version.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import xxhash

from torchrelay import __version__
from torchrelay.core.clock import Clock, iso_time, system_clock
from torchrelay.core.errors import DataError
from torchrelay.data.build.division import SplitRule, check_share, cut_parts, divide
from torchrelay.data.build.input import Document, Input, Label
from torchrelay.data.build.token_writer import ShardSettings, ShardWriter
from torchrelay.data.layout import check_name, dataset_folder
from torchrelay.data.manifest import (
    TRAIN,
    VALIDATION,
    BuildRecord,
    Content,
    Manifest,
    ShardEntry,
    choose_token_dtype,
    make_manifest,
)
from torchrelay.data.publish import publish
from torchrelay.data.tokenizer import (
    ByteTokenizer,
    CharacterSurvey,
    Tokenizer,
    describe_tokenizer,
    read_tokenizer_file,
)
from torchrelay.store.base import Store

SHARD_BYTES = 64 * 2**20
_FEWEST_SHARD_BYTES = 2**10
_MOST_SHARD_BYTES = 2**30
_PART_BYTES = 8 * 2**20
"""Longest text that is tokenised at once; longer documents are cut after a line."""
_BATCH_BYTES = 4 * 2**20
_BATCH_PIECES = 1024

Progress = Callable[[str, int, int], None]
"""Called with what is being done, bytes of input done, and bytes in all (about)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """What to build."""

    documents: Input
    tokenizer: str = "bytes"
    """`bytes`, `chars`, or the path of a tokenizer file."""
    end_token: str | None = None
    """Text of the end mark in a tokenizer file; None takes the usual one."""
    validation: float = 0.05
    """Share of the text that goes to validation, between 0 and 1."""
    split: SplitRule = "document"
    """Whether whole documents go to validation, or the end of every document."""
    shard_bytes: int = SHARD_BYTES
    """Most bytes of tokens in one shard, 1 KiB to 1 GiB."""


class BuildResult(NamedTuple):
    """What was built."""

    manifest: Manifest
    ref: int
    is_new: bool
    """False when the dataset had this version as its newest before."""
    empty_documents: int
    """Documents without text, which were left out."""


class _Piece(NamedTuple):
    """A part of a document that goes to one split, small enough to be tokenised at once."""

    split: str
    text: memoryview
    is_last: bool
    """Whether the document ends with it, as far as the split is concerned."""
    document: Document
    offset: int
    """Where it begins in the document, in bytes."""
    document_id: int
    """Hash of what the split gets of the document."""


class _Plan(NamedTuple):
    """What had to be known of the whole corpus before the first token."""

    tokenizer: Tokenizer
    label_ids: dict[Label, int] | None
    """Number of every label, in their order; None where documents have no label."""


def build_dataset(
    store: Store, name: str, request: BuildRequest, *, clock: Clock = system_clock, progress: Progress
) -> BuildResult:
    """Build a version of dataset `name` and point a ref to it.

    DataError says what is wrong with the input, by file and line or byte; no ref is made then.
    """
    check_name(name)
    _check_request(request)
    plan = _survey(request, progress)
    settings = ShardSettings(
        token_dtype=choose_token_dtype(plan.tokenizer.vocabulary),
        end_token=plan.tokenizer.end_token,
        labelled=plan.label_ids is not None,
        shard_bytes=request.shard_bytes,
    )
    writers = {split: ShardWriter(store, dataset_folder(name), settings) for split in (TRAIN, VALIDATION)}
    count = _Count()
    batches = _gather(_cut(_counted(request, "tokenizing", count, progress), request))
    for batch in batches:
        _write(batch, plan, writers)
    _check_splits(writers, count, request)
    splits = {split: writer.close() for split, writer in writers.items()}
    manifest = _describe(name, request, plan, splits, iso_time(clock()))
    published = publish(store, manifest, plan.tokenizer.to_json())
    return BuildResult(manifest, published.number, published.is_new, count.empty)


def _check_request(request: BuildRequest) -> None:
    check_share(request.validation)
    if not _FEWEST_SHARD_BYTES <= request.shard_bytes <= _MOST_SHARD_BYTES:
        raise DataError(
            f"a shard of {request.shard_bytes:,} bytes is out of range",
            hint="use 1KiB to 1GiB; 64MiB is usual",
        )
    if request.split == "tail" and request.documents.labelled:
        raise DataError(
            "--split tail would put the same labelled document into both splits",
            hint="use --split document, with a larger --validation if there are few documents",
        )
    if request.end_token is not None and request.tokenizer in ("bytes", "chars"):
        raise DataError(f"--tokenizer {request.tokenizer} has an end mark of its own; leave --end-token out")


@dataclass(slots=True)
class _Count:
    """What has been read so far."""

    documents: int = 0
    empty: int = 0


def _counted(request: BuildRequest, phase: str, count: _Count, progress: Progress) -> Iterator[Document]:
    """The documents that have text; counts all of them and reports progress."""
    total = request.documents.total_bytes()
    done = 0
    for document in request.documents.documents():
        count.documents += 1
        count.empty += not document.text
        if document.text:
            yield document
        done += document.input_bytes
        progress(phase, done, total)
    if count.documents == count.empty:
        raise DataError(
            f"the corpus is empty: {count.documents:,} documents, none with any text",
            hint="check the files and, for JSON lines, --field",
        )


def _survey(request: BuildRequest, progress: Progress) -> _Plan:
    """Read the corpus once beforehand where the vocabulary or the labels depend on all of it."""
    characters = CharacterSurvey() if request.tokenizer == "chars" else None
    labels: dict[Label, str] = {}
    if characters or request.documents.labelled:
        for piece in _cut(_counted(request, "reading", _Count(), progress), request):
            if characters:
                characters.add(_decode(piece))
            if piece.document.label is not None:
                labels.setdefault(piece.document.label, piece.document.where)
    if characters:
        tokenizer: Tokenizer = characters.tokenizer()
    elif request.tokenizer == "bytes":
        tokenizer = ByteTokenizer()
    else:
        tokenizer = read_tokenizer_file(Path(request.tokenizer).expanduser(), request.end_token)
    return _Plan(tokenizer, _number_labels(labels) if request.documents.labelled else None)


def _number_labels(labels: dict[Label, str]) -> dict[Label, int]:
    """Labels in their order, from 0; DataError when some are numbers and some are texts."""
    numbers = [label for label in labels if isinstance(label, int)]
    texts = [label for label in labels if isinstance(label, str)]
    if numbers and texts:
        raise DataError(
            f"labels are of two types: {texts[0]!r} at {labels[texts[0]]}, "
            f"{numbers[0]!r} at {labels[numbers[0]]}"
        )
    ordered: list[Label] = [*sorted(numbers), *sorted(texts)]
    return {label: number for number, label in enumerate(ordered)}


def _cut(documents: Iterable[Document], request: BuildRequest) -> Iterator[_Piece]:
    for document in documents:
        for span in divide(document.text, request.split, request.validation):
            text = document.text[span.start : span.stop]
            document_id = xxhash.xxh3_64_intdigest(text)
            for part in cut_parts(text, _PART_BYTES):
                is_last = part.stop == len(text)
                yield _Piece(
                    span.split,
                    text[part.start : part.stop],
                    is_last,
                    document,
                    span.start + part.start,
                    document_id,
                )


def _gather(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Pieces in groups that are worth tokenising together."""
    batch: list[_Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.text)
        if size >= _BATCH_BYTES or len(batch) == _BATCH_PIECES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _write(batch: list[_Piece], plan: _Plan, writers: dict[str, ShardWriter]) -> None:
    raw = plan.tokenizer.kind == "bytes"
    tokens = plan.tokenizer.encode_many([piece.text if raw else _decode(piece) for piece in batch])
    for piece, ids in zip(batch, tokens, strict=True):
        writer = writers[piece.split]
        writer.append(ids, len(piece.text))
        if piece.is_last:
            label = piece.document.label
            number = None if plan.label_ids is None or label is None else plan.label_ids[label]
            writer.end_document(piece.document_id, number)


def _decode(piece: _Piece) -> str:
    try:
        return str(piece.text, "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{piece.document.where} is not valid UTF-8 at byte {piece.offset + error.start}",
            hint="convert the file, or use --tokenizer bytes, which takes any bytes",
        ) from error


def _check_splits(writers: dict[str, ShardWriter], count: _Count, request: BuildRequest) -> None:
    """DataError when a split got nothing. Small corpora have not written anything at this point."""
    for split, writer in writers.items():
        if not writer.is_empty:
            continue
        documents = count.documents - count.empty
        raise DataError(
            f"the {split} split would be empty: {request.validation * 100:.3g}% of {documents:,} "
            f"document{'s'[: documents > 1]} for validation (--split {request.split})",
            hint=_other_split(request),
        )


def _other_split(request: BuildRequest) -> str:
    if request.split == "tail":
        return "use --split document, or a --validation share that leaves text on both sides"
    if request.documents.labelled:
        return "add documents, or change --validation"
    return "use --split tail, which takes the end of every document for validation, or change --validation"


def _describe(
    name: str,
    request: BuildRequest,
    plan: _Plan,
    splits: dict[str, tuple[ShardEntry, ...]],
    created: str,
) -> Manifest:
    arguments = {
        **request.documents.describe(),
        "tokenizer": request.tokenizer,
        "end_token": request.end_token,
        "validation": request.validation,
        "split": request.split,
        "shard_bytes": request.shard_bytes,
    }
    return make_manifest(
        name,
        Content(
            kind="tokens",
            format="tok",
            tokenizer=describe_tokenizer(plan.tokenizer),
            token_dtype=choose_token_dtype(plan.tokenizer.vocabulary),
            splits=splits,
            label_names=None if plan.label_ids is None else tuple(str(label) for label in plan.label_ids),
        ),
        BuildRecord(arguments=arguments, code=__version__, created=created),
    )

"""A build of tokens; see `Job`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from torchrelay.core.errors import DataError
from torchrelay.data.build.document import Intake, say_count
from torchrelay.data.build.job import MakePool, Plan, ReportRead, Settings
from torchrelay.data.build.journal import Progress
from torchrelay.data.build.request import BuildRequest
from torchrelay.data.build.share_check import name_count
from torchrelay.data.build.split_check import name_places
from torchrelay.data.build.survey import survey_documents
from torchrelay.data.build.token_maker import TokenSpec
from torchrelay.data.build.unit import Unit
from torchrelay.data.build.workbench import Spec
from torchrelay.data.manifest import Content, ShardEntry, choose_token_dtype
from torchrelay.data.tokenizer import describe_tokenizer


class TokenJob:
    """What a `BuildRequest` asks for."""

    def __init__(self, request: BuildRequest) -> None:
        """`request` was checked."""
        self._request = request
        self.settings = Settings(
            phase="tokenizing",
            processes=request.processes,
            on_bad=request.on_bad,
            unit_bytes=request.unit_bytes,
            work=request.work,
            noun="document",
            shares_asked=request.shares_asked,
            divides_whole=request.split == "document",
        )

    @property
    def given(self) -> bool:
        """See `Job`."""
        return self._request.documents.given

    @property
    def shares(self) -> Mapping[str, float]:
        """See `Job`."""
        return self._request.shares()

    def identity(self) -> Mapping[str, Any]:
        """See `Job`."""
        return self._request.identity()

    def describe(self) -> dict[str, Any]:
        """See `Job`."""
        return self._request.describe()

    def total_bytes(self) -> int | None:
        """See `Job`."""
        return self._request.documents.total_bytes()

    def units(self) -> Iterator[Unit]:
        """See `Job`."""
        return self._request.documents.units(self._request.division, self._request.unit_bytes)

    def plan(self, work: Path, make_pool: MakePool, report: ReportRead) -> Plan:
        """See `Job`."""
        request = self._request
        tokenizer, labels = survey_documents(request, work, make_pool, report)
        spec = TokenSpec(
            tokenizer_file=tokenizer.to_json(),
            tokenizer=describe_tokenizer(tokenizer),
            token_dtype=choose_token_dtype(tokenizer.vocabulary),
            division=request.division,
            labels=labels,
            shard_bytes=request.shard_bytes,
            pack_length=request.pack,
            long_documents=request.long_documents,
        )
        return Plan(spec, spec.tokenizer_file)

    def content(self, spec: Spec, splits: Mapping[str, tuple[ShardEntry, ...]]) -> Content:
        """See `Job`."""
        made = cast(TokenSpec, spec)
        return Content(
            kind="tokens",
            format="tok",
            tokenizer=made.tokenizer,
            token_dtype=made.token_dtype,
            splits=splits,
            pack_length=made.pack_length,
            label_names=None if made.labels is None else tuple(map(str, made.labels)),
        )

    def nothing_for(self, split: str, progress: Progress, distinct: int | None) -> DataError:
        """See `Job`."""
        documents = progress.documents - progress.empty
        if documents == 0:
            left = f"; {progress.problems:,} bad ones were left out" if progress.problems else ""
            return DataError(
                f"the corpus is empty: {say_count(progress.documents, 'document')}, none with any text{left}",
                hint="check the files and, for records, --field",
            )
        shares = " and ".join(f"{share * 100:.3g}% for {name}" for name, share in self.shares.items())
        rule = f", {shares} (--split {self._request.split})" if shares else ""
        return DataError(
            f"the {split} split would be empty: {name_count(documents, distinct, 'document')}{rule}",
            hint=self._other_split(equal=distinct is not None and distinct < documents),
        )

    def shared_id(self, shared: tuple[int, str, str], work: Path) -> DataError:
        """See `Job`."""
        division, intake = self._request.division, Intake(on_bad="skip", scratch=work)
        found = (
            (piece.split, piece.document_id, piece.document.where)
            for unit in self.units()
            for piece in unit.prepared().pieces(division, intake)
        )
        return name_places(shared, found)

    def _other_split(self, *, equal: bool) -> str:
        if self.given:
            return "check what the input gives as the split of its documents"
        if self._request.split == "tail":
            return "use --split document, or a --validation share that leaves text on both sides"
        if equal and self._request.split == "document":
            return "add different documents, or change --validation (0% for none)"
        if self._request.documents.labelled:
            return "add documents, or change --validation"
        return (
            "use --split tail, which takes the end of every document for validation, or change "
            "--validation (0% for none)"
        )

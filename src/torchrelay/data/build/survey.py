"""A first pass over the whole input, where the vocabulary or the labels depend on all of it."""

import json
from collections.abc import Mapping
from pathlib import Path

from torchrelay.core.errors import DataError
from torchrelay.data.build.document import Label
from torchrelay.data.build.job import MakePool, ReportRead
from torchrelay.data.build.pool import Done, run_all
from torchrelay.data.build.request import BuildRequest
from torchrelay.data.build.token_maker import Survey
from torchrelay.data.build.workbench import SurveySetup, SurveyTask
from torchrelay.data.tokenizer import ByteTokenizer, CharacterSurvey, Tokenizer, read_tokenizer_file

FILE = "survey.json"


def survey_documents(
    request: BuildRequest, work: Path, make_pool: MakePool, report: ReportRead
) -> tuple[Tokenizer, Mapping[Label, int] | None]:
    """The tokenizer, and the number of every label in their order (None where documents have none)."""
    characters = request.tokenizer == "chars"
    labelled = request.documents.labelled
    survey = Survey("", {})
    if characters or labelled:
        survey = _read(work) or _survey(request, work, make_pool, report)
    if characters:
        seen = CharacterSurvey()
        seen.add(survey.characters)
        tokenizer: Tokenizer = seen.tokenizer()
    elif request.tokenizer == "bytes":
        tokenizer = ByteTokenizer()
    else:
        tokenizer = read_tokenizer_file(Path(request.tokenizer).expanduser(), request.end_token)
    return tokenizer, number_labels(survey.labels) if labelled else None


def number_labels(labels: Mapping[Label, str]) -> dict[Label, int]:
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


def _survey(request: BuildRequest, work: Path, make_pool: MakePool, report: ReportRead) -> Survey:
    setup = SurveySetup(
        division=request.division,
        on_bad=request.on_bad,
        work=work,
        characters=request.tokenizer == "chars",
    )
    found = _Found()
    units = request.documents.units(request.division, request.unit_bytes)
    tasks = (SurveyTask(number, unit.prepared()) for number, unit in enumerate(units))
    for done in run_all(make_pool(setup), tasks):
        report(found.add(done))
    survey = found.survey()
    tree = {"characters": survey.characters, "labels": list(survey.labels.items())}
    temporary = work / f"{FILE}.new"
    temporary.write_text(json.dumps(tree))
    temporary.replace(work / FILE)
    return survey


def _read(work: Path) -> Survey | None:
    """What an earlier process found, if it came to the end."""
    try:
        tree = json.loads((work / FILE).read_bytes())
        return Survey(tree["characters"], {label: where for label, where in tree["labels"]})
    except (OSError, ValueError, KeyError, TypeError):
        return None


class _Found:
    """Puts the surveys of units together, in any order."""

    def __init__(self) -> None:
        self._characters: set[str] = set()
        self._labels: dict[Label, tuple[int, str]] = {}
        """The first unit that has the label, and where in it."""
        self._size = 0

    def add(self, done: Done) -> int:
        """Take in a result; bytes of input read so far."""
        task, result = done
        self._size += task.unit.size
        self._characters.update(result.characters)
        for label, where in result.labels.items():
            self._labels[label] = min((task.number, where), self._labels.get(label, (task.number + 1, "")))
        return self._size

    def survey(self) -> Survey:
        """All that was found."""
        first = sorted(self._labels.items(), key=lambda pair: pair[1][0])
        return Survey("".join(sorted(self._characters)), {label: where for label, (_, where) in first})

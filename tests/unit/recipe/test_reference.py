import re
from collections.abc import Iterator
from typing import get_args

import pytest
from pydantic import BaseModel

from torchrelay.recipe.difference import may_change
from torchrelay.recipe.reference import render_reference
from torchrelay.recipe.schema import Recipe


def rows(section: str) -> dict[str, list[str]]:
    """Cells of the section's table, by key."""
    (part,) = re.findall(rf"^##+ {re.escape(section)}\n(.*?)(?=^##|\Z)", render_reference(), re.M | re.S)
    cells = [line.strip("|").split(" | ") for line in part.splitlines() if line.startswith("| `")]
    return {row[0].strip(" `"): [cell.strip() for cell in row[1:]] for row in cells}


def sections(prefix: str, section: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in section.model_fields.items():
        for kind in models(field.annotation):
            yield f"{prefix}{name}", kind
            yield from sections(f"{prefix}{name}.", kind)


def models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models(argument)


def test_every_key_of_every_section_has_a_row_with_a_meaning() -> None:
    found = dict(sections("", Recipe))
    assert {"run", "model.decoder", "train.optimizer", "checkpoint"} <= set(found)
    for path, section in found.items():
        table = rows(path)
        assert list(table) == list(section.model_fields)
        assert all(len(cells) == 4 and cells[3] for cells in table.values()), path


def test_the_resume_column_says_what_the_schema_says() -> None:
    for path, section in sections("", Recipe):
        for name, cells in rows(path).items():
            if cells[0] != "section":
                assert cells[2] == ("may change" if may_change(section.model_fields[name]) else "fixed")


@pytest.mark.parametrize(
    ("section", "key", "kind", "default"),
    [
        ("run", "seed", "whole number, ≥ 0, < 2^63", "`1`"),
        ("run", "name", "text", "*required*"),
        ("train", "global_batch", "whole number, ≥ 1", "*required*"),
        ("train", "micro_batch", "whole number, ≥ 1 or `auto`", "`auto`"),
        ("train", "precision", "`fp32` or `bf16`", "`fp32`"),
        ("train", "validate_every", "steps or duration", "—"),
        ("train.schedule", "kind", "`constant`, `cosine`, `linear` or `wsd`", "`cosine`"),
        ("train.optimizer", "betas", "list of 2 numbers", "`[0.9, 0.95]`"),
        ("checkpoint", "every", "steps or duration", "`500 steps`"),
        ("parallel", "timeout", "duration, > 0", "`600s`"),
        ("data", "shuffle", "true or false", "`true`"),
        ("data", "options", "mapping", "—"),
        ("data", "skip", "list of texts", "—"),
        ("data", "mixture", "list of sections", "—"),
        ("data.mixture", "weight", "number, > 0", "*required*"),
        ("data", "prefetch_bytes", "size, > 0", "`256MiB`"),
    ],
)
def test_types_and_defaults_are_shown_as_people_write_them(section, key, kind, default) -> None:
    assert rows(section)[key][:2] == [kind, default]


def test_the_page_is_plain_markdown_that_ends_with_one_newline() -> None:
    page = render_reference()
    assert page.startswith("# Recipe reference\n")
    assert page.endswith("|\n")
    assert "Annotated" not in page
    assert "pydantic" not in page

"""The documentation is true: its links lead somewhere, its commands run, its generated page is fresh."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.rules import page
from tests.rules.source import ROOT
from torchrelay.cli.recipe import reference_page

DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*DOCS, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
RUNNABLE = [path for path in PAGES if any(block.mark == "run" for block in page.blocks(path.read_text()))]

_PAGE = """\
# A page

See [below](#more-words) and [there](other.md).

## More words

<!-- file: greeting.txt -->
```text
hello
```

<!-- run -->
```bash
cat greeting.txt
```

<!-- not run: it would take all day -->
```bash
sleep 86400
```
"""


def run_page(text: str, folder: Path, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
    """Run the marked commands of a page in `folder`."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", page.script(text, folder)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Path, Future]]:
    """All pages, two at a time: they start many small processes that each keep one core busy."""
    with ThreadPoolExecutor(2) as pool:
        yield {
            path: pool.submit(run_page, path.read_text(), tmp_path_factory.mktemp("page"))
            for path in RUNNABLE
        }


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_are_the_four_parts() -> None:
    assert {path.parent.name for path in DOCS} == {
        "docs",
        "tutorial",
        "how-to",
        "explanation",
        "reference",
        "decisions",
    }


@pytest.mark.parametrize("path", PAGES, ids=shown)
def test_every_link_leads_to_a_page_and_a_heading(path: Path) -> None:
    assert page.dead_links(path) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(_PAGE)
    assert page.dead_links(tmp_path / "page.md") == ["other.md"]
    (tmp_path / "other.md").write_text("# Other\n")
    assert page.dead_links(tmp_path / "page.md") == []
    (tmp_path / "page.md").write_text("[a](other.md#nothing) [b](#none) [c](https://example.com)")
    assert page.dead_links(tmp_path / "page.md") == ["other.md#nothing", "#none"]


def test_every_page_is_listed_in_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    assert {shown(p) for p in DOCS if p != index and p.resolve() not in page.linked(index)} == set()


@pytest.mark.parametrize("path", DOCS, ids=shown)
def test_every_command_is_run_or_says_why_not(path: Path) -> None:
    assert page.unmarked(path.read_text()) == []


@pytest.mark.parametrize("mark", ["", "<!-- not run -->\n", "<!-- not run:  -->\n", "<!-- later -->\n"])
def test_a_command_without_a_mark_is_found(mark: str) -> None:
    assert page.unmarked(_PAGE) == []
    assert page.unmarked(f"{mark}```bash\nls\n```\n") == ["ls"]


@pytest.mark.parametrize("path", RUNNABLE, ids=shown)
def test_the_commands_of_a_page_run(path: Path, runs: dict[Path, Future]) -> None:
    done = runs[path].result(timeout=280)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"


def test_the_commands_of_a_page_are_really_run(tmp_path: Path) -> None:
    done = run_page(_PAGE, tmp_path, timeout_s=20)
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert run_page(_PAGE.replace("cat greeting", "cat missing"), tmp_path).returncode != 0
    assert run_page("<!-- run -->\n```bash\nfalse\ntrue\n```\n", tmp_path).returncode != 0


def test_the_reference_is_the_one_that_is_generated() -> None:
    assert (ROOT / "docs/reference/recipe.md").read_text() == reference_page(), "run: make docs"


def test_the_changelog_says_what_is_not_released_yet() -> None:
    assert unreleased((ROOT / "CHANGELOG.md").read_text()) != []


def test_an_empty_changelog_is_found() -> None:
    assert unreleased("# Changelog\n\n## [0.1.0]\n\n- old\n") == []
    assert unreleased("## [Unreleased]\n\n## [0.1.0]\n\n- old\n") == []
    assert unreleased("## [Unreleased]\n\n### Added\n\n- new\n\n## [0.1.0]\n") == ["new"]


def unreleased(changelog: str) -> list[str]:
    """The entries of the section Unreleased."""
    section = re.search(r"^## \[Unreleased\]\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    return re.findall(r"^- (.+)$", section[1], re.M) if section else []

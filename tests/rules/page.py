"""Reading Markdown pages: links, headings, and blocks that are marked for running."""

import re
from pathlib import Path
from typing import NamedTuple

_FENCE = re.compile(
    r"^(?:<!--\s*(?P<mark>[^\n]*?)\s*-->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.M)


class Block(NamedTuple):
    """A fenced block and the comment on the line before it."""

    mark: str
    """`run`, `not run: reason`, `file: NAME`, or empty."""
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    """All fenced blocks of a page, in order."""
    return [Block(m["mark"] or "", m["language"], m["text"]) for m in _FENCE.finditer(page)]


def unmarked(page: str) -> list[str]:
    """First lines of bash blocks that say neither that they are run nor why not."""
    return [
        block.text.splitlines()[0]
        for block in blocks(page)
        if block.language == "bash" and block.mark != "run" and not re.match(r"not run: \S", block.mark)
    ]


def script(page: str, folder: Path) -> str:
    """Write the page's files into `folder`; its marked commands as one program, or empty."""
    parts = []
    for block in blocks(page):
        if block.mark.startswith("file: "):
            parts.append(f"cat > {block.mark[6:]} <<'END-OF-FILE'\n{block.text}END-OF-FILE\n")
        elif block.mark == "run":
            parts.append(block.text)
    if not any(block.mark == "run" for block in blocks(page)):
        return ""
    (folder / "page.sh").write_text("set -euxo pipefail\n" + "".join(parts))
    return str(folder / "page.sh")


def anchors(page: str) -> set[str]:
    """The names that headings can be linked by."""
    text = _FENCE.sub("", page)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(text))
    return {heading.replace(" ", "-") for heading in plain}


def dead_links(path: Path) -> list[str]:
    """Links of a page to files or headings that are not there; the web is not asked."""
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    return [link for link in _LINK.findall(text) if "://" not in link and not _resolves(path, link)]


def linked(path: Path) -> set[Path]:
    """The files that a page links to."""
    links = _LINK.findall(path.read_text(encoding="utf-8"))
    return {(path.parent / link.partition("#")[0]).resolve() for link in links if "://" not in link}


def _resolves(path: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    target = path.parent / name if name else path
    if not target.exists():
        return False
    return not anchor or anchor in anchors(target.read_text(encoding="utf-8"))

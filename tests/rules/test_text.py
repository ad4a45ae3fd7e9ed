"""What no text of the repository may hold: unfinished marks, places of one machine, hosts of others."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.rules.source import ROOT

_MARKS = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
_PLACES = re.compile(r"(?<![\w.~*}\"'$-])/(?:work|opt|root|home|Users|mnt|media|scratch)(?:/|\b(?!\w))")
_URLS = re.compile(r"https?://([^\s/:)\"'`>\]{]+)")
_ADDRESSES = re.compile(r"(?<![\d.])(\d{1,3}(?:\.\d{1,3}){3})(?![\d.])")
_OURS = re.compile(r"^(127\.0\.0\.1|0\.0\.0\.0|localhost|host|(.*\.)?example\.(com|org))$")
_KNOWN = {"keepachangelog.com", "semver.org", "www.apache.org", "diataxis.fr"}
_SUFFIXES = {".py", ".md", ".yaml", ".toml", ".txt", ".cfg", ".sh", ""}


def texts() -> list[Path]:
    """Every text file that is, or is about to be, in the repository; the licence is not ours to word."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [ROOT / name for name in listed.stdout.splitlines()]
    return [p for p in paths if p.is_file() and p.suffix in _SUFFIXES and p.name != "LICENSE"]


def unfinished(text: str) -> list[str]:
    return _MARKS.findall(text)


def places(text: str) -> list[str]:
    return [match.group(0) for match in _PLACES.finditer(text)]


def hosts(text: str) -> list[str]:
    found = [*_URLS.findall(text), *_ADDRESSES.findall(text)]
    return [host for host in found if host not in _KNOWN and not _OURS.match(host)]


def complaints(paths: list[Path], rule) -> list[str]:
    return [f"{p.relative_to(ROOT)}: {found}" for p in paths for found in rule(p.read_text(encoding="utf-8"))]


def test_the_files_are_found() -> None:
    assert {"Makefile", "pyproject.toml", "README.md"} <= {path.name for path in texts()}


def test_nothing_is_left_unfinished() -> None:
    assert complaints(texts(), unfinished) == []
    assert unfinished("x = 1  # TO" + "DO later") == ["TO" + "DO"]
    assert unfinished("the method todos") == []


def test_no_place_of_one_machine_is_named() -> None:
    assert complaints([path for path in texts() if path != Path(__file__)], places) == []


@pytest.mark.parametrize(
    "text", ["see /mnt/main", "in /opt/venv/bin", "/home/me/x", "under /root", "(/Users/me)"]
)
def test_a_place_of_one_machine_is_found(text: str) -> None:
    assert len(places(text)) == 1


@pytest.mark.parametrize(
    "text", ["file:///shared/folder", "src/work/x", "{root}/home/x", "/tmp/x", "a/opt/b"]
)
def test_a_path_that_may_be_anywhere_is_no_place(text: str) -> None:
    assert places(text) == []


def test_no_host_of_others_is_named() -> None:
    assert complaints([path for path in texts() if path != Path(__file__)], hosts) == []


@pytest.mark.parametrize("text", ["https://pypi.example.net/simple", "http://10.1.2.3:80", "at 192.168.0.7"])
def test_a_host_is_found(text: str) -> None:
    assert len(set(hosts(text))) == 1


@pytest.mark.parametrize(
    "text", ["http://127.0.0.1:8333", "https://s3.example.com", "version 1.2.3", "1.2.3.4.5"]
)
def test_our_own_machine_and_example_names_are_no_hosts(text: str) -> None:
    assert hosts(text) == []

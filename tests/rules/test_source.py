"""Sizes, names and shapes of the source; each rule is shown to fail on a counter-example."""

import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rules import source
from tests.rules.source import PACKAGE, ROOT, python_files

CODE = python_files("src", "bench", "examples")
TESTS = python_files("tests")


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def complaints(paths: list[Path], rule: Callable[[str], list[str]]) -> list[str]:
    return [f"{shown(path)}:{found}" for path in paths for found in rule(path.read_text())]


def test_a_file_has_at_most_400_lines() -> None:
    assert complaints([*CODE, *TESTS], source.file_size) == []
    assert source.file_size("\n" * 400) == []
    assert source.file_size("\n" * 401) == ["1: 401 lines, at most 400"]


def test_a_function_body_has_at_most_40_lines() -> None:
    assert complaints(CODE, source.function_sizes) == []
    docstring = '"""' + "\n" * 30 + '    """'
    fits = f"def f():\n    {docstring}\n" + "    x = 1\n" * 40
    assert source.function_sizes(fits) == []
    assert source.function_sizes(f"{fits}    x = 1\n") == ["1: f has 41 lines of body, at most 40"]
    assert source.function_sizes("class A:\n    async def g(self):\n" + "        x = 1\n" * 41) != []


def test_a_class_has_at_most_150_lines_and_10_public_methods() -> None:
    assert complaints(CODE, source.class_sizes) == []
    assert source.class_sizes("class A:\n" + "    x = 1\n" * 149) == []
    assert source.class_sizes("class A:\n" + "    x = 1\n" * 150) == ["1: class A has 151 lines, at most 150"]
    methods = "".join(f"    def m{n}(self): ...\n" for n in range(10)) + "    def _own(self): ...\n"
    assert source.class_sizes(f"class A:\n{methods}") == []
    assert source.class_sizes(f"class A:\n{methods}    def m10(self): ...\n") != []


def test_blocks_nest_at_most_three_deep() -> None:
    assert complaints(CODE, source.nesting) == []
    three = """
        def f():
            for a in b:
                with c:
                    if d:
                        e()
                    elif g:
                        h()
                    else:
                        i()
    """
    assert source.nesting(textwrap.dedent(three)) == []
    four = textwrap.dedent(three).replace("            h()", "            while h(): pass")
    assert source.nesting(four) == ["2: f nests 4 deep, at most 3"]


@pytest.mark.parametrize(
    ("text", "module"),
    [
        ("", "utils"),
        ("", "file_helper"),
        ("", "common"),
        ("", "misc"),
        ("class RunManager: ...", "run"),
        ("class Trainer: ...", "run"),
        ("class EventHandler: ...", "run"),
        ("class BaseStore: ...", "run"),
        ("class A:\n    def do_it(self): ...", "run"),
        ("def process_batch(): ...", "run"),
        ("def _process_batch(): ...", "run"),
    ],
)
def test_a_name_that_says_nothing_is_found(text: str, module: str) -> None:
    assert len(source.banned_names(text, module)) == 1


def test_names_say_what_a_thing_is() -> None:
    found = [
        f"{shown(path)}:{complaint}"
        for path in CODE
        for complaint in source.banned_names(path.read_text(), path.stem)
    ]
    assert found == []
    assert source.banned_names("class Database: ...\ndef double(): ...\ndef processes(): ...", "store") == []


def test_only_the_command_line_prints() -> None:
    package = [path for path in python_files("src") if "cli" not in path.parts]
    assert complaints(package, source.prints) == []
    assert source.prints("def f():\n    print(1)") == ["2: print"]


def test_modules_hold_no_state_that_changes() -> None:
    assert complaints(python_files("src"), source.mutable_globals) == []
    text = "cache = {}\n_seen: set[int] = set()\nTABLE = {}\n__all__ = []"
    assert source.mutable_globals(text) == ["1: cache", "2: _seen"]
    assert source.mutable_globals("def f():\n    global x\n    x = 1") == ["2: global"]


SHARED = re.compile(
    r"shared_memory|/dev/shm|SemLock|sem_open|torch\.multiprocessing|share_memory_|\bos\.fork\b|\"fork\"|'fork'"
)
"""What outlives a process that is killed, and forks, which copy threads' locks in whatever state they are."""


def test_nothing_is_shared_that_outlives_a_killed_process() -> None:
    found = [shown(path) for path in python_files("src") if SHARED.search(path.read_text())]
    assert found == []
    assert all(map(SHARED.search, ["from multiprocessing import shared_memory", 'get_context("fork")']))
    assert SHARED.search("No pickle, no shared memory; a forked child is told") is None


def test_unit_tests_mirror_the_package() -> None:
    strays = [
        shown(path)
        for path in python_files("tests/unit")
        if path.name.startswith("test_")
        and not (PACKAGE / path.parent.relative_to(ROOT / "tests/unit") / path.name[5:]).exists()
    ]
    assert strays == []
    assert (PACKAGE / "core" / "test_units.py"[5:]).exists()
    assert not (PACKAGE / "core" / "test_stray.py"[5:]).exists()

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchrelay.core.errors import DataError, RecipeError
from torchrelay.data.build.user_code import UserCode, call_function, iterate

SOURCE = """
import sys

def texts(count=3, name="x"):
    for n in range(count):
        if n == 2:
            raise KeyError("lost")
        yield f"text {n}"

def deep(n=9):
    return deep(n - 1) if n else 1 // 0

def leave():
    sys.exit()
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "user_texts.py").write_text(SOURCE)
    (tmp_path / "user_broken.py").write_text("lost_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("user_texts", None)


def test_an_argument_that_the_function_lacks_is_told_with_those_it_has() -> None:
    with pytest.raises(DataError, match="user_texts:texts cannot be called with --option foo") as caught:
        call_function("user_texts:texts", {"foo": 1})
    assert "unexpected keyword argument 'foo'" in caught.value.message
    assert "count, name" in caught.value.hint and caught.value.exit_code == 78


def test_what_a_function_raises_is_told_with_item_type_text_and_line() -> None:
    found = iterate("user_texts:texts", call_function("user_texts:texts", {}), "item")
    assert [next(found), next(found)] == ["text 0", "text 1"]
    with pytest.raises(DataError) as caught:
        next(found)
    first, frame = caught.value.message.splitlines()
    assert first == "user_texts:texts: item 2: KeyError: 'lost'"
    assert frame.endswith('user_texts.py:7 in texts: raise KeyError("lost")')


def test_a_long_traceback_is_left_out() -> None:
    with pytest.raises(DataError) as caught:
        call_function("user_texts:deep", {})
    assert caught.value.message == "user_texts:deep: ZeroDivisionError: integer division or modulo by zero"


def test_a_function_that_ends_the_program_does_not_end_it_well() -> None:
    with pytest.raises(DataError, match="user_texts:leave: SystemExit"):
        call_function("user_texts:leave", {})


def test_a_module_that_raises_is_named() -> None:
    with pytest.raises(DataError, match="user_broken:f cannot be imported: NameError"):
        call_function("user_broken:f", {})


def test_our_own_errors_and_a_request_to_stop_pass() -> None:
    for error in (RecipeError("own"), KeyboardInterrupt()):
        with pytest.raises(type(error)), UserCode("x"):
            raise error


def test_items_are_counted_from_the_start_that_is_given() -> None:
    def rows() -> Iterator[int]:
        yield 1
        raise ValueError

    found = iterate("m:f", rows(), "sample", 40)
    assert next(found) == 1
    with pytest.raises(DataError, match="m:f: sample 41: ValueError"):
        next(found)

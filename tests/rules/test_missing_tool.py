"""A tool that is missing is a skip on somebody's machine and a failure in CI."""

import pytest

from tests.conftest import missing_tool


def test_a_missing_tool_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="the program 'x' is not installed"):
        missing_tool("the program 'x' is not installed")


def test_a_missing_tool_skips_elsewhere(monkeypatch: pytest.MonkeyPatch, require_tool) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no-such-program"):
        require_tool("no-such-program")
    assert require_tool("bash").endswith("bash")

from tests.unit.cli.conftest import Command


def test_a_run_that_writes_no_text_is_refused(command: Command) -> None:
    code, _, errors = command("sample", "t", "--prompt", "x")
    assert code == 78
    assert "does not train a model that writes text" in errors


def test_a_missing_run_is_named(command: Command) -> None:
    code, _, errors = command("sample", "u")
    assert code == 78
    assert "there is no run 'u'" in errors

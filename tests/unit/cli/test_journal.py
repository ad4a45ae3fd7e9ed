import json

from tests.unit.cli.conftest import Command


def test_records_come_oldest_first_one_a_line(command: Command) -> None:
    code, out, _ = command("journal", "t")
    assert code == 0
    kinds = [line.split()[1] for line in out.splitlines()]
    assert kinds[0] == "start"
    assert kinds[-1] == "export"
    assert kinds.count("step") == 6


def test_one_kind_for_programs_has_the_promised_fields(command: Command) -> None:
    code, out, _ = command("journal", "t", "--kind", "step", "--json")
    assert code == 0
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["step"] for record in records] == list(range(1, 7))
    promised = "kind step loss samples tokens seconds lr grad_norm world attempt".split()
    assert set(promised) <= set(records[0])


def test_counting_leaves_only_steps(command: Command) -> None:
    _, out, _ = command("journal", "t", "--counting", "--json")
    assert [json.loads(line)["step"] for line in out.splitlines()] == list(range(1, 7))


def test_a_missing_run_is_named(command: Command) -> None:
    code, _, errors = command("journal", "u")
    assert code == 78
    assert "there is no run 'u'" in errors

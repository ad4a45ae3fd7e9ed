import signal

from hypothesis import given
from hypothesis import strategies as st

from torchrelay.core.errors import ExitCode
from torchrelay.core.record import ErrorRecord
from torchrelay.launch.cause import OUT_OF_MEMORY_HINT, Ended, choose_cause, whole_exit_code
from torchrelay.observe.failure import FailureReport


def ended(rank: int, code: int, at_s: float = 0.0) -> Ended:
    return Ended(rank=rank, code=code, at_s=at_s)


def report(rank: int, at_s: float, *, follows: bool = False, exit_code: int = 1) -> FailureReport:
    error = ErrorRecord(
        attempt=0,
        rank=rank,
        host="h",
        error="E",
        message=f"of rank {rank}",
        hint="",
        exit_code=exit_code,
        traceback="",
    )
    return FailureReport(rank=rank, at_s=at_s, follows=follows, error=error)


def test_nobody_failed_when_all_are_done_or_saved() -> None:
    assert choose_cause([ended(0, 0), ended(1, 75)], [], "h") is None


def test_the_earliest_report_is_the_cause() -> None:
    cause = choose_cause([ended(0, 1, 9.0), ended(1, 1, 9.0)], [report(0, 5.1), report(1, 5.0)], "h")
    assert cause is not None
    assert cause.message == "of rank 1"


def test_an_echo_is_never_the_cause_while_there_is_another_failure() -> None:
    cause = choose_cause(
        [ended(0, 1, 5.0), ended(1, 1, 6.0)], [report(0, 4.0, follows=True), report(1, 4.5)], "h"
    )
    assert cause is not None
    assert cause.message == "of rank 1"


def test_a_silent_death_comes_before_the_echoes_it_caused() -> None:
    cause = choose_cause([ended(0, 1, 5.0), ended(1, -9, 5.02)], [report(0, 4.99, follows=True)], "box7")
    assert cause is not None
    assert (cause.rank, cause.host, cause.exit_code) == (1, "box7", 1)
    assert cause.message == "rank 1 was killed by SIGKILL (signal 9)"
    assert cause.hint == OUT_OF_MEMORY_HINT


def test_when_all_only_lost_contact_the_first_of_them_is_told() -> None:
    cause = choose_cause(
        [ended(0, 1), ended(1, 1)], [report(0, 2.0, follows=True), report(1, 1.0, follows=True)], "h"
    )
    assert cause is not None
    assert cause.rank == 1


def test_a_crash_and_a_wordless_exit_are_told_apart() -> None:
    crash = choose_cause([ended(2, -signal.SIGSEGV)], [], "h")
    quiet = choose_cause([ended(2, 3)], [], "h")
    assert crash is not None
    assert quiet is not None
    assert crash.message == "rank 2 was killed by SIGSEGV (signal 11)"
    assert crash.hint != OUT_OF_MEMORY_HINT
    assert quiet.message == "rank 2 exited with code 3 and said nothing"


def test_a_signal_without_a_name_is_told_by_its_number() -> None:
    cause = choose_cause([ended(0, -40)], [], "h")
    assert cause is not None
    assert "signal 40" in cause.message


def test_the_exit_code_is_the_causes_else_75_else_0() -> None:
    bad_input = report(0, 0.0, exit_code=78).error
    assert whole_exit_code({0: 78, 1: 75}, bad_input) == 78
    assert whole_exit_code({0: 75, 1: 0}, None) == ExitCode.CHECKPOINTED
    assert whole_exit_code({0: 0, 1: 0}, None) == ExitCode.DONE


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 75, 78, -9, -15]), st.floats(0, 100)), min_size=1, max_size=6),
    st.data(),
)
def test_the_cause_is_always_a_rank_that_failed_and_a_real_failure_if_there_is_one(
    ends: list[tuple[int, float]], data: st.DataObject
) -> None:
    ranks = [ended(rank, code, at_s) for rank, (code, at_s) in enumerate(ends)]
    reports = [
        report(e.rank, data.draw(st.floats(0, 100)), follows=data.draw(st.booleans()))
        for e in ranks
        if e.code > 0 and data.draw(st.booleans())
    ]
    cause = choose_cause(ranks, reports, "h")
    failed = {e.rank for e in ranks if e.code not in (0, 75)}
    assert (cause is None) == (not failed)
    if cause is not None:
        echoes = {r.rank for r in reports if r.follows}
        assert cause.rank in failed
        assert cause.rank not in echoes or failed <= echoes

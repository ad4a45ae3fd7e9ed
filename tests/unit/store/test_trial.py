import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchrelay.core.errors import StoreError
from torchrelay.store.fault import CUT_OFF, Cause, Fault
from torchrelay.store.trial import LEAST_BYTES_PER_S, LONGEST_PAUSE_S, Trial

STORM = Fault(Cause.TRANSIENT, "503 SlowDown")
DENIED = Fault(Cause.DENIED, "403 AccessDenied")


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.pauses.append(seconds)


@pytest.fixture
def time() -> Time:
    return Time()


def make(time: Time, *, patience_s: float = 60, size: int = 0) -> Trial:
    return Trial("get", "s3://b/k", patience_s=patience_s, size=size, clock=time, sleep=time.sleep)


def fail_until_it_gives_up(trial: Trial, fault: Fault) -> StoreError:
    with pytest.raises(StoreError) as caught:
        for _ in range(10_000):
            trial.failed(fault, reading=True)
    return caught.value


def test_pauses_grow_and_end_with_the_patience(time: Time) -> None:
    error = fail_until_it_gives_up(make(time), STORM)
    assert 40 < time.now_s <= 60
    assert time.pauses[0] <= 0.2
    assert max(time.pauses) <= LONGEST_PAUSE_S
    assert time.pauses[5] > 4 * time.pauses[0]
    count = len(time.pauses) + 1
    assert error.message.startswith(f"s3://b/k: 503 SlowDown; tried {count} times in ")
    assert error.message.endswith(f"({count} × 503 SlowDown)")


def test_pauses_differ_so_that_many_do_not_come_back_at_once(time: Time) -> None:
    trials = [make(time) for _ in range(20)]
    for trial in trials:
        trial.failed(STORM, reading=True)
    assert len(set(time.pauses)) == 20


def test_every_kind_of_failure_is_counted(time: Time) -> None:
    trial = make(time, patience_s=3)
    trial.failed(CUT_OFF, reading=True)
    error = fail_until_it_gives_up(trial, STORM)
    assert "1 × answer cut off" in error.message
    assert "503 SlowDown, " in error.message


@pytest.mark.parametrize(
    "cause", [cause for cause in Cause if cause.value not in ("transient", "unreachable")]
)
def test_what_does_not_pass_is_told_after_one_try_or_two(time: Time, cause: Cause) -> None:
    trial = make(time)
    fail_until_it_gives_up(trial, Fault(cause, "x"))
    assert trial.retries == (1 if cause is Cause.DENIED else 0)
    assert time.now_s == 0


def test_progress_makes_the_next_pause_short_again(time: Time) -> None:
    trial = make(time)
    for _ in range(6):
        trial.failed(CUT_OFF, reading=True)
    trial.came(1)
    trial.failed(CUT_OFF, reading=True)
    assert time.pauses[-1] <= 0.2


@given(st.floats(1, 100), st.integers(0, 10**9))
def test_time_allowed_grows_with_what_was_sent(patience_s: float, size: int) -> None:
    time = Time()
    trial = make(time, patience_s=patience_s, size=size)
    fail_until_it_gives_up(trial, STORM)
    allowed_s = patience_s + size / LEAST_BYTES_PER_S
    assert allowed_s - LONGEST_PAUSE_S <= time.now_s <= allowed_s


def wait(trial: Trial, time: Time, seconds: float) -> None:
    with trial.waiting():
        time.now_s += seconds


def test_slower_than_the_least_for_too_long_is_told_with_the_speed(time: Time) -> None:
    trial = make(time, patience_s=60)
    with pytest.raises(StoreError) as caught:
        for _ in range(1000):
            wait(trial, time, 1)
            trial.came(1000)
    assert 60 < time.now_s <= 62
    assert caught.value.message == "s3://b/k: too slow; 59.6 KiB came in 1 min 01 s, 1000 B/s"


def test_fast_enough_may_last_as_long_as_it_takes(time: Time) -> None:
    trial = make(time, patience_s=60)
    for _ in range(10_000):
        wait(trial, time, 1)
        trial.came(int(LEAST_BYTES_PER_S))


def test_what_the_reader_does_in_between_is_not_the_store_s_time(time: Time) -> None:
    trial = make(time, patience_s=60)
    for _ in range(100):
        time.now_s += 100
        wait(trial, time, 0.1)
        trial.came(1)
    outcome = trial.outcome("k", succeeded=True)
    assert outcome.seconds == pytest.approx(10)
    assert (outcome.num_bytes, outcome.retries) == (100, 0)


def test_what_was_sent_counts_only_once_it_has_arrived(time: Time) -> None:
    trial = make(time, size=70)
    assert trial.outcome("k", succeeded=True).num_bytes == 70
    assert trial.outcome("k", succeeded=False).num_bytes == 0

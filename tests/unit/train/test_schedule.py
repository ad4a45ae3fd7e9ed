import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from torchrelay.recipe.schema import ScheduleSection
from torchrelay.train.schedule import Schedule, build_schedule

KINDS = ("constant", "cosine", "linear", "wsd")


def schedule(steps: int = 100, lr: float = 1.0, tokens_per_step: int = 10, **fields: object) -> Schedule:
    section = ScheduleSection.model_validate(fields)
    return build_schedule(section, lr=lr, steps=steps, tokens_per_step=tokens_per_step)


def trace(schedule: Schedule, steps: int) -> list[float]:
    return [schedule.lr(step) for step in range(1, steps + 1)]


@given(
    kind=st.sampled_from(KINDS),
    steps=st.integers(1, 300),
    warmup=st.integers(0, 400),
    decay=st.none() | st.integers(1, 400),
    final=st.floats(0, 1),
)
def test_the_rate_rises_to_the_peak_then_only_falls_and_never_jumps(
    kind: str, steps: int, warmup: int, decay: int | None, final: float
) -> None:
    made = schedule(steps, kind=kind, warmup=warmup, decay=decay, final=final)
    rates = trace(made, steps)
    rising, rest = rates[:warmup], rates[warmup:]
    assert all(0 < rate < 1 for rate in rising)
    assert rising == sorted(rising)
    assert rest == sorted(rest, reverse=True)
    assert all(final - 1e-12 <= rate <= 1 for rate in rest)
    if rest:
        assert rest[0] == 1.0
    steepest = max(1 / (warmup + 1), 2 * (1 - final) / max(1, made.decay_steps))
    assert all(abs(a - b) <= steepest + 1e-12 for a, b in zip(rates, rates[1:], strict=False))


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_the_fall_ends_at_its_share_and_stays_there(kind: str) -> None:
    made = schedule(100, kind=kind, warmup=20, final=0.1, lr=2.0)
    assert made.lr(21) == 2.0
    assert made.lr(61) == pytest.approx(1.1)
    assert made.lr(101) == pytest.approx(0.2)
    assert made.lr(10_000) == pytest.approx(0.2)


def test_a_cosine_is_a_cosine() -> None:
    made = schedule(100, kind="cosine", final=0.0)
    assert [made.lr(step) for step in (1, 26, 51, 76, 101)] == pytest.approx(
        [1, 0.8535534, 0.5, 0.1464466, 0], abs=1e-6
    )


def test_wsd_stays_until_the_last_tenth() -> None:
    made = schedule(100, kind="wsd", warmup=10, final=0.0)
    assert {made.lr(step) for step in range(11, 92)} == {1.0}
    assert made.lr(96) == pytest.approx(0.5)
    assert made.lr(101) == 0.0


def test_a_given_decay_is_taken_whatever_the_length_of_the_run() -> None:
    short, long = (schedule(steps, kind="cosine", warmup=5, decay=30) for steps in (10, 1000))
    assert trace(short, 10) == trace(long, 10)
    wsd = schedule(100, kind="wsd", decay="20 steps", final=0.5)
    assert (wsd.lr(81), wsd.lr(91), wsd.lr(101)) == (1.0, pytest.approx(0.75), pytest.approx(0.5))


def test_warm_up_grows_by_equal_parts_and_reaches_the_peak_just_after() -> None:
    assert trace(schedule(warmup=4, kind="constant"), 6) == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


def test_lengths_in_tokens_are_counted_in_steps() -> None:
    tokens = schedule(100, kind="linear", warmup="100 tokens", decay="0.5k tokens", tokens_per_step=10)
    steps = schedule(100, kind="linear", warmup=10, decay=50)
    assert trace(tokens, 100) == trace(steps, 100)
    assert schedule(warmup="101 tokens").warmup == 11


@given(kind=st.sampled_from(KINDS), steps=st.integers(1, 200), first=st.integers(1, 200))
def test_the_rate_is_a_function_of_the_step_alone(kind: str, steps: int, first: int) -> None:
    assume(first <= steps)
    made = schedule(steps, kind=kind, warmup=7)
    assert [made.lr(step) for step in range(first, steps + 1)] == trace(made, steps)[first - 1 :]

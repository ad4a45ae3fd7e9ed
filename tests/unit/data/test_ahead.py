import gc
import threading
from collections.abc import Generator, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrelay.core.errors import DataError, DeadlineError
from torchrelay.data.ahead import THREAD_NAME, Limits, read_ahead


def limits(items: int = 3, size: int = 10**9, wait_s: float = 60.0) -> Limits:
    return Limits(items=items, bytes=size, wait_s=wait_s)


def running() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == THREAD_NAME]


def counted(asked: list[int], stop: int = 1000, fail_at: int = -1) -> Generator[int]:
    for number in range(stop):
        asked.append(number)
        if number == fail_at:
            raise DataError("shard x is damaged")
        yield number


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 50), max_size=30), items=st.integers(1, 8), most=st.integers(1, 100))
def test_items_come_in_their_order_and_within_the_limits(sizes: list[int], items: int, most: int) -> None:
    begun: list[int] = []

    def produce() -> Iterator[int]:
        for number in range(len(sizes)):
            begun.append(number)
            yield number

    taken = []
    bounds = limits(items, most)
    for number in read_ahead((n for n in produce()), lambda n: sizes[n], bounds):
        taken.append(number)
        waiting = begun[len(taken) :]
        assert len(waiting) <= items
        # The last one begun is taken to be as large as the one before it.
        assert len(waiting) < 2 or sum(sizes[n] for n in waiting[:-1]) + sizes[waiting[-2]] <= most
    assert taken == list(range(len(sizes)))


def test_no_more_is_begun_than_may_wait() -> None:
    asked: list[int] = []
    ahead = read_ahead(counted(asked), lambda _: 1, limits(2))
    for consumed in range(1, 8):
        next(ahead)
        assert len(asked) <= consumed + 2
    ahead.close()


def test_the_thread_does_read_ahead() -> None:
    begun = [threading.Event() for _ in range(4)]

    def produce() -> Generator[int]:
        for number, event in enumerate(begun):
            event.set()
            yield number

    ahead = read_ahead(produce(), lambda _: 1, limits(3))
    assert next(ahead) == 0
    assert all(event.wait(10) for event in begun)
    ahead.close()


def test_an_error_is_raised_where_its_item_would_have_come() -> None:
    ahead = read_ahead(counted([], fail_at=2), lambda _: 1, limits(5))
    assert [next(ahead), next(ahead)] == [0, 1]
    with pytest.raises(DataError, match="shard x is damaged"):
        next(ahead)
    assert running() == []


def test_closing_ends_the_thread_and_closes_the_items_in_it() -> None:
    closed: list[str] = []

    def produce() -> Generator[int]:
        try:
            yield from range(1000)
        finally:
            closed.append(threading.current_thread().name)

    ahead = read_ahead(produce(), lambda _: 1, limits())
    next(ahead)
    assert running() != []
    ahead.close()
    assert (running(), closed) == ([], [THREAD_NAME])
    forgotten = read_ahead(produce(), lambda _: 1, limits())
    next(forgotten)
    del forgotten
    gc.collect()
    assert running() == []


def test_who_waits_too_long_is_told_where_the_thread_is() -> None:
    go_on = threading.Event()

    def hanging() -> Generator[int]:
        go_on.wait()
        yield 1

    ahead = read_ahead(hanging(), lambda _: 1, limits(wait_s=0.05))
    with pytest.raises(DeadlineError) as caught:
        next(ahead)
    assert "did not come within 0.05 s" in caught.value.message
    assert "in hanging" in caught.value.message
    go_on.set()

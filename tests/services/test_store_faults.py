"""What a store does when the service or the network behaves badly; every case has a deadline."""

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.services.conftest import BUCKET, S3Server
from tests.services.proxy import Fault, FaultProxy, Rule
from torchrelay.core.errors import AlreadyExistsError, NotFoundError, StoreError
from torchrelay.store.base import Store
from torchrelay.store.open import open_store
from torchrelay.store.trial import Operation

pytestmark = pytest.mark.services

MIB = 2**20
PATIENCE_S = 3.0


@pytest.fixture
def seen() -> list[Operation]:
    """What the observer of the store was told."""
    return []


@pytest.fixture
def store(faulty_s3: FaultProxy, seen: list[Operation]) -> Store:
    return open_store(f"s3://{BUCKET}/{uuid.uuid4().hex}", retry_s=PATIENCE_S, observer=seen.append)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fails when the body takes longer."""
    began_s = time.monotonic()
    yield
    assert time.monotonic() - began_s < seconds


@pytest.mark.parametrize(
    "rule",
    [
        Rule(Fault.STATUS, method="GET", times=3, status=503, code="SlowDown"),
        Rule(Fault.STATUS, method="GET", times=3, status=500, code="InternalError"),
        Rule(Fault.STATUS, method="GET", times=3, status=429, code="TooManyRequests"),
        Rule(Fault.STATUS, method="GET", times=3, status=408, code="RequestTimeout"),
        Rule(Fault.STATUS, method="GET", times=3, status=400, code="RequestTimeout"),
        Rule(Fault.RESET, method="GET", times=3, at=0),
        Rule(Fault.RESET, method="GET", times=3, at=300_000),
        Rule(Fault.LOSE, method="GET", times=3),
    ],
    ids=lambda rule: f"{rule.fault}-{rule.status}-{rule.code}-{rule.at}",
)
def test_a_read_outlives_a_fault_that_passes(
    store: Store, faulty_s3: FaultProxy, seen: list[Operation], rule: Rule
) -> None:
    content = os.urandom(2 * MIB)
    store.put("a", content)
    seen.clear()
    faulty_s3.clear()
    faulty_s3.set(rule)
    with within(PATIENCE_S):
        assert store.get("a") == content
    (operation,) = seen
    assert operation.retries == 3
    assert operation.succeeded
    assert (operation.action, operation.key, operation.num_bytes) == ("get", "a", 2 * MIB)
    assert 0.3 < operation.seconds < PATIENCE_S


def test_nothing_that_came_is_fetched_again(store: Store, faulty_s3: FaultProxy) -> None:
    content = os.urandom(8 * MIB)
    store.put("a", content)
    faulty_s3.clear()
    faulty_s3.set(Rule(Fault.TRUNCATE, method="GET", times=3, at=2 * MIB))
    assert store.get("a", start=0, length=8 * MIB) == content
    assert list(faulty_s3.fetched().values()) == [8 * MIB]
    assert [request.start for request in faulty_s3.requests] == [0, 2 * MIB, 4 * MIB, 6 * MIB]


def test_a_stall_in_mid_body_costs_the_silence_and_not_the_object(
    faulty_s3: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchrelay.store.connection.SILENCE_S", 1.0)
    store = open_store(f"s3://{BUCKET}/{uuid.uuid4().hex}", retry_s=10)
    content = os.urandom(4 * MIB)
    store.put("a", content)
    faulty_s3.clear()
    faulty_s3.set(Rule(Fault.STALL, method="GET", times=1, at=3 * MIB))
    with within(4):
        assert store.get("a") == content
    assert faulty_s3.requests[1].start > 2 * MIB


def test_a_store_that_stays_silent_is_an_error_with_what_was_tried(
    store: Store, faulty_s3: FaultProxy
) -> None:
    store.put("a", bytes(MIB))
    faulty_s3.set(Rule(Fault.STALL, method="GET", at=0))
    told = r"/a: answer stalled; gave up after [0-9.]+ s"
    with within(PATIENCE_S + 3), pytest.raises(StoreError, match=told):
        store.get("a")


def test_a_slow_store_is_told_with_its_speed(store: Store, faulty_s3: FaultProxy) -> None:
    store.put("a", bytes(4 * MIB))
    faulty_s3.set(Rule(Fault.SLOW, method="GET", bytes_per_s=50_000))
    told = r"/a: too slow; \d+(\.\d+)? KiB came in \d\.\d s, (3|4|5)\d\.\d KiB/s"
    with within(PATIENCE_S * 3), pytest.raises(StoreError, match=told) as caught:
        store.get("a")
    assert "97.7 KiB/s" in caught.value.hint


def test_a_trickle_is_told_with_its_speed_too(store: Store, faulty_s3: FaultProxy) -> None:
    store.put("a", bytes(MIB))
    faulty_s3.set(Rule(Fault.SLOW, method="GET", bytes_per_s=1000))
    told = r"/a: (too slow|answer stalled); \d\.\d+ KiB came in [0-9.]+ s, (\d{3}|1\.\d+ Ki)"
    with within(PATIENCE_S * 3), pytest.raises(StoreError, match=told):
        store.get("a")


def test_a_slow_store_is_read_to_the_end_where_it_is_fast_enough(store: Store, faulty_s3: FaultProxy) -> None:
    content = os.urandom(700_000)
    store.put("a", content)
    faulty_s3.set(Rule(Fault.SLOW, method="GET", bytes_per_s=140_000))
    with within(8):  # longer than the patience: the time allowed grows with what comes
        assert store.get("a") == content


def test_a_storm_that_does_not_pass_ends_with_what_was_answered_how_often(
    store: Store, faulty_s3: FaultProxy, seen: list[Operation]
) -> None:
    store.put("a", b"1")
    seen.clear()
    faulty_s3.set(Rule(Fault.STATUS, status=503, code="SlowDown"))
    told = r"/(a|b): 503 SlowDown; tried \d+ times in [0-9.]+ s \(\d+ × 503 SlowDown\)"
    for act in (
        lambda: store.get("a"),
        lambda: store.put("a", b"2"),
        lambda: store.put("b", b"2", if_absent=True),
        lambda: store.delete("a"),
    ):
        with within(PATIENCE_S + 1), pytest.raises(StoreError, match=told):
            act()
    with within(PATIENCE_S + 1), pytest.raises(StoreError, match=r"503 SlowDown; tried"):
        list(store.list(""))
    assert [operation.succeeded for operation in seen] == [False] * 5
    assert all(operation.retries >= 2 for operation in seen)


def test_a_storm_of_half_the_requests_is_outlived_by_everything(
    faulty_s3: FaultProxy, seen: list[Operation]
) -> None:
    store = open_store(f"s3://{BUCKET}/{uuid.uuid4().hex}", retry_s=30, observer=seen.append)
    faulty_s3.set(Rule(Fault.STATUS, share=0.5, status=503))
    with within(60):
        for number in range(8):
            store.put(f"a/{number}", b"%d" % number)
            store.put(f"b/{number}", b"%d" % number, if_absent=True)
        assert [store.get(entry.key) for entry in store.list("a")] == [b"%d" % n for n in range(8)]
        assert store.list_folders("") == ["a", "b"]
        for number in range(8):
            store.delete(f"a/{number}")
        assert list(store.list("a")) == []
        with store.open_writer("large") as writer:
            for _ in range(20):
                writer.write(bytes(MIB))
    assert sum(operation.retries for operation in seen) > 8


@pytest.mark.parametrize("fault", [Fault.RESET, Fault.LOSE])
def test_a_write_outlives_a_cut_connection(store: Store, faulty_s3: FaultProxy, fault: Fault) -> None:
    content = os.urandom(MIB)
    faulty_s3.set(Rule(fault, method="PUT", times=2, at=100_000))
    with within(PATIENCE_S):
        store.put("a", content)
    faulty_s3.clear()
    assert store.get("a") == content


def test_a_large_stream_outlives_cut_connections(store: Store, faulty_s3: FaultProxy) -> None:
    faulty_s3.set(Rule(Fault.RESET, method="PUT", times=2, at=MIB))
    faulty_s3.set(Rule(Fault.STATUS, method="POST", times=1, status=503))
    block = os.urandom(MIB)
    with within(20), store.open_writer("a") as writer:
        for number in range(40):
            writer.write(memoryview(block)[number:])
    faulty_s3.clear()
    assert store.get("a")[-5:] == block[-5:]


def test_a_create_whose_answer_is_lost_has_succeeded(store: Store, faulty_s3: FaultProxy) -> None:
    faulty_s3.set(Rule(Fault.LOSE, method="PUT", times=1))
    store.put("claim", b"mine", if_absent=True)
    with pytest.raises(AlreadyExistsError):
        store.put("claim", b"mine", if_absent=True)


def test_a_create_that_came_too_late_has_failed_even_after_a_lost_answer(
    store: Store, faulty_s3: FaultProxy
) -> None:
    store.put("claim", b"theirs")
    faulty_s3.set(Rule(Fault.LOSE, method="PUT", times=1))
    with pytest.raises(AlreadyExistsError):
        store.put("claim", b"mine", if_absent=True)
    assert store.get("claim") == b"theirs"


def test_a_conflict_of_two_creations_is_tried_again(store: Store, faulty_s3: FaultProxy) -> None:
    faulty_s3.set(Rule(Fault.STATUS, method="PUT", times=2, status=409, code="ConditionalRequestConflict"))
    store.put("claim", b"mine", if_absent=True)
    assert store.get("claim") == b"mine"


def test_an_object_that_is_replaced_while_it_is_read_is_not_mixed(
    store: Store, faulty_s3: FaultProxy
) -> None:
    store.put("a", bytes(4 * MIB))
    faulty_s3.clear()
    faulty_s3.set(Rule(Fault.RESET, method="GET", times=1, at=2 * MIB))
    pieces = store.stream("a")
    next(pieces)
    store.put("a", bytes(MIB) + b"1" * 3 * MIB)
    with pytest.raises(StoreError, match="was replaced while it was read"):
        list(pieces)


def test_nobody_there_for_a_while_is_outlived(store: Store, faulty_s3: FaultProxy) -> None:
    import threading

    store.put("a", b"1")
    with faulty_s3.refusing():
        got: list[bytes] = []
        reader = threading.Thread(target=lambda: got.append(store.get("a")))
        reader.start()
        time.sleep(0.5)
    reader.join(PATIENCE_S)
    assert got == [b"1"]


def test_a_missing_object_is_told_at_once_in_a_storm_of_none(store: Store) -> None:
    with within(1), pytest.raises(NotFoundError):
        store.get("nothing")


@pytest.mark.parametrize(
    ("rule", "told", "hint"),
    [
        (Rule(Fault.STATUS, status=403, code="RequestTimeTooSkewed"), "the clocks of this machine", "clock"),
        (
            Rule(
                Fault.STATUS,
                status=400,
                code="AuthorizationHeaderMalformed",
                body=b"<Region>eu-west-7</Region>",
            ),
            "the bucket is in the region eu-west-7",
            "AWS_REGION=eu-west-7",
        ),
        (Rule(Fault.STATUS, status=301, code="PermanentRedirect"), "the bucket is in another region", "AWS_"),
        (Rule(Fault.STATUS, status=400, code="ExpiredToken"), "access denied .400 ExpiredToken", "AWS_"),
        (Rule(Fault.STATUS, status=501, code="NotImplemented"), "501 NotImplemented", "AWS_"),
    ],
    ids=lambda value: value.code if isinstance(value, Rule) else "",
)
def test_what_does_not_pass_is_told_at_once(
    store: Store, faulty_s3: FaultProxy, rule: Rule, told: str, hint: str
) -> None:
    faulty_s3.set(rule)
    for act in (lambda: store.get("a"), lambda: store.put("a", b"1"), lambda: list(store.list(""))):
        with within(1.5), pytest.raises(StoreError, match=told) as caught:
            act()
        assert hint in caught.value.hint


def test_one_key_may_read_the_datasets_and_nothing_else(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"s3://{BUCKET}")
    name = uuid.uuid4().hex
    store.put(f"datasets/{name}/a", b"1")
    store.put(f"runs/{name}/a", b"1")
    for variable, value in s3.datasets_only.items():
        monkeypatch.setenv(variable, value)
    store = open_store(f"s3://{BUCKET}")
    assert store.get(f"datasets/{name}/a") == b"1"
    assert [entry.key for entry in store.list(f"datasets/{name}")] == [f"datasets/{name}/a"]
    for act in (
        lambda: store.get(f"runs/{name}/a"),
        lambda: list(store.list(f"runs/{name}")),
        lambda: store.put(f"datasets/{name}/b", b"1"),
        lambda: store.delete(f"datasets/{name}/a"),
        lambda: store.put(f"runs/{name}/b", b"1"),
    ):
        with pytest.raises(StoreError, match="access denied"):
            act()

import threading
import time
from typing import Any

import numpy as np
import pytest

from tests.unit.data.readings.support import HeldBytes, located
from torchrelay.core.errors import DataError
from torchrelay.data.manifest import ShardEntry
from torchrelay.data.open_shards import OpenShards
from torchrelay.data.readings.failure import Place, SampleFailure
from torchrelay.data.readings.samples import THREADS_PAY_S, Arrays, DecodedSamples

ENTRIES = [
    ShardEntry(key=str(n), bytes=1, sha256="", xxh3_128="", samples=samples)
    for n, samples in enumerate([0, 5, 3])
]


class Shard:
    """Sample i of shard s is s·10 + i."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __len__(self) -> int:
        return ENTRIES[self._number].samples

    def sample(self, index: int) -> dict[str, Any]:
        return {"number": 10 * self._number + index}


class Decode:
    """Remembers what it was given."""

    def __init__(self) -> None:
        self.given: list[tuple[int, int, int]] = []

    def decode(self, sample: dict[str, Any], sample_id: int, epoch: int) -> Arrays:
        self.given.append((sample["number"], sample_id, epoch))
        return {"x": np.array([sample["number"], sample_id, epoch])}


def collate(samples: list[Arrays]) -> Arrays:
    return {"x": np.stack([sample["x"] for sample in samples])}


def open_samples(threads: int = 1) -> tuple[DecodedSamples, Decode]:
    shards: OpenShards[Any] = OpenShards(
        HeldBytes({entry.key: b"" for entry in ENTRIES}),
        ENTRIES,
        lambda data, entry, _: Shard(int(entry.key)),
    )
    decoder = Decode()
    return DecodedSamples(shards, decoder, collate, threads=threads), decoder


@pytest.mark.parametrize("sample_s", [0.0, 1.0])
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_samples_are_decoded_with_their_id_and_epoch_and_kept_in_order(threads: int, sample_s: float) -> None:
    reading, decoder = open_samples(threads)
    reading._sample_s = sample_s
    places = [(1, 4), (2, 0), (1, 0), (2, 2), (1, 2)]
    rows = reading.read(located(*places), np.array([3, 3, 4, 4, 4]))
    expected = [[14, 104, 3], [20, 200, 3], [10, 100, 4], [22, 202, 4], [12, 102, 4]]
    assert rows.arrays["x"].tolist() == expected
    assert sorted(map(list, decoder.given)) == sorted(expected)
    assert (rows.num_targets, rows.num_tokens) == (5, 5)


def test_a_place_without_a_sample_is_left_out() -> None:
    reading, _ = open_samples()
    rows = reading.read(located((1, 1), (-1, -1), (2, 1)), np.array([0, 0, 0]))
    assert rows.arrays["x"][:, 0].tolist() == [11, 21]
    assert (rows.num_targets, rows.num_tokens) == (2, 2)


def test_a_batch_without_any_sample_holds_one_that_does_not_count() -> None:
    reading, _ = open_samples()
    rows = reading.read(located((-1, -1), (-1, -1)), np.array([0, 0]))
    assert rows.arrays["x"][:, 0].tolist() == [10]
    assert (rows.num_targets, rows.num_tokens) == (0, 0)
    assert reading.lengths(located((1, 1))) is None


@pytest.mark.parametrize("sample_s", [0.0, 1.0])
def test_a_sample_that_cannot_be_decoded_is_placed(sample_s: float) -> None:
    reading, decoder = open_samples(threads=3)
    plain = decoder.decode

    def broken(sample: dict[str, Any], sample_id: int, epoch: int) -> Arrays:
        if sample_id == 202:
            raise DataError("no picture", hint="look")
        return plain(sample, sample_id, epoch)

    reading._sample_s = sample_s
    decoder.decode = broken  # type: ignore[method-assign]  # stands for a decoder that fails
    with pytest.raises(SampleFailure) as caught:
        reading.read(located((1, 1), (2, 2), (1, 3)), np.array([0, 4, 0]))
    assert caught.value.place == Place(202, 4, "2", 2)
    assert caught.value.reason.message == "no picture"


def test_an_error_of_a_thread_is_raised() -> None:
    reading, decoder = open_samples(threads=3)

    def broken(*_: Any) -> Arrays:
        raise ZeroDivisionError("mine")

    reading._sample_s = 1.0
    decoder.decode = broken  # type: ignore[method-assign]  # stands for a user's function that fails
    with pytest.raises(ZeroDivisionError, match="mine"):
        reading.read(located((1, 1), (1, 2), (1, 3)), np.zeros(3, np.int64))


def test_threads_are_used_only_for_what_takes_long() -> None:
    reading, decoder = open_samples(threads=3)
    seen: list[str] = []
    plain = decoder.decode

    def slow(sample: dict[str, Any], sample_id: int, epoch: int) -> Arrays:
        seen.append(threading.current_thread().name)
        deadline_s = time.perf_counter() + 2 * THREADS_PAY_S
        while time.perf_counter() < deadline_s:
            pass
        return plain(sample, sample_id, epoch)

    decoder.decode = slow  # type: ignore[method-assign]  # stands for a user's function
    here = threading.current_thread().name
    places = located((1, 1), (1, 2), (1, 3))
    reading.read(places, np.zeros(3, np.int64))
    assert set(seen) == {here}
    seen.clear()
    reading.read(places, np.zeros(3, np.int64))
    assert here not in seen

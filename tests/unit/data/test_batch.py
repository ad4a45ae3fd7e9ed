import numpy as np
import pytest

from torchrelay.data.batch import MicroBatch, make_batch, split_batch
from torchrelay.data.readings.rows import Rows


def batch(samples: int = 6) -> MicroBatch:
    arrays = {"x": np.arange(2 * samples).reshape(samples, 2), "y": np.arange(samples, dtype=np.float32)}
    return make_batch(Rows(arrays, 3 * samples, 5 * samples), np.arange(10, 10 + samples))


def test_arrays_become_tensors_without_a_copy() -> None:
    array = np.arange(4)
    made = make_batch(Rows({"x": array}, 1, 2), np.array([7, 8, 9, 10]))
    array[0] = 77
    assert made.tensors["x"].tolist() == [77, 1, 2, 3]
    assert (made.num_targets, made.num_tokens, made.sample_ids.tolist()) == (1, 2, [7, 8, 9, 10])


def test_places_without_a_sample_have_no_id() -> None:
    assert make_batch(Rows({}, 0, 0), np.array([3, -1, 4, -1])).sample_ids.tolist() == [3, 4]
    assert make_batch(Rows({}, 0, 0), np.array([], np.int64)).sample_ids.tolist() == []


def test_bytes_are_those_of_the_tensors() -> None:
    assert batch().bytes == 6 * 2 * 8 + 6 * 4


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_pieces_are_the_batch_in_its_order(size: int) -> None:
    pieces = list(split_batch(batch(), size))
    assert len(pieces) == 6 // size
    assert [s for piece in pieces for s in piece.sample_ids.tolist()] == list(range(10, 16))
    assert [row for piece in pieces for row in piece.tensors["x"].tolist()] == batch().tensors["x"].tolist()
    assert {(piece.num_targets, piece.num_tokens) for piece in pieces} == {(3 * size, 5 * size)}

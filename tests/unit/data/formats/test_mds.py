import copy
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrelay.core.errors import DataError
from torchrelay.data.formats.mds import (
    SampleEncoder,
    column_of,
    encode_head,
    encode_sample,
    encode_tail,
    open_mds,
    parse_tail,
    read_encodings,
    tail_start,
)
from torchrelay.data.manifest import Column, ShardEntry

COLUMNS = (
    Column(name="array", dtype="float32", shape=(2, 2)),
    Column(name="count", dtype="uint16", shape=()),
    Column(name="image", dtype="jpeg"),
    Column(name="more", dtype="json"),
    Column(name="ragged", dtype="int16"),
    Column(name="text", dtype="str"),
)


def make_sample(number: int) -> dict[str, Any]:
    return {
        "array": np.full((2, 2), number, np.float32),
        "count": number,
        "image": bytes([number]) * number,
        "more": {"n": [number, None]},
        "ragged": np.arange(number, dtype=np.int16),
        "text": "ä" * number,
    }


def make_shard(
    columns: Sequence[Column], samples: Sequence[Mapping[str, Any]], *, tail: bool = True
) -> bytes:
    encoder = SampleEncoder(columns)
    encoded = [encoder.encode(sample) for sample in samples]
    head = encode_head(encoder.header, [len(data) for data in encoded])
    ids = np.arange(100, 100 + len(samples), dtype=np.uint64)
    return head + b"".join(encoded) + (encode_tail(ids) if tail else b"")


def make_entry(data: bytes, samples: int) -> ShardEntry:
    return ShardEntry(
        key="shards/x.mds", bytes=len(data), sha256="a" * 64, xxh3_128="b" * 32, samples=samples
    )


def open_shard(data: bytes, samples: int, columns: Sequence[Column] = COLUMNS) -> Any:
    return open_mds(memoryview(data), make_entry(data, samples), columns)


def assert_equal(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(found[name], value)
            assert found[name].dtype == value.dtype
        else:
            assert found[name] == value


@pytest.mark.parametrize("tail", [True, False])
def test_samples_are_read_back_in_any_order(tail: bool) -> None:
    samples = [make_sample(number) for number in range(5)]
    shard = open_shard(make_shard(COLUMNS, samples, tail=tail), 5)
    assert len(shard) == 5
    for number in (3, 0, 4, 1, 2, 3):
        assert_equal(shard.sample(number), samples[number])


def test_arrays_are_read_only_views_of_the_shard() -> None:
    data = make_shard(COLUMNS, [make_sample(2)])
    array = open_shard(bytearray(data), 1).sample(0)["array"]
    assert not array.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 1


def test_the_layout_is_the_one_of_mds() -> None:
    data = make_shard([Column(name="b", dtype="bytes"), Column(name="n", dtype="int32", shape=())],
                      [{"b": b"xyz", "n": 7}, {"b": b"", "n": -1}])  # fmt: skip
    count, *offsets = struct.unpack_from("<4I", data)
    assert count == 2
    header = data[16 : offsets[0]]
    assert read_encodings(memoryview(header)) == {"b": ("bytes", None), "n": ("int32", 4)}
    assert data[offsets[0] : offsets[1]] == struct.pack("<I", 3) + b"xyz" + struct.pack("<i", 7)
    assert data[offsets[1] : offsets[2]] == struct.pack("<I", 0) + struct.pack("<i", -1)
    assert data[offsets[2] :] == struct.pack("<QQI8s", 100, 101, 2, b"RELAYMD1")


def test_only_the_wanted_columns_are_decoded() -> None:
    samples = [make_sample(number) for number in range(3)]
    shard = open_shard(make_shard(COLUMNS, samples), 3, [COLUMNS[5], COLUMNS[1]])
    assert shard.sample(2) == {"count": 2, "text": "ää"}


def test_a_column_of_pickles_can_be_left_out_but_not_read() -> None:
    data = make_shard(
        [Column(name="n", dtype="int64", shape=()), Column(name="x", dtype="png")], [{"n": 1, "x": b"p"}]
    )
    data = data.replace(b'"png"', b'"pkl"')
    wanted = [Column(name="n", dtype="int64", shape=())]
    assert open_shard(data, 1, wanted).sample(0) == {"n": 1}
    with pytest.raises(ValueError, match="holds pickles"):
        open_shard(data, 1, [*wanted, Column(name="x", dtype="bytes")])


@pytest.mark.parametrize(("wanted", "reason"), [
    (Column(name="z", dtype="int8", shape=()), "it has no column 'z', only array, count"),
    (Column(name="count", dtype="int16", shape=()), r"'count' of uint16 \(\) is in the manifest"),
    (Column(name="array", dtype="float32", shape=(4,)), r"'array' of float32 \(2, 2\) is in the manifest"),
    (Column(name="text", dtype="bytes"), "'text' of str is in the manifest"),
])  # fmt: skip
def test_a_manifest_of_other_columns_is_refused(wanted: Column, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        open_shard(make_shard(COLUMNS, [make_sample(1)]), 1, [wanted])


def test_a_manifest_may_tell_less_than_the_shard() -> None:
    data = make_shard(COLUMNS, [make_sample(2)])
    wanted = [Column(name="array", dtype="float32"), Column(name="image", dtype="bytes")]
    assert open_shard(data, 1, wanted).sample(0)["image"] == b"\x02\x02"


def test_another_number_of_samples_than_in_the_manifest_is_refused() -> None:
    with pytest.raises(ValueError, match="it has 2 samples, the manifest says 3"):
        open_shard(make_shard(COLUMNS, [make_sample(1)] * 2), 3)


@pytest.mark.parametrize("index", [-1, 2, 10**9])
def test_a_sample_that_is_not_there_is_an_index_error(index: int) -> None:
    with pytest.raises(IndexError, match="of 2"):
        open_shard(make_shard(COLUMNS, [make_sample(1)] * 2), 2).sample(index)


@pytest.mark.parametrize(("damage", "reason"), [
    (lambda data: data[:7], "7 bytes are no shard"),
    (lambda data: b"\xff\xff\xff\x7f" + data[4:], "bytes of header, there are"),
    (lambda data: data[:4] + bytes(4) + data[8:], "do not follow each other"),
    (lambda data: data[:8] + b"\xff\xff\xff\xff" + data[12:], "do not follow each other"),
    (lambda data: data[:-200], "do not follow each other"),
    (lambda data: data.replace(b'"version": 2', b'"version": 3'), "not that of MDS version 2"),
    (lambda data: data.replace(b'"column_sizes": [16', b'"column_sizes": [17'), "has the size 17"),
    (lambda data: data.replace(b'"count"', b'"array"'), "as many names"),
])  # fmt: skip
def test_a_broken_header_says_what_is_wrong(damage: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        open_shard(damage(make_shard(COLUMNS, [make_sample(40)] * 2, tail=False)), 2)


def test_a_sample_whose_sizes_do_not_add_up_is_named_with_its_shard() -> None:
    data = bytearray(make_shard(COLUMNS, [make_sample(3)] * 2))
    (start,) = struct.unpack_from("<I", data, 8)
    data[start] += 1
    shard = open_shard(bytes(data), 2)
    assert_equal(shard.sample(0), make_sample(3))
    with pytest.raises(DataError, match="sample 1 of shard shards/x.mds cannot be read: it has .* bytes"):
        shard.sample(1)


@given(place=st.integers(0, 10**6), value=st.integers(0, 255), cut=st.integers(0, 60))
@settings(max_examples=300, deadline=None)
def test_damaged_bytes_are_an_error_or_a_sample_but_never_a_crash(place: int, value: int, cut: int) -> None:
    whole = make_shard(COLUMNS, [make_sample(number) for number in range(4)])
    data = bytearray(whole[: len(whole) - cut] if cut > 30 else whole)
    data[place % len(data)] = value
    try:
        shard = open_shard(bytes(data), 4)
    except (ValueError, KeyError, TypeError):
        return
    for number in range(4):
        try:
            sample = shard.sample(number)
        except DataError as error:
            assert f"sample {number} of shard shards/x.mds" in error.message
        else:
            assert set(sample) == {column.name for column in COLUMNS}


@given(st.integers(1, 6).flatmap(lambda axis: st.lists(
    st.fixed_dictionaries({
        "a": st.binary(max_size=50), "b": st.integers(-(2**63), 2**63 - 1), "c": st.text(max_size=20),
        "d": st.lists(st.integers(0, 255), min_size=axis, max_size=axis).map(lambda v: np.array(v, np.uint8)),
    }), max_size=20)))  # fmt: skip
def test_nothing_is_lost(samples: list[dict[str, Any]]) -> None:
    axis = len(samples[0]["d"]) if samples else 1
    columns = (
        Column(name="a", dtype="bytes"),
        Column(name="b", dtype="int64", shape=()),
        Column(name="c", dtype="str"),
        Column(name="d", dtype="uint8", shape=(axis,)),
    )
    shard = open_shard(make_shard(columns, samples), len(samples), columns)
    for number, sample in enumerate(samples):
        assert_equal(shard.sample(number), sample)


def test_a_missing_and_a_wrong_value_are_named_by_their_column() -> None:
    with pytest.raises(DataError, match="there is no 'array', only count"):
        encode_sample(COLUMNS, {"count": 1})
    with pytest.raises(
        DataError, match=r"column 'array' of float32 \(2, 2\) cannot hold its value: .*\(3,\)"
    ):
        encode_sample(COLUMNS, {**make_sample(1), "array": np.zeros(3, np.float32)})


def test_an_encoder_can_be_sent_to_another_process() -> None:
    encoder = copy.copy(SampleEncoder(COLUMNS))  # the way a pickle takes
    assert encoder.encode(make_sample(2)) == encode_sample(COLUMNS, make_sample(2))


def test_a_shard_beyond_four_gigabytes_is_refused() -> None:
    with pytest.raises(ValueError, match="is too large"):
        encode_head(b"{}", [2**31, 2**31])


def test_ids_are_told_by_the_tail() -> None:
    data = make_shard(COLUMNS, [make_sample(1)] * 3)
    entry = make_entry(data, 3)
    found = parse_tail(data[tail_start(entry) :], 3)
    assert found is not None and found.tolist() == [100, 101, 102]
    assert parse_tail(data[tail_start(entry) : -1] + b"2", 3) is None
    with pytest.raises(ValueError, match="its tail tells 3 samples, the manifest 4"):
        parse_tail(data[tail_start(make_entry(data, 4)) :], 4)


def test_the_columns_of_a_foreign_shard() -> None:
    assert column_of("x", "ndarray:uint8:3,4") == Column(name="x", dtype="uint8", shape=(3, 4))
    assert column_of("x", "ndarray") == Column(name="x", dtype="ndarray")
    with pytest.raises(ValueError, match="pkl"):
        column_of("x", "pkl")

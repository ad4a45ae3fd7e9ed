import importlib
import struct
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.data.adopt.conftest import Place
from torchrelay.core.errors import DataError
from torchrelay.data.adopt.megatron import cut_spans


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=40), most=st.integers(1, 50))
def test_spans_cover_all_tokens_and_cut_only_documents_that_are_longer(lengths: list[int], most: int) -> None:
    ends = np.cumsum(lengths)
    spans = list(cut_spans(ends, most))
    assert [span.start for span in spans] == [0, *(span.stop for span in spans[:-1])]
    assert spans[-1].stop == ends[-1]
    assert np.concatenate([span.ends + span.start for span in spans]).tolist() == ends.tolist()
    starts = (ends - lengths).tolist()
    for span in spans:
        assert 0 < span.stop - span.start <= most
        assert span.continues == (span.start not in starts)
        inside = [place for place, end in enumerate(ends) if span.start < end <= span.stop]
        assert span.longest == max((lengths[place] for place in inside), default=0)
        if span.stop not in ends:
            assert not inside and lengths[int(np.searchsorted(ends, span.stop))] > most


def write_idx(
    lengths: Sequence[int],
    documents: Sequence[int],
    *,
    code: int = 8,
    version: int = 1,
    gap: int = 0,
    width: int = 2,
) -> bytes:
    pointers = (np.cumsum([0, *lengths])[:-1] * width + gap).astype("<i8")
    return (
        b"MMIDIDX\0\0"
        + struct.pack("<QBQQ", version, code, len(lengths), len(documents))
        + np.array(lengths, "<i4").tobytes()
        + pointers.tobytes()
        + np.array(documents, "<i8").tobytes()
    )


def refuse(place: Place, idx: bytes, message: str, *, data: bytes = bytes(12)) -> None:
    place.data.put("c.idx", idx)
    place.data.put("c.bin", data)
    with pytest.raises(DataError, match=message):
        place.adopt()
    assert place.nothing_published()


@pytest.mark.parametrize(
    ("idx", "message"),
    [
        (b"", "c.idx is no index of Megatron: it begins with b''"),
        (b"X" * 50, "c.idx is no index of Megatron: it begins with b'XXXXXXXXX'"),
        (write_idx([6], [0, 1], version=2), "c.idx is of version 2; this torchrelay reads version 1"),
        (write_idx([6], [0, 1], code=3), "c.idx holds values of int16; tokens are int32, int64"),
        (write_idx([6], [0, 1], code=7), "c.idx holds values of float32"),
        (write_idx([6], [0, 1], code=99), "the unknown type 99"),
        (
            write_idx([6], [0, 1])[:-1],
            r"c.idx is cut off at byte 61: 1 sequences and 2 document borders need 62",
        ),
        (write_idx([6], [0, 1], gap=2), "do not follow each other without a gap"),
        (write_idx([-1], [0, 1]), "do not follow each other without a gap"),
        (write_idx([3, 3], [0, 1]), "its documents do not cover its 2 sequences"),
        (write_idx([3, 3], [0, 2, 1, 2]), "its documents do not cover its 2 sequences"),
        (write_idx([], [0, 0]), "there is no token in it"),
        (write_idx([5], [0, 1]), "c.bin has 12 bytes, c.idx tells of 10"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(local: Place, idx: bytes, message: str) -> None:
    refuse(local, idx, message)


def test_a_file_of_tokens_that_is_missing_or_cut_off_is_named(place: Place) -> None:
    place.put("megatron").cut("corpus.bin", 100)
    with pytest.raises(DataError, match=r"corpus.bin has 100 bytes, corpus.idx tells of 2,780"):
        place.adopt()
    place.data.delete("corpus.bin")
    with pytest.raises(DataError, match=r"corpus.bin is missing; corpus.idx describes it"):
        place.adopt()


def test_documents_without_a_token_are_left_out_and_counted(local: Place) -> None:
    local.data.put("c.idx", write_idx([0, 2, 0, 1, 3, 0], [0, 1, 3, 5, 6]))
    local.data.put("c.bin", np.arange(6, dtype=np.uint16).tobytes())
    manifest = local.adopt().manifest
    assert (manifest.build.skipped, manifest.totals("train").samples) == (2, 2)
    (shard,) = local.tokens()
    assert (shard.ends.tolist(), shard.tokens.tolist()) == ([2, 6], [0, 1, 2, 3, 4, 5])


def test_a_negative_token_is_named_with_its_byte(local: Place) -> None:
    tokens = np.array([1, 2, -3, 4], np.int32).tobytes()
    refuse(
        local,
        write_idx([4], [0, 1], code=4, width=4),
        r"c.bin: token 2 \(byte 8\) is -3",
        data=tokens,
    )


def test_files_of_different_types_are_refused(local: Place) -> None:
    for fixture, name in (("megatron", "a"), ("megatron-int32", "b")):
        local.put(fixture)
        for suffix in ("bin", "idx"):
            local.data.put(f"{name}.{suffix}", local.data.get(f"corpus.{suffix}"))
    local.data.delete("corpus.idx")
    with pytest.raises(DataError, match="tokens of different types: u16 in a.idx, i32 in b.idx"):
        local.adopt()


def test_a_file_may_be_named_by_either_of_its_halves(place: Place) -> None:
    place.put("megatron")
    assert place.adopt("corpus.bin").manifest.version == place.adopt("corpus.idx").manifest.version


def test_a_tokenizer_file_is_kept_with_the_version(local: Place, tmp_path: object) -> None:
    from pathlib import Path

    tokenizers = importlib.import_module("tokenizers")
    words = {f"w{number}": number for number in range(511)} | {"</s>": 511}
    path = Path(str(tmp_path)) / "tokenizer.json"
    tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0")).save(str(path))
    manifest = local.put("megatron").adopt(tokenizer=str(path)).manifest
    record = manifest.tokenizer
    assert (record.kind, record.vocabulary, record.end_token, record.end_text) == ("file", 512, 511, "</s>")
    kept = local.store.get(f"datasets/d/versions/{manifest.version}/tokenizer.json")
    assert kept == path.read_bytes()

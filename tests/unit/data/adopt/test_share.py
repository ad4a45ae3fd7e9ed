import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrelay.core.errors import DataError
from torchrelay.data.adopt.share import check_distinct, set_aside
from torchrelay.data.manifest import ShardEntry


def make_entry(number: int, key: str | None = None) -> ShardEntry:
    sha256 = hashlib.sha256(str(number).encode()).hexdigest()
    return ShardEntry(key=key or f"{number}.tar", bytes=1, sha256=sha256, xxh3_128="", samples=1)


def test_about_the_share_is_set_aside_in_stored_order() -> None:
    entries = [make_entry(number) for number in range(2000)]
    splits = set_aside(entries, 0.1)
    assert 150 < len(splits["validation"]) < 250
    assert sorted(splits["train"] + splits["validation"], key=entries.index) == entries
    assert list(splits["validation"]) == sorted(splits["validation"], key=entries.index)


@settings(deadline=None)
@given(first=st.integers(5, 60), more=st.integers(0, 60), share=st.floats(0.2, 0.6))
def test_a_shard_that_stays_keeps_its_split(first: int, more: int, share: float) -> None:
    try:
        before = set_aside([make_entry(number) for number in range(first)], share)
        after = set_aside([make_entry(number) for number in range(first + more)], share)
    except DataError:
        return
    assert set(before["validation"]) <= set(after["validation"])
    assert set(before["train"]) <= set(after["train"])


def test_an_empty_split_is_refused_with_a_share_that_works() -> None:
    entries = [make_entry(number) for number in range(5)]
    with pytest.raises(DataError, match="a share of 0.001 .* there are 5, leaves validation empty") as caught:
        set_aside(entries, 0.001)
    share = float(caught.value.hint.split("at least ")[1].split("%")[0]) / 100
    assert set_aside(entries, share)["validation"]
    with pytest.raises(DataError, match="leaves train empty"):
        set_aside(entries[:1], 0.9999999)


def test_the_same_bytes_twice_are_refused_but_for_spans_of_one_file() -> None:
    check_distinct({"train": [make_entry(1, "a"), make_entry(1, "a"), make_entry(2)]})
    with pytest.raises(DataError, match=r"a \(train\) and b \(train\) hold the same bytes"):
        check_distinct({"train": [make_entry(1, "a"), make_entry(1, "b")]})
    with pytest.raises(DataError, match=r"a \(train\) and a \(test\) hold the same bytes"):
        check_distinct({"train": [make_entry(1, "a")], "test": [make_entry(1, "a")]})

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchrelay.core.errors import StoreError
from torchrelay.store.base import check_key, check_prefix


@pytest.mark.parametrize("key", ["a", "a/b.json", ".hidden", "a..b", "...", "ä b?#%"])
def test_relative_paths_are_keys(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize(
    "key", ["", "/", "/a", "a/", "a//b", "..", "../a", "a/..", "./a", "a\0", "a.writing-b"]
)
def test_what_leaves_the_store_or_names_nothing_is_no_key(key: str) -> None:
    with pytest.raises(StoreError, match="is not a key") as caught:
        check_key(key)
    assert caught.value.hint


@given(st.lists(st.sampled_from(["a", "..", ".", "", "b.c"]), max_size=5).map("/".join))
def test_a_key_never_climbs_and_never_starts_at_the_root(text: str) -> None:
    try:
        parts = check_key(text).split("/")
    except StoreError:
        return
    assert not {"", ".", ".."} & set(parts)


def test_a_prefix_may_be_empty_or_end_with_a_slash() -> None:
    assert [check_prefix(text) for text in ("", "/", "a", "a/b/")] == ["", "", "a", "a/b"]
    with pytest.raises(StoreError):
        check_prefix("../a")

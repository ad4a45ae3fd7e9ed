from collections.abc import Callable
from typing import Any

import pytest

from torchrelay.core.errors import DataError
from torchrelay.data.dataset import list_tags, open_dataset
from torchrelay.data.tag import create_tag
from torchrelay.store.base import Store

Build = Callable[..., Any]


def test_a_tag_names_its_version_for_good(store: Store, build: Build, stories: list[str]) -> None:
    first = build(stories[:20]).manifest
    assert create_tag(store, first, "v1", clock=lambda: 0.0)
    second = build(stories).manifest
    assert open_dataset(store, "d@v1").manifest.version == first.version
    assert open_dataset(store, "d").manifest.version == second.version
    assert list_tags(store, "d") == {"v1": first.version}


def test_the_same_tag_again_is_no_error_but_moving_it_is(
    store: Store, build: Build, stories: list[str]
) -> None:
    first = build(stories[:20]).manifest
    create_tag(store, first, "v1")
    assert not create_tag(store, first, "v1")
    with pytest.raises(DataError, match=f"d@v1 is version {first.short_version} already"):
        create_tag(store, build(stories).manifest, "v1")


def test_an_unknown_tag_is_answered_with_the_nearest(store: Store, build: Build, stories: list[str]) -> None:
    create_tag(store, build(stories).manifest, "paper")
    with pytest.raises(DataError, match="has no tag 'papr'.*paper") as caught:
        open_dataset(store, "d@papr")
    assert "tags: paper" in caught.value.hint

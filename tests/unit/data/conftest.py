"""Small datasets in memory: cheap to build, and different in every test."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from torchrelay.data.build.dataset_build import BuildRequest, BuildResult, build_dataset
from torchrelay.data.build.input import TextFiles
from torchrelay.store.base import Store
from torchrelay.store.open import open_store

_numbers = itertools.count()

Write = Callable[[Sequence[str | bytes]], str]
Build = Callable[..., BuildResult]


@pytest.fixture
def store() -> Store:
    return open_store(f"memory://data-{next(_numbers)}")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write texts as files 0000.txt, 0001.txt, … and give the pattern that matches them."""

    def write_texts(texts: Sequence[str | bytes]) -> str:
        folder = tmp_path / "texts"
        folder.mkdir(exist_ok=True)
        for number, text in enumerate(texts):
            content = text if isinstance(text, bytes) else text.encode()
            (folder / f"{number:04d}.txt").write_bytes(content)
        return f"{folder}/*.txt"

    return write_texts


@pytest.fixture
def build(store: Store, write: Write, tmp_path: Path) -> Build:
    """Build dataset `name` of some texts with small shards."""

    def build_texts(
        texts: Sequence[str | bytes], *, name: str = "d", into: Store | None = None, **options: object
    ) -> BuildResult:
        settings: dict[str, object] = {"shard_bytes": 1024, "validation": 0.3, "work": tmp_path / "work"}
        settings |= options
        request = BuildRequest(documents=TextFiles([write(texts)]), **settings)
        return build_dataset(into or store, name, request, clock=lambda: 0.0, progress=lambda *_: None)

    return build_texts


@pytest.fixture
def stories() -> list[str]:
    """40 documents of different length and content."""
    return [f"story {number}: " + chr(97 + number % 26) * (50 + 17 * number % 300) for number in range(40)]

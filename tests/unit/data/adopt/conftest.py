"""Adopted data in a folder and in memory, and a way to read all of it back."""

import itertools
from pathlib import Path
from typing import NamedTuple

import pytest

from torchrelay.data.adopt.adoption import AdoptRequest, AdoptResult, adopt_dataset
from torchrelay.data.cache.choose import open_bytes
from torchrelay.data.dataset import open_dataset
from torchrelay.data.formats.opener import sample_opener, token_opener
from torchrelay.data.formats.sample import Sample
from torchrelay.data.formats.tok import TokenShard
from torchrelay.data.open_shards import OpenShards
from torchrelay.recipe.data_schema import CacheSection
from torchrelay.store.base import Store
from torchrelay.store.open import open_store

FIXTURES = Path(__file__).parents[3] / "data" / "adopted"

_numbers = itertools.count()


class Place(NamedTuple):
    """Where the data lies, and the store that gets the manifest."""

    data: Store
    store: Store
    cache: Path

    def put(self, fixture: str) -> "Place":
        """Copy a folder of the fixtures here."""
        for path in sorted((FIXTURES / fixture).rglob("*")):
            if path.is_file():
                self.data.put(str(path.relative_to(FIXTURES / fixture)), path.read_bytes())
        return self

    def adopt(self, pattern: str = "", **options: object) -> AdoptResult:
        """Adopt what lies here as dataset `d`."""
        url = f"{self.data.url}/{pattern}".rstrip("/")
        request = AdoptRequest(url=url, **options)
        return adopt_dataset(self.store, "d", request, clock=lambda: 0.0, progress=lambda *_: None)

    def flip(self, key: str, place: int) -> None:
        """Change one bit of a byte."""
        data = bytearray(self.data.get(key))
        data[place] ^= 1
        self.data.put(key, data)

    def cut(self, key: str, size: int) -> None:
        """Keep the first bytes of an object."""
        self.data.put(key, self.data.get(key, length=size))

    def shards(self, split: str) -> OpenShards:
        """What a run opens."""
        dataset = open_dataset(self.store, "d")
        source = open_bytes(dataset, CacheSection(folder=str(self.cache), size="64MiB"))
        content = dataset.manifest.content
        opener = token_opener if content.kind == "tokens" else sample_opener
        return OpenShards(source, content.splits[split], opener(content))

    def samples(self, split: str = "train") -> list[Sample]:
        """All samples, in stored order."""
        shards = self.shards(split)
        opened = [shards.shard(number) for number in range(len(shards))]
        return [shard.sample(index) for shard in opened for index in range(len(shard))]

    def tokens(self, split: str = "train") -> list[TokenShard]:
        """All shards of tokens, in stored order."""
        shards = self.shards(split)
        return [shards.shard(number) for number in range(len(shards))]

    def nothing_published(self) -> bool:
        """Whether the store holds nothing at all."""
        return not list(self.store.list(""))


@pytest.fixture(params=["file", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    number = next(_numbers)
    if request.param == "file":
        stores = (open_store(str(tmp_path / "data")), open_store(str(tmp_path / "store")))
    else:
        stores = (open_store(f"memory://adopt-data-{number}"), open_store(f"memory://adopt-store-{number}"))
    return Place(*stores, tmp_path / "cache")


@pytest.fixture
def local(tmp_path: Path) -> Place:
    """In files alone, where the store makes no difference."""
    return Place(open_store(str(tmp_path / "data")), open_store(str(tmp_path / "store")), tmp_path / "cache")

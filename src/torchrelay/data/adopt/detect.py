"""Which layout the data at a URL has, and which of its files tell the shards."""

import posixpath
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from torchrelay.core.errors import DataError
from torchrelay.data.adopt import index_json, megatron, parquet, webdataset
from torchrelay.data.adopt.place import choose_files, divide_files, split_url
from torchrelay.data.adopt.plan import Found
from torchrelay.store.base import Store
from torchrelay.store.open import open_store

Layout = Literal["mds", "webdataset", "parquet", "megatron", "litdata"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

_SUFFIXES: dict[Layout, tuple[str, ...]] = {
    "webdataset": webdataset.SUFFIXES,
    "parquet": parquet.SUFFIXES,
    "megatron": megatron.SUFFIXES,
}
_INDEXED: dict[Layout, str] = {"mds": "shards", "litdata": "chunks"}
"""What an `index.json` of the layout lists."""


def find_data(url: str, layout: str, split_folders: Mapping[str, str]) -> tuple[Layout, Found]:
    """The files at `url`, by split; `layout` may be "auto".

    DataError when there is none of a layout that can be adopted, or of more than one.
    """
    target = split_url(url)
    store = open_store(target.base)
    sizes = {entry.key: entry.size for entry in store.list("")}
    chosen = choose_files(sizes, target.pattern)
    if target.pattern is not None:
        chosen = sorted({_index_of(key) for key in chosen})
    kinds = _find_kinds(store, chosen)
    picked = _pick(kinds, layout, url, chosen)
    return picked, Found(store=store, sizes=sizes, splits=divide_files(kinds[picked], split_folders))


def _index_of(key: str) -> str:
    """The file that describes `key`, where one was named in its place."""
    return key.removesuffix(".bin") + ".idx" if key.endswith(".bin") else key


def _find_kinds(store: Store, keys: Sequence[str]) -> dict[Layout, list[str]]:
    """The files that tell the shards, by layout; layouts without any are left out."""
    kinds: dict[Layout, list[str]] = {kind: [] for kind in LAYOUTS}
    for key in _outermost(keys):
        kind = _kind_of_index(store, key)
        if kind is not None:
            kinds[kind].append(key)
    for layout, suffixes in _SUFFIXES.items():
        kinds[layout] = [key for key in keys if key.endswith(suffixes)]
    return {kind: files for kind, files in kinds.items() if files}


def _outermost(keys: Sequence[str]) -> list[str]:
    """Every `index.json` that does not lie below another one, which then tells of its shards too."""
    indexes = [key for key in keys if posixpath.basename(key) == index_json.NAME]
    folders = {posixpath.dirname(key) for key in indexes}
    return [key for key in indexes if not folders & set(_parents(posixpath.dirname(key)))]


def _parents(folder: str) -> list[str]:
    parts = folder.split("/") if folder else []
    return ["/".join(parts[:count]) for count in range(len(parts))]


def _kind_of_index(store: Store, key: str) -> Layout | None:
    try:
        tree = index_json.read_index_file(store, key).tree
    except DataError:
        return None
    return next((kind for kind, listed in _INDEXED.items() if listed in tree), None)


def _pick(kinds: Mapping[Layout, Sequence[str]], wanted: str, url: str, keys: Sequence[str]) -> Layout:
    if wanted == "auto" and len(kinds) == 1:
        return next(iter(kinds))
    picked = next((kind for kind in kinds if kind == wanted), None)
    if picked is not None:
        return picked
    if wanted == "auto" and kinds:
        raise DataError(
            f"{url} holds data of several layouts: {', '.join(kinds)}",
            hint="say which with --kind, or give a pattern such as 'FOLDER/*.parquet'",
        )
    raise _nothing(url, wanted, keys)


def _nothing(url: str, wanted: str, keys: Sequence[str]) -> DataError:
    suffixes = Counter(posixpath.splitext(key)[1] or "without a suffix" for key in keys)
    there = ", ".join(f"{count:,} {suffix}" for suffix, count in suffixes.most_common(4))
    what = "data that can be adopted" if wanted == "auto" else f"{wanted} data"
    return DataError(
        f"there is no {what} in {url}: " + (f"the files there are {there}" if keys else "it is empty"),
        hint="adopt takes MDS and LitData folders, WebDataset tars, Parquet files and Megatron's .bin with "
        ".idx; torchrelay data build converts text, images and tables",
    )

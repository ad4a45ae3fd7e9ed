"""Writes the folders beside this file with the libraries whose layouts are adopted.

Run once, in an environment of its own:

    python write.py

Written with mosaicml-streaming 0.13.0, litdata 0.2.76, webdataset 1.0.2, megatron-core 0.16.1,
pyarrow 26.0.1, zstd 1.5.7, numpy 2.4.6 and torch 2.13.0. The values are those of `values.py`, so
that the tests know what must come out.
"""

import gzip
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
import webdataset
from litdata.streaming.item_loader import TokensLoader
from litdata.streaming.writer import BinaryWriter
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
from pyarrow import parquet
from streaming import MDSWriter
from values import DOCUMENTS, SPLITS, TAR_NAMES, sample, tar_key

HERE = Path(__file__).parent

MDS_COLUMNS = {
    "image": "jpeg",
    "label": "int",
    "weight": "float32",
    "text": "str",
    "data": "bytes",
    "extra": "json",
    "matrix": "ndarray:float32:2,3",
    "steps": "ndarray:int64",
    "loose": "ndarray",
}


def write_mds(folder: Path, **options: object) -> None:
    for split, numbers in SPLITS.items():
        with MDSWriter(out=str(folder / split), columns=MDS_COLUMNS, size_limit=3000, **options) as writer:
            for number in numbers:
                values = sample(number)
                writer.write({name: values[name] for name in MDS_COLUMNS})


def write_webdataset(folder: Path) -> None:
    folder.mkdir(parents=True)
    for shard in range(3):
        with webdataset.TarWriter(str(folder / f"part-{shard:03d}.tar"), mtime=0) as writer:
            for number in range(5 * shard, 5 * shard + 5):
                values = sample(number)
                row = {extension: values[name] for name, extension in TAR_NAMES.items()}
                writer.write({"__key__": tar_key(number), **row})


def write_gzip(source: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    for path in sorted(source.glob("*.tar")):
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))


def table(numbers: range) -> pa.Table:
    rows = [sample(number) for number in numbers]
    column = {name: [row[name] for row in rows] for name in rows[0]}
    tags = pa.array([f"tag{number % 3}" for number in numbers]).dictionary_encode()
    return pa.table(
        {
            "image": pa.array(
                [{"bytes": value, "path": "a.jpg"} for value in column["image"]],
                pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
            ),
            "label": pa.array(column["label"], pa.int64()),
            "weight": pa.array(column["weight"], pa.float32()),
            "flag": pa.array([number % 2 == 0 for number in numbers], pa.bool_()),
            "text": pa.array(column["text"], pa.large_string()),
            "data": pa.array(column["data"], pa.binary()),
            "extra": pa.array(column["extra"], pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
            "matrix": pa.array(
                [value.tolist() for value in column["matrix"]], pa.list_(pa.list_(pa.float32(), 3), 2)
            ),
            "steps": pa.array([value.tolist() for value in column["steps"]], pa.list_(pa.int64())),
            "tag": tags,
            "time": pa.array(list(numbers), pa.timestamp("ms")),
        }
    )


def write_parquet(folder: Path) -> None:
    for split, numbers in SPLITS.items():
        (folder / split).mkdir(parents=True)
        for start in range(numbers.start, numbers.stop, 10):
            part = table(range(start, min(start + 10, numbers.stop)))
            parquet.write_table(part, folder / split / f"part-{start:03d}.parquet", row_group_size=4)


def write_megatron(folder: Path, name: str, dtype: type) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    builder = IndexedDatasetBuilder(str(folder / f"{name}.bin"), dtype=dtype)
    for document in DOCUMENTS:
        half = len(document) // 2  # two sentences a document, as for masked models
        builder.add_item(torch.tensor(document[:half]))
        builder.add_item(torch.tensor(document[half:]))
        builder.end_document()
    builder.finalize(str(folder / f"{name}.idx"))


def write_litdata(folder: Path, **options: object) -> None:
    writer = BinaryWriter(str(folder), chunk_size=12, **options)
    for number in range(30):
        values = sample(number)
        writer[number] = {
            "image": values["data"],
            "label": values["label"],
            "weight": float(values["weight"]),
            "flag": number % 2 == 0,
            "text": values["text"],
            "matrix": values["matrix"],
            "tensor": torch.from_numpy(values["matrix"].astype(np.float64)),
            "steps": values["steps"],
            "half": torch.from_numpy(values["steps"].astype(np.float16)),
        }
    finish(writer)


def write_litdata_rows(folder: Path) -> None:
    """Rows of plain values, which the library keeps as an Arrow file in every chunk."""
    writer = BinaryWriter(str(folder), chunk_size=12)
    for number in range(30):
        values = sample(number)
        names = ("image", "label", "text", "data", "extra")
        writer[number] = {name: values[name] for name in names} | {"weight": float(values["weight"])}
    finish(writer)


def write_litdata_tokens(folder: Path) -> None:
    writer = BinaryWriter(str(folder), chunk_bytes=2000, item_loader=TokensLoader())
    for number, document in enumerate(DOCUMENTS):
        writer[number] = torch.tensor(document, dtype=torch.int32)
    finish(writer)


def finish(writer: BinaryWriter) -> None:
    writer.done()
    writer.merge(1)


def main() -> None:
    for folder in [path for path in HERE.iterdir() if path.is_dir() and path.name != "__pycache__"]:
        shutil.rmtree(folder)
    write_mds(HERE / "mds")
    write_mds(HERE / "mds-zstd", compression="zstd:7", hashes=["sha1", "xxh3_64"])
    write_webdataset(HERE / "webdataset")
    write_gzip(HERE / "webdataset", HERE / "webdataset-gzip")
    write_parquet(HERE / "parquet")
    write_megatron(HERE / "megatron", "corpus", np.uint16)
    write_megatron(HERE / "megatron-int32", "corpus", np.int32)
    write_litdata(HERE / "litdata")
    write_litdata(HERE / "litdata-zstd", compression="zstd", compression_level="chunk")
    write_litdata_rows(HERE / "litdata-rows")
    write_litdata_tokens(HERE / "litdata-tokens")


if __name__ == "__main__":
    sys.exit(main())

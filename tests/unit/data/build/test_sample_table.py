import importlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.unit.data.build.sample_support import bad, build, good, picture
from torchrelay.core.errors import DataError
from torchrelay.data.build import sample_table
from torchrelay.data.build.sample_table import ParquetFiles, SavedDataset


def write(folder: Path, columns: dict[str, Any], name: str = "a.parquet", **options: Any) -> ParquetFiles:
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, folder / name, **options)
    return ParquetFiles(patterns=[str(folder / "*.parquet")])


def test_every_type_becomes_the_narrowest_column(tmp_path: Path) -> None:
    built = build(
        write(
            tmp_path,
            {
                "half": pa.array(np.array([1, 2], np.float16)),
                "i8": pa.array([1, -1], pa.int8()),
                "flag": pa.array([True, False]),
                "text": pa.array(["ä", ""]),
                "raw": pa.array([b"a", b"\xff"]),
                "word": pa.array(["x", "y"]).dictionary_encode(),
                "vector": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
                "list": pa.array([[1, 2, 3], [4, 5, 6]], pa.list_(pa.int16())),
                "tree": pa.array([{"a": 1, "b": ["x"]}, {"a": 2, "b": []}]),
            },
        )
    )
    assert built.columns == {
        "flag": ("uint8", ()),
        "half": ("float16", ()),
        "i8": ("int8", ()),
        "list": ("int16", (3,)),
        "raw": ("bytes", None),
        "text": ("str", None),
        "tree": ("json", None),
        "vector": ("float32", (2,)),
        "word": ("str", None),
    }
    second = built.samples[1]
    assert second["list"].tolist() == [4, 5, 6] and second["vector"].tolist() == [3.0, 4.0]
    assert second["tree"] == {"a": 2, "b": []} and second["flag"] == 0 and second["word"] == "y"


def test_lists_of_different_length_need_to_be_declared(tmp_path: Path) -> None:
    source = write(tmp_path, {"x": pa.array([[1.0], [], [2.0, 3.0]], pa.list_(pa.float32()))})
    with pytest.raises(DataError, match=r"\(1,\) at .*a.parquet: row 1, \(0,\) at .*row 2"):
        build(source)
    built = build(source, ragged={"x"})
    assert built.columns == {"x": ("float32", None)}
    assert [sample["x"].tolist() for sample in built.samples] == [[1.0], [], [2.0, 3.0]]


def test_a_missing_value_is_named_by_its_row(tmp_path: Path) -> None:
    source = write(tmp_path, {"x": pa.array([1, 2, None, 4], pa.int32()), "y": pa.array([1, 2, 3, 4])})
    with pytest.raises(DataError, match=r"'x' has a number or array at .*row 1 and no value at .*row 3"):
        build(source)
    built = build(source, on_bad="skip")
    assert built.columns["x"] == ("int32", ())
    assert [sample["x"] for sample in built.samples] == [1, 2, 4]
    assert "row 3" in built.problems[0]


def test_a_file_of_another_schema_in_the_middle_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"x": [1, 2], "y": ["a", "b"]})
    write(tmp_path, {"x": [0.5], "z": ["c"]}, "b.parquet")
    source = write(tmp_path, {"x": [3], "y": ["d"]}, "c.parquet")
    (found,) = bad(source)
    assert "b.parquet: rows 1 to 1" in found.where
    assert found.why.endswith("no column 'y', a column 'z', 'x' as double instead of int64")
    built = build(source, on_bad="skip")
    assert [sample["x"] for sample in built.samples] == [1, 2, 3] and len(built.problems) == 1


def test_units_are_row_groups_and_keep_order_and_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path, {"x": list(range(100))}, row_group_size=7)
    whole = [(sample.values["x"], sample.where) for sample in good(source)]
    monkeypatch.setattr(sample_table, "UNIT_BYTES", 1)
    units = source.units()
    assert [unit.rows for unit in units] == [7] * 14 + [2]
    assert [(sample.values["x"], sample.where) for sample in good(source)] == whole
    assert whole[99][1].endswith("row 100")
    assert len({unit.id for unit in units}) == len(units)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    source = write(tmp_path, {"x": list(range(1000))})
    path = tmp_path / "a.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:-4])
    with pytest.raises(DataError, match="cannot read .*a.parquet"):
        source.units()
    path.write_bytes(whole[:20] + b"\xff" * 200 + whole[220:])
    assert "cannot be read" in bad(source)[0].why


def test_what_datasets_notes_in_parquet_is_understood(tmp_path: Path) -> None:
    features = {
        "label": {"names": ["cat", "ant"], "_type": "ClassLabel"},
        "image": {"_type": "Image"},
        "grid": {"shape": [2, 2], "dtype": "float32", "_type": "Array2D"},
    }
    table = pa.table({
        "label": pa.array([1, 0]),
        "image": pa.array([{"bytes": picture("PNG", seed=n), "path": None} for n in range(2)]),
        "grid": pa.array([[[1.0, 2.0], [3.0, 4.0]]] * 2, pa.list_(pa.list_(pa.float32()))),
    }).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})  # fmt: skip
    built = build(write(tmp_path, table))
    assert built.columns == {"grid": ("float32", (2, 2)), "image": ("png", None), "label": ("int64", ())}
    assert built.plan.label_names == ("cat", "ant")
    assert [sample["label"] for sample in built.samples] == [1, 0]
    assert built.samples[0]["grid"].tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_a_class_that_has_no_name_is_named(tmp_path: Path) -> None:
    features = {"label": {"names": ["cat"], "_type": "ClassLabel"}}
    table = pa.table({"label": pa.array([0, -1]), "x": pa.array([1, 2])})
    noted = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    source = write(tmp_path, noted)
    with pytest.raises(DataError, match="row 2: the label -1 is none of the 1 classes"):
        build(source)


def test_a_folder_of_datasets_is_read_with_its_splits(tmp_path: Path) -> None:
    datasets = importlib.import_module("datasets")
    features = datasets.Features({
        "img": datasets.Image(),
        "label": datasets.ClassLabel(names=["zebra", "ant"]),
        "matrix": datasets.Array2D(shape=(2, 3), dtype="int16"),
        "sizes": datasets.Sequence(datasets.Value("float32")),
    })  # fmt: skip

    def make(count: int) -> Any:
        rows = {
            "img": [Image.open(io.BytesIO(picture("PNG", seed=n))) for n in range(count)],
            "label": [n % 2 for n in range(count)],
            "matrix": [np.full((2, 3), n) for n in range(count)],
            "sizes": [[0.5] * 2] * count,
        }
        return datasets.Dataset.from_dict(rows, features=features)

    datasets.DatasetDict({"train": make(4), "test": make(2)}).save_to_disk(str(tmp_path / "whole"))
    built = build(SavedDataset(tmp_path / "whole"))
    assert built.columns == {
        "img": ("png", None), "label": ("int64", ()), "matrix": ("int16", (2, 3)), "sizes": ("float32", (2,))
    }  # fmt: skip
    assert built.plan.label_names == ("zebra", "ant")
    assert [item.split for item in built.encoded] == ["train"] * 4 + ["test"] * 2
    assert built.samples[3]["matrix"].tolist() == [[3] * 3] * 2
    datasets.DatasetDict({"train": make(4)}).save_to_disk(str(tmp_path / "train"))
    assert {unit.split for unit in SavedDataset(tmp_path / "train").units()} == {None}
    (tmp_path / "one").mkdir()
    make(3).save_to_disk(str(tmp_path / "one"))
    assert {item.split for item in build(SavedDataset(tmp_path / "one")).encoded} <= {"train", "validation"}


def test_a_folder_that_is_none_of_datasets_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*state.json") as caught:
        SavedDataset(tmp_path).units()
    assert "save_to_disk" in caught.value.hint
    (tmp_path / "state.json").write_text('{"_data_files": [], "_indices_data_files": [{"filename": "x"}]}')
    with pytest.raises(DataError, match="is a selection of the rows"):
        SavedDataset(tmp_path).units()

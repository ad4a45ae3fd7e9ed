import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.unit.checkpoint.support import Trained
from torchrelay.checkpoint import export
from torchrelay.checkpoint.export import DONE_FILE, Export, export_model, final_model_prefix
from torchrelay.checkpoint.shelf import Shelf
from torchrelay.store.files import FileStore


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(FileStore(tmp_path), "t")


def plain(**files: bytes) -> Export:
    return Export(
        convert=lambda name, tensor: [] if name.endswith("bias") else [(f"new.{name}", tensor)],
        extra=lambda: [("zeros", torch.zeros(2))],
        files=files,
        lineage={"run": "t"},
    )


def write(shelf: Shelf, step: int, wanted: Export, trained: Trained | None = None) -> int:
    commit = (trained or Trained()).save(shelf, step)
    return export_model(shelf, commit, shelf.read_manifest(commit), wanted)


def test_weights_are_written_under_their_new_names_and_nothing_of_the_optimizer(
    shelf: Shelf, tmp_path: Path
) -> None:
    trained = Trained()
    num_bytes = write(shelf, 5, plain(**{"config.json": b"{}"}), trained)
    folder = tmp_path / final_model_prefix("t")
    tensors = load_file(folder / "model.safetensors")
    assert set(tensors) == {"new.0.weight", "new.1.weight", "new.2.weight", "zeros"}
    assert tensors["new.0.weight"].equal(trained.module[0].weight)
    assert (folder / "config.json").read_bytes() == b"{}"
    done = json.loads((folder / DONE_FILE).read_text())
    assert (done["run"], done["step"]) == ("t", 5)
    assert num_bytes == sum((folder / name).stat().st_size for name in ("model.safetensors", "config.json"))


def test_a_large_model_is_cut_into_files_with_an_index(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "SHARD_BYTES", 64)
    write(shelf, 5, plain())
    folder = tmp_path / final_model_prefix("t")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    assert sorted(set(index["weight_map"].values())) == files
    assert len(files) > 1
    for name, file in index["weight_map"].items():
        assert name in load_file(folder / file)


def test_a_newer_export_replaces_the_older_one_whole(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / final_model_prefix("t")
    with monkeypatch.context() as patch:
        patch.setattr(export, "SHARD_BYTES", 64)
        write(shelf, 5, plain(**{"tokenizer.json": b"old"}))
    write(shelf, 10, plain(**{"config.json": b"{}"}))
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", DONE_FILE]
    assert json.loads((folder / DONE_FILE).read_text())["step"] == 10


def test_an_export_that_is_cut_off_is_not_marked_as_done(shelf: Shelf, tmp_path: Path) -> None:
    write(shelf, 5, plain())
    broken = Export(
        convert=lambda name, tensor: [(name, tensor)], extra=lambda: [("bad", None)], files={}, lineage={}
    )  # type: ignore[list-item, return-value]
    with pytest.raises(AttributeError):
        write(shelf, 10, broken)
    assert not (tmp_path / final_model_prefix("t") / DONE_FILE).exists()

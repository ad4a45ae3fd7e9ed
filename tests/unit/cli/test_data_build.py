import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from torchrelay.cli.app import run
from torchrelay.data.build import dataset_build
from torchrelay.data.dataset import open_dataset
from torchrelay.data.manifest import Manifest
from torchrelay.store.open import open_store

Call = Callable[..., tuple[int, str, str]]
HERE = __name__


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run `torchrelay data build d …` in a folder of its own; gives exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run_command(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(["data", "build", "d", *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run_command


def built() -> Manifest:
    return open_dataset(open_store("relay-store"), "d").manifest


def count(manifest: Manifest) -> int:
    return sum(manifest.totals(split).samples for split in manifest.splits)


def write_lines(path: str, records: list[Any]) -> None:
    Path(path).write_text("".join(json.dumps(record) + "\n" for record in records))


RECORDS = [
    {"t": f"text {number} " * 5, "id": number, "s": ("train", "dev")[number % 2]} for number in range(40)
]


def give_texts(count: int = 3) -> Iterator[str]:
    for number in range(count):
        yield f"text {number}"


def give_samples(count: int = 3) -> list[dict[str, Any]]:
    return [{"x": np.full(3, number, np.float32), "n": number} for number in range(count)]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow", "hf"])
def test_records_of_every_kind_are_documents(call: Call, kind: str) -> None:
    if kind == "jsonl":
        write_lines("in.jsonl", RECORDS)
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(RECORDS), "in.parquet")
    elif kind == "arrow":
        table = pa.Table.from_pylist(RECORDS)
        with pa.ipc.new_file("in.arrow", table.schema) as writer:
            writer.write_table(table)
    else:
        datasets.Dataset.from_list(RECORDS).save_to_disk("in.hf")
    options = ["--field", "t", "--id-field", "id", "--validation", "20%", "--test", "20%"]
    code, out, errors = call(f"--{kind}", f"in.{kind}", *options)
    assert (code, errors) == (0, "")
    manifest = built()
    assert list(manifest.splits) == ["train", "validation", "test"] and count(manifest) == 40
    assert manifest.build.arguments["id_field"] == "id"
    versions = manifest.content.splits["train"][0].sha256
    write_lines("in.jsonl", RECORDS)
    assert call("--jsonl", "in.jsonl", *options)[0] == 0
    assert built().content.splits["train"][0].sha256 == versions


def test_splits_that_a_field_says(call: Call) -> None:
    write_lines("in.jsonl", RECORDS)
    assert call("--jsonl", "in.jsonl", "--field", "t", "--split-field", "s")[0] == 0
    assert {split: built().totals(split).samples for split in built().splits} == {
        "train": 20,
        "validation": 20,
    }


def test_files_for_validation(call: Call) -> None:
    write_lines("a.jsonl", RECORDS[:30])
    write_lines("b.jsonl", RECORDS[30:])
    options = ["--field", "t", "--validation-from", "b.jsonl"]
    assert call("--jsonl", "a.jsonl", *options)[0] == 0
    assert built().totals("validation").samples == 10


def test_a_function_of_texts_and_one_of_samples(call: Call) -> None:
    assert call("--python", f"{HERE}:give_texts", "--option", "count=30", "--validation", "0%")[0] == 0
    assert (built().content.kind, count(built())) == ("tokens", 30)
    code, out, _ = call("--python", f"{HERE}:give_samples", "--option", "count=30", "--validation", "30%")
    assert (code, built().content.kind, count(built())) == (0, "samples", 30)
    assert "columns    n (int64), x (float32)" in out


def test_packs_are_summed_up(call: Call) -> None:
    write_lines("in.jsonl", RECORDS)
    code, out, _ = call("--jsonl", "in.jsonl", "--field", "t", "--pack", "200", "--validation", "0%")
    assert code == 0
    packs = sum(entry.packs for entry in built().splits["train"])
    assert f"packs      {packs} of 200 tokens, 9" in out
    code, out, errors = call("--jsonl", "in.jsonl", "--field", "t", "--pack", "20", "--validation", "0%")
    assert code == 78 and "a pack holds 20" in errors
    options = ["--long-documents", "truncate", "--pack", "20", "--validation", "0%"]
    assert "40 documents were cut" in call("--jsonl", "in.jsonl", "--field", "t", *options)[1]


def test_what_was_left_out_is_listed(call: Call) -> None:
    Path("in.jsonl").write_text("{bad\n" + json.dumps({"t": "good"}) + "\n")
    options = ["--field", "t", "--on-bad", "skip", "--validation", "0%"]
    code, _, errors = call("--jsonl", "in.jsonl", *options)
    assert code == 0
    assert errors.startswith("skipped: in.jsonl:1: not valid JSON")
    listing = errors.splitlines()[1].split("all of them: ")[1]
    assert "1 bad input was left out" in errors and "in.jsonl:1" in Path(listing).read_text()


def write_images(folder: str) -> None:
    for number in range(20):
        path = Path(folder, "ab"[number % 2], f"{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (number, 0, 0)).save(path)


@pytest.mark.parametrize("kind", ["images", "npy", "npz", "csv", "table"])
def test_samples_of_every_kind(call: Call, kind: str) -> None:
    rows = np.arange(60).reshape(20, 3)
    if kind == "images":
        write_images("in.images")
    elif kind == "npy":
        np.save("in.npy", rows)
    elif kind == "npz":
        np.savez("in.npz", x=rows, y=rows[:, 0])
    elif kind == "csv":
        Path("in.csv").write_text("x,y\n" + "".join(f"{number},{number * 0.5}\n" for number in range(20)))
    else:
        pq.write_table(pa.table({"x": list(range(20))}), "in.table")
    code, out, errors = call(f"--{kind}", f"in.{kind}", "--validation", "30%")
    assert (code, errors) == (0, "")
    manifest = built()
    assert (manifest.content.kind, manifest.content.format, count(manifest)) == ("samples", "mds", 20)
    assert ("labels     2: a, b" in out) == (kind == "images")
    assert code == call(f"--{kind}", f"in.{kind}", "--validation", "30%", "--processes", "2")[0]
    assert built().version == manifest.version


def test_samples_for_validation_come_from_other_files(call: Call) -> None:
    np.save("a.npy", np.arange(20))
    np.save("b.npy", np.arange(100, 105))
    assert call("--npy", "a.npy", "--validation-from", "b.npy")[0] == 0
    assert {split: built().totals(split).samples for split in built().splits} == {
        "train": 20,
        "validation": 5,
    }
    np.save("b.npy", np.arange(19, 25))
    code, _, errors = call("--npy", "a.npy", "--validation-from", "b.npy")
    assert code == 78 and "is in two splits" in errors and "b.npy" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give an input"),
        (["--text", "a", "--csv", "b"], "give one kind of input, not --text and --csv"),
        (["--parquet", "a"], "--parquet needs --field"),
        (["--text", "a", "--id-field", "t"], "--text takes whole files"),
        (["--images", "a", "b"], "--images takes no files, but 'b' stands after the name"),
        (["--images", "a", "--validation-from", "b"], "take the place of what --images tells itself"),
        (["--text", "a", "--option", "k=v"], "--option belongs to --python"),
        (["--python", "m:f", "--option", "kv"], "'kv' is not of the form key=value"),
        (["--python", "nowhere_at_all:f"], "cannot import 'nowhere_at_all'"),
        (["--npy", "a", "--split-field", "s"], "--split-field belongs to documents"),
        (["--npy", "a.npy", "--pack", "5"], "belong to text, not samples"),
        (["--text", "a.txt", "--ragged", "x"], "--ragged and --column-type belong to samples"),
        (["--jsonl", "a", "--field", "t", "--split-field", "s", "--test-from", "b"], "give one"),
        (["--text", "a.txt", "--validation-from", "a.txt", "--validation", "5%"], "leave --validation and"),
        (["--npy", "a.npy", "--validation-from", "a.npy", "--test", "5%"], "leave --validation and"),
        (["--csv", "a.txt", "--delimiter", "::"], "--delimiter is one character, not '::'"),
        (["--text", "a.txt", "--work", "/proc/x"], "as the work folder"),
        (["--python", f"{HERE}:give_texts", "--option", "foo=1"], "unexpected keyword argument 'foo'"),
        (["--text", "a.txt", "--unit-size", "much"], "--unit-size: 'much' is not a size"),
        (["--text", "a.txt", "--validation", "60%", "--test", "40%"], "leave nothing for training"),
    ],
)
def test_options_that_do_not_go_together_are_refused(call: Call, arguments: list[str], message: str) -> None:
    Path("a.txt").write_text("text")
    np.save("a.npy", np.arange(3))
    code, out, errors = call(*arguments)
    assert (code, out) == (78, "")
    assert message in errors


def test_a_program_that_is_not_there_is_answered_with_what_to_install(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    Path("a.parquet").touch()
    code, _, errors = call("--parquet", "a.parquet", "--field", "t")
    assert code == 78
    assert "needs the package pyarrow" in errors and "pip install 'torchrelay[data]'" in errors


def test_a_function_of_the_current_folder_is_found(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("gen_here.py").write_text("def texts():\n    return [f'text {n}' for n in range(40)]\n")
    assert call("--python", "gen_here:texts", "--validation", "0%", "--processes", "2")[0] == 0
    assert count(built()) == 40
    del sys.modules["gen_here"]


def test_splits_of_folders_and_a_share_do_not_go_together(call: Call) -> None:
    write_images("in/train")
    assert call("--images", "in", "--validation", "30%")[0] == 0
    assert set(built().splits) == {"train", "validation"}
    Image.new("RGB", (5, 5)).save(Path("in/train/a/x.png"))
    Path("in/val/a").mkdir(parents=True)
    Path("in/train/a/x.png").rename("in/val/a/x.png")
    code, _, errors = call("--images", "in", "--validation", "30%")
    assert code == 78 and "the input says which split every sample belongs to" in errors
    assert call("--images", "in")[0] == 0 and built().totals("validation").samples == 1


def test_a_ctrl_c_is_one_line(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dataset_build, "build_dataset", stop)
    Path("a.txt").write_text("text")
    assert call("--text", "a.txt") == (130, "", "stopped; run the same command to go on\n")


def test_shards_that_were_written_anew_are_told(call: Call) -> None:
    write_lines("in.jsonl", RECORDS)
    arguments = ("--jsonl", "in.jsonl", "--field", "t", "--validation", "0%")
    call(*arguments)
    assert "exists already as ref 1, checked, nothing new" in call(*arguments)[1]
    (shard,) = Path("relay-store/datasets/d/shards").rglob("*.tok")
    shard.unlink()
    assert "1 lost or damaged shard written anew" in call(*arguments)[1] and shard.exists()

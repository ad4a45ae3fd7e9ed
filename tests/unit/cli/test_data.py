import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchrelay.cli.app import run
from torchrelay.data.dataset import open_dataset
from torchrelay.data.loader import open_split
from torchrelay.recipe.data_schema import DataSection
from torchrelay.store.open import open_store

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run `torchrelay data …` in a folder with 30 texts; gives exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    for number in range(30):
        Path(f"{number:02d}.txt").write_text(f"text {number} " * 40)

    def run_command(*arguments: str) -> tuple[int, str, str]:
        code = run(["data", *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run_command


@pytest.fixture
def built(call: Call) -> Call:
    code, _, errors = call("build", "texts", "--text", "*.txt", "--validation", "20%", "--shard-size", "4KiB")
    assert (code, errors) == (0, "")
    return call


def section() -> DataSection:
    return DataSection(dataset="texts", sequence_length=32, lanes=2, window_shards=1)


def test_build_sums_up_what_was_built_and_what_to_type_next(call: Call) -> None:
    code, out, _ = call("build", "texts", "--text", "*.txt", "--tokenizer", "chars", "--validation", "0.2")
    manifest = open_dataset(open_store("relay-store"), "texts").manifest
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["split", "documents", "tokens"]
    for line, split in zip(lines[1:3], ("train", "validation"), strict=True):
        totals = manifest.totals(split)
        assert line.split()[:3] == [split, f"{totals.samples:,}", f"{totals.tokens:,}"]
    assert f"{manifest.short_version} (ref 1)" in out
    assert f"file://{Path.cwd()}/relay-store/datasets/texts" in out
    assert "torchrelay data show texts" in out
    assert all(len(line) <= 100 for line in lines[:3])


def test_building_again_says_that_it_exists(built: Call) -> None:
    _, out, _ = built("build", "texts", "--text", "*.txt", "--validation", "20%", "--shard-size", "4KiB")
    assert "exists already as ref 1" in out


def test_files_that_the_shell_has_listed_are_taken_too(call: Call) -> None:
    files = [f"{number:02d}.txt" for number in range(12)]
    assert call("build", "some", "--validation", "30%", "--text", *files)[0] == 0
    manifest = open_dataset(open_store("relay-store"), "some").manifest
    assert sum(manifest.totals(split).samples for split in ("train", "validation")) == 12
    assert call("build", "two", "--text", "0*.txt", "--text", "1*.txt", "--store", "memory://cli-two")[0] == 0
    manifest = open_dataset(open_store("memory://cli-two"), "two").manifest
    assert sum(manifest.totals(split).samples for split in ("train", "validation")) == 20


def test_json_lines_with_labels(call: Call) -> None:
    lines = [json.dumps({"body": f"text {n}", "class": "ab"[n % 2]}) for n in range(30)]
    Path("a.jsonl").write_text("\n".join(lines))
    code, out, _ = call(
        "build", "l", "--jsonl", "a.jsonl", "--field", "body", "--label-field", "class", "--validation", "30%"
    )
    assert code == 0
    assert "labels     2: a, b" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "d"], "give an input"),
        (["build", "d", "--text", "*.txt", "--jsonl", "x"], "give one kind of input, not --text and --jsonl"),
        (["build", "d", "--jsonl", "*.txt"], "--jsonl needs --field"),
        (["build", "d", "--text", "*.txt", "--field", "t"], "--field and --label-field belong to records"),
        (["build", "d", "--text", "*.txt", "--validation", "half"], "--validation: 'half' is not a share"),
        (["build", "d", "--text", "*.txt", "--shard-size", "big"], "--shard-size: 'big' is not a size"),
        (["build", "d", "--text", "none*"], "no file matches 'none*'"),
        (["build", "../d", "--text", "*.txt"], "'../d' is not a name for a dataset"),
        (["show", "nothing"], "there is no dataset 'nothing'"),
        (["verify", "nothing"], "there is no dataset 'nothing'"),
        (["order", "nothing", "--from", "5", "--to", "5"], "--to 5 is not above --from 5"),
        (["order", "nothing"], "there is no dataset 'nothing'"),
    ],
)
def test_what_cannot_be_done_is_said_with_exit_code_78(
    call: Call, arguments: list[str], message: str
) -> None:
    code, out, errors = call(*arguments)
    assert (code, out) == (78, "")
    assert message in errors


def test_list_shows_every_dataset_at_its_newest_ref(built: Call) -> None:
    built("build", "other", "--text", "*.txt", "--validation", "50%")
    built("build", "other", "--text", "*.txt", "--validation", "40%")
    _, out, _ = built("list")
    rows = [line.split() for line in out.splitlines()]
    assert [row[:2] for row in rows[1:]] == [["other", "2"], ["texts", "1"]]
    assert all(len(line) <= 100 for line in out.splitlines())
    tree = json.loads(built("list", "--json")[1])
    assert [(row["name"], row["ref"]) for row in tree] == [("other", 2), ("texts", 1)]
    assert tree[1]["version"] == open_dataset(open_store("relay-store"), "texts").manifest.version
    assert tree[1]["splits"]["train"]["samples"] + tree[1]["splits"]["validation"]["samples"] == 30


def test_list_marks_what_is_damaged_and_shows_the_rest(built: Call) -> None:
    for name in ("bad", "foreign"):
        built("build", name, "--text", "*.txt", "--validation", "50%")
        (manifest,) = Path(f"relay-store/datasets/{name}/versions").glob("*/manifest.json")
        text = manifest.read_text()
        manifest.write_text("{" if name == "bad" else text.replace('"schema": 2', '"schema": 9'))
    code, out, errors = built("list")
    assert (code, errors) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["name", "texts", "bad", "foreign"]
    assert out.splitlines()[2].startswith("bad is damaged: datasets/bad/versions/")
    assert "has schema 9" in out.splitlines()[3]
    rows = json.loads(built("list", "--json")[1])
    assert [(row["name"], row["error"] is None) for row in rows] == [
        ("bad", False),
        ("foreign", False),
        ("texts", True),
    ]


def test_list_cuts_no_name_where_the_output_is_no_terminal(built: Call) -> None:
    name = "a-name-that-is-much-longer-than-any-other-" + "x" * 20
    built("build", name, "--text", "*.txt", "--validation", "50%")
    _, out, _ = built("list")
    assert [line.split()[0] for line in out.splitlines()] == ["name", name, "texts"]
    assert len(out.splitlines()[1]) > 100 and "…" not in out


def test_a_hint_lists_few_of_many_datasets(call: Call) -> None:
    for number in range(11):
        call("build", f"d{number:02d}", "--text", "0*.txt", "--validation", "50%")
    _, _, errors = call("show", "nothing")
    assert "datasets there: d00, d01, d02, d03, d04, d05, d06, d07 … and 3 more; " in errors


def test_list_of_an_empty_store_says_so(call: Call) -> None:
    assert "no dataset in file://" in call("list")[1]
    assert json.loads(call("list", "--json")[1]) == []


def test_show_tells_how_a_version_was_made(built: Call) -> None:
    manifest = open_dataset(open_store("relay-store"), "texts").manifest
    _, out, _ = built("show", f"texts@{manifest.version[:8]}")
    assert f"version    {manifest.version}" in out
    assert "bytes, 257 ids, end mark 256, stored as u16" in out
    assert '"shard_bytes": 4096' in out
    assert all(len(line) <= 100 for line in out.splitlines() if "file://" not in line)
    assert '"test": 0.0' in out
    tree = json.loads(built("show", "texts", "--json")[1])
    assert tree["version"] == manifest.version
    assert len(tree["splits"]["train"]) == len(manifest.splits["train"])


def test_verify_names_what_is_damaged(built: Call) -> None:
    code, out, _ = built("verify", "texts")
    assert code == 0 and out.startswith("ok texts version ")
    assert built("verify", "texts", "--json")[:2] == (0, "[]\n")
    store = open_store("relay-store")
    entry = open_dataset(store, "texts").manifest.splits["train"][0]
    data = bytearray(store.get(f"datasets/texts/{entry.key}"))
    data[11] ^= 1
    store.put(f"datasets/texts/{entry.key}", data)
    code, out, errors = built("verify", "texts")
    assert (code, out) == (78, "")
    assert f"texts version {open_dataset(store, 'texts').manifest.short_version} has 1 problem:" in errors
    assert f"  {entry.key}:\n    sha256 is " in errors
    assert f"\n    the manifest says {entry.sha256}\n" in errors
    assert max(map(len, errors.splitlines())) <= 100
    assert "hint: build the dataset again" in errors
    code, out, _ = built("verify", "texts", "--json")
    assert code == 78
    assert json.loads(out)[0]["key"] == entry.key


def test_order_prints_what_training_reads(built: Call) -> None:
    options = ["--sequence-length", "32", "--lanes", "2", "--window-shards", "1", "--seed", "5"]
    reader = open_split(section(), open_store("relay-store"), "train", seed=5)
    import numpy as np

    n = reader.num_samples
    expected = reader.read(np.arange(n - 4, n + 6)).sample_ids.tolist()
    rows = json.loads(
        built("order", "texts", "--from", str(n - 4), "--to", str(n + 6), *options, "--json")[1]
    )
    assert [row["sample_id"] for row in rows] == expected
    assert [row["epoch"] for row in rows] == [0] * 4 + [1] * 6
    assert [row["lane"] for row in rows] == [i % n % 2 for i in range(n - 4, n + 6)]
    _, out, _ = built("order", "texts", "--from", str(n - 4), "--to", str(n + 6), *options)
    lines = out.splitlines()
    assert lines[0].split() == ["slot", "epoch", "lane", "window", "shard", "index", "sample", "id"]
    assert [int(line.split()[-1].replace(",", "")) for line in lines[1:]] == expected


def test_order_of_a_split_that_is_not_there_lists_those_that_are(call: Call) -> None:
    call("build", "whole", "--text", "*.txt", "--validation", "0%")
    code, out, errors = call("order", "whole", "--split", "validation")
    assert (code, out) == (78, "")
    assert "has no split 'validation'" in errors
    assert "hint: its splits: train" in errors


def test_order_of_validation_is_the_stored_one(built: Call) -> None:
    rows: list[dict[str, Any]] = json.loads(
        built("order", "texts", "--split", "validation", "--sequence-length", "8", "--to", "5", "--json")[1]
    )
    assert [row["sample_id"] for row in rows] == [0, 1, 2, 3, 4]

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from torchrelay.cli.app import run
from torchrelay.data.dataset import open_dataset
from torchrelay.store.open import open_store

FIXTURES = Path(__file__).parents[2] / "data" / "adopted"

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run `torchrelay data …` in an empty folder; gives exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run_command(*arguments: str) -> tuple[int, str, str]:
        code = run(["data", *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run_command


def test_adopt_sums_up_what_is_there_and_where_it_stays(call: Call) -> None:
    code, out, errors = call("adopt", "images", f"{FIXTURES}/webdataset")
    manifest = open_dataset(open_store("relay-store"), "images").manifest
    assert (code, errors) == (0, "")
    assert out.splitlines()[1].split()[:3] == ["train", "15", "3"]
    assert f"{manifest.short_version} (ref 1)" in out
    assert f"file://{FIXTURES}/webdataset (read from there, so keep it)" in out
    assert "jpg jpeg" in out and "x.npy float32" in out
    assert "torchrelay data show images" in out
    assert manifest.build.arguments["adopt"] == f"{FIXTURES}/webdataset"
    assert "exists already as ref 1" in call("adopt", "images", f"{FIXTURES}/webdataset/*.tar")[1]


def test_options_of_tokens_reach_the_manifest(call: Call) -> None:
    code, out, _ = call("adopt", "t", f"{FIXTURES}/megatron", "--vocabulary", "600", "--end-token", "511")
    assert code == 0
    assert "unknown, 600 ids, end mark 511, stored as u16" in out


def test_a_share_and_a_folder_for_validation_reach_the_manifest(call: Call) -> None:
    assert call("adopt", "a", f"{FIXTURES}/webdataset", "--validation", "50%")[0] == 0
    options = ("--split", "train=val", "--split", "test=train", "--kind", "mds")
    assert call("adopt", "b", f"{FIXTURES}/mds", *options)[0] == 0
    store = open_store("relay-store")
    assert set(open_dataset(store, "a").manifest.splits) == {"train", "validation"}
    manifest = open_dataset(store, "b").manifest
    assert {split: manifest.totals(split).samples for split in manifest.splits} == {"train": 6, "test": 24}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--validation", "100%"), "--validation 100% leaves one split empty"),
        (("--validation", "much"), "--validation: 'much'"),
        (("--split", "train"), "--split train: write train=FOLDER, validation=FOLDER, test=FOLDER"),
        (("--split", "val=x"), "--split val=x: write train=FOLDER"),
        (("--split", "train=a", "--split", "train=b"), "--split train=b: "),
        (("--kind", "parquet"), "there is no parquet data in"),
        (("--split", "train=none"), "there is no data in the folder 'none'"),
    ],
)
def test_a_wrong_option_is_told(call: Call, options: tuple[str, ...], message: str) -> None:
    code, _, errors = call("adopt", "a", f"{FIXTURES}/webdataset", *options)
    assert code == 78
    assert message in errors
    assert not Path("relay-store").exists()


def test_bad_data_ends_with_78_and_publishes_nothing(call: Call) -> None:
    shutil.copytree(FIXTURES / "webdataset", "data")
    path = Path("data/part-001.tar")
    path.write_bytes(path.read_bytes()[:5000])
    code, _, errors = call("adopt", "a", "data")
    assert code == 78
    assert f"error: file://{Path.cwd()}/data/part-001.tar: it is cut off at byte 5,000" in errors
    assert not Path("relay-store").exists()


@pytest.mark.parametrize("fixture", ["mds", "mds-zstd", "webdataset", "parquet", "litdata", "megatron"])
def test_adopted_data_can_be_listed_shown_and_verified(call: Call, fixture: str) -> None:
    end = ("--end-token", "511") if fixture == "megatron" else ()
    assert call("adopt", "a", f"{FIXTURES}/{fixture}", *end)[0] == 0
    code, out, _ = call("list", "--json")
    assert (code, json.loads(out)[0]["name"]) == (0, "a")
    code, out, _ = call("show", "a")
    assert code == 0 and f"{FIXTURES}/{fixture}" in out
    code, out, errors = call("verify", "a")
    assert (code, errors) == (0, "")


def test_verify_of_adopted_data_says_to_restore_it_or_to_adopt_it_again(call: Call) -> None:
    shutil.copytree(FIXTURES / "webdataset", "data")
    call("adopt", "a", "data")
    path = Path("data/part-001.tar")
    path.write_bytes(path.read_bytes()[:-1])
    code, _, errors = call("verify", "a")
    assert code == 78
    assert "has 1 problem:\n  part-001.tar: has " in errors
    assert "hint: restore the file, or adopt the data again, which makes a new version" in errors

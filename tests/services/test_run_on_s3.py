"""A whole run whose data, checkpoints, journal and final model lie in a bucket of a real server."""

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.services.conftest import S3Server
from torchrelay.data.build.dataset_build import BuildRequest, build_dataset
from torchrelay.data.build.input import TextFiles
from torchrelay.store.base import Store
from torchrelay.store.open import open_store

pytestmark = pytest.mark.services

STEPS = 30


def _run(*words: str, folder: Path, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "torchrelay", *words], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def _write_recipe(folder: Path, store: str) -> None:
    recipe = {
        "run": {"name": "t", "seed": 5, "store": store},
        "model": {"decoder": {"layers": 1, "width": 16, "heads": 2}},
        "data": {"dataset": "words", "sequence_length": 16},
        "train": {
            "steps": STEPS,
            "global_batch": 8,
            "validation_samples": 8,
            "schedule": {"kind": "constant"},
        },
        "checkpoint": {"every": 10},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))


def _build(folder: Path, store: str) -> None:
    for number in range(20):
        (folder / f"{number}.txt").write_text(" ".join(str(number * k % 97) for k in range(80)))
    request = BuildRequest(documents=TextFiles((f"{folder}/*.txt",)), validation=0.2)
    build_dataset(open_store(store), "words", request, progress=lambda *_: None)


def _show(folder: Path, store: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(
        _run("checkpoint", "show", "t", "--store", store, "--json", folder=folder)
    )
    return shown


def _flip_last_byte(store: Store, key: str) -> None:
    content = bytearray(store.get(key))
    content[-1] ^= 1
    store.put(key, bytes(content))


def test_a_run_in_a_bucket_is_resumed_past_a_damaged_checkpoint_and_equals_one_in_a_folder(
    s3: S3Server, tmp_path: Path
) -> None:
    remote, local = f"s3://{s3.bucket}/{uuid.uuid4().hex}", str(tmp_path / "store")
    for url in (remote, local):
        _build(tmp_path, url)
    _write_recipe(tmp_path, local)
    _run("train", "recipe.yaml", "--nproc", "2", folder=tmp_path)

    _write_recipe(tmp_path, remote)
    _run("train", "recipe.yaml", "--nproc", "2", "--set", "train.steps=20", folder=tmp_path)
    store = open_store(remote)
    broken = next(e.key for e in store.list("runs/t/checkpoints/step-000000020") if e.key.endswith(".bin"))
    _flip_last_byte(store, broken)
    said = _run("train", "recipe.yaml", "--nproc", "2", folder=tmp_path)

    assert "checkpoint not usable" in said
    assert "resumed from step 10" in said
    ours, theirs = _show(tmp_path, remote), _show(tmp_path, local)
    for key in ("step", "samples", "tokens", "weights_sha256", "optimizer_sha256"):
        assert ours[key] == theirs[key]
    assert (
        json.loads(_run("status", "t", "--store", remote, "--json", folder=tmp_path))["state"] == "finished"
    )
    names = {entry.key.rsplit("/", 1)[1] for entry in store.list("final-models/t")}
    assert {"model.safetensors", "config.json", "torchrelay.json"} <= names


def test_a_bucket_that_may_not_be_written_is_found_before_anything_starts(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = f"s3://{s3.bucket}/{uuid.uuid4().hex}"
    _build(tmp_path, remote)
    _write_recipe(tmp_path, remote)
    for name, value in s3.read_only.items():
        monkeypatch.setenv(name, value)
    said = _run("train", "recipe.yaml", folder=tmp_path, code=78)
    assert "access denied" in said
    assert not list(open_store(remote).list("runs"))

"""Loaders side by side: speed, cost, exactness, resuming and what is left behind.

Every loader reads the same samples (`bench/loaders/workload.py`) in its own format, with its options
at their defaults, one process for every measurement, in turn, several rounds:

    torchrelay   its shards and cache           webdataset   tar files, a buffer of 1,000 samples
    litdata      chunks                         datasets     Parquet, streamed, a buffer of 1,000
    mosaic       MDS shards, py1e               torchdata    StatefulDataLoader over a memory map
    grain        ArrayRecord, MapDataset

Peers live in an environment of their own, because they do not agree with each other's or with our
dependencies. Those that are not there are named and left out:

    python3.11 -m venv peers
    peers/bin/pip install torch==2.13.0 "numpy<2.2"
    peers/bin/pip install --no-deps litdata==0.2.76 mosaicml-streaming==0.13.0 webdataset==1.0.2 \
        datasets==5.2.0 torchdata==0.11.0 grain==0.2.18 array_record==0.8.6
    peers/bin/pip install "xxhash<4" boto3 s3fs obstore pyarrow pandas dill multiprocess httpx \
        huggingface_hub requests tqdm zstandard zstd python-snappy brotli catalogue filelock \
        lightning-utilities tifffile braceexpand pyyaml absl-py cloudpickle "etils[epath]" \
        more-itertools protobuf portpicker matplotlib

    python bench/loader.py --peers peers/bin/python [--quick] [--rounds 5] [--work DIR] [--only ...]

The S3 server is SeaweedFS on this machine; client and server share the cores, so that CPU-s/GB says
more than the rate. Converted data stays in `--work`, by default in `bench-work` in the temporary folder.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

LOADERS = Path(__file__).parent / "loaders"
sys.path.insert(0, str(LOADERS))

from object_server import object_server  # noqa: E402 - lies beside the scripts that peers run
from setting import NAMES, OURS, Setting  # noqa: E402
from started import Contender  # noqa: E402
from study_exact import study_exact  # noqa: E402
from study_resume import study_leftovers, study_resume  # noqa: E402
from study_speed import study_speed  # noqa: E402

STUDIES = ("local", "s3", "exact", "resume", "leftovers")
FULL = {"tok": 40_000, "img": 12_000, "small": 10_000_000}
QUICK = {"tok": 4_000, "img": 1_200, "small": 200_000}
EXACT = 4_001
"""Samples of the study of exactness: no number of ranks or of workers divides it."""


def find_contenders(peers: str | None, names: list[str]) -> tuple[list[Contender], list[str]]:
    """Those that can be started, and a line about each: its versions, or that it is missing."""
    found, lines = [], []
    for name in names:
        python = sys.executable if name == OURS else peers
        contender = Contender(name=name, script=LOADERS / f"run_{name}.py", python=python or "")
        versions = _versions(contender) if python else {}
        if versions:
            found.append(contender)
        shown = ", ".join(f"{package} {version}" for package, version in versions.items())
        lines.append(f"  {name:<12}{shown or 'missing'}")
    return found, lines


def _versions(contender: Contender) -> dict[str, str]:
    job = {"action": "versions", "workload": "tok", "samples": 0, "place": "", "cache": ""}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        out = Path(folder) / "versions.json"
        words = [contender.python, str(contender.script), json.dumps(job), str(out)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        return dict(json.loads(out.read_text())["versions"]) if done.returncode == 0 else {}


def studies(setting: Setting, chosen: list[str]) -> list[Callable[[], str]]:
    """What is to be measured, in the order in which it is printed."""
    local = [("tok", 0), ("tok", 2), ("img", 0), ("img", 2)] if "local" in chosen else []
    remote = [("img", 0), ("img", 2)] if "s3" in chosen else []
    exact = replace(setting, samples={**setting.samples, "tok": EXACT})
    found: list[Callable[[], str]] = []
    for is_remote, shapes in ((False, local), (True, remote)):
        for name, workers in shapes:
            found.append(_speed(setting, name, workers, remote=is_remote))
    if "exact" in chosen:
        found.append(lambda: study_exact(exact))
    if "resume" in chosen:
        found.append(lambda: study_resume(setting))
    if "leftovers" in chosen:
        found.append(lambda: study_leftovers(setting))
    return found


def _speed(setting: Setting, name: str, workers: int, *, remote: bool) -> Callable[[], str]:
    return lambda: study_speed(setting, name, workers=workers, remote=remote)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", default=os.environ.get("BENCH_PEERS"), help="Python that has the peers")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="a tenth of the data and one round")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "bench-work")
    parser.add_argument("--only", default=",".join(STUDIES), help="of " + ",".join(STUDIES))
    parser.add_argument("--loaders", default=",".join(NAMES))
    return parser.parse_args()


def main() -> None:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # so that the server ends too
    chosen = [study for study in STUDIES if study in options.only.split(",")]
    names = [name for name in NAMES if name in options.loaders.split(",")]
    contenders, lines = find_contenders(options.peers, names)
    rounds = options.rounds or (1 if options.quick else 5)
    print(f"loaders on {os.cpu_count()} cores, Python {platform.python_version()}, {rounds} rounds: medians")
    print("\n".join(lines))
    options.work.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        server = options.work / "server"
        shutil.rmtree(server, ignore_errors=True)
        store = stack.enter_context(object_server(server)) if {"s3", "leftovers"} & set(chosen) else {}
        setting = Setting(
            folder=options.work,
            contenders=tuple(contenders),
            samples=QUICK if options.quick else FULL,
            rounds=rounds,
            limit_s=60 if options.quick else 180,
            store=store,
        )
        for study in studies(setting, chosen):
            print(study(), flush=True)


if __name__ == "__main__":
    main()

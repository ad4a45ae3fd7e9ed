"""Throughput of a DDP run of two processes against a hand-written torch DDP loop.

Both train the same decoder (the quickstart's, 256 tokens, batch 16) on the same bytes with AdamW
and clipping. The hand-written loop is what a careful person writes: windows from a memory map,
DistributedDataParallel with bucket views, fused AdamW, clip_grad_norm_, the loss read every step.

They run in turn, several rounds, each in fresh processes; tokens/s over the steps after warm-up,
by the wall clock. Printed: medians and the ratio ours / theirs, round by round.

    python bench/tokens_per_second.py [--rounds 5] [--steps 60]
"""

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SEQUENCE, BATCH, RANKS, WARMUP, VOCABULARY = 256, 16, 2, 10, 257
MODEL = {"preset": "1m"}


def hand_written(data: Path, steps: int) -> None:
    """One rank of the peer; rank 0 prints its tokens/s."""
    import numpy as np
    import torch
    import torch.distributed as dist
    from torch.nn import functional as F
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tokens = np.memmap(data, dtype=np.uint8, mode="r")
    model = _decoder()
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    chosen = random.Random(rank)
    begun = 0.0
    for step in range(steps):
        if step == WARMUP:
            begun = time.perf_counter()
        starts = [chosen.randrange(len(tokens) - SEQUENCE - 1) for _ in range(BATCH // RANKS)]
        rows = torch.from_numpy(np.stack([tokens[s : s + SEQUENCE + 1] for s in starts]).astype(np.int64))
        logits = ddp(rows[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), rows[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
    if rank == 0:
        print(json.dumps((steps - WARMUP) * BATCH * SEQUENCE / (time.perf_counter() - begun)))
    dist.destroy_process_group()


def _decoder() -> object:
    import torch

    from torchrelay.data.batch import DataFacts
    from torchrelay.model.decoder_task import build_decoder_task
    from torchrelay.parallel.materialise import materialise
    from torchrelay.recipe.model_schema import DecoderSection, ModelSection

    facts = DataFacts(vocabulary=VOCABULARY, sequence_length=SEQUENCE, num_labels=None, end_token=256)
    task = build_decoder_task(ModelSection(decoder=DecoderSection(**MODEL)), facts)
    module = task.build(seed=1)
    materialise(module, task, seed=1, device=torch.device("cpu"))
    return module


def run_hand_written(data: Path, steps: int) -> float:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    environment = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(RANKS),
        "OMP_NUM_THREADS": "1",
    }
    words = [sys.executable, __file__, "--rank-of", str(data), "--steps", str(steps)]
    ranks = [
        subprocess.Popen(words, env=environment | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(RANKS)
    ]
    outputs = [process.communicate(timeout=300)[0] for process in ranks]
    return float(json.loads(outputs[0].splitlines()[-1]))


def run_torchrelay(folder: Path, number: int, steps: int) -> float:
    recipe = {
        "run": {"name": f"bench-{number}", "store": str(folder / "store")},
        "model": {"decoder": MODEL},
        "data": {"dataset": "bytes", "sequence_length": SEQUENCE},
        "train": {"steps": steps, "global_batch": BATCH, "validation_samples": 8},
        "checkpoint": {"every": 100000},
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(recipe))  # JSON is YAML
    subprocess.run(
        [sys.executable, "-m", "torchrelay", "train", str(path), "--nproc", str(RANKS)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=300,
    )
    journal = folder / "store" / "runs" / f"bench-{number}" / "journal" / "attempt-0001.jsonl"
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    moments = [record["time"] for record in records if record["kind"] == "step"]
    return (steps - WARMUP) * BATCH * SEQUENCE / (moments[-1] - moments[WARMUP - 1])


def make_data(folder: Path) -> Path:
    """Python's own source: raw for the peer, and as a dataset."""
    from torchrelay.data.build.dataset_build import BuildRequest, build_dataset
    from torchrelay.data.build.input import TextFiles
    from torchrelay.store.open import open_store

    library = Path(os.__file__).parent
    raw = folder / "raw.bin"
    raw.write_bytes(b"".join(path.read_bytes() for path in sorted(library.glob("*.py"))))
    request = BuildRequest(documents=TextFiles((f"{library}/*.py",)))
    build_dataset(open_store(str(folder / "store")), "bytes", request, progress=lambda *_: None)
    return raw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rank-of", type=Path)
    options = parser.parse_args()
    if options.rank_of:
        hand_written(options.rank_of, options.steps)
        return
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    raw = make_data(folder)
    rows = []
    for number in range(options.rounds):
        theirs = run_hand_written(raw, options.steps)
        ours = run_torchrelay(folder, number, options.steps)
        rows.append((ours, theirs))
        print(f"round {number + 1}: ours {ours:,.0f}  hand-written {theirs:,.0f}  ratio {ours / theirs:.3f}")
    ratios = sorted(ours / theirs for ours, theirs in rows)
    print(
        f"median tokens/s: torchrelay {statistics.median(r[0] for r in rows):,.0f}, "
        f"hand-written {statistics.median(r[1] for r in rows):,.0f}; "
        f"ratio {statistics.median(ratios):.3f} ({ratios[0]:.3f} … {ratios[-1]:.3f})"
    )


if __name__ == "__main__":
    main()

"""The orders of peers by their own code: `peer_order.py REQUEST.json RESULT.npz`, in the peers' environment.

The request holds the samples of every shard, a seed, and the samples of our window for a second
order of `py1e` with it; the result one array a peer, the sample
numbers in the order in which one process reads them in the first epoch.
"""

import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
BUFFER = 1000
PY1E_BLOCK = 4_000_000
"""What its dataset chooses for one node."""


def py1e(counts: Ints, seed: int, block: int) -> Ints:
    """mosaicml-streaming, for one node."""
    from run_mosaic import stand_in

    stand_in()
    from streaming.base.shuffle import get_shuffle

    return get_shuffle("py1e", counts, 1, seed, 0, block)


def litdata(counts: Ints, seed: int) -> Ints:
    """Chunks permuted, then samples in blocks of a chunk: its default for an object store."""
    from litdata.streaming.shuffle import FullShuffle
    from litdata.utilities.env import _DistributedEnv

    stops = np.cumsum(counts)
    intervals = [(int(b - n), int(b - n), int(b), int(b)) for b, n in zip(stops, counts, strict=True)]
    cache = SimpleNamespace(_reader=SimpleNamespace(), get_chunk_intervals=lambda: intervals)
    shuffle = FullShuffle(cache, seed, drop_last=False)
    chunks, spans = shuffle.get_chunks_and_intervals_per_workers(_DistributedEnv(1, 0, 1), 1, 32, 1)
    read = [
        shuffle(np.arange(span[1], span[2]), len(counts), 1, int(chunk))
        for chunk, span in zip(chunks[0], spans[0], strict=True)
    ]
    return np.concatenate(read)


def buffer(counts: Ints, seed: int) -> Ints:
    """webdataset: tar files in random order, and its shuffle buffer."""
    from webdataset.filters import _shuffle

    chosen = random.Random(seed)
    starts = np.concatenate([[0], np.cumsum(counts)])
    shards = list(range(len(counts)))
    chosen.shuffle(shards)
    stored = (number for shard in shards for number in range(starts[shard], starts[shard + 1]))
    return np.fromiter(_shuffle(stored, bufsize=BUFFER, rng=chosen), np.int64)


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    counts, seed = np.array(request["counts"], np.int64), request["seed"]
    orders = {
        "py1e": py1e(counts, seed, PY1E_BLOCK),
        "py1e, our window": py1e(counts, seed, request["block"]),
        "litData": litdata(counts, seed),
        "buffer of 1,000": buffer(counts, seed),
    }
    np.savez(sys.argv[2], **orders)


if __name__ == "__main__":
    main()

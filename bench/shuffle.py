"""How well torchrelay's order mixes data that is stored class by class, beside peers and a full permutation.

The peers' orders come from their own code, run in their own environment (see `bench/loader.py` for
how to make it): mosaicml-streaming's `py1e`, litData's chunk shuffle, webdataset's buffer of 1,000
samples behind shards in random order. Each with its defaults, for one process.

    dispersion   chi-squared of a batch's classes over that of a full permutation; 1 is perfect
    distance     mean total variation between a batch's classes and the dataset's
    classes      mean number of classes in a batch
    largest      largest share one class ever has in a batch
    apart        median distance in reading of two stored neighbours, in epochs; 0.29 is perfect
    same batch   share of stored neighbours that come into one batch
    kept         share of successive reads that are stored neighbours
    held         most shards begun and not finished: what a cache must hold, or fetch twice

Our figures are compared with what can be proved (`quality.bound_dispersion`); the script fails when
they exceed it.

    python bench/shuffle.py --peers peers/bin/python [--quick] [--pictures docs/explanation]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

LOADERS = Path(__file__).parent / "loaders"
sys.path.insert(0, str(LOADERS))

import quality  # noqa: E402 - lies beside the scripts that peers run
from table import short, table  # noqa: E402

from torchrelay.data.order.order import Order, OrderSettings  # noqa: E402

OURS, FULL = "torchrelay", "full"
LANES, WINDOW = 64, 10
"""Defaults of `data.lanes` and `data.window_shards`."""
CHECKED = ((LANES, WINDOW), (LANES, 1), (8, WINDOW), (1, 1))
"""Lanes and windows that are held against the bound."""
SEED = 1
SLACK = 1.05
"""The bound holds for the mean over all seeds; a few epochs of one lie so close to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A dataset, as far as an order sees it."""

    name: str
    samples: int
    per_shard: int
    classes: int
    batch: int

    @property
    def counts(self) -> quality.Ints:
        """Samples of every shard."""
        starts = np.arange(0, self.samples, self.per_shard)
        return np.minimum(self.per_shard, self.samples - starts)


SHAPES = (
    Shape(name="small", samples=12_000, per_shard=400, classes=100, batch=256),
    Shape(name="images", samples=1_281_000, per_shard=600, classes=1000, batch=1024),
    Shape(name="text", samples=4_000_000, per_shard=8192, classes=1000, batch=1024),
)
QUICK = (SHAPES[0], Shape(name="images / 16", samples=80_000, per_shard=100, classes=250, batch=256))


def our_order(shape: Shape, epoch: int = 0, *, lanes: int = LANES, window: int = WINDOW) -> quality.Ints:
    """The sample ids of an epoch."""
    order = _order(shape, lanes, window)
    slots = np.arange(epoch * shape.samples, (epoch + 1) * shape.samples)
    return np.concatenate([order.trace(part).located.sample_ids for part in np.array_split(slots, 64)])


def _order(shape: Shape, lanes: int, window: int) -> Order:
    settings = OrderSettings(seed=SEED, lanes=lanes, window_shards=window, shuffle=True)
    return Order(shape.counts, settings)


def peer_orders(shape: Shape, peers: str) -> dict[str, quality.Ints]:
    """By name, from the peers' own code."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        request, result = Path(folder) / "request.json", Path(folder) / "result.npz"
        held = min(len(shape.counts), _order(shape, LANES, WINDOW).lanes * WINDOW)
        asked = {"counts": shape.counts.tolist(), "seed": SEED, "block": held * shape.per_shard}
        request.write_text(json.dumps(asked))
        words = [peers, str(LOADERS / "peer_order.py"), str(request), str(result)]
        subprocess.run(words, check=True, timeout=600, stdout=subprocess.DEVNULL)
        with np.load(result) as file:
            return {name: file[name] for name in file.files}


def all_orders(shape: Shape, peers: str | None) -> dict[str, quality.Ints]:
    """Ours, the peers' and a full permutation."""
    full = np.random.default_rng(SEED).permutation(shape.samples)
    return {OURS: our_order(shape), **(peer_orders(shape, peers) if peers else {}), FULL: full}


def compare(shape: Shape, orders: dict[str, quality.Ints]) -> str:
    """The table of one dataset."""
    columns = ["", "dispersion", "distance", "classes", "largest", "apart", "same batch", "kept", "held"]
    shards = len(shape.counts)
    rows = []
    for name, order in orders.items():
        found = _measure(shape, order)
        rows.append([name, *map(short, found[:-1]), f"{found.held} {found.held / shards:.0%}"])
    title = (
        f"{shape.name}: {shape.samples:,} samples in {shards:,} shards, {shape.classes:,} classes one after "
        f"another, batches of {shape.batch:,}"
    )
    return table(title, columns, rows)


def check_bound(shape: Shape, epochs: int) -> tuple[str, bool]:
    """Our mean figures over some epochs beside what they cannot exceed; whether they keep to it."""
    rows, kept = [], True
    for lanes, window in CHECKED:
        order = _order(shape, lanes, window)
        windows = _windows(shape, order)
        found = [
            _measure(shape, our_order(shape, epoch, lanes=lanes, window=window)) for epoch in range(epochs)
        ]
        spread, apart = (float(np.mean([f[place] for f in found])) for place in (0, 1))
        most = quality.bound_dispersion(len(shape.counts), windows, shape.batch)
        furthest = quality.bound_distance(most, shape.batch, shape.classes)
        kept = kept and spread <= most * SLACK and apart <= furthest * SLACK
        figures = map(short, (windows, spread, most, apart, furthest))
        rows.append([f"{lanes} x {window}", str(order.lanes), *figures])
    columns = ["lanes x window", "lanes used", "windows", "dispersion", "at most", "distance", "at most"]
    return table(f"{shape.name}: what is measured and what is proved, {epochs} epochs", columns, rows), kept


def _windows(shape: Shape, order: Order) -> float:
    """How many windows a lane reads one after another, on average: seen in the last row of each."""
    last = np.arange(shape.samples - order.lanes, shape.samples)
    return float(order.trace(last).windows.mean()) + 1


def _measure(shape: Shape, order: quality.Ints) -> quality.Quality:
    return quality.measure(order, shape.counts, shape.classes, shape.batch)


def draw(drawn: dict[str, dict[str, quality.Ints]], peers: str, folder: Path) -> None:
    """Write the pictures of the documentation, from the orders of the shapes by their name."""
    small, images = SHAPES[0], SHAPES[1]
    stretch = 20 * images.batch
    rows = {
        f"the whole epoch of the small dataset, {len(small.counts)} shards": drawn["small"],
        f"the first 20 batches of the images, of {len(images.counts):,} shards": {
            name: order[:stretch] for name, order in drawn["images"].items()
        },
    }
    arrays = {f"order:{row}:{name}": order for row, found in rows.items() for name, order in found.items()}
    classes = quality.classes_of(images.samples, images.classes)
    for name, order in drawn["images"].items():
        counts = quality.batch_counts(order, classes, images.batch)
        arrays[f"distance:{name}"] = quality.distances(counts, np.bincount(classes))
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        data = Path(temporary) / "data.npz"
        np.savez(data, **arrays)
        subprocess.run([peers, str(LOADERS / "draw.py"), str(data), str(folder)], check=True, timeout=300)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", default=os.environ.get("BENCH_PEERS"), help="Python that has the peers")
    parser.add_argument("--quick", action="store_true", help="smaller datasets")
    parser.add_argument("--pictures", type=Path, help="folder to draw the pictures of the documentation in")
    options = parser.parse_args()
    kept, drawn = True, {}
    for shape in QUICK if options.quick else SHAPES:
        drawn[shape.name] = all_orders(shape, options.peers)
        print(compare(shape, drawn[shape.name]), flush=True)
        text, is_kept = check_bound(shape, epochs=2)
        kept = kept and is_kept
        print(text, flush=True)
    if options.pictures and options.peers and not options.quick:
        draw(drawn, options.peers, options.pictures)
    if not kept:
        raise SystemExit("the order mixes less than is proved")


if __name__ == "__main__":
    main()

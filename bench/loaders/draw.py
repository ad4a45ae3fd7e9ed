"""The pictures of `bench/shuffle.py`: `draw.py DATA.npz FOLDER`, in an environment with matplotlib."""

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

DOTS = 2500
COLOURS = ("#c0392b", "#2471a3", "#7d3c98", "#b9770e", "#566573", "#1e8449")
LEFT_OUT = "py1e, our window"
"""Looks like `py1e`; only the histogram tells them apart."""


def orders(data: dict[str, np.ndarray], to: Path) -> None:
    """Where a sample was stored against when it is read: a column an order, a row a stretch of reading."""
    names = list(dict.fromkeys(name.split(":")[1] for name in data if LEFT_OUT not in name))
    rows = list(dict.fromkeys(name.split(":")[0] for name in data))
    figure, panels = plt.subplots(len(rows), len(names), figsize=(9.4, 4.6), sharey=True, squeeze=False)
    for line, row in zip(panels, rows, strict=True):
        for panel, name in zip(line, names, strict=True):
            order = data[f"{row}:{name}"]
            chosen = np.unique(np.linspace(0, order.size - 1, DOTS).astype(int))
            shown = order[chosen] / data[f"{row}:{names[-1]}"].max()
            panel.scatter(chosen / order.size, shown, s=1.2, c="#1f3a5f", linewidths=0)
            panel.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[])
        line[0].set_ylabel("stored at")
        line[len(names) // 2].set_xlabel(f"read at: {row}", fontsize=10)
    for panel, name in zip(panels[0], names, strict=True):
        panel.set_title(name, fontsize=10)
    figure.tight_layout()
    figure.savefig(to, dpi=100, metadata={"Software": None})


def histogram(data: dict[str, np.ndarray], to: Path) -> None:
    """How far the classes of a batch are from those of the whole, over all batches."""
    figure, panel = plt.subplots(figsize=(7.2, 3.4))
    edges = np.linspace(0, 1, 81)
    for colour, (name, distances) in zip(COLOURS, data.items(), strict=False):
        heights, _ = np.histogram(distances, edges)
        panel.stairs(heights / heights.sum(), edges, color=colour, label=name, fill=True, alpha=0.25)
        panel.stairs(heights / heights.sum(), edges, color=colour, linewidth=1.4)
    panel.set(xlabel="distance of a batch's classes from those of the dataset (0 equal, 1 disjoint)")
    panel.set(ylabel="share of batches", xlim=(0, 1))
    panel.legend(frameon=False, fontsize=9)
    figure.tight_layout()
    figure.savefig(to, dpi=110, metadata={"Software": None})


def main() -> None:
    mpl.use("Agg")
    folder = Path(sys.argv[2])
    with np.load(sys.argv[1]) as file:
        for start, draw in (("order:", orders), ("distance:", histogram)):
            data = {name.removeprefix(start): file[name] for name in file.files if name.startswith(start)}
            draw(data, folder / {"order:": "shuffle-orders.png", "distance:": "shuffle-batches.png"}[start])


if __name__ == "__main__":
    main()

"""How fast samples come, what that costs, and how long the first ones take."""

from dataclasses import replace
from typing import Any

import workload
from setting import OURS, Setting
from started import Outcome
from table import middle, short, spread, table


def study_speed(setting: Setting, name: str, *, workers: int, remote: bool) -> str:
    """A table: one workload, from one place, with so many workers."""
    outcomes: dict[str, list[Outcome]] = {c.name: [] for c in setting.chosen(remote=remote)}
    for _, contender in setting.interleaved(remote=remote):
        job = replace(setting.job(contender, name, remote=remote), workers=workers)
        outcomes[contender.name].append(setting.run(contender, job))
    rows = {loader: _figures(setting, name, found) for loader, found in outcomes.items()}
    best = {column: _best(rows, column) for column in ("rate_1", "rate_2")}
    place = "S3 server, cold then cached" if remote else "local disk, page cache warm"
    how = f"{workers} workers (ours: threads)" if workers else "in process"
    title = f"{name}, {place}, {how}: {setting.samples[name]:,} samples, batches of 32"
    columns = ["", "epoch 1", "", "epoch 2", "", "x best peer", "first s", "epoch 1 s"]
    columns += ["CPU-s/GB", "peak MB", "died"]
    cells = [_cells(loader, row, best, setting.rounds) for loader, row in rows.items()]
    notes = [f"  {loader} died: {row['why'][:160]}" for loader, row in rows.items() if row["died"]]
    return "\n".join([table(title, columns, cells), *notes])


def _figures(setting: Setting, name: str, outcomes: list[Outcome]) -> dict[str, Any]:
    good = [outcome for outcome in outcomes if outcome.result is not None]
    results = [outcome.result for outcome in good if outcome.result]
    gigabytes = 2 * workload.payload_bytes(name, setting.samples[name]) / 1e9
    return {
        "rate_1": [result["epochs"][0]["rate"] for result in results],
        "rate_2": [result["epochs"][1]["rate"] for result in results],
        "first_s": [result["epochs"][0]["first_s"] for result in results],
        "wall_s": [result["epochs"][0]["wall_s"] for result in results],
        "cpu": [result["cpu_s"] / gigabytes for result in results],
        "peak_mb": [outcome.peak_mb for outcome in good],
        "died": len(outcomes) - len(good),
        "why": next((outcome.why for outcome in outcomes if outcome.result is None), ""),
    }


def _best(rows: dict[str, dict[str, Any]], column: str) -> float:
    """The best peer's median."""
    return max(
        (middle(row[column]) for loader, row in rows.items() if loader != OURS and row[column]), default=0.0
    )


def _cells(loader: str, row: dict[str, Any], best: dict[str, float], rounds: int) -> list[str]:
    ratio = middle(row["rate_2"]) / best["rate_2"] if row["rate_2"] and best["rate_2"] else float("nan")
    return [
        loader,
        short(middle(row["rate_1"])),
        spread(row["rate_1"]),
        short(middle(row["rate_2"])),
        spread(row["rate_2"]),
        f"{ratio:.2f}",
        short(middle(row["first_s"])),
        short(middle(row["wall_s"])),
        short(middle(row["cpu"])),
        short(middle(row["peak_mb"])),
        f"{row['died']}/{rounds}" if row["died"] else "",
    ]

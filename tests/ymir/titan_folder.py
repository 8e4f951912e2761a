"""The files of Titan's author in small: three tasks whose times and gains can be worked out by hand.

A step takes 1 s whatever the batch; on two GPUs it takes 1.25 s, on four 1.5, on eight 2 s. So with a batch of 8 one GPU trains 8 samples
a second, two 6.4, four 8/1.5 and eight 4; batches may be divided down to one sample a GPU.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

STEP = {1: 1.0, 2: 1.25, 3: 1.4, 4: 1.5, 8: 2.0}
HEADER = ["name", "submission_time", "application", "num_gpus", "target_batch_size", "target_lr", "target_gradient_steps", "target_metric"]

#: Data set, and the epochs to 0.9 alone at the rate of the jobs (1e-3), and at the best rate.
ALONE = {"wnli": (8, 4), "rte": (6, 6), "mrpc": (4, 2)}
TEMPORAL = {("rte", "wnli"): 2, ("mrpc", "wnli"): 6, ("wnli", "rte"): 9}
SPATIAL = {("wnli", "rte"): (1, 2)}


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def _curve(epochs: int) -> list[tuple[int, float]]:
    """At 0.9 after so many epochs."""
    return [(epoch, 0.9 if epoch >= epochs else 0.5) for epoch in range(1, 11)]


def job(name: str, task: str, at: float = 0.0, gpus: int = 1, batch: int = 8, rate: str = "1e-3", target: str = "0.9") -> tuple[Any, ...]:
    return name, at, f"tiny@{task}", gpus, batch, rate, 1, target


def titan_folder(folder: Path, jobs: Sequence[tuple[Any, ...]], name: str = "FM-tiny") -> Path:
    """A workload of these jobs with its tables; the workload's file."""
    speeds = folder / "fminfo" / "V100"
    speeds.mkdir(parents=True, exist_ok=True)
    (folder / "traces").mkdir(exist_ok=True)
    placed = [("4" * (gpus // 4) if gpus > 4 else gpus, size, step, 0.0) for gpus, step in STEP.items() for size in (1, 16)]
    _write(speeds / "tiny_placements.csv", ["placement", "local_bsz", "step_time", "sync_time"], placed)
    _write(speeds / "tiny_scalability.csv", ["num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"], [])
    _write(speeds / "tiny_context_switch.csv", ["app", "time_cost"], [("rte", 30.0), ("wnli", 20.0)])
    curves: list[Sequence[Any]] = []
    for task, (own, best) in ALONE.items():
        for rate, epochs in (("1e-3", own), ("1e-4", best)):
            curves += [("tiny", "alone", task, task, rate, 1, "accuracy", *point) for point in _curve(epochs)]
    for (a, b), epochs in TEMPORAL.items():
        curves += [("tiny", "temporal", f"{a},{b}", b, "", "", "accuracy", *point) for point in _curve(epochs)]
    for (a, b), both in SPATIAL.items():
        for task, epochs in zip((a, b), both, strict=True):
            curves += [("tiny", "spatial", f"{a},{b}", task, "", "", "accuracy", *point) for point in _curve(epochs)]
    header = ["backbone", "mode", "tasks", "task", "learning_rate", "gradient_steps", "metric", "epoch", "value"]
    _write(folder / "transfer_curves.csv", header, curves)
    file = folder / "traces" / f"{name}.csv"
    _write(file, HEADER, jobs)
    return file

"""A pipeline that sizes itself beside ways of loading that do not, live: real jobs, trained through resizes of their cores (003 ch. 5.1).

    python benchmarks/intune.py [--jobs clicks images remote] [--ways rate uniform torch:2 ...] [--seconds 15] [--rounds 2]
    python benchmarks/intune.py --quick

Each way of loading trains each job in a process of its own, for ``--seconds`` on all cores, then on half of them, then on all again
(of two: 2, 1, 2). A round is one such run of every way, one after the other, each round in another order; ratios are those of a round,
so that what else the machine does hits all alike, and the median round is shown. The clock begins at the first batch.

clicks: click records in shards on disk, 26 categorical columns with Zipf skew and 13 dense ones; the UDF parses, looks words up, hashes
the rare ones and takes logarithms, in Python, hence in processes; the model is a DLRM. images: JPEG files decoded by Pillow, in threads
to begin with, which only rate may change; a small convolutional network. remote: the click records in small blocks, each read with an
emulated latency of remote storage, a sleep.

Ways: a controller's name (unoptimised, uniform, autotune, autotune-adaptive, plumber, plumber-adaptive, rate, dqn, rate+dqn), all on the
same pipeline read, shuffle, udf, batch, prefetch and under the same memory guard, as rate:threads or rate:processes with the workers
of the UDF chosen by hand; torch:N, PyTorch's DataLoader with N workers; spdl:N,
SPDL with a concurrency of N in each stage, where it is installed. The tuner steps as `autotuned` does by default.

Columns: samples/s that the model was trained on, over the whole run and in each phase; the ratios to uniform and to autotune; converged,
seconds after the first batch, and again, after the cores came back, from which on throughput is at least 90 % of what the phase ends
with; cores kept busy; CPU time of a sample in the process that trains, training included, and in its workers, of which a crowded machine
changes little; what the tuner took of a core; most memory (PSS, children included); runs that held more than ``--limit`` MiB (OOM).
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import Row, arguments, machine, progress, show
from intune_jobs import JOBS
from intune_runs import BIN, Options, Run, measure

WAYS = (
    "unoptimised", "uniform", "autotune", "autotune-adaptive", "plumber-adaptive", "rate", "dqn", "rate+dqn",
    "torch:0", "torch:1", "torch:2", "torch:4", "spdl:1", "spdl:4",
)  # fmt: skip
QUICK = ("unoptimised", "uniform", "autotune", "rate", "torch:2")
OURS = ("rate", "dqn", "rate+dqn")
PAPER = {"autotune": "1.18 to 2.29", "uniform": "1.10 to 1.20 (hand-set)"}  #: 003, abstract and ch. 5.1
SMOOTH = 3  #: bins
CONVERGED = 0.9

Rounds = dict[str, dict[str, list[Run]]]  #: by job and way


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--ways", nargs="+", help="default: all but plumber")
    parser.add_argument("--seconds", type=float, help="of a phase (default: 15)")
    parser.add_argument("--rounds", type=int, help="default: 2")
    parser.add_argument("--records", type=int, default=40_960, help="click records on disk (default: 40960)")
    parser.add_argument("--limit", type=int, default=4096, help="MiB that a run may hold (default: 4096)")
    parser.add_argument("--data", type=Path, help="where the click records are kept; default: a temporary directory")
    parser.add_argument("--out", type=Path, help="directory of plots: throughput over time")
    parser.add_argument("--quick", action="store_true", help="one round of 4 s phases, few ways")
    options = parser.parse_args(given)
    rounds, seconds, ways = (1, 4.0, QUICK) if options.quick else (2, 15.0, WAYS)
    options.rounds, options.seconds, options.ways = options.rounds or rounds, options.seconds or seconds, options.ways or ways
    began = machine()
    everywhere = len(os.sched_getaffinity(0))
    cores = [everywhere, max(1, everywhere // 2), everywhere]
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as temporary:
        place = Options(str(options.data or temporary), options.records, options.seconds, cores, options.limit << 20)
        found, absent = measured(options, place)
    tables: dict[str, Sequence[Row]] = {title(job): rows(runs, cores) for job, runs in found.items() if runs}
    tables["Beside the paper"] = beside(found)
    if options.out:
        for job, runs in found.items():
            plot(job, runs, options.seconds, cores, options.out)
    if absent:
        tables["Not measured"] = [{"way": way, "runs": 0, "why": why} for way, why in absent.items()]
    show(options, began, tables)


def measured(options: argparse.Namespace, place: Options) -> tuple[Rounds, dict[str, str]]:
    found: Rounds = {job: {} for job in options.jobs}
    absent: dict[str, str] = {}
    order = random.Random(0)
    done, total = 0, len(options.jobs) * options.rounds * len(options.ways)
    for number in range(options.rounds):
        for job in options.jobs:
            for way in order.sample(options.ways, len(options.ways)):
                done += 1
                progress(f"[{done}/{total}] round {number + 1}, {job}, {way}")
                answer = measure(job, way, place)
                if isinstance(answer, str) or answer.failed:
                    absent[way] = answer if isinstance(answer, str) else answer.failed
                else:
                    found[job].setdefault(way, []).append(answer)
    return {job: {way: runs[way] for way in options.ways if way in runs} for job, runs in found.items()}, absent


def title(job: str) -> str:
    return f"{job}: {' '.join((JOBS[job].__doc__ or '').split())}"


# -- figures -------------------------------------------------------------------------------------------------------------


def rows(runs: dict[str, list[Run]], cores: Sequence[int]) -> list[Row]:
    return [row(way, runs, cores) for way in runs]


def row(way: str, runs: dict[str, list[Run]], cores: Sequence[int]) -> Row:
    mine = runs[way]
    phases = [[statistics.fmean(part) for part in phases_of(run.curve, len(cores))] for run in mine]
    found: dict[str, Any] = {"way": way, "samples/s": median(statistics.fmean(run.curve) for run in mine)}
    for number, count in enumerate(cores):
        found[f"{number + 1}: {words(count)}"] = median(phase[number] for phase in phases)
    for other in PAPER:
        if other in runs:
            found[f"x {other}"] = median(ratios(mine, runs[other]))
    found |= {
        "converged s": median(converged(phases_of(run.curve, len(cores))[0]) for run in mine),
        "again s": median(converged(phases_of(run.curve, len(cores))[-1]) for run in mine),
        "busy cores": median(run.cpu for run in mine),
        "own us": median(run.own for run in mine),
        "workers us": median(run.workers for run in mine),
        "tuner %": 100 * median(run.tuner for run in mine),
        "MiB": round(max(run.memory for run in mine) / 2**20),
        "OOM": sum(run.over for run in mine),
    }
    return found


def words(cores: int) -> str:
    return f"{cores} core{'s' * (cores != 1)}"


def median(values: Any) -> float:
    return float(statistics.median(values))


def phases_of(curve: Sequence[float], phases: int) -> list[Sequence[float]]:
    length = len(curve) // phases
    return [curve[number * length : (number + 1) * length] for number in range(phases)]


def ratios(mine: Sequence[Run], others: Sequence[Run]) -> list[float]:
    """Of the throughput of runs of the same round."""
    return [statistics.fmean(one.curve) / max(statistics.fmean(other.curve), 1e-9) for one, other in zip(mine, others, strict=True)]


def converged(curve: Sequence[float]) -> float:
    """Seconds from which on throughput, smoothed, is at least 90 % of its mean in the second half of the phase."""
    smooth = [statistics.fmean(curve[max(0, end - SMOOTH) : end]) for end in range(1, len(curve) + 1)]
    goal = CONVERGED * statistics.fmean(curve[len(curve) // 2 :])
    return next((place * BIN for place, value in enumerate(smooth) if value >= goal), len(curve) * BIN)


def beside(rounds: Rounds) -> list[Row]:
    """Ratios of our controllers' throughput, by job, beside those of the paper's agent."""
    found: list[Row] = []
    for other, paper in PAPER.items():
        for way in OURS:
            of_jobs = {job: median(ratios(runs[way], runs[other])) for job, runs in rounds.items() if {way, other} <= runs.keys()}
            if of_jobs:
                found.append({"ratio": f"{way} / {other}", **of_jobs, "paper, agent": paper})
    return found or [{"ratio": "none: --ways lacks autotune and uniform", "paper, agent": 2.29}]


# -- plots ---------------------------------------------------------------------------------------------------------------


def plot(job: str, runs: dict[str, list[Run]], seconds: float, cores: Sequence[int], folder: Path) -> None:
    """Throughput over time, the mean of the rounds; where the cores changed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.2), layout="constrained")
    axes = figure.subplots()
    for place, (way, found) in enumerate(runs.items()):
        curve = [statistics.fmean(values) for values in zip(*(run.curve for run in found), strict=True)]
        smooth = [statistics.fmean(curve[max(0, end - SMOOTH) : end]) for end in range(1, len(curve) + 1)]
        style = "-" if way in OURS else ":" if ":" in way else "--"
        axes.plot(
            [BIN * (at + 1) for at in range(len(smooth))],
            smooth,
            style,
            color=f"C{place % 10}",
            label=way,
            linewidth=2 if way in OURS else 1.2,
        )
    for number, count in enumerate(cores):
        axes.axvline(number * seconds, color="#BBBBBB", linewidth=0.8)
        axes.text(number * seconds, axes.get_ylim()[1], f" {words(count)}", va="top", fontsize=8, color="#666666")
    axes.set(xlabel="seconds since the first batch", ylabel="samples/s", ylim=(0, None))
    axes.set_title(f"{job}: throughput of the training", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.7)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"intune-{job}.png", dpi=160)


if __name__ == "__main__":
    main()

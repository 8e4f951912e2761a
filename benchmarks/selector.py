"""The optimisation of UniSched's Selector: gap and CPU time, beside the thesis's own program, and what each part of it brings.

    python benchmarks/selector.py [--seeds 3] [--plain 20] [--sizes 1000x960 5000x960 …]

Random cycles: 70 % of the jobs have one to four deadlines within 24 leases, the others are paid for running now; each has up to six
options on half to four times its GPUs, on as few nodes as it takes or scattered; GPUs grow slower than in proportion. "gap" is
certified: how far the objective may be from the largest. Seconds are of CPU time on one thread. Arrays have as many equal tasks
as ``--array`` says. The thesis's program, one variable per job and lease, is solved by CP-SAT on all cores, once in the time that the
optimisation took (but a second at least) and once in ``--plain`` seconds. Goals: 1000x960 below 1 s and 5000x960 below 4 s at 1 %.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from common import arguments, machine, progress, show
from stoker.policies.unisched.solver.patterns import patterns
from stoker.policies.unisched.solver.problem import Problem, Solution, SolverLimits
from stoker.policies.unisched.solver.selector import solve
from thesis_program import solve_plain

HORIZON = 24
OPTIONS = 6
LARGEST = 16
SLO = 0.7
MISJUDGED = 0.05  #: share of the jobs whose estimate changes by a lease from one cycle to the next
SIZES = ("200x64", "1000x64", "1000x960", "5000x64", "5000x960")
ALIKE = ("1000x64", "1000x960", "5000x64", "5000x960")
SMALL = ("10x8", "20x16", "50x32", "100x64", "200x64")  #: for the thesis's program
CLOCK = time.process_time
ABLATIONS: dict[str, SolverLimits] = {
    "all": SolverLimits(clock=CLOCK),
    "one core, of 400 columns": SolverLimits(clock=CLOCK, cores=((400, 1.0),), exact=0),
    "cores that may plan all room": SolverLimits(clock=CLOCK, cores=((400, 1.0), (800, 1.0))),
    "one try at a schedule": SolverLimits(clock=CLOCK, tries=1),
    "prices and greedy only": SolverLimits(clock=CLOCK, cores=(), exact=0),
    "20 iterations of prices": SolverLimits(clock=CLOCK, iterations=20),
    "8 rows of deadlines": SolverLimits(clock=CLOCK, rows=8),
    "quick: 200 columns, 20 nodes": SolverLimits(clock=CLOCK, cores=((200, 1.0),), nodes=20, exact=0),
}


@dataclass(frozen=True)
class Job:
    options: tuple[tuple[int, tuple[int, ...], int], ...]  #: GPUs, cells, leases
    tiers: tuple[tuple[int, float], ...]  #: leases, reward
    now_reward: float
    bonus: float = 0.0  #: of the first option, for staying


def a_job(rng: np.random.Generator, gpus: int) -> Job:
    size = int(rng.choice([1, 2, 4, 8] if gpus <= 64 else [1, 2, 4, 8, LARGEST]))
    leases, slowdown = float(rng.uniform(1, 12)), float(rng.uniform(1.1, 1.6))
    options = tuple(
        (given, pattern.cells, int(np.ceil(leases * (size / given) ** 0.8 * (1.0 if pattern.compact else slowdown))))
        for given, pattern in _options(size)
    )
    if rng.random() >= SLO:
        return Job(options, (), 1.0 / leases)
    tiers = int(rng.integers(1, 5))
    ends = sorted(rng.choice(np.arange(2, HORIZON + 1), tiers, replace=False).tolist())
    return Job(options, tuple(zip(ends, sorted(rng.uniform(10, 100, tiers).tolist(), reverse=True), strict=True)), 0.0)


def some_jobs(jobs: int, gpus: int, seed: int, array: int = 1) -> list[Job]:
    """``array``: as many of them in a row are tasks of one array, equal in everything."""
    rng = np.random.default_rng([seed, jobs, gpus])
    drawn = [a_job(rng, gpus) for _ in range(-(-jobs // array))]
    return [drawn[number // array] for number in range(jobs)]


def cycle(jobs: Sequence[Job], gpus: int) -> Problem:
    """One scheduling cycle with all GPUs free."""
    options = [(*option, job.bonus * (option is job.options[0])) for job in jobs for option in job.options]
    tiers = [tier for job in jobs for tier in job.tiers]
    n = len(jobs)
    return Problem(
        capacity=gpus, busy=np.zeros(0, dtype=np.int64), cells=np.array([[0, 0, 0, gpus // 8]]), lease=np.ones(n, dtype=np.int64),
        may_start=np.ones(n, dtype=bool), option_start=np.cumsum([0, *(len(job.options) for job in jobs)]),
        option_gpus=np.array([option[0] for option in options]), option_cells=np.array([option[1] for option in options]),
        option_leases=np.array([option[2] for option in options]), option_bonus=np.array([option[3] for option in options]),
        tier_start=np.cumsum([0, *(len(job.tiers) for job in jobs)]), tier_leases=np.array([tier[0] for tier in tiers], dtype=np.int64),
        tier_reward=np.array([tier[1] for tier in tiers]), now_reward=np.array([job.now_reward for job in jobs]),
    )  # fmt: skip


def _options(size: int) -> list[tuple[int, Any]]:
    scaled = (size, 2 * size, size // 2, 4 * size, size // 4)
    return [(given, pattern) for given in scaled if 1 <= given <= LARGEST for pattern in patterns(given)][:OPTIONS]


def parse(size: str) -> tuple[int, int]:
    jobs, _, gpus = size.partition("x")
    return int(jobs), int(gpus)


def spread(values: Sequence[float], unit: float = 1.0) -> str:
    """Least, median and largest."""
    return " / ".join(f"{unit * value:.3g}" for value in np.percentile(values, [0, 50, 100]))


def measure(size: str, seeds: int) -> dict[str, Any]:
    found: list[Solution] = []
    for seed in range(seeds):
        progress(f"{size}, seed {seed}")
        jobs, gpus = parse(size)
        found.append(solve(cycle(some_jobs(jobs, gpus, seed), gpus), SolverLimits(clock=CLOCK)))
    phases = {
        name: float(np.median([one.phases.get(name, 0.0) for one in found])) for name in ("columns", "dual", "greedy", "core", "fill")
    }
    return {
        "jobs x GPUs": size,
        "columns": int(np.median([one.counts["columns"] for one in found])),
        "gap %": spread([one.gap for one in found], 100.0),
        "CPU s": spread([one.seconds for one in found]),
        **{f"{name} s": seconds for name, seconds in phases.items()},
    }


def measure_alike(size: str, seeds: int, array: int) -> list[dict[str, Any]]:
    """Jobs that are alike put together, and not: of arrays, and where there are none."""
    rows = []
    for tasks in (array, 1):
        for name, alike in (("each by itself", None), ("put together", SolverLimits().alike)):
            found = []
            for seed in range(seeds):
                progress(f"{size}, seed {seed}, arrays of {tasks}, {name}")
                jobs, gpus = parse(size)
                found.append(solve(cycle(some_jobs(jobs, gpus, seed, tasks), gpus), SolverLimits(clock=CLOCK, alike=alike)))
            rows.append(
                {
                    "jobs x GPUs": size,
                    "arrays of": tasks,
                    "alike jobs": name,
                    "columns": int(np.median([one.counts["columns"] for one in found])),
                    "gap %": spread([one.gap for one in found], 100.0),
                    "CPU s": spread([one.seconds for one in found]),
                    "objective": float(np.median([one.objective for one in found])),
                }
            )
    return rows


def compare(size: str, seconds: float) -> dict[str, Any]:
    progress(f"{size}, the thesis's program")
    jobs, gpus = parse(size)
    problem = cycle(some_jobs(jobs, gpus, 0), gpus)
    ours, cores = solve(problem, SolverLimits(clock=CLOCK)), len(os.sched_getaffinity(0))
    same, longer = (solve_plain(problem, limit, cores) for limit in (max(1.0, ours.seconds), seconds))
    return {
        "jobs x GPUs": size,
        "objective": ours.objective,
        "gap %": 100.0 * ours.gap,
        "CPU s": ours.seconds,
        "plain, same time": same.objective,
        "of ours": same.objective / ours.objective,
        f"plain, {seconds:g} s": longer.objective,
        "of ours ": longer.objective / ours.objective,
        "its bound": longer.bound,
        "proved": "yes" if longer.optimal else "no",
    }


def ablate(size: str, seeds: int) -> list[dict[str, Any]]:
    rows = []
    for name, limits in ABLATIONS.items():
        progress(f"{size}, {name}")
        jobs, gpus = parse(size)
        found = [solve(cycle(some_jobs(jobs, gpus, seed), gpus), limits) for seed in range(seeds)]
        rows.append(
            {
                "jobs x GPUs": size,
                "with": name,
                "median gap %": 100.0 * float(np.median([one.gap for one in found])),
                "median CPU s": float(np.median([one.seconds for one in found])),
            }
        )
    return rows


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--plain", type=float, default=20.0, metavar="SECONDS")
    parser.add_argument("--sizes", nargs="*", default=SIZES, metavar="JOBSxGPUS")
    parser.add_argument("--alike", nargs="*", default=ALIKE, metavar="JOBSxGPUS", help="sizes for jobs that are alike")
    parser.add_argument("--array", type=int, default=100, metavar="TASKS", help="so many jobs in a row are alike there")
    parser.add_argument("--small", nargs="*", default=SMALL, metavar="JOBSxGPUS", help="sizes for the thesis's program")
    parser.add_argument("--ablate", nargs="*", default=("200x64", "1000x960"), metavar="JOBSxGPUS")
    options = parser.parse_args(given)
    began = machine()
    solve(cycle(some_jobs(20, 16, 0), 16))  # so that the solvers are imported
    tables = {
        "The optimisation (least / median / largest of the seeds; phases: median)": [
            measure(size, options.seeds) for size in options.sizes
        ],
        "Jobs that are alike": [row for size in options.alike for row in measure_alike(size, options.seeds, options.array)],
        "Beside the thesis's program": [compare(size, options.plain) for size in options.small],
        "What each part brings": [row for size in options.ablate for row in ablate(size, options.seeds)],
    }
    show(options, began, {title: rows for title, rows in tables.items() if rows})


if __name__ == "__main__":
    main()

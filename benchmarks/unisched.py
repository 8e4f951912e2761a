"""The evaluation of UniSched (002 ch. 5.5 and 5.6) in the simulator: its figures as tables and plots, beside what the thesis says.

    python benchmarks/unisched.py [--figure 5.6 5.9a …] [--full | --quick] [--traces DIRECTORY] [--out DIRECTORY] [--jobs 2]

Workloads are real jobs (Philly as Chronus published it, and Microsoft's ITP in place of Helios, of which no job times are to be had) with
demands, deadlines and stopping rules drawn as in 5.4.2; ``--traces`` (or STOKER_TRACES) names the directory that has ``chronus/`` and
``itp/``. Without it jobs and five models are made up. The default is a copy of clusters and workloads at a twelfth, for two days;
``--full`` has 120 and 96 nodes, two weeks and three seeds, which takes days of CPU time. The load is the same: 1.15 of the cluster.

All schedulers but UniSched and Chronus get each job's profile 300 s after its submission, from GPUs that cost them nothing; in figure
5.6e from GPUs of the cluster. These, and Chronus' own profiler, are a share of it as large as two nodes of 120. Ratios are to the first
scheduler of a figure; ``least`` and ``most`` are over its workloads and schedulers. R_slo is 1 less Eqn 5.15 as printed: lower is better.
Times of cycles are CPU time.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import arguments, folder, machine, show
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from unisched_figures import FULL, QUICK, SMALL, Averages, Grid, Scale, all_cases, beside, grids, table
from unisched_front import least, nearest
from unisched_plots import draw
from unisched_runs import Case, Measured, run
from unisched_workloads import MIX1, MIX2, PUBLISHED, SLO

MIXES = (SLO, MIX1, MIX2, PUBLISHED)


def chosen(every: Sequence[Grid], wanted: Sequence[str]) -> list[Grid]:
    """``5.6`` is all its parts. SystemExit names what is not known."""
    unknown = [number for number in wanted if not any(grid.number.startswith(number) for grid in every)]
    if unknown:
        raise SystemExit(f"--figure: there is no figure {unknown[0]!r}; there are: {', '.join(grid.number for grid in every)}")
    return [grid for grid in every if any(grid.number.startswith(number) for number in wanted)]


def only(grid: Grid, mixes: Sequence[str], density: float) -> Grid:
    """Its points of these mixes (all where it has none of them), so many times as dense."""
    points = [point for point in grid.points if point.mix in mixes] or grid.points
    return dataclasses.replace(grid, points=[dataclasses.replace(point, density=point.density * density) for point in points])


def measure(figures: Sequence[Grid], scale: Scale, traces: Path | None, processes: int) -> dict[Case, Measured]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("simulating", total=None)
        return run(
            (case for grid in figures for case in all_cases(grid, scale)),
            traces,
            processes,
            lambda done, total, case: bar.update(task, completed=done, total=total, description=str(case)),
        )


def tables_of(figures: Sequence[Grid], scale: Scale, measured: Mapping[Case, Measured]) -> dict[str, list[dict[str, Any]]]:
    averages = [Averages(grid, scale, measured) for grid in figures]
    tables = {f"Figure {one.grid.number}: {one.grid.title}": table(one) for one in averages}
    claims = [row for one in averages for row in beside(one)]
    for one in averages:
        if one.grid.front:
            tables |= {"Front: the setting nearest to each scheduler": nearest(one), "Front: the least ratios of each setting": least(one)}
    return tables | ({"Beside the thesis": claims} if claims else {})


def scale_of(options: Any) -> Scale:
    scale = FULL if options.full else QUICK if options.quick else SMALL
    given = {name: value for name in ("days", "seeds") if (value := getattr(options, name)) is not None}
    return dataclasses.replace(scale, **given)


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help="the thesis's clusters and workloads")
    size.add_argument("--quick", action="store_true", help="three nodes, half a day: only to see that it works")
    parser.add_argument("--figure", nargs="+", default=["5"], metavar="N", help="only these, such as 5.6 5.9a")
    parser.add_argument("--mix", nargs="+", choices=MIXES, help="only workloads of these kinds")
    parser.add_argument("--density", type=float, default=1.0, help="GPU-time that is asked for, over the usual")
    parser.add_argument("--days", type=float, help="of submissions")
    parser.add_argument("--seeds", type=int, help="drawings of each workload, which are averaged")
    parser.add_argument("--traces", type=folder, default=os.environ.get("STOKER_TRACES") or None)
    parser.add_argument("--out", type=Path, help="directory for the plots")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="simulations at once")
    options = parser.parse_args(given)
    traces = options.traces
    began, scale = machine(), scale_of(options)
    figures = [only(grid, options.mix or MIXES, options.density) for grid in chosen(grids(traces is not None), options.figure)]
    measured = measure(figures, scale, traces, options.jobs)
    show(options, began, tables_of(figures, scale, measured))
    for grid in figures if options.out else ():
        draw(Averages(grid, scale, measured), options.out)


if __name__ == "__main__":
    main()

"""PerFect (decoded images used several times, then fine-tuning without reuse) beside plain loading and data echoing.

Real handwritten digits, each a JPEG file on disk that Pillow decodes at each read, and a small convolutional network that is
trained on them from scratch, on one thread: the comparisons of ch. 4.4 of the thesis, and what the thesis says beside them.
CPU times are of the whole training process, tests of the accuracy left out; they hold on a busy machine where wall times do not.

With --out each training is kept in a file when it ends, so that an evaluation that was interrupted goes on where it was.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import arguments, machine, show
from perfect_case import BATCH, IMAGES, STEPS, TESTED, THERE, VALIDATED, Case, Measured
from perfect_plots import draw
from perfect_statistics import Results, readable
from perfect_store import Store, run
from perfect_tables import QUICK, TABLES, Plan, Scale
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

MOST_IMAGES = THERE - TESTED - VALIDATED
LEAST_STEPS = 24  #: tests of a training


def measure(plan: Plan, store: Store, processes: int) -> dict[Case, Measured]:
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("training", total=None)
        return run(plan, store, processes, lambda done, total, last: bar.update(task, completed=done, total=total, description=last))


def plan_of(options: Any) -> Plan:
    if options.quick:
        return Plan([QUICK], Scale(seeds=1, more=1, steps=24, images=256))
    tables = [TABLES[name] for name in options.tables]
    return Plan(tables, Scale(options.seeds, options.more, options.steps, options.images))


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="some steps of a few trainings: only to see that it works")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES), help="only these")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each kind, which decode where CPU time is shown (default: 3)")
    parser.add_argument("--more", type=int, default=2, help="further ones, on images decoded before, for the accuracy alone (default: 2)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of a training with the usual number of passes (default: {STEPS})")
    parser.add_argument("--images", type=int, default=IMAGES, help=f"to train on, at most (default: {IMAGES})")
    parser.add_argument("--out", type=Path, help="directory for what is measured, taken up again from there, and for the plots")
    parser.add_argument("--collect", action="store_true", help="train nothing: only the rows whose trainings are all in --out")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="trainings at once, one thread each")
    options = parser.parse_args(given)
    if options.seeds < 1 or options.more < 0 or options.jobs < 1:
        parser.error("--seeds and --jobs must be at least 1, --more at least 0")
    if options.steps < LEAST_STEPS or not BATCH <= options.images <= MOST_IMAGES:
        parser.error(f"--steps must be at least {LEAST_STEPS}, --images between {BATCH} (a batch) and {MOST_IMAGES}")
    if options.collect and not options.out:
        parser.error("--collect needs --out, the directory with the trainings")
    began, plan = machine(), plan_of(options)
    store = Store(options.out / "trainings" if options.out else None)
    runs = store.all(plan) if options.collect else measure(plan, store, options.jobs)
    results = Results(plan, runs)
    show(options, began, results.tables() if options.json else readable(results.tables()))
    if options.out:
        draw(results, options.out)


if __name__ == "__main__":
    main()

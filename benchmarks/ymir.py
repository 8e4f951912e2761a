"""Ymir beside SRTF, Tiresias, Themis, Optimus and Pollux on the author's workloads: completion times, simulated.

    python benchmarks/ymir.py --traces DIR [--quick] [--workloads FM-2-roberta-base ...] [--gpu-type V100] [--json]

DIR (else $STOKER_TRACES) has ``titan/``: the workloads, learning curves and step times that the author of 002 ch. 3 publishes with its
forerunner, Titan. A job's work is the epochs that its own curve needs to its target; which epochs it needs from the weights of another
task, or trained with it, are those of the author's curves of pairs. Speeds are the author's step times. A start, and every change of GPUs,
costs 30 s and the switch of context as the author measured it; who goes on in the process of another pays 5 s. Estimates are exact.

SRTF, Tiresias and Themis give each job the GPUs that it asks for, Optimus and Pollux any number from one on. *At events*: everybody decides
whenever a job comes or goes. *In rounds*: as the author has it, the others every 300 s, Ymir every 120 s. Ymir is shown without merges,
with pairs of jobs that wait, beginning from jobs that have ended, and with both; *profiled* adds to both what estimating transfers costs
the author at most (002 Table 3.8), at each job's start.

*Control*: every job has the learning rate at which its task reaches its target soonest, of those that the author has tried. What the
curves of pairs gain is mostly that of a better learning rate, and there it is gone. *Same data*: jobs of the same data may help each other
too, which the thesis leaves out (footnote 2), and no other table has.
"""

from __future__ import annotations

import argparse
import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, machine, progress, show
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.run_options import Costs, Options
from stoker.engine.sim.simulator import simulate
from stoker.engine.sim.workload import Workload
from stoker.engine.traces.read import read
from stoker.engine.traces.trace import Trace, to_workload
from stoker.policies import registry

WORKLOADS = tuple(
    f"FM-{density}-{model}" for model in ("roberta-base", "roberta-large", "vit", "vit-large") for density in ("1", "1.5", "2")
)
RIVALS = ("srtf", "tiresias", "themis", "optimus", "pollux")
ELASTIC = ("optimus", "pollux")
OURS: Mapping[str, dict[str, Any]] = {
    "no merge": {"ended": False, "temporal": False, "spatial": False},
    "pairs": {"ended": False},
    "ended": {"temporal": False, "spatial": False},
    "both": {},
}
READY = 30.0  #: seconds of a switch that the author's simulator adds to its measured part
PROFILED = {"roberta": 75.64, "vit": 24.63}  #: 002 Table 3.8, Task2Vec
ROUND, OUR_ROUND = 300.0, 120.0
#: Times longer than Ymir's, 002 ch. 3.5.2: on 32 GPUs, and in simulations of 240.
THESIS = "1.11-4.34 on 32 GPUs, 1.66-22.3 simulated on 240"
QUICK = 40  #: jobs
Row = dict[str, Any]


class Case:
    """One workload on one kind of GPU."""

    def __init__(self, traces: Path, name: str, gpu_type: str, jobs: int | None, cluster: Cluster) -> None:
        self.name, self.cluster = name, cluster
        self.trace = read(traces / "titan" / "traces" / f"{name}.csv", gpu_type=gpu_type)
        if jobs is not None:
            self.trace.jobs = self.trace.jobs[:jobs]
        recipe = (self.trace.recipe or {}).get("fine_tuning")
        if not recipe:
            raise SystemExit(f"--traces: {traces / 'titan'} has no transfer_curves.csv.gz and fminfo/ beside its workloads")
        self.switch = READY + max(recipe["switch"].values())
        self.backbone = next(iter(recipe["switch"]))

    def workload(self, *, best_rate: bool = False) -> Workload:
        return to_workload(_at_best_rate(self.trace) if best_rate else self.trace)

    def run(self, work: Workload, policy: str, *, rounds: bool, profiled: bool = False, **config: Any) -> tuple[float, float]:
        """Mean completion time, and that of the last hundredth (s)."""
        interval = None
        if policy == "ymir":
            config["round"] = OUR_ROUND if rounds else 0.0
        elif policy in ELASTIC:
            config["round"] = ROUND if rounds else 0.0
            interval = ROUND if rounds else None
        elif rounds:
            interval = ROUND
        first = self.switch + (next((cost for kind, cost in PROFILED.items() if self.backbone.startswith(kind)), 0.0) if profiled else 0.0)
        costs = Costs(cold_start=first, warm_start=first, resume=self.switch)
        result = simulate(work, self.cluster, registry.create(policy, config), Options(costs=costs, interval=interval))
        took = result.fates.ended - work.submitted
        return float(took.mean()), float(np.percentile(took, 99))

    def compared(self, *, rounds: bool = False, best_rate: bool = False) -> Row:
        """Everybody's mean and tail in one setting."""
        where = f"{self.name} {'in rounds' if rounds else 'at events'}{', best rates' if best_rate else ''}"
        work, found = self.workload(best_rate=best_rate), {}
        for name in RIVALS:
            progress(f"{where}: {name}")
            found[name] = self.run(work, name, rounds=rounds)
        for label, config in OURS.items():
            progress(f"{where}: ymir, {label}")
            found[label] = self.run(work, "ymir", rounds=rounds, **config)
        found["profiled"] = self.run(work, "ymir", rounds=rounds, profiled=True)
        return {
            "workload": self.name,
            "jobs": len(work),
            "mean": {k: v[0] for k, v in found.items()},
            "p99": {k: v[1] for k, v in found.items()},
        }

    def same_data(self) -> Row:
        progress(f"{self.name}: jobs of the same data")
        work = self.workload()
        mean, tail = self.run(work, "ymir", rounds=False, recurring=True)
        return {"workload": self.name, "mean": mean, "p99": tail}


def _at_best_rate(trace: Trace) -> Trace:
    """The same jobs, each with the setting of the author's sweep at which its task is at the target soonest."""
    trace = copy.deepcopy(trace)
    assert trace.recipe is not None
    share = {}
    for kind in trace.recipe["fine_tuning"]["kinds"]:
        share[kind["model"]] = kind["fewest_epochs"] / kind["epochs"]
        kind["epochs"] = kind["fewest_epochs"]
    for job in trace.jobs:
        job.duration *= share[job.model or ""]
    return trace


def seconds(rows: Sequence[Row], key: str) -> list[Row]:
    return [{"workload": row["workload"], "jobs": row["jobs"], **{name: round(took, 1) for name, took in row[key].items()}} for row in rows]


def ratios(rows: Sequence[Row]) -> list[Row]:
    """Mean completion times of the others over Ymir's: the best of ``ended`` and ``both``, and its own without merges."""
    return [_ratio(row["workload"], row["mean"]) for row in rows]


def _ratio(workload: str, mean: Mapping[str, float]) -> Row:
    ours = min(mean["ended"], mean["both"])
    best = min(mean[name] for name in RIVALS)
    return {
        "workload": workload, **{name: mean[name] / ours for name in RIVALS}, "strongest": best / ours, "no merge": mean["no merge"] / ours,
        "profiled: strongest": best / mean["profiled"], "thesis": THESIS,
    }  # fmt: skip


def cases(options: argparse.Namespace) -> Iterator[Case]:
    if not options.traces or not (Path(options.traces) / "titan" / "traces").is_dir():
        raise SystemExit(
            f"--traces: {options.traces or '(none)'} has no titan/traces/, with the workloads of Titan's author; name its directory"
        )
    names = options.workloads or (WORKLOADS[:1] if options.quick else WORKLOADS)
    for name in names:
        yield Case(Path(options.traces), name, options.gpu_type, QUICK if options.quick else None, Cluster.parse(options.nodes))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--traces", default=os.environ.get("STOKER_TRACES", ""), help="directory that has titan/ (default: $STOKER_TRACES)")
    parser.add_argument("--workloads", nargs="+", metavar="NAME", help="names of files in titan/traces (default: all twelve)")
    parser.add_argument("--gpu-type", default="V100", help="whose step times: V100 or A100 (default: V100)")
    parser.add_argument("--nodes", default="8x4", help="the cluster (default: 8x4, the author's)")
    parser.add_argument("--parts", nargs="+", choices=("events", "rounds", "control", "same"), help="of the comparison (default: all)")
    parser.add_argument("--quick", action="store_true", help=f"the first {QUICK} jobs of one workload, at events, with the control")
    options = parser.parse_args()
    parts = options.parts or (("events", "control") if options.quick else ("events", "rounds", "control", "same"))
    began, found = machine(), {part: list[Row]() for part in parts}
    for case in cases(options):
        for part in parts:
            row = case.same_data() if part == "same" else case.compared(rounds=part == "rounds", best_rate=part == "control")
            found[part].append(row)
    tables: dict[str, list[Row]] = {}
    for part, title in (("control", "control: the best learning rate of each task"), ("events", "at events"), ("rounds", "in rounds")):
        if rows := found.get(part):
            tables[f"mean completion time (s), {title}"] = seconds(rows, "mean")
            tables[f"times longer than Ymir, {title}"] = ratios(rows)
            tables[f"99 % completion time (s), {title}"] = seconds(rows, "p99")
    if rows := found.get("same"):
        tables["from jobs of the same data too (s), which no other table has"] = rows
    show(options, began, tables)


if __name__ == "__main__":
    main()

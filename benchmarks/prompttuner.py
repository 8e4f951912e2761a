"""PromptTuner beside INFless and ElasticFlow: broken deadlines and what they cost, simulated.

    python benchmarks/prompttuner.py [--seeds 5] [--gpus 32] [--json]

Set up as 002 ch. 4.6.1 is, as far as that says: the requests of table 4.6 for three LLMs within 20 minutes, on 32 GPUs of 4 nodes; a
deadline is the duration times S, and the time of a cold start. Its trace is not public. So here requests come with peaks by the minute, the
highest about five times the mean (fig. 4.2b); durations are log-normal around a minute, on 1, 2 or 4 GPUs; a cold start takes 30 s (tens of
seconds in 4.3.2; 37 to 41 % of the time in 4.2.2), a warm one half a second; throughput is nearly linear in GPUs (fig. 4.2a).

All have the same jobs and estimates. *INFless* keeps instances warm for 60, 300 or 600 s, whichever breaks the fewest deadlines.
*ElasticFlow* works in rounds of a minute, as its authors have it (in shorter ones it breaks more deadlines: each change of GPUs costs
a cold start), knows what a start costs, and may start at one GPU. Cost is GPU-hours: those that jobs hold, and
of PromptTuner and INFless those that GPUs are warm or load without a job; ElasticFlow pays for the whole cluster, as in 4.3.1.
± is the standard deviation of the seeds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from common import arguments, machine, progress, show
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.results.figures import extent, figures
from stoker.engine.sim.run_options import Costs, Errors, Options
from stoker.engine.sim.simulator import simulate
from stoker.engine.sim.workload import Workload, make_workload
from stoker.policies import registry
from stoker.policies.contract import Demand, Plan, Profile, View
from stoker.policies.estimate.throughput import Throughput

#: Requests of each LLM (002 table 4.6), and the share of its time that an iteration communicates with one more GPU (fig. 4.2a: up to 5 %).
LOADS = {"low": (41, 55, 42), "medium": (77, 71, 65), "high": (99, 85, 76)}
LLMS = {"gpt2-base": 0.007, "gpt2-large": 0.003, "vicuna-7b": 0.001}
SECONDS = 1200
COLD, WARM = 30.5, 0.5
COSTS = Costs(cold_start=COLD, warm_start=WARM, resume=COLD)
KEEP_ALIVE = (60, 300, 600)
BANK = 1.28  #: times fewer iterations that the Prompt Bank brings at least (002 ch. 4.6.3.5)
SETTINGS: Mapping[str, dict[str, Any]] = {
    "prompttuner": {"loading": COLD - WARM},
    "infless": {"startup": COLD},
    "elasticflow": {"overhead": COLD},
}
#: Of 002 figs 4.7 and the abstract: times more violations, and times the cost, at most.
THESIS = {"infless": (4.0, 1.6), "elasticflow": (7.9, 4.5)}
Row = dict[str, Any]


def workload(load: str, emergence: float, seed: int, slower: float = 1.0) -> Workload:
    """``emergence``: S of 002 ch. 4.6.1; ``slower``: times more work than what deadlines were made for."""
    rng = np.random.default_rng([seed, *map(ord, load)])
    profiles = [Profile(name, Throughput.of_iteration(1.0, share, share, most=8)) for name, share in LLMS.items()]
    jobs: list[tuple[float, float, float, str]] = []
    for profile, count in zip(profiles, LOADS[load], strict=True):
        peaks = rng.gamma(0.7, size=SECONDS // 60)
        minutes = rng.choice(len(peaks), count, p=peaks / peaks.sum())
        for at in minutes * 60.0 + rng.uniform(0, 60, count):
            gpus, duration = int(rng.choice([1, 2, 4], p=[0.5, 0.3, 0.2])), float(np.clip(rng.lognormal(np.log(60), 0.6), 10, 600))
            assert profile.throughput is not None
            alone = duration * profile.throughput.rate(gpus) / profile.throughput.rate(1)
            jobs.append((float(at), alone * slower, float(at) + duration * emergence + COLD, profile.name))
    submitted, durations, deadlines, models = zip(*jobs, strict=True)
    n = len(jobs)
    return make_workload(
        f"{load}, S = {emergence:g}", submitted, durations, [1] * n, gpus_max=[8] * n, models=models, profiles=profiles,
        backbone=models, demand=[Demand.STRICT] * n, tiers=[[(deadline, 100.0)] for deadline in deadlines],
    )  # fmt: skip


@dataclass
class Timed:
    """A policy whose decisions are timed."""

    policy: Any
    slowest: float = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def plan(self, view: View) -> Plan:
        began = time.perf_counter()
        plan: Plan = self.policy.plan(view)
        self.slowest = max(self.slowest, time.perf_counter() - began)
        return plan


def measured(jobs: Workload, name: str, cluster: Cluster, error: float = 0.0, seed: int = 0, **config: float) -> Row:
    """One run."""
    policy = Timed(registry.create(name, {**SETTINGS[name], **config}))
    result = simulate(jobs, cluster, policy, Options(costs=COSTS, errors=Errors(gaussian=error), seed=seed))
    found = figures(jobs, result, cluster)
    span = extent(jobs, result.fates)
    assert span is not None
    whole = cluster.total * (span[1] - span[0])
    return {
        "violations": 100.0 * (found.slo_violations or 0.0),
        "cost": (whole if name == "elasticflow" else float(result.fates.gpu_time.sum()) + result.warm_idle) / 3600,
        "plan_ms": 1000 * result.plan_seconds / max(result.decisions, 1),
        "plan_ms_max": 1000 * policy.slowest,
    }


class Study:
    def __init__(self, cluster: Cluster, seeds: int) -> None:
        self.cluster, self.seeds = cluster, range(seeds)

    def mean(self, name: str, load: str, emergence: float, *, slower: float = 1.0, error: float = 0.0, **config: float) -> Row:
        runs = [
            measured(workload(load, emergence, seed, slower), name, self.cluster, error, seed, **config) for seed in self.seeds
        ]  # fmt: skip
        row = {key: float(np.mean([run[key] for run in runs])) for key in ("violations", "cost", "plan_ms")}
        return row | {
            "violations_sd": float(np.std([run["violations"] for run in runs])),
            "plan_ms_max": max(run["plan_ms_max"] for run in runs),
        }

    def infless(self, load: str, emergence: float) -> Row:
        """At the window that breaks the fewest deadlines."""
        rows = [self.mean("infless", load, emergence, keep_alive=window) | {"keep_alive": window} for window in KEEP_ALIVE]
        return min(rows, key=lambda row: (row["violations"], row["cost"]))

    def compared(self, load: str, emergence: float) -> list[Row]:
        """The three of one setting, each beside PromptTuner."""
        progress(f"{load} load, S = {emergence:g}")
        ours = self.mean("prompttuner", load, emergence)
        rows = {"prompttuner": ours, "infless": self.infless(load, emergence), "elasticflow": self.mean("elasticflow", load, emergence)}
        return [
            {"load": load, "S": emergence, "policy": name, **row} | self._beside(name, row, ours) for name, row in rows.items()
        ]  # fmt: skip

    def _beside(self, name: str, row: Row, ours: Row) -> Row:
        times = row["violations"] / ours["violations"] if ours["violations"] else None
        thesis = THESIS.get(name)
        return {
            "times_violations": times if thesis else None, "times_cost": row["cost"] / ours["cost"] if thesis else None,
            "thesis": f"up to {thesis[0]:g} ×, {thesis[1]:g} ×" if thesis else "",
        }  # fmt: skip

    def parts(self) -> list[Row]:
        """What each part brings, at medium load and S = 1."""
        rows = {
            "as it is": {},
            "GPUs leave at once": {"window": 0.0},
            "without the bank": {"slower": BANK},
            **{f"window {window} s": {"window": float(window)} for window in (10, 30, 120, 300)},
            **{f"estimates wrong by {error:.0%}": {"error": error} for error in (0.2, 0.4, 0.8)},
        }  # fmt: skip
        found = []
        for what, config in rows.items():
            progress(what)
            found.append({"what": what, **self.mean("prompttuner", "medium", 1.0, **config)})
        return found


def shown(rows: Sequence[Row], *names: str) -> list[Row]:
    of = {
        "violations": lambda row: f"{row['violations']:.1f} ± {row['violations_sd']:.1f}",
        "cost": lambda row: f"{row['cost']:.2f}",
        "times_violations": lambda row: "" if row["times_violations"] is None else f"{row['times_violations']:.2f}",
        "times_cost": lambda row: "" if row["times_cost"] is None else f"{row['times_cost']:.2f}",
        "plan_ms": lambda row: f"{row['plan_ms']:.2f}, {row['plan_ms_max']:.1f}",
    }
    return [{name: of[name](row) if name in of else row[name] for name in names} for row in rows]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="workloads of each kind")
    parser.add_argument("--gpus", type=int, default=32, help="of nodes of 8")
    options = parser.parse_args()
    study = Study(Cluster.parse(f"{options.gpus // 8}x8"), options.seeds)
    began = machine()
    by_load = [row for load in LOADS for row in study.compared(load, 1.0)]
    by_emergence = [row for emergence in (0.5, 1.5) for row in study.compared("medium", emergence)]
    what = f"SIMULATED, {options.gpus} GPUs, {options.seeds} workloads each"
    names = ("load", "S", "policy", "violations", "cost", "times_violations", "times_cost", "thesis", "plan_ms")
    tables = {
        f"{what}: violations in %, cost in GPU-hours, plan() mean and most in ms": shown([*by_load, *by_emergence], *names),
        f"{what}: parts of PromptTuner, medium load, S = 1": shown(study.parts(), "what", "violations", "cost"),
    }
    show(options, began, tables)


if __name__ == "__main__":
    main()

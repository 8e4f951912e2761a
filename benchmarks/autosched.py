"""AutoSched beside what it competes with, simulated: mean completion time over that of the hourly oracle (002 ch. 6.6).

    python benchmarks/autosched.py --trace FILE [--policy tiresias] [--nodes 6x8] [--windows 5] [--trials 40] [--jobs 2] [--results FILE]

Each window is a day of the trace behind a day before it, thinned so that the cluster is asked for ``--load`` times what it has; jobs larger
than it are left out. All start from the same state, at the beginning of the window, and count the jobs that are submitted within it:

- default; best constant in hindsight, of ``--trials`` random configurations, by simulating the window itself; the constant that was best
  on the day before;
- SelfTune: BlueFin alone, each hour, on the hour that has passed, replayed on an empty cluster;
- random: as many random configurations each hour, from the present state with expected arrivals;
- AutoSched, and AutoSched without the causal model;
- oracle: AutoSched's search, each hour, that knows the arrivals of the next hour. It is no upper bound.

``--results`` keeps each run as a line of JSON, and leaves out what is there: a run that was ended goes on. Intervals are 95 % of means
over windows (bootstrap). Estimates of durations are exact unless ``--unknown`` says which share is not known.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, machine, progress, show
from stoker.engine.autosched.moment_of_trace import history_of, situation_of
from stoker.engine.autosched.search_process import Answer, Request
from stoker.engine.autosched.simulated_tuning import SimulatedTuning
from stoker.engine.autosched.situation import Situation, aggregated, measure
from stoker.engine.cli.trace_source import read_file
from stoker.engine.forecast.ongoing import OutOfTime
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.run_options import Errors, Options
from stoker.engine.sim.simulation_error import SimulationError
from stoker.engine.sim.simulator import Simulation, simulate
from stoker.engine.sim.workload import Workload, make_workload
from stoker.engine.traces.trace import to_workload
from stoker.policies import registry
from stoker.policies.autosched.causal_model import random_configuration
from stoker.policies.autosched.search import Found, Trial, reward_of
from stoker.policies.autosched.search_space import space_of

DAY, HOUR = 86400.0, 3600.0
WAYS = ("default", "hindsight", "past", "selftune", "random", "autosched", "no causal", "oracle")


def windows(whole: Workload, cluster: Cluster, count: int, load: float) -> list[Workload]:
    """Two days each, spread over the trace, thinned to the load by one seed."""
    last = float(whole.submitted[-1]) - 2 * DAY
    found = []
    for number, begin in enumerate(np.linspace(0.0, max(last, 0.0), count).tolist()):
        rows = np.flatnonzero((whole.submitted >= begin) & (whole.submitted < begin + 2 * DAY) & (whole.gpus_min <= cluster.total // 2))
        rows = rows[whole.duration[rows] > 0]
        asked = float((whole.duration[rows] * whole.gpus_min[rows]).sum()) / (cluster.total * 2 * DAY)
        kept = rows[np.random.default_rng([7, number]).random(len(rows)) < min(load / max(asked, 1e-9), 1.0)]
        users = [whole.users[code] for code in whole.user[kept].tolist()]
        found.append(
            make_workload(f"window {number}", whole.submitted[kept] - begin, whole.duration[kept], whole.gpus_min[kept], users=users)
        )
    return found


def oracle(simulation: Simulation, policy: str, options: Options) -> Situation:
    """What is known, with the arrivals that will come."""
    situation, workload, now = situation_of(simulation, policy, options)[0], simulation.workload, simulation.now
    rows = np.flatnonzero((workload.submitted > now) & (workload.submitted <= now + HOUR))
    users = [workload.users[code] for code in workload.user[rows].tolist()]
    coming = make_workload("ahead", workload.submitted[rows], workload.duration[rows], workload.gpus_min[rows], users=users)
    return dataclasses.replace(situation, coming=coming)


def last_hour(simulation: Simulation, policy: str, options: Options) -> Situation:
    """The arrivals of the hour that has passed, on an empty cluster: what SelfTune searches on."""
    situation, history, now = situation_of(simulation, policy, options)[0], history_of(simulation), simulation.now
    rows = np.flatnonzero(history.submitted > now - HOUR)
    durations = np.maximum(simulation.workload.duration[: len(history)][rows], 1.0)
    users = [history.user[row] for row in rows.tolist()]
    coming = make_workload("past", history.submitted[rows] + HOUR, durations, history.gpus[rows], users=users)
    empty = Simulation(make_workload("", [], [], [], users=[]), Cluster(tuple(np.bincount(situation.view.gpus.node).tolist())),
                       registry.create(policy, {}), options, None)  # fmt: skip
    empty.agenda.now = now
    view = dataclasses.replace(situation.view, jobs=empty.view().jobs.plain())
    return dataclasses.replace(situation, view=view, left=np.zeros(0), coming=coming, memory=None)


def at_random(request: Request) -> Answer:
    """As many configurations as a search, drawn evenly."""
    began, policy = time.monotonic(), request.situation.policy
    in_force = dataclasses.asdict(registry.create(policy, request.in_force).config)
    space, rng = space_of(registry.load(policy).Config, in_force), np.random.default_rng(request.seed)
    tried = aggregated(request.situation)
    reference = measure(tried, registry.create(policy, in_force))
    found = Found(in_force, in_force, 1.0, reference, reference, [Trial(in_force, "simulated", 1.0)])
    for _ in range(1, request.trials):
        config = random_configuration(space, in_force, rng)
        try:
            figures = measure(tried, registry.create(policy, config), 2.0)
        except (OutOfTime, SimulationError):
            continue
        reward = reward_of(request.objective, reference, figures)
        found.trials.append(Trial(config, "simulated", reward))
        if reward > found.gain:
            found.best, found.gain, found.figures = config, reward, figures
    found.seconds = time.monotonic() - began
    return Answer(found, None, None, "")


def completion(workload: Workload, ended: np.ndarray, begin: float, end: float) -> float:
    """Mean completion time of the jobs that were submitted in between."""
    rows = (workload.submitted >= begin) & (workload.submitted < end) & ~np.isnan(ended)
    return float((ended - workload.submitted)[rows].mean())


def constant(workload: Workload, cluster: Cluster, asked: argparse.Namespace, options: Options, begin: float, end: float) -> float:
    """JCT of the window under the random configuration that is best between ``begin`` and ``end``."""
    kind = registry.load(asked.policy).Config
    in_force = dataclasses.asdict(kind())
    space, rng = space_of(kind, in_force), np.random.default_rng(3)
    tried = [in_force, *(random_configuration(space, in_force, rng) for _ in range(asked.trials - 1))]
    found = []
    for config in tried:
        try:
            ended = simulate(workload, cluster, registry.create(asked.policy, config), options).fates.ended
            found.append((completion(workload, ended, begin, end), completion(workload, ended, DAY, 2 * DAY)))
        except SimulationError:
            continue
    return min(found)[1]


def run(task: tuple[int, str, Workload, argparse.Namespace]) -> Mapping[str, Any]:
    number, way, workload, asked = task
    cluster, options = Cluster.parse(asked.nodes), Options(errors=Errors(unknown=asked.unknown))
    began, cpu = time.monotonic(), time.process_time()
    turns: list[Any] = []
    if way in ("hindsight", "past"):
        jct = constant(workload, cluster, asked, options, *((DAY, 2 * DAY) if way == "hindsight" else (0.0, DAY)))
    else:
        control = None
        if way != "default":
            control = SimulatedTuning(asked.policy, {}, options, trials=asked.trials, next_at=DAY, bursts=way in ("autosched", "no causal"),
                                      causal=way in ("autosched", "oracle"))  # fmt: skip
            if way in ("oracle", "selftune"):
                look = oracle if way == "oracle" else last_hour
                control.looks = lambda simulation: look(simulation, asked.policy, options)
            if way == "random":
                control.searches = at_random
            turns = control.turns
        result = simulate(workload, cluster, registry.create(asked.policy, {}), options, control=control)
        jct = completion(workload, result.fates.ended, DAY, 2 * DAY)
    return {
        "window": number, "way": way, "jct": jct, "jobs": len(workload), "searches": len(turns),
        "simulated": sum(turn.simulated for turn in turns), "rejected": sum(turn.rejected for turn in turns),
        "search seconds": sum(turn.seconds for turn in turns), "cpu": time.process_time() - cpu, "seconds": time.monotonic() - began,
        "trials": asked.trials, "policy": asked.policy, "nodes": asked.nodes, "load": asked.load,
    }  # fmt: skip


def interval(values: np.ndarray) -> str:
    """The mean, and 95 % of bootstrapped means."""
    means = np.random.default_rng(0).choice(values, (2000, len(values))).mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return f"{values.mean():.3f} ({low:.3f} to {high:.3f})"


def table(rows: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """A row a way: JCT over the oracle's of the same window."""
    best = {row["window"]: row["jct"] for row in rows if row["way"] == "oracle"}
    shown = []
    for way in WAYS:
        own = [row for row in rows if row["way"] == way and row["window"] in best]
        if own:
            ratio = np.array([row["jct"] / best[row["window"]] for row in own])
            shown.append({
                "way": way, "JCT / oracle": interval(ratio), "range": f"{ratio.min():.3f} to {ratio.max():.3f}", "windows": len(own),
                "simulated": sum(row["simulated"] for row in own), "rejected": sum(row["rejected"] for row in own),
                "search s": round(sum(row["search seconds"] for row in own), 1),
            })  # fmt: skip
    return shown


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--trace", help="a trace file, such as Philly's; default: one that is made, of --windows x 2 days")
    parser.add_argument("--policy", default="tiresias")
    parser.add_argument("--nodes", default="6x8")
    parser.add_argument("--load", type=float, default=1.1)
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--unknown", type=float, default=0.0)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--results", type=Path)
    asked = parser.parse_args(given)
    began = machine()
    whole = to_workload(read_file(Path(asked.trace)), ()) if asked.trace else made(asked.windows)
    rows = [json.loads(line) for line in asked.results.read_text().splitlines()] if asked.results and asked.results.exists() else []
    done = {(row["window"], row["way"]) for row in rows}
    tasks = [
        (number, way, window, asked)
        for number, window in enumerate(windows(whole, Cluster.parse(asked.nodes), asked.windows, asked.load))
        for way in asked.ways
        if (number, way) not in done
    ]
    with multiprocessing.get_context("spawn").Pool(asked.jobs) as pool:
        for row in pool.imap_unordered(run, tasks):
            progress(f"window {row['window']}, {row['way']}: JCT {row['jct']:.0f} s, took {row['seconds']:.0f} s")
            rows.append(row)
            if asked.results:
                with asked.results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    show(asked, began, {f"{asked.policy} on {asked.nodes}, simulated; T = {asked.trials}": table(rows), "runs": rows})


def made(count: int) -> Workload:
    """A workload with a daily wave, where no trace is given."""
    rng = np.random.default_rng(0)
    moments = np.sort(rng.uniform(0.0, 2 * DAY * count, 500 * 2 * count))
    kept = rng.random(len(moments)) < 0.5 + 0.4 * np.sin(2 * np.pi * moments / DAY)
    n = int(kept.sum())
    users = [f"u{code}" for code in rng.integers(0, 12, n).tolist()]
    return make_workload("made", moments[kept], rng.lognormal(7.6, 1.6, n), rng.choice([1, 1, 1, 2, 4, 8], n), users=users)


if __name__ == "__main__":
    main()

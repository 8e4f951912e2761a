"""AutoSched beside what it competes with, simulated: completion times and rho over those of the hourly oracle (002 ch. 6.6).

    python benchmarks/autosched.py --trace FILE [--policy tiresias] [--nodes 6x8] [--windows 5] [--full] [--results FILE]

Each window is a day of the trace (``--full``: three) behind a day before it, thinned so that the jobs ask within this time for ``--load``
times what the cluster has; jobs larger than half of it are left out, and days with too few jobs, or behind such a day. All ways start at
the beginning of the window from the same state, with the default in force, and count the jobs that are submitted within it, and once more
with those that were at hand when it began:

- default; hindsight: the best constant of ``--trials`` random ones, by simulating the window itself; past: the one best on the day before;
- selftune: BlueFin alone, each hour, on the hour that has passed, replayed on an empty cluster; selftune+: the same from the present state.
  Both without even draws at first, and without what was best before;
- random: as many random configurations each hour, from the present state with expected arrivals;
- autosched, with the causal model learnt from the day before; no causal: without it; no aggregator: with it, on the jobs themselves;
  shuffled: its labels shuffled before it is learnt;
- oracle: the search without causal model, each hour, that knows the arrivals of the next hour and how long all jobs take. It is no upper
  bound.

Then, at moments of the default's run, what each part of a search is worth at equal trials (``--parts``, moments a window), beside random
ones and the best of an exhaustive grid. Days are few, and each is one path of many: one other configuration at noon, and all that follows
is another. ``--seeds`` makes as many runs of a window with each way that draws, of which the mean counts. ``--objective rho`` has all ways
search for that, as is Themis' case in the thesis (6.6.4).

``--results`` keeps each run as a line of JSON, and leaves out what is there: a run that was ended goes on. Intervals are 95 % of means
over windows (Student). Estimates of durations are exact unless ``--unknown`` says which share is not known. How many windows and trials
fit in half an hour on two cores depends on the policy (`FIT`): a trial of Themis takes thirty times as long as one of Tiresias, as each of
its leases ends in a decision. With so few trials no causal model can prove itself, so ways that differ by it alone are left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, machine, progress, show
from learnt_before import Past, learnt_from
from stoker.engine.autosched import search_process
from stoker.engine.autosched.moment_of_trace import history_of, situation_of, stand_at
from stoker.engine.autosched.search_process import SearchRequest, SearchResult, Trials, find
from stoker.engine.autosched.simulated_tuning import SimulatedTuning
from stoker.engine.autosched.situation import DECISIONS_FACTOR, Situation, aggregated, measure
from stoker.engine.cli.tracing.trace_source import read_file
from stoker.engine.forecast.ongoing import OutOfTime
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.results.figures import rho_of
from stoker.engine.sim.results.result import Result
from stoker.engine.sim.run_options import Errors, Options
from stoker.engine.sim.simulation_error import SimulationError
from stoker.engine.sim.simulator import Simulation, simulate
from stoker.engine.sim.workload import Workload, make_workload
from stoker.engine.traces.trace import to_workload
from stoker.policies import registry
from stoker.policies.autosched.causal_model import CausalModel, NoModel
from stoker.policies.autosched.search import MIN_JUDGED_TRIALS, BestFound, NotMeasured, Trial, reward_of
from stoker.policies.autosched.search_space import space_of

DAY, HOUR = 86400.0, 3600.0
WAYS = ("default", "oracle", "autosched", "no causal", "no aggregator", "random", "selftune", "selftune+", "past", "hindsight", "shuffled")
LEAST_JOBS = 120  #: on the day that is measured, and on the one before from which is learnt, before they are thinned
#: By policy: windows, trials of a search, share of durations that nobody knows, moments a window for parts of a search.
FIT = {"tiresias": (5, 40, 0.0, 2), "themis": (2, 8, 0.0, 1), "lucid": (2, 40, 1.0, 2)}
CAUSAL = ("no causal", "shuffled")  #: ways that are autosched where no model may reject
#: Of the exhaustive grid.
VALUES = 4
LARGEST_GRID = 300
UNBOUNDED = 3600.0  #: seconds of a trial: trials are bounded by decisions, so that a busy machine changes no figure
DRAWS = ("oracle", "autosched", "no causal", "no aggregator", "random", "shuffled")  #: ways that ``--seeds`` repeats
CONSTANTS = "constants"  #: past and hindsight, of the same simulations


def windows(whole: Workload, cluster: Cluster, count: int, load: float, days_each: int = 1) -> list[Workload]:
    """A day and those that are measured, spread over the trace, thinned to the load by one seed."""
    span = (1 + days_each) * DAY
    able = (whole.gpus_min <= cluster.total // 2) & (whole.duration > 0)
    days = np.arange(max(int((whole.submitted[-1] - whole.submitted[0]) // DAY) - days_each + 1, 2)) * DAY + whole.submitted[0]
    arrivals = [int((able & (whole.submitted >= day + DAY) & (whole.submitted < day + 2 * DAY)).sum()) for day in days.tolist()]
    before = [int((able & (whole.submitted >= day) & (whole.submitted < day + DAY)).sum()) for day in days.tolist()]
    busy = days[np.minimum(arrivals, before) >= LEAST_JOBS]
    busy = busy if len(busy) else days[:1]
    begins = busy[np.unique(np.linspace(0, len(busy) - 1, min(count, len(busy))).round().astype(int))]
    found = []
    for number, begin in enumerate(begins.tolist()):
        rows = np.flatnonzero(able & (whole.submitted >= begin) & (whole.submitted < begin + span))
        within = np.minimum(whole.duration[rows], begin + span - whole.submitted[rows])  # of days-long jobs the rest plays no part here
        asked = float((within * whole.gpus_min[rows]).sum()) / (cluster.total * span)
        kept = rows[np.random.default_rng([7, number]).random(len(rows)) < min(load / max(asked, 1e-9), 1.0)]
        users = [whole.users[code] for code in whole.user[kept].tolist()]
        found.append(
            make_workload(f"window {number}", whole.submitted[kept] - begin, whole.duration[kept], whole.gpus_min[kept], users=users)
        )
    return found


def oracle(simulation: Simulation, policy: str, options: Options) -> Situation:
    """What is known, with the arrivals that will come, and what all jobs have left in truth; a trial's policy is told no more of it."""
    situation, workload, now = situation_of(simulation, policy, options)[0], simulation.workload, simulation.now
    jobs = situation.view.jobs
    left = np.where(np.isnan(jobs.remaining), np.maximum(workload.duration[jobs.id] - jobs.run_time, 1e-3), situation.left)
    rows = np.flatnonzero((workload.submitted > now) & (workload.submitted <= now + HOUR))
    users = [workload.users[code] for code in workload.user[rows].tolist()]
    coming = make_workload("ahead", workload.submitted[rows], workload.duration[rows], workload.gpus_min[rows], users=users)
    return dataclasses.replace(situation, left=left, coming=coming)


def last_hour(simulation: Simulation, policy: str, options: Options) -> Situation:
    """The present state, and the arrivals of the hour that has passed come again."""
    situation, history, now = situation_of(simulation, policy, options)[0], history_of(simulation), simulation.now
    rows = np.flatnonzero(history.submitted > now - HOUR)
    durations = np.maximum(simulation.workload.duration[: len(history)][rows], 1.0)
    users = [history.user[row] for row in rows.tolist()]
    return dataclasses.replace(
        situation, coming=make_workload("past", history.submitted[rows] + HOUR, durations, history.gpus[rows], users=users)
    )


def replayed(simulation: Simulation, policy: str, options: Options) -> Situation:
    """The same on an empty cluster: what SelfTune searches on."""
    situation = last_hour(simulation, policy, options)
    empty = Simulation(make_workload("", [], [], [], users=[]), Cluster(tuple(np.bincount(situation.view.gpus.node).tolist())),
                       registry.create(policy, {}), options, None)  # fmt: skip
    empty.agenda.now = simulation.now
    view = dataclasses.replace(situation.view, jobs=empty.view().jobs.plain())
    return dataclasses.replace(situation, view=view, left=np.zeros(0), memory=None)


def at_random(request: SearchRequest) -> SearchResult:
    """As many configurations as a search, drawn evenly."""
    began, policy = time.monotonic(), request.situation.policy
    in_force, space, rng = request.in_force, request.space, np.random.default_rng(request.seed)
    trials = Trials(policy, aggregated(request.situation))
    reference = trials.measure(in_force)
    found = BestFound(in_force, in_force, 1.0, reference, reference, [Trial(in_force, "simulated", 1.0)])
    for _ in range(1, request.trials):
        config = space.project(space.drawn(rng), otherwise=in_force)
        try:
            figures = trials.measure(config)
        except NotMeasured:
            continue
        reward = reward_of(request.objective, reference, figures)
        found.trials.append(Trial(config, "simulated", reward))
        if reward > found.gain:
            found.best, found.gain, found.figures = config, reward, figures
    found.seconds = time.monotonic() - began
    return SearchResult(found)


def over(asked: argparse.Namespace) -> float:
    """When a window is over."""
    return (1 + asked.days) * DAY


def figures_of(workload: Workload, cluster: Cluster, result: Result, begin: float, end: float) -> tuple[float, float, float]:
    """Of the jobs that were submitted in between the mean completion time and the mean rho; and the mean completion time with those that
    were at hand when it began, whose seconds before that no way can change."""
    ended = result.fates.ended
    rows = (workload.submitted >= begin) & (workload.submitted < end) & ~np.isnan(ended)
    there = (workload.submitted < end) & (ended > begin)
    rho = rho_of(workload, result.fates, cluster)[rows]
    whole = (ended - np.maximum(workload.submitted, begin))[there]
    return float((ended - workload.submitted)[rows].mean()), float(np.nanmean(rho)), float(whole.mean())


def constants(workload: Workload, cluster: Cluster, asked: argparse.Namespace, options: Options) -> dict[str, tuple[float, float, float]]:
    """Figures of the window under the random configuration that is best in it, and under the one that is best on the day before."""
    kind = registry.load(asked.policy).Config
    in_force = dataclasses.asdict(kind())
    space, rng = space_of(kind, in_force), np.random.default_rng(3)
    most = math.inf
    found: list[tuple[tuple[float, float, float], tuple[float, float, float]]] = []
    for number in range(asked.trials):
        config = space.project(space.drawn(rng), otherwise=in_force) if number else in_force
        try:
            result = simulate(workload, cluster, registry.create(asked.policy, config), options, control=Bound(most))
        except (SimulationError, OutOfTime):
            continue
        most = most if number else DECISIONS_FACTOR * result.decisions  # the first is the default
        found.append((figures_of(workload, cluster, result, 0.0, DAY), figures_of(workload, cluster, result, DAY, over(asked))))
    by = 1 if asked.objective == "rho" else 0
    return {"past": min(found, key=lambda pair: pair[0][by])[1], "hindsight": min(found, key=lambda pair: pair[1][by])[1]}


class Bound:
    """Ends a simulation whose jobs change places all the time."""

    def __init__(self, most: float) -> None:
        self.most, self.next_at = most, HOUR

    def act(self, simulation: Simulation) -> None:
        self.next_at = simulation.now + HOUR
        if simulation.decisions > self.most:
            raise OutOfTime


def learnt(workload: Workload, cluster: Cluster, asked: argparse.Namespace, options: Options, *, shuffled: bool) -> CausalModel | None:
    """From the day before; ``shuffled``: with what came of each configuration shuffled."""
    past = Past(workload, cluster, DAY, math.inf)
    try:
        model = learnt_from(past, asked.policy, {}, options, asked.objective)
        if not shuffled:
            model.fit()
            return model
        rows, samples = np.random.default_rng(1).permutation(len(model.samples)), model.samples
        return CausalModel.learnt(
            model.encoder.space, asked.objective, dataclasses.replace(samples, metrics=samples.metrics[rows], target=samples.target[rows])
        )
    except NoModel as error:
        progress(f"no causal model: {error}")
        return None


class WithinWindow(SimulatedTuning):
    """Searches no more when the window is over: what is in force then stays until its last job has ended, which may take weeks."""

    ends_at = 2 * DAY

    def act(self, simulation: Simulation) -> None:
        if simulation.now < self.ends_at:
            super().act(simulation)
        else:
            self.next_at = math.inf


def at_leisure(request: SearchRequest) -> SearchResult:
    """Bounded by trials and decisions, and not by seconds: what else the machine does is to change no figure."""
    return find(dataclasses.replace(request, seconds=math.inf))


def bluefin_alone(request: SearchRequest) -> SearchResult:
    """SelfTune: from the centre, without even draws, and without what was best before."""
    return find(dataclasses.replace(request, seconds=math.inf, spread=0.0, first=()))


def run(task: tuple[int, str, int, Workload, argparse.Namespace]) -> list[Mapping[str, Any]]:
    number, way, seed, workload, asked = task
    cluster, options = Cluster.parse(asked.nodes), Options(errors=Errors(unknown=asked.unknown))
    began, cpu, learnt_in = time.monotonic(), time.process_time(), 0.0
    search_process.MIN_TRIAL_CPU_SECONDS = UNBOUNDED
    turns: list[Any] = []
    if way == "parts":
        return [{"window": number, "way": way, "parts": parts(workload, cluster, asked, options), "seconds": time.monotonic() - began}]
    figures = {}
    if way == CONSTANTS:
        figures = constants(workload, cluster, asked, options)
    else:
        control = None
        if way != "default":
            causal = way in ("autosched", "no aggregator", "shuffled")
            control = WithinWindow(asked.policy, {}, options, asked.objective, trials=asked.trials, next_at=DAY, causal=causal, seed=seed,
                                      aggregate=way != "no aggregator", watches=causal or way == "no causal")  # fmt: skip
            control.ends_at = over(asked)
            if causal:
                control.model = learnt(workload, cluster, asked, options, shuffled=way == "shuffled")
                learnt_in = time.monotonic() - began
            control.searches = at_random if way == "random" else bluefin_alone if way.startswith("selftune") else at_leisure
            if way in LOOKS:
                control.looks = lambda simulation: LOOKS[way](simulation, asked.policy, options)
            turns = control.turns
        result = simulate(workload, cluster, registry.create(asked.policy, {}), options, control=control)
        figures = {way: figures_of(workload, cluster, result, DAY, over(asked))}
    return [{
        "window": number, "way": name, "seed": seed, "jct": jct, "rho": rho, "all jct": whole, "jobs": len(workload),
        "searches": len(turns),
        "simulated": sum(turn.simulated for turn in turns), "rejected": sum(turn.rejected for turn in turns),
        "search seconds": sum(turn.seconds for turn in turns), "learning": learnt_in, "cpu": time.process_time() - cpu,
        "seconds": time.monotonic() - began,
    } for name, (jct, rho, whole) in figures.items()]  # fmt: skip


LOOKS = {"oracle": oracle, "selftune": replayed, "selftune+": last_hour}


def parts(workload: Workload, cluster: Cluster, asked: argparse.Namespace, options: Options) -> list[Mapping[str, Any]]:
    """At moments of the window in the default's run: what searches with and without each part find and take, and an exhaustive grid."""
    model = learnt(workload, cluster, asked, options, shuffled=False)
    found: list[Mapping[str, Any]] = []
    for moment in (DAY + (np.arange(asked.parts) + 0.5) * DAY / max(asked.parts, 1)).tolist():
        situation = situation_of(stand_at(workload, cluster, asked.policy, {}, options, moment), asked.policy, options)[0]
        if not len(situation.view.jobs):
            continue
        request = SearchRequest.of(situation, {}, asked.objective, trials=asked.trials, seconds=math.inf)
        whole = dataclasses.replace(request, aggregate=False)
        for name, one in (
            ("both", dataclasses.replace(request, model=model)), ("no causal", request),
            ("no aggregator", dataclasses.replace(whole, model=model)), ("neither", whole), ("random", request),
        ):  # fmt: skip
            cpu, answer = time.process_time(), at_random(one) if name == "random" else find(one)
            spent = time.process_time() - cpu
            # What it found is measured on the jobs themselves, so that all are compared on the same.
            gain = true_gain(situation, asked, answer.found)
            found.append({"moment": moment, "part": name, "cpu": spent, "gain": gain, "simulated": answer.found.count("simulated")})
        found.append({"moment": moment, "part": "grid", **grid(situation, asked)})
    return found


def true_gain(situation: Situation, asked: argparse.Namespace, found: BestFound) -> float:
    before, after = (measure(situation, registry.create(asked.policy, config)) for config in (found.in_force, found.best))
    return reward_of(asked.objective, before, after)


def grid(situation: Situation, asked: argparse.Namespace) -> Mapping[str, Any]:
    """The best of all combinations of `VALUES` values a key, as far as there are no more than `LARGEST_GRID`; else of every so many."""
    kind = registry.load(asked.policy).Config
    in_force = dataclasses.asdict(kind())
    space = space_of(kind, in_force)
    values = [sorted({one.value(unit) for unit in np.linspace(0.1, 0.9, VALUES)}) for one in space.numbers]
    choices = [list(one.choices) for one in space.categories]
    names = [one.name for one in (*space.numbers, *space.categories)]
    unlike = {}
    for combination in itertools.product(*values, *choices):
        config = space.project({**in_force, **dict(zip(names, combination, strict=True))}, otherwise=in_force)
        unlike.setdefault(tuple(str(config[name]) for name in names), config)
    tried = list(unlike.values())[:: math.ceil(len(unlike) / LARGEST_GRID)]
    trials, best = Trials(asked.policy, situation), 1.0
    cpu, reference = time.process_time(), trials.measure(in_force)
    for config in tried:
        try:
            figures = trials.measure(config)
        except NotMeasured:
            continue
        best = max(best, reward_of(asked.objective, reference, figures))
    return {"cpu": time.process_time() - cpu, "gain": best, "simulated": len(tried)}


def interval(values: np.ndarray) -> str:
    """The mean, and half of its 95 % interval (Student)."""
    from scipy.stats import t  # of the extra 'autosched'

    half = f" ± {t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)):.2f}" if len(values) > 1 else ""
    return f"{values.mean():.3f}{half}"


def table(rows: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """A row a way: JCT and rho over the oracle's of the same window."""

    def mean(way: str, name: str) -> dict[int, float]:
        own = [row for row in rows if row["way"] == way]
        return {window: float(np.mean([row[name] for row in own if row["window"] == window])) for window in {row["window"] for row in own}}

    best, shown = {name: mean("oracle", name) for name in ("jct", "rho", "all jct")}, []
    for way in WAYS:
        own = [row for row in rows if row["way"] == way and row["window"] in best["jct"]]
        if own:
            ratio, rho, whole = (
                np.array([value / best[name][window] for window, value in sorted(mean(way, name).items()) if window in best[name]])
                for name in ("jct", "rho", "all jct")
            )
            shown.append({
                "way": way, "JCT / oracle": interval(ratio), "each window": " ".join(f"{one:.2f}" for one in ratio.tolist()),
                "with those at hand": interval(whole), "each": " ".join(f"{one:.2f}" for one in whole.tolist()),
                "rho / oracle": interval(rho), "windows": len(ratio), "runs": len(own),
                "searches": sum(row["searches"] for row in own),
                "simulated": sum(row["simulated"] for row in own), "rejected": sum(row["rejected"] for row in own),
                "search s": round(sum(row["search seconds"] for row in own), 1),
                "learning s": round(sum(row["learning"] for row in own), 1), "CPU s": round(sum(row["cpu"] for row in own), 1),
            })  # fmt: skip
    return shown


def parts_table(rows: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """A row a part: gain on the jobs themselves, and what a search takes beside one with neither part."""
    found = [one for row in rows for one in row.get("parts", [])]
    neither = sum(one["cpu"] for one in found if one["part"] == "neither")
    shown = []
    for part in ("both", "no causal", "no aggregator", "neither", "random", "grid"):
        own = [one for one in found if one["part"] == part]
        if own:
            cpu = sum(one["cpu"] for one in own)
            shown.append({
                "search": part, "gain": interval(np.array([one["gain"] for one in own])), "moments": len(own),
                "simulated": sum(one["simulated"] for one in own),
                "CPU s": round(cpu, 1), "neither / it": round(neither / max(cpu, 1e-9), 2),
            })  # fmt: skip
    return shown


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--trace", help="a trace file, such as Philly's; default: one that is made, of --windows x 2 days")
    parser.add_argument("--policy", default="tiresias")
    parser.add_argument("--objective", default="jct", choices=("jct", "rho"))
    parser.add_argument("--nodes", default="6x8")
    parser.add_argument("--load", type=float, default=1.2)
    parser.add_argument("--windows", type=int, help="default: what fits")
    parser.add_argument("--trials", type=int, help="default: what fits")
    parser.add_argument("--unknown", type=float, help="share of the durations; default: of Lucid all, of others none")
    parser.add_argument("--full", dest="days", action="store_const", const=3, default=1, help="windows of three days; takes hours")
    parser.add_argument("--parts", type=int, help="moments a window at which parts of the search are compared; 0: none; default: what fits")
    parser.add_argument("--ways", nargs="+", choices=WAYS, help="default: all")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--results", type=Path)
    asked = parser.parse_args(given)
    for name, fits in zip(("windows", "trials", "unknown", "parts"), FIT.get(asked.policy, FIT["tiresias"]), strict=True):
        if getattr(asked, name) is None:
            setattr(asked, name, fits)
    asked.ways = asked.ways or [way for way in WAYS if asked.trials > MIN_JUDGED_TRIALS or way not in CAUSAL]
    began = machine()
    whole = to_workload(read_file(Path(asked.trace)), ()) if asked.trace else made(asked.windows)
    rows = [json.loads(line) for line in asked.results.read_text().splitlines()] if asked.results and asked.results.exists() else []
    told = [row for row in rows if row["setting"] == setting(asked)]
    done = {(row["window"], row["way"], row.get("seed", 0)) for row in told}
    both = {"past", "hindsight"}
    wanted = [*(way for way in asked.ways if way not in both), *([CONSTANTS] if both & {*asked.ways} else [])]
    tasks = [
        (number, way, seed, window, asked)
        for seed in range(asked.seeds)
        for number, window in enumerate(windows(whole, Cluster.parse(asked.nodes), asked.windows, asked.load, asked.days))
        for way in (*wanted, *(["parts"] if asked.parts else []))
        if seed == 0 or way in DRAWS
        if (number, "past" if way == CONSTANTS else way, seed) not in done
    ]
    with multiprocessing.get_context("spawn").Pool(asked.jobs) as pool:
        for number, found in enumerate(pool.imap_unordered(run, tasks), 1):
            for row in found:
                words = f"JCT {row['jct']:.0f} s" if "jct" in row else f"{len(row['parts'])} searches"
                progress(f"{number} of {len(tasks)}: window {row['window']}, {row['way']}: {words}, took {row['seconds']:.0f} s")
                told.append({**row, "setting": setting(asked)})
                if asked.results:
                    with asked.results.open("a") as file:
                        file.write(json.dumps(told[-1]) + "\n")
    runs = [row for row in told if "jct" in row]
    title = f"{asked.policy} on {asked.nodes}, simulated; T = {asked.trials}, load {asked.load:g}"
    show(asked, began, {title: table(runs), "parts of a search, simulated": parts_table(told), "runs": [_brief(row) for row in runs]})


def setting(asked: argparse.Namespace) -> list[Any]:
    """What runs have to have in common to stand in one table."""
    trace, days = asked.trace and Path(asked.trace).name, [asked.days] if asked.days != 1 else []
    objective = [] if asked.objective == "jct" else [asked.objective]
    return [asked.policy, asked.nodes, asked.load, asked.trials, asked.unknown, asked.windows, trace, *days, *objective]


def _brief(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in row.items() if name != "setting"}


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

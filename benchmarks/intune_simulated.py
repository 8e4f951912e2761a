"""InTune's evaluation on a simulated machine: who divides the cores best, through resizes and changes of cost (003 ch. 5.1 and 5.2).

    python benchmarks/intune_simulated.py [--quick] [--seeds 3] [--controllers rate autotune …] [--out DIRECTORY] [--json]

Nothing here is measured on hardware: pipeline, machine and model are simulated (runners/loaders/tuning/simulation/simulated.py), with
costs that are chosen after the words of the paper, which prints none. So ratios depend on these costs: compare controllers with one
another, not with the cluster of the paper. A window is 5 s. All begin with an even division of the cores, but for unoptimised. The
controllers of ours (rate, dqn, rate+dqn) run under the memory guard as they do live, the others as their authors ship them; the last
table has all both ways.

Columns: throughput over that of unoptimised in the same windows; CPU use; fed, the share of the model's demand; regret, the share of the
throughput of the best values (found by search on the simulator) that was not had; converged, seconds after a change from which on
throughput is within 5 % of the best until the next change, the median over changes; OOM runs, in which the pipeline was killed for memory.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from baseline_controllers import NAMES
from common import arguments, machine, show
from intune_simulated_plots import over_time, scaling
from intune_simulated_runs import Key, Run, Scenario, of_batch, of_cores, of_length, of_random, resized, runs, shifted
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

SIMULATED = "simulated"
OURS = ("rate", "dqn", "rate+dqn")
DEFAULT = tuple(name for name in NAMES if name != "fixed")
WORKLOADS = ("custom", "criteo")
PAPER_OVER_AUTOTUNE = {"custom": 2.05, "criteo": 2.29}  #: 003 ch. 5.1, average over the resizes
PAPER_OVER_HANDS = "1.10 to 1.20"  #: the same place, over what a person re-launches at each resize

Measured = Mapping[Key, list[Run]]


def guarded(controller: str) -> bool:
    return controller in OURS


def main_row(scenario: Scenario, controller: str, measured: Measured) -> dict[str, Any]:
    mine = measured[scenario.name, controller, guarded(controller)]
    base = measured.get((scenario.name, "unoptimised", False), mine)
    waits = [run.converged(phase) for run in mine for phase in scenario.phases()]
    reached = [wait for wait in waits if math.isfinite(wait)]
    return {
        "controller": controller,
        "× unoptimised": statistics.fmean(run.mean() for run in mine) / statistics.fmean(run.mean() for run in base),
        "CPU %": 100 * statistics.fmean(value for run in mine for value in run.cpu),
        "fed %": 100 * statistics.fmean(value for run in mine for value in run.fed),
        "regret %": 100 * statistics.fmean(run.regret() for run in mine),
        "converged s": f"{statistics.median(reached):.0f}" if len(reached) > len(waits) / 2 else "–",
        "of changes": f"{len(reached)}/{len(waits)}",
        "OOM runs %": 100 * statistics.fmean(run.ooms > 0 for run in mine),
    }


def mean(measured: Measured, scenario: Scenario, controller: str) -> float:
    return statistics.fmean(run.mean() for run in measured[scenario.name, controller, guarded(controller)])


def beside_the_paper(workloads: Sequence[Scenario], controllers: Sequence[str], measured: Measured) -> list[dict[str, Any]]:
    rows = []
    hands = [name for name in ("autotune-adaptive", "plumber-adaptive", "uniform") if name in controllers]
    for scenario in workloads:
        of = {name: mean(measured, scenario, name) for name in controllers}
        for ours in (name for name in OURS if name in controllers):
            if "autotune" in of:
                paper = PAPER_OVER_AUTOTUNE[scenario.name]
                rows.append(
                    {
                        "what": f"{ours} over autotune",
                        "workload": scenario.name,
                        "paper": f"{paper:g}",
                        SIMULATED: of[ours] / of["autotune"],
                    }
                )
            if hands:
                best = max(hands, key=of.__getitem__)
                rows.append(
                    {"what": f"{ours} over {best}", "workload": scenario.name, "paper": PAPER_OVER_HANDS, SIMULATED: of[ours] / of[best]}
                )
    return rows


def scaling_row(scenario: Scenario, controllers: Sequence[str], measured: Measured) -> dict[str, Any]:
    of = {name: mean(measured, scenario, name) for name in controllers}
    return {"point": scenario.name, "autotune samples/s": of["autotune"]} | {
        f"{name} ×": value / of["autotune"] for name, value in of.items() if name != "autotune"
    }


def random_row(scenarios: Sequence[Scenario], controller: str, measured: Measured) -> dict[str, Any]:
    bare, safe = ([run for s in scenarios for run in measured[s.name, controller, under]] for under in (False, True))
    rewards = [statistics.fmean(run.reward) for run in safe]
    return {
        "controller": controller,
        "throughput of the best %": 100 * statistics.fmean(1.0 - run.regret() for run in safe),
        "reward of the best %": 100 * statistics.fmean(rewards),
        "worst tenth %": 100 * statistics.quantiles(rewards, n=10)[0] if len(rewards) > 1 else 100 * rewards[0],
        "OOM runs %, guarded": 100 * statistics.fmean(run.ooms > 0 for run in safe),
        "OOM runs %, bare": 100 * statistics.fmean(run.ooms > 0 for run in bare),
        "bare: reward %": 100 * statistics.fmean(statistics.fmean(run.reward) for run in bare),
    }


def simulate(wanted: Sequence[tuple[Scenario, str, bool]], seeds: int) -> Measured:
    columns = (TextColumn("{task.description:40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("simulating", total=len(wanted) * seeds)
        done = runs(wanted, seeds, lambda text: bar.update(task, advance=1, description=text))
        bar.update(task, description="simulated")
    return done


def each(scenarios: Iterable[Scenario], controllers: Sequence[str]) -> list[tuple[Scenario, str, bool]]:
    return [(scenario, name, guarded(name)) for scenario in scenarios for name in controllers]


def lines(scenarios: Sequence[Scenario], controllers: Sequence[str], measured: Measured) -> dict[str, dict[str, float]]:
    """Controller to point to throughput over AUTOTUNE's, for a panel of figure 8."""
    return {
        name: {scenario.name: mean(measured, scenario, name) / mean(measured, scenario, "autotune") for scenario in scenarios}
        for name in controllers
        if name not in ("autotune", "unoptimised")
    }


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="short and coarse: one seed, intervals of a minute")
    parser.add_argument("--controllers", nargs="+", choices=DEFAULT, default=DEFAULT)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument("--seeds", type=int, help="drawings of the noise, which are averaged (default: 3)")
    parser.add_argument("--interval", type=int, help="windows of 5 s between changes (default: 120, ten minutes)")
    parser.add_argument("--random", type=int, help="random pipelines for the memory table (default: 40)")
    parser.add_argument("--out", type=Path, help="directory for the plots")
    options = parser.parse_args(given)
    began = machine()
    seeds, interval, drawn = (
        value if value is not None else (small if options.quick else full)
        for value, small, full in ((options.seeds, 1, 3), (options.interval, 12, 120), (options.random, 6, 40))
    )
    controllers = [name for name in DEFAULT if name in options.controllers]
    studied = [
        name for name in controllers if name not in ("autotune-adaptive", "plumber-adaptive")
    ]  # nothing changes: the same as without
    if "autotune" not in studied:
        studied = ["autotune", *studied]
    workloads, shifts = [resized(name, interval) for name in options.workloads], [shifted(name, interval) for name in options.workloads]
    studies = {
        "pipeline complexity": [of_length(count, interval) for count in ((2, 4) if options.quick else (2, 3, 4, 5, 6))],
        "machine size": [of_cores(cpus, interval) for cpus in ((8, 64) if options.quick else (8, 16, 32, 48, 64, 96, 128))],
        "batch size": [of_batch(factor, interval) for factor in ((1.0,) if options.quick else (0.25, 0.5, 1.0, 2.0, 4.0))],
    }
    randoms = [of_random(1_000_000 + number, 2 * min(interval, 40)) for number in range(drawn)]
    measured = {
        **simulate([*each([*workloads, *shifts], controllers), *each((s for some in studies.values() for s in some), studied)], seeds),
        **simulate([(scenario, name, safe) for scenario in randoms for name in controllers for safe in (False, True)], 1),
    }
    tables = {
        f"5.1 {s.name}: 32 → 64 → 128 → 64 → 32 cores ({SIMULATED})": [main_row(s, name, measured) for name in controllers]
        for s in workloads
    }
    tables |= {f"5.1 {s.name}, and back ({SIMULATED})": [main_row(s, name, measured) for name in controllers] for s in shifts}
    if paper := beside_the_paper(workloads, controllers, measured):
        tables[f"Beside the paper, mean throughput through the resizes ({SIMULATED})"] = paper
    for number, (title, points) in enumerate(studies.items(), 1):
        tables[f"5.2.{number} {title}, throughput over AUTOTUNE's ({SIMULATED})"] = [scaling_row(s, studied, measured) for s in points]
    if randoms:
        tables[f"{len(randoms)} random pipelines, their cores halved in the middle; 003: AUTOTUNE 8 % OOM, InTune none ({SIMULATED})"] = [
            random_row(randoms, name, measured) for name in controllers
        ]
    show(options, began, tables)
    if options.out:
        for scenario in workloads:
            over_time(scenario, {name: measured[scenario.name, name, guarded(name)] for name in controllers}, options.out)
        scaling({title: lines(points, studied, measured) for title, points in studies.items()}, options.out)


if __name__ == "__main__":
    main()

"""How near to the best the agent comes, on simulated pipelines that its pre-training never saw, beside what needs no learning.

    python benchmarks/intune_agent.py [--seeds 4] [--windows 200] [--controllers rate dqn …] [--pipelines criteo clashing …] [--json]

Eqn 1's reward as a share of the best there is (by search over the simulator, which no controller sees), after a resize to 2/5 of the cores
and half of the memory too. No memory guard: what a controller itself does about memory shows. Half of the pipelines break what a rate
model assumes: an interpreter lock, workers that clash, a narrow memory bus, a stage that workers hardly help.
"""

from __future__ import annotations

import functools
import itertools
import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

from climb import AutotuneAdaptive, AutotuneOptions
from common import arguments, machine, show
from named_pipelines import PRESETS, random_pipeline
from pipeline_oracle import oracle
from simulated_pipeline import Consumer, Machine, SimulatedPipeline, Stage
from stoker.runners.loaders.tuning import known_controllers as registry
from stoker.runners.loaders.tuning.controller import Controller, reward

UNSEEN = 500_000_000  #: pre-training draws its pipelines from seed 0 up
PIPELINES: dict[str, Callable[..., SimulatedPipeline]] = PRESETS | {
    f"random {number}": functools.partial(lambda number, seed: random_pipeline(UNSEEN + 100 * number + seed), number) for number in (1, 2)
}
CONTROLLERS: dict[str, Callable[[int], Controller]] = {
    "uniform": lambda seed: registry.create("uniform"),
    "autotune-adaptive": lambda seed: AutotuneAdaptive(AutotuneOptions()),
    "rate": lambda seed: registry.create("rate"),
    "dqn from scratch": lambda seed: registry.create("dqn", pretrained=False, rate=1e-3, exploring=100, exploration=0.05, seed=seed),
    "dqn as shipped, frozen": lambda seed: registry.create("dqn", learn=False, seed=seed),
    "dqn": lambda seed: registry.create("dqn", seed=seed),
    "rate+dqn": lambda seed: registry.create("rate+dqn", seed=seed),
}


@functools.cache
def best_of(stages: tuple[Stage, ...], machine: Machine, consumer: Consumer, batch_size: float) -> float:
    """The best reward; it depends on nothing else, and the search takes longer than a run."""
    return oracle(SimulatedPipeline(stages, machine, consumer, batch_size=batch_size)).reward


def best(pipe: SimulatedPipeline) -> float:
    return best_of(pipe.stages, pipe.machine, pipe.consumer, pipe.batch_size)


def shares(pipe: SimulatedPipeline, controller: Controller, windows: int) -> list[float]:
    """Of the best reward, window by window; the resize is in the middle."""
    most, seen, had = best(pipe), pipe.step(pipe.start), []
    for window in range(windows):
        if window == windows // 2:
            pipe.resize(cpus=max(1.0, pipe.machine.cpus * 0.4), memory=pipe.machine.memory // 2)
            most = best(pipe)
        seen = pipe.step(controller.decide(seen).values)
        had.append(reward(seen) / most)
    return had


def row(pipeline: str, controller: str, seeds: int, windows: int) -> dict[str, Any]:
    runs, killed = [], 0
    for seed in range(seeds):
        pipe = PIPELINES[pipeline](seed=seed)
        runs.append(shares(pipe, CONTROLLERS[controller](seed), windows))
        killed += pipe.ooms
    middle = windows // 2
    spans = {"first 50": (0, 50), "before resize": (middle - 50, middle), "after resize": (middle, middle + 50), "last 50": (-50, None)}
    means = {name: statistics.fmean(statistics.fmean(had[a:b]) for had in runs) for name, (a, b) in spans.items()}
    return {"pipeline": pipeline, "controller": controller, **means, "killed a run": killed / seeds}


def over_all(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    numbers = [key for key in rows[0] if key not in {"pipeline", "controller"}]
    by_controller = {
        name: [each for each in rows if each["controller"] == name] for name in dict.fromkeys(each["controller"] for each in rows)
    }
    return [
        {"controller": name, **{key: statistics.fmean(each[key] for each in mine) for key in numbers}}
        for name, mine in by_controller.items()
    ]


def main() -> None:
    import torch

    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--windows", type=int, default=200)
    parser.add_argument("--controllers", nargs="+", choices=CONTROLLERS, default=list(CONTROLLERS))
    parser.add_argument("--pipelines", nargs="+", choices=PIPELINES, default=list(PIPELINES))
    given = parser.parse_args()
    torch.set_num_threads(1)
    began, rows = machine(), []
    for pipeline, controller in itertools.product(given.pipelines, given.controllers):
        rows.append(row(pipeline, controller, given.seeds, given.windows))
        sys.stderr.write(json.dumps(rows[-1]) + "\n")
    show(given, began, {"share of the best reward": rows, "the same, mean of the pipelines": over_all(rows)})


if __name__ == "__main__":
    main()

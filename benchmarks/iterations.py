"""How far predicted numbers of training iterations are off, along the training (002 fig. 5.7c).

    python benchmarks/iterations.py [--traces DIRECTORY] [--recipes digits-cnn toy] [--steps 300] [--maximum 1 2] [--plot FILE]

Each validation curve is cut at 20, 40, 60, 80 % of the iterations after which it first meets its target, which is its best metric or
99 % of that (002 ch. 5.4.2), and each method says from the part before when that will be. An error is |predicted - true| / true. Methods:
the user's maximum; one power law, a - b u^-c, by least squares, where it meets the target (the maximum where it does not, or with less
than three values); and Stoker's ensemble. The user's maximum is the recorded length times ``--maximum``: how much more people ask for than
was needed decides how good a guess it is.

Curves: Pollux's recorded trainings (``--traces`` or the environment variable STOKER_TRACES names the directory that has
``pollux/profiles/``; BERT is left out, it has two evaluations), and Stoker's recipes, trained here for ``--steps`` with two
learning rates each. CPU times are of this process.
"""

from __future__ import annotations

import csv
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from common import arguments, folder, machine, milliseconds, progress, show
from stoker.policies.contract import Floats
from stoker.policies.estimate.learning_curves import IterationEstimate, estimate_iterations

SHARES = (0.2, 0.4, 0.6, 0.8)
FALLING = {"deepspeech2", "yolov3"}  #: word error rate, loss
LEAST = 3  #: values from which on a curve can be fitted


class Curve(NamedTuple):
    name: str
    steps: Floats
    values: Floats
    mode: Literal["max", "min"]

    @property
    def turned(self) -> Floats:
        return self.values if self.mode == "max" else -self.values


class Case(NamedTuple):
    """What is known after a share of the training, and what is asked."""

    curve: Curve
    goal: str
    target: float
    needed: float  #: iterations
    share: float
    seen: int  #: values
    maximum: int

    @property
    def done(self) -> int:
        return int(self.share * self.needed)


Method = Callable[[Case], IterationEstimate]


def pollux(traces: Path) -> Iterator[Curve]:
    for path in sorted((traces / "pollux" / "profiles").glob("*/validation-*.csv")):
        with path.open() as file:
            rows = [(float(row["iteration"]), float(row["metric"])) for row in csv.DictReader(file)]
        if len(rows) > LEAST:
            name = path.parent.name
            yield Curve(name, *map(np.array, zip(*rows, strict=True)), "min" if name in FALLING else "max")


def trained(recipe: str, steps: int, lr: float) -> Curve:
    """Validation metric of a recipe of ours, evaluated 30 times."""
    import torch
    from stoker.runners.recipes import find

    torch.manual_seed(0)
    chosen = find(recipe)
    task = chosen.load()(**chosen.resolve({"lr": lr}))
    optimizer = task.optimizer(task.model.parameters())
    schedule = task.scheduler(optimizer, steps) if task.scheduler else None
    order = np.random.default_rng(0)
    assert task.evaluate is not None
    at, values = [], []
    for step in range(1, steps + 1):
        task.model.train()
        optimizer.zero_grad()
        batch = order.choice(len(task.train), task.batch_size, replace=False)
        task.loss(task.model, task.collate([task.train[int(index)] for index in batch])).backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        if step % max(steps // 30, 1) == 0:
            task.model.eval()
            with torch.no_grad():
                ((metric, value),) = task.evaluate(task.model).items()
            at.append(float(step))
            values.append(value)
    return Curve(recipe, np.array(at), np.array(values), "min" if "loss" in metric else "max")


def cases(curves: Iterable[Curve], factor: float) -> Iterator[Case]:
    for curve in curves:
        best = curve.turned.max()
        for goal, height in (("best", best), ("99 % of best", best - 0.01 * abs(best))):
            needed = float(curve.steps[np.argmax(curve.turned >= height)])
            for share in SHARES:
                seen = int((curve.steps <= share * needed).sum())
                target = float(height if curve.mode == "max" else -height)
                yield Case(curve, goal, target, needed, share, seen, round(factor * curve.steps[-1]))


def by_maximum(case: Case) -> IterationEstimate:
    return IterationEstimate(case.maximum, case.maximum, case.maximum, 1.0, 0.0)


def by_power_law(case: Case) -> IterationEstimate:
    """a - b u^-c for the c of a fine grid with the least squares, and where that meets the target."""
    at = float(case.maximum)
    if case.seen >= LEAST:
        y, u = case.curve.turned[: case.seen], case.curve.steps[: case.seen] / case.curve.steps[case.seen - 1]
        height = case.target if case.curve.mode == "max" else -case.target
        exponents = np.geomspace(0.01, 6.0, 300)
        basis = u ** -exponents[:, None]
        centred = basis - basis.mean(axis=1, keepdims=True)
        b = -(centred @ (y - y.mean())) / (centred * centred).sum(axis=1)
        a = y.mean() + b * basis.mean(axis=1)
        best = np.argmin(((a[:, None] - b[:, None] * basis - y) ** 2).sum(axis=1))
        if b[best] > 0 and a[best] > height:
            at = float(np.exp(min(-np.log((a[best] - height) / b[best]) / exponents[best], 50.0)) * case.curve.steps[case.seen - 1])
    at = min(max(at, case.done), case.maximum)
    return IterationEstimate(at, at, at, 1.0, 0.0)


def by_ensemble(case: Case) -> IterationEstimate:
    steps, values = case.curve.steps[: case.seen], case.curve.values[: case.seen]
    return estimate_iterations(steps, values, target=case.target, mode=case.curve.mode, maximum=case.maximum, done=case.done)


METHODS: dict[str, Method] = {"maximum": by_maximum, "power law": by_power_law, "ensemble": by_ensemble}


class Answer(NamedTuple):
    case: Case
    method: str
    estimate: IterationEstimate

    @property
    def error(self) -> float:
        return abs(self.estimate.iterations / self.case.needed - 1)


def ask(curves: Sequence[Curve], factor: float) -> list[Answer]:
    return [Answer(case, name, method(case)) for case in cases(curves, factor) for name, method in METHODS.items()]


def mean_errors(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Mean error in percent by curves and goal, of all, and of all that had enough values for a fit."""
    grouped: dict[tuple[str, str, str], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for answer in answers:
        case = answer.case
        groups = [(case.curve.name, case.goal), ("all", case.goal), ("all", "both")]
        for name, goal in groups + [(f"all, {LEAST} values or more", "both")] * (case.seen >= LEAST):
            grouped[name, goal, answer.method][case.share].append(100 * answer.error)
    return [
        {"curves": name, "target": goal, "method": method}
        | {f"{share:.0%}": float(np.mean(errors[share])) if errors[share] else "–" for share in SHARES}
        for (name, goal, method), errors in sorted(grouped.items(), key=lambda item: (item[0][0].startswith("all"), *item[0][:2]))
    ]


def coverage(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """How often the truth is between the 10 % and the 90 % quantile."""
    rows = []
    for share in SHARES:
        mine = [answer for answer in answers if answer.method == "ensemble" and answer.case.share == share]
        inside = [answer.estimate.low <= answer.case.needed <= answer.estimate.high for answer in mine]
        width = [answer.estimate.high / answer.estimate.low for answer in mine]
        rows.append({"progress": f"{share:.0%}", "inside %": 100 * float(np.mean(inside)), "median high / low": float(np.median(width))})
    return rows


def cpu_of_a_fit(values: int, fits: int = 30) -> dict[str, Any]:
    """CPU time of this process, for a saturating curve with noise."""
    steps = np.arange(1.0, values + 1)
    metric = 0.9 - 0.6 * (1 + 30 * steps / values) ** -0.7 + np.random.default_rng(0).normal(0, 0.005, values)
    taken = []
    for _ in range(fits):
        began = time.process_time()
        estimate_iterations(steps, metric, target=0.95, mode="max", maximum=10 * values, done=values)
        taken.append(time.process_time() - began)
    return {"values": values, "fits": fits, **milliseconds(taken)}


def plot(tables: dict[float, Sequence[Answer]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(tables), 3.6), layout="constrained")
    for axes, (factor, answers) in zip(figure.subplots(1, len(tables), squeeze=False)[0], tables.items(), strict=True):
        for method, marker in zip(METHODS, "^so", strict=True):
            errors = [np.mean([100 * a.error for a in answers if a.method == method and a.case.share == share]) for share in SHARES]
            axes.plot([100 * share for share in SHARES], errors, marker=marker, label=method)
        axes.set(title=f"maximum: {factor:g} × recorded", xlabel="training progress (%)", ylabel="mean error (%)", ylim=(0, None))
        axes.legend()
    figure.savefig(path)


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--traces", type=folder, default=os.environ.get("STOKER_TRACES") or None)
    parser.add_argument("--recipes", nargs="*", default=["digits-cnn", "toy"])
    parser.add_argument("--steps", type=int, default=300, help="of each training of a recipe")
    parser.add_argument("--maximum", type=float, nargs="+", default=[1.0, 2.0], help="times the recorded length")
    parser.add_argument("--plot", type=Path, help="file for a figure of the mean errors")
    options = parser.parse_args(given)
    began = machine()
    curves = list(pollux(options.traces)) if options.traces else []
    for recipe in options.recipes:
        for lr in (1e-3, 1e-2):
            progress(f"training {recipe}, learning rate {lr:g}")
            curves.append(trained(recipe, options.steps, lr))
    if not curves:
        parser.error("there are no curves; name --traces or --recipes")
    answers = {factor: ask(curves, factor) for factor in options.maximum}
    tables = {}
    for factor, given_answers in answers.items():
        asked = f"maximum {factor:g} × recorded"
        tables[f"Mean error of predicted iterations, %, by progress of training ({asked})"] = mean_errors(given_answers)
        tables[f"Truths between the ensemble's 10 % and 90 % quantile ({asked})"] = coverage(given_answers)
    progress("timing fits")
    tables["CPU time of a fit"] = [cpu_of_a_fit(values) for values in (10, 30, 100, 1000, 10000)]
    if options.plot:
        plot(answers, options.plot)
    show(options, began, tables)


if __name__ == "__main__":
    main()

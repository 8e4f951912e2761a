"""Fine-tunings that begin with what others have left: iterations and CPU-seconds until the target, beside those from the backbone.

    python benchmarks/ymir_live.py [--tasks movies amazon …] [--seeds 2] [--steps 40] [--layers last] [--model DIRECTORY]

Real trainings of ``text-classifier`` on MiniLM, one after the other in this process, by the code that a job runs: `adapter_choice` of the
engine chooses, `beginning` of the runners tries, keeps and undoes. Of each task and seed a first training from the backbone has ``--steps``
steps; the target is 95 % of its best accuracy on held-out texts. Then each way trains until it is there:

  from the backbone         with features computed in each step, and kept
  from ended jobs           as ``begin: auto`` does, with the other tasks' first trainings of that seed in the bank, and what was measured
                            of pairs in the seeds before
  gains shuffled            the control: the same with the measured gains dealt to other pairs, and no look at kinds of labels
  not tried                 as from ended jobs, but never undone

"steps" counts those of trials that were not gone on from. CPU-seconds are those of training and trials, without loading data and model;
of features that are kept the first computing is part of them.
"""

from __future__ import annotations

import math
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from common import arguments, machine, progress, show
from stoker.engine.adapters.adapter_choice import Banked, Gain, Gains, Offer, offers
from stoker.engine.adapters.stored_adapters import gain_of
from stoker.engine.protocol import AdapterOffer
from stoker.engine.spec.model import JobSpec, Stop
from stoker.runners.finetune import beginning
from stoker.runners.train import rng
from stoker.runners.train.task import Task
from stoker.runners.train.trainer import Trainer
from stoker.runners.worker import script, worker
from stoker.runners.worker.ranks import Ranks

TASKS = ("movies", "amazon", "nyt", "tweets", "sms-spam", "bbc")
TARGET = 0.95  #: of the best accuracy from the backbone
ALONE = Ranks(0, 1, torch.device("cpu"))


@dataclass
class Told:
    """What a training tells of itself."""

    begun: list[dict[str, Any]] = field(default_factory=list)
    adapter: dict[str, Any] = field(default_factory=dict)
    curve: list[tuple[int, float]] = field(default_factory=list)

    def take(self, **what: Any) -> None:
        self.begun += [what["begun"]] if "begun" in what else []
        self.adapter |= what.get("adapter", {})

    def point(self, *, step: int, accuracy: float | None = None, **_: Any) -> None:
        self.curve += [(step, accuracy)] if accuracy is not None else []


@dataclass
class Bench:
    params: dict[str, Any]
    backbone: str
    steps: int
    folder: Path
    features: Sequence[str] = ("computed", "kept")
    count: int = 0

    def train(
        self,
        data: str,
        seed: int,
        target: float | None,
        given: Sequence[AdapterOffer] = (),
        curve: Sequence[tuple[int, float]] = (),
        **params: Any,
    ) -> tuple[Told, float, Path, Task]:
        """To the target, or through all steps; with CPU-seconds, and where its checkpoints are."""
        self.count += 1
        folder, told = self.folder / str(self.count), Told()
        rng.seed_all(seed)
        task = worker.build(
            JobSpec(
                name="job", recipe="text-classifier", backbone=self.backbone, params={**self.params, "data": data, "seed": seed, **params}
            )
        )
        stop = Stop(iterations=self.steps, metric="accuracy", target=2.0 if target is None else target)
        script.report_of_adapters, script.report = told.take, told.point  # type: ignore[assignment]
        began = time.process_time()
        beginning.train(task, lambda path, **how: Trainer(task, stop, path, ALONE, **how), given, curve, stop, folder, ALONE)
        return told, time.process_time() - began, folder, task


def row(way: str, data: str, seed: int, told: Told, seconds: float, target: float) -> dict[str, Any]:
    last = told.begun[-1] if told.begun else {"state": "cold"}
    steps, cost = told.adapter["steps"], last.get("cost", 0)
    progress(f"{way}: {steps} steps and {cost} tried, {seconds:.1f} CPU-s, {last['state']} {last.get('source', '')}")
    return {
        "way": way, "task": data, "seed": seed, "from": last.get("source", -1), "outcome": last["state"],
        "steps": steps + cost, "reached": int(told.adapter["reached"]), "CPU-s": seconds,
        "accuracy": told.curve[-1][1], "target": target,
    }  # fmt: skip


def given_offers(chosen: Sequence[Offer], folders: dict[int, Path], *, named: bool = False) -> list[AdapterOffer]:
    return [
        AdapterOffer(job=one.banked.job, directory=str(folders[one.banked.job]), data=one.banked.data, digest=one.banked.digest,
                     expected=one.expected, why=one.why, same_kind=one.same_kind, named=named)
        for one in chosen
    ]  # fmt: skip


def shuffled(gains: Gains, seed: int) -> Gains:
    values = list(gains.pairs.values())
    random.Random(seed).shuffle(values)
    return Gains(dict(zip(gains.pairs, values, strict=True)))


def measure(bench: Bench, tasks: Sequence[str], seeds: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    known: dict[tuple[str, str], list[float | None]] = defaultdict(list)
    before: dict[str, list[tuple[int, float]]] = {}  #: curves of the seed before: what is known of jobs like these
    for seed in range(seeds):
        bank: list[Banked] = []
        folders: dict[int, Path] = {}
        curves: dict[str, list[tuple[int, float]]] = {}
        targets: dict[str, float] = {}
        cold: dict[str, int] = {}
        for number, data in enumerate(tasks, 1):
            progress(f"seed {seed}: {data} from the backbone")
            told, _, folders[number], task = bench.train(data, seed, None, features=bench.features[-1])
            assert task.leaves is not None
            bank.append(Banked(number, data, task.leaves.digest, task.leaves.labels))
            curves[data], targets[data] = told.curve, TARGET * max(value for _, value in told.curve)
        pairs = {key: gain_of(found) for key, found in known.items()}
        gains = Gains(pairs)
        for data in tasks:
            kind = next(one.labels for one in bank if one.data == data)
            target = targets[data]
            for features in bench.features:
                progress(f"seed {seed}: {data} to its target, features {features}")
                told, seconds, *_ = bench.train(data, seed, target, features=features)
                rows.append(row(f"from the backbone, {features}", data, seed, told, seconds, target))
                cold[data] = told.adapter["steps"]
                chosen = given_offers(offers(bank, data, kind, gains), folders)
                told, seconds, *_ = bench.train(data, seed, target, chosen, before.get(data, ()), features=features)
                rows.append(row(f"from ended jobs, {features}", data, seed, told, seconds, target))
            if told.begun and told.begun[-1]["state"] in ("kept", "undone"):
                source = next(one.data for one in bank if one.job == told.begun[-1]["source"])
                kept = told.begun[-1]["state"] == "kept"
                known[source, data].append(cold[data] / max(told.adapter["steps"], 1) if kept else None)
            named = given_offers(offers(bank, data, kind, gains)[:1], folders, named=True)
            told, seconds, *_ = bench.train(data, seed, target, named, features=bench.features[-1])
            rows.append(row("not tried", data, seed, told, seconds, target))
            wrong = shuffled(Gains({(a, b): pairs.get((a, b), Gain(1, 2.0)) for a in tasks for b in tasks if a != b}), seed)
            control = given_offers(offers(random.Random(seed).sample(bank, len(bank)), data, None, wrong)[:1], folders, named=True)
            told, seconds, *_ = bench.train(data, seed, target, control, features=bench.features[-1])
            rows.append(row("gains shuffled", data, seed, told, seconds, target))
        before = curves
    return rows


def together(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Over the backbone's, task by task: geometric means."""
    first = {(one["task"], one["seed"]): one for one in rows if one["way"] == "from the backbone, computed"}
    found = []
    for way in dict.fromkeys(one["way"] for one in rows):
        of = [one for one in rows if one["way"] == way]
        fewer = [math.log(first[one["task"], one["seed"]]["steps"] / one["steps"]) for one in of]
        less = [math.log(first[one["task"], one["seed"]]["CPU-s"] / max(one["CPU-s"], 1e-9)) for one in of]
        found.append({
            "way": way, "trainings": len(of), "reached": sum(one["reached"] for one in of),
            "undone": sum(one["outcome"] == "undone" for one in of),
            "x fewer steps": math.exp(sum(fewer) / len(fewer)), "x fewer CPU-s": math.exp(sum(less) / len(less)),
            "accuracy": sum(one["accuracy"] for one in of) / len(of),
        })  # fmt: skip
    return found


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--tasks", nargs="+", default=TASKS, help="packaged sets, or files with columns text and label")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40, help="at most, of each training")
    parser.add_argument("--layers", default="last", choices=("head", "last"))
    parser.add_argument("--limit", type=int, default=300, help="texts to train on")
    parser.add_argument("--eval-limit", type=int, default=100)
    parser.add_argument("--backbone", default="minilm")
    asked = parser.parse_args(given)
    torch.set_num_threads(1)
    began = machine()
    features = ("computed", "kept") if asked.backbone == "minilm" else ("computed",)
    params = {"layers": asked.layers, "limit": asked.limit, "eval_limit": asked.eval_limit, "eval_every": 5, "checkpoint_every": 0}
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Bench(params, asked.backbone, asked.steps, Path(folder), features), asked.tasks, asked.seeds)
    show(asked, began, {"together": together(rows), "each": rows})


if __name__ == "__main__":
    main()

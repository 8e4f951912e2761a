"""Fine-tunings that begin with what others have left: iterations and CPU-seconds until the target, beside those from the backbone.

    python benchmarks/ymir_live.py [--tasks movies amazon …] [--seeds 3] [--steps 30] [--keep DIRECTORY] [--budget SECONDS]

Real trainings of ``text-classifier`` on MiniLM, one after the other in this process, by the code that a job runs: `adapter_choice` of the
engine chooses, `beginning` of the runners tries, keeps and undoes, `joint_task` trains two together. Of each task and seed there are

  alone             from the backbone, through all ``--steps``
  ended jobs        as ``begin: auto`` does: the other tasks' trainings of that seed are in the bank, and what was measured of pairs in the
                    seeds before; a job that jobs like it went before (a seed before) is compared with what those had
  named             as ``begin: job:A`` does; A is another task of the same kind of labels, another one in each seed
  labels shuffled   the control: the same A, trained with its labels dealt out anew (where A is of the same kind, as the next two)
  by gains          from the second seed on: with the largest gain that the seeds before measured, as it is
  gains shuffled    the control: the same gains, dealt to other pairs
  together          ``--joint`` steps with A in one training, then alone (spatial transfer); in the first seed A's own rest is measured too
  computed          alone and ended jobs of the first seed to the target once more, with features computed in each step

Accuracy is looked at after each of the first 16 steps, then less often, at no charge and without changing the training, whose own
evaluations come every five steps.
The target is a share of the accuracy that the task has alone in its last steps. Steps count those of trials that were not gone on from,
and those of a joint phase. CPU-seconds are those of training, trials and evaluations; of kept features the first computing is part of them.

``--keep``: each training is appended to a file there, and is not made again. ``--budget``: none is begun after so many seconds. With
``--ahead`` a second process trains beside the first.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from common import arguments, machine, progress, show
from fisher import SAMPLES, embedding
from stoker.engine.adapters.adapter_choice import Banked, Gain, Gains, offers
from stoker.engine.adapters.stored_adapters import gain_of
from stoker.engine.protocol import AdapterOffer
from stoker.engine.spec.model import JobSpec, Stop
from stoker.runners import texts
from stoker.runners.backbones import hub_model
from stoker.runners.finetune import beginning
from stoker.runners.finetune.joint_task import Together, joint
from stoker.runners.finetune.kept_features import KeptFeatures
from stoker.runners.train import rng
from stoker.runners.train.task import Task
from stoker.runners.train.trainer import Trainer
from stoker.runners.warm import held
from stoker.runners.worker import script, worker
from stoker.runners.worker.ranks import Ranks
from transfer_gain import LearntRatio, judge, temporal_similarity

TASKS = ("movies", "amazon", "nyt", "tweets", "sms-spam", "bbc")
TARGETS = (0.9, 0.95, 0.98)  #: of the accuracy alone
EVERY = 5  #: steps between a training's own evaluations
CLOSELY = 16  #: first steps, each of which is looked at
LAST = 5  #: steps over which the accuracy at the end is the mean
ALONE = Ranks(0, 1, torch.device("cpu"))
WAYS = ("ended jobs", "named", "labels shuffled", "by gains", "gains shuffled", "together")
SHUFFLED = "source shuffled"  #: of which nothing is looked at
Row = dict[str, Any]


class Features(KeptFeatures):
    """Of one data set, for all trainings here: what is frozen makes the same of a text in each."""

    seconds = 0.0  #: that their first computing took

    def get(self, key: bytes, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
        before, began = self.computed, time.process_time()
        found = super().get(key, compute)
        if self.computed > before:
            self.seconds += time.process_time() - began
        return found


@dataclass
class Told:
    """What a training tells of itself, and what is looked at besides."""

    look: Callable[[], Mapping[str, float]] | None
    steps: int  #: of the training
    begun: list[Row] = field(default_factory=list)
    adapter: Row = field(default_factory=dict)
    curve: list[Row] = field(default_factory=list)
    free: float = 0.0  #: CPU-seconds that are not charged

    def __post_init__(self) -> None:
        self.began = time.process_time()

    def take(self, **what: Any) -> None:
        self.begun += [what["begun"]] if "begun" in what else []
        self.adapter |= what.get("adapter", {})

    def point(self, *, step: int, **values: Any) -> None:
        spent = time.process_time() - self.began - self.free
        found = {name: value for name, value in values.items() if name.endswith("accuracy")}
        if found:
            self.curve.append({"step": step, "own": True, "spent": spent, **found})
        elif self.look is not None and "loss" in values and (step <= CLOSELY or step % 3 == 0 or step > self.steps - LAST):
            began = time.process_time()
            self.curve.append({"step": step, "own": False, "spent": spent, **self.look()})
            self.free += time.process_time() - began


@dataclass
class Bench:
    params: Row
    backbone: str
    steps: int
    joint: int
    folder: Path
    end: float
    rows: list[Row] = field(default_factory=list)
    features: dict[str, Features] = field(default_factory=dict)

    read: int = 0  #: bytes of the file, which another process may write to as well

    def __post_init__(self) -> None:
        self.file = self.folder / "trainings.jsonl"
        self.file.touch()

    def of(self, way: str, task: str, seed: int) -> Row | None:
        if self.file.stat().st_size > self.read:
            content = self.file.read_bytes()
            found: dict[Any, Row] = {}
            for row in map(json.loads, content.splitlines()):
                found.setdefault((row["way"], row["task"], row["seed"]), row)  # both may have made it
            self.rows, self.read = list(found.values()), len(content)
        return next((row for row in self.rows if (row["way"], row["task"], row["seed"]) == (way, task, seed)), None)

    def directory(self, way: str, task: str, seed: int) -> Path:
        return self.folder / f"{way} {task} {seed}"

    def task(self, data: str, name: str, seed: int, kept: bool) -> Task:
        rng.seed_all(seed)
        params = {**self.params, "data": data, "seed": seed, "features": "kept" if kept else "computed"}
        task = worker.build(JobSpec(name="job", recipe="text-classifier", backbone=self.backbone, params=params))
        if kept:
            cast(Any, task.model).encoder.kept = self.kept(name, task)
        return task

    def kept(self, name: str, task: Task) -> Features:
        """Of all texts of a data set, computed once for all."""
        file = self.folder / f"{name} features.pt"
        if name not in self.features and file.exists():
            self.features[name] = Features()
            self.features[name]._near, self.features[name].seconds = torch.load(file)
        elif name not in self.features:
            cast(Any, task.model).encoder.kept = found = self.features[name] = Features()
            looking(task)()
            with torch.no_grad():
                for sample in task.train:  # type: ignore[attr-defined]
                    task.model(*task.collate([sample])[:2])
            torch.save((found._near, found.seconds), file)
        return self.features[name]

    def train(self, way: str, name: str, seed: int, *, data: str = "", given: Sequence[AdapterOffer] = (), weights: Any = None,
              curve: Sequence[tuple[int, float]] = (), target: float = 2.0, kept: bool = True, **more: Any) -> Row:  # fmt: skip
        """Unless there is its row already. Of a bank's trainings the checkpoints stay."""
        if (known := self.of(way, name, seed)) is not None:
            return known
        if time.monotonic() > self.end:
            raise TimeoutError
        progress(f"seed {seed}, {name}: {way}")
        task, path = self.task(data or name, name, seed, kept), self.directory(way, name, seed)
        shutil.rmtree(path, ignore_errors=True)
        stop = Stop(iterations=self.steps, metric="accuracy", target=target)
        with told(looking(task) if kept and way != SHUFFLED else None, self.steps) as tells:
            if weights is not None:
                Trainer(task, stop, path, ALONE, given=weights).run()
            else:
                beginning.train(task, lambda path, **how: Trainer(task, stop, path, ALONE, **how), given, curve, stop, path, ALONE)
        if way not in ("alone", SHUFFLED):
            shutil.rmtree(path)
        last = tells.begun[-1] if tells.begun else {}
        about = {name: tells.adapter[name] for name in ("digest", "labels") if name in tells.adapter}
        outcome, features = last.get("state", "taken" if given else "cold"), self.features[name].seconds if kept else 0.0
        return self.keep(way, name, seed, tells, outcome=outcome, cost=last.get("cost", 0), features=features, **about, **more)

    def keep(self, way: str, task: str, seed: int, tells: Told, **more: Any) -> Row:
        spent = time.process_time() - tells.began - tells.free
        row = {"way": way, "task": task, "seed": seed, "curve": tells.curve, "spent": spent, "load": machine()["load"], **more}
        with self.file.open("ab", buffering=0) as file:
            file.write(json.dumps(row).encode() + b"\n")
        return row

    def train_together(self, first: str, second: str, seed: int, *, rest: bool) -> None:
        """The phase, then the second, and with ``rest`` the first too, in a row of the second's."""
        then = f"together, then {first}"
        if self.of("together", second, seed) and (not rest or self.of(then, second, seed)):
            return
        if time.monotonic() > self.end:
            raise TimeoutError
        progress(f"seed {seed}: {first} and {second} together")
        tasks = [self.task(name, name, seed, kept=True) for name in (first, second)]
        phase = joint(tasks[0], tasks[1], self.joint, self.steps)
        path = self.folder / f"together {os.getpid()}"
        shutil.rmtree(path, ignore_errors=True)
        with told(looking(phase), self.joint) as tells:
            trainer = Trainer(phase, Stop(iterations=self.joint), path, ALONE)
            trainer.run()
        shutil.rmtree(path)
        assert isinstance(trainer.model, Together)
        of_first, of_second = trainer.model.halves()
        phases = [{**point, "accuracy": point["partner_accuracy"]} for point in tells.curve], tells.curve
        spent = time.process_time() - tells.began - tells.free
        more = {"source": first, "phase_spent": spent}
        self.train("together", second, seed, weights=of_second, phase=phases[0], **more)
        if rest and self.of(then, second, seed) is None:
            task, stop = self.task(first, first, seed, kept=True), Stop(iterations=self.steps, metric="accuracy", target=2.0)
            with told(looking(task), self.steps) as tells:
                Trainer(task, stop, path, ALONE, given=of_first).run()
            shutil.rmtree(path)
            self.keep(then, second, seed, tells, outcome="taken", cost=0, phase=phases[1], **more)


@contextmanager
def told(look: Callable[[], Mapping[str, float]] | None, steps: int) -> Iterator[Told]:
    before = script.report_of_adapters, script.report
    tells = Told(look, steps)
    script.report_of_adapters, script.report = tells.take, tells.point  # type: ignore[assignment]
    try:
        yield tells
    finally:
        script.report_of_adapters, script.report = before


def looking(task: Task) -> Callable[[], Mapping[str, float]]:
    def look() -> Mapping[str, float]:
        assert task.evaluate is not None
        training = task.model.training
        task.model.eval()
        with rng.preserved(), torch.no_grad():
            found = task.evaluate(task.model)
        task.model.train(training)
        return {name: float(value) for name, value in found.items() if name.endswith("accuracy")}

    return look


# What is trained


def partner(tasks: Sequence[str], kinds: Mapping[str, str], task: str, seed: int) -> str:
    """Another task of the same kind of labels, where there is one; another one in each seed."""
    alike = [one for one in tasks if kinds[one] == kinds[task] or one == task]
    among = alike if len(alike) > 1 else list(tasks)
    return among[(among.index(task) - 1 - seed % (len(among) - 1)) % len(among)]


def measured(bench: Bench, seed: int) -> dict[tuple[str, str], list[float | None]]:
    """Gains of pairs in the seeds before: steps alone over steps with, None: it was undone."""
    known: dict[tuple[str, str], list[float | None]] = {}
    for row in bench.rows:
        if row["way"] in ("ended jobs", "named") and row["seed"] < seed and row.get("source"):
            alone, with_it = steps_of(bench, row, 0.95, way="alone"), steps_of(bench, row, 0.95)
            gain = None if row["outcome"] == "undone" else alone / max(with_it, 1)
            known.setdefault((row["source"], row["task"]), []).append(gain)
    return known


def measure(bench: Bench, tasks: Sequence[str], seeds: Sequence[int], *, ahead: bool) -> None:
    """``ahead``: nothing that depends on what the seeds before have measured."""
    for seed in seeds:
        for task in tasks:
            bench.train("alone", task, seed)
        rows = {task: cast(Row, bench.of("alone", task, seed)) for task in tasks}
        kinds = {task: rows[task]["labels"] for task in tasks}
        bank = [Banked(number, task, rows[task]["digest"], kinds[task]) for number, task in enumerate(tasks)]
        folders = {one.job: bench.directory("alone", one.data, seed) for one in bank}
        gains = Gains({pair: gain_of(found) for pair, found in measured(bench, seed).items()})
        for task in tasks:
            target = 0.95 * accuracy(rows[task])
            before = bench.of("alone", task, seed - 1)
            curve = [(EVERY, at(before, EVERY))] if before is not None and bench.steps > EVERY else []
            chosen = [
                AdapterOffer(job=one.banked.job, directory=str(folders[one.banked.job]), data=one.banked.data, digest=one.banked.digest,
                             expected=one.expected, why=one.why, same_kind=one.same_kind)
                for one in offers(bank, task, kinds[task], gains)
            ]  # fmt: skip
            first = chosen[0].data if chosen else None
            expected = {"source": first, "expected": chosen[0].expected if chosen else None}
            source = partner(tasks, kinds, task, seed)
            alike = kinds[source] == kinds[task]
            if chosen and not ahead:
                bench.train("ended jobs", task, seed, given=chosen, curve=curve, **expected)
            bench.train("named", task, seed, given=[named(source, bench.directory("alone", source, seed))], source=source)
            if alike or not seed:
                bench.train_together(source, task, seed, rest=not seed)
            if alike:
                shuffled = bench.train(SHUFFLED, source, seed, data=str(with_labels_shuffled(bench, source, seed)))
                assert shuffled["digest"] != rows[source]["digest"]
                there = bench.directory(SHUFFLED, source, seed)
                bench.train("labels shuffled", task, seed, given=[named(source, there)], source=source)
            if seed and alike and not ahead:
                for way, dealt in (("by gains", gains), ("gains shuffled", dealt_out(gains, tasks, task, seed))):
                    best = max((key for key in dealt.pairs if key[1] == task), key=lambda key: dealt.pairs[key].ratio)
                    bench.train(way, task, seed, given=[named(best[0], bench.directory("alone", best[0], seed))], source=best[0])
            if not seed and not ahead:
                bench.train("alone, computed", task, seed, target=target, kept=False)
                if chosen:
                    bench.train("ended jobs, computed", task, seed, target=target, given=chosen, curve=curve, kept=False, **expected)


def named(data: str, directory: Path) -> AdapterOffer:
    return AdapterOffer(job=1, directory=str(directory), data=data, digest="", named=True)


def dealt_out(gains: Gains, tasks: Sequence[str], task: str, seed: int) -> Gains:
    """The gains of beginnings of a task, in the names of other sources."""
    sources = [one for one in tasks if one != task]
    values = [gains.pairs.get((one, task), Gain(1, 1.0)) for one in sources]
    random.Random(f"{seed} {task}").shuffle(values)
    return Gains({(one, task): value for one, value in zip(sources, values, strict=True)})


def with_labels_shuffled(bench: Bench, name: str, seed: int) -> Path:
    found = texts.load(name)
    rows = found.train[: bench.params["limit"] * 5 // 4 + 4]  # a fifth of a file is held out
    labels = [label for _, label in rows]
    random.Random(seed).shuffle(labels)
    path = bench.folder / f"{name} shuffled {seed}.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows([text, found.classes[label]] for (text, _), label in zip(rows, labels, strict=True))
    return path


# Memory of jobs that are packed


def memory(jobs: int, params: Row) -> list[Row]:
    """Of so many trainings at once, each in a process of its own, or forked from one that holds the backbone (``share: {gpu: packed}``)."""
    found = []
    for way in ("cold", "forked"):
        progress(f"{jobs} jobs at once, {way}")
        command = [sys.executable, __file__, "--child", json.dumps({**params, "data": "movies", "batch_size": min(16, params["limit"])})]
        told = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": os.environ | {"OMP_NUM_THREADS": "1"}}
        started = [subprocess.Popen([*command, *(["--forks", str(jobs)] if way == "forked" else [])], **told)  # type: ignore[call-overload]
                   for _ in range(jobs if way == "cold" else 1)]  # fmt: skip
        trained = [int(process.stdout.readline()) for process in started for _ in range(jobs // len(started))]
        held = [process.pid for process in started] if way == "forked" else []
        sizes = [_proportional(pid) for pid in trained]
        found.append({"jobs": way, "count": jobs, "MB each": max(sizes), "MB in all": sum(sizes) + sum(map(_proportional, held))})
        for process in started:
            process.communicate()
    return found


def _proportional(pid: int) -> float:
    """PSS, which divides shared pages among those who share them."""
    line = next(line for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Pss:"))
    return int(line.split()[1]) / 1024


def child(params: Row, forks: int) -> None:
    """Train some steps, tell the pid, and stay until the input ends.

    ``forks``: so many children of this process do so, which holds the backbone.
    """
    torch.set_num_threads(1)
    children: list[int] = []
    if forks:
        held.hold("minilm", hub_model.hold)
        gc.collect()
        gc.freeze()
    trains = not forks
    while len(children) < forks and not trains:
        pid = os.fork()
        trains = not pid
        children += [pid] if pid else []
    if trains:
        task = worker.build(JobSpec(name="job", recipe="text-classifier", backbone="minilm", params=params))
        with tempfile.TemporaryDirectory() as folder:
            Trainer(task, Stop(iterations=3), Path(folder), ALONE).run()
        os.write(1, f"{os.getpid()}\n".encode())
    sys.stdin.read()
    if trains and forks:
        os._exit(0)
    for pid in children:
        os.waitpid(pid, 0)


# What came of it


def accuracy(row: Row) -> float:
    """At the end: the mean of the last steps."""
    last = row["curve"][-1]["step"]
    return float(np.mean([point["accuracy"] for point in row["curve"] if point["step"] > last - LAST]))


def at(row: Row, step: int) -> float:
    return float(next(point["accuracy"] for point in row["curve"] if point["step"] == step))


def reached(row: Row, target: float, *, own: bool = False) -> Row | None:
    """The first point at the target; ``own``: of the training's own evaluations."""
    return next((point for point in row["curve"] if point["accuracy"] >= target and (point["own"] or not own)), None)


def steps_of(bench: Bench, row: Row, share: float, way: str = "") -> int:
    """Steps until a share of the accuracy alone, with those of trials and of a joint phase; all of them where that was missed."""
    task = row["task"] if not row["way"].startswith("together, then") else row["source"]
    alone = cast(Row, bench.of("alone", task, row["seed"]))
    target = share * accuracy(alone)
    if way == "alone":
        row = alone
    if (found := reached({"curve": row.get("phase", [])}, target)) is not None:
        return int(found["step"])
    before = row["cost"] + (bench.joint if "phase" in row else 0)
    if row["way"].startswith("ended jobs") and row["cost"]:  # it trained so far from the backbone first
        found = reached(alone, target)
        if found is not None and found["step"] <= beginning.TRIAL:
            return int(found["step"])
    found = reached(row, target)
    return int(before + (found["step"] if found is not None else row["curve"][-1]["step"]))


def charged(bench: Bench, row: Row) -> float:
    """CPU-seconds until the evaluation at which a training with kept features would have ended."""
    alone = cast(Row, bench.of("alone", row["task"], row["seed"]))
    found = reached(row, 0.95 * accuracy(alone), own=True)
    return float((found["spent"] if found is not None else row["spent"]) + row["features"])


def together(bench: Bench, tasks: Sequence[str]) -> list[Row]:
    """Each way beside alone, pair by pair: geometric means, and what two standard errors of them are."""
    found = []
    for way in WAYS:
        for which in ("of the same kind", "of others"):
            rows = [row for row in bench.rows if row["way"] == way and row["task"] in tasks and row.get("source")]
            rows = [row for row in rows if _alike(bench, row) == (which == "of the same kind")]
            if not rows:
                continue
            line: Row = {
                "begins": way,
                "with one": which,
                "trainings": len(rows),
                "undone": sum(row["outcome"] == "undone" for row in rows),
            }
            for share in TARGETS:
                logs = [math.log(steps_of(bench, row, share, way="alone") / max(steps_of(bench, row, share), 1)) for row in rows]
                line[f"x fewer steps to {share:.0%}"] = math.exp(np.mean(logs))
                if share == 0.95:
                    line["from"], line["to"] = (math.exp(np.mean(logs) + sign * 2 * _error(logs)) for sign in (-1, 1))
            better = [accuracy(row) - accuracy(cast(Row, bench.of("alone", row["task"], row["seed"]))) for row in rows]
            line |= {"accuracy over alone": float(np.mean(better)), "+-": 2 * _error(better)}
            found.append(line)
    return found


def pairs_together(bench: Bench) -> list[Row]:
    """Steps of a pair until both are at 95 %: one after the other, and with a joint phase, whose steps are those of both."""
    rows = []
    for row in bench.rows:
        rest = bench.of(f"together, then {row.get('source')}", row["task"], row["seed"]) if row["way"] == "together" else None
        if rest is not None:
            apart = steps_of(bench, row, 0.95, way="alone") + steps_of(bench, rest, 0.95, way="alone")
            own, others = steps_of(bench, row, 0.95), steps_of(bench, rest, 0.95)
            both = own + others - min(own, others, bench.joint)
            rows.append({"A": row["source"], "B": row["task"], "seed": row["seed"], "one by one": apart, "jointly": both})
    return rows


def estimators(bench: Bench, tasks: Sequence[str]) -> list[Row]:
    """The measures of 002 Table 3.2 of ways to foretell the ratio of steps of a named beginning, each pair by what the others were."""
    pairs = [row for row in bench.rows if row["way"] == "named" and row["task"] in tasks and row["source"] in tasks]
    if len(pairs) < 2:
        return []
    found = {task: _embedding(bench, task) for task in {name for row in pairs for name in (row["task"], row["source"])}}
    ratios = [steps_of(bench, row, 0.95, way="alone") / max(steps_of(bench, row, 0.95), 1) for row in pairs]
    scores = [temporal_similarity(found[row["source"]][0], found[row["task"]][1], found[row["task"]][2]) for row in pairs]
    kinds = [_alike(bench, row) for row in pairs]
    by_kind, by_score = [], []
    for number in range(len(pairs)):
        others = [other for other in range(len(pairs)) if other != number]
        alike = [math.log(ratios[other]) for other in others if kinds[other] == kinds[number]]
        by_kind.append(math.exp(float(np.mean(alike))) if alike else 1.0)
        learnt = LearntRatio()
        for other in others:
            learnt.update(scores[other], ratios[other])
        by_score.append(learnt.predict(scores[number]))
    lines = []
    for way, told, by in (("kind of labels", by_kind, [float(kind) for kind in kinds]), ("Task2Vec", by_score, scores)):
        one = judge(told, ratios, neutral=1.0, by=by)
        known = {"Pearson": one.pearson if math.isfinite(one.pearson) else "-", "MAPE %": one.mean_error}
        lines.append({"estimator": way, "pairs": len(pairs), **known, "max %": one.largest_error, "ACC %": one.right_sign})
    return lines


def _embedding(bench: Bench, task: str) -> list[Any]:
    file = bench.folder / f"{task} embedding.pt"
    if not file.exists():
        progress(f"{task}: its embedding")
        params = {**bench.params, "petl": "lora", "data": task, "seed": 0}
        del params["layers"]
        made = worker.build(JobSpec(name="job", recipe="text-classifier", backbone=bench.backbone, params=params))
        began = time.process_time()
        found = embedding(made, samples=min(SAMPLES, len(made.train)))
        progress(f"{task}: {time.process_time() - began:.1f} CPU-s")
        torch.save([found.whole, *found.halves], file)
    return [one.numpy() for one in torch.load(file)]


def seconds(bench: Bench, tasks: Sequence[str]) -> list[Row]:
    found = []
    for task in tasks:
        line: Row = {"task": task}
        for way in ("alone", "ended jobs"):
            for kind in ("computed", "kept"):
                wanted = way if kind == "kept" else f"{way}, computed"
                rows = [row for row in bench.rows if (row["way"], row["task"], row["seed"]) == (wanted, task, 0)]
                spent = [row["spent"] if kind == "computed" else charged(bench, row) for row in rows]
                line[f"{way}, {kind}"] = float(np.mean(spent)) if spent else "-"
        found.append(line)
    return found


def by_task(bench: Bench, tasks: Sequence[str]) -> list[Row]:
    found = []
    for task in tasks:
        alone = [row for row in bench.rows if row["way"] == "alone" and row["task"] == task]
        line: Row = {"task": task, "accuracy": float(np.mean([accuracy(row) for row in alone]))}
        line["alone"] = float(np.mean([steps_of(bench, row, 0.95) for row in alone]))
        for way in WAYS:
            rows = [row for row in bench.rows if row["way"] == way and row["task"] == task]
            line[way] = float(np.mean([steps_of(bench, row, 0.95) for row in rows])) if rows else "-"
        found.append(line)
    return found


def _alike(bench: Bench, row: Row) -> bool:
    ours, theirs = (cast(Row, bench.of("alone", task, row["seed"])) for task in (row["task"], row["source"]))
    return bool(ours["labels"] == theirs["labels"])


def _error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--tasks", nargs="+", default=TASKS, help="packaged sets")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30, help="of each training")
    parser.add_argument("--joint", type=int, default=10, help="steps of a joint phase")
    parser.add_argument("--layers", default="last", choices=("head", "last"))
    parser.add_argument("--limit", type=int, default=300, help="texts to train on")
    parser.add_argument("--eval-limit", type=int, default=200)
    parser.add_argument("--keep", type=Path, help="directory of what was trained, for a run that goes on")
    parser.add_argument("--ahead", action="store_true", help="with --keep, beside another one that does all: the last seeds first")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds after which nothing more is begun")
    parser.add_argument("--packed", type=int, default=4, help="trainings at once whose memory is measured; 0: none")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--forks", type=int, default=0, help=argparse.SUPPRESS)
    asked = parser.parse_args(given)
    if asked.child is not None:
        child(asked.child, asked.forks)
        return
    torch.set_num_threads(1)
    began = machine()
    params = {"layers": asked.layers, "limit": asked.limit, "eval_limit": asked.eval_limit, "eval_every": EVERY, "checkpoint_every": 0}
    with tempfile.TemporaryDirectory() as folder:
        kept = asked.keep or Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        bench = Bench(params, "minilm", asked.steps, asked.joint, kept, time.monotonic() + asked.budget)
        try:
            measure(bench, asked.tasks, range(asked.seeds)[:: -1 if asked.ahead else 1], ahead=asked.ahead)
        except TimeoutError:
            progress("the time is over; what follows is of the trainings so far")
        done = [task for task in asked.tasks if all(bench.of("named", task, seed) for seed in range(asked.seeds))]
        tables = {"beside alone": together(bench, done), "steps to 95 %": by_task(bench, done), "pairs": pairs_together(bench)}
        tables |= {"estimators": estimators(bench, done), "memory": memory(asked.packed, params) if asked.packed else []}
        show(asked, began, {**tables, "CPU-seconds to 95 %": seconds(bench, done)})


if __name__ == "__main__":
    main()

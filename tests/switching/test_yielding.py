"""Trainings that pause for others on their GPU: wherever they are paused, and however often, they end with the very same weights."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from stoker.engine.spec.model import Memory
from stoker.runners.device.metered import MeteredDevice
from stoker.runners.lease.rundir import ENV_RUN_DIR, TURN
from stoker.runners.share.turn import Turn
from stoker.runners.share.yielding import Yielding
from stoker.runners.swap.swapped_step import SwappedStep
from stoker.runners.train.task import Task
from test_training import Job, assert_same
from torch import nn
from waiting import until

pytestmark = [pytest.mark.xdist_group("training"), pytest.mark.usefixtures("warm_server")]

#: Wants the turn again and again, with a priority that goes before all.
ASKS = """
import sys, time
from pathlib import Path
from stoker.runners.share.turn import Turn
turn = Turn(Path(sys.argv[1]), 99, 10)
while True:
    turn.take()
    time.sleep(0.0005)
    turn.give()
    time.sleep(0.0005)
"""

#: A user's module with all that makes a step hard to repeat: it is not repeated.
HARD = """
import random, time
import numpy, torch
from torch import nn
from stoker.runners.training import Task, interruptible

class Data:
    def __len__(self):
        return 64
    def __getitem__(self, index):
        noise = torch.randn(8) + random.random() + torch.from_numpy(numpy.random.rand(8)).float()
        return torch.full((8,), index / 64) + 0.1 * noise, torch.tensor([index % 2.0])

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.2)) for _ in range(4))
        self.last = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 1))
    def forward(self, inputs):
        for layer in self.layers:
            time.sleep(0.0005)
            inputs = layer(inputs) * (0.9 + 0.2 * random.random()) + 0.01 * float(numpy.random.rand())
        return self.last(inputs)

def evaluate(model):
    return {"sum": sum(float(model(Data()[i][0][None])) for i in interruptible(range(8)))}

def task(**given):
    return Task(model=Net(), train=Data(), loss=lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
                evaluate=evaluate, batch_size=8, eval_every=7, checkpoint_every=10, clip_norm=1.0, **given)
"""

REPLAY = {"gpu": "switched", "memory": "replay"}
JOBS: dict[str, dict[str, Any]] = {
    "an entrypoint": {"entrypoint": "hard:task", "stop": {"iterations": 15}},
    "micro-batches": {"entrypoint": "hard:task", "stop": {"iterations": 6}, "memory": {"accumulate": 4}},
    "under a cap": {"entrypoint": "hard:task", "stop": {"iterations": 6}, "memory": {"cap": 1 << 20, "swap": "force", "accumulate": 3}},
    "digits-cnn": {"recipe": "digits-cnn", "params": {"eval_every": 5, "checkpoint_every": 5}, "stop": {"iterations": 10}},
    "text-classifier": {  # most of it frozen, on torch's fast path in evaluations
        "recipe": "text-classifier",
        "params": {"layers": "last", "limit": 64, "eval_limit": 16, "eval_every": 3, "max_tokens": 16},
        "stop": {"iterations": 6},
    },
    "causal-lm": {
        "recipe": "causal-lm",
        "params": {"backbone": "none", "layers": 2, "width": 64, "limit": 5000, "context": 32, "eval_limit": 2, "data": "words.txt"},
        "stop": {"iterations": 20},
    },
}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    made: list[Job] = []

    def make(name: str, **spec: Any) -> Job:
        one = Job(tmp_path / name)
        (one.path / "hard.py").write_text(HARD)
        (one.path / "words.txt").write_text("how far is it to the end of the line, and who is next? " * 200)
        one.spec = {"name": "job", **spec}
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


def switched(job: Job, path: Path, priority: int = 0) -> Job:
    """Its next lease takes turns at this file."""
    run_dir = job.path / f"run-{job.lease + 1}"
    run_dir.mkdir()
    (run_dir / "turn.json").write_text(json.dumps({"path": str(path), "priority": priority}))
    return job


@pytest.fixture
def asks(tmp_path: Path) -> Iterator[Callable[[], Path]]:
    started = []

    def begin() -> Path:
        started.append(subprocess.Popen([sys.executable, "-c", ASKS, str(tmp_path / "turn")]))
        return tmp_path / "turn"

    yield begin
    for process in started:
        process.kill()
        process.wait()


def pauses(job: Job) -> int:
    return sum(map(int, re.findall(r"paused (\d+) times for others on its GPU", job.log)))


@pytest.mark.parametrize("kind", JOBS)
@pytest.mark.sampled(3)
def test_paused_again_and_again_it_ends_with_the_weights_of_one_that_was_not(job, asks, kind: str) -> None:
    whole = job("whole", **JOBS[kind]).start()
    assert whole.end() == 0, whole.log
    paused = switched(job("paused", **JOBS[kind]), asks()).start()
    assert paused.end() == 0, paused.log
    assert pauses(paused) > 20
    assert paused.losses() == whole.losses()
    assert_same(paused.state, whole.state)


@pytest.mark.parametrize("kind", ["an entrypoint", "micro-batches", "digits-cnn"])
def test_whatever_is_done_again_it_ends_with_the_weights_of_one_of_which_nothing_was(job, asks, kind: str) -> None:
    whole = job("whole", **JOBS[kind], share=REPLAY).start()
    assert whole.end() == 0, whole.log
    again = switched(job("again", **JOBS[kind], share=REPLAY), asks()).start()
    assert again.end() == 0, again.log
    steps = JOBS[kind]["stop"]["iterations"]
    (given_up,) = re.findall(r"gave up (\d+) steps for others on its GPU", again.log)
    assert steps // 2 <= int(given_up) <= steps, "each at most once"
    assert again.losses() == whole.losses()
    assert_same(again.state, whole.state)


def test_inside_a_step_under_a_cap_it_looks_too_and_not_where_samples_are_loaded(tmp_path: Path, monkeypatch) -> None:
    looks: list[str] = []
    monkeypatch.setenv(ENV_RUN_DIR, str(tmp_path))
    monkeypatch.setattr(Turn, "wanted", lambda turn: looks.append(threading.current_thread().name))
    (tmp_path / TURN).write_text(json.dumps({"path": str(tmp_path / "turn"), "priority": 0}))
    layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    task = Task(model=layers, train=[0], loss=lambda model, batch: model(batch).square().mean(), batch_size=2)
    step = SwappedStep(task, Memory(cap=1 << 20, accumulate=2, swap="force"), MeteredDevice(1 << 20))
    step.place(layers)
    yielding = Yielding(layers.parameters(), torch.device("cpu"))
    for _ in range(2):
        looks.clear()
        with yielding:
            step.update([torch.randn(2, 8) for _ in range(2)], 1.0)
            loads = threading.Thread(target=nn.Linear(8, 8), args=(torch.randn(2, 8),), name="loads")
            loads.start()
            loads.join()
    step.close()
    yielding.close()
    assert looks.count("micro-batch") >= 2 * 2 * 3 - 2, "each batch's layers, forward, and back but for the last part"
    assert "loads" not in looks


def test_who_is_told_in_the_middle_takes_turns_from_its_next_step_on_and_no_longer_when_told_so(job, tmp_path: Path) -> None:
    trains = job("trains", entrypoint="hard:task", stop={"iterations": 100_000}).start()
    until(lambda: (trains.run_dir / "reports-0.jsonl").exists() and trains.records)
    ours = Turn(tmp_path / "turn", 9, priority=1)
    ours.take()
    said = trains.run_dir / "turn.json"
    said.write_text(json.dumps({"path": str(tmp_path / "turn"), "priority": 0}))
    until(lambda: stands_still(trains))
    ours.give()
    goes_on(trains)
    ours.take()
    ours.give()
    other = said.with_suffix(".new")
    other.write_text(json.dumps({"path": None, "priority": 0}))
    other.rename(said)
    goes_on(trains)
    ours.take()
    goes_on(trains)
    said.unlink()
    said.write_text(json.dumps({"path": str(tmp_path / "turn"), "priority": 5}))  # above ours
    until(lambda: stands_still(trains))
    ours.give()
    goes_on(trains)
    ours.close()
    trains.signal(signal.SIGTERM).end()


def goes_on(job: Job) -> None:
    """Until it has reported a few times more."""
    seen = len(job.records)
    until(lambda: len(job.records) > seen + 3)


def stands_still(job: Job) -> bool:
    before = len(job.records)
    time.sleep(0.2)
    return len(job.records) == before


def test_a_job_that_waits_for_its_turn_hears_that_it_is_to_leave(job, tmp_path: Path) -> None:
    """It finishes its step at the next turn, before all others, and leaves with a checkpoint."""
    ours = Turn(tmp_path / "turn", 9, priority=1)
    trains = switched(job("trains", entrypoint="hard:task", stop={"iterations": 100_000}), tmp_path / "turn").start()
    until(lambda: (trains.run_dir / "reports-0.jsonl").exists() and trains.records)
    ours.take()
    until(lambda: stands_still(trains))
    trains.signal(signal.SIGTERM)
    until(ours.wanted)
    ours.give()
    assert trains.end() == 75, trains.log
    assert trains.records[-1].checkpoint == trains.records[-1].step
    ours.close()


def test_a_killed_holder_costs_the_others_nothing(job, tmp_path: Path) -> None:
    first, second = (switched(job(name, entrypoint="hard:task", stop={"iterations": 100_000}), tmp_path / "turn") for name in "ab")
    for one in (first, second):
        one.start()
        until(lambda one=one: (one.run_dir / "reports-0.jsonl").exists() and len(one.records) > 3)
    for one in (first, second):
        goes_on(one)
    first.signal(signal.SIGKILL)
    goes_on(second)
    second.signal(signal.SIGTERM).end()

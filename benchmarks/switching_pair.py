"""The two jobs of benchmarks/switching.py, each a process of its own, or two threads of one.

    python switching_pair.py train FILE TRAINING
    python switching_pair.py serve FILE SERVER PIDS N THINK GAP
    python switching_pair.py both FILE SERVER TRAINING N THINK GAP

``FILE`` is a page in which the training counts: steps, and seconds of CPU. Latencies are in the pair's own time, that is seconds of CPU of
the server and of ``PIDS``: what others take of the core is in none. Where the server is alone, time is taken to pass while it has
nothing to do.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from stoker.runners import recipes
from stoker.runners.share.yielding import Yielding
from stoker.runners.train.step import PlainStep
from stoker.runners.train.task import Task
from stoker.runners.worker.ranks import Ranks

REQUESTS: dict[str, Any] = {"text-classifier": "how far is it to the end of the line, and who is next?", "digits-cnn": [[0] * 28] * 28}
TRAININGS: dict[str, tuple[str, dict[str, Any]]] = {
    "digits": ("digits-cnn", {}),
    "text": ("text-classifier", {"layers": "all", "batch_size": 16, "limit": 256, "eval_limit": 16}),
}
WARM_UP = 20
_BATCHES = 8
_PR_SET_TIMERSLACK = 29


def task_of(recipe: str, params: dict[str, Any]) -> Task:
    found = recipes.find(recipe)
    built: Task = found.load()(**found.resolve(params, None))
    return built


def steps(training: str) -> Iterator[Callable[[], None]]:
    """Steps of a training, whose batches are made ahead."""
    recipe, params = TRAININGS[training]
    task = task_of(recipe, params)
    work = PlainStep(task, Ranks.join(torch.device("cpu")), fused=True)
    work.place(task.model)
    samples = [task.train[number] for number in range(task.batch_size * _BATCHES)]
    collate = task.collate or torch.utils.data.default_collate
    batches = [collate(samples[begin : begin + task.batch_size]) for begin in range(0, len(samples), task.batch_size)]
    sharing = Yielding(task.model.parameters(), torch.device("cpu"))

    def step(batch: Any) -> None:
        with sharing:
            work.update([batch], 1.0)

    number = 0
    while True:
        yield lambda batch=batches[number % len(batches)]: step(batch)  # type: ignore[misc]
        number += 1


def train(page: memoryview, training: str, cpu: Callable[[], float], over: Callable[[], bool] = lambda: False) -> None:
    for step in steps(training):
        if over():
            return
        step()
        page[1] = cpu()
        page[0] += 1


class Server:
    """``pids``: whose CPU time passes beside its own."""

    def __init__(self, recipe: str, pids: list[int], *, alone: bool) -> None:
        self.task = task_of(recipe, {})
        self.model = self.task.model.eval()
        self.sharing = Yielding((), torch.device("cpu"))
        assert self.task.prepare is not None and self.task.answer is not None
        self.request, self.answer = self.task.prepare(REQUESTS[recipe]), self.task.answer
        self.clocks = [(~pid << 3) | 2 for pid in pids]  # of a process, see clock_getcpuclockid(3)
        self.alone, self.skipped = alone, 0.0
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)

    def now(self) -> float:
        return time.process_time() + sum(map(time.clock_gettime, self.clocks)) + self.skipped

    def wait(self, until: float) -> None:
        while (left := until - self.now()) > 0:
            if self.alone:
                self.skipped += left
            else:
                time.sleep(left)

    def serve(self) -> tuple[float, float]:
        """When it began to compute, and when it had."""
        with self.sharing, torch.no_grad():
            began = self.now()
            self.answer(self.model, [self.request])
        return began, self.now()

    def closed(self, number: int, think: float) -> dict[str, list[float]]:
        """One client, which thinks for so long between an answer and its next request."""
        latency, preempted = [], []
        for _ in range(number):
            due = self.now() + think
            self.wait(due)
            began, ended = self.serve()
            latency.append(ended - due)
            preempted.append(began - due)
        return {"latency": latency, "preempted": preempted}

    def open(self, number: int, gap: float) -> dict[str, list[float]]:
        """Requests that come when they come, ``gap`` after each other on average."""
        draw, due, latency, preempted = random.Random(3), self.now(), [], []
        for _ in range(number):
            due += draw.expovariate(1 / gap)
            idle = self.now() < due
            self.wait(due)
            began, ended = self.serve()
            latency.append(ended - due)
            preempted += [began - due] if idle else []
        return {"latency": latency, "preempted": preempted}

    def measure(self, number: int, think: float, gap: float, page: memoryview) -> dict[str, Any]:
        """``think`` 0: as long as it serves; ``gap`` 0: twice that."""
        for _ in range(WARM_UP):
            self.serve()
        if not think:
            times = sorted(ended - began for began, ended in (self.serve() for _ in range(number)))
            think = times[len(times) // 2]
        before = list(page[:2])
        found = {"closed": self.closed(number, think), "open": self.open(number, gap or 2 * think)}
        trained = [now - then for now, then in zip(page[:2], before, strict=True)]
        return {"think": think, "loads": found, "steps": trained[0], "cpu": trained[1]}


def main(role: str, file: str, *given: str) -> None:
    torch.set_num_threads(1)
    with Path(file).open("r+b") as opened:
        page = memoryview(mmap.mmap(opened.fileno(), 4096)).cast("d")
    if role == "train":
        train(page, given[0], time.process_time)
    elif role == "serve":
        recipe, pids, number, think, gap = given
        server = Server(recipe, [int(pid) for pid in pids.split(",") if pid], alone=not pids)
        print(json.dumps(server.measure(int(number), float(think), float(gap), page)))
    else:
        recipe, training, number, think, gap = given
        server, over = Server(recipe, [], alone=False), threading.Event()
        thread = threading.Thread(target=train, args=(page, training, time.thread_time, over.is_set))
        thread.start()
        while page[0] < 3:
            time.sleep(0.01)
        print(json.dumps(server.measure(int(number), float(think), float(gap), page)))
        over.set()
        thread.join()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(*sys.argv[1:])

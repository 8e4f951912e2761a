"""The two jobs of benchmarks/switching.py, each a process of its own, or two threads of one.

    python switching_pair.py train FILE TRAINING
    python switching_pair.py serve FILE SERVER PIDS N
    python switching_pair.py both FILE SERVER TRAINING N

``FILE`` is a page in which the training counts: steps, and seconds of CPU. Latencies are in the pair's own time, that is seconds of CPU of
the server and of ``PIDS``: what others take of the core is in none. While the server is alone, time is taken to pass where it has nothing
to do.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import mmap
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

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
WARM_UP, ROUNDS = 20, 10
_BATCHES = 8
_PR_SET_TIMERSLACK = 29


def task_of(recipe: str, params: dict[str, Any]) -> Task:
    found = recipes.find(recipe)
    built: Task = found.load()(**found.resolve(params, None))
    return built


def steps(training: str) -> Iterator[None]:
    """Steps of a training, whose batches are made ahead."""
    recipe, params = TRAININGS[training]
    task = task_of(recipe, params)
    work = PlainStep(task, Ranks.join(torch.device("cpu")), fused=True)
    work.place(task.model)
    samples = [task.train[number] for number in range(task.batch_size * _BATCHES)]
    collate = task.collate or torch.utils.data.default_collate
    batches = [collate(samples[begin : begin + task.batch_size]) for begin in range(0, len(samples), task.batch_size)]
    sharing = Yielding(task.model.parameters(), torch.device("cpu"))

    for batch in itertools.cycle(batches):
        with sharing:
            work.update([batch], 1.0)
        yield


def train(page: memoryview, training: str, cpu: Callable[[], float], over: Callable[[], bool] = lambda: False) -> None:
    for _ in steps(training):
        page[1] = cpu()
        page[0] += 1
        if over():
            return


class Server:
    """``pids``: whose CPU time passes beside its own. ``calm``: for its time nothing but the server computes."""

    def __init__(self, recipe: str, pids: Sequence[int], calm: Callable[[], AbstractContextManager[Any]] | None = None) -> None:
        self.task = task_of(recipe, {})
        self.model = self.task.model.eval()
        self.sharing = Yielding((), torch.device("cpu"))
        assert self.task.prepare is not None and self.task.answer is not None
        self.request, self.answer = self.task.prepare(REQUESTS[recipe]), self.task.answer
        self.clocks = [(~pid << 3) | 2 for pid in pids]  # of a process, see clock_getcpuclockid(3)
        self.calm = calm or (lambda: self.sharing)
        self.alone, self.skipped = False, 0.0
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)

    def now(self) -> float:
        return time.process_time() + (self.skipped if self.alone else sum(map(time.clock_gettime, self.clocks)))

    def wait(self, until: float) -> None:
        while (left := until - self.now()) > 0:
            if self.alone:
                self.skipped += left
            else:
                time.sleep(left)

    def turn(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.alone else self.sharing

    def serve(self) -> tuple[float, float]:
        """When it began to compute, and when it had."""
        with self.turn(), torch.no_grad():
            began = self.now()
            self.answer(self.model, [self.request])
        return began, self.now()

    def closed(self, number: int, think: float) -> Times:
        """One client, which thinks for so long between an answer and its next request."""
        found = Times([], [])
        for _ in range(number):
            due = self.now() + think
            self.wait(due)
            began, ended = self.serve()
            found.latency.append(ended - due)
            found.preempted.append(began - due)
        return found

    def open(self, number: int, gap: float, draw: random.Random) -> Times:
        """Requests that come when they come, ``gap`` after each other on average."""
        found, begin = Times([], []), self.now()
        dues = list(itertools.accumulate((draw.expovariate(1 / gap) for _ in range(number)), initial=begin))[1:]
        while dues:
            due = dues.pop(0)
            idle = self.now() < due
            self.wait(due)
            with self.turn(), torch.no_grad():
                began = self.now()
                self.answer(self.model, [self.request])
                found.latency.append(self.now() - due)
                while dues and dues[0] <= self.now() and self.sharing.may_go_on:  # as the server does
                    self.answer(self.model, [self.request])
                    found.latency.append(self.now() - dues.pop(0))
            if idle:
                found.preempted.append(began - due)
        return found

    def measure(self, number: int, page: memoryview) -> dict[str, Any]:
        """Rounds in which it is alone, and then beside the training: so both see the same of what others do on the host."""
        found = {f"{load} {where}": Times([], []) for load in ("closed", "open") for where in ("alone", "beside")}
        steps = cpu = 0.0
        with self.quiet():
            times = sorted(ended - began for began, ended in (self.serve() for _ in range(3 * WARM_UP)))
        think = times[len(times) // 2]
        for turn in range(ROUNDS):
            draws = [random.Random(turn) for _ in range(2)]
            with self.quiet():
                found["closed alone"].add(self.closed(number // ROUNDS, think))
                found["open alone"].add(self.open(number // ROUNDS, 2 * think, draws[0]))
            before = list(page[:2])
            found["closed beside"].add(self.closed(number // ROUNDS, think))
            found["open beside"].add(self.open(number // ROUNDS, 2 * think, draws[1]))
            steps, cpu = steps + page[0] - before[0], cpu + page[1] - before[1]
        return {"times": {name: times._asdict() for name, times in found.items()}, "steps": steps, "cpu": cpu}

    @contextmanager
    def quiet(self) -> Iterator[None]:
        with self.calm():
            self.alone = True
            yield
            self.alone = False


class Times(NamedTuple):
    latency: list[float]
    preempted: list[float]  #: from a request to a server that waits until it computes

    def add(self, more: Times) -> None:
        self.latency.extend(more.latency)
        self.preempted.extend(more.preempted)


@contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    yield
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


class Thread(threading.Thread):
    """A training in this process; it is called between its steps."""

    def __init__(self, page: memoryview, training: str) -> None:
        super().__init__()
        self.page, self.training, self.over = page, training, False
        self.free = threading.Lock()  #: who has it keeps it from its next step

    def run(self) -> None:
        train(self.page, self.training, time.thread_time, self)

    def __call__(self) -> bool:
        """Between two steps: whether that was the last one."""
        with self.free:
            pass
        return self.over


def main(role: str, file: str, *given: str) -> None:
    torch.set_num_threads(1)
    with Path(file).open("r+b") as opened:
        page = memoryview(mmap.mmap(opened.fileno(), 4096)).cast("d")
    if role == "train":
        train(page, given[0], time.process_time)
    elif role == "serve":
        recipe, pids, number = given
        beside = [int(pid) for pid in pids.split(",")]
        calm = None if "STOKER_RUN_DIR" in os.environ else lambda: stopped(beside)
        print(json.dumps(Server(recipe, beside, calm).measure(int(number), page)))
    else:
        recipe, training, number = given
        thread = Thread(page, training)
        server = Server(recipe, (), lambda: thread.free)
        thread.start()
        while page[0] < 3:
            time.sleep(0.01)
        print(json.dumps(server.measure(int(number), page)))
        thread.over = True
        thread.join()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(*sys.argv[1:])

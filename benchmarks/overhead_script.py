"""The job of overhead.py: trains a small network by turns with Stoker and, all of Stoker stopped, without; writes down both speeds.

    python overhead_script.py FILE PAIRS SECONDS [PID ...]

PIDs: what else of Stoker is at work (daemon, runner). The supervisor of this very job is found among its parents.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import stoker
import torch
from torch import nn


def training() -> Callable[[], float]:
    """One step of a small CNN on one thread; returns its loss."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = torch.randn(512, 1, 28, 28), torch.randint(10, (512,))
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3872, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> float:
        batch = torch.randint(len(images), (64,))
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


class Turns:
    def __init__(self, step: Callable[[], float], machinery: list[int]) -> None:
        self.step, self.machinery = step, machinery
        self.done = 0

    def turn(self, told: bool, seconds: float) -> dict[str, float]:
        """Milliseconds of a step, by the clock and of CPU time."""
        for pid in self.machinery:
            os.kill(pid, signal.SIGCONT if told else signal.SIGSTOP)
        for _ in range(5):  # after the change, caches are filled anew
            self._one(told)
        count, wall, cpu = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - wall < seconds:
            self._one(told)
            count += 1
        return {"wall": 1e3 * (time.perf_counter() - wall) / count, "cpu": 1e3 * (time.process_time() - cpu) / count}

    def _one(self, told: bool) -> None:
        loss = self.step()
        self.done += 1
        if told:
            stoker.report(step=self.done, loss=loss)
            if stoker.should_stop():
                sys.exit(75)


def main() -> None:
    file, pairs, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    supervisors = [parent.pid for parent in psutil.Process().parents() if "stoker" in " ".join(parent.cmdline()) and parent.pid > 1]
    mine = {os.getpid(), *map(int, sys.argv[4:])}
    turns = Turns(training(), [*map(int, sys.argv[4:]), *(pid for pid in supervisors if pid not in mine)])
    order = random.Random(0)
    found = []
    try:
        turns.turn(True, seconds)
        for _ in range(pairs):
            first = order.random() < 0.5
            taken = {told: turns.turn(told, seconds) for told in (first, not first)}
            found.append({"with": taken[True], "without": taken[False]})
    finally:
        for pid in turns.machinery:
            os.kill(pid, signal.SIGCONT)
    file.write_text(json.dumps(found))


if __name__ == "__main__":
    main()

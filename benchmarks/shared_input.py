"""Jobs of a sweep that make each batch once, beside the same jobs each for itself: CPU time and wall time of all.

    python benchmarks/shared_input.py [--jobs 1 2 4 8] [--steps 100]

Each job is a process that trains `jpeg-cnn` with a learning rate of its own; all are on one core, as jobs that are packed on a
slot. Those of a row begin together; the time until a process trains is not counted. ``loading`` is the share of a step alone that
making its batch takes (D of D + T). ``bound`` is N (D + T) / (D + N T): what there is to gain where sharing costs nothing. ``gain``
is the CPU time of N jobs each for itself, one beside the other by the kernel's time slices, over that of N that share.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import arguments, machine, progress, show

CASES: dict[str, dict[str, Any]] = {
    "side 128, as they are": {"side": 128, "augment": False},
    "side 512, turned and erased": {"side": 512, "augment": True},
}


def child(place: str, number: int, jobs: int, steps: int, params: dict[str, Any], shares: bool) -> None:
    """One job: prints CPU seconds, wall seconds, and those of CPU that it spent on making batches."""
    import torch
    from stoker.engine.spec.model import Stop
    from stoker.runners.recipes import find
    from stoker.runners.share.input_groups import InputGroup
    from stoker.runners.train.batch_feeds import SampleSource
    from stoker.runners.train.trainer import Trainer
    from stoker.runners.worker.ranks import Ranks

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    loading = 0.0

    def timed(function: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            nonlocal loading
            begun = time.thread_time()
            try:
                return function(*given, **named)
            finally:
                loading += time.thread_time() - begun

        return call

    for name in ("decode", "augmented", "collated"):
        setattr(SampleSource, name, timed(getattr(SampleSource, name)))
    recipe = find("jpeg-cnn")
    given = {**params, "lr": 0.01 * (number + 1), "batch_size": 32, "eval_every": 0, "checkpoint_every": 0}
    task = dataclasses.replace(recipe.load()(**recipe.resolve(given, None)), evaluate=None)
    # Alone in a group each has the same batches as those that share.
    group = InputGroup(f"{place}/{'all' if shares else number}", 1 << 30, number + 1, jobs if shares else 1)
    together(Path(place), number, jobs)
    trainer = Trainer(task, Stop(iterations=steps), Path(place) / f"checkpoints-{number}", Ranks(0, 1, torch.device("cpu")), group=group)
    loading = 0.0
    cpu, wall = time.process_time(), time.monotonic()
    trainer.run()
    print(json.dumps({"cpu": time.process_time() - cpu, "wall": time.monotonic() - wall, "loading": loading}))


def together(place: Path, number: int, jobs: int) -> None:
    (place / f"ready-{number}").touch()
    while len(list(place.glob("ready-*"))) < jobs:
        time.sleep(0.01)


def run(jobs: int, steps: int, params: dict[str, Any], shares: bool) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="stoker-benchmark-") as place:
        given = [[place, str(number), str(jobs), str(steps), json.dumps(params), str(int(shares))] for number in range(jobs)]
        started = [subprocess.Popen([sys.executable, __file__, "--child", *one], stdout=subprocess.PIPE, text=True) for one in given]
        said = [process.communicate()[0].splitlines()[-1] for process in started]
    return [json.loads(line) for line in said]


def measured(name: str, params: dict[str, Any], jobs: Sequence[int], steps: int) -> list[dict[str, Any]]:
    progress(f"{name}: alone")
    (alone,) = run(1, steps, params, False)
    share = alone["loading"] / alone["cpu"]
    rows = []
    for number in jobs:
        sums = {}
        for shares in (False, True):
            progress(f"{name}: {number} jobs, {'shared' if shares else 'each for itself'}")
            found = run(number, steps, params, shares)
            sums[shares] = sum(one["cpu"] for one in found), max(one["wall"] for one in found)
        bound = number / (share + number * (1 - share))
        gain = sums[False][0] / sums[True][0]
        rows.append({
            "images": name, "loading": share, "jobs": number, "CPU s, each for itself": sums[False][0], "shared": sums[True][0],
            "gain": gain, "bound": bound, "gain / bound": gain / bound, "gain in wall time": sums[False][1] / sums[True][1],
        })  # fmt: skip
    return rows


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--jobs", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args(given)
    began = machine()
    rows = [row for name, params in CASES.items() for row in measured(name, params, options.jobs, options.steps)]
    show(options, began, {"Jobs that make each batch once, on one core": rows})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        place, number, jobs, steps, params, shares = sys.argv[2:]
        child(place, int(number), int(jobs), int(steps), json.loads(params), shares == "1")
    else:
        main()

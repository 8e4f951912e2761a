"""Models that people bring, each trained under a cap beside the same training without one: equal or not, peak, time; or why it is refused.

    python benchmarks/swap_models.py [--models GPT-2 timm …] [--nanogpt model.py] [--micro-batches 1 2] [--share 0.5] [--steps 4] [--json]

Small models of transformers, timm and torchvision with random weights (`public_models.py`), as far as these packages are installed; none
of them is needed by Stoker. Each is trained as jobs are (the job's own steps, its own loss, AdamW), with one seed, one thread, on the
emulated device. The cap is --share of what one part would take, or else the smallest that a refusal names, which then must do.

`losses`, `gradients`, `weights`: "equal", to the bit, or the largest difference beside the largest number of the same tensor (or a
thousandth of the largest of all, if that is more), at the worst tensor: of all steps' losses, of the first step's gradients, of weights and
buffers at the end. `checkpointed`: the same of the first step's gradients where the model's own gradient checkpointing computes them,
without a cap; "–" where it has none. `whole` and `peak`: bytes of a step in one part, and under the cap. `time`: a step's seconds over
those without a cap, both as measured on this machine, medians of all but the first step; copies are emulated, and are no part of it.

Ends with code 1 if a model is neither trained nor refused in one line, differs by more than sums in another order may come to, or goes
above its cap.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import re
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import public_models
import torch
from common import arguments, machine, progress, show
from public_models import MODELS
from stoker.engine.errors import UsageError
from stoker.engine.spec.model import Memory
from stoker.runners.device.metered import MeteredDevice
from stoker.runners.swap.swapped_step import SwappedStep
from stoker.runners.train.step import PlainStep, Step
from stoker.runners.train.task import Task
from stoker.runners.worker.ranks import Ranks
from torch.utils.data import default_collate

MIB = 1 << 20
ROUNDING = 1e-4  #: what sums in another order may come to in some steps: beyond it another model was trained
SMALL = 1e-3  #: of the largest number of all tensors: smaller ones, as gradients that are but rounding, are held against this
NAMED = re.compile(r"the smallest that would is (\d+)KiB")
LOCAL = Ranks(0, 1, torch.device("cpu"))

Tensors = dict[str, torch.Tensor]


class Trained:
    """Some steps of a task: what came out, and what they took."""

    def __init__(self, task: Task, step: Step, steps: int) -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        starts = itertools.cycle(range(0, len(task.train), task.batch_size))
        batches = (default_collate(task.train[n : n + task.batch_size]) for n in starts)
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.peak = 0.0
        model = task.model
        model.train()
        placed = step.place(model)
        assert placed is model
        try:
            for _ in range(steps):
                given = list(itertools.islice(batches, step.accumulate))
                begun = time.perf_counter()
                loss = step.update(given, 1.0)
                self.seconds.append(time.perf_counter() - begun)
                self.losses.append(float(loss))
                self.peak = max(self.peak, step.values.get("swap_peak", 0.0))
                if len(self.losses) == 1:
                    self.gradients = self._gradients(step, model)
        finally:
            step.close()
        self.weights: Tensors = {name: tensor.detach().clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}

    def _gradients(self, step: Step, model: torch.nn.Module) -> Tensors:
        """AdamW's first moment after its first step is a tenth of them; what has none was not reached."""
        state = step.optimizer.state
        return {name: state[each]["exp_avg"].clone() for name, each in model.named_parameters() if each in state}

    @property
    def step_seconds(self) -> float:
        return median(self.seconds[1:] or self.seconds)


def made(name: str) -> Task:
    torch.manual_seed(0)
    return MODELS[name][1]()


def difference(one: Tensors, other: Tensors) -> float:
    """The largest, beside the largest number of the same tensor; infinite where one is missing, or has other NaN."""
    if one.keys() != other.keys():
        return float("inf")
    largest = max((float(_numbers(tensor).abs().max()) for tensor in one.values() if tensor.numel()), default=0.0)
    return max((_apart(tensor, other[name], SMALL * largest) for name, tensor in one.items()), default=0.0)


def _apart(one: torch.Tensor, other: torch.Tensor, least: float) -> float:
    if one.shape != other.shape or one.dtype != other.dtype or not torch.equal(one.isnan(), other.isnan()):
        return float("inf")
    if torch.equal(one.nan_to_num(), other.nan_to_num()):
        return 0.0
    one, other = _numbers(one), _numbers(other)
    return float((one - other).abs().max() / one.abs().max().clamp_min(least))


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).nan_to_num().double()


def told(value: float) -> str:
    return "equal" if value == 0.0 else f"{value:.0e}"


# ---- one model ----


def compared(name: str, count: int, options: argparse.Namespace) -> dict[str, Any]:
    """A row."""
    task = made(name)
    row: dict[str, Any] = {"model": name, "parameters": sum(each.numel() for each in task.model.parameters()), "C": count}
    plain = Trained(task, PlainStep(task, LOCAL, count, fused=True), options.steps)
    row |= dict.fromkeys(("losses", "gradients", "weights"), "–") | {"checkpointed": checkpointed(name, plain, count)}
    row |= dict.fromkeys(("parts", "whole MiB", "cap MiB", "peak MiB", "time", "first step s", "refused"), "–")
    try:
        swapped, parts, whole, cap = under_a_cap(name, count, options)
    except UsageError as error:
        return row | {"refused": str(error)}
    except Exception as error:  # a fault: it is to be seen beside the others
        return row | {"refused": f"FAULT: {type(error).__name__}: {error}"}
    return row | {
        "losses": told(difference(*({"": torch.tensor(each.losses, dtype=torch.double)} for each in (plain, swapped)))),
        "gradients": told(difference(plain.gradients, swapped.gradients)),
        "weights": told(difference(plain.weights, swapped.weights)),
        "parts": parts, "whole MiB": whole / MIB, "cap MiB": cap / MIB, "peak MiB": swapped.peak / MIB,
        "time": swapped.step_seconds / plain.step_seconds, "first step s": swapped.seconds[0],
    }  # fmt: skip


def under_a_cap(name: str, count: int, options: argparse.Namespace) -> tuple[Trained, int, int, int]:
    """The training, the number of its parts, bytes of a step in one part, and the cap."""

    def trained(cap: int, steps: int) -> tuple[Trained, int]:
        task, lines = made(name), _Lines()
        with lines.heard():
            found = Trained(task, SwappedStep(task, Memory(cap=cap, accumulate=count), MeteredDevice(cap)), steps)
        return found, lines.parts

    whole = int(trained(1 << 50, 1)[0].peak)
    cap = int(options.share * whole)
    try:
        return *trained(cap, options.steps), whole, cap
    except UsageError as error:
        if (named := NAMED.search(str(error))) is None:
            raise
    cap = int(named[1]) * 1024
    return *trained(cap, options.steps), whole, cap


def checkpointed(name: str, plain: Trained, count: int) -> str:
    """The first step's gradients as the model's own checkpointing computes them."""
    task = made(name)
    try:
        if getattr(task.model, "supports_gradient_checkpointing", False):
            task.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        elif hasattr(task.model, "set_grad_checkpointing"):
            task.model.set_grad_checkpointing(True)
        else:
            return "–"
        found = Trained(task, PlainStep(task, LOCAL, count, fused=True), 1)
    except Exception as error:
        return f"fails ({type(error).__name__})"
    return told(difference(plain.gradients, found.gradients))


class _Lines(logging.Handler):
    """How many parts the log tells of."""

    parts = 0

    def emit(self, record: logging.LogRecord) -> None:
        if (found := re.match(r"swapping (\d+) parts", record.getMessage())) is not None:
            self.parts = int(found[1])

    @contextmanager
    def heard(self) -> Iterator[None]:
        of = logging.getLogger("stoker.runners.swap")
        level = of.level
        of.setLevel(logging.INFO)
        of.addHandler(self)
        try:
            yield
        finally:
            of.removeHandler(self)
            of.setLevel(level)


# ---- all of them ----


def wrong(row: dict[str, Any]) -> str | None:
    """What this benchmark shows not to be so."""
    if "\n" in row["refused"] or row["refused"].startswith("FAULT"):
        return "neither trained nor refused in one line"
    if row["refused"] != "–":
        return None
    if row["peak MiB"] > row["cap MiB"]:
        return "above its cap"
    apart = [column for column in ("losses", "gradients", "weights") if row[column] != "equal" and not float(row[column]) <= ROUNDING]
    return f"{', '.join(apart)} of another training" if apart else None


def chosen(names: Sequence[str]) -> list[str]:
    """By whole names, or else by the words with which they begin."""
    if not names:
        return list(MODELS)
    found = [
        name
        for wanted in names
        for name in ([wanted] if wanted in MODELS else [each for each in MODELS if re.match(rf"{re.escape(wanted)}\b", each)])
    ]
    if not found:
        raise SystemExit(f"--models: there is none of {', '.join(names)}; there are {', '.join(MODELS)}")
    return list(dict.fromkeys(found))


def main(given: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--models", nargs="*", default=[], help="names, or their first words (default: all)")
    parser.add_argument("--nanogpt", type=Path, help="nanoGPT's file model.py")
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[1, 2], help="of a step")
    parser.add_argument("--share", type=float, default=0.5, help="the cap, of what a step in one part takes")
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args(given)
    began = machine()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.nanogpt is not None:
        public_models.nanogpt(options.nanogpt)
    names = chosen(options.models)
    missing = public_models.absent(names)
    for line in missing.values():
        print(line, file=sys.stderr)
    rows: list[dict[str, Any]] = []
    for name, count in itertools.product([name for name in names if MODELS[name][0] not in missing], options.micro_batches):
        progress(f"{len(rows) + 1}: {name}, C = {count}")
        rows.append(compared(name, count, options))
    title = f"Under {options.share:g} of what one part takes, or the smallest cap; {options.steps} steps"
    show(options, began, {title: rows, "Of these": summary(rows)})
    faults = [f"{row['model']}, C = {row['C']}: {why}" for row in rows if (why := wrong(row)) is not None]
    for line in faults:
        print(f"wrong: {line}", file=sys.stderr)
    return 1 if faults else 0


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Counts, by the micro-batches of a step."""
    found = []
    for count in dict.fromkeys(row["C"] for row in rows):
        of = [row for row in rows if row["C"] == count]
        trained = [row for row in of if row["refused"] == "–"]
        equal = [row for row in trained if row["losses"] == row["gradients"] == row["weights"] == "equal"]
        recomputed = [row for row in of if row["checkpointed"] != "–" and not row["checkpointed"].startswith("fails")]
        found.append({
            "C": count, "models": len(of), "trained": len(trained), "equal": len(equal), "refused": len(of) - len(trained),
            "train with checkpointing": len(recomputed),
            "of these refused": sum(row["refused"] != "–" for row in recomputed),
            "time, median": median([row["time"] for row in trained] or [0.0]),
        })  # fmt: skip
    return found


if __name__ == "__main__":
    sys.exit(main())

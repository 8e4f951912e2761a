"""The first steps of a job, trained together with another job, which waits (spatial transfer, 002 ch. 3.2).

The lease is the first job's. After the phase that job continues from a checkpoint of its own, as if it had trained alone so far, and the
other job begins with a half of its own. If a process dies before, the other job has not run, and the first job's next attempt resumes
the phase at its checkpoint. A phase that fails, or whose weights are no longer finite, is not repeated: then the first job trains alone,
as if there had been none, and fails by its own faults only.
"""

from __future__ import annotations

import gc
import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch

from ...engine.errors import UsageError
from ...engine.protocol import MOST_WORDS
from ...engine.spec.model import Stop
from ..train.batches import Interrupted
from ..train.checkpoint import Checkpoints
from ..train.step import Step
from ..train.task import Task
from ..train.trainer import Trainer
from ..worker import script
from ..worker.ranks import Ranks
from .beginning import State, keep, known
from .joint_task import Together, joint, trained

log = logging.getLogger(__name__)

MOST_STEPS = 25  #: of a phase; the first job's whole training has at least twice as many as its phase
PHASE = "phase"  #: directory of its checkpoints


def part_of(partner: int) -> str:
    """Directory of the partner's half, below the first job's checkpoints."""
    return f"joint-{partner}"


def train_together(
    task: Task,
    partner: int,
    build: Callable[[], Task],
    work: Callable[[Task], Step | None],
    stop: Stop,
    checkpoints: Path,
    ranks: Ranks,
    *,
    begins: bool = False,
) -> bool:
    """Run the phase, unless it is over or impossible. False: asked to stop, and everything is in a checkpoint.

    ``build``: the partner's task; ``work``: makes the step, see `Trainer`; ``begins``: the first job begins with another job's weights,
    which a common training would not keep. The outcome is reported to the daemon, each time again.
    """
    folder = checkpoints / part_of(partner)
    found, state, own = Checkpoints(folder), known(checkpoints), Checkpoints(checkpoints).steps()
    together = state is not None and (state.phase, state.source) == ("joint", partner)
    if together and own and found.steps():
        shutil.rmtree(folder / PHASE, ignore_errors=True)
        _tell(task, partner, "joint", found.steps()[-1])
        return True
    if own or (state is not None and not together):
        return _apart(task, partner, "it has begun to train before")
    if begins:
        return _apart(task, partner, "a plan lets it begin with the weights of another job")
    if ranks.size > 1:
        return _apart(task, partner, "a gang trains with no other job")
    total = task.steps(stop)
    steps = min(MOST_STEPS, total // 2)
    start = trained(task.model)
    try:
        halves = _halves(task, partner, build, work, stop, folder, ranks, steps, total)
    except Interrupted:
        raise
    except Exception as error:  # mostly the other's fault; if it is the first job's, that fails alone too
        problem = " ".join(str(error).split()) or type(error).__name__
    else:
        if halves is None:
            return False
        step, saved, ours = halves
        keep(State("joint", partner, step), checkpoints)
        Checkpoints(checkpoints).save(step, _own(saved, ours, task))
        shutil.rmtree(folder / PHASE, ignore_errors=True)
        _tell(task, partner, "joint", step)
        return True
    shutil.rmtree(folder, ignore_errors=True)
    task.model.load_state_dict(start, strict=False)
    gc.collect()  # the other job's model, before the first one needs that memory
    if ranks.device.type == "cuda":
        torch.cuda.empty_cache()
    return _apart(task, partner, problem)


def _halves(
    task: Task,
    partner: int,
    build: Callable[[], Task],
    work: Callable[[Task], Step | None],
    stop: Stop,
    folder: Path,
    ranks: Ranks,
    steps: int,
    total: int,
) -> tuple[int, Mapping[str, Any], Mapping[str, Any]] | None:
    """The step after the phase, its last checkpoint and the first job's weights; the other's are written. None: asked to stop."""
    other = build()
    if other.leaves is None or task.leaves is None or not steps:
        raise UsageError("one of them leaves nothing" if steps else f"it has {total} steps in all")
    phase = joint(task, other, steps, total)
    log.info("trains %d steps together with job %d", steps, partner)
    if stop.metric == "loss":  # the common loss is not the first job's
        stop = msgspec.structs.replace(stop, metric=None, target=None)
    trainer = Trainer(phase, stop, folder / PHASE, ranks, work=work(phase), until=steps)
    if not trainer.run():
        return None
    assert isinstance(trainer.model, Together)
    ours, theirs = trainer.model.halves()
    if not all(bool(torch.isfinite(value).all()) for value in (*ours.values(), *theirs.values())):
        raise ArithmeticError(f"after {trainer.step} steps together the weights are no longer finite")
    saved = Checkpoints(folder / PHASE).load()
    assert saved is not None
    other.leaves.write_half(folder)
    Checkpoints(folder).save(trainer.step, {"model": theirs})
    return trainer.step, saved, ours


def _own(saved: Mapping[str, Any], weights: Mapping[str, Any], task: Task) -> dict[str, Any]:
    """A checkpoint of the first task alone: its parameters are the first of the common ones."""
    count = sum(parameter.requires_grad for parameter in task.model.parameters())
    optimizer = saved["optimizer"]
    groups, left = [], count
    for group in optimizer["param_groups"]:
        taken = group["params"][:left]
        groups.append({**group, "params": taken})
        left -= len(taken)
    state = {number: value for number, value in optimizer["state"].items() if number < count}
    return {**saved, "model": weights, "samples": len(task.train), "optimizer": {"state": state, "param_groups": groups}}


def _apart(task: Task, partner: int, why: str) -> bool:
    log.warning("does not train together with job %d: %s", partner, why)
    _tell(task, partner, "cold", 0, why)
    return True


def _tell(task: Task, partner: int, state: str, step: int, problem: str = "") -> None:
    if task.leaves is None:
        return
    why = f"does not train together with job {partner}: {problem}" if problem else f"has trained {step} steps together with job {partner}"
    script.report_of_adapters(
        begun={"state": state, "source": partner, "labels": task.leaves.labels, "step": step, "why": why[:MOST_WORDS]}
    )

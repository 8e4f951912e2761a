"""The first steps of a job that trains them together with another one, which waits (spatial transfer, 002 ch. 3.2).

The lease is one job's. At the end of the phase that job goes on from a checkpoint of its own, as if it had trained alone so far, and the
other one finds a half of its own, with which it begins. Whatever dies before, nothing of the other one has run: the first job's next
attempt takes the phase up at its checkpoint.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

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
from .joint_task import Together, joint

log = logging.getLogger(__name__)

MOST_STEPS = 25  #: of a phase, of which the first job's whole training has twice as many at least
PHASE = "phase"  #: directory of its checkpoints


def part_of(partner: int) -> str:
    """Directory of what a partner begins with, below the first job's checkpoints."""
    return f"joint-{partner}"


def train_together(
    task: Task,
    partner: int,
    build: Callable[[], Task],
    work: Callable[[Task], Step | None],
    stop: Stop,
    checkpoints: Path,
    ranks: Ranks,
) -> bool:
    """The phase, unless it is over, or cannot be. False: asked to stop, and everything is in a checkpoint.

    ``build``: the partner's task; ``work``: what a batch does to the weights, see `Trainer`. What came of it is told to the daemon, also
    where that was told before.
    """
    folder = checkpoints / part_of(partner)
    found, state, own = Checkpoints(folder), known(checkpoints), Checkpoints(checkpoints).steps()
    together = state is not None and (state.phase, state.source) == ("joint", partner)
    if together and own and found.steps():
        shutil.rmtree(folder / PHASE, ignore_errors=True)
        _tell(task, partner, "joint", found.steps()[-1])
        return True
    if own or (state is not None and not together):
        return _apart(task, partner, "it had begun to train before")
    if ranks.size > 1:
        return _apart(task, partner, "a gang trains with nobody together")
    total = task.steps(stop)
    steps = min(MOST_STEPS, total // 2)
    try:
        other = build()
        if other.leaves is None or task.leaves is None or not steps:
            raise UsageError("one of them leaves nothing" if steps else f"it has {total} steps in all")
        phase = joint(task, other, steps, total)
    except Interrupted:
        raise
    except Exception as error:  # of the other one's data, directory or memory: the first one does not fail by it
        return _apart(task, partner, " ".join(str(error).split()) or type(error).__name__)
    log.info("trains %d steps together with job %d", steps, partner)
    if stop.metric == "loss":  # that of both is not the first one's
        stop = msgspec.structs.replace(stop, metric=None, target=None)
    trainer = Trainer(phase, stop, folder / PHASE, ranks, work=work(phase), until=steps)
    if not trainer.run():
        return False
    assert isinstance(trainer.model, Together)
    ours, theirs = trainer.model.halves()
    saved = Checkpoints(folder / PHASE).load()
    assert saved is not None
    other.leaves.write_half(folder)
    found.save(trainer.step, {"model": theirs})
    keep(State("joint", partner, trainer.step), checkpoints)
    Checkpoints(checkpoints).save(trainer.step, _own(saved, ours, task))
    shutil.rmtree(folder / PHASE, ignore_errors=True)
    _tell(task, partner, "joint", trainer.step)
    return True


def _own(saved: Mapping[str, Any], weights: Mapping[str, Any], task: Task) -> dict[str, Any]:
    """A checkpoint of the first task alone: its parameters come first in those of both."""
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

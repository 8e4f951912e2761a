"""Short trainings from a training's current state, to compare learning rates (004 ch. 4.4.6 does it by hand); their results are dropped."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from ..worker import script
from ..worker.ranks import Ranks, any_rank
from . import rng
from .batch_feeds import Feed, Part
from .batches import Interrupted, Positions, to_device
from .feed_choice import Loading
from .reusing import Reusing
from .task import Task

_ONE_OF = 20  #: a trial takes one step for so many remaining ones
_LEAST, _MOST = 8, 200  #: steps of a trial
_JUDGED = 4  #: for so many of its steps one more batch is kept, on which it is judged


class Training(Protocol):
    """The training of a trial: a `Trainer`."""

    task: Task
    ranks: Ranks
    loading: Loading
    model: nn.Module
    optimizer: Optimizer
    reusing: Reusing | None
    total: int
    step: int

    def weight(self, part: Part) -> float: ...
    def update(self, batches: Sequence[Any], weight: float) -> torch.Tensor: ...


class Trials:
    """Trials on the samples that come next in the training, the same samples and random draws in each."""

    def __init__(self, trainer: Training, positions: Positions) -> None:
        self.trainer, self.positions = trainer, positions
        self.steps = min(max(_LEAST, (trainer.total - trainer.step) // _ONE_OF), _MOST)

    def loss(self, peaks: list[float]) -> float:
        """Mean loss on samples not trained on, after a short but whole schedule up to ``peaks``. Raises Interrupted on all ranks."""
        trainer = self.trainer
        model, optimizer = copy.deepcopy(trainer.model.state_dict()), copy.deepcopy(trainer.optimizer.state_dict())
        try:
            with rng.preserved():  # a controller of a pipeline may seed what it draws from as the feed is made
                feed = trainer.loading.once(self.positions.copy())
                try:
                    self._train(feed, peaks)
                    return self._judge(feed)
                finally:
                    feed.close()
        finally:
            trainer.model.load_state_dict(model)
            trainer.optimizer.load_state_dict(optimizer)

    def _train(self, feed: Feed, peaks: list[float]) -> None:
        trainer = self.trainer
        assert trainer.reusing is not None
        schedule = trainer.reusing.schedule(trainer.optimizer, self.steps, peaks)
        for _ in range(self.steps):
            part = _next(feed)
            trainer.update([part.data], trainer.weight(part))
            schedule.step()

    def _judge(self, feed: Feed) -> float:
        trainer, losses = self.trainer, []
        trainer.model.eval()
        for _ in range(max(1, self.steps // _JUDGED)):
            part = _next(feed)
            with torch.no_grad():
                loss = float(trainer.task.loss(trainer.model, to_device(part.data, trainer.ranks.device)))
            losses.append(trainer.ranks.sum(loss * trainer.weight(part) / trainer.ranks.size))
        return sum(losses) / len(losses)


def _next(feed: Feed) -> Part:
    """The next batch, or Interrupted on all ranks when any is asked to stop."""
    try:
        part = feed.fetch()
    except Interrupted:
        part = None
    if any_rank(part is None or script.should_stop()) or part is None:
        raise Interrupted
    return part

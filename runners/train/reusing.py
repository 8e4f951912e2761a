"""A training that uses samples again, and later goes on without reuse (004 ch. 4.4): its counts, its signals, the end of the stage.

All ranks give the rule the same numbers, so they switch at the same step. Its whole state is in the checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...engine.errors import UsageError
from ...engine.spec.model import Reuse
from ..loaders.reuse import theory
from ..loaders.reuse.schedules import FineTune, HighestRates, rule_peak, search_peak, spread
from ..loaders.reuse.switch import FIRST_USES, SwitchRule
from ..worker.ranks import Ranks
from . import rng
from .batch_feeds import Part
from .batches import Order, to_device

if TYPE_CHECKING:
    from .task import Task

log = logging.getLogger(__name__)

_PROBE_EVERY = 4  #: steps; a probe is a forward pass of 1/repeat of a batch: with 3 uses some 3 % of the computation


class Reusing:
    """The stage of a training, and the rule that ends it."""

    def __init__(self, spec: Reuse, task: Task, total: int, order: Order, ranks: Ranks) -> None:
        self.spec, self.task, self.total, self.ranks = spec, task, total, ranks
        self.stage = 1
        self.fresh = 0  #: samples that all ranks have used, each counted once in a pass
        self.peaks: list[float] = []  #: learning rates of the second stage, one a group
        self._pass = order.steps_per_epoch * order.batch_size
        self._rates = HighestRates()
        evaluates = task.evaluate is not None and bool(task.eval_every)
        watch = spec.switch.watch
        if spec.switch.on == "plateau" and watch not in (None, FIRST_USES) and not evaluates:
            raise UsageError(
                f"reuse.switch.plateau.watch: {watch!r} is never known before the end: the task has no evaluate() with eval_every; "
                f"watch {FIRST_USES}, or give the switch by epochs or fraction"
            )
        epochs = total * order.batch_size / spec.repeat / self._pass
        self.rule = SwitchRule(spec.switch, total, evaluates=evaluates, epochs=epochs)

    @property
    def due(self) -> bool:
        """Whether the first stage is to end before the next step."""
        return self.stage == 1 and self.rule.due

    @property
    def epochs(self) -> float:
        """Passes over the data, by fresh samples."""
        return self.fresh / self._pass

    def warn(self, optimizer: Optimizer, capacity: int, part: int, samples: int) -> None:
        """Say in the log where the settings are a bad mix (Eqn 4.21). ``samples``: of a rank's part of the data."""
        groups = optimizer.param_groups
        warning = theory.warning(
            repeat=self.spec.repeat,
            buffer=min(capacity, samples),
            batch_size=part,
            samples=samples,
            steps=self.total,
            lr=max(float(group.get("max_lr", group.get("initial_lr", group["lr"]))) for group in groups),
            weight_decay=max(float(group.get("weight_decay", 0.0)) for group in groups),
            augment=self.task.augment is not None and self.spec.augment == "each-use",
        )
        if warning is not None and self.ranks.first:
            log.warning("%s", warning)

    # ---- in a step ----

    def probes(self, step: int) -> bool:
        """Whether the first uses of the batch of this step are to be judged before it is trained on."""
        return self.stage == 1 and self.rule.watches_first_uses and step % _PROBE_EVERY == 0

    def probes_after(self, step: int, batches: int) -> bool:
        """The same for the step so many batches later."""
        return self.probes(step + batches)

    def probe(self, step: int, model: nn.Module, part: Part) -> dict[str, float]:
        """The loss on samples of the batch that the model has not been trained on yet; {} when there are none."""
        loss, count = 0.0, 0
        if part.first is not None:
            model.eval()
            with rng.preserved(), torch.no_grad():
                loss = float(self.task.loss(model, to_device(part.first, self.ranks.device)))
            count = part.fresh
        total, samples = self.ranks.sum(loss * count), round(self.ranks.sum(count))
        if not samples:
            return {}
        self.rule.first_use(step, self.epochs, total / samples, samples)
        return {FIRST_USES: total / samples}

    def before(self, optimizer: Optimizer) -> None:
        """A step is about to be made."""
        if self.stage == 1:
            self._rates.saw(optimizer)

    def trained(self, step: int, fresh: int) -> dict[str, float]:
        """``step`` steps are done; in the last one this rank used ``fresh`` samples for the first time. The values to report."""
        stage = self.stage
        self.fresh += round(self.ranks.sum(fresh))
        if stage == 1:
            self.rule.stepped(step, self.epochs)
        return {"fresh_samples": float(self.fresh), "stage": float(stage)}

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        """The task has been evaluated, with this result on all ranks."""
        if self.stage == 1:
            self.rule.evaluated(self.epochs, metrics)

    # ---- the second stage ----

    def choose_peak(self, trial: Callable[[list[float]], float]) -> None:
        """Choose the learning rate of the second stage. ``trial``: the loss after a short training with these rates."""
        highest = max(self._rates.highest)
        peak = self.spec.peak
        if peak == "rule":
            peak = rule_peak(highest)
        elif peak == "search":
            peak, losses = search_peak(highest, lambda tried: trial(spread(tried, self._rates.highest)))
            tried = ", ".join(f"{value:.3g}: {loss:.4f}" for value, loss in losses.items())
            log.info("learning rates tried for the stage without reuse, and their losses: %s", tried)
        self.peaks = spread(float(peak), self._rates.highest)

    def schedule(self, optimizer: Optimizer, steps: int, peaks: list[float]) -> FineTune:
        return FineTune(optimizer, steps, kind=self.spec.schedule, peaks=peaks)

    def enter(self, step: int) -> None:
        """The second stage has begun."""
        self.stage = 2
        log.info(
            "step %d of %d, %.2f passes over the data: from here on without reuse, as %s; learning rate by %s up to %.3g",
            step, self.total, self.epochs, self.rule.reason, self.spec.schedule, max(self.peaks),
        )  # fmt: skip

    # ---- the checkpoint ----

    def state(self) -> dict[str, Any]:
        return {
            "repeat": self.spec.repeat,
            "stage": self.stage,
            "fresh": self.fresh,
            "peaks": list(self.peaks),
            "rule": self.rule.state_dict(),
            "rates": self._rates.state_dict(),
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        if state["repeat"] != self.spec.repeat:
            raise UsageError(f"reuse.repeat: the checkpoint was made with {state['repeat']}, the job has {self.spec.repeat}")
        self.stage, self.fresh, self.peaks = int(state["stage"]), int(state["fresh"]), list(state["peaks"])
        self.rule.load_state_dict(state["rule"])
        self._rates.load_state_dict(state["rates"])

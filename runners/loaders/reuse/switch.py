"""The final end of the stage with reuse (004 ch. 4.4.1, 4.4.5): on a plateau, after so many passes, or at a share of all steps.

The loss on reused samples falls while validation does not (it is a training loss on samples just learnt: on a small network,
five uses apiece, 0.81, 0.76, 0.69, 0.63, 0.57 by use, validation 0.76), so a plateau is looked for in a validation metric or in
the loss on samples used for the first time, computed before the step on them.

A rule depends on its inputs alone, and these are the same on all ranks: the steps are common, the metrics are those of rank 0
sent to all, a loss on first uses is sum(loss x samples) / sum(samples) over the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ....engine.errors import UsageError, nearest
from ....engine.spec.model import Switch

__all__ = ["FIRST_USES", "Switch", "SwitchRule"]

FIRST_USES = "first_use_loss"  #: the loss on samples that the model was not trained on yet, as a watched metric
_LOOKS = 24  #: a whole training gives so many means of the loss on first uses; a single batch's is too noisy to judge


class SwitchRule:
    """Gets each step and each evaluation; True from the step on after which the training has no reuse.

    ``steps``: of the whole training. ``evaluates``: whether there will be metrics; without them, and without a name to watch, the
    loss on first uses is watched. ``epochs``: the most passes over the data that the stage with reuse could make, if known.
    """

    def __init__(self, switch: Switch, steps: int, *, evaluates: bool = False, epochs: float | None = None) -> None:
        _check(switch, steps, epochs)
        self.switch, self.steps = switch, steps
        self.due = False
        self.reason = ""  #: in words, once it is due
        self.best = math.nan
        self.looks_since = 0  #: without an improvement
        self._sum = 0.0
        self._samples = 0
        self._look_at = 0  #: the step of the last mean
        self._watch = switch.watch if switch.watch is not None or evaluates else FIRST_USES

    @property
    def watches_first_uses(self) -> bool:
        """Whether `first_use` has to be called."""
        return self.switch.on == "plateau" and self._watch == FIRST_USES

    @property
    def last_step(self) -> int:
        """The hard budget: the step at which stage 1 ends whatever the watched metric; all steps if ``epochs`` decide."""
        if self.switch.on == "epochs":
            return self.steps
        return max(1, math.floor(self.steps * (1 - self.switch.fraction)))

    def stepped(self, step: int, epochs: float) -> bool:
        """``step`` steps are done, and ``epochs`` passes over the data: samples decoded, whatever the number of their uses."""
        if self.switch.on == "epochs" and self.switch.epochs is not None and epochs >= self.switch.epochs:
            self._end(f"{self.switch.epochs:g} passes over the data are done")
        elif self.switch.on != "epochs" and step >= self.last_step:
            self._end(f"{self.switch.fraction:.0%} of the steps are left")
        return self.due

    def first_use(self, step: int, epochs: float, loss: float, samples: int) -> bool:
        """The mean loss on ``samples`` samples before they were first trained on, after ``step`` steps."""
        if self.watches_first_uses and math.isfinite(loss):
            self._sum, self._samples = self._sum + loss * samples, self._samples + samples
        if self._samples and step - self._look_at >= max(1, self.steps // _LOOKS):
            self._look_at = step
            value, self._sum, self._samples = self._sum / self._samples, 0.0, 0
            self._look(FIRST_USES, value, epochs)
        return self.due

    def evaluated(self, epochs: float, metrics: Mapping[str, float]) -> bool:
        """The model was evaluated on data held out."""
        if self.switch.on != "plateau" or self._watch == FIRST_USES or not metrics:
            return self.due
        watch = self._watch or next(iter(metrics))
        if watch not in metrics:
            known = ", ".join(sorted(metrics))
            raise UsageError(f"reuse.switch.plateau.watch: this task reports no {watch!r}{nearest(watch, metrics)}; it reports {known}")
        self._look(watch, float(metrics[watch]), epochs)
        return self.due

    def _look(self, name: str, value: float, epochs: float) -> None:
        if self._improved(name, value):
            self.best, self.looks_since = value, 0
            return
        self.looks_since += 1
        if self.looks_since >= self.switch.patience and epochs >= self.switch.min_epochs:
            self._end(f"{name} has not improved by {self.switch.min_delta:.2%} in {self.looks_since} looks (best {self.best:.4g})")

    def _improved(self, name: str, value: float) -> bool:
        if not math.isfinite(value):
            return False
        if math.isnan(self.best):
            return True
        least = self.switch.min_delta * abs(self.best)
        return value > self.best + least if self._rises(name) else value < self.best - least

    def _rises(self, name: str) -> bool:
        if self.switch.mode is not None:
            return self.switch.mode == "max"
        return not any(word in name.lower() for word in ("loss", "error"))

    def _end(self, reason: str) -> None:
        if not self.due:
            self.due, self.reason = True, reason

    def state_dict(self) -> dict[str, Any]:
        return {
            "due": self.due,
            "reason": self.reason,
            "best": self.best,
            "looks_since": self.looks_since,
            "sum": self._sum,
            "samples": self._samples,
            "look_at": self._look_at,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.due, self.reason = bool(state["due"]), str(state["reason"])
        self.best, self.looks_since = float(state["best"]), int(state["looks_since"])
        self._sum, self._samples, self._look_at = float(state["sum"]), int(state["samples"]), int(state["look_at"])


def _check(switch: Switch, steps: int, epochs: float | None) -> None:
    if steps < 2:
        raise UsageError(f"reuse.switch: {steps} steps cannot be divided into a stage with reuse and one without")
    if not 0 < switch.fraction < 1:
        field = "reuse.switch.plateau.fraction" if switch.on == "plateau" else "reuse.switch.fraction"
        raise UsageError(f"{field}: {switch.fraction:g} is no share of the steps; give one between 0 and 1, as 0.25")
    if switch.patience < 1:
        raise UsageError(f"reuse.switch.plateau.patience: {switch.patience} looks make no plateau; give 1 or more")
    if switch.min_delta < 0:
        raise UsageError(f"reuse.switch.plateau.min_delta: {switch.min_delta:g} is below 0")
    if switch.on != "epochs":
        return
    if switch.epochs is None or switch.epochs <= 0:
        raise UsageError("reuse.switch.epochs: the passes over the data before the switch are missing; give a number above 0")
    if epochs is not None and switch.epochs >= epochs:
        raise UsageError(
            f"reuse.switch.epochs: {switch.epochs:g} passes over the data are more than {steps} steps make with reuse ({epochs:.3g}); "
            "give fewer, or more steps"
        )

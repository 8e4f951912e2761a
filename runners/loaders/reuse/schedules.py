"""The learning rate after the switch (004 ch. 4.4.3, 4.4.6): built from the remaining steps, warmed up from the last rate of stage 1.

It begins at the rate of the switch (`torch.optim.lr_scheduler.OneCycleLR` begins at max_lr / 25 whatever the rate was), leaves
momentum and betas alone, and stays at its last value when it is stepped past its end.

The optimizer's state (momentum, Adam's moments) is kept at the switch. In the experiment of `rule_peak` with 25 % of the
steps left, keeping it, resetting it, and resetting first moments only ended at held-out losses .1779, .1772 and .1781 with AdamW,
.1858 and .1863 with SGD: no difference, and the warm-up begins at the rates of the moments. Cycling SGD's momentum
(0.95 to 0.85, as OneCycleLR does) gave .1907 instead of .1858.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ....engine.errors import UsageError

Kind = Literal["onecycle", "cosine"]

_WARMUP = 0.3  #: of the steps, the share in which "onecycle" goes from the rate at the switch to the peak
_END = 1e-3  #: the last rate as a share of the peak: a training continued past its end still moves, a little


class FineTune(LRScheduler):
    """``onecycle``: along a cosine from the rate at the switch to the peak in 30 % of the steps, then down; ``cosine``: down from the peak.

    ``peaks``: one per parameter group. Its state holds rates and steps, so that an object built with any other values goes on
    exactly where the saved one was.
    """

    def __init__(self, optimizer: Optimizer, steps: int, *, kind: Kind, peaks: Sequence[float]) -> None:
        if steps < 1:
            raise UsageError(f"reuse.schedule: {steps} steps are left for the stage without reuse; switch earlier")
        if len(peaks) != len(optimizer.param_groups) or not all(math.isfinite(peak) and peak >= 0 for peak in peaks) or not any(peaks):
            raise UsageError(f"reuse.peak: {list(peaks)} are not learning rates above 0 for {len(optimizer.param_groups)} parameter groups")
        self.steps, self.kind, self.peaks = steps, kind, [float(peak) for peak in peaks]
        self.starts = rates(optimizer)
        super().__init__(optimizer)

    def get_lr(self) -> list[float | torch.Tensor]:
        """The rates of the step that comes next."""
        step = min(self.last_epoch, self.steps - 1)
        return [self._rate(step, start, peak) for start, peak in zip(self.starts, self.peaks, strict=True)]

    def _rate(self, step: int, start: float, peak: float) -> float:
        warmup = round(_WARMUP * self.steps) if self.kind == "onecycle" else 0
        if step < warmup:
            return _between(start, peak, step / warmup)
        return _between(peak, _END * peak, (step - warmup) / max(1, self.steps - 1 - warmup))


def _between(start: float, end: float, way: float) -> float:
    return start + (end - start) * (1 - math.cos(math.pi * way)) / 2


def rates(optimizer: Optimizer) -> list[float]:
    """The learning rate of each group now."""
    return [float(group["lr"]) for group in optimizer.param_groups]


class HighestRates:
    """The highest learning rate of each group so far. No optimizer keeps it: ``initial_lr`` is max_lr / 25 under OneCycleLR."""

    def __init__(self) -> None:
        self.highest: list[float] = []

    def saw(self, optimizer: Optimizer) -> None:
        """To be called before each step of stage 1."""
        now = rates(optimizer)
        self.highest = [max(pair) for pair in zip(self.highest, now, strict=True)] if self.highest else now

    def state_dict(self) -> dict[str, Any]:
        return {"highest": list(self.highest)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.highest = [float(rate) for rate in state["highest"]]


_PEAK_SHARE = 0.45  #: of the highest rate of stage 1
_CANDIDATES = (0.5, 1.0, 2.0)  #: times the rule's peak, which a search tries


def rule_peak(highest: float) -> float:
    """The peak for the group with the highest rate of stage 1: 0.45 times that rate.

    The text's peaks, tuned by hand, are 0.46, 0.21, 0.57, 0.34 and 0.56 times the 0.35 of its stage 1 (47, 32, 32, 18 and 5 % of the
    steps left), with no trend in what is left. Held-out loss here (1,000 digits to train on, 4,000 held out, r = 3 through a buffer
    of one batch, OneCycle in stage 1, means of 4 seeds, standard deviation between seeds 0.024 for SGD and 0.006 for AdamW):

    ==================  =====  =====  =====  =====  =====
    peak / highest       0.1    0.25   0.45   0.7    1.0
    ==================  =====  =====  =====  =====  =====
    SGD, 50 % left      .1912         .1784         .1823
    SGD, 25 % left      .1932  .1890  .1858  .1886  .1893
    SGD, 10 % left      .1979         .1993         .2100
    SGD, 25 %, r = 6    .2222         .2057         .2199
    AdamW, 25 % left    .1831         .1779  .1760  .1738
    AdamW, 10 % left    .1832         .1822
    ==================  =====  =====  =====  =====  =====

    The curve is flat around its best: any dependence on the steps left or on the optimizer is within noise.
    """
    return _PEAK_SHARE * highest


def fine_tune_schedule(
    optimizer: Optimizer, steps: int, highest: HighestRates, *, kind: Kind = "onecycle", peak: float | None = None
) -> FineTune:
    """The schedule for the remaining ``steps``, with the rule's peak unless one is given. ``highest``: the highest rates of stage 1."""
    return FineTune(optimizer, steps, kind=kind, peaks=spread(peak or rule_peak(max(highest.highest)), highest.highest))


def spread(peak: float, highest: Sequence[float]) -> list[float]:
    """A peak for each group: ``peak`` for that with the highest rate of stage 1, in proportion for the others."""
    top = max(highest)
    return [peak * rate / top for rate in highest] if top > 0 else [peak] * len(highest)


def search_peak(highest: float, trial: Callable[[float], float]) -> tuple[float, dict[float, float]]:
    """The candidate with the lowest loss, and the losses of all; nan counts as infinite.

    ``trial(peak)``: from a snapshot, a whole schedule up to that peak in a few steps, on the same fresh samples for every
    candidate; the loss on samples held out; then the snapshot restored. Candidates are multiples of the rule's peak, which is also
    the answer if all diverge.

    A search costs one trial per candidate, and short trials favour low rates. In seven trainings whose stage 2 had 155 steps, trials
    of 10 and 20 steps put a quarter of the rule's peak first 8 times of 14, while the whole stage 2 never did. The choice of trials of
    40 steps ended between .0115 below and .0073 above the rule's held-out loss, .0016 below it in the mean. So no candidate is far
    below the rule's peak, and the rule is the default.
    """
    losses = {}
    for factor in _CANDIDATES:
        loss = trial(factor * rule_peak(highest))
        losses[factor * rule_peak(highest)] = loss if math.isfinite(loss) else math.inf
    best = min(losses, key=lambda peak: losses[peak])
    return (best if math.isfinite(losses[best]) else rule_peak(highest)), losses

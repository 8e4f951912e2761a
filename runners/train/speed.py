"""The time of a training's steps, taken while it runs (002 ch. 5.3.2.1); `profiling_run` measures it by a run of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any

from ..worker import script

if TYPE_CHECKING:
    from torch import nn

    from ..worker.ranks import Ranks

ENOUGH_STEPS = 20  #: timed steps of a kind that are enough for a report
LEAST_STEPS = 5  #: timed steps below which nothing is reported
_WARM_UP = 3  #: steps of a training that are not timed: allocators, autotuning and first collectives
_WINDOW = 10.0  #: seconds between two reports of a training, and of at least `ENOUGH_STEPS` steps


class Watch:
    """Times the steps of a training on its first rank, and does nothing else; DDP itself has noted the time of synchronisation."""

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        self.ranks = ranks
        self.noted: Callable[[], dict[str, Any]] = getattr(model, "_get_ddp_logging_data", dict)
        if ranks.size > 1 and ranks.first:
            model._set_ddp_runtime_logging_sample_rate(1)  # type: ignore[operator]  # DDP's own default is every 100th step
        self.left_out = _WARM_UP
        self.since = time.monotonic()
        self.whole: list[float] = []
        self.apart: list[float] = []  #: the part of each that synchronisation took after the last gradient was there

    def stepped(self, seconds: float) -> None:
        """A step is done, loading included."""
        if not self.ranks.first or self.left_out:
            self.left_out = max(self.left_out - 1, 0)
            return
        exposed = self._exposed() if self.ranks.size > 1 else 0.0
        if exposed is None:
            return
        self.whole.append(seconds)
        self.apart.append(min(exposed, seconds))
        if len(self.whole) >= ENOUGH_STEPS and time.monotonic() - self.since >= _WINDOW:
            self.tell()

    def tell(self) -> None:
        """Report the times since the last report, if they are enough."""
        if len(self.whole) >= LEAST_STEPS and median(self.whole) > 0:
            whole, apart = median(self.whole), median(self.apart)
            communication = apart / (self.ranks.size - 1) if self.ranks.size > 1 else None
            # Never nothing: where synchronisation is nearly all of a step, its own median may be above the step's.
            script.report_speed(steps=len(self.whole), compute=max(whole - apart, 1e-3 * whole), communication=communication)
        self.whole, self.apart, self.since = [], [], time.monotonic()

    def _exposed(self) -> float | None:
        """Seconds that the newest step on record waited for gradients of others; None: DDP has noted nothing."""
        noted = self.noted()
        try:
            nanoseconds = float(noted["backward_comm_time"] - noted["backward_compute_comm_overlap_time"])
        except KeyError:
            return None
        return max(0.0, nanoseconds / 1e9)

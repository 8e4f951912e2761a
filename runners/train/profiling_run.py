"""How long a step takes, measured by a profiling run of its own (002 ch. 5.3.2.1).

A step's time is that of loading its batch, computing, and letting the ranks agree. Communication is left out of the computation and
reported as seconds that each rank after the first adds: the terms of Eqn 5.2.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ..worker import script
from ..worker.ranks import any_rank
from .batches import Interrupted
from .speed import ENOUGH_STEPS, LEAST_STEPS
from .trainer import Trainer

log = logging.getLogger(__name__)

_ROUND = 4  #: steps of a kind in a row; the first still feels the other kind (DDP synchronises buffers one forward later)
_MOST_TIMED_STEPS = 400  #: timed steps after which it ends, however they scatter
_PRECISION = 0.02  #: relative standard error that is good enough
_MOST_SECONDS = 300.0  #: seconds of measuring, unless the first round takes longer: UniSched's lease of a profiling run


@dataclass(slots=True)
class Times:
    """Seconds of steps by kind: loading of the batch, the whole of a step that is not synchronised, and of one that is."""

    loading: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    together: list[float] = field(default_factory=list)

    def extend(self, later: Times) -> None:
        self.loading += later.loading
        self.alone += later.alone
        self.together += later.together

    def steps(self) -> int:
        """Timed steps of each kind."""
        return min(len(self.alone), len(self.together))

    def precise(self) -> bool:
        return self.steps() >= ENOUGH_STEPS and max(map(standard_error, (self.alone, self.together))) < _PRECISION

    def summary(self) -> tuple[float, float, float]:
        return median(self.loading), median(self.alone), median(self.together)


def standard_error(seconds: Sequence[float]) -> float:
    """Of the median, relative to it, by the median absolute deviation: a few delayed steps do not count."""
    middle = median(seconds)
    deviation = 1.4826 * median(abs(value - middle) for value in seconds)
    return 1.2533 * deviation / math.sqrt(len(seconds)) / middle if middle > 0 else math.inf


def terms(ranks: Sequence[tuple[float, float, float]]) -> tuple[float, float | None]:
    """Seconds of computation, and seconds that each rank after the first adds, from all ranks' `Times.summary`; the slowest sets the pace.

    The latter is None for a single rank, and 0 if synchronised steps were no slower.
    """
    compute = max(loading + alone for loading, alone, _ in ranks)
    if len(ranks) == 1:
        return compute, None
    whole = max(loading + together for loading, _, together in ranks)
    return compute, max(0.0, whole - compute) / (len(ranks) - 1)


class Profiling:
    """A run that only measures: its training is thrown away. Each rank has the part of the batch that it would have in the whole gang."""

    def __init__(self, trainer: Trainer, clock: Callable[[], float] = time.perf_counter) -> None:
        self.trainer, self.clock = trainer, clock
        self.times = Times()
        self.loaded: list[float] = []  #: seconds that each batch of a round took to come

    def run(self) -> bool:
        """Measure, and close the trainer. True: enough; False: asked to stop before.

        Even then the figures are reported, if they are good enough.
        """
        try:
            return self._run()
        finally:
            self.trainer.close()

    def _run(self) -> bool:
        ranks = self.trainer.ranks
        until = self.clock() + _MOST_SECONDS
        rounds = 0
        while True:
            batches = self._load()
            stop, late, precise = self._agree(batches is None or script.should_stop(), self.clock() + self._ahead() > until)
            if batches is None or stop or late or precise or self.times.steps() >= _MOST_TIMED_STEPS:
                break
            try:
                measured = self._round(batches)
            except Interrupted:
                stop = True
                break
            if rounds < 2:  # the first warms up, and counts only if there is no time for another
                self.times = measured
            else:
                self.times.extend(measured)
            rounds += 1
        steps = self.times.steps()
        if steps >= (1 if late else LEAST_STEPS):  # a lease has room for a few slow steps only; they are better than none
            compute, communication = terms(ranks.gather(self.times.summary()))
            if ranks.first:
                self._tell(compute, communication, steps)
        return not stop

    def _ahead(self) -> float:
        """Seconds that the steps of another round take at least; 0: not known yet. A slow first round does not predict the next."""
        return _ROUND * (min(self.times.alone, default=0.0) + min(self.times.together, default=0.0))

    def _agree(self, stop: bool, late: bool) -> tuple[bool, bool, bool]:
        """(any rank is to stop, any rank is late, every rank has enough)."""
        said = self.trainer.ranks.gather((stop, late, self.times.precise()))
        stops, lates, precise = zip(*said, strict=True)
        return any(stops), any(lates), all(precise)

    def _load(self) -> list[list[Any]] | None:
        """The batches of the steps of one round, before any rank waits for another; None when asked to stop meanwhile."""
        batches = []
        self.loaded = []
        for _ in range(2 * _ROUND):
            begun = self.clock()
            parts = self.trainer.parts()
            if parts is None:
                return None
            self.loaded.append(self.clock() - begun)
            batches.append([part.data for part in parts])
        return batches

    def _round(self, batches: Sequence[Sequence[Any]]) -> Times:
        unsynchronised = getattr(self.trainer.parallel, "no_sync", nullcontext)
        with unsynchronised():
            alone = [self._timed(batch, together=False) for batch in batches[:_ROUND]][1:]
        together = [self._timed(batch, together=True) for batch in batches[_ROUND:]][1:]
        return Times(self.loaded, alone, together)

    def _timed(self, batch: Sequence[Any], *, together: bool) -> float:
        """One step, to the last operation on the device: reading the loss waits for them."""
        begun = self.clock()
        loss = self.trainer.update(batch, 1.0).item()
        if together:  # the other communication of a step
            self.trainer.ranks.sum(loss)
            any_rank(False)
        return self.clock() - begun

    def _tell(self, compute: float, communication: float | None, steps: int) -> None:
        script.report_speed(steps=steps, compute=compute, communication=communication, total=self.trainer.total)
        told = "" if communication is None else f", and {communication:.4g} s for each GPU after the first"
        log.info("measured %d steps: %.4g s of computation%s", steps, compute, told)

"""How long prompt tuning takes on so many GPUs: T_i(a) of 002 table 4.4."""

from __future__ import annotations

import math

import numpy as np

from ..contract import Demand, Floats, Ints, View
from ..queues.elastic import Curves, Pool


class JobTimes:
    """Rows are those of ``view.jobs``.

    A job's time is an upper bound: the most iterations that it may still need, times the most seconds of one (002 ch. 4.4.4). Those are the
    mean that was measured on the slowest kind of GPU, or for a running job its own.
    """

    def __init__(self, view: View, curves: Curves) -> None:
        jobs = view.jobs
        self._pool, self._curves = Pool(view), curves
        self._work: Floats = jobs.remaining if jobs.remaining_most is None else np.fmax(jobs.remaining, jobs.remaining_most)
        self.deadline: Floats = np.where(jobs.demand == Demand.BEST_EFFORT, np.inf, jobs.deadline)  #: moments; inf: none

    def sizes(self, row: int) -> list[int]:
        """Numbers of GPUs that it can have, ascending."""
        gpus: list[int] = self._curves.of(self._pool, row).gpus.tolist()
        return gpus

    def seconds(self, row: int, gpus: int) -> float:
        """Seconds until the job ends if it starts now on warm GPUs; NaN: not known."""
        curve = self._curves.of(self._pool, row)
        return float(self._work[row] / np.interp(gpus, curve.gpus, curve.speed))

    def fewest(self, row: int, seconds: float, room: int) -> int:
        """The fewest GPUs, at most ``room``, on which it ends within so many seconds, or may do so if its length is unknown; 0: none."""
        for gpus in self.sizes(row):
            if gpus > room:
                break
            takes = self.seconds(row, gpus)
            if takes <= seconds or math.isnan(takes):
                return gpus
        return 0

    def most_urgent(self, rows: Ints) -> list[int]:
        """The jobs by their deadlines, those without one last; of equals the first submitted first."""
        order: list[int] = rows[np.argsort(self.deadline[rows], kind="stable")].tolist()
        return order

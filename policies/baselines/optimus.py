"""Optimus: GPUs go where they shorten the remaining time most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..contract import Floats, Plan, View, tunable
from ..keys import check_round
from ..queues.elastic import Curves, Pool, begin, divide, in_round, pack, start, water_fill


class Optimus:
    """The next GPU goes to the job whose remaining time it shortens most (Peng et al., EuroSys 2018).

    With Q_j the remaining work and f_j(n) the speed on n GPUs, the sum of Q_j / f_j(n_j) is minimised (section 4.1). Every job gets
    ``gpus_min`` first, the smallest gangs first, as section 4.2 places the smallest demand first. The paper's jobs all start on one
    worker, so that starves none; here a large gang waits for as long as smaller ones take its place. Then GPUs
    go one after another to the largest marginal gain Q_j / f_j(n) - Q_j / f_j(n + 1), until no GPU is left or none brings a gain.
    A GPU of ours takes the place of the paper's pair of worker and parameter server. The gain of a job that has hardly
    begun is multiplied by ``young_factor``, as its estimates are the worst (section 4.1).

    Works in rounds of 10 minutes, the paper's; 002 ch. 3.5.1 uses 5 (``round=300``). Between rounds nothing is resized or started.
    """

    @dataclass(frozen=True)
    class Config:
        unknown: float = tunable(3600.0, "seconds that a job of unknown length is taken to need at least", low=1.0, high=1e7)
        young_factor: float = tunable(0.95, "factor on the gain of a job that has hardly begun", low=0.1, high=1.0)
        young: float = tunable(600.0, "seconds of training below which a job has hardly begun", low=0.0, high=1e6)
        look_ahead: int = tunable(1, "GPUs that may be added in one step, to skip numbers without a gain; 1: the paper's", low=1, high=64)
        migrate: bool = tunable(True, "smaller jobs may be moved to make room for a larger gang")
        round: float = tunable(600.0, "seconds from one round to the next; 0: at every event", low=0.0, high=86400.0)

        def __post_init__(self) -> None:
            check_round(self.round)

    name: ClassVar[str] = "optimus"
    elastic: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        self.config = config
        self.interval = config.round or None
        self.curves = Curves()

    def plan(self, view: View) -> Plan:
        return in_round(view, self.config.round) or self._begin(Pool(view))

    def _begin(self, pool: Pool) -> Plan:
        view = pool.view
        order = pool.rows[np.argsort(view.jobs.gpus_min[pool.rows], kind="stable")]
        started, left = start(order, view.jobs.gpus_min, pool.budget)
        curves = [self.curves.of(pool, row) for row in started]
        weight = self._remaining(view) * np.where(view.jobs.run_time < self.config.young, self.config.young_factor, 1.0)
        worth = [-weight[row] / curve.speed for row, curve in zip(started, curves, strict=True)]
        at = water_fill([curve.gpus for curve in curves], worth, [0] * len(started), left, look_ahead=self.config.look_ahead)
        wanted = {row: int(curve.gpus[option]) for row, curve, option in zip(started, curves, at, strict=True)}
        given = pack(pool, wanted, lambda row, n: self.curves.of(pool, row).fewer(n), migrate=self.config.migrate)
        return begin(pool, divide(pool, given, order))

    def _remaining(self, view: View) -> Floats:
        guess = np.maximum(self.config.unknown, view.jobs.run_time)
        return np.maximum(np.where(np.isnan(view.jobs.remaining), guess, view.jobs.remaining), 0.0)

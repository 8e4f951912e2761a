"""Pollux: divides GPUs, and chooses batch sizes, for the best goodput that is fair to all jobs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ..contract import Floats, Ints, Jobs, Phase, Plan, View, tunable
from ..keys import check_round
from ..queues.elastic import ROUND_KEY, Curves, Pool, SpeedCurve, begin, divide, in_round, pack, sizes, water_fill
from ..queues.exchange import exchange

_SPEEDUP_WITHOUT_GPUS = 1e-3  #: added to every speedup, as by the authors, so that a job without GPUs has a finite claim


class Pollux:
    """GPUs go where the power mean of all jobs' speedups rises most (Qiao et al., OSDI 2021, section 4.2).

    The speedup of a job on n GPUs is its goodput there over its goodput on a fair share, an even part of the pool. With
    ``adapt_batch_size`` the goodput is the best over all batch sizes (section 4.1), and the plan names that batch size; without, and
    for a job without a goodput model, it is the throughput at the job's own batch size (002 ch. 3.5.1 turns the
    tuning off). FITNESS = (mean of speedup ** p) ** (1 / p), and p = -1 is the paper's choice: the more negative, the
    fairer. A running job that would be changed counts only (T - R d) / (T + d) of its speedup: T is its age, R its number of
    changes, d the cost of a change (``restart``).

    The authors search with a genetic algorithm over jobs x nodes. Here every gang is placed on as few nodes as can be, so
    fitness is a sum over jobs that depends on their numbers of GPUs alone, and is concave except for the penalty and the step from one node
    to several. Except for that step, handing out GPUs one after another gives the best division without penalty; from there, and
    from the division in force, GPUs change hands from job to job while that raises fitness with the penalty. This has no
    randomness, costs milliseconds (the genetic search keeps Pollux from scaling, 002 ch. 3.5.3), and changes running jobs
    only for a gain, so it comes to rest.
    Left out: avoiding two distributed jobs on one node (gangs larger than a node are rare with buddy cells), sizing the
    cluster, and the limit to twice the GPUs that a job has had, as profiles are known before a job starts.

    Works in rounds of 60 s, the paper's; 002 ch. 3.5.1 uses 300 (``round=300``). Between rounds nothing is resized or started.
    """

    @dataclass(frozen=True)
    class Config:
        fairness: float = tunable(
            -1.0, "exponent p of the mean of speedups: 1 is their sum, the more negative the fairer", low=-10.0, high=1.0
        )
        restart: float = tunable(30.0, "assumed cost of a change of GPUs, in seconds of training", low=0.0, high=3600.0)
        adapt_batch_size: bool = tunable(True, "batch sizes are chosen too, for jobs with a goodput model")
        migrate: bool = tunable(True, "smaller jobs may be moved to make room for a larger gang")
        round: float = tunable(60.0, "seconds from one round to the next; 0: at every event", low=0.0, high=86400.0)

        def __post_init__(self) -> None:
            check_round(self.round)

    name: ClassVar[str] = "pollux"
    elastic: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        self.config = config
        self.interval = config.round or None
        self.goodputs = _Goodputs(config.adapt_batch_size)

    def plan(self, view: View) -> Plan:
        plan = in_round(view, self.config.round) or self._begin(Pool(view))
        # The best batch size grows with the noise scale: a round may change it without any event.
        standing = (plan.memory or {})[ROUND_KEY]
        return replace(plan, wake_at=standing["began"] + self.interval if standing["batch_size"] and self.interval else None)

    def _begin(self, pool: Pool) -> Plan:
        view = pool.view
        order = pool.rows[np.lexsort((view.jobs.attained[pool.rows], view.jobs.gpus_min[pool.rows]))]
        rows = _contenders(pool, order)
        speedup = self._speedups(pool, rows)
        held = pool.held[rows]
        chosen = self._divide(speedup, held, self._factor(view.jobs, view.now)[rows], pool.budget)
        wanted = {row: n for row, n in zip(rows.tolist(), chosen.tolist(), strict=True) if n}
        given = pack(pool, wanted, lambda row, n: self.goodputs.of(pool, row).fewer(n), migrate=self.config.migrate)
        batches = {row: batch for row, gpus in given.items() if (batch := self.goodputs.batch(pool, row, len(gpus))) is not None}
        return begin(pool, divide(pool, given, order, batch_size=batches))

    def _speedups(self, pool: Pool, rows: Ints) -> Floats:
        """A row per job and a column per number of GPUs from 0 on; NaN: the job cannot run on so many."""
        fair = -(-pool.budget // max(len(rows), 1))
        table = np.full((len(rows), int(pool.most[rows].max(initial=0)) + 1), np.nan)
        table[:, 0] = 0.0
        for i, row in enumerate(rows.tolist()):
            curve = self.goodputs.of(pool, row)
            share = curve.speed[int(np.clip(np.searchsorted(curve.gpus, fair, side="right") - 1, 0, len(curve.gpus) - 1))]
            table[i, curve.gpus] = curve.speed / share
        return table

    def _factor(self, jobs: Jobs, now: float) -> Floats:
        """REALLOC_FACTOR: the remaining share of a changed job's speedup. A waiting job loses nothing by a start."""
        age, cost = np.maximum(now - jobs.submitted_at, 0.0), self.config.restart
        left = np.maximum(age - jobs.preemptions * cost, 0.0) / np.maximum(age + cost, 1e-9)
        return np.where(jobs.phase == Phase.PENDING, 1.0, left)

    def _divide(self, speedup: Floats, held: Ints, factor: Floats, budget: int) -> Ints:
        """GPUs of each job: the better of two searches, from the present and from the ideal division."""
        jobs = np.arange(len(held))
        penalised = speedup * factor[:, None]
        penalised[jobs, held] = speedup[jobs, held]
        worth = self._worth(penalised)
        ideal = _filled(self._worth(speedup), np.zeros_like(held), budget)
        ends = [exchange(worth, begin, budget) for begin in (_filled(worth, held, budget), ideal)]
        return max(ends, key=lambda end: float(worth[jobs, end].sum()))

    def _worth(self, speedup: Floats) -> Floats:
        """The terms of a sum over jobs: its maximum is also the maximum of the power mean."""
        p = self.config.fairness
        mean = np.log(speedup + _SPEEDUP_WITHOUT_GPUS) if p == 0 else np.sign(p) * (speedup + _SPEEDUP_WITHOUT_GPUS) ** p
        return np.asarray(np.nan_to_num(mean, nan=-np.inf), dtype=np.float64)


def _filled(worth: Floats, begin: Ints, budget: int) -> Ints:
    """``begin``, with free GPUs handed out one after another."""
    options = [np.flatnonzero(np.isfinite(row)) for row in worth]
    at = [int(np.searchsorted(gpus, n)) for gpus, n in zip(options, begin.tolist(), strict=True)]
    ends = water_fill(options, [row[gpus] for row, gpus in zip(worth, options, strict=True)], at, budget - int(begin.sum()))
    return np.array([gpus[option] for gpus, option in zip(options, ends, strict=True)], dtype=np.int64)


def _contenders(pool: Pool, order: Ints) -> Ints:
    """Jobs that can have GPUs at all: all running ones, and as many waiting ones as the pool would hold.

    The smallest gangs come first, as a start is worth about the same at any size; among equals the least attained service.
    """
    waits = pool.jobs.phase[order] == Phase.PENDING
    need = np.cumsum(np.where(waits, pool.jobs.gpus_min[order], 0))
    can: Ints = order[~waits | (need <= pool.budget)]
    return can


class _Goodputs:
    """Goodput and best batch size by number of GPUs, kept between rounds for each hundredth of progress."""

    def __init__(self, adapt_batch_size: bool) -> None:
        self._adapt = adapt_batch_size
        self._curves = Curves()
        self._view_profiles: object = None
        self._known: dict[tuple[int, int, int, int, float], tuple[SpeedCurve, Ints] | None] = {}

    def of(self, pool: Pool, row: int) -> SpeedCurve:
        adapted = self._adapted(pool, row)
        return self._curves.of(pool, row) if adapted is None else adapted[0]

    def batch(self, pool: Pool, row: int, n: int) -> int | None:
        """The batch size to train with on ``n`` GPUs; None: the job's own."""
        adapted = self._adapted(pool, row)
        if adapted is None or n not in adapted[0].gpus:
            return None
        return int(adapted[1][np.searchsorted(adapted[0].gpus, n)])

    def _adapted(self, pool: Pool, row: int) -> tuple[SpeedCurve, Ints] | None:
        jobs, profiles = pool.jobs, pool.view.profiles
        profile = -1 if jobs.profile is None else int(jobs.profile[row])
        if not self._adapt or profile < 0 or (goodput := profiles[profile].goodput) is None:
            return None
        if profiles is not self._view_profiles:
            self._view_profiles, self._known = profiles, {}
        progress = 0.0 if jobs.progress is None or np.isnan(jobs.progress[row]) else round(float(jobs.progress[row]), 2)
        key = profile, int(jobs.gpus_min[row]), int(pool.most[row]), int(pool.node[row]), progress
        if key not in self._known:
            gpus = sizes(key[1], key[2], doubling=False)
            nodes = np.where(gpus > key[3], 2, 1)  # the step times cover two at most
            rates, batches = goodput.best(nodes, gpus, progress)
            can = rates > 0
            # A job that asks for more GPUs than its model has a batch for trains with its own.
            self._known[key] = (SpeedCurve(gpus[can], rates[can]), batches[can]) if can[0] else None
        return self._known[key]

"""Ymir: fine-tuning jobs of one backbone are merged if one shortens another (002 ch. 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ..contract import Memory, Phase, Plan, View, Waiting, tunable
from ..keys import check_round
from ..queues.elastic import ROUND_KEY, Curves, Division, Pool, begin, decide, divide, in_round, pack
from ..queues.elastic import start as start_least
from ..queues.later import Later
from . import merges as kept
from .groups import Groups
from .merge_columns import SPATIAL, ObjectiveWeights, allowed_gpus, columns_of, fair_share
from .merge_program import solve

_NEXT = "next"  #: key of the memory: when the next round begins


class Ymir:
    """GPUs and merges of jobs are chosen together, for the least sum of all jobs' slowdowns (002 ch. 3.4.3).

    A job runs on any number of GPUs that it can use, of {1, 2, 3, 4m}. Two untrained jobs of different tasks may be merged: the second
    waits and begins with the weights of the first (temporal transfer), or both train together (spatial). A merge counts by the ratio of
    their completion times one after the other to those merged (TranWt). The gains come from measurements of the jobs' kinds; without
    any, jobs only get GPUs. Beyond the thesis, a job may begin with the weights of an ended one, which costs no waiting. A merge lasts,
    and is only resized.

    Live, the measurements are of jobs with ``begin: auto``: only these wait for others or begin with their weights, and no jobs train
    together; in the simulator they come from Titan's workloads.

    The program is solved as set partitioning over kinds of equal jobs, in milliseconds, with a certified gap. A job with GPUs is resized
    if that is worth its switch.
    """

    @dataclass(frozen=True)
    class Config:
        ended: bool = tunable(True, "jobs may begin with the weights of ended jobs")
        temporal: bool = tunable(True, "a job may wait for another, to begin with its weights")
        spatial: bool = tunable(True, "two jobs may train together; only simulated yet")
        recurring: bool = tunable(False, "a job may also begin from one of the same data, and then has nothing left to learn")
        least_gain: float = tunable(1.1, "TranWt from which on two jobs are merged", low=1.0, high=10.0)
        switch: float = tunable(
            120.0,
            "weight of a change of a job's GPUs in seconds: more than its real time, so that jobs are resized less",
            low=0.0,
            high=3600.0,
        )
        unknown: float = tunable(3600.0, "seconds that a job of unknown length is taken to need at least", low=1.0, high=1e7)
        round: float = tunable(0.0, "seconds between rounds, in which jobs get GPUs; 0: at every event; 002 has 120", low=0.0, high=86400.0)
        gap: float = tunable(0.002, "relative gap to the optimum that is good enough", low=0.0, high=0.5)
        time_limit: float = tunable(5.0, "seconds for the program, after which its best is taken", low=0.01, high=600.0)

        def __post_init__(self) -> None:
            check_round(self.round)

    name: ClassVar[str] = "ymir"
    interval: ClassVar[float | None] = None  #: it keeps its rounds itself, so that the second of a pair follows at once
    elastic: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        self.config = config
        self.curves = Curves()

    def plan(self, view: View) -> Plan:
        merges = kept.current(kept.of_memory(view.memory), view)
        view = replace(view, memory=_handed_over(view, merges))
        if not len(view.jobs):
            return Plan({})
        coming = (view.memory or {}).get(_NEXT)
        if self.config.round and (coming is None or view.now < coming):
            coming = coming or (math.floor(view.now / self.config.round) + 1) * self.config.round
            standing = in_round(view, math.inf) or decide(pool := Pool(view), _nothing(pool))
            return self._finished(replace(standing, memory=view.memory, wake_at=coming), view, merges, coming)
        plan = in_round(view, 0.0)
        if plan is None:
            plan, merges = self._begin(Pool(view), merges)
        if self.config.round:
            coming = (math.floor(view.now / self.config.round + 1e-9) + 1) * self.config.round
        return self._finished(replace(plan, wake_at=coming), view, merges, coming)

    def _begin(self, pool: Pool, merges: kept.Merges) -> tuple[Plan, kept.Merges]:
        view, jobs = pool.view, pool.jobs
        idle = set(jobs.id[(jobs.phase == Phase.PENDING) & (jobs.run_time == 0)].tolist())
        groups = Groups(pool, kept.broken(merges, idle), self.curves, self.config, _places(view, merges))
        costs = ObjectiveWeights(self.config.switch, least_gain=self.config.least_gain)
        share = fair_share(pool.budget, groups.tasks)
        columns = columns_of(groups.kinds, groups.merges, pool.budget, share, costs)
        solution = solve(groups.kinds, columns, pool.budget, gap=self.config.gap, seconds=self.config.time_limit)
        order = groups.order()
        if solution is None:
            started, _ = start_least(order[jobs.phase[order] == Phase.PENDING], jobs.gpus_min, pool.placement.free_soon())
            wanted = {row: int(pool.held[row]) for row in np.flatnonzero(pool.resizable).tolist()} | {
                row: int(jobs.gpus_min[row]) for row in started
            }
            status, gap = "fallback", None
        else:
            wanted = groups.take(columns, solution.times)
            status, gap = ("optimal" if solution.gap <= self.config.gap else "feasible"), solution.gap
        given = groups.pinned(wanted)
        for gpus in given.values():
            pool.placement.take(gpus)
        given |= pack(pool, {row: n for row, n in wanted.items() if row not in given}, lambda row, n: self._smaller(pool, row, n))
        merges = groups.decided(set(given))
        plan = begin(pool, divide(pool, given, order))
        return replace(plan, status=status, gap=gap), merges

    def _smaller(self, pool: Pool, row: int, n: int) -> int:
        least = int(pool.jobs.gpus_min[row])
        return max((fewer for fewer in allowed_gpus(least, int(pool.most[row])) if fewer < n), default=0)

    def _finished(self, plan: Plan, view: View, merges: kept.Merges, coming: float | None) -> Plan:
        """Add the sources of weights, the partners, and the waiting jobs to the plan."""
        fresh = set(view.jobs.id[(view.jobs.phase == Phase.PENDING)].tolist())
        allocations = {
            job: replace(
                one,
                begin_from=merges.begins.get(job) if job in fresh else None,
                joint=merges.pairs[job][0] if job in fresh and job in merges.pairs and merges.pairs[job][1] == SPATIAL else None,
            )
            for job, one in plan.allocations.items()
        }
        seconds = merges.seconds()
        merged = [Waiting(kept.why(merges.pairs[first][1], first), [second]) for second, first in seconds.items()]
        waiting = plan.waiting
        memory = {**(plan.memory or {}), kept.MEMORY_KEY: kept.to_json(merges), **({_NEXT: coming} if coming is not None else {})}
        return replace(
            plan,
            allocations=allocations,
            waiting=Later(lambda: [*merged, *_without(waiting, set(seconds))]),
            memory=view.memory if memory == view.memory else memory,
        )


def _without(waiting: Sequence[Waiting], jobs: set[int]) -> list[Waiting]:
    left = []
    for one in waiting:
        rest = [job for job in (one.jobs.tolist() if isinstance(one.jobs, np.ndarray) else list(one.jobs)) if job not in jobs]
        if rest:
            left.append(Waiting(one.reason, rest))
    return left


def _nothing(pool: Pool) -> Division:
    """The division that changes nothing, before the first round."""
    running = {row: tuple(pool.jobs.allocation(row).tolist()) for row in np.flatnonzero(pool.resizable).tolist()}
    return divide(pool, running, np.array(sorted(running), dtype=np.int64))


def _handed_over(view: View, merges: kept.Merges) -> Memory:
    """The memory, with the second of a pair on the GPUs of the first, which has ended."""
    standing = (view.memory or {}).get(ROUND_KEY)
    if standing is None or not merges.follows:
        return view.memory
    heir = {first: second for second, first in merges.follows.items()}
    given = [[heir.get(job, job), gpus] for job, gpus in standing["given"]]
    order = [heir.get(job, job) for job in standing["order"] if job not in merges.follows]
    return {**(view.memory or {}), ROUND_KEY: {**standing, "given": given, "order": order}}


def _places(view: View, merges: kept.Merges) -> Mapping[int, tuple[int, ...]]:
    """GPUs of a pair's first job, which has just ended: the second gets them if it uses that many."""
    standing = (view.memory or {}).get(ROUND_KEY)
    if standing is None or not merges.follows:
        return {}
    row_of = {name: row for row, name in enumerate(view.gpus.id.tolist())}
    held = set(view.jobs.alloc_gpus.tolist())
    places = {}
    for job, names in standing["given"]:
        rows = tuple(row_of.get(name, -1) for name in names)
        if job in merges.follows and rows and not any(row < 0 or row in held or not view.gpus.usable[row] for row in rows):
            places[job] = rows
    return places

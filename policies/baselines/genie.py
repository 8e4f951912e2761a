"""GENIE: least laxity first, each job on the fewest GPUs that meet its deadline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import ClassVar

import numpy as np

from ..contract import Allocation, Floats, Ints, Jobs, Phase, Plan, Profile, View, tunable
from ..estimate.lengths import remaining_time
from ..placement.consolidated import Placement
from ..queues.later import Later
from ..queues.laxity import has_deadline, next_deadline, ranks
from ..queues.levels import AT_ONCE, waking
from ..queues.reasons import lacking


class Genie:
    """The job with the least laxity goes first, on the fewest GPUs that meet its deadline at its predicted speed.

    GENIE (ICPADS 2019) as 002 ch. 5.4.4 compares with it: the highest priority to the SLO job with the smallest laxity,
    best-effort jobs last, nothing is preempted. Laxity is the time to the next deadline less the predicted time on the best
    number of GPUs that the job may have. The number it gets is the least that meets that deadline if it starts now; if the free
    GPUs allow no such number, it starts on those that end it soonest. Jobs that can no longer meet a deadline come after those
    that can, and best-effort jobs last, in the order of their submission. Best-effort jobs, and jobs without a profile, get
    ``gpus_min`` GPUs. Jobs that fit may overtake one that does not, unless ``backfill`` is off; then the first in line holds back
    the others until it starts, or can wait no longer and loses its place.
    """

    @dataclass(frozen=True)
    class Config:
        elastic: bool = tunable(True, "jobs with a deadline may have more GPUs than their least number")
        backfill: bool = tunable(True, "jobs behind one that does not fit may start")
        unknown: float = tunable(3600.0, "seconds that a job of unknown length is taken to need at least", low=1.0, high=1e7)

    name: ClassVar[str] = "genie"
    rigid: ClassVar[bool] = True
    deadlines_first: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        self.config = config

    def plan(self, view: View) -> Plan:
        jobs = view.jobs
        pending = np.flatnonzero(jobs.phase == Phase.PENDING)
        if not len(pending):
            return Plan({})
        remaining = remaining_time(jobs, self.config.unknown)
        placement = Placement(view)
        slowness = self._slowness(view, placement)
        fastest = remaining.copy()
        for row, ratios in slowness.items():
            fastest[row] *= ratios.min()
        finish = view.now + fastest
        slack = next_deadline(jobs, finish) - finish  # inf: best effort, or all deadlines are lost
        order = pending[np.argsort(ranks(~has_deadline(jobs), slack)[pending], kind="stable")]
        given, blocks = _start(view, order, remaining, slowness, placement, backfill=self.config.backfill)
        loses_place = math.inf if blocks is None else float(slack[blocks]) + AT_ONCE
        return waking(_plan(view, order, given, placement, blocks), view.now, loses_place)

    def _slowness(self, view: View, placement: Placement) -> dict[int, Floats]:
        """Time on gpus_min, gpus_min + 1, … GPUs relative to gpus_min, for waiting jobs whose deadline depends on the number."""
        jobs = view.jobs
        if not self.config.elastic or jobs.profile is None or not view.profiles:
            return {}
        choice = (jobs.phase == Phase.PENDING) & has_deadline(jobs) & (jobs.gpus_max > jobs.gpus_min) & (jobs.profile >= 0)
        rows = np.flatnonzero(choice)
        most = np.maximum(jobs.gpus_min, np.minimum(jobs.gpus_max, len(view.gpus)))
        columns = (jobs.profile, jobs.gpus_min, most, jobs.asks)
        ratios_of = cache(partial(_time_ratios, view.profiles, placement))
        slowness = {}
        for row, *kind in zip(rows.tolist(), *(column[rows].tolist() for column in columns), strict=True):
            ratios = ratios_of(*kind)
            if ratios is not None:
                slowness[row] = ratios
        return slowness


def _time_ratios(profiles: Sequence[Profile], placement: Placement, profile: int, least: int, most: int, memory: float) -> Floats | None:
    throughput = profiles[profile].throughput
    if throughput is None:
        return None
    node = placement.largest_node(memory=memory)
    rates = [throughput.consolidated(gpus, node) for gpus in range(least, most + 1)]
    return rates[0] / np.array(rates)


def _start(
    view: View, order: Ints, remaining: Floats, slowness: dict[int, Floats], placement: Placement, *, backfill: bool
) -> tuple[dict[int, tuple[int, ...]], int | None]:
    """GPUs by row, and the row that blocks those behind it.

    Free GPUs only shrink along ``order``, so a size that failed once fails for good. Without ``backfill`` no job starts behind one
    that does not fit, unless not even the empty pool could hold that one.
    """
    jobs, free = view.jobs, placement.free_soon()
    given: dict[int, tuple[int, ...]] = {}
    failed: set[tuple[int, float]] = set()
    for row, least, memory in zip(order.tolist(), jobs.gpus_min[order].tolist(), jobs.asks[order].tolist(), strict=True):
        numbers = _preferred(jobs, row, remaining[row] * slowness[row], view.now) if row in slowness else (least,)
        gpus = _find(numbers, memory, placement, failed) if least <= free else None
        if gpus is not None:
            placement.take(gpus)
            free -= len(gpus)
            given[row] = gpus
        elif not backfill and least <= placement.capacity(memory=memory):
            return given, row
    return given, None


def _find(numbers: Sequence[int], memory: float, placement: Placement, failed: set[tuple[int, float]]) -> tuple[int, ...] | None:
    """GPUs for the first of ``numbers`` that finds room; the others before it are added to ``failed``."""
    for n in numbers:
        if (n, memory) not in failed:
            gpus = placement.find_any(n, memory=memory)
            if gpus is not None:
                return gpus
            failed.add((n, memory))
    return None


def _preferred(jobs: Jobs, row: int, times: Floats, now: float) -> Sequence[int]:
    """Numbers of GPUs, the best first: those that meet the next deadline, the fewest first, then the others, the fastest first."""
    least = int(jobs.gpus_min[row])
    deadlines = jobs.tier_deadline[jobs.tier_start[row] : jobs.tier_start[row + 1]]
    met = int(np.searchsorted(deadlines, now + times.min()))
    if met == len(deadlines):
        return (least,)  # more GPUs bring no gain
    late = now + times > deadlines[met]
    return (least + np.lexsort((np.where(late, times, np.arange(len(times))), late))).tolist()  # type: ignore[no-any-return]


def _plan(view: View, order: Ints, given: dict[int, tuple[int, ...]], placement: Placement, blocks: int | None) -> Plan:
    jobs = view.jobs
    unserved = order[~np.isin(order, list(given))]
    return Plan(
        allocations={int(jobs.id[row]): Allocation(gpus) for row, gpus in given.items()},
        waiting=Later(lambda: lacking(view, unserved, placement, blocks)),
        order=jobs.id[unserved],
    )

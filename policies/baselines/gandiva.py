"""Time slicing as in Gandiva (Xiao et al., OSDI 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ..contract import Allocation, Bools, Floats, Phase, Plan, Reason, View, Waiting, tunable
from ..placement.victims import occupants
from ..queues.later import Later
from ..queues.levels import AT_ONCE, after
from ..queues.serving import Ranking, serve

_TURN = Reason("turn", "waits for its next time slice: jobs of its size take turns on the GPUs")


class Gandiva:
    """Jobs of one size take turns on the same GPUs: a job that has run for a slice gives them to a waiting one that had less.

    A job's share is the part of its life for which it has run, so a new job goes first (early feedback), and jobs that came together
    go round robin. Turns are taken among gangs of one size, Gandiva's affinity, which leaves no fragments. Free GPUs go to larger
    gangs first. If no job of a size runs, its first may displace jobs of other sizes that have run for a slice and had a larger
    share.

    Xiao et al., sec. 3 and 4. Left out: packing and migration by introspection, and growing and shrinking.
    """

    @dataclass(frozen=True)
    class Config:
        #: A suspension with its resumption takes 22 s on one GPU (002 ch. 5.3.2.3). In slices of no more than that, jobs would take turns
        #: for ever without progress.
        slice: float = tunable(60.0, "seconds that a job runs before another may take its turn, the switch included",
                               low=30.0, high=86400.0)  # fmt: skip

    name: ClassVar[str] = "gandiva"
    rigid: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        self.config = config

    def plan(self, view: View) -> Plan:
        jobs = view.jobs
        pending = jobs.phase == Phase.PENDING
        if not pending.any():
            return Plan({})
        share = np.clip(jobs.run_time / np.maximum(view.now - jobs.submitted_at, AT_ONCE), 0.0, 1.0)
        first = _first_of_new_sizes(view, pending, share)
        over = self._has_had_its_slice(view)
        order = np.lexsort((share, np.where(first, 0, -jobs.gpus_min), ~first))
        ranking = Ranking(
            key=np.argsort(order).astype(np.float64),  # the inverse of the order: positions
            claim=np.where(first, 1.0 - share, -1.0),
            hold=np.where(over, 1.0 - share, np.inf),
            displaceable="jobs that have run for a slice",
        )
        plan = serve(view, ranking)
        plan = _with_turns(view, plan, _turns(view, plan, pending, over, share))
        return replace(plan, wake_at=self._next_slice(view, plan))

    def _has_had_its_slice(self, view: View) -> Bools:
        jobs = view.jobs
        over = occupants(view) & (jobs.lease_time + AT_ONCE >= self.config.slice)
        return over if jobs.protected is None else over & ~jobs.protected

    def _next_slice(self, view: View, plan: Plan) -> float | None:
        """The next end of a slice of a job that may have to give way."""
        jobs = view.jobs
        runs, waits = after(jobs, plan)
        sizes = jobs.gpus_min[waits]
        # The first of a size without a running job may displace any job.
        matters = runs if np.setdiff1d(sizes, jobs.gpus_min[runs]).size else runs & np.isin(jobs.gpus_min, sizes)
        if not matters.any():
            return None
        run = np.fmod(jobs.lease_time[matters] + AT_ONCE, self.config.slice)
        return view.now + float((self.config.slice - run).min()) + AT_ONCE


def _first_of_new_sizes(view: View, pending: Bools, share: Floats) -> Bools:
    """The waiting job with the smallest share of each size without a running job."""
    jobs = view.jobs
    first = np.zeros(len(jobs), dtype=bool)
    waiting = np.flatnonzero(pending & ~np.isin(jobs.gpus_min, jobs.gpus_min[~pending]))
    waiting = waiting[np.lexsort((share[waiting], jobs.gpus_min[waiting]))]
    first[waiting[np.unique(jobs.gpus_min[waiting], return_index=True)[1]]] = True
    return first


def _turns(view: View, plan: Plan, pending: Bools, over: Bools, share: Floats) -> dict[int, int]:
    """Which row takes the GPUs of which: within each size the smallest shares those of the largest."""
    jobs = view.jobs
    waits = np.flatnonzero(pending & ~np.isin(jobs.id, list(plan.allocations)))
    gives = np.flatnonzero(over & ~np.isin(jobs.id, [*plan.allocations, *plan.preempt]))
    turns: dict[int, int] = {}
    for size in np.intersect1d(jobs.gpus_min[waits], jobs.gpus_min[gives]).tolist():
        takers = waits[jobs.gpus_min[waits] == size]
        givers = gives[jobs.gpus_min[gives] == size]
        takers = takers[np.argsort(share[takers], kind="stable")]
        givers = givers[np.lexsort((-givers, -share[givers]))]
        for taker, giver in zip(takers.tolist(), givers.tolist(), strict=False):
            if (share[taker], taker) < (share[giver], giver) and _fits(view, taker, giver):
                turns[taker] = giver
    return turns


def _fits(view: View, taker: int, giver: int) -> bool:
    gpus = view.jobs.allocation(giver)
    return len(gpus) == view.jobs.gpus_min[taker] and bool((view.gpus.usable & view.suits(taker))[gpus].all())


def _with_turns(view: View, plan: Plan, turns: dict[int, int]) -> Plan:
    jobs = view.jobs
    given = {int(jobs.id[taker]): Allocation(tuple(jobs.allocation(giver).tolist())) for taker, giver in turns.items()}
    out = [int(jobs.id[giver]) for giver in turns.values()]

    def waiting() -> Sequence[Waiting]:
        others = [Waiting(group.reason, [job for job in map(int, group.jobs) if job not in given]) for group in plan.waiting]
        return [*others, Waiting(_TURN, out)] if out else others

    return replace(
        plan,
        allocations={**plan.allocations, **given},
        preempt=[*plan.preempt, *out],
        waiting=Later(waiting),
        order=Later(lambda: [*(job for job in map(int, plan.order) if job not in given), *out]),
    )

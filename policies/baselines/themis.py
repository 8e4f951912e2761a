"""Themis: finish-time fairness by leases and partial auctions (Mahajan et al., NSDI 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ..contract import Allocation, Bools, Floats, Phase, Plan, View, tunable
from ..estimate.lengths import remaining_time
from ..placement.skew import spreadable
from ..queues.fairness import finish_time_fairness
from ..queues.levels import AT_ONCE, after, ranks
from ..queues.serving import Ranking, serve

#: Least seconds of ``lease_term``. A gang of 32 GPUs takes 33 s to be suspended and resumed (002 ch. 5.3.2.3): in a lease no longer than
#: that it makes no progress, and two of them would take turns for ever.
SHORTEST_LEASE = 60.0

JUST_ENDED = 1.0  #: seconds after its term in which a lease counts as ending now


class Themis:
    """GPUs are leased; free GPUs, and those with an ended lease, go to the jobs that are furthest from a fair finish.

    At each decision waiting jobs, and jobs whose lease has just ended, are bidders. The share 1 - ``fraction`` of them with the
    largest rho (at least one) takes part in the auction. There the order is by the gain of a bid: the logarithm, per GPU, of rho
    without the GPUs for a lease term over rho with them, the greedy way to the largest product of valuations 1/rho. So with a large
    fraction the largest rho always goes first, and with a small one short jobs do, as in 002 ch. 6.6.4. The remaining GPUs go to the
    other bidders by rho. A running lease is not interrupted; a job that wins its own GPUs again renews its lease. No lease is shorter
    than 60 s, as a large gang's would be with priority service: its resumption has to fit in. A job is spread over more nodes than it
    needs only if its model's skew is known and within ``pack_limit``.

    Mahajan et al., sec. 3 to 5. Bids are whole gangs, and known to be true: there are no hidden payments.
    """

    @dataclass(frozen=True)
    class Config:
        lease_term: float = tunable(600.0, "length of a lease, in seconds, or GPU-seconds with priority service",
                                    low=SHORTEST_LEASE, high=1e6, log=True)  # fmt: skip
        priority: str = tunable("time", "unit of the lease term: time, or service (a large gang's lease is shorter, down to 60 s)",
                                choices=("time", "service"))  # fmt: skip
        fraction: float = tunable(0.8, "share of the bidders, those with the smallest rho, that take no part in the auction",
                                  low=0.0, high=1.0)  # fmt: skip
        unknown: float = tunable(3600.0, "seconds that a job of unknown length is taken to need at least", low=1.0, high=1e7)
        pack_limit: float = tunable(0.3, "a job whose largest tensor is more than this share of its model is not spread over nodes",
                                    low=0.0, high=1.0)  # fmt: skip

    name: ClassVar[str] = "themis"

    def __init__(self, config: Config) -> None:
        self.config = config

    def plan(self, view: View) -> Plan:
        jobs = view.jobs
        term = self._term(view)
        left = _left_of_lease(view, term)
        active, pending = jobs.phase == Phase.ACTIVE, jobs.phase == Phase.PENDING
        expired = active & (left <= 0)
        if not pending.any():
            # No job bids against them: they hold without end, and the first decision with a bidder finds the ends of their terms.
            return Plan({int(jobs.id[row]): _held(view, row) for row in np.flatnonzero(expired).tolist()})
        position = self._positions(view, pending | expired, term)
        ranking = Ranking(
            key=position,
            claim=-position,
            hold=np.where(expired, -position, np.inf),
            displaceable="jobs whose lease has ended",
            relaxed=spreadable(view, self.config.pack_limit),
        )
        plan = serve(view, ranking)
        runs, _ = after(jobs, plan)
        ends = np.where(active & ~expired, left, term)[runs]
        wake_at = view.now + float(ends.min()) if len(ends) else None
        return replace(plan, allocations=self._leased(view, plan, expired, term), wake_at=wake_at)

    def _term(self, view: View) -> Floats:
        """Seconds that a lease of each job lasts."""
        gang = view.jobs.gpus_min if self.config.priority == "service" else 1
        return np.maximum(np.full(len(view.jobs), self.config.lease_term) / gang, SHORTEST_LEASE)

    def _positions(self, view: View, bids: Bools, term: Floats) -> Floats:
        """The order in which bids are met, from 0; other jobs come last."""
        jobs = view.jobs
        remaining = remaining_time(jobs, self.config.unknown)
        rho = np.where(bids, finish_time_fairness(jobs, view.now, len(view.gpus), remaining), -np.inf)
        shared = np.maximum(view.now - jobs.submitted_at, 0.0) + remaining
        gain = np.log1p(np.divide(term, shared, out=np.full(len(jobs), np.inf), where=shared > 0)) / jobs.gpus_min
        by_rho = ranks(-rho)
        takes_part = by_rho < self._in_auction(int(np.count_nonzero(bids)))
        return ranks(np.where(takes_part, -gain, by_rho + 1.0))  # a gain is positive

    def _in_auction(self, bidders: int) -> int:
        """The number that takes part: three of 10 at a fraction of 0.7, though 1 - 0.7 is slightly more than 0.3 in floats."""
        return max(math.ceil(round((1.0 - self.config.fraction) * bidders, 6)), 1)

    def _leased(self, view: View, plan: Plan, expired: Bools, term: Floats) -> dict[int, Allocation]:
        """The allocations with their leases, and the renewed leases."""
        ids = view.jobs.id
        given = {**plan.allocations}
        for row in np.flatnonzero(expired).tolist():
            job = int(ids[row])
            if job not in given and job not in plan.preempt:
                given[job] = _held(view, row)
        rows = np.flatnonzero(np.isin(ids, list(given))).tolist()
        ends = {int(ids[row]): view.now + float(term[row]) for row in rows}
        return {job: replace(allocation, lease_end=ends[job]) for job, allocation in given.items()}


def _held(view: View, row: int) -> Allocation:
    return Allocation(tuple(view.jobs.allocation(row).tolist()))


def _left_of_lease(view: View, term: Floats) -> Floats:
    """Seconds until the lease ends, 0 at its end; a renewed lease began at the end of the last one.

    Terms are counted from the grant, a little after the decision that set the lease's end: whichever comes first is the end.
    """
    jobs = view.jobs
    over = np.fmod(jobs.lease_time + AT_ONCE, term)
    ends_now = (jobs.lease_time + AT_ONCE >= term) & (over < JUST_ENDED)
    counted = np.where(ends_now, 0.0, np.maximum(term - over + AT_ONCE, AT_ONCE))
    if jobs.lease_end is None:
        return counted
    left = jobs.lease_end - view.now
    return np.where(left <= AT_ONCE, 0.0, np.minimum(counted, left))

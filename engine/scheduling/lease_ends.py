"""Ends of leases after a tick: which leases have expired, which ends are postponed, and when the next one is due.

No guard protects a job beyond the end of its lease as the view has it (`guards.protect`). So the policy that renews leases, the tick
that ends the others, and the timer that wakes both use the same moment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...policies.contract import Floats, Phase
from ..jobs.leases import Grant, LeaseStop
from .guards import RESOLUTION, anybody_waits
from .view import Snapshot

Renewals = Mapping[int, float | None]  #: lease to its new end


class Lapsed(NamedTuple):
    """Expired leases that the plan neither renews nor stops."""

    stops: list[LeaseStop]
    spared: frozenset[int]  #: leases that continue until a job waits


def put_off(seen: Snapshot) -> dict[int, float | None]:
    """Leases whose ends in the tables lie before the end of their jobs' protection, as the limits have changed, and their new ends."""
    ends = _ends(seen, {}, ())
    holds = (seen.view.jobs.phase == Phase.ACTIVE) & np.isfinite(seen.expires_at)
    early = np.flatnonzero(holds & (ends > seen.expires_at + RESOLUTION))
    return {int(seen.lease_id[row]): None if math.isinf(ends[row]) else float(ends[row]) for row in early.tolist()}


def lapsed(seen: Snapshot, renewals: Renewals, stops: Sequence[LeaseStop], grants: Sequence[Grant]) -> Lapsed:
    """Expired leases end with the plan, not before it: the policy was asked at their expiry or later, and could have renewed them.

    While the queue is empty they continue: an end would cost a job its work and gain nothing. A profiling run ends in any case,
    as its job gets its gang only then.
    """
    over = _ends(seen, renewals, stops) <= seen.view.now + RESOLUTION
    spared = over & ~seen.profiling
    if spared.any() and anybody_waits(seen.view, {grant.job for grant in grants}):
        spared[:] = False
    ending = [LeaseStop(lease, "expired", "daemon") for lease in seen.lease_id[over & ~spared].tolist()]
    return Lapsed(ending, frozenset(seen.lease_id[spared].tolist()))


def next_end(seen: Snapshot, renewals: Renewals, stops: Sequence[LeaseStop], grants: Sequence[Grant]) -> float:
    """When the next of the continuing and new leases expires, in s since the epoch; inf: none does."""
    ends = _ends(seen, renewals, stops)
    coming = ends.min(initial=math.inf, where=ends > seen.view.now + RESOLUTION)
    return min([float(coming), *(grant.expires for grant in grants if grant.expires is not None)])


def _ends(seen: Snapshot, renewals: Renewals, stops: Sequence[LeaseStop]) -> Floats:
    """A row a job: the end of its lease after the plan; inf: its lease is open-ended, or it is told to stop."""
    jobs = seen.view.jobs
    ends = np.where(jobs.phase == Phase.ACTIVE, np.inf if jobs.lease_end is None else jobs.lease_end, np.inf)
    changed = {**renewals, **{stop.lease: None for stop in stops}}
    if changed:
        rows = np.flatnonzero(np.isin(seen.lease_id, list(changed)))
        ends[rows] = [math.inf if (end := changed[int(lease)]) is None else end for lease in seen.lease_id[rows]]
    return ends

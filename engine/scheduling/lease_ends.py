"""The ends of leases as a tick leaves them: which are over, which are put off, and when the next one is.

The view says when a lease ends, and no guard protects its job beyond that (`guards.protect`). So the policy that renews, the tick that
ends what it does not renew, and the clock behind both go by one moment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...policies.contract import Floats, Phase
from ..jobs.leases import Grant, Stop
from .guards import RESOLUTION, anybody_waits
from .view import Snapshot

Renewals = Mapping[int, float | None]  #: lease to its new end


class Lapsed(NamedTuple):
    """Leases that have run out, that the plan has not renewed and does not stop anyway."""

    stops: list[Stop]
    spared: frozenset[int]  #: leases that go on until somebody waits


def put_off(seen: Snapshot) -> dict[int, float | None]:
    """Leases that end in the tables before the guards let go of their jobs, and their ends: the limits were others when they began."""
    ends = _ends(seen, {}, ())
    holds = (seen.view.jobs.phase == Phase.ACTIVE) & np.isfinite(seen.expires_at)
    early = np.flatnonzero(holds & (ends > seen.expires_at + RESOLUTION))
    return {int(seen.lease_id[row]): None if math.isinf(ends[row]) else float(ends[row]) for row in early.tolist()}


def lapsed(seen: Snapshot, renewals: Renewals, stops: Sequence[Stop], grants: Sequence[Grant]) -> Lapsed:
    """They end with the plan, not before: the policy was asked when they ran out, or after that, and might have renewed them.

    While nobody waits that would cost a job its work, and give nobody anything. A profiling run ends all the same: only then does the
    job get its gang.
    """
    over = _ends(seen, renewals, stops) <= seen.view.now + RESOLUTION
    spared = over & ~seen.profiling
    if spared.any() and anybody_waits(seen.view, {grant.job for grant in grants}):
        spared[:] = False
    ending = [Stop(lease, "expired", "daemon") for lease in seen.lease_id[over & ~spared].tolist()]
    return Lapsed(ending, frozenset(seen.lease_id[spared].tolist()))


def next_end(seen: Snapshot, renewals: Renewals, stops: Sequence[Stop], grants: Sequence[Grant]) -> float:
    """When the next of the leases runs out that go on or begin, s since the epoch; inf: none does."""
    ends = _ends(seen, renewals, stops)
    coming = ends.min(initial=math.inf, where=ends > seen.view.now + RESOLUTION)
    return min([float(coming), *(grant.expires for grant in grants if grant.expires is not None)])


def _ends(seen: Snapshot, renewals: Renewals, stops: Sequence[Stop]) -> Floats:
    """A row a job: the end of its lease once the plan is carried out, inf: it has none, or is told to stop."""
    jobs = seen.view.jobs
    ends = np.where(jobs.phase == Phase.ACTIVE, np.inf if jobs.lease_end is None else jobs.lease_end, np.inf)
    changed = {**renewals, **{stop.lease: None for stop in stops}}
    if changed:
        rows = np.flatnonzero(np.isin(seen.lease_id, list(changed)))
        ends[rows] = [math.inf if (end := changed[int(lease)]) is None else end for lease in seen.lease_id[rows]]
    return ends

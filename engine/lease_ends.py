"""The ends of leases as a tick leaves them: which are over, and when the next one is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..policies.contract import Floats, Phase
from .view import Snapshot
from .workflow.leases import Grant, Stop

RESOLUTION = 1e-6  #: seconds; the tables keep microseconds, so an end may be read as that much later than it was planned

Renewals = Mapping[int, float | None]  #: lease to its new end


def lapsed(seen: Snapshot, renewals: Renewals, stops: Sequence[Stop]) -> list[Stop]:
    """Leases that have run out, that the plan has not renewed and does not stop anyway.

    They end with the plan, not before: the policy was asked when they ran out, or after that, and might have renewed them.
    """
    ends = _ends(seen, renewals, stops)
    return [Stop(lease, "expired", "daemon") for lease in seen.lease_id[ends <= seen.view.now + RESOLUTION].tolist()]


def next_end(seen: Snapshot, renewals: Renewals, stops: Sequence[Stop], grants: Sequence[Grant]) -> float:
    """When the next of the leases runs out that go on or begin, s since the epoch; inf: none does."""
    ends = _ends(seen, renewals, stops)
    coming = ends.min(initial=math.inf, where=ends > seen.view.now + RESOLUTION)
    return min([float(coming), *(grant.expires for grant in grants if grant.expires is not None)])


def _ends(seen: Snapshot, renewals: Renewals, stops: Sequence[Stop]) -> Floats:
    """A row a job: the end of its lease once the plan is carried out, inf: it has none, or is told to stop."""
    ends = np.where(seen.view.jobs.phase == Phase.ACTIVE, seen.expires_at, np.inf)
    changed = {**renewals, **{stop.lease: None for stop in stops}}
    if changed:
        rows = np.flatnonzero(np.isin(seen.lease_id, list(changed)))
        ends[rows] = [math.inf if (end := changed[int(lease)]) is None else end for lease in seen.lease_id[rows]]
    return ends

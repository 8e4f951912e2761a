"""When each job came to the queue in which it stands.

The program published with Tiresias keeps a list for each queue, and who comes goes to its end; so within a queue who came first goes first.

A view tells how much a job was served in all, and since when its present lease lasts. From these follows when it sank, if that was within
the lease: now - (level - floor of the queue) / rate. Once it has left its GPUs, the moment can't be worked out any more. So a decision
that sees such a job, or stops one, writes the moment down in `Plan.memory`, where simulations, forecasts and restarts of the daemon find
it. Of a job that left its GPUs by itself (it failed), it is exact if the policy is asked at that moment, as it is except in rounds.

What differs from the published lists: there a job that is displaced goes before all that wait in its queue, also before who came earlier.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..contract import Bools, Floats, Ints, Jobs, Memory
from .levels import Standing

DIGITS = 3  #: of the moments, seconds: what is closer is one moment
MOST = 25_000  #: jobs whose moments are kept, the newest: 1 MiB is the most that a policy may keep
_KEY = "entered"


@dataclass(frozen=True, slots=True)
class Entry:
    """The moments, a row a job, and what is needed to write them down."""

    at: Floats  #: seconds; of the highest queue the submission, but for those that were lifted to it
    rows: Ints  #: jobs that have come to their queue from another one
    known: Mapping[str, Any]  #: what was written down before: id to (queue, moment)

    def memory(self, jobs: Jobs, standing: Standing, preempted: Collection[int], before: Memory) -> Memory:
        """What is to be kept when a plan stops ``preempted`` (ids); ``before`` itself where nothing is new."""
        kept: dict[str, tuple[int, float]] = {}
        new = False
        held, ids, queue, at = jobs.held, jobs.id, standing.queue, self.at
        for row in self.rows.tolist():
            job = int(ids[row])
            key, pair = str(job), (int(queue[row]), float(at[row]))
            known = tuple(self.known.get(key, ())) == pair
            if known or not held[row] or job in preempted:
                kept[key] = pair
                new |= not known
        if not new:
            return before
        newest = sorted(kept.items(), key=lambda one: one[1][1])[-MOST:]
        return {_KEY: {key: list(pair) for key, pair in newest}}


def entry(jobs: Jobs, now: float, standing: Standing, floor: Floats, memory: Memory) -> Entry:
    """``floor``: the level at which each queue begins. ``memory``: what the decision before has kept."""
    at = jobs.submitted_at.astype(np.float64)
    came: Bools = (standing.queue > 0) | standing.lifted
    rows: Ints = np.flatnonzero(came)
    known = (memory or {}).get(_KEY, {})
    if not len(rows):
        return Entry(at, rows, known)
    queue = standing.queue[rows]
    since = (standing.level[rows] - np.maximum(floor[queue], 0.0)) / standing.rate[rows]
    # Before its lease it can't have come, or it would have been written down.
    earliest = np.where(jobs.held[rows] > 0, now - jobs.lease_time[rows], at[rows])
    at[rows] = np.round(np.clip(now - since, np.minimum(earliest, now), now), DIGITS)
    if known:
        for row, one, job in zip(rows.tolist(), queue.tolist(), jobs.id[rows].tolist(), strict=True):
            pair = known.get(str(job))
            if pair is not None and pair[0] == one:
                at[row] = pair[1]
    return Entry(at, rows, known)

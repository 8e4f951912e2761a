"""What is said of deadlines, from the view `outlook` alone; a job that is not going to make its own is announced once, in time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ..jobs.notes import Note, note
from ..json_rows import objects
from ..spec.reading.units import EARLIEST, LATEST
from ..store.store import Store

NO_DURATION = "not known: nothing tells yet how long it takes (give 'estimate', or let it report steps)"
NO_START = "not known: nothing tells yet when it starts"
GIVEN_UP = "at risk: its policy keeps no GPUs for it any more"
EVEN_NOW = "at risk: on the GPUs that it asks for it would end too late even if it went on now"


class DeadlineWatch:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._announced = {row[0] for row in store.rows("policy/announced_deadlines")}

    def look(self) -> None:
        """Compare estimated ends with deadlines; an event for each job newly at risk, or newly too late."""
        for row in objects(self._store, "policy/deadlines_at_risk"):
            if row["job_id"] not in self._announced:
                self._store.write(note, Note("job.deadline-at-risk", "daemon", _alarm(row), job=row["job_id"]))
                self._announced.add(row["job_id"])


def verdict(outlook: Mapping[str, Any], at: float) -> str:
    """What becomes of the deadline ``at`` of a job that has not ended, in words; ``outlook`` is its row of that view."""
    match outlook["deadline_risk"]:
        case "safe":
            return "on time"
        case "unknown":
            return NO_DURATION if outlook["remaining"] is None else NO_START
        case "at risk" if outlook["given_up"]:
            return GIVEN_UP
        case "at risk" if _late(outlook["soonest_end"], at):
            return EVEN_NOW
        case risk:
            return str(risk)


def _late(end: float | None, at: float) -> bool:
    return end is None or end > at  # a duration that is no figure any more is too long for every deadline


def _alarm(row: Mapping[str, Any]) -> str:
    """What is wrong and what to do, of a row of `policy/deadlines_at_risk`."""
    at = row["at"]
    shown = datetime.fromtimestamp(min(max(at, EARLIEST), LATEST), UTC)  # one that is stored may be no date
    when = f"its deadline of {shown:%Y-%m-%d %H:%M:%S} UTC"
    end, soonest = row["est_end"], row["soonest_end"]
    if row["deadline_risk"] == "missed":
        return f"{when} has passed, and it has not ended: cancel it, or let it go on"
    if end is not None and end > at:
        return f"expected to end {_seconds(end - at)} after {when}: raise its priority, or give it GPUs"
    if _late(soonest, at) and not row["given_up"]:
        how = "" if soonest is None else f"{_seconds(soonest - at)} "
        return f"would end {how}after {when} even if it went on now: give it more GPUs, or a later deadline"
    return f"the policy keeps no GPUs for {when}: raise its reward, give it GPUs, or a later deadline"


def _seconds(seconds: float) -> str:
    return f"{math.ceil(seconds)} s"

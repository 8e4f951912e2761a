"""Words on deadlines, from the view `outlook` alone. A job that will miss its own is announced once, in time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ..jobs.notes import Note, note
from ..json_rows import objects
from ..spec.reading.units import EARLIEST, LATEST
from ..store.store import Store
from ..store.transaction import Transaction

NO_DURATION = "not known: nothing tells yet how long it takes (give 'estimate', or let it report steps)"
NO_START = "not known: nothing tells yet when it starts"
GIVEN_UP = "at risk: its policy no longer keeps GPUs for it"
NO_LONGER = "at risk: it was expected to be met, and when the job starts or ends is no longer known"
EVEN_NOW = "at risk: on the GPUs that it asks for it would end too late even if it went on now"


class DeadlineWatch:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._announced = {row[0] for row in store.rows("policy/announced_deadlines")}
        self._promised = {row[0] for row in store.rows("policy/promised_deadlines")}

    def look(self) -> None:
        """Compare estimated ends with deadlines; an event for each job newly at risk, or newly too late. Jobs in time are remembered."""
        found = objects(self._store, "policy/open_deadlines")
        safe = [row["job_id"] for row in found if row["deadline_risk"] == "safe" and row["job_id"] not in self._promised]
        if safe:
            self._store.write(promise, safe)
            self._promised.update(safe)
        for row in found:
            if row["deadline_risk"] != "safe" and row["job_id"] not in self._announced:
                self._store.write(note, Note("job.deadline-at-risk", "daemon", _alarm(row), job=row["job_id"]))
                self._announced.add(row["job_id"])


def promise(tx: Transaction, batch: Sequence[Sequence[int]]) -> Sequence[None]:
    """The deadlines of these jobs were announced as safe: from now on one that is no longer known is at risk."""
    tx.insert("deadline_promises", [{"job_id": job, "promised_at": tx.now} for jobs in batch for job in jobs])
    return [None] * len(batch)


def _no_longer_known(outlook: Mapping[str, Any], at: float) -> bool:
    """Whether a deadline is at risk only for that reason."""
    soonest = outlook["soonest_end"]
    return outlook["remaining"] is None or (outlook["est_end"] is None and soonest is not None and soonest <= at)


def verdict(outlook: Mapping[str, Any], at: float) -> str:
    """The outlook of the deadline ``at`` of an unfinished job, in words; ``outlook`` is its row of that view."""
    match outlook["deadline_risk"]:
        case "safe":
            return "on time"
        case "unknown":
            return NO_DURATION if outlook["remaining"] is None else NO_START
        case "at risk" if outlook["given_up"]:
            return GIVEN_UP
        case "at risk" if _no_longer_known(outlook, at):
            return NO_LONGER
        case "at risk" if _late(outlook["soonest_end"], at):
            return EVEN_NOW
        case risk:
            return str(risk)


def _late(end: float | None, at: float) -> bool:
    return end is None or end > at  # an infinite duration is too long for every deadline


def _alarm(row: Mapping[str, Any]) -> str:
    """The problem and the remedy, for a row of `policy/deadlines_at_risk`."""
    at = row["at"]
    shown = datetime.fromtimestamp(min(max(at, EARLIEST), LATEST), UTC)  # a stored one may be no date
    when = f"its deadline of {shown:%Y-%m-%d %H:%M:%S} UTC"
    end, soonest = row["est_end"], row["soonest_end"]
    if row["deadline_risk"] == "missed":
        return f"{when} has passed, and it has not ended: cancel it, or let it go on"
    if not row["given_up"] and _no_longer_known(row, at):
        return f"{when} was expected to be met, and when it starts or ends is no longer known: 'stoker explain {row['job_id']}' says why"
    if end is not None and end > at:
        return f"expected to end {_seconds(end - at)} after {when}: raise its priority, or give it GPUs"
    if _late(soonest, at) and not row["given_up"]:
        how = "" if soonest is None else f"{_seconds(soonest - at)} "
        return f"would end {how}after {when} even if it went on now: give it more GPUs, or a later deadline"
    return f"the policy keeps no GPUs for {when}: raise its reward, give it GPUs, or a later deadline"


def _seconds(seconds: float) -> str:
    return f"{math.ceil(seconds)} s"

"""Recurring jobs: each schedule is an APScheduler task that submits its job at the times of its cron expression."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import msgspec

from ..identity import boot_clock, boot_id
from ..spec.expand import fired
from ..spec.model import Submission
from ..store.store import Store
from ..tasks import Tasks
from .schedule_rows import ScheduleChange, change_schedule
from .submission import SubmitRequest, submit


class Recurring:
    """Keeps the tasks equal to the rows of `schedules`."""

    def __init__(self, store: Store, tasks: Tasks, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._tasks = tasks
        self._clock = clock
        self._known: set[int] = set()

    def reload(self) -> None:
        wanted = {row[0]: row for row in self._store.rows("policy/schedules")}
        for number in self._known - wanted.keys():
            self._tasks.remove(_task(number))
        for number in wanted.keys() - self._known:
            _, cron, spec, user, created, last = wanted[number]
            self._tasks.cron(_task(number), cron, functools.partial(self._fire, number, spec, user, created), last)
        self._known = set(wanted)

    def next_run(self, schedule: int) -> float | None:
        return self._tasks.next_run(_task(schedule))

    def _fire(self, number: int, spec: str, user: str, created: float) -> None:
        """Submit once for this minute: the key makes a repetition after a crash harmless.

        It is a minute of the boot clock, as one of the day is repeated if the clock is set back. Deadlines count from the time of day.
        """
        now = time.time()
        submission = msgspec.json.decode(spec, type=Submission)
        key = f"schedule-{number}-{boot_id()}-{int(boot_clock() // 60)}"
        jobs = [
            msgspec.structs.replace(fired(job, submitted_at=created, at=now), idempotency_key=f"{key}-{i}")
            for i, job in enumerate(submission.jobs)
        ]
        self._store.write(submit, SubmitRequest(msgspec.structs.replace(submission, jobs=jobs), user, number))
        self._store.write(change_schedule, ScheduleChange(number, "daemon", self._clock()))


def _task(number: int) -> str:
    return f"schedule {number}"

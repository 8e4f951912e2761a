"""Periodic tasks on APScheduler, watched: what raises is recorded and runs again, what hangs is seen.

APScheduler skips a task whose last run has not ended, for ever and with a log line only (its issues #423, #474);
so its events are listened to and handed on, and `Tasks.stuck` tells what has been running too long.
"""

from __future__ import annotations

import datetime
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import StokerError

if TYPE_CHECKING:
    from apscheduler.schedulers.background import BackgroundScheduler

log = logging.getLogger(__name__)

STUCK_AFTER = 60.0  #: seconds of one run after which a task counts as hanging


@dataclass(slots=True)
class TaskState:
    """How a task is doing; times are s since the epoch, durations s."""

    name: str
    interval: float | None
    last_run: float | None = None
    last_seconds: float | None = None
    running_since: float | None = None
    errors: int = 0
    last_error: str | None = None
    failing: bool = False  #: its last run raised
    told_stuck: bool = False  #: that this run hangs is on record
    requested: bool = False  #: a wake-up is on its way
    dirty: bool = False  #: something came while it ran: it runs once more

    @property
    def stuck(self) -> bool:
        return self.running_since is not None and time.time() - self.running_since > STUCK_AFTER


class Tasks:
    """The daemon's periodic tasks. ``on_event(kind, task, words)`` hears of errors and hangs."""

    def __init__(self, on_event: Callable[[str, str, str], None]) -> None:
        from apscheduler.executors.pool import ThreadPoolExecutor as Pool
        from apscheduler.schedulers.background import BackgroundScheduler

        self._on_event = on_event
        self._lock = threading.Lock()
        self._states: dict[str, TaskState] = {}
        self._scheduler: BackgroundScheduler = BackgroundScheduler(
            timezone="UTC",
            executors={"default": Pool(8)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )
        self._listen()

    def _listen(self) -> None:
        from apscheduler.events import EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED

        def heard(event: Any) -> None:
            if (state := self._states.get(event.job_id)) is None:
                return
            self._tell_stuck(state)
            with self._lock:
                refused = state.requested and state.running_since is None
                state.requested = False
            if refused:  # the wake-up came while the scheduler still counted the run before
                self.wake(state.name)

        self._scheduler.add_listener(heard, EVENT_JOB_MAX_INSTANCES | EVENT_JOB_MISSED)

    def _tell_stuck(self, state: TaskState) -> None:
        """Put on record, once for each run, that a task hangs."""
        with self._lock:
            since = state.running_since
            if since is None or not state.stuck or state.told_stuck:
                return
            state.told_stuck = True
        self._on_event("task.stuck", state.name, f"has been running for {time.time() - since:.0f} s; runs are skipped until it ends")

    def look(self) -> None:
        """The watchdog: the scheduler itself notices only when the next run of a task is due."""
        for state in self.states():
            self._tell_stuck(state)

    def start(self) -> None:
        self._scheduler.start()
        self.every("watchdog", STUCK_AFTER / 4, self.look)

    def stop(self, until: float | None = None) -> list[str]:
        """Let running tasks end, start no more; answers with those that have not ended ``until`` (monotonic time), which are left."""
        if self._scheduler.running:  # not when the daemon could not start
            self._scheduler.shutdown(wait=False)
        end = time.monotonic() + 5.0 if until is None else until
        while (running := [s.name for s in self.states() if s.running_since is not None]) and time.monotonic() < end:
            time.sleep(0.01)
        return running

    def every(self, name: str, interval: float, work: Callable[[], object], *, soon: bool = False) -> None:
        """Run ``work`` every ``interval`` seconds; a task of that name is replaced from its next run on."""
        with self._lock:
            state = self._states.setdefault(name, TaskState(name, interval))
            state.interval = interval
        first = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=0.0 if soon else interval)
        self._scheduler.add_job(
            self._run, "interval", args=[state, work], id=name, seconds=interval, next_run_time=first, replace_existing=True
        )

    def cron(self, name: str, expression: str, work: Callable[[], object]) -> None:
        """Run ``work`` at the times of a cron expression (five fields, UTC)."""
        from apscheduler.triggers.cron import CronTrigger

        with self._lock:
            state = self._states.setdefault(name, TaskState(name, None))
        trigger = CronTrigger.from_crontab(expression, timezone="UTC")
        self._scheduler.add_job(self._run, trigger, args=[state, work], id=name, replace_existing=True)

    def next_run(self, name: str) -> float | None:
        job = self._scheduler.get_job(name)
        return job.next_run_time.timestamp() if job is not None and job.next_run_time is not None else None

    def remove(self, name: str) -> None:
        with self._lock:
            self._states.pop(name, None)
        if self._scheduler.get_job(name) is not None:
            self._scheduler.remove_job(name)

    def wake(self, name: str) -> None:
        """Run the task now. Calls while it runs, or is about to, are folded into one more run."""
        with self._lock:
            state = self._states.get(name)
            if state is None:
                return
            if state.running_since is not None or state.requested:
                state.dirty = True
                return
            state.requested = True
        if self._scheduler.get_job(name) is not None:
            self._scheduler.modify_job(name, next_run_time=datetime.datetime.now(datetime.UTC))

    def wake_at(self, name: str, moment: float) -> None:
        """Run the task at ``moment`` (s since the epoch) at the latest: earlier when its interval or a wake-up comes first."""
        due = self.next_run(name)
        if due is not None and moment < due:
            self._scheduler.modify_job(name, next_run_time=datetime.datetime.fromtimestamp(max(moment, time.time()), datetime.UTC))

    def states(self) -> list[TaskState]:
        with self._lock:
            return sorted(self._states.values(), key=lambda state: state.name)

    def _run(self, state: TaskState, work: Callable[[], object]) -> None:
        while True:
            started = time.time()
            with self._lock:
                state.running_since, state.requested, state.dirty, state.told_stuck = started, False, False, False
            try:
                work()
                state.failing = False
            except Exception as error:
                self._failed(state, error)
            with self._lock:
                state.last_run, state.last_seconds = started, time.time() - started
                state.running_since = None
                if not state.dirty:
                    return

    def _failed(self, state: TaskState, error: Exception) -> None:
        """Put on record, once for the same error in a row, that a task raised: some run many times a second."""
        words = " ".join(f"{type(error).__name__}: {error}".split())
        repeated = state.failing and words == state.last_error
        state.errors += 1
        state.last_error, state.failing = words, True
        if not repeated:
            trace = None if isinstance(error, StokerError) else error
            log.error("task %s failed: %s", state.name, words, exc_info=trace, extra={"action": "task.error"})
            self._on_event("task.error", state.name, words)

"""Periodic tasks on APScheduler: a task that raises is recorded and runs again, a task that hangs is noticed.

APScheduler skips a task whose last run has not ended, for ever and with only a log line (its issues #423, #474);
so this module handles its events, and `Tasks.stuck` lists tasks that have been running too long.

APScheduler goes by the time of day, and would stand still for as long as that is set back. So before each of its looks, which are a
second apart at most, `Tasks.align` compares the time of day with the boot clock, and moves due times by as much as it was set.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import StokerError
from .identity import ahead_of_boot, boot_clock
from .store.clock import CLOCK_JUMP_SECONDS, Clock

if TYPE_CHECKING:
    from apscheduler.schedulers.background import BackgroundScheduler
    from apscheduler.triggers.base import BaseTrigger

log = logging.getLogger(__name__)

STUCK_AFTER = 60.0  #: a task whose run takes so many seconds counts as hanging
LONGEST_SLEEP = 1.0  #: seconds at most between two looks of the scheduler, which so notices soon that the clock was set
FARTHEST_AHEAD = 1e8  #: seconds ahead, later than any due time
DUE_TIMES_COMPARED = 5  #: due times of a schedule from which its shortest interval is found


@dataclass(slots=True)
class TaskState:
    """The state of a task; ``last_run`` is s since the epoch, starts are on the monotonic clock, durations are s."""

    name: str
    interval: float | None
    last_run: float | None = None
    last_seconds: float | None = None
    running_since: float | None = None  #: monotonic time
    errors: int = 0
    last_error: str | None = None
    failing: bool = False  #: its last run raised
    told_stuck: bool = False  #: it is recorded that this run hangs
    requested: bool = False  #: a wake-up is pending
    appointed: bool = False  #: it is to run at a certain time
    dirty: bool = False  #: it was woken while it ran, so it runs once more
    trigger: BaseTrigger | None = None  #: set for a schedule
    fired: float | None = None  #: when a schedule last ran, by the boot clock

    @property
    def stuck(self) -> bool:
        return self.running_since is not None and time.monotonic() - self.running_since > STUCK_AFTER


class Tasks:
    """The daemon's periodic tasks. ``on_event(kind, task, words)`` is called on errors and hangs; ``clock`` is that of the daemon."""

    def __init__(
        self,
        on_event: Callable[[str, str, str], None],
        clock: Callable[[], float] | None = None,
        ahead: Callable[[], float] = ahead_of_boot,
    ) -> None:
        from apscheduler.executors.pool import ThreadPoolExecutor as Pool
        from apscheduler.schedulers.background import BackgroundScheduler

        class Aligned(BackgroundScheduler):  # type: ignore[misc]
            """A scheduler that notices when the clock is set."""

            def _process_jobs(_) -> float:  # noqa: N805 - `self` is that of the tasks
                self.align()
                pause = super()._process_jobs()
                return LONGEST_SLEEP if pause is None else min(pause, LONGEST_SLEEP)

        self._on_event = on_event
        self._clock = clock or Clock()
        self._read, self._ahead = ahead, ahead()
        self._lock, self._aligning = threading.Lock(), threading.Lock()
        self._states: dict[str, TaskState] = {}
        self._scheduler: BackgroundScheduler = Aligned(
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
                refused = state.requested or state.appointed
                state.requested = state.appointed = False
            if refused:  # a wake-up or an appointment came before the former run was over, or before the scheduler knew that
                self.wake(state.name)

        self._scheduler.add_listener(heard, EVENT_JOB_MAX_INSTANCES | EVENT_JOB_MISSED)

    def _tell_stuck(self, state: TaskState) -> None:
        """Record, once for each run, that a task hangs."""
        with self._lock:
            since = state.running_since
            if since is None or not state.stuck or state.told_stuck:
                return
            state.told_stuck = True
        self._on_event("task.stuck", state.name, f"has been running for {time.monotonic() - since:.0f} s; runs are skipped until it ends")

    def look(self) -> None:
        """The watchdog: the scheduler itself notices only when the next run of a task is due."""
        for state in self.states():
            self._tell_stuck(state)

    def start(self) -> None:
        self._scheduler.start()
        self.every("watchdog", STUCK_AFTER / 4, self.look)

    def stop(self, until: float | None = None) -> list[str]:
        """Let running tasks end, and start no more; returns those that have not ended by ``until`` (monotonic time), which are left."""
        if self._scheduler.running:  # it is not if the daemon could not start
            self._scheduler.shutdown(wait=False)
        end = time.monotonic() + 5.0 if until is None else until
        while (running := [s.name for s in self.states() if s.running_since is not None]) and time.monotonic() < end:
            time.sleep(0.01)
        return running

    def every(self, name: str, interval: float, work: Callable[[], object], *, soon: bool = False) -> None:
        """Run ``work`` every ``interval`` seconds; a task of the same name is replaced from its next run on."""
        with self._lock:
            state = self._states.setdefault(name, TaskState(name, interval))
            state.interval = interval
        first = self._now() + datetime.timedelta(seconds=0.0 if soon else interval)
        self._scheduler.add_job(
            self._run, "interval", args=[state, work], id=name, seconds=interval, next_run_time=first, replace_existing=True
        )

    def cron(self, name: str, expression: str, work: Callable[[], object], last: float | None = None) -> None:
        """Run ``work`` at the times of a cron expression (five fields, UTC); ``last``: time of its last run (s since the epoch)."""
        from apscheduler.triggers.cron import CronTrigger

        with self._lock:
            state = self._states.setdefault(name, TaskState(name, None))
            state.trigger = CronTrigger.from_crontab(expression, timezone="UTC")
            state.fired = None if last is None else boot_clock() - (self._clock() - last)
        due = _due(state, self._now())
        self._scheduler.add_job(self._run, state.trigger, args=[state, work], id=name, next_run_time=due, replace_existing=True)

    def _now(self) -> datetime.datetime:
        """The time of day, which the scheduler uses; due times have been moved when it was set."""
        self.align()
        return datetime.datetime.now(datetime.UTC)

    def align(self) -> None:
        """Move due times by as much as the time of day was set since the last look; schedules go to their next due time."""
        with self._aligning:
            by = self._read() - self._ahead
            if abs(by) < CLOCK_JUMP_SECONDS:
                return
            self._ahead += by
            for job in self._scheduler.get_jobs():
                state, due = self._states.get(job.id), getattr(job, "next_run_time", None)
                if state is None or due is None:
                    continue
                if state.last_run is not None:
                    state.last_run += by
                moved = due + datetime.timedelta(seconds=by) if state.trigger is None else _due(state, datetime.datetime.now(datetime.UTC))
                with contextlib.suppress(KeyError):  # it has just been removed
                    self._scheduler.modify_job(job.id, next_run_time=moved)

    def next_run(self, name: str) -> float | None:
        job = self._scheduler.get_job(name)
        return job.next_run_time.timestamp() if job is not None and job.next_run_time is not None else None

    def remove(self, name: str) -> None:
        with self._lock:
            self._states.pop(name, None)
        if self._scheduler.get_job(name) is not None:
            self._scheduler.remove_job(name)

    def wake(self, name: str) -> None:
        """Run the task now. Calls while it runs, or is about to, cause only one more run."""
        with self._lock:
            state = self._states.get(name)
            if state is None:
                return
            if state.running_since is not None or state.requested:
                state.dirty = True
                return
            state.requested = True
        if self._scheduler.get_job(name) is not None:
            self._scheduler.modify_job(name, next_run_time=self._now())

    def wake_at(self, name: str, moment: float) -> None:
        """Run the task at ``moment`` (by the daemon's clock), or earlier if its interval or a wake-up comes first."""
        wanted = self._now() + datetime.timedelta(seconds=min(max(moment - self._clock(), 0.0), FARTHEST_AHEAD))
        due = self.next_run(name)
        if due is not None and wanted.timestamp() < due:
            with self._lock:
                self._states[name].appointed = True
            self._scheduler.modify_job(name, next_run_time=wanted)

    def states(self) -> list[TaskState]:
        with self._lock:
            return sorted(self._states.values(), key=lambda state: state.name)

    def _run(self, state: TaskState, work: Callable[[], object]) -> None:
        while True:
            started, began = time.time(), time.monotonic()
            if state.trigger is not None:
                state.fired = boot_clock()
            with self._lock:
                state.running_since, state.told_stuck = began, False
                state.requested = state.appointed = state.dirty = False
            try:
                work()
                state.failing = False
            except Exception as error:
                self._failed(state, error)
            with self._lock:
                state.last_run, state.last_seconds = started, time.monotonic() - began
                state.running_since = None
                if not state.dirty:
                    return

    def _failed(self, state: TaskState, error: Exception) -> None:
        """Record that a task raised, once for the same error in a row: some tasks run many times a second."""
        words = " ".join(f"{type(error).__name__}: {error}".split())
        repeated = state.failing and words == state.last_error
        state.errors += 1
        state.last_error, state.failing = words, True
        if not repeated:
            trace = None if isinstance(error, StokerError) else error
            log.error("task %s failed: %s", state.name, words, exc_info=trace, extra={"action": "task.error"})
            self._on_event("task.error", state.name, words)


def _due(state: TaskState, now: datetime.datetime) -> datetime.datetime | None:
    """The next due time of a schedule, None: never.

    A due time sooner after the last run than half the schedule's interval is left out: it is the same run again, because the clock was
    set back over it.
    """
    assert state.trigger is not None
    due: datetime.datetime | None = state.trigger.get_next_fire_time(None, now)
    times = [due]
    while times[-1] is not None and len(times) <= DUE_TIMES_COMPARED:
        times.append(state.trigger.get_next_fire_time(times[-1], times[-1]))
    gap = min((after - before for before, after in itertools.pairwise(times) if before and after), default=datetime.timedelta())
    if state.fired is not None and due is not None:
        ran = now - datetime.timedelta(seconds=boot_clock() - state.fired)
        while due is not None and due - ran < gap / 2:
            due = state.trigger.get_next_fire_time(due, due)
    return due

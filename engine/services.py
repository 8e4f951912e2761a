"""The parts of the daemon's process: the store, its copies in memory, the periodic tasks; and how the process ends in time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import msgspec

from . import format as fmt
from .adhoc.desk import Desk
from .api.auth import Tokens
from .api.snapshots import Snapshots
from .api.studies.run_uploads import RunUploads
from .api.studies.uploads import Uploads
from .api.thread_pools import MOST_LARGE, Kind, Pools
from .autosched.pool_tuning import PoolTuning
from .config import Config
from .errors import NoRoom, StokerError
from .estimation.estimating import INTERVAL as ESTIMATING
from .estimation.estimating import Estimating
from .fleet.board import Board
from .fleet.kept_bundles import KeptBundles
from .fleet.kept_logs import KeptLogs
from .fleet.places_told import fetch_at_most, name_place
from .fleet.prices import keep_prices
from .fleet.registration import NodeChange, change_node
from .fleet.remote_logs import RemoteLogs
from .fleet.remote_requests import RemoteRequests
from .fleet.silence import Fleet
from .fleet.unstored_stops import UnstoredStops, Write
from .fleet.watch import StopAll, look_at_leases, stop_all
from .forecast.admission import Admission
from .forecast.deadline_watch import DeadlineWatch
from .home import Home
from .hooks import Hooks
from .hosts.ended_pilots import QUESTION_INTERVAL as PILOT_LOOKS
from .hosts.ended_pilots import EndedPilots
from .identity import boot_clock, boot_id
from .jobs.counts import Counts
from .jobs.notes import Note, note
from .jobs.recurring import Recurring
from .pages.listening import PageListener
from .prompts.bank_files import BankFiles
from .protocol import Hello, SharedPlace
from .scheduling.ticks import Scheduling
from .store.clock import Clock, ClockSet, set_clock, set_since
from .store.disk_watch import LOOK_INTERVAL, DiskWatch
from .store.lockdown import lock_down
from .store.maintenance import Retention, clear_unfinished, export_events, nightly_backup, thin
from .store.reserve import Reserve
from .store.store import Committed, Store
from .tasks import Tasks

FAILED_EXIT = 70  #: EX_SOFTWARE
ENDS_WITHIN = 4.2  #: seconds from the order to stop to the end of the process, whatever still runs
FOR_HOOKS, FOR_STORE = 0.5, 1.0  #: of these, kept for the hooks, which end after the tasks, and for the database, which ends last
LEASE_CLOCK = 1.0  #: seconds between checks for expired leases
log = logging.getLogger(__name__)


class Services:
    """Everything in the daemon's process except the listeners: the functions in ``at_end`` end those."""

    def __init__(self, home: Home, config: Config, *, accept_loss: bool = False, killed: str = "") -> None:
        self.home = home
        self.config = config
        self._began = boot_clock()
        self.clock = Clock()
        directories = [home.backups, home.archive, home.scratch]
        for directory in directories:
            directory.mkdir(exist_ok=True, mode=0o700)
        clear_unfinished(home)
        self.reserve = Reserve(home.path)
        self.store = Store.open(
            home.database,
            backups=home.backups,
            config={"memory_limit": config.limits.memory},
            prepare=lambda con: lock_down(con, directories, [home.database]),
            accept_loss=accept_loss,
            clock=self.clock,
            reserve=self.reserve,
        )
        self._begin_to_count(killed)
        # With a restored backup or a new database a job must not get the number, and so the checkpoints, of another one.
        for table, used in zip(("jobs", "leases"), home.used_numbers(), strict=True):
            self.store.skip_numbers(table, used)
        if self.store.lost:
            log.warning("accepted as lost: %s", self.store.lost, extra={"action": "store.loss"})
            self.store.write(note, Note("loss.accepted", "daemon", self.store.lost), urgent=True)
        self._store_configuration()
        self.tokens = Tokens(self.store)
        self.fleet = Fleet(self.store, silent_after=config.runners.silent_after)
        self.pilots = EndedPilots(self.store, self.fleet)
        self.board = Board(self.store)
        self.board.refresh()
        self.unstored = UnstoredStops(self.store, self.board)
        self.remote_requests = RemoteRequests(self.board)
        self.remote_logs = RemoteLogs(self.remote_requests, self.fleet, home)
        self.kept_logs, self.bundles = KeptLogs(home, self.store), KeptBundles(home)
        self.counts = Counts(self.store)
        self.tasks = Tasks(lambda kind, task, words: self._tell(kind, f"{task}: {words}", {"task": task}), self.clock)
        self.recurring = Recurring(self.store, self.tasks, self.clock)
        self.hooks = Hooks(self.store, config.hooks)
        self.scheduling = Scheduling(self.store, self.tasks, config, self.clock)
        self.deadlines = DeadlineWatch(self.store)
        self.estimating = Estimating(self.store, self.scheduling.know_overheads, self.clock)
        self.admission = Admission(self.store, self.scheduling)
        self.tuning = PoolTuning(self.store, self.scheduling, self.tasks, self.clock)
        self.bank_files = BankFiles(self.store, home)
        limits = config.limits
        self.desk = Desk(
            self.store, home, at_once=limits.queries, memory=limits.query_memory << 20, tell=lambda why: self._tell("sql.restart", why)
        )
        self.uploads, self.run_uploads, self.pools = Uploads(), RunUploads(), Pools()
        self.snapshots = Snapshots(self.pools)
        self.page = PageListener(self.store, self.pools)
        self.large_bodies = asyncio.Semaphore(MOST_LARGE)
        self.ending: asyncio.Task[None] | None = None  #: waits until the runners have left
        self.ends_at: float | None = None  #: monotonic time by which this process ends, once it was told to stop
        self._last_resort: threading.Thread | None = None
        self._ended = threading.Event()
        self.exit_code = 0
        self._looked = self.clock()
        self._reading: ClockSet | None = None  #: the clock reading that is being stored
        self.hanging: list[str] = []  #: parts that did not end when closed
        self.at_end: list[Callable[[], None]] = []  #: functions that end the listeners

    def start(self) -> None:
        """Listen to commits and start the periodic tasks."""
        self.store.listen(self._committed)
        self.store.listen(self.counts.committed)
        self.store.listen(self.snapshots.committed)
        self.store.listen(self.remote_requests.committed)
        self.store.listen(self.hooks.committed)
        self.store.listen(self.estimating.committed)
        self.tasks.start()
        self.tasks.every("policies", 3600.0, self.scheduling.reload)
        self.tasks.every("recurring", 3600.0, self.recurring.reload)
        self.tasks.every("lease clock", LEASE_CLOCK, self._look_at_clock)
        self.tasks.every("runner watch", self.fleet.heartbeat / 2, self.fleet.watch)
        self.tasks.every("deadline watch", 5.0, self.deadlines.look)
        self.tasks.every("pilots", PILOT_LOOKS, self.pilots.look)
        self.tasks.every("estimates", ESTIMATING, self.estimating.look)
        disk = DiskWatch(self.home.path, self.store, self.reserve, partial(self._tell, urgent=True))
        self.tasks.every("disk watch", LOOK_INTERVAL, disk.look, soon=True)
        self.tasks.every("retention", 3600.0, self._retain)
        self.tasks.every("prompt banks", 3600.0, self.bank_files.refresh, soon=True)
        if self.config.backup.cron:
            self.tasks.cron("backup", self.config.backup.cron, lambda: nightly_backup(self.store, self.home))
        self.scheduling.start()
        self.recurring.reload()
        self.tuning.start()

    def _look_at_clock(self) -> None:
        """Handle leases that expire, attempts whose time is up, and jobs whose back-off is over."""
        if self.unstored:
            with contextlib.suppress(NoRoom):
                self.unstored.look()
        self._look_at_jump()
        now, before = self.clock(), self._looked
        policies = self.scheduling
        look_at_leases(self.store, now, policies.asked_at, policies.spared, lambda pool: self.tasks.wake(f"policy {pool}"))
        for (pool,) in self.store.rows("policy/backoffs_over", before, now):
            self.tasks.wake(f"policy {pool}")
        self._looked = now
        if self.board.stale:  # a refresh failed: its wake-ups are still to be made
            self.board.refresh()

    @property
    def started_at(self) -> float:
        """When the daemon started, by the clock as it is set now (s since the epoch)."""
        return self.clock() - (boot_clock() - self._began)

    def _store_configuration(self) -> None:
        """Store the parts of the configuration that queries read."""
        self.store.write(keep_prices, self.config.prices.listed(), urgent=True)
        self.store.write(fetch_at_most, self.config.runners.fetched_bytes, urgent=True)

    def _begin_to_count(self, killed: str) -> None:
        """Take a reading of the clock before anything reads the tables: it may have been set while no daemon ran.

        ``killed``: pid of the former daemon, if it did not end properly.
        """
        reading = self.store.rows("store/clock_reading")
        ((_, last, _),) = self.store.rows("store/counted")
        by = set_since(reading[0] if reading else None, last, boot_id(), self.clock)
        if by or not reading or reading[0][0] != boot_id() or abs(reading[0][1] - self.clock.ahead) > 0.5:
            self.store.write(set_clock, ClockSet(boot_id(), self.clock.ahead, by, self.clock(), _was_set(by)))
        if killed:
            silent = fmt.duration(max(self.clock() - last - by, 0.0))
            why = f"the daemon (pid {killed}) was killed, or failed, and came back {silent} after its last commit"
            self.store.write(note, Note("daemon.back", "daemon", why))

    def _look_at_jump(self) -> None:
        """If the clock was set, take a new reading. Until that is durable, nothing uses the new time."""
        if by := self.clock.jump():
            self._reading = ClockSet(boot_id(), self.clock.ahead + by, by, self.clock() + by, _was_set(by))
            self.store.write(set_clock, self._reading)
            log.warning(_was_set(by), extra={"action": "clock.set"})

    def _clock_set(self) -> None:
        """Called after the commit of a new reading, on the writer's thread: times in memory move as those in the tables did."""
        assert self._reading is not None
        self.clock.ahead = self._reading.ahead
        self._looked += self._reading.by
        for keeper in (self.scheduling, self.estimating, self.tuning, self.fleet):
            keeper.clock_set(self._reading.by)

    def _retain(self) -> None:
        keep = Retention(**msgspec.structs.asdict(self.config.retention))
        self.store.write(thin, keep)
        export_events(self.store, self.home, keep)
        self.kept_logs.clean()
        self.bundles.clean({digest for (digest,) in self.store.rows("api/named_bundles")})

    def _committed(self, commit: Committed) -> None:
        """Called after each commit, on the writer's thread: bring the copies in memory up to date."""
        if "fatal" in commit.topics:
            self.exit_code = FAILED_EXIT
            self.stop_serving()
            return
        if "clock" in commit.topics:
            self._clock_set()
        if commit.topics & {"leases", "nodes"}:
            self.board.refresh()
        if "nodes" in commit.topics:
            self.fleet.reload()
        if "tokens" in commit.topics:
            self.tokens.refresh()
        if commit.topics & {"page", "tokens"}:
            self.page.sessions.refresh()
        if "schedules" in commit.topics:
            self.tasks.wake("recurring")

    def shared_place(self, hello: Hello) -> SharedPlace | None:
        """Where the configuration lets a runner that registers keep checkpoints."""
        path = self.config.runners.shared(hello.pool)
        if not path:
            return None
        ((name, known),) = self.store.rows("api/shared_place", path) or [(self.store.write(name_place, path), False)]
        return SharedPlace(path=path, name=name, known=known)

    def _tell(self, kind: str, words: str, detail: dict[str, Any] | None = None, *, urgent: bool = False) -> None:
        """Record an event of the daemon itself."""
        with contextlib.suppress(StokerError):
            self.store.submit(note, Note(kind, "daemon", words, detail or {}), urgent=urgent)

    def dismiss(self, *, workers: bool, actor: str) -> list[str]:
        """Tell all runners to leave, with ``workers`` after they have stopped their jobs; returns those that were told."""
        nodes = [str(row[0]) for row in self.store.rows("api/live_nodes")]
        self.drain(nodes, actor, "stoker is going down", leaving=True, stops=StopAll("drain", actor) if workers else None)
        return nodes

    def drain(self, nodes: Sequence[str], actor: str, why: str, *, leaving: bool, stops: StopAll | None) -> None:
        """Drain runners, and if ``leaving`` let them go; the jobs in ``stops`` stop even where the disk has no room to store that."""
        try:
            for node in nodes:
                self.fleet.change(node, "draining", actor, why, leaving=leaving)
            if stops is not None:
                self.store.write(stop_all, stops, urgent=True)
        except NoRoom as refused:
            if stops is None:
                raise
            query, *values = stops.meant
            live = self.store.rows(f"store/{query}", *values)
            if stops.servers and not live:
                raise
            drained: list[Write] = [(change_node, NodeChange(node, "draining", actor, why, leaving)) for node in nodes]
            leases = {lease: stops.reason for (lease,) in live}
            raise self.unstored.take([*drained, (stop_all, stops)], leases, refused) from None

    async def stop_when_left(self, nodes: list[str]) -> None:
        """Stop serving once the answer has gone out and these runners have reported that they leave; at the latest after the longest
        grace period."""
        end = time.monotonic() + 120.0
        try:
            while nodes and time.monotonic() < end:
                states = dict(await self.pools.run(Kind.STATUS, self.store.rows, "api/node_states"))
                if all(states.get(node) == "stopped" for node in nodes):
                    break
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.05)
        finally:
            self.stop_serving()

    @property
    def stopping(self) -> bool:
        """Whether requests that wait for news must be answered now."""
        return self.ends_at is not None

    def stop_serving(self) -> None:
        """End `ENDS_WITHIN` seconds from now, whatever still runs."""
        if self.ends_at is None:
            self.ends_at = time.monotonic() + ENDS_WITHIN
            self._last_resort = threading.Thread(target=self._end_in_time, args=[self.ends_at], name="last resort", daemon=True)
            self._last_resort.start()
        for end in self.at_end:
            end()
        self.board.close()

    def _end_in_time(self, moment: float) -> None:
        if not self._ended.wait(max(0.0, moment - time.monotonic())):
            leave_behind(["the end itself"], self.exit_code)

    def end_quietly(self) -> None:
        """Stop the thread of the last resort, as nothing hangs. Left alone it would keep DuckDB's objects, and DuckDB complains of that."""
        self._ended.set()
        if self._last_resort is not None:
            self._last_resort.join()

    def close(self) -> None:
        """Stop the tasks, write the counters, checkpoint: as far as time allows."""
        ends_at = self.ends_at or time.monotonic() + ENDS_WITHIN
        self.pools.close()
        self.hanging = self.tasks.stop(ends_at - FOR_HOOKS - FOR_STORE)
        self.desk.close()
        self.hooks.close(ends_at - FOR_STORE)
        with contextlib.suppress(StokerError):  # only counters; the disk may be full
            self.scheduling.flush()
        if not self.store.close(ends_at):
            self.hanging.append("the database")


def _was_set(by: float) -> str:
    how = "forward" if by > 0 else "back"
    return f"the clock was set {how} by {fmt.duration(abs(by))}: what has not ended moves with it, deadlines and schedules stay"


def leave_behind(what: list[str], code: int) -> NoReturn:
    """Exit at once, whatever still runs. Everything acknowledged is durable."""
    log.error("left hanging: %s", ", ".join(what), extra={"action": "daemon.hanging"})
    logging.shutdown()
    os._exit(code)

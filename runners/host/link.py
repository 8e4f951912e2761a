"""The runner's side of the daemon: registration, a thread that polls for leases, and an outbox of reports."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

from ...engine.client import Client
from ...engine.errors import Conflict, LimitExceeded, NotFound, Stale, StokerError, Unauthorized, Untrusted, UsageError
from ...engine.identity import ahead_of_boot, boot_clock, boot_id, steady_time
from ...engine.protocol import (
    HELLO,
    POLL,
    REPORT,
    Ack,
    AskRequest,
    Assignments,
    ForkServer,
    GpuInfo,
    Hello,
    JobFiles,
    LogRequest,
    PlaceTold,
    Poll,
    Record,
    Records,
    Report,
    Sample,
    Welcome,
    WorkerUpdate,
)
from ..network.probe import place_of_checkpoints
from . import report_tail as tail
from .runs import Run, RunPhase

log = logging.getLogger("stoker.runner")

#: errors that a repetition would not mend: the session is another agent's, the daemon does not know us, or refuses us
FATAL_ERRORS = (Stale, NotFound, Unauthorized)
#: at registration also: another protocol, a forbidden name or GPU, or an endpoint that is not proved to be the daemon
REFUSALS = (*FATAL_ERRORS, UsageError, Conflict, LimitExceeded, Untrusted)

# Made here, as msgspec crashes where several threads are the first to decode a type.
_WELCOME, _ASSIGNMENTS, _ACK = msgspec.json.Decoder(Welcome), msgspec.json.Decoder(Assignments), msgspec.json.Decoder(Ack)
_TIMEOUT = 10.0  #: seconds to wait for an answer that is not a long poll
_RECORDS = 20_000  #: in one report
_GATHER = 1.0  #: seconds between reports that have nothing but records
_SAMPLES_AGE = 30.0  #: seconds for which samples of idle GPUs wait for other news
_SAMPLES_KEPT = 10_000  #: while no daemon answers


class Backoff:
    """Growing pauses with jitter, so that many runners do not come back at one moment."""

    def __init__(self, first: float = 0.1, most: float = 5.0):
        self._first, self._most = first, most
        self._pause = first

    def next(self) -> float:
        pause = self._pause * random.uniform(0.5, 1.0)
        self._pause = min(self._pause * 2, self._most)
        return pause

    def reset(self) -> None:
        self._pause = self._first

    @property
    def fresh(self) -> bool:
        return self._pause == self._first


def greet(client: Client, hello: Callable[[], Hello], wait: Callable[[float], bool]) -> Welcome | None:
    """Register, with retries while no daemon answers or its store cannot be written; ``wait`` pauses, and says whether to go on.

    None: told to leave meanwhile. Raises where the daemon refuses us.
    """
    backoff = Backoff()
    while True:
        try:
            answer = client.post_raw(HELLO, msgspec.json.encode(hello()), timeout=_TIMEOUT)
            return _WELCOME.decode(answer)
        except REFUSALS:
            raise
        except StokerError as error:
            if backoff.fresh:
                log.warning("%s; waiting for it", error, extra={"action": "unreachable"})
            if not wait(backoff.next()):
                return None


class Poller(threading.Thread):
    """Long polls for the leases that this node should have. Only the newest answer counts: each names all leases."""

    def __init__(
        self,
        client: Client,
        node: str,
        welcome: Welcome,
        wake: Callable[[], None],
        send_log: Callable[[LogRequest], None],
        hand_on: Callable[[AskRequest], None],
        heard: Callable[[float], None] = lambda sent: None,
    ):
        super().__init__(name="poll", daemon=True)
        self._hand_on = hand_on
        self._heard = heard  #: told when the answered request was sent, by the boot clock
        self._client, self._node, self._welcome, self._wake, self._send_log = client, node, welcome, wake, send_log
        self._lock = threading.Lock()
        self._answer: Assignments | None = None
        self._error: BaseException | None = None
        self.leaving = threading.Event()

    def take(self) -> Assignments | None:
        """The newest answer that was not taken yet. Raises the error that ended the polling."""
        with self._lock:
            if self._error is not None:
                raise self._error
            answer, self._answer = self._answer, None
            return answer

    def run(self) -> None:
        version, taken, backoff = -1, 0, Backoff()
        while not self.leaving.is_set():
            wait = self._welcome.heartbeat
            try:
                poll = Poll(
                    node=self._node, session=self._welcome.session, version=version, wait=wait, sends_logs=True, hands_on=True, taken=taken
                )  # fmt: skip
                sent = boot_clock()
                content = self._client.post_raw(POLL, msgspec.json.encode(poll), timeout=wait + _TIMEOUT)
                self._heard(sent)
                answer = _ASSIGNMENTS.decode(content)
            except FATAL_ERRORS as error:
                self._deliver(None, error)
                return
            except StokerError as error:
                if backoff.fresh:
                    log.warning("%s; workers go on, trying again", error, extra={"action": "unreachable"})
                self.leaving.wait(backoff.next())
                continue
            except BaseException as error:  # if this thread died silently the runner would never hear anything again
                self._deliver(None, error)
                raise
            backoff.reset()
            for request in answer.logs:
                self._send_log(request)
            for asked in answer.asks:
                self._hand_on(asked)
            taken = max([*(one.number for one in answer.logs), *(one.number for one in answer.asks)], default=taken)
            if answer.version != version:
                version = answer.version
                self._deliver(answer, None)

    def _deliver(self, answer: Assignments | None, error: BaseException | None) -> None:
        with self._lock:
            self._answer, self._error = answer or self._answer, error
        self._wake()


class Outbox:
    """Sends news until they are acknowledged. The files of the leases are its only buffer."""

    def __init__(self, client: Client, node: str, session: int, heard: Callable[[float], None] = lambda sent: None):
        self._heard = heard  #: as in `Poller`
        self._client, self._node, self._session = client, node, session
        self._backoff = Backoff()
        self.retry_at = 0.0  #: monotonic time before which nothing is sent
        self._records_at = 0.0  #: monotonic time before which a report of nothing but records is not sent
        self.samples: list[Sample] = []
        self.gpus: dict[str, GpuInfo] = {}  #: changes of health to be told
        self.servers: list[ForkServer] | None = None  #: current ones; None: no change to be told
        self.files: list[JobFiles] | None = None  #: the same for files that jobs keep
        self.place: PlaceTold | None = None  #: the same for the place of checkpoints
        self.hands_back = False  #: tell that the runner stops its jobs and leaves
        self.taken_at = 0.0  #: monotonic time at which the daemon last took a report

    @property
    def waiting(self) -> bool:
        """Whether something failed to be sent and is to be sent again."""
        return self.retry_at > 0.0

    def hurry(self) -> None:
        """The daemon answers: retry now."""
        self.retry_at = 0.0

    def ask(self) -> Assignments | None:
        """The leases that the daemon wants now; None: it does not answer, and is to be asked again from `retry_at` on. What is asked
        beside them is the poller's, which is told of it too."""
        poll = Poll(node=self._node, session=self._session, version=-1, wait=0.0, sends_logs=True, hands_on=True)
        try:
            answer = _ASSIGNMENTS.decode(self._client.post_raw(POLL, msgspec.json.encode(poll), timeout=_TIMEOUT))
        except FATAL_ERRORS:
            raise
        except StokerError as error:
            self._try_later(error)
            return None
        self._backoff.reset()
        self.retry_at = 0.0
        return answer

    def flush(self, runs: Iterable[Run], left: bool = False) -> bool:
        """Send all news; returns whether the daemon has taken everything that there is now."""
        if time.monotonic() < self.retry_at and not left:
            return False
        report, offsets = self._build(list(runs), left)
        if not left and not self._worth_sending(report):
            return True
        try:
            sent = boot_clock()
            content = self._client.post_raw(REPORT, msgspec.json.encode(report), timeout=_TIMEOUT)
            self._heard(sent)
            ack = _ACK.decode(content)
        except FATAL_ERRORS:
            raise
        except StokerError as error:
            self._try_later(error)
            del self.samples[: -_SAMPLES_KEPT or None]
            return False
        self._backoff.reset()
        self.retry_at = 0.0
        self.taken_at = time.monotonic()
        self._records_at = self.taken_at + _GATHER
        self._acknowledge(report, offsets, ack, {run.lease: run for run in runs})
        return True

    def _try_later(self, error: StokerError) -> None:
        if self._backoff.fresh:
            log.warning("%s; what there is to report waits", error, extra={"action": "unreachable"})
        self.retry_at = time.monotonic() + self._backoff.next()

    def _worth_sending(self, report: Report) -> bool:
        """States and health are sent at once. Records are gathered first: each report costs the daemon a transaction, whatever its size."""
        if (
            report.workers
            or report.gpus
            or any(told is not None for told in (report.servers, report.files, report.place))
            or report.hands_back
        ):
            return True
        if report.records:
            full = sum(len(one.records) for one in report.records) >= _RECORDS
            return full or time.monotonic() >= self._records_at
        if not report.samples:
            return False
        used = any(sample.lease is not None for sample in report.samples)
        return used or steady_time() - report.samples[0].ts > _SAMPLES_AGE

    def _build(self, runs: list[Run], left: bool) -> tuple[Report, dict[tuple[int, int], int]]:
        workers: list[WorkerUpdate] = []
        records: list[Records] = []
        offsets: dict[tuple[int, int], int] = {}
        room = _RECORDS
        for run in runs:
            if run.disowned:
                continue
            ended = run.phase is RunPhase.ENDED  # read before its reports: after the end nothing is added to them
            batches, complete = news(run, room)
            for batch in batches:
                rank = batch.rank
                if batch.offset != run.acked.offsets.get(rank, 0):
                    offsets[run.lease, rank] = batch.offset
                if batch.records:
                    records.append(Records(lease=run.lease, rank=rank, records=_by_steady_time(run, batch.records)))
                    room -= len(batch.records)
            workers += updates(run, ended=ended and complete and run.settled)
        report = Report(
            node=self._node,
            session=self._session,
            workers=workers,
            records=records,
            samples=list(self.samples),
            gpus=list(self.gpus.values()),
            left=left,
            servers=self.servers,
            files=self.files,
            place=self.place,
            hands_back=self.hands_back,
            now=steady_time(),
        )
        return report, offsets

    def _acknowledge(self, report: Report, offsets: dict[tuple[int, int], int], ack: Ack, runs: dict[int, Run]) -> None:
        del self.samples[: len(report.samples)]
        for gpu in report.gpus:
            if self.gpus.get(gpu.id) is gpu:
                del self.gpus[gpu.id]
        if self.servers is report.servers:
            self.servers = None
        if self.files is report.files:
            self.files = None
        if self.place is report.place:
            self.place = None
        self.hands_back = self.hands_back and not report.hands_back
        changed = set()
        for (lease, rank), offset in offsets.items():
            runs[lease].acked.offsets[rank] = offset
            changed.add(lease)
        for update in report.workers:
            acked = runs[update.lease].acked
            acked.states.add(update.state)
            acked.closed = acked.closed or update.state == "exited"
            changed.add(update.lease)
        for lease in ack.stale:
            if (run := runs.get(lease)) is not None:
                run.disown()
                changed.add(lease)
        for lease in changed:
            runs[lease].acked.save()


def news(run: Run, room: int) -> tuple[list[tail.ReadRecords], bool]:
    """About ``room`` records that are not acknowledged yet, and whether those are all.

    Unreadable files do not count: the end of the lease must not wait for them.
    """
    batches: list[tail.ReadRecords] = []
    complete = True
    with run.isolated():
        for rank in tail.ranks(run.dir):
            if room <= 0:
                return batches, False
            with run.isolated():
                batch = tail.read(run.dir, rank, run.acked.offsets.get(rank, 0), run.acked.told.get(rank, 0))
                batches.append(batch)
                if batch.left_out:
                    run.acked.told[rank] = batch.offset
                    _say(run, batch.left_out)
                complete = complete and not batch.more
                room -= len(batch.records)
    return batches, complete


def _since_set() -> float:
    """Seconds from another process's time of day to this one's `steady_time`: 0 unless the clock was set since."""
    seconds = steady_time(0.0) - ahead_of_boot()
    return seconds if abs(seconds) > 1.0 else 0.0


def _by_steady_time(run: Run, records: list[Record]) -> list[Record]:
    """Records with `steady_time`. Jobs write the time of day, and the boot clock, which means nothing after another boot."""
    seconds, same = _since_set(), run.boot_id == boot_id()
    return [
        msgspec.structs.replace(
            record, ts=max(steady_time(record.at) if same and record.at is not None else record.ts + seconds, 0.0), at=None
        )
        for record in records
    ]


def _say(run: Run, words: str) -> None:
    """Write a line to the job's own log, for its author."""
    with suppress(OSError), run.dir.log.open("ab") as file:
        file.write(f"[stoker: {words}]\n".encode(errors="backslashreplace"))


def updates(run: Run, ended: bool) -> list[WorkerUpdate]:
    """States of a worker that are not acknowledged yet. ``ended``: all else has been told, so its end may be."""
    known = run.acked.states
    found: list[WorkerUpdate] = []
    if "starting" not in known:
        met = (run.assignment.nodes > 1 or run.assignment.replicas is not None) and not run.assignment.node_rank
        port = int(run.assignment.rendezvous.rpartition(":")[2]) if met else None
        found.append(WorkerUpdate(lease=run.lease, state="starting", ts=steady_time(), run_dir=str(run.dir.path), port=port))
    if "running" not in known and run.identity is not None:
        found.append(
            WorkerUpdate(
                lease=run.lease,
                state="running",
                ts=steady_time(run.identity.started if run.boot_id == boot_id() else None),
                pid=run.identity.pid,
                pid_started=run.identity.started,
                boot_id=run.boot_id,
                run_dir=str(run.dir.path),
                warm=run.warm,
                cold_because=run.cold_because,
            )
        )
    if ended and "exited" not in known and run.exit is not None:
        found.append(
            WorkerUpdate(
                lease=run.lease,
                state="exited",
                ts=max(run.exit["ended_at"] + _since_set(), 0.0),
                run_dir=str(run.dir.path),
                exit_code=run.exit["exit_code"],
                outcome=run.exit["outcome"],
                message=run.exit["message"],
                host_at_fault=run.exit.get("host_at_fault", False),
                saved=None if run.assignment.node_rank else run.saved_bytes(),
                place=place_of_checkpoints(run.dir, run.assignment),
            )
        )
    return found

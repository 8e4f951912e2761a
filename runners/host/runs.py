"""One lease of a runner. Its state lies in its directory, so that a later agent continues where this one stopped."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

import msgspec

from ...engine import identity
from ...engine.identity import Process
from ...engine.protocol import Assignment, Outcome, Time, Whole
from ..lease import processes
from ..lease.rundir import ENV_TAG, REPLICAS, RunDir, checkpoints_of
from ..lease.supervisor import LEASE_TAKEN_EXIT, Launch, StopRequest, register, write_exit
from ..warm.warm_starts import Forked
from .report_tail import Acked, sizes

log = logging.getLogger("stoker.runner")

_HANG_AFTER = 600.0  #: seconds without a report after which a job hangs, if it has reported before
_END_LEFTOVERS = 5.0  #: seconds to kill the processes of a dead supervisor


class RunPhase(Enum):
    WAITING = "waiting"  #: taken up; no supervisor was started yet
    STARTING = "starting"  #: its supervisor has not registered yet
    LIVE = "live"
    ENDED = "ended"


class Run:
    """A lease, from its start here until the daemon has acknowledged its end."""

    def __init__(self, directory: RunDir, assignment: Assignment, acked: Acked):
        self.dir, self.assignment, self.acked = directory, assignment, acked
        self.phase = RunPhase.WAITING
        self.identity: Process | None = None  #: its supervisor, once registered
        self.exit: dict[str, Any] | None = None  #: contents of exit.json
        self.supervisor: subprocess.Popen[bytes] | Forked | None = None  #: set if this agent started it
        self._cold: Launch | None = None  #: the launch, in case a fork server does not take it up
        self.stopping: StopRequest | None = None  #: the stop request that it was sent
        self.disowned = False  #: the daemon says that it is not ours: end it without reports
        self.start_by: float | None = None  #: monotonic time until which it waits for free GPUs
        self.settled = False  #: its GPUs were checked after its end
        self.settle_by: float | None = None  #: monotonic time until which that check may take
        self.active_at = time.monotonic()  #: last growth of its reports, or last sample that was not quiet
        self._reported: dict[int, int] = {}  #: bytes of each rank's reports at the last look
        self._complaints: set[str] = set()
        self.boot_id: str | None = None
        self.fences = False  #: its supervisor stops it while the daemon is not heard
        self.warm: bool | None = None  #: its worker was forked; None: not known
        self.cold_because: str | None = None  #: why it was not forked
        self.descriptor: int | None = None  #: readable once its supervisor is gone
        self._seen = False  #: this agent has seen its supervisor alive

    @property
    def lease(self) -> int:
        return self.assignment.lease

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Contain an error of this lease: it must not stop the agent of the others."""
        try:
            yield
        except Exception as error:
            self.complain(f"{type(error).__name__}: {error}; the other leases go on")

    def complain(self, words: str) -> None:
        """Log a problem once: it is found again five times a second."""
        if words not in self._complaints:
            self._complaints.add(words)
            log.error("lease %d of job %d: %s", self.lease, self.dir.job, words)

    @classmethod
    def take_up(cls, directory: RunDir, assignment: Assignment, node: str) -> Run:
        """Write the assignment to disk before anything is started."""
        directory.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        checkpoints_of(directory, assignment).mkdir(parents=True, exist_ok=True, mode=0o700)
        directory.write("assignment.json", {**msgspec.to_builtins(assignment), "node": node})
        return cls(directory, assignment, Acked(directory))

    @classmethod
    def load(cls, directory: RunDir, node: str) -> Run | None:
        """The lease of a directory, if it is this node's and may not be reported completely."""
        try:
            content = directory.read("assignment.json")
        except ValueError:
            content = None
        if content is None or content.pop("node", node) != node:
            return None  # never taken up (the daemon lists it and it starts anew), or of another runner of this home
        acked = Acked.load(directory)
        if acked.closed:
            return None
        run = cls(directory, msgspec.convert(content, Assignment), acked)
        run.look()
        return run

    def adjust(self, now: Assignment) -> None:
        """Take over the changeable fields: how it shares its GPUs, where a gang's ranks meet, a replica's group, what it begins with."""
        if now.replicas is not None and now.replicas != self.assignment.replicas:
            with self.isolated():
                self.dir.replace(REPLICAS, msgspec.to_builtins(now.replicas))
        meeting = self.assignment.rendezvous or now.rendezvous
        self.assignment = msgspec.structs.replace(
            self.assignment,
            share=now.share,
            priority=now.priority,
            rendezvous=meeting,
            replicas=now.replicas,
            fetch=now.fetch,
            kept_memory=now.kept_memory,
        )

    def start(self, launch: Launch, forked: Forked | None = None) -> None:
        """Start the supervisor, unless a fork server was asked to. It outlives us: it has its own session and none of our descriptors."""
        self.phase = RunPhase.STARTING
        if forked is not None:
            self.supervisor, self._cold = forked, launch
            return
        with open(self.dir.path / "supervisor.log", "ab") as output:
            self.supervisor = supervisor = subprocess.Popen(
                [sys.executable, "-I", "-m", "stoker.runners.lease.supervisor", str(self.dir.path)],
                cwd=self.dir.path,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                # By the tag a child is found if the supervisor is killed between its fork and its exec.
                env={**os.environ, ENV_TAG: self.dir.tag},
                start_new_session=True,
            )
        assert supervisor.stdin is not None
        try:
            supervisor.stdin.write(json.dumps(launch).encode())
            supervisor.stdin.close()
        except BrokenPipeError:
            pass  # it died at once; `look` finds out why

    def look(self) -> None:
        """Update phase, identity and exit from the directory."""
        if self.phase is RunPhase.ENDED:
            return
        self._meet()
        # In this order: a supervisor registers, writes exit.json and dies.
        gone = self.identity is not None and not identity.alive(self.identity)
        self._seen = self._seen or (self.identity is not None and not gone)
        code = self.supervisor.poll() if self.supervisor else None
        ended = self._last_word()
        if ended:
            self._meet()  # a supervisor that registered since the look above has run the job, which is reported too
        if self.exit is not None:
            return
        if ended:
            self._end(ended)
        elif gone:
            self._end(self._lost("its supervisor was killed"))
        elif self.identity is None and self.forked is not None:
            if code is not None or self.forked.late():
                self._start_cold()
        elif self.identity is None and code is not None and self.dir.read("supervisor.json") is None and code != LEASE_TAKEN_EXIT:
            if code in (-signal.SIGKILL, -signal.SIGTERM):  # the kernel lacked memory, or a person killed it: not the job's fault
                self.fail("lost", "its supervisor was killed before it had started anything; the job is queued again")
            else:
                words = f"its supervisor did not start (exit code {code}): {self._complaint()}"
                self.fail("start-failed", words, host_at_fault=True)

    @property
    def forked(self) -> Forked | None:
        """The start that a fork server was asked for; None: there is none."""
        return self.supervisor if isinstance(self.supervisor, Forked) else None

    def _start_cold(self) -> None:
        """Start cold, as the fork server has died or hangs. If a child of it still comes, only one of the two can register."""
        assert self.forked is not None and self._cold is not None
        self.forked.wait()
        log.warning("lease %d starts cold: its fork server did not start it", self.lease, extra={"action": "cold"})
        self.start({**self._cold, "cold": "its server did not take it up within 2 s"})
        self._cold = None

    def _meet(self) -> None:
        """Note the supervisor, once it has registered."""
        if self.identity is not None or self.exit is not None:
            return
        try:
            self._take_note()
        except (ValueError, KeyError, TypeError):  # its supervisor is unknown: all processes with its tag are ended
            self._end(self._last_word() or self._lost("its supervisor.json is damaged"))

    def _take_note(self) -> None:
        found = self.dir.read("supervisor.json")
        if found is None:
            return
        if found["pid"] is None:
            self.fail("stopped", "stopped before it was started")
            return
        met = Process(int(found["pid"]), float(found["started"]))
        self.boot_id = str(found["boot_id"])
        self.fences = bool(found.get("fences"))
        self.warm, self.cold_because = found.get("warm"), found.get("cold")
        self.identity, self.phase, self._cold = met, RunPhase.LIVE, None
        self.descriptor = processes.watch(met)
        if self.boot_id != identity.boot_id():
            self._end(self._last_word() or self._lost("this machine was rebooted"))

    def _last_word(self) -> dict[str, Any] | None:
        """Contents of exit.json; None: it is missing or damaged."""
        try:
            content = self.dir.read("exit.json")
        except (ValueError, PermissionError):  # damaged by the job, or by a crash of the machine
            content = None
        return content if _is_word(content) else None

    def _lost(self, why: str) -> dict[str, Any]:
        """The supervisor died without exit.json: end its processes, so that the lease may be given again.

        If no agent saw its end (the host was off), its last sign of life counts as the end: nothing is known to have run later.
        """
        left = processes.end_tagged(self.dir.tag, _END_LEFTOVERS)
        if left:
            outcome, message = "unkillable", f"{why}, and could not be killed: {processes.words(left)}"
        else:
            outcome, message = "lost", f"{why}; the job goes on from its last checkpoint"
        return self._note(outcome, message, left, last_sign=None if self._seen else _last_sign(self.dir))

    def _note(
        self, outcome: str, message: str, survivors: list[Process], *, host_at_fault: bool = False, last_sign: float | None = None
    ) -> dict[str, Any]:
        more = {"survivors": survivors, "host_at_fault": host_at_fault} | ({} if last_sign is None else {"ended_at": last_sign})
        try:
            return write_exit(self.dir.path, outcome=outcome, message=message, **more)
        except OSError as error:  # a full disk must not hide the end of a job
            log.error("cannot write exit.json of lease %d: %s", self.lease, error)
            return {"exit_code": None, "ended_at": time.time(), **more, "outcome": outcome, "message": message}

    def _end(self, content: dict[str, Any]) -> None:
        self.exit = content
        self.phase = RunPhase.ENDED
        log.info("lease %d of job %d ended: %s", self.lease, self.dir.job, content["outcome"], extra={"action": "ended"})

    def _complaint(self) -> str:
        try:
            lines = (self.dir.path / "supervisor.log").read_text().splitlines()
        except OSError:
            lines = []
        return lines[-1] if lines else "it said nothing"

    def saved_bytes(self) -> int | None:
        """Bytes of its job's checkpoints; None: they cannot be read."""
        try:
            return sum(path.stat().st_size for path in checkpoints_of(self.dir, self.assignment).rglob("*") if path.is_file())
        except OSError:
            return None

    def survivors(self) -> list[Process]:
        """Processes that could not be killed at its end."""
        return [Process(*found) for found in (self.exit or {}).get("survivors") or ()]

    def note_reports(self, now: float) -> None:
        """Note new reports: they are progress even while no daemon takes them."""
        reported = sizes(self.dir)
        if reported != self._reported:
            self._reported, self.active_at = reported, now

    @property
    def has_reported(self) -> bool:
        """Whether the daemon has a report of it: it has trained."""
        return any(self.acked.offsets.values())

    def hangs(self, now: float) -> bool:
        """Whether it has not reported for too long; the caller has checked that it is idle.

        Without `hang_after` only jobs that have reported before can hang: a script that knows nothing of Stoker
        never reports, and may well wait for something.
        """
        after = self.assignment.spec.get("hang_after")
        if after is None:
            if not any(self._reported.values()):
                return False
            after = _HANG_AFTER
        return self.stopping is None and now - self.active_at > after

    def disown(self) -> None:
        """End it without reports: the daemon takes none of it any more."""
        self.disowned = True

    def close(self) -> None:
        """Release its resources; it is finished."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None
        if self.supervisor is not None:
            self.supervisor.wait()  # it has written exit.json, so it is about to leave

    def fail(self, outcome: str, message: str, *, host_at_fault: bool = False) -> None:
        """End the lease before its start; ``host_at_fault``: another host may have what is missing here."""
        try:
            said = self._last_word()
        except OSError:
            said = None
        self._end(said or self._note(outcome, message, [], host_at_fault=host_at_fault))

    def stop(self, reason: str, grace: float) -> None:
        """Ask it to leave; a later request may be more urgent than the first, never less."""
        wanted = StopRequest(reason=reason, grace=grace)
        if self.phase is RunPhase.ENDED or wanted == self.stopping:
            return
        if self.phase is RunPhase.WAITING and self._withhold():
            self.fail("stopped", f"{reason} before it was started")
            return
        written = self._write_stop(wanted)
        # Written before we look for a registration, as the supervisor registers before it reads stop.json: one of us sees the other.
        self.look()
        if self.identity is not None:
            processes.send(self.identity, signal.SIGCONT)  # a stopped process would not act on the other signal
            processes.send(self.identity, signal.SIGUSR1 if grace <= 0 else signal.SIGTERM)
        if written or self.identity is not None:  # else it has not heard it: the next call repeats it
            self.stopping = wanted

    def _withhold(self) -> bool:
        """Take the lease so that it is never started; False: it has been started."""
        try:
            return register(self.dir.path, None)
        except OSError as error:
            self.complain(f"cannot write supervisor.json: {error.strerror}; it is not started all the same")
            # Of a former agent's supervisor that has not registered yet, only the tag is known.
            return not processes.end_tagged(self.dir.tag, _END_LEFTOVERS)

    def _write_stop(self, wanted: StopRequest) -> bool:
        try:
            self.dir.write("stop.json", wanted)
            return True
        except OSError as error:  # a full disk must not prevent a stop; the supervisor then uses a grace of its own
            self.complain(f"cannot write stop.json: {error.strerror}; it is signalled all the same")
            return False


def _last_sign(directory: RunDir) -> float:
    """When a lease last wrote output or reports, or else its start (s since the epoch)."""
    names = ("supervisor.json", "output.log", *(path.name for path in directory.path.glob("reports-*.jsonl")))
    return max((path.stat().st_mtime for name in names if (path := directory.path / name).exists()), default=time.time())


class _Word(msgspec.Struct):
    """The checked fields of exit.json: the daemon would refuse a whole report for one wrong value."""

    outcome: Outcome
    message: str | None
    exit_code: Whole | None
    ended_at: Time
    survivors: list[tuple[int, float]] | None = None
    host_at_fault: bool = False


def _is_word(content: Any) -> bool:
    try:
        msgspec.json.encode(msgspec.convert(content, _Word))
        return True
    except (ValueError, RecursionError):  # of the latter kind: half a surrogate pair
        return False


def survivors_of(directory: RunDir) -> tuple[list[str], list[Process]] | None:
    """GPUs and surviving processes of a lease that was reported as unkillable; None: of any other."""
    try:
        ended, assignment = directory.read("exit.json"), directory.read("assignment.json")
    except ValueError:
        return None
    if not ended or not assignment or not ended.get("survivors"):
        return None
    return assignment["gpus"], [Process(*found) for found in ended["survivors"]]

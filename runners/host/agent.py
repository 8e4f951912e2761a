"""The agent of a node: starts and stops the leases of this host as the daemon wants, and reports what they do.

    python -m stoker.runners.host.agent --home DIR --node NAME [--slots N] [--pool default]

It keeps no state of its own: leases lie in their run directories, each watched by a supervisor that outlives the agent. So
`kill -9` of an agent costs no work: the next agent of the node adopts the running leases.

- Each poll names ALL leases of the node. Leases that are missing here are started, marked ones are stopped. A lease that is not
  listed is killed: it has been fenced off, and its GPUs may belong to another one.
- The daemon is down: workers go on, reports stay in their files, and the agent tries again, with growing pauses.
- Another agent has taken the node: this one leaves its workers alone and exits.
- SIGTERM or SIGINT: the agent leaves, workers go on. Only the daemon ends jobs; where it wants the runner's jobs ended first
  (`stoker down`, drain), it marks them and sends shutdown 'stop'. Under systemd the unit needs KillMode=process.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from ... import __version__
from ...engine import identity
from ...engine.client import Client
from ...engine.errors import Stale, StokerError, UsageError
from ...engine.home import Home
from ...engine.protocol import ENV_PILOT, NODE, NODE_FORM, VERSION, Assignment, Assignments, ForkServer, Hello, JobFiles, Sample, Welcome
from ...engine.streams import steady_stderr
from ..backbones.hub_directory import ENV_DOWNLOAD
from ..handover.handed_back import HandedBack, say_untold
from ..handover.handover import Handover
from ..handover.passed_requests import RequestPasser
from ..kept_files import kept_files
from ..lease import processes
from ..lease.endings import SMALLER
from ..lease.rundir import RunDir
from ..network.addresses import LOOPBACK, address_towards, require_own, with_free_port
from ..network.heard import Heard
from ..network.probe import own_place, serve, served, shared_place
from ..old_files import KEEP_LOGS, KEEP_REPORTS, clean, keep_snapshots
from ..runner_lock import held_lock
from ..share.input_groups import InputGroups
from ..share.slot_turns import SlotTurns, Taking, memory_together
from ..warm.warm_starts import WarmStarts
from .divided_cores import DividedCores, Pins
from .gpus import Devices, find
from .health import Health
from .launch import CannotStart, field_of_memory, handed_on, prepare
from .link import Outbox, Poller, greet
from .report_tail import Acked
from .runs import Run, RunPhase, survivors_of
from .sent_logs import LogSender, is_owed
from .telemetry import Telemetry, WatchedLease

log = logging.getLogger("stoker.runner")

_BUSY = 0.2  #: seconds between looks at the files of live leases
_STARTING = 0.02  #: seconds between looks while a supervisor is about to register
_IDLE = 30.0  #: seconds between looks while nothing runs; messages wake us sooner
_SETTLE = 5.0  #: seconds for the driver to free the memory of a process that has ended
_LAST_LOGS = 10.0  #: seconds at most for which a leaving runner sends the ends of logs
_CLEAN = 600.0  #: seconds between removals of old directories
_FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class Options:
    """Options of an agent, fixed at its start."""

    home: Path
    node: str
    pool: str = "default"
    address: str = LOOPBACK  #: where ranks on other nodes reach this one
    keep_reports: float = KEEP_REPORTS  #: seconds for which raw reports are kept after a lease
    keep_logs: float = KEEP_LOGS
    hand_back: bool = False  #: when told to leave, it stops its jobs first
    until: float | None = None  #: deadline by which its jobs must have left (boot clock of the host); it leaves early enough by itself
    warm: Literal["auto", "off"] | None = None  #: auto: recipes and entrypoints start by fork; None: as the daemon says


class Agent:
    """One per node. ``client`` connects to the daemon: once for polls, once for reports."""

    def __init__(self, options: Options, client: Callable[[], Client], devices: Devices):
        self.options, self._client, self.devices = options, client, devices
        self.runs: dict[int, Run] = {}
        self.desired: dict[int, Assignment] | None = None  #: by lease; None until this session's first answer
        self.shutdown: str | None = None
        self.leaving = self.handed_back = False
        self._back = HandedBack(options.until)
        self._telemetry = Telemetry(devices)
        self._pins = Pins(devices)
        self._cores = DividedCores(pinned=self._pins.of)
        self._turns = SlotTurns(devices, options.home)
        self._inputs = InputGroups(options.home)
        self.warm = WarmStarts(False, handed_on(os.environ))
        self._servers_told: list[ForkServer] = []
        self._files_told: list[JobFiles] | None = None
        self._sample_at = self._clean_at = self._check_at = 0.0
        self.health = Health(devices)
        self.place = own_place(options.home)
        self._logs: LogSender | None = None
        self._handover: Handover | None = None
        self._heard = Heard(Home(options.home).runner_lock(options.node).with_suffix(".heard"))
        self._greeted_at = 0.0  #: boot clock at the last registration
        self._closed: list[RunDir] = []  #: leases of the last day whose ends an earlier agent reported
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    # -- life ---------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until told to leave. Raises StokerError when another agent has this node, or the daemon refuses us."""
        with held_lock(Home(self.options.home), self.options.node), contextlib.closing(self.warm):
            self._load()
            welcome = greet(self._client(), self._hello, self._wait_to_greet)
            if welcome is None:
                say_untold(self.runs.values(), self.options.node)
                return
            self._heard.begin(self._greeted_at, welcome.fence_after)
            serve(self.options.home, welcome.daemon)
            self.warm.limit = welcome.warm_memory * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            self._turns.kind = welcome.turn
            self._inputs.share = welcome.input_memory
            os.environ[ENV_DOWNLOAD] = str(int(welcome.download))  # jobs inherit it
            self.warm.enabled = (self.options.warm or welcome.warm) == "auto"
            if not self.warm.enabled:
                self.warm.close()
            log.info("node %s serves pool %s", self.options.node, self.options.pool, extra={"action": "up"})
            outbox = Outbox(self._client(), self.options.node, welcome.session, self._heard.renew)
            if welcome.shared is not None:
                outbox.place = shared_place(welcome.shared)
                while not outbox.flush(()):  # before the first lease, whose checkpoints lie at the place that is told
                    if not self._wait_to_greet(0.2):
                        return
            logs = self._logs = LogSender(self._client(), self.options.home, self.options.node, welcome.session, keep=welcome.keeps_logs)
            for directory in self._closed:  # the agent under which they ended may not have sent their logs
                logs.ended(directory)
            passer = RequestPasser(self._client(), self.options.home, self.options.node, welcome.session)
            poller = Poller(self._client(), self.options.node, welcome, self.wake, logs.want, passer.want, self._heard.renew)
            self._handover = Handover(self._client, self.options.home, self.options.node, welcome.session, self.wake)
            self._handover.start()
            logs.start()
            poller.start()
            try:
                self._serve(welcome, outbox, poller)
            except Stale as error:
                raise Stale(f"this runner leaves, its jobs go on: another one has taken node {self.options.node!r} ({error})") from None
            finally:
                poller.leaving.set()
            self._say_goodbye(outbox)

    def leave(self) -> None:
        """Leave soon; workers go on. Safe in a signal handler: it takes no lock, which the interrupted thread might hold.

        With ``hand_back`` jobs are stopped first, each with its grace, as the node will be taken away; a second call changes nothing.
        """
        if self.options.hand_back and not self.handed_back:
            self.handed_back = True
        elif not self.options.hand_back:
            self.leaving = True
        self.wake()

    @property
    def fences(self) -> bool:
        """Whether its jobs stop when the daemon is not heard for long; then it may begin anew by itself after it was declared dead."""
        return self._heard.after is not None

    def wake(self) -> None:
        try:
            os.write(self._wake_write, b".")
        except BlockingIOError:
            pass  # the pipe is full: it will wake anyway

    def _wait(self, seconds: float, *descriptors: int) -> None:
        """Wait until `wake` is called, a descriptor is readable, or the time is over."""
        poll = select.poll()
        for descriptor in (self._wake_read, *descriptors):
            poll.register(descriptor, select.POLLIN)
        poll.poll(seconds * 1000)
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            pass

    def _wait_to_greet(self, seconds: float) -> bool:
        """Whether to go on. A node that is handed back meanwhile has its jobs stopped, which need no daemon."""
        self._wait(min(seconds, _BUSY) if self.handed_back else seconds)
        self.handed_back = self.handed_back or self._back.is_due(self._running())
        if self.handed_back:
            self._back.begin()
            self.reconcile()
        return not (self.leaving or (self.handed_back and not self.runs) or self._back.waits_in_vain(self.runs.values()))

    def _serve(self, welcome: Welcome, outbox: Outbox, poller: Poller) -> None:
        announced = False
        while not self.leaving:
            answer = poller.take()
            if answer is not None:
                self._want(answer)
                outbox.hurry()
            if self.handed_back and not announced:
                announced = outbox.hands_back = True
                self._back.begin()
                outbox.hurry()
            self.reconcile()
            self._watch(welcome, outbox)
            told = outbox.flush(self.runs.values())
            self._forget_closed()
            ends = self.handed_back or (self.shutdown == "stop" and not self.desired)
            if ends and told and not self.runs and self._all_sent(outbox):
                return
            if self._back.waits_in_vain(self.runs.values(), max(outbox.taken_at, self._handover.taken_at if self._handover else 0.0)):
                return
            self._sleep(outbox)

    def _all_sent(self, outbox: Outbox) -> bool:
        """Whether the daemon wants no more checkpoints of a node that is handed back. It knows already that nothing runs here."""
        try:
            answer = outbox.ask()
        except StokerError as error:
            log.warning("%s; what lies here stays here", error, extra={"action": "unreachable"})
            return True
        if answer is None:  # a node that is handed back may leave checkpoints with it, and waits as long as `HandedBack` says
            return not self.handed_back
        self._want(answer)
        return not answer.send

    def _say_goodbye(self, outbox: Outbox) -> None:
        """Send the last report, with ``left`` only if nothing runs: the daemon must not give up live workers."""
        live = [run for run in self.runs.values() if run.phase is not RunPhase.ENDED]
        if self._logs is not None:
            self._logs.finish(_LAST_LOGS)
        try:
            outbox.flush(self.runs.values(), left=not self.runs)
        except StokerError as error:
            log.warning("not told to the daemon: %s", error)
        say_untold(self.runs.values(), self.options.node)
        if live:
            words = f"{len(live)} job{'s' * (len(live) > 1)} go on without it, and the next runner of node {self.options.node} adopts them"
            log.info("runner leaves; %s", words, extra={"action": "leave"})

    def _hello(self) -> Hello:
        me = processes.myself()
        self._greeted_at = identity.boot_clock()
        for gpu in set(self.devices.gpus) - self._occupied():
            self.health.note(gpu)
        return Hello(
            protocol=VERSION,
            version=__version__,
            node=self.options.node,
            host=socket.gethostname(),
            boot_id=identity.boot_id(),
            pid=me.pid,
            pid_started=me.started,
            home=str(self.options.home),
            address=self.options.address,
            pool=self.options.pool,
            gpus=list(self.health.noted.values()),
            leases=sorted(self.runs),
            place=self.place,
            fetch_at_most=0,
            fence_after=0.0 if all(run.fences or run.phase in (RunPhase.WAITING, RunPhase.ENDED) for run in self.runs.values()) else None,
            leaves_in=None if self.options.until is None else max(self.options.until - identity.boot_clock(), 0.0),
            pilot=os.environ.get(ENV_PILOT) or None,
            serves=served(self.options.home),
        )

    def _load(self) -> None:
        """Adopt the leases of earlier agents of this node."""
        for directory in RunDir.find(self.options.home):
            try:
                self._load_one(directory)
            except Exception as error:  # one damaged directory must not stop the agent of all others
                log.error("%s is passed over: %s: %s", directory.path, type(error).__name__, error)

    def _load_one(self, directory: RunDir) -> None:
        run = Run.load(directory, self.options.node)
        if run is None and (survivors := survivors_of(directory)):
            self.health.quarantine(*survivors)
        if run is None and is_owed(directory, self.options.node):
            self._closed.append(directory)
        if run is not None:
            self.runs[run.lease] = run
            if run.phase is RunPhase.LIVE:
                log.info("lease %d of job %d is adopted", run.lease, directory.job, extra={"action": "adopt"})

    # -- what the daemon wants ----------------------------------------------------------------------------------------

    def _want(self, answer: Assignments) -> None:
        self.shutdown = answer.shutdown
        self.desired = {assignment.lease: assignment for assignment in answer.leases}
        self.warm.drain(answer.draining)
        self.warm.keep(answer.warm)
        if self._handover is not None:
            self._handover.send(answer.send)
        for lease, assignment in self.desired.items():
            if (known := self.runs.get(lease)) is not None:
                known.adjust(assignment)
            elif (run := self._take_up(assignment)) is not None:
                self.runs[lease] = run

    def _take_up(self, assignment: Assignment) -> Run | None:
        """Take up a new lease; None: its end has been reported, and the daemon's list is older than that."""
        directory = RunDir(self.options.home, assignment.job, assignment.lease, assignment.node_rank)
        try:
            if Acked.load(directory).closed:
                return None
            return Run.take_up(directory, with_free_port(assignment), self.options.node)
        except OSError as error:
            run = Run(directory, assignment, Acked(directory))
            words = f"cannot write {directory.path}: {error.strerror}; free some space on this node"
            run.fail("start-failed", words, host_at_fault=True)
            return run

    def reconcile(self) -> None:
        """Take the next step of every lease towards the wanted state. Idempotent."""
        for run in self.runs.values():
            with run.isolated():
                asked = run.forked
                run.look()
                if asked is not None and run.forked is None:  # its fork server did not take it up in time
                    self.warm.failed(run.assignment)
                self._stop_unwanted(run)
                if run.phase is RunPhase.LIVE and run.has_reported:
                    self.warm.expect(run.assignment)
        if self.desired is not None:
            for run in self.runs.values():
                if run.phase is RunPhase.WAITING and not run.disowned and run.lease in self.desired:
                    self._try_start(run)
        self._cores.tell(self._running())
        if self.desired is not None:  # before the first answer it is not known which leases share
            self._pins.hold(self._running())
            self._turns.tell(self._running())
            self._turns.rank(self._running())

    def _stop_unwanted(self, run: Run) -> None:
        wanted = self.desired.get(run.lease) if self.desired is not None else None
        if run.phase is RunPhase.ENDED:
            return
        if self.handed_back and (wanted is None or wanted.stop is None) and not run.disowned:
            run.stop("drain", run.assignment.grace)
        elif run.disowned or (self.desired is not None and wanted is None):
            run.stop(_FENCED, 0.0)
        elif wanted is not None and wanted.stop is not None:
            run.stop(wanted.stop, wanted.grace)

    def _try_start(self, run: Run) -> None:
        try:
            self._start(run)
        except Exception as error:  # a bug of ours, not of the job: it must neither stop the agent nor keep the GPUs
            log.exception("lease %d cannot be started", run.lease)
            if run.phase is RunPhase.WAITING:
                run.fail("start-failed", f"the runner cannot start it: {type(error).__name__}: {error}")

    def _start(self, run: Run) -> None:
        if self._heard.overdue:  # another runner may have started the lease by now
            return
        gpus = run.assignment.gpus
        if unknown := [gpu for gpu in gpus if gpu not in self.devices.gpus]:
            words = f"this node has no GPU {', '.join(unknown)}; it has {', '.join(self.devices.gpus)}"
            run.fail("start-failed", words, host_at_fault=True)
            return
        if self._is_held(run) or (run.assignment.nodes > 1 and not run.assignment.rendezvous):
            return
        begins_with = run.assignment.fetch or run.assignment.snapshot
        if begins_with if self._handover is None else not self._handover.has_come(run):
            return
        if (refusal := self._refusal(run)) is not None:
            # Give the GPU a moment: the driver frees memory some time after the process has ended.
            run.start_by = run.start_by or time.monotonic() + _SETTLE
            if time.monotonic() >= run.start_by:
                run.fail(*refusal)
            return
        cuda = [gpu for gpu in gpus if self.devices.gpus[gpu].kind == "cuda"]
        try:
            cpus = self._cores.tell([*self._running(), run]).get(run.lease)
            self._turns.tell([*self._running(), run])
            if (group := run.assignment.input) is not None:
                here = [other for other in self.runs.values() if other.phase is not RunPhase.ENDED and other.stopping is None]
                self._inputs.tell(run.dir, group, sum(other.assignment.input == group for other in here))
            launch = prepare(run.dir, run.assignment, cuda, cpus=cpus, address=self.options.address)
            launch |= {"heard": str(self._heard.path), "grace": run.assignment.grace}
            forked, why = self.warm.start(run.dir, run.assignment, launch)
            run.start(launch if why is None else {**launch, "cold": why}, forked)
        except CannotStart as error:
            run.fail("start-failed", str(error), host_at_fault=error.host_at_fault)
        except OSError as error:
            run.fail("start-failed", f"cannot start its supervisor: {error}", host_at_fault=True)

    def _is_held(self, run: Run) -> bool:
        """Whether an ending lease still holds one of its GPUs."""
        leaving = [other for other in self.runs.values() if other.stopping is not None and not other.settled]
        return any(set(other.assignment.gpus) & set(run.assignment.gpus) for other in leaving)

    def _refusal(self, run: Run) -> tuple[str, str] | None:
        """Outcome and words if its GPUs cannot take the job now: its expected memory is compared with the free memory.

        Where the node is to blame the outcome is ``lost``, which costs the job no attempt, and the GPU is reported dirty.
        """
        shared = self._occupied()
        needed, field = run.assignment.gpu_memory, field_of_memory(run.assignment.spec)
        for gpu in run.assignment.gpus:
            known = self.devices.gpus[gpu]
            if needed > known.memory and (known.memory or known.kind == "cuda"):
                words = f"{field}: {_size(needed)} is more than GPU {known.index} ({known.name}) has, {_size(known.memory)}"
                less = "lower it" if field == "memory.cap" else f"lower it, or {SMALLER}"
                return "start-failed", f"{words}; {less}"
            if gpu not in shared:
                now = self.health.look(gpu)
                if now.health != "ok":
                    return "lost", f"not started, GPU {now.index} is {now.health}: {now.note}"
            beside = [other for other in self._running() if other is not run and gpu in other.assignment.gpus]
            together = memory_together([other.assignment for other in (run, *beside)])  # reserved, not yet allocated perhaps
            if beside and 0 < known.memory < together:
                taken = memory_together([other.assignment for other in beside])
                words = f"its other jobs need {_size(taken)} of {_size(known.memory)} and the job {_size(needed)} ({field})"
                return "lost", f"not started, GPU {known.index} is full: {words}"
            free = self.devices.free(gpu)
            at_once = (beside and run.assignment.kept_memory) or needed  # another one may have the turn
            if free is not None and at_once > free:
                return "lost", f"not started, GPU {known.index} has {_size(free)} free and the job needs {_size(at_once)} ({field})"
        return None

    # -- what happens here --------------------------------------------------------------------------------------------

    def _watch(self, welcome: Welcome, outbox: Outbox) -> None:
        """All periodic work."""
        now = time.monotonic()
        self.handed_back = self.handed_back or self._back.is_due(self._running())
        for run in self.runs.values():
            if run.phase is RunPhase.ENDED and not run.settled:
                with run.isolated():
                    self._settle(run, now, outbox)
        if now >= self._check_at:
            self._check_at = now + _SETTLE
            used = {gpu for run in self.runs.values() for gpu in run.assignment.gpus}
            self._note(set(self.devices.gpus) - used, outbox)
        if (servers := self.warm.told()) != self._servers_told:
            outbox.servers = self._servers_told = servers
        if now >= self._sample_at:
            self._sample_at = now + welcome.telemetry_interval
            self.warm.tend()
            self._inputs.clean()
            self._sample(outbox, now)
        if now >= self._clean_at:
            self._clean_at = now + _CLEAN
            keep_snapshots(self.options.home, [run.assignment for run in self.runs.values()])
            clean(self.options.home, set(self.runs), keep_reports=self.options.keep_reports, keep_logs=self.options.keep_logs)
            if (files := kept_files(self.options.home)) != self._files_told:
                outbox.files = self._files_told = files

    def _settle(self, run: Run, now: float, outbox: Outbox) -> None:
        """Report the end of a lease once its GPUs are free, or, after a bounded wait, together with the reason why they are not."""
        survivors = run.survivors()
        self.health.quarantine(run.assignment.gpus, survivors)
        gpus = set(run.assignment.gpus) & set(self.devices.gpus) - self._occupied()
        run.settle_by = run.settle_by or now + _SETTLE
        run.settled = bool(survivors) or now >= run.settle_by or all(self.health.look(gpu).health == "ok" for gpu in gpus)
        if run.settled:
            self._note(gpus, outbox)

    def _occupied(self) -> set[str]:
        """GPUs with a worker, whose memory therefore shows no leftovers."""
        return {gpu for run in self._running() for gpu in run.assignment.gpus}

    def _running(self) -> list[Run]:
        return [run for run in self.runs.values() if run.phase in (RunPhase.STARTING, RunPhase.LIVE)]

    def _note(self, gpus: Iterable[str], outbox: Outbox) -> None:
        for gpu in gpus:
            if (changed := self.health.note(gpu)) is not None:
                outbox.gpus[gpu] = changed
                log.info("GPU %s is %s: %s", gpu, changed.health, changed.note or "free", extra={"action": "gpu"})

    def _sample(self, outbox: Outbox, now: float) -> None:
        live = [(run, run.identity) for run in self.runs.values() if run.phase is RunPhase.LIVE and run.identity is not None]
        workers = [WatchedLease(run.lease, tuple(run.assignment.gpus), identity.pid) for run, identity in live]
        samples, quiet = self._telemetry.sample(workers, identity.steady_time(), now)
        seen = self._turns.look({run.lease: run.assignment.grace for run, _ in live})
        outbox.samples += [self._with_turn(sample, seen) for sample in samples]
        for run, _ in live:
            with run.isolated():
                run.note_reports(now)
                if run.lease in seen.stuck and run.stopping is None:
                    log.warning("lease %d keeps the turn without a sign and is stopped", run.lease, extra={"action": "hang"})
                    run.stop("hang", run.assignment.grace)
                elif run.lease not in quiet or seen.turn.get(run.lease) in ("waits", "behind"):
                    run.active_at = now
                elif run.hangs(now):
                    log.warning("lease %d hangs and is stopped", run.lease, extra={"action": "hang"})
                    run.stop("hang", run.assignment.grace)

    @staticmethod
    def _with_turn(sample: Sample, seen: Taking) -> Sample:
        """Add to a sample whether its lease has the turn, and how long it has waited for it."""
        if sample.lease is None or (sample.lease not in seen.turn and sample.lease not in seen.waited):
            return sample
        return msgspec.structs.replace(sample, turn=seen.turn.get(sample.lease), waited=seen.waited.get(sample.lease))

    def _forget_closed(self) -> None:
        for run in list(self.runs.values()):
            if run.disowned and run.phase is RunPhase.ENDED and run.settled:
                run.acked.closed = True
                run.acked.save()
            if run.acked.closed and run.phase is RunPhase.ENDED:
                run.close()
                self.warm.expect(run.assignment, ended=True)
                if self._logs is not None and not run.disowned:
                    self._logs.ended(run.dir)
                del self.runs[run.lease]

    def _sleep(self, outbox: Outbox) -> None:
        """Wait for a message, the end of a supervisor, or the next look at files. While nothing runs, no files are read."""
        ends = [run.descriptor for run in self.runs.values() if run.phase is RunPhase.LIVE and run.descriptor is not None]
        self._wait(self._pause(outbox), *ends, *self.warm.loading())

    def _pause(self, outbox: Outbox) -> float:
        now = time.monotonic()
        phases = {run.phase for run in self.runs.values()}
        if RunPhase.STARTING in phases:
            return _STARTING
        if self.handed_back or phases - {RunPhase.ENDED} or not all(run.settled for run in self.runs.values()):
            return _BUSY
        until = now + min(_IDLE, self._back.due_in())
        if any(gpu.kind == "cuda" for gpu in self.devices.gpus.values()):
            until = min(until, self._sample_at, self._check_at)
        if outbox.waiting:
            until = min(until, outbox.retry_at)
        elif self.runs:
            return _BUSY  # one report could not take all
        return max(0.0, until - now)


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.1f} MiB"


def _require_names(node: str, pool: str, home: Home) -> None:
    """Refuse names that the daemon would refuse, before files are made by them."""
    for option, name in (("--node", node), ("--pool", pool)):
        if not NODE.fullmatch(name):
            raise UsageError(f"{option}: {name[:60]!a} is no name: {NODE_FORM}")
    if not str(home.path).isprintable():
        raise UsageError(f"--home: {ascii(str(home.path))[:200]} is not printable UTF-8 text; choose another directory")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="stoker runner", description="Run the agent of this host.")
    parser.add_argument("--home", type=Path, help="state directory; by default that of the daemon on this host")
    parser.add_argument("--node", default=socket.gethostname(), help="name of the runner (default: host name)")
    parser.add_argument("--pool", default="default")
    parser.add_argument("--slots", type=int, help="offer so many CPU slots, and no GPU (default: the GPUs; without any, a slot a core)")
    parser.add_argument("--slot-memory", type=int, metavar="BYTES", help="memory that each CPU slot is declared to have (default: unknown)")
    parser.add_argument("--gpus", help="indexes or UUIDs of the GPUs to offer (default: those of CUDA_VISIBLE_DEVICES, or all)")
    parser.add_argument("--address", help="at which other hosts reach this one, for gangs (default: that of the route to the daemon)")
    parser.add_argument("--hand-back", action="store_true", help="told to leave (SIGTERM) stop all jobs with their grace first")
    parser.add_argument("--until", type=float, metavar="EPOCH", help="when the node is handed back without being told (s since the epoch)")
    parser.add_argument("--warm", choices=("auto", "off"), help="auto: jobs start by fork (default: as the daemon's config.toml says)")
    given = parser.parse_args(argv)
    steady_stderr()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    home = Home(given.home.absolute()) if given.home else Home.default()
    try:
        _require_names(given.node, given.pool, home)
        address = address_towards(os.environ.get("STOKER_URL")) if given.address is None else require_own(given.address)
        until = None if given.until is None else given.until - identity.ahead_of_boot()
        hand_back = given.hand_back or until is not None
        options = Options(home.create().path, given.node, given.pool, address, hand_back=hand_back, until=until, warm=given.warm)
        agent = Agent(options, lambda: Client(home), find(given.node, given.slots, given.gpus, slot_memory=given.slot_memory))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: agent.leave())
        try:
            agent.run()
        except Stale as error:
            if not agent.fences:
                raise
            log.warning("%s; it registers anew", error, extra={"action": "again"})
            os.execv(sys.executable, [sys.executable, "-m", "stoker.runners.host.agent", *(sys.argv[1:] if argv is None else argv)])
    except StokerError as error:
        words = "".join(char if char.isprintable() else "�" for char in " ".join(str(error).split()))
        sys.stderr.write(f"stoker runner: {words}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The supervisor of one lease, like containerd's shim and conmon: `python -m stoker.runners.lease.supervisor RUN_DIR`.

It is small and outlives the agent, so an agent can be killed, upgraded and started again while jobs train. Standard
library only. The command comes as JSON on standard input (see `Launch`): it holds secrets of env files, which must not
appear on disk or in a process list.

- It registers by creating supervisor.json exclusively. A second supervisor leaves: a lease is started at most once.
- It is the subreaper of all processes of the command (PR_SET_CHILD_SUBREAPER). A grandchild that calls setsid, or whose
  parents died, stays its descendant and is ended with the rest. It has no other children, so unlike in
  github.com/NVIDIA/TensorRT-LLM/pull/16404 a kill of the tree cannot hit a foreign process.
- SIGTERM: stop by stop.json {reason, grace}. SIGTERM to processes that can checkpoint, SIGKILL to the tree after the grace.
- SIGUSR1: kill now.
- exit.json is written when all processes are gone, or when the bounded wait after SIGKILL is over (`unkillable`).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, Protocol, TypedDict

from ...engine import identity
from ...engine.identity import Process, Stat
from ..network.heard import LOOK_SECONDS, overdue_in
from . import endings, processes
from .lease_log import RotatingLog
from .rundir import DONE, ENV_LEASE, STOP_SEEN, reserve, write_atomically

if TYPE_CHECKING:
    from ..share.command_turns import CommandTurns
    from .host_limits import HostLimits

_PR_SET_CHILD_SUBREAPER = 36
_PIPE_BYTES = 1 << 20
_MEMORY_CHECK_INTERVAL = 0.5  #: seconds between looks at the memory of a job whose memory is limited
_TICK = 0.05  #: seconds between looks at the process tree, only while something is being ended
_LEFTOVER_GRACE = 2.0  #: seconds that processes get to end by themselves after the main process
_LOG_END_BYTES = 4096  #: bytes of the log's end that go into exit.json
_EXIT_BYTES = 8 * _LOG_END_BYTES  #: size of exit.json at most: in JSON a byte of the tail takes up to six
_KILLED_FIRST = 500  #: oom_score_adj of workers: when memory runs out they go before the daemon, the agent and us

LEASE_TAKEN_EXIT = 3  #: exit code: another supervisor, or an agent's refusal, holds this lease

# Wrappers that do not forward signals: their children must be signalled too.
_SHELLS = frozenset({"sh", "dash", "bash", "zsh", "ksh", "ash", "busybox", "fish"})
# Launchers that on SIGTERM end their ranks in their own way: only the ranks are signalled, and the launcher follows them.
_LAUNCHERS = frozenset({"torch.distributed.run", "torch.distributed.launch", "torchrun", "stoker.runners.worker.gang"})


class Launch(TypedDict):
    """A command and its environment, as the agent hands it to a supervisor."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    log_limit: int
    kill_wait: float  #: seconds to wait for processes after SIGKILL
    notes: NotRequired[list[str]]  #: lines that its log begins with
    turns: NotRequired[bool]  #: it is a command that shares its GPU by turns
    heard: NotRequired[str]  #: file with the time at which the daemon was last heard
    grace: NotRequired[float]  #: seconds to leave after the daemon was silent for too long
    cold: NotRequired[str]  #: why it starts in a fresh process
    host: NotRequired[dict[str, int]]  #: memory (bytes) and cpus of this host that it may use


class StopRequest(TypedDict):
    """Contents of stop.json: the reason, and the seconds between the request and the kill."""

    reason: str
    grace: float


def register(run: Path, process: Process | None, **facts: Any) -> bool:
    """Take the lease, for this process or, with None, so that it is never started. False: it is taken already.

    ``facts``: further facts for the agent about the process that took it.

    A hard link appears whole or not at all, and fails if the name exists.
    """
    content = {"pid": process.pid, "started": process.started, "boot_id": identity.boot_id(), **facts} if process else {"pid": None}
    temporary = run / f".supervisor.{os.getpid()}.tmp"
    write_atomically(temporary, json.dumps(content).encode())
    try:
        os.link(temporary, run / "supervisor.json")
        return True
    except FileExistsError:
        return False
    finally:
        temporary.unlink()


def read_stop(run: Path) -> StopRequest | None:
    try:
        content = json.loads((run / "stop.json").read_bytes())
        return StopRequest(reason=str(content["reason"]), grace=float(content["grace"]))
    except (OSError, ValueError, KeyError, TypeError):  # missing, or cut short by a full disk
        return None


class Main(Protocol):
    """The main process of a lease."""

    pid: int
    returncode: Any


class Supervisor:
    """Runs the command and leaves no process of it behind. One thread, driven by signals and the log's pipe."""

    warm = False  #: its worker is forked from a process that has loaded its imports

    def __init__(self, run: Path, launch: Launch):
        self.run_dir, self.launch = run, launch
        self.log = RotatingLog(run / "output.log", launch["log_limit"])
        self.started_at = time.time()
        self.main: Main | None = None
        self.exit_code: int | None = None  #: of the main process, None while it runs
        self.stop: StopRequest | None = None
        self.asked: set[Process] = set()  #: processes that were sent SIGTERM
        self.caught = False  #: one of `asked` had a handler for it
        self.launchers: set[Process] = set()  #: launchers whose ranks were sent SIGTERM
        self.kill_at: float | None = None
        self.turns: CommandTurns | None = None
        self.look_at = 0.0  #: monotonic time of the next look whether the daemon was heard
        self.limits: HostLimits | None = None
        self.killed = False  #: processes still ran when the grace was over
        self.kernel_kills = oom_kills()
        self.selector = selectors.DefaultSelector()

    def watch_signals(self) -> None:
        """Signals only wake the loop; nothing is done inside a handler."""
        self.wake, written = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # signals that the starter had blocked
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        self.selector.register(self.wake, selectors.EVENT_READ, self._on_signals)

    def run(self) -> None:
        """Start the command, and return when exit.json is written."""
        if stop := read_stop(self.run_dir):  # the request came before we could be signalled
            self._write_exit("stopped", f"{stop['reason']} before it was started", stop["reason"])
            return
        if (left := self._patience()) is not None and left <= 0:
            self._write_exit("lost", f"not started: {endings.NOT_HEARD}", endings.UNHEARD)
            return
        with contextlib.suppress(OSError):  # the disk is full: there may be room again at the end
            reserve(self.run_dir / "exit.json", _EXIT_BYTES)  # else a disk that fills up would make a finished job a lost one
        try:
            self._limit()
            self._start()
        except (OSError, ValueError, subprocess.SubprocessError) as error:  # the last one: raised before the exec of the command
            if self.limits is not None:
                self.limits.close()
            words = f"cannot start {self.launch['argv'][0]!r} in {self.launch['cwd']}: {error}"
            self._write_exit("start-failed", words, host_at_fault=isinstance(error, OSError))
            return
        for note in self.launch.get("notes", ()):
            self.log.write(f"stoker: {note}\n".encode())
        if self.launch.get("turns"):
            self._take_turns()
        survivors = self._supervise()
        self._drain()
        self._finish(survivors)

    def _limit(self) -> None:
        """Create the limits that keep the job to its part of the host."""
        if not (host := self.launch.get("host")):
            return
        from .host_limits import HostLimits

        env = self.launch["env"]
        name = f"stoker-{env[ENV_LEASE]}-{os.getpid()}"
        cuda = bool(env.get("CUDA_VISIBLE_DEVICES"))  # CUDA's driver reserves more than a limit of data would allow
        self.limits = HostLimits(
            name, host.get("memory"), host.get("cpus"), measure=self._main_memory, data=not cuda,
            say=lambda words: self.log.write(f"stoker: {words}\n".encode()),
        )  # fmt: skip

    def _main_memory(self) -> int:
        """Bytes of all processes below us. Shared pages are divided among them only where that matters, as it takes longer."""
        tree = processes.descendants(os.getpid(), processes.table())
        most = sum(found.memory for found in tree)
        return most if self.limits is None or most < (self.limits.memory or 0) / 2 else sum(map(processes.memory, tree))

    def _enter(self) -> None:
        """In the child, before the exec of the command: so none of its processes escapes the limits."""
        default_signals()
        if self.limits is not None:
            self.limits.enter(os.getpid(), int(self.launch["env"][ENV_LEASE]))

    def _start(self) -> None:
        output, written = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(output, False)
        try:
            fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        except OSError:
            pass  # above the user's limit for pipes; the default size will do
        try:
            self.main = self._spawn(written)
            if self.limits is not None and self.warm:
                self.limits.enter(self.main.pid, int(self.launch["env"][ENV_LEASE]))
        finally:
            os.close(written)
        self.output = output
        self.selector.register(output, selectors.EVENT_READ, self._on_output)
        try:
            Path(f"/proc/{self.main.pid}/oom_score_adj").write_text(str(_KILLED_FIRST))
        except OSError:
            pass  # it has ended already

    def _take_turns(self) -> None:
        from ..share.command_turns import CommandTurns

        self.turns = CommandTurns(self.run_dir, int(self.launch["env"][ENV_LEASE]), os.getpid())
        self.turns.trouble = lambda words: self.log.write(f"stoker: {words}\n".encode())
        self.turns.start()

    def _spawn(self, output: int) -> Main:
        """Start the main process with its output going to ``output``."""
        return subprocess.Popen(
            self.launch["argv"],
            env=self.launch["env"],
            cwd=self.launch["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=self._enter,  # noqa: PLW1509 - one thread
        )

    def _supervise(self) -> list[Stat]:
        """Run until no process is left, or those left will not die; returns the latter."""
        give_up: float | None = None
        while True:
            ending = self.stop is not None or self.exit_code is not None
            for key, _ in self.selector.select(_TICK if ending else self._next_look()):
                key.data()
            if self.limits is not None and self.exit_code is None and self.limits.exceeded():
                self._stop(StopRequest(reason=endings.HOST_MEMORY, grace=0.0))
            childless = self._reap()
            self._look_for_daemon()
            if self.stop is None and self.exit_code is None:
                continue
            if self.turns is not None:  # a job that is ending is not stopped again by its turns
                self.turns.end()
            left = [] if childless else processes.descendants(os.getpid(), processes.table())
            if not left and self.exit_code is not None:
                return []
            now = time.monotonic()
            if self.kill_at is None:
                self.kill_at = now + _LEFTOVER_GRACE
            if now < self.kill_at:
                self._ask(left)
                continue
            self.killed = self.killed or self.exit_code is None or self.stop is not None
            for process in left:
                processes.send(process.process, signal.SIGKILL)
            give_up = give_up or now + self.launch["kill_wait"]
            if now >= give_up:
                return left

    def _patience(self) -> float | None:
        """Seconds for which the job may continue without hearing the daemon; None: for ever."""
        path = self.launch.get("heard")
        return None if path is None else overdue_in(path)

    def _next_look(self) -> float | None:
        """Seconds until the next look at the daemon's last word or at the job's memory; None: neither is watched."""
        looks = [] if "heard" not in self.launch else [max(self.look_at - time.monotonic(), 0.0)]
        return min([*looks, *([] if self.limits is None else [_MEMORY_CHECK_INTERVAL])], default=None)

    def _look_for_daemon(self) -> None:
        """Stop when the daemon was not heard for too long; the part of the grace in which the host slept counts."""
        if self.stop is not None or self.exit_code is not None or "heard" not in self.launch or time.monotonic() < self.look_at:
            return
        left = self._patience()
        self.look_at = time.monotonic() + (LOOK_SECONDS if left is None else min(max(left, 0.0), LOOK_SECONDS))
        if left is not None and left <= 0:
            self._stop(StopRequest(reason=endings.UNHEARD, grace=max(self.launch.get("grace", 30.0) + left, 0.0)))

    def _ask(self, left: list[Stat]) -> None:
        """SIGTERM, once each, to the processes that decide for the others. Stopped ones are continued first, as they would not hear it."""
        for found in left:
            if found.state == "T":
                processes.send(found.process, signal.SIGCONT)
        for process in self._deciders(left):
            if process not in self.asked:
                self.asked.add(process)
                self.caught = processes.catches(process, signal.SIGTERM) or self.caught  # before it can leave
                processes.send(process, signal.SIGTERM)

    def _deciders(self, left: list[Stat]) -> list[Process]:
        """The processes to ask: our children; for a shell also its children, for a gang's launcher its ranks.

        Not the whole process group: loader workers die of SIGTERM, which breaks the very step that the main process
        wants to finish and save (pytorch raises 'DataLoader worker is killed by signal').
        """
        children: dict[int, list[Stat]] = {}
        for found in left:
            children.setdefault(found.parent, []).append(found)
        deciders, level = [], children.get(os.getpid(), [])
        while level:
            below: list[Stat] = []
            for found in level:
                own = children.get(found.pid, [])
                if own and is_launcher(found.pid):
                    self.launchers.add(found.process)
                launches = found.process in self.launchers  # also after its ranks have left: it will follow them
                if not launches:
                    deciders.append(found.process)
                if launches or processes.command(found.pid) in _SHELLS:
                    below += own
            level = below
        return deciders

    def _on_signals(self) -> None:
        numbers = set(os.read(self.wake, 4096))
        if signal.SIGTERM in numbers:
            self._stop(read_stop(self.run_dir) or StopRequest(reason=endings.TERMINATED, grace=30.0))
        if signal.SIGUSR1 in numbers:
            found = read_stop(self.run_dir) or StopRequest(reason=endings.TERMINATED, grace=0.0)
            self._stop(StopRequest(reason=found["reason"], grace=0.0))

    def _stop(self, stop: StopRequest) -> None:
        """Begin to stop. A later request may shorten the grace, never lengthen it; its reason counts unless the main process has ended."""
        until = time.monotonic() + stop["grace"]
        self.kill_at = until if self.kill_at is None else min(self.kill_at, until)
        if self.exit_code is None:
            self.stop = stop

    def _on_output(self) -> None:
        data = os.read(self.output, _PIPE_BYTES)
        if data:
            self.log.write(data)
        else:  # all writers have closed it
            self.selector.unregister(self.output)

    def _reap(self) -> bool:
        """Reap children. True: none is left, and so no process at all, as orphans below us become our children."""
        assert self.main is not None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self.main.pid:
                self.exit_code = self.main.returncode = os.waitstatus_to_exitcode(status)

    def _drain(self) -> None:
        """Read the rest of the output from the pipe."""
        while self.output in self.selector.get_map():
            try:
                self._on_output()
            except BlockingIOError:  # a process that could not be killed holds it open
                return

    def _finish(self, survivors: list[Stat]) -> None:
        kernel_oom = oom_kills() > self.kernel_kills
        reason = self.stop["reason"] if self.stop else None
        if self.limits is not None:
            self.limits.close()
        log = self.log.tail()
        ending = endings.judge(
            exit_code=-signal.SIGKILL if self.exit_code is None else self.exit_code,
            stop_reason=reason,
            stop_seen=(self.run_dir / STOP_SEEN).exists(),
            caught=self.caught,
            done=(self.run_dir / DONE).exists(),
            grace=self.stop["grace"] if self.stop else 0.0,
            killed_after_grace=self.killed,
            kernel_oom=kernel_oom,
            log=log,
            survivors=processes.words(survivors),
            over=None if self.limits is None else self.limits.over,
            limit=None if self.limits is None else self.limits.words,
        )
        self.log.close()
        tail = log[-_LOG_END_BYTES:].decode(errors="replace")
        self._write_exit(ending.outcome, ending.message, reason, tail, [found.process for found in survivors])

    def _write_exit(
        self,
        outcome: str,
        message: str | None,
        stop_reason: str | None = None,
        tail: str = "",
        survivors: Sequence[Process] = (),
        *,
        host_at_fault: bool = False,
    ) -> None:
        code = self.exit_code
        write_exit(
            self.run_dir,
            outcome=outcome,
            message=message,
            exit_code=code,
            signal=endings.signal_name(-code) if code is not None and code < 0 else None,
            started_at=self.started_at,
            stop_reason=stop_reason,
            killed_after_grace=self.killed,
            sigterm_caught=self.caught,
            oom=outcome == "oom",
            host_at_fault=host_at_fault,
            tail=tail,
            survivors=survivors,
        )


def write_exit(run: Path, *, outcome: str, message: str | None, **more: Any) -> dict[str, Any]:
    """Write exit.json, the final state of a lease: by its supervisor, or by the agent where there is none."""
    content = {"exit_code": None, "ended_at": time.time(), **more, "outcome": outcome, "message": message}
    write_atomically(run / "exit.json", json.dumps(content).encode())
    return content


def default_signals() -> None:
    """Start a job with default signal dispositions and an empty mask: it would inherit ours, and those of Stoker's own parent."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def is_launcher(pid: int) -> bool:
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(os.path.basename(arg.decode(errors="replace")) in _LAUNCHERS for arg in argv[:4])  # noqa: PTH119


def oom_kills() -> int:
    """How many processes of our cgroup the kernel has killed for lack of memory; 0 where it cannot be read."""
    try:
        groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return 0
    for _, controllers, path in groups:
        if controllers == "memory":
            source = Path(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
        elif controllers == "":
            source = Path(f"/sys/fs/cgroup{path}/memory.events")
        else:
            continue
        try:
            counts = dict(line.split() for line in source.read_text().splitlines())
            return int(counts["oom_kill"])
        except (OSError, KeyError, ValueError):
            continue
    return 0


def main(argv: list[str]) -> int:
    run = Path(argv[1])
    try:
        launch: Launch = json.load(sys.stdin)
    except ValueError:
        return 1  # the agent died before it sent the command: nothing was started, and the next agent begins anew
    return supervise(Supervisor(run, launch))


def supervise(supervisor: Supervisor) -> int:
    """Take the lease and run it to its end; returns the exit code."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    supervisor.watch_signals()
    facts = {"warm": supervisor.warm, "cold": supervisor.launch.get("cold"), "fences": "heard" in supervisor.launch}
    if not register(supervisor.run_dir, processes.myself(), **facts):
        return LEASE_TAKEN_EXIT
    supervisor.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))

"""Members of a group of replicas as real worker processes, without a daemon: a test or a benchmark is what tells them who lives.

They are forked from a process that has imported what a worker imports, one in each process that asks. They end with it,
and it ends with that.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from replicas_links import Host, ends_with, enter
from stoker.engine.protocol import Assignment, Replica, ReplicaGroup
from stoker.engine.spec.model import JobSpec, Replicas, Stop
from stoker.runners.lease.rundir import ENV_CHECKPOINTS, ENV_RUN_DIR, REPLICAS, write_atomically

HERE = Path(__file__).parent
TAKEN = "taken.jsonl"
PATIENCE = float(os.environ.get("STOKER_TEST_PATIENCE", "1"))


@dataclass
class Member:
    """One lease."""

    index: int
    lease: int
    directory: Path
    kept: socket.socket  #: bound to its port, so that nobody else is given it until it listens there
    pid: int = 0
    ended: float = math.inf  #: when

    @property
    def address(self) -> str:
        host, port = self.kept.getsockname()
        return f"{host}:{port}"

    @property
    def log(self) -> str:
        path = self.directory / "output.log"
        return path.read_text() if path.exists() else ""

    @property
    def reports(self) -> list[dict[str, Any]]:
        return _lines(self.directory / "reports-0.jsonl")

    @property
    def step(self) -> int:
        return max((report["step"] for report in self.reports), default=0)

    @property
    def taken(self) -> list[list[Any]]:
        """The steps that it took: number, digest of the state after it, leases of the members, time."""
        return _lines(self.directory / TAKEN)

    @property
    def saved(self) -> int:
        """Step of its newest checkpoint."""
        return max((report.get("checkpoint", 0) for report in self.reports), default=0)

    @property
    def weights(self) -> str:
        """Digest of those it ended with."""
        return self.log.rpartition("; weights ")[2].split()[0]


def _lines(path: Path) -> list[Any]:
    """Those that are whole: the last one may be half written."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def kept_port(host: Host | None) -> socket.socket:
    """Of the kernel. Whoever asks for this very port, and lets others bind it too, can listen on it."""
    found = socket.socket() if host is None else host.new_socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(("127.0.0.1" if host is None else host.address, 0))
    return found


@dataclass
class World:
    """A group, and what the daemon would know of it."""

    home: Path
    spec: JobSpec
    members: list[Member] = field(default_factory=list)
    leases: int = 0
    words: int = 0
    done: bool = False  #: a task has completed
    saved: dict[int, int] = field(default_factory=dict)  #: tasks that have a checkpoint, as the daemon knows, and its step
    first: int = 0  #: lease since there was none
    mute: bool = False  #: the daemon is dead: nobody hears who lives
    deaf: frozenset[int] = frozenset()  #: tasks whose link to the daemon is cut
    hosts: Sequence[Host] = ()  #: of each task, none: this one

    def start(self, *indexes: int, spec: JobSpec | None = None) -> list[Member]:
        """Leases for these tasks, all in one word."""
        fresh = []
        if not self.members:
            self.first = self.leases + 1
        for index in indexes:
            self.leases += 1
            directory = self.home / f"{index}" / f"run-{self.leases}"
            directory.mkdir(parents=True)
            fresh.append(Member(index, self.leases, directory, kept_port(self._host(index))))
        self.members += fresh
        self.tell()
        for member in fresh:
            self._launch(member, spec or self.spec)
        return fresh

    def _host(self, index: int) -> Host | None:
        return self.hosts[index] if self.hosts else None

    def _launch(self, member: Member, spec: JobSpec) -> None:
        assignment = Assignment(
            lease=member.lease, job=member.index, attempt=1, spec=msgspec.to_builtins(spec), gpus=["slot"], world_size=1,
            rendezvous=member.address, replicas=self.word(),
        )  # fmt: skip
        write_atomically(member.directory / "assignment.json", msgspec.json.encode(assignment))
        checkpoints, host = self.home / str(member.index) / "checkpoints", self._host(member.index)
        env = {
            ENV_RUN_DIR: str(member.directory),
            ENV_CHECKPOINTS: str(checkpoints),
            "CUDA_VISIBLE_DEVICES": "",
            "GLOO_SOCKET_IFNAME": "lo" if host is None else "eth0",
        }
        member.pid = nursery().start(env, member.directory / "output.log", namespace="" if host is None else str(host.namespace))

    def word(self) -> ReplicaGroup:
        members = sorted(self.members, key=lambda one: one.index)
        return ReplicaGroup(
            group=7,
            epoch=self.words,
            members=[Replica(lease=one.lease, index=one.index, address=one.address) for one in members],
            founder=min((one.lease for one in members), default=None),
            done=self.done,
            saved=list(self.saved),
            saved_steps=list(self.saved.values()),
            first=self.first,
            stepped=[one.lease for one in members if any("members" in report.get("values", {}) for report in one.reports)],
        )

    def tell(self) -> None:
        self.words += 1
        word = msgspec.json.encode(self.word())
        for member in self.members if not self.mute else ():
            if member.index not in self.deaf:
                write_atomically(member.directory / REPLICAS, word)

    def kill(self, member: Member, number: int = signal.SIGKILL) -> None:
        """``kill -9``, and the daemon hears of it unless it is dead."""
        os.kill(member.pid, number)
        self.wait(member)

    def ended(self, member: Member) -> None:
        self.members.remove(member)
        member.ended = time.time()
        member.kept.close()
        self.tell()

    def wait(self, member: Member, seconds: float = 60.0) -> int:
        """Its exit code, once it is there; then its lease has ended."""
        code = nursery().wait(member.pid, seconds * PATIENCE)
        if code is None:
            raise AssertionError(f"task {member.index} does not end at step {member.step}:\n{member.log[-2000:]}")
        if member in self.members:
            self.ended(member)
        return code

    def until(self, true: Callable[[], bool], wrong: str, seconds: float = 60.0) -> None:
        until = time.monotonic() + seconds * PATIENCE
        while not true():
            logs = "".join(f"\ntask {one.index} at step {one.step}:\n{one.log[-2000:]}" for one in self.members)
            assert time.monotonic() < until, f"{wrong}:{logs}"
            time.sleep(0.02)

    def until_step(self, member: Member, step: int) -> None:
        self.until(lambda: member.step >= step, f"task {member.index} is not at step {step}")

    def until_log(self, member: Member, words: str) -> None:
        self.until(lambda: words in member.log, f"task {member.index} does not say {words!r}")


def counting(least: int = 1, most: int = 3, steps: int = 40, timeout: float = 2.0, **params: Any) -> JobSpec:
    """The job of `counting.build`, of global batches of 16."""
    return JobSpec(
        name="lm[0]", entrypoint="counting:build", params=params, workdir=str(HERE), stop=Stop(iterations=steps), array_index=0,
        array_size=most, replicas=Replicas(min=least, max=most, global_batch=16, quorum_timeout=timeout),
    )  # fmt: skip


@contextmanager
def world(home: Path, spec: JobSpec, hosts: Sequence[Host] = ()) -> Iterator[World]:
    made = World(home, spec, hosts=hosts)
    try:
        yield made
    finally:
        for member in made.members:
            nursery().end(member.pid)
            member.kept.close()


# The process from which they are forked


class Nursery:
    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, __file__, str(theirs.fileno())]
        env = {**os.environ, "RUST_LOG": "error", "OMP_NUM_THREADS": "1"}
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=env)
        atexit.register(self._channel.close)

    def _ask(self, request: dict[str, Any]) -> Any:
        self._channel.send(json.dumps(request).encode())
        return json.loads(self._channel.recv(1 << 16))

    def start(self, env: dict[str, str], log: Path, call: str = "", namespace: str = "") -> int:
        """``call``: a function of a module beside this one, as ``module:function``; by default the worker. It ends with this process."""
        return int(self._ask({"env": env, "log": str(log), "call": call, "namespace": namespace}))

    def wait(self, pid: int, seconds: float) -> int | None:
        until = time.monotonic() + seconds
        while (code := self._ask({"poll": pid})) is None and time.monotonic() < until:
            time.sleep(0.02)
        return code

    def end(self, pid: int) -> None:
        if self._ask({"poll": pid}) is None:
            os.kill(pid, signal.SIGKILL)
            self.wait(pid, 10.0)


@functools.cache
def nursery() -> Nursery:
    return Nursery()


def _serve(channel: socket.socket) -> None:
    from stoker.runners.worker import worker

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asks ends the members
    codes: dict[int, int] = {}
    own = os.getpid()
    while said := channel.recv(1 << 16):
        request = json.loads(said)
        if "poll" in request:
            if request["poll"] not in codes:
                pid, status = os.waitpid(request["poll"], os.WNOHANG)
                if pid:
                    codes[pid] = os.waitstatus_to_exitcode(status)
            answer = codes.get(request["poll"])
        elif not (answer := os.fork()):
            channel.close()
            ends_with(own)
            log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ.update(request["env"])
            os.chdir(HERE)
            if request["namespace"]:
                enter(Path(request["namespace"]))
            worker.script.begin()
            worker.leave(_called(request["call"]) if request["call"] else _trained())
        channel.send(json.dumps(answer).encode())


def _trained() -> int:
    """The worker, which writes down each step that it takes."""
    from stoker.runners.replicas import membership, replica_trainer
    from stoker.runners.worker import worker

    taken = os.open(Path(os.environ[ENV_RUN_DIR]) / TAKEN, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def after(history: str, step: int, leases: Sequence[int]) -> str:
        found = membership.after(history, step, leases)
        os.write(taken, json.dumps([step, found, list(leases), time.time()]).encode() + b"\n")
        return found

    replica_trainer.after = after
    return worker.main()


def _called(name: str) -> int:
    module, _, function = name.partition(":")
    return int(getattr(importlib.import_module(module), function)())


if __name__ == "__main__":
    import torch._dynamo  # noqa: F401 - what each optimizer imports
    import torchft.process_group  # noqa: F401
    from torchft import coordination  # noqa: F401

    _serve(socket.socket(fileno=int(sys.argv[1])))

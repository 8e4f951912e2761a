"""The directory of one lease on one node, through which agent, supervisor and worker exchange files.

    HOME/jobs/<job>/checkpoints/          belongs to the job, outlives leases
    HOME/jobs/<job>/run-<lease>/          belongs to one lease; on a gang's further nodes run-<lease>.<node_rank>,
                                          so that runners that share a home do not share a directory
        assignment.json                   written by the agent before it starts the supervisor
        supervisor.json                   created exclusively by the supervisor: a lease is started at most once
        output.log, output.log.1          stdout and stderr of all ranks, kept within a size limit
        output.log.times, …1.times        offsets in them, and the time at which the output behind each was written
        reports-<rank>.jsonl              protocol.Record lines, appended by each rank
        cpus.json                         {"cpus": n}: cores of the node that the job may use; replaced by the agent whenever they change
        input.json                        InputGroup: where its batches are that other jobs share
        replicas.json                     ReplicaGroup: the newest state of its group by the daemon; replaced in the same way
        turn.json                         {"path", "priority"}: where a switched job takes turns; replaced in the same way
        takes-turns                       created by a command that calls yield_point(): it takes turns by itself
        stop.json                         written by the agent before it signals the supervisor
        stop-seen                         created by a rank whose should_stop() returned True
        done                              created by a rank that called done(): the work is complete, even if a stop was requested
        exit.json                         written atomically by the supervisor when all processes are gone
        acked.json                        offsets up to which the daemon has acknowledged reports

Files, not pipes: if any of the processes is killed, the others and the next agent find all of it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # every script imports this
    from ...engine.protocol import Assignment

PREEMPTED_EXIT = 75  #: EX_TEMPFAIL: the worker has checkpointed and left on request
OOM_EXIT = 76  #: the worker ran out of memory, on the GPU or the host
OOM_MARKER = "stoker: out of memory:"  #: start of the log line that says so

CPUS, TURN, INPUT, REPLICAS = "cpus.json", "turn.json", "input.json", "replicas.json"
TAKES_TURNS = "takes-turns"
STOP_SEEN, DONE = "stop-seen", "done"

BY_DIGEST = "sha256:"  #: before the digest of a copied tree that the daemon has

_LARGEST = 16 << 20  #: bytes of a JSON file of the directory
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC  #: fails at a pipe without a reader instead of waiting

_RUN = re.compile(r"run-(\d+)(?:\.(\d+))?")

# The environment of a worker.
ENV_JOB, ENV_NAME, ENV_LEASE = "STOKER_JOB_ID", "STOKER_JOB_NAME", "STOKER_LEASE_ID"
ENV_RUN_DIR, ENV_CHECKPOINTS = "STOKER_RUN_DIR", "STOKER_CHECKPOINT_DIR"
ENV_CPUS = "STOKER_CPUS"  #: the contents of cpus.json at the start of the job
ENV_RESUME = "STOKER_RESUME_COUNT"  #: attempts that ran before this one
ENV_NODE_RANK = "STOKER_NODE_RANK"  #: for a gang's command: the number of this node, from 0
ENV_TAG = "STOKER_TAG"  #: '<home>:<lease>', by which leftovers are found


@dataclass(frozen=True, slots=True)
class RunDir:
    """Paths and atomic files of one lease on this node."""

    home: Path
    job: int
    lease: int
    node_rank: int = 0

    @property
    def path(self) -> Path:
        return self.home / "jobs" / str(self.job) / f"run-{self._number}"

    @property
    def _number(self) -> str:
        return f"{self.lease}.{self.node_rank}" if self.node_rank else str(self.lease)

    @property
    def checkpoints(self) -> Path:
        return self.home / "jobs" / str(self.job) / "checkpoints"

    @property
    def log(self) -> Path:
        return self.path / "output.log"

    @property
    def tag(self) -> str:
        return f"{self.home}:{self._number}"

    def reports(self, rank: int) -> Path:
        return self.path / f"reports-{rank}.jsonl"

    def read(self, name: str) -> Any | None:
        """Contents of a JSON file of the directory, None when it is not there.

        A job may write there too. Anything but a plain file, such as a pipe without a writer, raises ValueError at once.
        """
        try:
            content = _read(self.path / name)
        except FileNotFoundError:
            return None
        try:
            return json.loads(content)
        except RecursionError:
            raise ValueError(f"{name} is nested too deeply") from None

    def write(self, name: str, content: Any) -> None:
        """Write a JSON file of the directory so that a reader sees all of it or none, also after a crash."""
        write_atomically(self.path / name, json.dumps(content).encode())

    def replace(self, name: str, content: Any) -> None:
        """The same for content that a crash of the machine may lose: without fsync, which is too slow for frequent writes."""
        temporary = self.path / f".{name}.tmp"
        temporary.unlink(missing_ok=True)  # whatever a job has put there
        with open(os.open(temporary, _WRITE | os.O_EXCL, 0o600), "w") as file:
            file.write(json.dumps(content))
        os.replace(temporary, self.path / name)

    @classmethod
    def find(cls, home: Path) -> list[RunDir]:
        """All run directories below a home; what people have put beside them is none."""
        runs = []
        for path in (home / "jobs").glob("*/run-*"):
            match, job = _RUN.fullmatch(path.name), path.parent.name
            if match is not None and job.isdecimal() and path.is_dir():
                runs.append(cls(home, int(job), int(match[1]), int(match[2] or 0)))
        return sorted(runs, key=lambda run: run.lease)


def checkpoints_of(run: RunDir, assignment: Assignment) -> Path:
    """Where the checkpoints of its job lie: in the home, or in the directory that the runners share."""
    return run.checkpoints if assignment.checkpoints is None else Path(assignment.checkpoints)


def snapshot_of(home: Path, assignment: Assignment) -> Path | None:
    """The directory of the copied tree in which a job runs; None: it runs where it was submitted from."""
    if assignment.snapshot is None or not assignment.snapshot.startswith(BY_DIGEST):
        return Path(assignment.snapshot) if assignment.snapshot else None
    return home / "snapshots" / assignment.snapshot.removeprefix(BY_DIGEST)


def write_atomically(path: Path, content: bytes) -> None:
    """Write, fsync, rename, fsync the directory."""
    temporary = _temporary(path)
    with open(os.open(temporary, _WRITE, 0o600), "wb") as file:
        file.write(content)
        file.truncate()  # not before: the reserved space would be given back
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def reserve(path: Path, size: int) -> None:
    """Take the ``size`` bytes on the disk into which this process's `write_atomically` will write the file.

    Raises OSError when they cannot be had.
    """
    with open(os.open(_temporary(path), _WRITE, 0o600), "wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def _read(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError(f"{path.name} is a link") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # not by a file object, which for a directory raises and leaks the descriptor
        os.close(descriptor)
        raise ValueError(f"{path.name} is not a file")
    with open(descriptor, "rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise ValueError(f"{path.name} is too large")
    return content


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")

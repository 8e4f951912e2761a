"""From an assignment to what the supervisor starts: argv, environment, working directory.

- A recipe or entrypoint runs in `stoker.runners.worker.worker`; with more than one rank, under torch's elastic launcher
  (`stoker.runners.worker.gang`), one process a rank.
- A `command:` runs as it is, once a node. A gang's command starts its own ranks by its environment:
  ``torchrun --nnodes $STOKER_NODES --node-rank $STOKER_NODE_RANK --nproc-per-node $STOKER_GPUS --master-addr $MASTER_ADDR
  --master-port $MASTER_PORT train.py``. It sets WORLD_SIZE and RANK itself: libraries that find them set take
  the process for a rank, and wait for the others.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ...engine.home import ENV_KEPT
from ...engine.protocol import ENV_PILOT, Assignment
from ...engine.spec.model import JobSpec
from ..lease import rundir
from ..lease.lease_log import LOG_LIMIT
from ..lease.rundir import RunDir
from ..lease.supervisor import Launch
from ..network.addresses import LOOPBACK, free_port, interface_of, is_loopback

KILL_WAIT = 30.0
#: variables of the agent that a job must not get: its rights at the daemon, and the rank of a gang
_WITHHELD = ("STOKER_TOKEN", ENV_KEPT, ENV_PILOT, rundir.ENV_NODE_RANK, "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
             "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")  # fmt: skip
#: prefixes of variables that a job or launcher left there which started the runner: parameters, another gang's ranks
_WITHHELD_FROM = ("STOKER_PARAM_", "STOKER_JOB_", "TORCHELASTIC_", "SLURM_", "RAY_", "OMPI_", "PMI_", "PMIX_", "PALS_", "FLUX_",
                  "MPI_LOCAL")  # fmt: skip
_INTERFACE_OF = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")  #: tell torch's libraries for gangs the network interface
_BLANK = " \t"
_EXPORT, _COMMENT = re.compile(r"^export[ \t]+"), re.compile(r"(?:^|[ \t]+)#")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class CannotStart(Exception):
    """The job cannot be started, and why. ``host_at_fault``: something is missing here that another host may have."""

    def __init__(self, words: str, *, host_at_fault: bool = True) -> None:
        super().__init__(words)
        self.host_at_fault = host_at_fault


def prepare(
    run: RunDir,
    assignment: Assignment,
    cuda: Sequence[str],
    inherited: Mapping[str, str] | None = None,
    cpus: float | None = None,
    address: str = LOOPBACK,
) -> Launch:
    """The launch of an assignment. ``cuda``: UUIDs of its GPUs on this node, empty on CPU slots; ``cpus``: its cores;
    ``address``: where other hosts reach this one.

    Raises CannotStart where a person has to act: a directory, a program or an env file is missing.
    """
    if assignment.hosts > 1 and is_loopback(address):
        what = "a gang over" if assignment.replicas is None else "replicas on"
        raise CannotStart(
            f"address: {what} {assignment.hosts} hosts cannot meet at {address}, which only this host reaches: "
            "start the runner here with --address"
        )
    try:
        spec = msgspec.convert(assignment.spec, JobSpec)
    except msgspec.ValidationError as error:
        raise CannotStart(
            f"this runner does not understand the job's spec ({error}); bring daemon and runner to the same version"
        ) from None
    cwd = _directory(assignment, spec, run)
    given = read_env_file(cwd / Path(spec.env_file).expanduser()) if spec.env_file else {}
    env = _environment(run, assignment, spec, cuda, _users(spec, given, os.environ if inherited is None else inherited))
    if (assignment.nodes > 1 or assignment.replicas is not None) and (name := interface_of(address)) is not None:
        for library in _INTERFACE_OF:  # by default a library takes the address of the host's own name, often 127.0.1.1
            env.setdefault(library, name)
    replaced = sorted(name for name, value in given.items() if name not in spec.env and env[name] != value)
    if cpus is not None:
        env[rundir.ENV_CPUS] = f"{cpus:g}"
    argv = _argv(assignment, spec)
    _check_program(argv[0], cwd, env)
    notes = [f"env_file: {name} is set by Stoker; the file's value is left out" for name in replaced]
    launch = Launch(argv=argv, env=env, cwd=str(cwd), log_limit=LOG_LIMIT, kill_wait=KILL_WAIT, notes=notes)
    if spec.command is not None and spec.share is not None and spec.share.gpu == "switched":
        launch["turns"] = True
    if spec.host is not None:
        launch["host"] = {name: value for name in ("memory", "cpus") if (value := getattr(spec.host, name)) is not None}
    return launch


def _argv(assignment: Assignment, spec: JobSpec) -> list[str]:
    if spec.command is not None:
        return list(spec.command)
    # -P: with the job's directory first on sys.path, a user's random.py or queue.py would stand in for Python's own.
    python = [sys.executable, "-P", "-m"]
    worker = [*python, "stoker.runners.worker.worker"]
    if assignment.world_size <= 1:
        return worker
    if assignment.nodes > 1:
        address, _, port = assignment.rendezvous.rpartition(":")
        where = ["--nnodes", str(assignment.nodes), "--node-rank", str(assignment.node_rank)]
        where += ["--master-addr", address, "--master-port", port]
    else:
        # The launcher picks a free port itself. By number: the name of a host need not resolve on it.
        where = ["--standalone", "--local-addr", "127.0.0.1"]
    ranks = ["--nproc-per-node", str(len(assignment.gpus))]
    return [*python, "stoker.runners.worker.gang", *where, *ranks, "--no-python", *worker]  # its own call of python would lack -P


def _directory(assignment: Assignment, spec: JobSpec, run: RunDir) -> Path:
    field, given = ("snapshot", rundir.snapshot_of(run.home, assignment)) if assignment.snapshot else ("workdir", spec.workdir)
    if not given:
        return run.path
    path = Path(given)
    if not path.is_dir():
        raise CannotStart(f"{field}: there is no directory {given} on this node; create it, or submit from another one")
    if not os.access(path, os.X_OK):
        raise CannotStart(f"{field}: {given} may not be entered by the user of this runner")
    return path


def _check_program(program: str, cwd: Path, env: Mapping[str, str]) -> None:
    if "/" in program:
        path = cwd / program
        if not path.exists():
            raise CannotStart(f"command: there is no program {path} on this node")
        if not path.is_file() or not os.access(path, os.X_OK):
            raise CannotStart(f"command: {path} is not executable; make it so with chmod +x, or name its interpreter first")
    elif shutil.which(program, path=env.get("PATH", os.defpath)) is None:
        raise CannotStart(f"command: no program {program!r} in the PATH of this runner; install it, or give its full path")


def _users(spec: JobSpec, given: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """Variables set by people. The last wins of the runner's own, the env file's, the spec's."""
    return handed_on(inherited) | dict(given) | spec.env


def handed_on(inherited: Mapping[str, str]) -> dict[str, str]:
    """The part of the agent's environment that jobs get."""
    return {name: value for name, value in inherited.items() if name not in _WITHHELD and not name.startswith(_WITHHELD_FROM)}


def _environment(run: RunDir, assignment: Assignment, spec: JobSpec, cuda: Sequence[str], env: dict[str, str]) -> dict[str, str]:
    """Add our defaults, and the variables that only Stoker sets."""
    # One thread a slot: two jobs on two cores that each take all cores are slower than either alone.
    for threads in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        env.setdefault(threads, "1")
    env.setdefault("PYTHONUNBUFFERED", "1")
    env.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(int(assignment.grace) + 1))  # torchrun's own 30 s would cut a longer grace
    if spec.command is not None:
        env |= {f"STOKER_PARAM_{_variable(name)}": _text(value) for name, value in spec.params.items()}
        if assignment.world_size > 1:
            env |= _gang(assignment)
    return env | {
        # UUIDs: an index means another GPU as soon as one is missing or the order changes. Empty hides all of them.
        "CUDA_VISIBLE_DEVICES": ",".join(cuda),
        rundir.ENV_JOB: str(assignment.job),
        rundir.ENV_NAME: spec.name,
        rundir.ENV_LEASE: str(assignment.lease),
        rundir.ENV_RUN_DIR: str(run.path),
        rundir.ENV_CHECKPOINTS: str(rundir.checkpoints_of(run, assignment)),
        rundir.ENV_RESUME: str(assignment.resume),
        rundir.ENV_TAG: run.tag,
    }


def _gang(assignment: Assignment) -> dict[str, str]:
    address, port = "127.0.0.1", ""
    if assignment.nodes > 1:
        address, _, port = assignment.rendezvous.rpartition(":")
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": port or str(free_port()),
        "STOKER_NODES": str(assignment.nodes),
        rundir.ENV_NODE_RANK: str(assignment.node_rank),
        "STOKER_GPUS": str(len(assignment.gpus)),
    }


def _variable(name: str) -> str:
    return re.sub(r"\W", "_", name).upper()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def read_env_file(path: Path) -> dict[str, str]:
    """``NAME=VALUE`` lines by the rule in docs/job-spec.md. Nothing is expanded, and no value ever appears in an error."""
    try:
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise CannotStart(f"env_file: cannot read {path} on this node: {why}") from None
    env = {}
    for number, line in enumerate(lines, 1):
        entry = _EXPORT.sub("", line.removesuffix("\r").strip(_BLANK), count=1)
        if not entry or entry.startswith("#"):
            continue
        try:
            name, value = _entry(entry)
        except ValueError as error:
            raise CannotStart(f"env_file: {path}, line {number}: {error}", host_at_fault=False) from None
        env[name] = value
    return env


def _entry(entry: str) -> tuple[str, str]:
    """Name and value of a line; ValueError for what the rule does not cover."""
    name, equals, value = entry.partition("=")
    name, value = name.strip(_BLANK), value.strip(_BLANK)
    if not equals or not _NAME.fullmatch(name):
        raise ValueError("expected NAME=VALUE, the name of letters A to Z, digits and '_'")
    if any(char in entry for char in "\0\r"):
        raise ValueError("a NUL or carriage return within a line")
    if value[:1] not in ("'", '"'):
        return name, _COMMENT.split(value, maxsplit=1)[0].rstrip(_BLANK)
    inside, closed, rest = value[1:].partition(value[0])
    if not closed:
        raise ValueError("the quote is not closed (values are one line)")
    if rest and not (rest[0] in _BLANK and _COMMENT.match(rest)):
        raise ValueError("after the closing quote only a comment may follow (quotes within are written in quotes of the other kind)")
    return name, inside


def field_of_memory(spec: Mapping[str, Any]) -> str:
    """The field of a job's spec that gives its need of memory."""
    if isinstance((spec.get("share") or {}).get("memory"), int):
        return "share.memory"
    if not spec.get("gpu_memory") and (spec.get("memory") or {}).get("cap"):
        return "memory.cap"
    return "gpu_memory"

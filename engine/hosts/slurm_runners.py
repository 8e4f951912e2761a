"""Runners as batch jobs of Slurm, one per node: their batch file, the queue, and Slurm's knowledge of ended ones.

Only Slurm's own commands are used. A pilot submits its successor, so that a node is requested until a person ends it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import Conflict, StokerError, UsageError

ENGINE = "slurm"
WARNING_TIME = 120.0  #: seconds before its limit at which Slurm asks a pilot to leave, or up to a minute earlier
PREFIX = "stoker-pilot-"  #: of the names of pilots; their pool follows
MARK = "stoker "  #: of their comments; the address of their daemon follows
PATIENCE = 60.0  #: seconds for an answer of Slurm's commands
_OWN = ("STOKER_TOKEN", "STOKER_URL", "STOKER_HOME", "STOKER_CA")  #: variables that a pilot gets in another way
#: options of sbatch by which pilots are found and followed
_OURS = frozenset((
    "--array", "--begin", "--chdir", "--comment", "--dependency", "--job-name", "--nodes", "--ntasks", "--partition", "--requeue",
    "--signal", "--test-only", "--time", "--wait", "--wrap", "-D", "-J", "-N", "-a", "-b", "-d", "-n", "-p", "-t", "-W",
))  # fmt: skip
CGROUP_TRACKING = "proctrack/cgroup"  #: with it no process outlives its batch job, not even a daemon
#: states of a job that has ended, all its processes with it if its host answers; one that is COMPLETING too has not yet
ENDED = frozenset((
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
))  # fmt: skip

_BATCH_FILE = """\
#!/bin/bash
{directives}
# A runner of Stoker for as long as Slurm lends this node. Told to leave (its limit, scancel, preemption) it stops its jobs,
# each with its grace, and its successor, which waits until this one has ended, takes them on.
told= runner=
trap 'told=1; [ -z "$runner" ] || kill -TERM "$runner"' TERM
next=$(sbatch --parsable --dependency=afterany:"$SLURM_JOB_ID" "$0") || echo 'no successor could be handed in' >&2
until=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%e) || until=
if [ -r {token} ]; then
  [ -n "$told" ] && exit
  export STOKER_PILOT="{engine}/$SLURM_CLUSTER_NAME/$SLURM_JOB_ID/$SLURMD_NODENAME"
  {trusts}STOKER_TOKEN=$(cat {token}) {stoker} --home {home} --url {url} runner start \\
    --hand-back --until "${{until:-{limit}}}" --node "$SLURMD_NODENAME" --pool {pool} {offers} &
  runner=$!
  [ -n "$told" ] && kill -TERM "$runner"
  wait "$runner"; code=$?
  while kill -0 "$runner" 2>/dev/null; do wait "$runner"; code=$?; done  # the signal had interrupted it
else
  echo {unreadable} >&2
  code=2
fi
# A runner that refuses to serve, or dies at once, would do so again; one that was killed later would not.
refuses=; [ "$code" -ge 1 ] && [ "$code" -lt 128 ] && refuses=1
[ "$code" -ge 128 ] && [ -z "$told" ] && [ "$SECONDS" -lt 60 ] && refuses=1
if [ -n "$refuses" ]; then
  echo "the runner ended with $code: no successor is wanted" >&2
  [ -z "$next" ] || scancel "$next"
fi
exit "$code"
"""


@dataclass(frozen=True, slots=True)
class WantedPilots:
    """Requested pilots."""

    partition: str
    limit: float  #: seconds for which each may run
    folder: Path  #: on all nodes: their home, with their logs and their token
    url: str  #: of the daemon
    pool: str = "default"
    slots: int | None = None
    options: tuple[str, ...] = ()  #: of sbatch, besides ours
    pin: str = ""  #: fingerprint of the daemon's certificate; '': their home has the authority's file, or their host knows it

    @property
    def token(self) -> Path:
        return self.folder / "token"

    def batch_file(self) -> str:
        minutes = int(self.limit // 60)
        ours = [
            f"--job-name={PREFIX}{self.pool}",
            f"--comment={shlex.quote(MARK + self.url)}",
            f"--partition={shlex.quote(self.partition)}",
            f"--time={minutes // 60}:{minutes % 60:02d}:00",
            "--nodes=1 --ntasks=1 --exclusive --mem=0",
            "--no-requeue --open-mode=append",
            f"--signal=B:TERM@{WARNING_TIME:.0f}",
            f"--output={shlex.quote(str(self.folder / 'pilot-%j.log'))}",
        ]
        unreadable = f"{self.token} cannot be read on this node: all nodes must share that directory, see --dir"
        return _BATCH_FILE.format(
            directives="\n".join(f"#SBATCH {line}" for line in [*ours, *map(shlex.quote, self.options)]),
            engine=ENGINE,
            token=shlex.quote(str(self.token)),
            trusts=f"STOKER_CA={shlex.quote(self.pin)} " if self.pin else "",
            stoker=f"{shlex.quote(sys.executable)} -m stoker",
            home=shlex.quote(str(self.folder)),
            url=shlex.quote(self.url),
            limit=f"{minutes}m",
            pool=shlex.quote(self.pool),
            offers="" if self.slots is None else f"--slots {self.slots}",
            unreadable=shlex.quote(unreadable),
        )


@dataclass(frozen=True, slots=True)
class Pilot:
    """A batch job of the queue."""

    cluster: str
    job: int
    states: frozenset[str]
    name: str
    comment: str
    user: str
    hosts: str
    ends_at: float | None  #: None: it has not begun
    reason: str

    @property
    def ended(self) -> bool:
        return bool(self.states) and self.states <= ENDED

    @property
    def state(self) -> str:
        """In a word: its activity rather than its outcome."""
        return min(self.states or {"unknown"}, key=lambda state: (state in ENDED, state)).lower()


def require() -> None:
    """Conflict if this host has none of Slurm's commands."""
    lacking = [tool for tool in ("sbatch", "squeue", "scancel") if shutil.which(tool) is None]
    if lacking:
        raise Conflict(f"there is no {lacking[0]} on this host: run this where Slurm's commands are, such as a login node of the cluster")


def queue() -> list[Pilot]:
    """All jobs that Slurm knows, with those that ended a few minutes ago. Conflict if it does not answer."""
    text = _ask("squeue", "--json", "--states=all")
    try:
        return [_pilot(row) for row in json.loads(text)["jobs"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Conflict(f"squeue --json told what is not understood ({type(error).__name__}: {error}); its version: {_version()}") from None


def pilots_of(user: str, pool: str | None, url: str | None) -> list[Pilot]:
    """Pilots of a user that have not ended, of one pool and one daemon if these are given."""
    return [
        pilot
        for pilot in queue()
        if pilot.user == user and not pilot.ended and pilot.name.startswith(PREFIX) and pilot.comment.startswith(MARK)
        if pool is None or pilot.name == PREFIX + pool
        if url is None or pilot.comment == MARK + url
    ]


def _pilot(row: Mapping[str, Any]) -> Pilot:
    given = row["job_state"]  # newer versions give a list: its outcome, and that it is COMPLETING
    states = frozenset(given if isinstance(given, list) else [given])
    began, ends_at = _number(row.get("start_time")), _number(row.get("end_time"))
    return Pilot(
        cluster=str(row.get("cluster") or ""),
        job=int(row["job_id"]),
        states=states,
        name=str(row.get("name") or ""),
        comment=str(row.get("comment") or ""),
        user=str(row.get("user_name") or ""),
        hosts=str(row.get("nodes") or ""),
        ends_at=float(ends_at) if began and ends_at and "PENDING" not in states else None,
        reason=str(row.get("state_reason") or ""),
    )


def _number(value: Any) -> float | None:
    """Newer versions give ``{"set": true, "infinite": false, "number": 5}``."""
    if isinstance(value, dict):
        return float(value["number"]) if value.get("set") and not value.get("infinite") else None
    return None if value is None else float(value)


def try_out(wanted: WantedPilots) -> None:
    """Let Slurm check the batch file without a submission. UsageError with its complaint."""
    _submit(wanted, "--test-only")


def hand_in(wanted: WantedPilots, count: int) -> list[int]:
    """Submit ``count`` pilots; all of them, or none."""
    jobs: list[int] = []
    try:
        for _ in range(count):
            jobs.append(int(_submit(wanted, "--parsable").split(";")[0]))
    except BaseException:
        if jobs:
            subprocess.run(["scancel", *map(str, jobs)], capture_output=True, check=False, timeout=PATIENCE)
        raise
    return jobs


def _submit(wanted: WantedPilots, *options: str) -> str:
    try:
        return _ask("sbatch", *options, given=wanted.batch_file())
    except Refused as refused:
        if _has_no_controller(str(refused)):
            raise
        raise UsageError(f"Slurm refuses the pilots: {refused.words}") from None


def tell_to_leave(jobs: Iterable[int]) -> None:
    """Signal only the shell of their batch files, so that their runners can take their jobs' grace."""
    _scancel("--batch", "--signal=TERM", *map(str, jobs))


def take_back(jobs: Iterable[int]) -> None:
    """Cancel those that have not begun."""
    _scancel("--state=PENDING", *map(str, jobs))


def _scancel(*words: str) -> None:
    try:
        _ask("scancel", *words)
    except Refused as refused:
        if _has_no_controller(str(refused)):
            raise
        # else one of them has ended meanwhile


def tracking() -> str:
    """Slurm's way to follow the processes of a job."""
    found = re.search(r"^ProctrackType\s*=\s*(\S+)", _ask("scontrol", "show", "config"), re.MULTILINE)
    return found[1] if found else "nobody knows what"


def answering(hosts: Collection[str]) -> set[str]:
    """Hosts whose slurmd answers: it has ended its ended jobs' processes, or does so at once."""
    told = _ask("sinfo", "--noheader", "--Node", f"--nodes={','.join(sorted(hosts))}", "--format=%N %T")
    rows = [line.split() for line in told.splitlines() if line.strip()]
    return {name for name, state in rows if not state.endswith("*") and not state.startswith(("down", "unknown"))}


class Refused(Conflict):
    """One of Slurm's commands has failed."""

    def __init__(self, tool: str, words: str) -> None:
        super().__init__(f"{tool}: {words}")
        self.words = words


def _ask(*command: str, given: str | None = None) -> str:
    """The output of one of Slurm's commands. Refused, with its message, if it fails."""
    try:
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=PATIENCE, env=_environment())
    except FileNotFoundError:
        raise Refused(command[0], "there is no such program on this host") from None
    except subprocess.TimeoutExpired:
        raise Refused(command[0], f"has not answered within {PATIENCE:.0f} s") from None
    if done.returncode != 0:
        raise Refused(command[0], _said(command[0], done.stderr) or f"failed with exit code {done.returncode}")
    return done.stdout


def _environment() -> dict[str, str]:
    """The environment without the daemon's token, which sbatch would keep with the job."""
    return {name: value for name, value in os.environ.items() if name not in _OWN}


def _said(tool: str, text: str) -> str:
    """The complaint that ended a command, else its first one, without the command's name."""
    lines = sorted((line.strip() for line in text.splitlines() if line.strip()), key=lambda line: " fatal: " not in line)
    return re.sub(rf"^{tool}: (error: |fatal: )?", "", lines[0]) if lines else ""


def _has_no_controller(words: str) -> bool:
    return bool(re.search(r"contact|connect|Zero Bytes|not answered|no such program|configuration|timed out", words, re.IGNORECASE))


def _version() -> str:
    try:
        return _ask("squeue", "--version").strip()
    except StokerError:
        return "unknown"


def check_options(partition: str, options: Sequence[str]) -> None:
    """UsageError for words that cannot stand in a line of a batch file, or are no options."""
    if not re.fullmatch(r"[\w.,-]+", partition):
        raise UsageError(f"--partition: {ascii(partition)[:60]} is no name of a partition")
    for option in options:
        if not option.startswith("-"):
            raise UsageError(f"{option[:60]!r} is no option of sbatch: write them as --name=value after '--'")
        if (name := option.split("=")[0]) in _OURS or option[:2] in _OURS:
            raise UsageError(f"{name[:60]}: a pilot has its own, or it is an option before '--'")
        if not option.isprintable():
            raise UsageError(f"{ascii(option)[:60]} is not printable text")

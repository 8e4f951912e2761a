"""The outcome of a process in a code and in words, from its exit code, the stop request and its log. Pure functions."""

from __future__ import annotations

import re
import signal
from typing import NamedTuple

from ...engine.logfile import colourless
from .rundir import OOM_EXIT, OOM_MARKER, PREEMPTED_EXIT

# What frameworks print when memory runs out: torch (CUDA, cuBLAS, CPU allocator), NCCL, JAX, Python itself.
_OUT_OF_MEMORY = re.compile(
    rb"CUDA out of memory|CUDA error: out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation"
    rb"|DefaultCPUAllocator: can't allocate memory|NCCL WARN Cuda failure.*out of memory|RESOURCE_EXHAUSTED: Out of memory"
    rb"|^MemoryError\b|^numpy.*ArrayMemoryError|" + re.escape(OOM_MARKER.encode()),
    re.MULTILINE,
)
_OF_A_GPU = re.compile(rb"CUDA|CUBLAS|cuda|OutOfMemoryError|NCCL|RESOURCE_EXHAUSTED|HIP")  #: in such a line: a GPU's memory
_SEARCHED = 16 << 10  #: bytes of the log's end: errors that the script survived lie further up
# Printed when the kernel kills a part of the job: torch's DataLoader, of its loader worker.
_KILLED = re.compile(rb"is killed by signal: Killed")
# The summary of torch's elastic launcher; it also lists the ranks that the launcher ended itself.
_FIRST_RANK = re.compile(
    rb"^Root Cause \(first observed failure\):$.*?^ *rank +: (\d{1,9})\b.*?^ *exitcode +: (-?\d{1,9})\b", re.MULTILINE | re.DOTALL
)
UNHEARD = "unheard"  #: stop reason: the daemon was not heard for too long
NOT_HEARD = "the daemon was not heard for too long (runners.fence_after)"
HOST_MEMORY = "host.memory"  #: stop reason: the job exceeded its limit of host memory
TERMINATED = "terminated"  #: stop reason: another process signalled the supervisor, as at a shutdown


_MEMORY_REMEDY = "use fewer loader workers or smaller batches, or run fewer jobs at once"


class Ending(NamedTuple):
    outcome: str
    message: str | None


def _only_the_hosts(log: bytes) -> bool:
    """Whether the host's memory ran out: more GPU memory would not help."""
    lines = [line for line in log[-_SEARCHED:].splitlines() if _OUT_OF_MEMORY.search(line)]
    return bool(lines) and not any(_OF_A_GPU.search(line) for line in lines)


def judge(
    *,
    exit_code: int,
    stop_reason: str | None,
    stop_seen: bool,
    caught: bool,
    done: bool,
    grace: float,
    killed_after_grace: bool,
    kernel_oom: bool,
    log: bytes,
    survivors: str = "",
    over: str | None = None,
    limit: str | None = None,
) -> Ending:
    """How a worker ended. ``exit_code`` negative: the signal; ``survivors``: processes that could not be killed, in words; ``over``: how
    it exceeded its limit of host memory, ``limit``: that limit, in words.

    A worker that was told to stop and exits with 0 has either finished in time, or saved and left early, as most handlers of
    SIGTERM do. It counts as having left early if it could have acted on the request: a rank has seen it (``stop_seen``), or a process
    that was sent SIGTERM had a handler for it (``caught``). It counts as finished if it said ``done``. The daemon knows its steps
    and may judge otherwise.
    """
    if survivors:
        words = "stuck in the kernel or the driver, often until a reset of the GPU or a reboot"
        return Ending("unkillable", f"could not be killed: {survivors}; {words}")
    if over is not None and exit_code != 0:
        return Ending("oom", f"{over}: raise it, or use fewer loader workers or smaller batches")
    if stop_reason == "hang":
        words = "made no progress for its hang_after, or kept its turn on a GPU from others for its grace"
        return Ending("hang", f"{words}, and was stopped; the end of its log may show where it hangs")
    if exit_code == 0 and (done or stop_reason is None or not (stop_seen or caught)):
        return Ending("completed", None)
    if stop_reason is not None:
        return _stopped(stop_reason, grace, killed_after_grace and exit_code != PREEMPTED_EXIT)
    # The kernel counts kills of the whole cgroup: the count alone may be of another job.
    killed = exit_code in (-signal.SIGKILL, 128 + signal.SIGKILL) or _KILLED.search(log[-_SEARCHED:]) is not None
    if kernel_oom and killed:
        return Ending("oom", f"the kernel killed it, out of main memory: {_MEMORY_REMEDY}")
    if _only_the_hosts(log):
        more = f", and host.memory is {limit}: raise it, or" if limit else ":"
        return Ending("oom", f"out of main memory{more} {_MEMORY_REMEDY}")
    if exit_code == OOM_EXIT or _OUT_OF_MEMORY.search(log[-_SEARCHED:]):
        return Ending("oom", f"out of memory: use a smaller batch, ask for GPUs with more of it (gpu_memory), or {SMALLER}")
    return Ending("failed", _failed(exit_code, log))


SMALLER = "give a recipe or entrypoint memory: {cap: SIZE}"


def _stopped(reason: str, grace: float, killed: bool) -> Ending:
    if reason == UNHEARD:
        return Ending("lost", f"stopped: {NOT_HEARD}; it goes on from its last checkpoint")
    if reason == TERMINATED:
        return Ending("lost", "stopped from outside Stoker, as at a shutdown of the machine; it goes on from its last checkpoint")
    if killed and grace == 0:
        return Ending("stopped", f"killed at once ({reason}): what it did since its last checkpoint is lost")
    if killed:
        return Ending(
            "stopped",
            f"did not leave within {grace:g} s of the request to stop and was killed: what it did since its last checkpoint is lost;"
            " look at should_stop() more often, or raise grace",
        )
    return Ending("stopped", None)


def _failed(exit_code: int, log: bytes) -> str:
    if exit_code < 0:
        what = f"killed by {signal_name(-exit_code)}, not by Stoker"
    elif exit_code == PREEMPTED_EXIT:
        what = f"left with {PREEMPTED_EXIT} (preempted), though Stoker had not asked it to"
    else:
        what = f"exit code {exit_code}"
    last = _first_rank(log) or last_line(log)
    return f"{what}: {last}" if last else f"{what}, without a word; see 'stoker logs'"


def _first_rank(log: bytes) -> str:
    """The rank of a gang under torch's launcher that failed first, and how; empty where the log does not tell."""
    found = _FIRST_RANK.search(log[-_SEARCHED:])
    if found is None:
        return ""
    rank, code = int(found[1]), int(found[2])
    how = f"killed by {signal_name(-code)}" if code < 0 else f"exit code {code}"
    return f"rank {rank} failed first ({how}); its own words are further up in the log"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_line(log: bytes) -> str:
    """Last line with a letter or a digit in it, without colour codes, shortened."""
    for line in reversed(colourless(log[-_SEARCHED:].decode(errors="replace")).splitlines()):
        if any(letter.isalnum() for letter in line):
            return line.strip()[:300]
    return ""

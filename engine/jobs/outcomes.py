"""The verdict on a job when its lease ends: a pure function, with all cases in one place."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import UsageError
from ..spec.model import Retries
from .states import State

#: reasons of stops by the engine itself, after which the job simply waits for its next lease
YIELDING = {"preempted": "preempted", "expired": "its lease expired", "drain": "its runner is being drained", "held": "held"}

#: of leases
OUTCOMES = (
    "completed", "failed", "oom", "hang", "timeout", "preempted", "profiled", "cancelled", "lost", "unkillable", "start-failed",
)  # fmt: skip

MAX_LOSS_DELAY = 300.0  #: seconds
PREEMPTED_EXIT = 75  #: of a worker that has left on request; without a request of ours, on a signal from outside
SERVED_WELL = 600.0  #: seconds of a server's life after which its earlier losses no longer count


@dataclass(frozen=True, slots=True)
class End:
    """How a lease ended."""

    outcome: str  #: from the runner: completed, failed, stopped, oom, hang, lost, start-failed, unkillable
    exit_code: int | None
    stop_reason: str | None  #: of the engine's request to stop, None: there was none
    message: str | None = None
    at: float | None = None  #: end of its last worker (s since the epoch), None: now
    nodes: tuple[str, ...] = ()  #: on which its workers were


@dataclass(frozen=True, slots=True)
class Verdict:
    """The consequences for the job."""

    state: State
    outcome: str  #: of the lease; of the job, if the state is final
    reason: str
    preempted: bool = False
    failed: bool = False
    delay: float = 0.0  #: seconds before it may run again
    unmeasured: bool = False  #: its profiling run had its time, but measured too little
    alone: bool = False  #: it has its GPUs alone from now on
    apart: bool = False  #: it trains with no other job from now on


def judge(
    end: End,
    retries: Retries,
    *,
    failures: int,
    cancelled: bool,
    held: bool,
    losses: int = 0,
    profile: bool = False,
    measured: bool = False,
    finished: bool = False,
    shared: bool = False,
    ours: bool = False,
    serves: bool = False,
    elsewhere: bool = False,
    replica: bool = False,
    joint: bool = False,
) -> Verdict:
    """Decide on a job whose last worker has gone.

    ``failures``: attempts that failed before this one; ``losses``: attempts right before this one that were lost; ``profile``: it was
    a profiling run, and ``measured``, its speed is known now; ``finished``: its reports say that all its work is done; ``shared``: other
    jobs were on its GPUs at some time; ``ours``: Stoker's own worker ran it, as a recipe or an entrypoint, so its exit code tells if the
    job itself is wrong; ``serves``: it serves a model, so it has no end of its own; ``elsewhere``: its host lacked something for its
    start, and there are other hosts; ``replica``: it trains together with others, which go on without it; ``joint``: it was to train its
    first steps together with another job, and has not reported their end.
    """
    # Exit 0 of a job that could have acted on the request to stop means "stopped on request", unless its reports say otherwise.
    finished = finished and end.exit_code == 0 and end.outcome in ("stopped", "lost")
    if end.outcome == "completed" and serves:
        end = replace(end, outcome="failed", message="the server ended by itself, with exit code 0: look at its log")
    if (end.outcome == "completed" or finished) and not profile:
        return Verdict(State.COMPLETED, "completed", "completed")
    if cancelled or end.stop_reason == "cancelled":
        return Verdict(State.CANCELLED, "cancelled", "cancelled")
    back = State.SUBMITTED if held else State.PENDING
    if profile and (verdict := _profiled(end, back, measured)) is not None:
        return verdict
    if elsewhere:
        return Verdict(back, end.outcome, f"{end.message}; another host is tried")
    if joint and (end.outcome == "oom" or end.stop_reason == "hang"):  # which may be the other job's doing
        outcome, what = ("hang", "made no progress") if end.stop_reason == "hang" else ("oom", "ran out of memory")
        words = f"{what} while it trained its first steps together with another job; it trains alone from now on"
        return Verdict(back, outcome, words, apart=True)
    if end.stop_reason in ("timeout", "hang"):
        return _failure(end, retries, failures, back, ours)
    if end.stop_reason in YIELDING and end.outcome in ("stopped", "failed", "unkillable", "lost"):
        # A script that knows nothing of Stoker dies of the signal: it was stopped, it did not fail.
        reason = YIELDING[end.stop_reason] + (", and left with exit code 0" if end.exit_code == 0 else "")
        return Verdict(back, "preempted", reason, preempted=end.stop_reason in ("preempted", "expired"))
    if (
        (serves or replica)
        and end.outcome == "failed"
        and end.exit_code is not None
        and (end.exit_code < 0 or end.exit_code == PREEMPTED_EXIT)
    ):
        end = replace(end, outcome="lost", message=f"{end.message or 'it was killed'}; the {'server' if serves else 'replica'} comes back")
    if end.outcome == "stopped":
        return Verdict(back, "preempted", "stopped by a signal from outside (the host going down?) after a checkpoint")
    if end.outcome in ("lost", "unkillable"):
        # The first loss is not the job's fault. A job that is lost again and again waits longer each time: it may kill its workers.
        delay = min(2.0**losses, MAX_LOSS_DELAY) if losses else 0.0
        words = end.message or "its worker was lost; it goes on from its last checkpoint"
        return Verdict(back, end.outcome, "its profiling run was lost; it is profiled again" if profile else words, delay=delay)
    if end.outcome == "oom" and shared:
        return Verdict(back, "oom", "ran out of memory beside another job; it has its GPUs alone from now on", alone=True)
    return _failure(end, retries, failures, back, ours)


def _profiled(end: End, back: State, measured: bool) -> Verdict | None:
    """The verdict after a profiling run that neither failed nor was lost: it is no preemption and no failure of the job."""
    if end.outcome == "completed" and measured:
        return Verdict(back, "profiled", "its speed was measured; it waits for the GPUs to train on")
    if end.outcome == "completed":
        return Verdict(back, "profiled", "its profiling run ended without having measured its speed", unmeasured=True)
    early = {**YIELDING, "timeout": "the timeout of the job"}.get(end.stop_reason or "")
    if early is not None and end.outcome in ("stopped", "failed", "unkillable", "lost"):
        reason = f"its profiling run was ended early: {early}"
        return Verdict(back, "profiled", reason, unmeasured=not measured and end.stop_reason in ("expired", "timeout"))
    return Verdict(back, "profiled", "its profiling run was stopped from outside") if end.outcome == "stopped" else None


def _failure(end: End, retries: Retries, failures: int, back: State, ours: bool) -> Verdict:
    outcome = end.stop_reason if end.stop_reason in ("timeout", "hang") else end.outcome
    reason = end.message or _words(outcome, end.exit_code)
    if end.message and outcome != end.outcome:  # the first cause counts, whatever the outcome of the stop
        reason = f"{_words(outcome, end.exit_code)} (it was stopped, and then: {end.message})"
    final = failures >= retries.limit or end.exit_code in retries.never_on or (outcome == "oom" and failures >= 1)
    if not final and ours and outcome == end.outcome and end.exit_code == UsageError.exit_code:
        final, reason = True, f"{reason}; the job itself is wrong, so it is not tried again"
    if final:
        return Verdict(State.FAILED, outcome, reason, failed=True)
    delay = min(retries.backoff * retries.factor**failures, retries.max_backoff)
    return Verdict(back, outcome, f"{reason}; retry {failures + 1} of {retries.limit} in {delay:.0f} s", failed=True, delay=delay)


def _words(outcome: str, exit_code: int | None) -> str:
    known = {
        "oom": "out of memory: ask for more gpu_memory, use a smaller batch, or give a recipe or entrypoint memory: {cap: SIZE}",
        "timeout": "ran longer than its timeout: raise timeout, or stop earlier",
        "hang": "made no progress for its hang_after: the end of its log may show where it hangs",
    }
    if outcome in known:
        return known[outcome]
    if exit_code is not None and exit_code < 0:
        return f"killed by signal {-exit_code}, not by Stoker: look at its log and at the kernel's (out of memory?)"
    return f"exit code {exit_code}: see 'stoker logs'"

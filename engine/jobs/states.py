"""Job states and the legal transitions between them: the one table of the design."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    SUBMITTED = "submitted"  #: accepted; held, or waiting for other jobs
    PROFILING = "profiling"  #: runs on a profiling lease
    PENDING = "pending"  #: waits for GPUs
    ASSIGNED = "assigned"  #: has a lease, its runner has not taken it up yet
    STARTING = "starting"  #: its runner is starting the worker
    RUNNING = "running"  #: its worker lives
    SUSPENDING = "suspending"  #: asked to stop, inside its grace period
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


S = State

TRANSITIONS: dict[State, frozenset[State]] = {
    S.SUBMITTED: frozenset({S.PENDING, S.PROFILING, S.COMPLETED, S.CANCELLED}),
    S.PROFILING: frozenset({S.PENDING, S.SUSPENDING, S.COMPLETED, S.FAILED, S.CANCELLED}),
    S.PENDING: frozenset({S.SUBMITTED, S.PROFILING, S.ASSIGNED, S.COMPLETED, S.FAILED, S.CANCELLED}),
    S.ASSIGNED: frozenset({S.STARTING, S.RUNNING, S.SUSPENDING, S.PENDING, S.COMPLETED, S.FAILED, S.CANCELLED}),
    S.STARTING: frozenset({S.RUNNING, S.SUSPENDING, S.PENDING, S.COMPLETED, S.FAILED, S.CANCELLED}),
    S.RUNNING: frozenset({S.SUSPENDING, S.PENDING, S.COMPLETED, S.FAILED, S.CANCELLED}),
    S.SUSPENDING: frozenset({S.PENDING, S.SUBMITTED, S.COMPLETED, S.FAILED, S.CANCELLED}),
    S.COMPLETED: frozenset(),
    S.FAILED: frozenset(),
    S.CANCELLED: frozenset(),
}

FINAL = frozenset(state for state, following in TRANSITIONS.items() if not following)
#: states in which a job has a live lease
ACTIVE = frozenset({S.PROFILING, S.ASSIGNED, S.STARTING, S.RUNNING, S.SUSPENDING})


def legal(before: State, after: State) -> bool:
    return after in TRANSITIONS[before]

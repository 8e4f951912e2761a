"""The contract between the engine and every policy: a View in, a Plan out.

A policy is a pure decision: it sees a frozen, columnar picture of one pool and returns the state that
it wants. It has no database, no clock and no torch, so the daemon and the simulator call the same
code. All arrays of a table have one row per job (or GPU, or node); times are seconds since the epoch of
``View.now``'s clock, durations are seconds, memory is bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from .arrays import Bools, Floats, Ints, Strings
from .estimate.throughput import Profile
from .estimate.transfers import Transfers
from .keys import tunable
from .placement.cells import Free

__all__ = ["Bools", "Floats", "Ints", "Profile", "Strings", "Transfers", "tunable"]


class Phase:
    """The state of a schedulable job for a policy. They are plain numbers: looking up an Enum's members would slow decisions."""

    PENDING = 0  #: waits for GPUs, holds none
    ACTIVE = 1  #: assigned, starting, running or profiling: holds the GPUs of its allocation
    STOPPING = 2  #: asked to stop, still holds its GPUs; no plan may name it


class Demand(IntEnum):
    """The submitter's kind of deadline (002 ch. 5.3)."""

    BEST_EFFORT = 0
    SOFT = 1
    STRICT = 2


@dataclass(frozen=True, slots=True)
class Jobs:
    """Schedulable jobs of the pool, in submission order. ``n`` rows; every array has length ``n``.

    ``alloc_start``/``alloc_gpus`` hold the current allocations in CSR form: job ``i`` holds the GPUs
    ``alloc_gpus[alloc_start[i]:alloc_start[i + 1]]`` (row numbers of ``Gpus``). ``tier_start`` with
    ``tier_deadline`` and ``tier_reward`` hold the soft deadline steps in the same form, earliest first;
    a strict deadline is one tier.
    """

    id: Ints
    submitted_at: Floats
    phase: Ints  #: Phase
    gpus_min: Ints  #: of its gang: it never gets fewer
    gpus_max: Ints  #: more are of no use
    priority: Ints  #: larger is more urgent
    demand: Ints  #: Demand
    deadline: Floats  #: the last deadline, inf when there is none
    attained: Floats  #: attained service, GPU-seconds
    run_time: Floats  #: seconds run so far, over all leases
    lease_time: Floats  #: seconds since the current lease was granted, 0 when it holds none
    remaining: Floats  #: estimated seconds of work left on ``gpus_min`` GPUs, NaN when unknown
    gpu_memory: Floats  #: bytes needed on each GPU, 0 when unknown
    preemptions: Ints
    user: Ints  #: code of the user
    model: Ints  #: code of the model (recipe and backbone); equal codes may share profiles
    alloc_start: Ints  #: length n + 1
    alloc_gpus: Ints
    tier_start: Ints  #: length n + 1
    tier_deadline: Floats
    tier_reward: Floats
    protected: Bools | None = None  #: the engine will not preempt or move these now, so plan no eviction of them; None: no job
    protected_until: Floats | None = None  #: time at which ``protected`` ends, inf: with the job; None: not known
    profile: Ints | None = None  #: row of ``View.profiles``, -1: unknown; None: unknown for all
    progress: Floats | None = None  #: done share of the whole work, 0 to 1, NaN when unknown; None: unknown for all
    lease_end: Floats | None = None  #: end of the current lease, inf: it has no end, or there is no lease; None: inf for all
    profile_gpus: Ints | None = None  #: GPUs of the profiling run that it needs first, 0: its speed is known; None: 0 for all
    remaining_most: Floats | None = None  #: like ``remaining``, for its most iterations, on the slowest GPUs; None: the same
    uncertainty: Floats | None = None  #: standard deviation of the logarithm of ``remaining``, NaN when unknown; None: unknown for all
    overhead: Floats | None = None  #: seconds of a suspension with its resumption, NaN when unknown; None: unknown for all
    kind: Strings | None = None  #: train, finetune, prompt or infer, by its submitter; None: not given for any
    backbone: Strings | None = None  #: the pre-trained model from which it starts, '': none, or not given; None: '' for all
    share: Strings | None = None  #: the kind of group that it may be in, or `EXCLUSIVE`; '': not given by its submitter; None: '' for all
    #: Its need on each of its GPUs, in the form of `Placement`: the bytes of ``gpu_memory`` or, if only some nodes can read its
    #: checkpoint, so that it must start there, minus the number (from 1) of a `Need` of ``View.needs``; None: bytes for all.
    need: Floats | None = None
    begins: Bools | None = None  #: whether the policy may let it begin with the weights of an ended job; None: true for all
    kept: Floats | None = None  #: bytes of ``gpu_memory`` that it keeps while others on its GPU have the turn; None: all of it for all

    def __len__(self) -> int:
        return len(self.id)

    @property
    def held(self) -> Ints:
        """Number of GPUs that each job holds."""
        counts: Ints = self.alloc_start[1:] - self.alloc_start[:-1]
        return counts

    @property
    def asks(self) -> Floats:
        """Each job's need on each of its GPUs: ``need``, or ``gpu_memory`` if all nodes are open to all."""
        return self.gpu_memory if self.need is None else self.need

    def beside_each_other(self, rows: Sequence[int]) -> float:
        """Bytes that jobs take together on one GPU: those that each keeps, and the most that the turn's holder needs in addition."""
        whole = self.gpu_memory[rows]
        kept = whole if self.kept is None else self.kept[rows]
        return float(kept.sum() + (whole - kept).max(initial=0.0))

    @property
    def holder(self) -> Ints:
        """The row of the job that holds each of ``alloc_gpus``."""
        return np.arange(len(self)).repeat(self.held)

    def allocation(self, row: int) -> Ints:
        """Rows of ``Gpus`` that job ``row`` holds now."""
        return self.alloc_gpus[self.alloc_start[row] : self.alloc_start[row + 1]]


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs (or CPU slots) of the pool, ordered by node and index within the node."""

    id: Strings  #: UUID
    node: Ints  #: row of ``Nodes``
    index: Ints  #: position within the node, for buddy cells
    usable: Bools  #: False: dirty, quarantined, or its node is draining or silent: no job may start on it
    memory: Floats  #: total bytes, 0 when unknown
    warm: Strings | None = None  #: the backbone of each GPU's pool, '': none, it is cold; None: all are cold
    warm_at: Floats | None = None  #: time at which that is loaded there; in the future: it is loading; None: no GPU is warm

    def __len__(self) -> int:
        return len(self.id)


@dataclass(frozen=True, slots=True)
class Nodes:
    """Hosts of the pool."""

    id: Strings
    leaves: Floats | None = None  #: time of each node's return (s since the epoch), inf: none known; None: inf for all

    def __len__(self) -> int:
        return len(self.id)


@dataclass(frozen=True, slots=True)
class Need:
    """The GPUs for jobs that may start only on some nodes."""

    memory: float  #: bytes of each, 0: any
    nodes: Bools  #: whether they may start on each node


#: A policy's state from one decision to the next: an object of JSON, None: none.
Memory = Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class View:
    """The present state of one pool, as far as it is known."""

    now: float
    pool: str
    jobs: Jobs
    gpus: Gpus
    nodes: Nodes
    profiles: Sequence[Profile] = ()  #: beliefs about models, see ``Jobs.profile``
    finished_service: Floats | None = None  #: GPU-seconds that finished jobs took, ascending; None: not known
    free: Free | None = None  #: the usable GPUs that no job holds, if the engine keeps count; None: to be counted
    memory: Memory = None  #: that of the last plan, through JSON; None: there was none, or it was another policy's
    #: By rows and columns of ``profiles``: the factor on the first's time beside the second on its GPUs, NaN: not measured;
    #: None: NaN for all.
    slowdowns: Floats | None = None
    transfers: Transfers | None = None  #: gains of jobs of some ``profiles`` from others; None: none known
    needs: Sequence[Need] = ()  #: see ``Jobs.need``
    #: All jobs (id) whose weights exist, and may help one of ``jobs`` as far as is known, to rows of ``profiles``; for each row
    #: the newest one comes last.
    left: Mapping[int, int] = field(default_factory=dict)

    @property
    def ended(self) -> Mapping[int, int]:
        """Rows of ``profiles`` to the newest ``left`` job (id) of each."""
        return {row: job for job, row in self.left.items()}

    def suits(self, row: int) -> Bools:
        """Whether job ``row`` may have each GPU, by its memory, as far as is known, and by its node."""
        memory, nodes = asked(float(self.jobs.asks[row]), self.needs)
        large_enough: Bools = (self.gpus.memory <= 0) | (self.gpus.memory >= memory)
        return large_enough if nodes is None else large_enough & nodes[self.gpus.node]


def asked(need: float, needs: Sequence[Need]) -> tuple[float, Bools | None]:
    """The meaning of a value of ``Jobs.need``: bytes, and the nodes, None: all."""
    if need >= 0:
        return need, None
    found = needs[-int(need) - 1]
    return found.memory, found.nodes


@dataclass(frozen=True, slots=True)
class Allocation:
    """The right of a job to a set of GPUs.

    ``gpus`` are rows of ``View.gpus``. At ``lease_end`` the lease expires and the job is suspended, unless a later Plan
    renews it or no job waits; None: it holds until the job ends or a Plan takes it.
    """

    gpus: tuple[int, ...]
    lease_end: float | None = None
    #: The batch size from now on, if the job lets the scheduler choose; None: its own. The daemon refuses it.
    batch_size: int | None = None
    profile: bool = False  #: a run on ``Jobs.profile_gpus``, fewer than its gang, until its lease ends; its training is dropped
    #: A job (id) with whose newest checkpoint this one begins if it has none itself: that job has saved one, and trains the same model on
    #: the same backbone. None: by its submitter or an earlier plan. In a simulation the remaining work stays the same, unless
    #: ``View.transfers`` has the pair.
    begin_from: int | None = None
    #: A waiting job (id) that trains together with this one on its GPUs, with a head each, until one of them is at its target; the
    #: other continues from there (002 ch. 3.2, spatial transfer). None: it trains alone. Live these are their first steps, while the
    #: other waits, if both have ``merge: transfer`` and a gain was measured; else the daemon refuses it.
    joint: int | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """Why jobs wait. ``code`` is a stable word for queries, ``text`` a sentence for people.

    Keep figures that change at every tick (positions, times) out of texts: each change of a text is a write.
    """

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """Jobs (ids) that wait for the same reason, in the policy's order of service."""

    reason: Reason
    jobs: Sequence[int] | Ints


INFER = "infer"  #: `Jobs.kind` of a job that answers requests
EXCLUSIVE = "exclusive"  #: no group: a job has its GPUs alone
# Kinds of groups, by the rule for when each job computes.
PACKED = "packed"  #: the device decides: each computes as if it had its GPUs alone
SWITCHED = "switched"  #: turns by priority decide (004 ch. 2)
KINDS = (PACKED, SWITCHED)
_INFERENCE_FIRST = 1 << 32  #: beyond any priority


def precedence(kind: Any, priority: Any) -> Any:
    """The order of turns on a switched GPU, the largest first: inference before training, then by priority. For a job, or columns."""
    return priority if kind is None else priority + _INFERENCE_FIRST * (kind == INFER)


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs that share their GPUs in one way: a job is in groups of one kind only."""

    kind: str
    jobs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes only, so that the cost of a decision depends on its changes, not on the running jobs.

    ``allocations`` maps a job's id to its GPUs. A waiting job starts there; a running one continues there, with the given lease, and moves
    if these are other GPUs. A job that holds GPUs and is named neither there nor in ``preempt`` keeps them, to the end of its lease if it
    has one. Jobs in Phase.STOPPING are never named. `plan_of` makes the plan of a whole state.
    """

    allocations: Mapping[int, Allocation]  #: in order of service: if two starts wait for one eviction, the first is served
    waiting: Sequence[Waiting] = ()
    groups: Sequence[Group] = ()
    status: str = "ok"  #: solver status: ok, optimal, feasible, fallback, timeout
    gap: float | None = None  #: relative optimality gap, if a solver certifies one
    order: Sequence[int] | Ints = ()  #: all waiting jobs (ids) in the order of service; (): the order of ``waiting``
    preempt: Collection[int] = ()  #: running jobs to be suspended if others get their GPUs
    wake_at: float | None = None  #: time of the next question even without events; None: at the next event or round
    rejected: Collection[int] = ()  #: waiting jobs whose deadline is given up; people see the reason in ``waiting``
    memory: Memory = None  #: comes back with the next view. Name GPUs by their ids, as rows change. A change at every tick costs a write.
    #: Backbone to the rows of the GPUs in its pool from now on, each in one pool only; jobs of the backbone start warm there. A GPU in no
    #: pool is cold. None: pools stay as they are.
    warm: Mapping[str, Collection[int]] | None = None


def plan_of(view: View, allocations: Mapping[int, Allocation], **rest: Any) -> Plan:
    """The plan of a whole state, for policies that compute one: running jobs that are not in ``allocations`` are preempted.

    ``rest``: the other fields of `Plan`.
    """
    running = view.jobs.id[view.jobs.phase == Phase.ACTIVE].tolist()
    return Plan(allocations, preempt=[job for job in running if job not in allocations], **rest)


@runtime_checkable
class Policy(Protocol):
    """A scheduling policy. One instance serves one pool. It may keep caches, which may vanish between calls
    without changing a decision; lasting state goes out in ``Plan.memory`` and comes back in ``View.memory``.

    Attributes that a policy may declare, with their defaults:
    ``interval``: seconds between rounds, for a policy that decides in rounds; None: at every event. One with a key ``round`` takes its
    length from there, and a simulation with ``--interval`` sets that key.
    ``rigid``: True: the plan changes nothing while no job waits, so it is not asked then; False.
    ``uses_history``: True: it reads ``View.finished_service``; False.
    ``deadlines_first``: True: jobs with deadlines, unless they can be put off, are served before those without, and people see that; False.
    ``elastic``: True: it gives jobs any number of GPUs that they can use; False: a simulation gives each job exactly the gang that it asks
    for, if that is known.
    ``profiles``: True: it gives new jobs their profiling runs (``Jobs.profile_gpus``) itself; False: jobs start unmeasured.
    """

    Config: ClassVar[type]
    name: ClassVar[str]

    def __init__(self, config: Any) -> None: ...

    def plan(self, view: View) -> Plan: ...

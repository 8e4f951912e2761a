"""The contract between the engine and every policy: a View in, a Plan out.

A policy is a pure decision: it sees a frozen, columnar picture of one pool and answers with the state
it wants. It has no database, no clock and no torch, so the daemon and the simulator call the very same
code. All arrays of a table have one row a job (or GPU, or node); times are seconds since the epoch of
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
    """Where a schedulable job stands, as a policy sees it. Plain numbers: an Enum's members cost a decision's time to look up."""

    PENDING = 0  #: waits for GPUs, holds none
    ACTIVE = 1  #: assigned, starting, running or profiling: holds the GPUs of its allocation
    STOPPING = 2  #: told to stop, still holds its GPUs; nothing can be planned for it


class Demand(IntEnum):
    """What the submitter wants of time (002 ch. 5.3)."""

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
    gpus_min: Ints  #: a gang: fewer than this is never given
    gpus_max: Ints  #: more than this is of no use
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
    protected: Bools | None = None  #: the engine will not preempt or move these now, so plan no eviction of them; None: nobody
    protected_until: Floats | None = None  #: when ``protected`` ends, inf: not before the job does; None: not known
    profile: Ints | None = None  #: row of ``View.profiles``, -1: nothing is known; None: of nobody
    progress: Floats | None = None  #: share of the whole work that is done, 0 to 1, NaN when unknown; None: of nobody
    lease_end: Floats | None = None  #: when the current lease ends, inf: it has no end, or there is none; None: nobody's has
    profile_gpus: Ints | None = None  #: GPUs of the profiling run that it needs first, 0: its speed is known; None: everybody's is
    remaining_most: Floats | None = None  #: as ``remaining``, of the most iterations that it may need, on the slowest GPUs; None: the same
    uncertainty: Floats | None = None  #: standard deviation of the logarithm of ``remaining``, NaN when unknown; None: of nobody
    overhead: Floats | None = None  #: seconds that a suspension costs with its resumption, NaN when unknown; None: of nobody
    kind: Strings | None = None  #: train, finetune, prompt or infer, as its submitter says; None: of nobody
    backbone: Strings | None = None  #: the pre-trained model that it starts from, '': none, or not said; None: of nobody
    share: Strings | None = None  #: the kind of group that it may be in, or `EXCLUSIVE`; '': its submitter has not said; None: nobody has
    #: What it asks of each of its GPUs, as `Placement` takes it: the bytes of ``gpu_memory``, or, of one that may start on some nodes only,
    #: as only these can read its checkpoint, minus the number (from 1) of a `Need` of ``View.needs``; None: the bytes of all.
    need: Floats | None = None
    begins: Bools | None = None  #: whether it may begin with the weights of a job that has ended, as the policy says; None: everybody may
    kept: Floats | None = None  #: bytes of ``gpu_memory`` that it keeps while others on its GPU have the turn; None: everybody keeps all

    def __len__(self) -> int:
        return len(self.id)

    @property
    def held(self) -> Ints:
        """How many GPUs each job holds."""
        counts: Ints = self.alloc_start[1:] - self.alloc_start[:-1]
        return counts

    @property
    def asks(self) -> Floats:
        """What each job asks of each of its GPUs: ``need``, or where no node is closed to anybody ``gpu_memory``."""
        return self.gpu_memory if self.need is None else self.need

    def beside_each_other(self, rows: Sequence[int]) -> float:
        """Bytes that jobs take of a GPU on which they are together: what each keeps, and what one more needs that has the turn."""
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
    index: Ints  #: position within the node, what buddy cells are made of
    usable: Bools  #: False: dirty, quarantined, or its node is draining or silent: nothing new may start on it
    memory: Floats  #: total bytes, 0 when unknown
    warm: Strings | None = None  #: the backbone in whose pool each GPU is counted, '': in none, it is cold; None: all are
    warm_at: Floats | None = None  #: when that is loaded there, ahead of now: it is loading; None: no GPU is warm

    def __len__(self) -> int:
        return len(self.id)


@dataclass(frozen=True, slots=True)
class Nodes:
    """Hosts of the pool."""

    id: Strings
    leaves: Floats | None = None  #: when each is handed back (s since the epoch), inf: it is not known to be; None: none is

    def __len__(self) -> int:
        return len(self.id)


@dataclass(frozen=True, slots=True)
class Need:
    """What GPUs have to be for jobs that may start on some nodes only."""

    memory: float  #: bytes of each, 0: any
    nodes: Bools  #: one a node: whether they may start there


#: What a policy keeps from one decision to the next: an object of JSON, None: nothing.
Memory = Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class View:
    """What is known now of one pool."""

    now: float
    pool: str
    jobs: Jobs
    gpus: Gpus
    nodes: Nodes
    profiles: Sequence[Profile] = ()  #: what is believed of models, see ``Jobs.profile``
    finished_service: Floats | None = None  #: GPU-seconds that finished jobs took, ascending; None: not known
    free: Free | None = None  #: the usable GPUs that nobody holds, where the engine keeps count; None: to be counted
    memory: Memory = None  #: that of the plan before, as JSON gives it back; None: there was none, or it was another policy's
    #: Rows and columns of ``profiles``: how many times longer the first takes beside the second on its GPUs, NaN: not measured;
    #: None: of no pair.
    slowdowns: Floats | None = None
    transfers: Transfers | None = None  #: what jobs of some ``profiles`` gain from those of others; None: nothing is known
    needs: Sequence[Need] = ()  #: see ``Jobs.need``
    #: All jobs (id) whose weights are there to begin with, and as far as is known may help one of ``jobs``, to rows of ``profiles``;
    #: of a row the newest one comes last.
    left: Mapping[int, int] = field(default_factory=dict)

    @property
    def ended(self) -> Mapping[int, int]:
        """Rows of ``profiles`` to the newest job (id) of each that is ``left``."""
        return {row: job for job, row in self.left.items()}

    def suits(self, row: int) -> Bools:
        """One a GPU: whether job ``row`` may have it, by its memory, as far as is known, and by its node."""
        memory, nodes = asked(float(self.jobs.asks[row]), self.needs)
        large_enough: Bools = (self.gpus.memory <= 0) | (self.gpus.memory >= memory)
        return large_enough if nodes is None else large_enough & nodes[self.gpus.node]


def asked(need: float, needs: Sequence[Need]) -> tuple[float, Bools | None]:
    """What a value of ``Jobs.need`` means: bytes, and the nodes, None: all."""
    if need >= 0:
        return need, None
    found = needs[-int(need) - 1]
    return found.memory, found.nodes


@dataclass(frozen=True, slots=True)
class Allocation:
    """The right of a job to a set of GPUs.

    ``gpus`` are rows of ``View.gpus``; ``lease_end`` is the time at which the lease expires and the job
    is suspended unless a later Plan renews it or nobody waits, None when it holds until the job ends or a Plan takes it.
    """

    gpus: tuple[int, ...]
    lease_end: float | None = None
    #: What the job is to train with from now on, where it lets the scheduler choose; None: its own. The daemon refuses it.
    batch_size: int | None = None
    profile: bool = False  #: a run on ``Jobs.profile_gpus``, fewer than its gang, until its lease ends; what it trains is dropped
    #: A job (id) with whose newest checkpoint one that has none begins: it has saved one, and trains the same model on the same backbone.
    #: None: as its submitter, or an earlier plan, has said. A simulation takes the work that is left to be the same, but for what
    #: ``View.transfers`` tells of the pair.
    begin_from: int | None = None
    #: A job (id) that waits, and that trains together with this one on its GPUs, a head each, until one of them is at its target; the other
    #: goes on from there (002 ch. 3.2, spatial transfer). None: it trains alone. Live that is their first steps, where both say
    #: ``merge: transfer`` and it was measured to be worth it, and until then the other one waits; else the daemon refuses it.
    joint: int | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """Why jobs wait. ``code`` is a stable word for queries, ``text`` a sentence for a person.

    Keep texts free of what moves at every tick (positions, times): each change of a text is a write.
    """

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """Jobs (ids) that wait for one and the same reason, in the order in which the policy would serve them."""

    reason: Reason
    jobs: Sequence[int] | Ints


INFER = "infer"  #: `Jobs.kind` of a job that answers requests
EXCLUSIVE = "exclusive"  #: no group: a job has its GPUs alone
# Kinds of groups, by what decides when each job computes.
PACKED = "packed"  #: the device: each computes as if it had its GPUs alone
SWITCHED = "switched"  #: whose turn it is, by priority (004 ch. 2)
KINDS = (PACKED, SWITCHED)
_INFERENCE_FIRST = 1 << 32  #: beyond any priority


def precedence(kind: Any, priority: Any) -> Any:
    """Whose turn it is on a GPU that is switched, the largest first: inference before training, then by priority. Of a job, or columns."""
    return priority if kind is None else priority + _INFERENCE_FIRST * (kind == INFER)


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs that share their GPUs, in one way: a job is in groups of one kind."""

    kind: str
    jobs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What changes, and no more: so a decision costs what it changes, not what runs.

    ``allocations`` maps a job's id to what it is to have. A job that waits starts there; one that runs goes on there, with the lease that
    is given, and moves if these are other GPUs. Who holds GPUs and is named neither there nor in ``preempt`` keeps them as they are, to the
    end of its lease if that has one. Jobs in Phase.STOPPING are never named. `plan_of` makes the plan of a whole state.
    """

    allocations: Mapping[int, Allocation]  #: in order of service: where two starts wait for one eviction, the first is served
    waiting: Sequence[Waiting] = ()
    groups: Sequence[Group] = ()
    status: str = "ok"  #: solver status: ok, optimal, feasible, fallback, timeout
    gap: float | None = None  #: relative optimality gap, where a solver certifies one
    order: Sequence[int] | Ints = ()  #: all waiting jobs (ids) in the order of service; (): as they stand in ``waiting``
    preempt: Collection[int] = ()  #: running jobs to be suspended as far as others are to have their GPUs
    wake_at: float | None = None  #: when to ask again even if nothing happens; None: at the next event or round
    rejected: Collection[int] = ()  #: waiting jobs whose deadline is given up; a person sees the reason in ``waiting``
    memory: Memory = None  #: what the next view brings back. Name GPUs by their ids: rows change. What moves at every tick costs a write.
    #: Backbone to the rows of the GPUs in whose pool they are counted from now on, in none but that; on them jobs of the backbone start
    #: warm. Who is in no pool is cold. None: pools stay as they are.
    warm: Mapping[str, Collection[int]] | None = None


def plan_of(view: View, allocations: Mapping[int, Allocation], **rest: Any) -> Plan:
    """The plan of a whole state, for policies that think in such: who runs and is not in ``allocations`` is to be preempted.

    ``rest``: the other fields of `Plan`.
    """
    running = view.jobs.id[view.jobs.phase == Phase.ACTIVE].tolist()
    return Plan(allocations, preempt=[job for job in running if job not in allocations], **rest)


@runtime_checkable
class Policy(Protocol):
    """A scheduling policy. One instance serves one pool. It may keep caches, which may vanish between calls
    without changing a decision; what must last goes out in ``Plan.memory`` and comes back in ``View.memory``.

    What a policy does not declare is as in the comments:
    ``interval``: seconds between rounds, for a policy that decides in rounds; None: at every event. One with a key ``round`` takes its
    length from there, and a simulation with ``--interval`` sets that key.
    ``rigid``: True: the plan changes nothing while no job waits, so it need not be asked then; False.
    ``uses_history``: True: it reads ``View.finished_service``; False.
    ``deadlines_first``: True: jobs with deadlines, but those that can be put off, are served before those without, who are told; False.
    ``elastic``: True: it gives jobs any number of GPUs that they can use; False: a simulation gives those of which it is told what they ask
    for just that, as a gang.
    ``profiles``: True: it gives new jobs their profiling runs (``Jobs.profile_gpus``) itself; False: jobs start unmeasured.
    """

    Config: ClassVar[type]
    name: ClassVar[str]

    def __init__(self, config: Any) -> None: ...

    def plan(self, view: View) -> Plan: ...

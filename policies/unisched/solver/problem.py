"""The Selector's problem and its solution: one scheduling cycle of UniSched (002 ch. 5.3.3.4).

Time is counted in slots of one best-effort lease; slot 0 begins now. The leases of a job begin at its slot ``first`` and
follow each other without a gap, ``lease`` slots each; a job may be given any of them, so it may pause in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ...arrays import Bools, Floats, Ints

OPTIMAL = "optimal"  #: the gap is within its limit, certified by a bound
FEASIBLE = "feasible"  #: it is not, and more iterations were not allowed
TIMEOUT = "timeout"  #: it is not, and time was over


@dataclass(frozen=True, slots=True)
class Problem:
    """One scheduling cycle of ``n`` jobs with ``k`` allocation options and ``t`` deadlines (tiers) in all."""

    capacity: int  #: usable GPUs M
    busy: Ints  #: (H,) GPUs in slots 0 to H - 1 under leases that go on and may not be touched; later slots have none
    #: (classes, levels) buddy cells of 2**level GPUs that may be given in slot 0, as few and as large as they can be: of all GPUs,
    #: then of fewer and fewer of them, those with the memory that a class of jobs asks for
    cells: Ints
    lease: Ints  #: (n,) slots of one lease of each job
    may_start: Bools  #: (n,) may be given slot 0
    option_start: Ints  #: (n + 1,) CSR of the allocation options of each job
    option_gpus: Ints  #: (k,) GPUs of the option
    option_cells: Ints  #: (k, levels) cells the option takes in slot 0; negative: parts of larger ones that it gives back
    option_leases: Ints  #: (k,) L, leases until the job is complete under the option, at least 1
    option_bonus: Floats  #: (k,) small extra reward for running under the option in slot 0
    tier_start: Ints  #: (n + 1,) CSR of the deadlines of each job
    tier_leases: Ints  #: (t,) Q, whole leases from the slot ``first`` to the deadline, ascending for each job
    tier_reward: Floats  #: (t,) V, at least 0
    now_reward: Floats  #: (n,) reward for running in slot 0, whatever comes later
    first: Ints | None = None  #: (n,) slot of the first lease that can still be given; None: 0 for who may start, 1 for the others
    memory: Ints | None = None  #: (n,) class of each job, a row of ``cells``; None: 0, any GPU will do

    def __post_init__(self) -> None:
        n, k, t = len(self.lease), len(self.option_gpus), len(self.tier_leases)
        _require(self.capacity >= 0, "capacity", "is not negative")
        _require(self.cells.ndim == 2 and len(self.cells) > 0, "cells", "has one row a class of memory and one column a level")
        _require(self.option_cells.shape == (k, self.cells.shape[1]), "option_cells", "has one row an option and one column a level")
        for name, rows, length in (("option_start", self.option_start, k), ("tier_start", self.tier_start, t)):
            good = len(rows) == n + 1 and rows[0] == 0 and rows[-1] == length and bool((np.diff(rows) >= 0).all())
            _require(good, name, f"ascends from 0 to {length} in {n + 1} steps")
        lengths: tuple[tuple[str, Bools | Floats | Ints | None, int], ...] = (
            ("may_start", self.may_start, n),
            ("now_reward", self.now_reward, n),
            ("first", self.first, n),
            ("memory", self.memory, n),
            ("tier_reward", self.tier_reward, t),
            ("option_leases", self.option_leases, k),
            ("option_bonus", self.option_bonus, k),
        )
        for name, column, length in lengths:
            _require(column is None or len(column) == length, name, f"has {length} entries")
        for name, numbers in (("lease", self.lease), ("option_gpus", self.option_gpus), ("option_leases", self.option_leases)):
            _require(bool((numbers >= 1).all()), name, "is 1 or more everywhere")
        for name, rewards in (("tier_reward", self.tier_reward), ("now_reward", self.now_reward), ("option_bonus", self.option_bonus)):
            _require(bool((np.isfinite(rewards) & (rewards >= 0)).all()), name, "is finite and not negative everywhere")
        _require(bool((self.busy <= self.capacity).all()), "busy", "is not above the capacity")
        if self.first is not None:
            _require(bool(((self.first == 0) == self.may_start).all()), "first", "is 0 for the jobs that may start and for no others")

    def __len__(self) -> int:
        return len(self.lease)

    @property
    def first_slot(self) -> Ints:
        """(n,) slot at which the job's lease number 0 begins."""
        return (~self.may_start).astype(np.int64) if self.first is None else self.first

    @property
    def demand(self) -> Ints:
        """(k, classes * levels) what each option takes in the rows of (5.14): GPUs in cells of the level or larger ones.

        The rows stand once for each class of memory: what asks for much counts there, and wherever less would do. With one class
        they are exact; with several they are what must hold, and rarely not enough: a large gang and a picky one may want one node.
        """
        use = from_level(self.option_cells)
        memory = np.zeros(len(self), dtype=np.int64) if self.memory is None else self.memory
        counts = np.repeat(memory, np.diff(self.option_start))[:, None] >= np.arange(len(self.cells))
        rows: Ints = (counts[:, :, None] * use[:, None, :]).reshape(len(use), self.cells.size)
        return rows

    @property
    def supply(self) -> Ints:
        """(classes * levels,) the right sides of these rows."""
        return from_level(self.cells).ravel()


def from_level(cells: Ints) -> Ints:
    """Prefix rows of (5.14) times 2**i: entry i counts the GPUs in cells of level i or more. Works on the last axis."""
    gpus = cells * (1 << np.arange(cells.shape[-1]))
    rows: Ints = np.cumsum(gpus[..., ::-1], axis=-1)[..., ::-1]
    return rows


def _require(good: bool, name: str, rule: str) -> None:
    if not good:
        raise ValueError(f"{name}: a selection problem needs that it {rule}")


def stopped_clock() -> float:
    """The clock of who sets no limit in seconds: no time ever passes."""
    return 0.0


@dataclass(frozen=True, slots=True)
class SolverLimits:
    """How far to go. All but ``seconds`` are counted, so without a limit in seconds an answer depends on the problem alone."""

    gap: float = 0.01  #: relative gap that is good enough, below 1
    seconds: float = math.inf  #: as measured by ``clock``, for all together; what is best by then is returned
    clock: Callable[[], float] = stopped_clock  #: seconds from any origin
    iterations: int = 250  #: of the dual
    rows: int = 40  #: deadlines at which the work due is summed up
    alike: float | None = 0.1  #: share of ``gap`` up to which rewards of jobs that are otherwise equal may differ for them to be dealt with
    #: as copies of one; 0: not at all; None: every job by itself
    cores: tuple[tuple[int, float], ...] = ((400, 1.0), (400, 0.98), (800, 1.0))  #: chosen among exactly, one after the other:
    #: columns, and share of the room after slot 0 that may be planned; with a little less the gangs are easier to pack
    nodes: int = 200  #: of a core's branch and bound
    tries: int = 8  #: to make a schedule of a core's choice
    exact: int = 1500  #: variables up to which a problem with too wide a gap is solved lease by lease; 0: never
    exact_effort: float = 1.0  #: for that, in CP-SAT's deterministic time: about seconds, but counted in operations

    def __post_init__(self) -> None:
        if not 0.0 <= self.gap < 1.0:
            raise ValueError(f"gap: {self.gap:g} is no relative gap; give a share of the optimum, from 0 to less than 1")


@dataclass(frozen=True, slots=True)
class Solution:
    """What runs, where, and for what. Jobs are rows of the problem."""

    option: Ints  #: (n,) chosen option as an entry of the problem's CSR columns, -1: neither runs now nor aims at a deadline
    now: Bools  #: (n,) runs in slot 0
    tier: Ints  #: (n,) deadline aimed at, an entry of the problem's CSR columns, -1: none
    leases: tuple[Ints, ...]  #: for each job the numbers of the leases of its schedule, 0 being that of its slot ``first``
    objective: float
    bound: float  #: no schedule has a larger objective
    gap: float  #: (bound - objective) / bound
    status: str
    seconds: float  #: by the clock of the limits
    counts: dict[str, int] = field(default_factory=dict)  #: columns, rows, iterations, core, exact, filled
    phases: dict[str, float] = field(default_factory=dict)  #: seconds of columns, dual, greedy, core, exact, fill

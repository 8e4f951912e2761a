"""The columns of the optimisation: for a job one (allocation option, deadline aimed at, runs now) each, and the rows they use.

Jobs that are alike are one row of the problem with a number of copies, each of which takes one of its columns or none.

Rows are prices' places: the prefix rows of (5.14) for slot 0, and for ends ``d`` of spans of time the work in slots 1 to
d - 1. Of a job that needs R more slots of its leases and must have them by D, at least max(0, R - max(0, D - d)) fall there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...arrays import Bools, Floats, Ints
from .problem import Problem

NONE = -1
_GROWTH = 1.15  #: of one priced span of time to the next, once there are too many deadlines for one each


@dataclass(frozen=True, slots=True)
class Columns:
    """``c`` columns in the order of their jobs; each job may also take none. Uses and capacities of rows are in GPUs and GPU-slots.

    Choices are arrays of columns, with a column as often in them as copies of its job take it.
    """

    job: Ints  #: (c,) row of the problem
    copies: Ints  #: (c,) how many alike jobs that is
    option: Ints  #: (c,) entry of the problem's options
    tier: Ints  #: (c,) entry of the problem's tiers, NONE: runs now for what that is worth alone
    now: Bools  #: (c,)
    value: Floats  #: (c,)
    gpus: Ints  #: (c,)
    later: Ints  #: (c,) leases needed after slot 0
    kind: Ints  #: (c,) row of ``due``
    pattern: Ints  #: (c,) row of ``patterns``; all zeros for who does not run now
    jobs: Ints  #: jobs that have columns, ascending
    start: Ints  #: (jobs + 1,) their columns
    patterns: Floats  #: (patterns, cells) use of the rows of slot 0
    due: Floats  #: (kinds, spans) slots in which the job must run before each end
    ends: Ints  #: (spans,)
    room: Floats  #: (cells + spans,) capacities of all rows

    def __len__(self) -> int:
        return len(self.job)

    @property
    def cells(self) -> int:
        """Rows of slot 0."""
        return int(self.patterns.shape[1])

    def prices(self, multipliers: Floats) -> Floats:
        """(c,) value less what its use of rows costs."""
        slot0 = self.patterns @ multipliers[: self.cells]
        work = self.due @ multipliers[self.cells :]
        reduced: Floats = self.value - slot0[self.pattern] - self.gpus * work[self.kind]
        return reduced

    def use(self, chosen: Ints) -> Floats:
        """(len(chosen), cells + spans)"""
        return np.concatenate([self.patterns[self.pattern[chosen]], self.gpus[chosen, None] * self.due[self.kind[chosen]]], axis=1)

    def total(self, chosen: Ints, weights: Ints | None = None) -> Floats:
        """The sum of ``use`` over the chosen columns, times ``weights``."""
        slot0 = np.bincount(self.pattern[chosen], weights, minlength=len(self.patterns)) @ self.patterns
        gpus = self.gpus[chosen] if weights is None else self.gpus[chosen] * weights
        return np.concatenate([slot0, np.bincount(self.kind[chosen], gpus, minlength=len(self.due)) @ self.due])


def make_columns(problem: Problem, spans: int, copies: Ints | None = None) -> Columns:
    """All columns that could be part of a schedule; ``spans``: rows for work at most. ``copies``: (n,) of each job; None: one."""
    job, option, tier, now = _combinations(problem)
    needed, whole = problem.option_leases[option], tier == NONE
    later = np.where(whole, 0, needed - now)
    last = np.where(whole, 0, problem.tier_leases[tier]) if len(problem.tier_leases) else np.zeros_like(job)
    value = np.where(now, problem.now_reward[job] + problem.option_bonus[option], 0.0)
    value[~whole] += problem.tier_reward[tier[~whole]]
    demand, supply = problem.demand, problem.supply
    no_cells: Bools = np.any(demand > supply, axis=1)
    keep = (value > 0) & ~(now & no_cells[option])
    keep &= whole | (needed <= last - (~now & problem.may_start[job]))
    keep &= _fits_alone(problem, job, problem.option_gpus[option], later, last, now)
    job, option, tier, later, last = (column[keep] for column in (job, option, tier, later, last))
    now, value = now[keep], value[keep]

    first, lease = problem.first_slot[job], problem.lease[job]
    deadline = np.where(tier == NONE, 0, first + last * lease)
    at_once = np.where(now, lease - 1, 0)
    ends = _ends(np.unique(np.concatenate([deadline[deadline > 1], at_once[at_once > 0] + 1, _busy_ends(problem)])), spans)
    work, by, held, kind = _kinds(later * lease, deadline, at_once)
    due = np.minimum(held, ends - 1) + np.maximum(0, work - np.maximum(0, by - ends))
    distinct, of_option = np.unique(np.concatenate([np.zeros_like(demand[:1]), demand]), axis=0, return_inverse=True)
    pattern = of_option.ravel()[np.where(now, option + 1, 0)]
    jobs, begins = np.unique(job, return_index=True)
    many = np.ones_like(job) if copies is None else copies[job]
    return Columns(
        job, many, option, tier, now, value, problem.option_gpus[option], later, kind, pattern,
        jobs, np.append(begins, len(job)), distinct.astype(float), due.astype(float), ends,
        np.concatenate([supply, _capacity(problem, ends)]).astype(float),
    )  # fmt: skip


def _kinds(work: Ints, deadline: Ints, held: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """The distinct triples, as columns, and which of them each one is."""
    sizes = int(deadline.max(initial=0)) + 1, int(held.max(initial=0)) + 1
    keys, kind = np.unique((work * sizes[0] + deadline) * sizes[1] + held, return_inverse=True)
    rest, of_held = np.divmod(keys[:, None], sizes[1])
    of_work, of_deadline = np.divmod(rest, sizes[0])
    return of_work, of_deadline, of_held, kind


def _combinations(problem: Problem) -> tuple[Ints, Ints, Ints, Bools]:
    """Job, option, tier and whether now, of everything that could be chosen, sorted by job, then option, tier, now."""
    options, tiers = np.diff(problem.option_start), np.diff(problem.tier_start)
    owner = np.repeat(np.arange(len(problem)), options)
    each = 2 * (tiers + 1)[owner]
    option = np.repeat(np.arange(len(owner)), each)
    rank = np.arange(len(option)) - np.repeat(np.cumsum(each) - each, each)
    job, step, now = owner[option], rank // 2, (rank % 2).astype(bool)
    tier = np.where(step > 0, problem.tier_start[job] + step - 1, NONE)
    possible = (now & problem.may_start[job]) | (~now & (tier != NONE))
    return job[possible], option[possible], tier[possible], now[possible]


def _fits_alone(problem: Problem, job: Ints, gpus: Ints, later: Ints, last: Ints, now: Bools) -> Bools:
    """Whether the leases fit beside those that go on."""
    good = gpus <= problem.capacity
    busy, horizon = problem.busy, len(problem.busy)
    if not busy[1:].any():
        return good
    first, lease = problem.first_slot, problem.lease
    for length, begins in sorted({*zip(lease[job].tolist(), first[job].tolist(), strict=True)}):
        mine = (lease[job] == length) & (first[job] == begins)
        count = -(-max(horizon - begins, length) // length)
        padded = np.zeros(begins + count * length, dtype=np.int64)
        padded[:horizon] = busy[: len(padded)]
        padded[0] = 0  # slot 0 is a matter of cells
        free = problem.capacity - padded[begins:].reshape(count, length).max(axis=1)
        for size in np.unique(gpus[mine]):
            these = mine & (gpus == size)
            open_leases = np.cumsum(free >= size)
            here = np.where(last[these] > 0, open_leases[np.minimum(last[these], count) - 1], 0) + np.maximum(0, last[these] - count)
            started = begins == 0
            good[these] &= (later[these] == 0) | (later[these] <= here - (started and free[0] >= size))
            if started and length > 1:
                good[these] &= ~now[these] | (free[0] >= size)
    return good


def _busy_ends(problem: Problem) -> Ints:
    """Slots from which more GPUs are free: where the work due may exceed the capacity most, apart from deadlines."""
    ends: Ints = np.flatnonzero(np.diff(problem.busy, append=0)) + 1
    return ends[ends > 1]


def _ends(found: Ints, most: int) -> Ints:
    """All of them where they are few, else fewer the further away. Less rows make a weaker but still a valid bound."""
    if len(found) <= most:
        return found
    growth = _GROWTH
    while True:
        kept, reach = [], 0.0
        for end in found.tolist():
            if end >= reach:
                kept.append(end)
                reach = max(end + 1, end * growth)
        if kept[-1] != found[-1]:
            kept.append(int(found[-1]))
        if len(kept) <= most:
            return np.array(kept, dtype=np.int64)
        growth *= 1.1


def _capacity(problem: Problem, ends: Ints) -> Ints:
    """GPU-slots in slots 1 to end - 1."""
    taken = np.concatenate([[0], np.cumsum(problem.busy[1:])])
    room: Ints = (ends - 1) * problem.capacity - taken[np.minimum(ends - 1, len(taken) - 1)]
    return room

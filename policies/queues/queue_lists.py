"""The list of each queue, as in the program published with Tiresias: the order of service within a queue.

A new job of a queue goes to the end of its list, and after each decision running jobs stand before waiting ones. So a displaced job goes
before all that waited in its queue, and a running job gives way to none of its own queue; but a job that has just sunk stands behind
all waiting ones there. If a guard of the engine keeps it running, it stays there until it may be stopped.

The lists go out with a plan in `Plan.memory` and come back with the next view, so simulations, forecasts and a restarted daemon decide
alike. A policy is not asked while no job waits; the times at which jobs sank meanwhile follow from the service of their present leases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..contract import Bools, Floats, Ints, Jobs, Memory, Phase
from .levels import AT_ONCE, Standing, ranks_of

MOST_LISTED_JOBS = 50_000  #: jobs kept, the first of the highest queues: with the longest numbers less than 1 MiB


@dataclass(frozen=True, slots=True)
class KeptLists:
    """The kept lists, one behind the other. If a job is in them twice, its first place counts."""

    job: Ints
    queue: Ints
    runs: Bools  #: is among the running ones
    _ascending: Ints = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ascending", np.argsort(self.job, kind="stable"))

    def place(self, jobs: Ints) -> Ints:
        """The place of each of ``jobs``; -1: none."""
        if not len(self.job):
            return np.full(len(jobs), -1, dtype=np.int64)
        found = self._ascending[np.minimum(np.searchsorted(self.job, jobs, sorter=self._ascending), len(self.job) - 1)]
        return np.where(self.job[found] == jobs, found, -1)

    def same(self, other: KeptLists) -> bool:
        return all(map(np.array_equal, (self.job, self.queue, self.runs), (other.job, other.queue, other.runs)))

    def written(self) -> list[str]:
        """A text for each queue: running jobs, a bar, waiting jobs; consecutive numbers are one range: ``7|1 3-5``."""
        part = 2 * self.queue + ~self.runs
        begins = np.ones(len(part), dtype=bool)
        begins[1:] = (part[1:] != part[:-1]) | (self.job[1:] != self.job[:-1] + 1)
        ends = np.ones(len(part), dtype=bool)
        ends[:-1] = begins[1:]
        firsts, lasts = self.job[begins].tolist(), self.job[ends].tolist()
        parts: list[list[str]] = [[] for _ in range(2 * int(self.queue.max(initial=0)) + 2)]
        for which, first, last in zip(part[begins].tolist(), firsts, lasts, strict=True):
            parts[which].append(f"{first}-{last}" if first < last else f"{first}")
        return [f"{' '.join(runs)}|{' '.join(waits)}" for runs, waits in zip(parts[::2], parts[1::2], strict=True)]


NOTHING = KeptLists(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool))


@dataclass(frozen=True, slots=True)
class ListOrder:
    """The lists of a view, a row per job."""

    at: Floats  #: from 0 to 1, in the order of the lists; comparable within one queue
    settled: Bools  #: runs, and gives way to none of its queue; False: it waits, or has sunk and is to give way since


class QueueLists:
    """``rule``: determines a job's queue. If it has changed, no job counts as sunk."""

    def __init__(self, rule: list[float]) -> None:
        self._rule = rule
        self._read: tuple[Any, KeptLists] = None, NOTHING  #: the texts last read or written, and their lists

    def order(self, jobs: Jobs, now: float, standing: Standing, floor: Floats, memory: Memory) -> ListOrder:
        """``floor``: the level at which each queue begins. ``memory``: the state of the last decision."""
        kept, same_rule = self._kept(memory)
        at = kept.place(jobs.id)
        new = at < 0
        came, settled = new.copy(), new.copy()
        if len(kept.job):
            came |= same_rule & (kept.queue[at] != standing.queue)
            settled |= kept.runs[at] & ~came
        rows = came.nonzero()[0]
        at[rows] = len(kept.job)
        if len(rows) > 1:
            at[rows] += _in_turn(_entered(jobs, now, standing, floor, new, rows), new[rows])
        return ListOrder(at / (len(kept.job) + len(jobs)), settled & (jobs.phase == Phase.ACTIVE))

    def memory(self, jobs: Jobs, standing: Standing, order: ListOrder, runs: Bools, before: Memory) -> Memory:
        """The state to keep if ``runs`` run after the decision; ``before`` itself if nothing is new."""
        if jobs.protected is not None:
            runs = runs & ~(jobs.protected & ~order.settled & (jobs.phase == Phase.ACTIVE))
        rows = np.argsort(standing.queue + 0.5 * (~runs + order.at))[:MOST_LISTED_JOBS]
        now = KeptLists(jobs.id[rows], standing.queue[rows], runs[rows])
        kept, same_rule = self._kept(before)
        if same_rule and now.same(kept):
            return before
        texts = now.written()
        self._read = texts, now
        return {"lists": texts, "rule": self._rule}

    def _kept(self, memory: Memory) -> tuple[KeptLists, bool]:
        """The lists, and whether they are by the same rule; empty if the memory has another form, as of an earlier version."""
        if not isinstance(memory, Mapping):
            return NOTHING, False
        texts = memory.get("lists")
        if texts != self._read[0]:
            self._read = texts, _read(texts)
        return self._read[1], memory.get("rule") == self._rule


def _entered(jobs: Jobs, now: float, standing: Standing, floor: Floats, new: Bools, rows: Ints) -> Floats:
    """The time at which each of ``rows`` came to its queue: a new one at its submission, a waiting one now, by a lift, and one with GPUs
    within its lease."""
    since = (standing.level[rows] - np.maximum(floor[standing.queue[rows]], 0.0)) / standing.rate[rows]
    sank = np.clip(now - since, now - jobs.lease_time[rows], now)
    return np.where(jobs.held[rows] > 0, sank, np.where(new[rows], jobs.submitted_at[rows], now))


def _in_turn(moments: Floats, new: Bools) -> Ints:
    """Places by moment; at one moment new jobs go first, then those that were submitted earlier."""
    order = np.argsort(moments, kind="stable")
    moment = np.cumsum(np.diff(moments[order], prepend=-np.inf) > AT_ONCE)[ranks_of(order)]
    return ranks_of(np.lexsort((~new, moment)))


def _numbers(text: str) -> list[int]:
    jobs: list[int] = []
    for part in text.split():
        first, _, last = part.partition("-")
        span = range(int(first), int(last or first) + 1)
        if len(jobs) + len(span) > MOST_LISTED_JOBS:
            raise ValueError
        jobs.extend(span)
    return jobs


def _read(texts: Any) -> KeptLists:
    """The lists of such texts, one per queue; empty if they are not such texts."""
    jobs: list[int] = []
    queue: list[int] = []
    runs: list[bool] = []
    try:
        for number, text in enumerate(texts if isinstance(texts, list) else ()):
            for which, part in zip((True, False), text.split("|"), strict=True):
                found = _numbers(part)
                if len(jobs) + len(found) > MOST_LISTED_JOBS:
                    return NOTHING
                jobs += found
                queue += [number] * len(found)
                runs += [which] * len(found)
        return KeptLists(np.array(jobs, dtype=np.int64), np.array(queue, dtype=np.int64), np.array(runs, dtype=bool))
    except (AttributeError, TypeError, ValueError, OverflowError):
        return NOTHING

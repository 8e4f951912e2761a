"""The list of each queue, as the program published with Tiresias keeps it: in what order the jobs of a queue are served.

Who comes to a queue goes to the end of its list, and after each decision those that run stand before those that wait. So a job that was
displaced goes before all that waited in its queue, and who runs gives way to nobody of its own queue; but who has just sunk stands behind
all that wait there. Where a guard of the engine keeps it running nevertheless, it stays there until it may be stopped.

The lists go out with a plan in `Plan.memory` and come back with the next view, so simulations, forecasts and a daemon that was started
again decide alike. A policy is not asked while nobody waits; when jobs sank meanwhile follows from the service of their present leases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..contract import Bools, Floats, Ints, Jobs, Memory, Phase
from .levels import AT_ONCE, Standing, ranks_of

MOST_LISTED_JOBS = 50_000  #: jobs that are kept, the first of the highest queues: of the longest numbers they are less than 1 MiB


@dataclass(frozen=True, slots=True)
class Kept:
    """Lists as they were kept, one behind the other. Of a job that stands in them twice the first place counts."""

    job: Ints
    queue: Ints
    runs: Bools  #: stands with those that run
    _ascending: Ints = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ascending", np.argsort(self.job, kind="stable"))

    def place(self, jobs: Ints) -> Ints:
        """Where each of ``jobs`` stands, -1: nowhere."""
        if not len(self.job):
            return np.full(len(jobs), -1, dtype=np.int64)
        found = self._ascending[np.minimum(np.searchsorted(self.job, jobs, sorter=self._ascending), len(self.job) - 1)]
        return np.where(self.job[found] == jobs, found, -1)

    def same(self, other: Kept) -> bool:
        return all(map(np.array_equal, (self.job, self.queue, self.runs), (other.job, other.queue, other.runs)))

    def written(self) -> list[str]:
        """A text for each queue: those that run, a bar, those that wait; numbers that follow each other are one range: ``7|1 3-5``."""
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


NOTHING = Kept(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool))


@dataclass(frozen=True, slots=True)
class Order:
    """The lists of a view, a row a job."""

    at: Floats  #: from 0 to 1, in the order of the lists: those of one queue compare
    settled: Bools  #: runs, and gives way to nobody of its queue; False: it waits, or has sunk and was to give way since


class QueueLists:
    """``rule``: what decides in which queue a job stands. Where that has changed, nobody has sunk."""

    def __init__(self, rule: list[float]) -> None:
        self._rule = rule
        self._read: tuple[Any, Kept] = None, NOTHING  #: the texts that were read or written last, and what they say

    def order(self, jobs: Jobs, now: float, standing: Standing, floor: Floats, memory: Memory) -> Order:
        """``floor``: the level at which each queue begins. ``memory``: what the decision before has kept."""
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
        return Order(at / (len(kept.job) + len(jobs)), settled & (jobs.phase == Phase.ACTIVE))

    def memory(self, jobs: Jobs, standing: Standing, order: Order, runs: Bools, before: Memory) -> Memory:
        """What is to be kept where ``runs`` run after the decision; ``before`` itself where nothing is new."""
        if jobs.protected is not None:
            runs = runs & ~(jobs.protected & ~order.settled & (jobs.phase == Phase.ACTIVE))
        rows = np.argsort(standing.queue + 0.5 * (~runs + order.at))[:MOST_LISTED_JOBS]
        now = Kept(jobs.id[rows], standing.queue[rows], runs[rows])
        kept, same_rule = self._kept(before)
        if same_rule and now.same(kept):
            return before
        texts = now.written()
        self._read = texts, now
        return {"lists": texts, "rule": self._rule}

    def _kept(self, memory: Memory) -> tuple[Kept, bool]:
        """The lists, and whether they are by the same rule. Nothing where it is something else, as an earlier version kept."""
        if not isinstance(memory, Mapping):
            return NOTHING, False
        texts = memory.get("lists")
        if texts != self._read[0]:
            self._read = texts, _read(texts)
        return self._read[1], memory.get("rule") == self._rule


def _entered(jobs: Jobs, now: float, standing: Standing, floor: Floats, new: Bools, rows: Ints) -> Floats:
    """When each of ``rows`` came to its queue: a new one when it was submitted, one that waits now, as it is lifted, and one that holds
    GPUs within its lease."""
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


def _read(texts: Any) -> Kept:
    """The lists of such texts, one a queue; nothing where they are anything else."""
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
        return Kept(np.array(jobs, dtype=np.int64), np.array(queue, dtype=np.int64), np.array(runs, dtype=bool))
    except (AttributeError, TypeError, ValueError, OverflowError):
        return NOTHING

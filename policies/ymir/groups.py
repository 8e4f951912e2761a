"""The jobs of a pool for the merge program: groups that are served together, in kinds of equal ones."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..contract import Ints, Phase
from ..estimate.transfers import Joint
from ..queues.elastic import Curves, Pool
from .merge_columns import SPATIAL, TEMPORAL, JobKind, Merge, MergeColumn, allowed_gpus
from .merges import Merges

#: Work left is rounded to powers of the first of these with which the kinds that can be merged are few.
_STEPS = (1.05, 1.25, 1.6, 2.5)
_LEAST_WORK_LEFT = 1e-6  #: least remaining share of a job's work
_MOST_KINDS = 60  #: kinds that can be merged: their pairs are up to some 30 thousand columns


class Choices(Protocol):
    """Of the policy's configuration."""

    @property
    def ended(self) -> bool: ...
    @property
    def temporal(self) -> bool: ...
    @property
    def spatial(self) -> bool: ...
    @property
    def recurring(self) -> bool: ...
    @property
    def unknown(self) -> float: ...


@dataclass(frozen=True, slots=True)
class _Group:
    """A job, or a merged pair, by the row of the one that holds, or will hold, the GPUs."""

    row: int
    seconds: Mapping[int, float]
    cold: Mapping[int, float]  #: the same from the backbone
    task: int
    held: int
    tasks: int
    fresh: bool  #: it has not trained, so it can be merged


class Groups:
    """``places``: GPUs that jobs (ids) take over without a switch."""

    def __init__(self, pool: Pool, merges: Merges, curves: Curves, choices: Choices, places: Mapping[int, tuple[int, ...]]) -> None:
        self._pool, self._curves, self._choices = pool, curves, choices
        jobs = pool.jobs
        self._id = jobs.id.tolist()
        self._row_of = {job: row for row, job in enumerate(self._id)}
        self._profile = [-1] * len(self._id) if jobs.profile is None else jobs.profile.tolist()
        self._places = {self._row_of[job]: gpus for job, gpus in places.items() if job in self._row_of}
        self._pairs, self._joined = dict(merges.pairs), dict(merges.joined)
        self._begins = dict(merges.begins)
        self._ended = pool.view.ended if choices.ended else {}
        remaining, unknown = jobs.remaining, np.maximum(choices.unknown, jobs.run_time)
        self._left = np.maximum(np.where(np.isnan(remaining), unknown, remaining), 1e-3).tolist()
        trained = jobs.run_time > 0
        if jobs.progress is not None:
            trained |= jobs.progress > 1e-9
        self._may = [True] * len(self._id) if jobs.begins is None else jobs.begins.tolist()
        told = jobs.begins is not None and pool.view.transfers is not None
        self._user = jobs.user.tolist() if told else [0] * len(self._id)  # other users' results are not for a job
        self._fresh = ((jobs.phase == Phase.PENDING) & ~trained).tolist()
        second = {self._row_of[job] for job in merges.seconds()}
        found = [self._group(row) for row in pool.rows.tolist() if row not in second]
        self.groups = sorted(found, key=lambda group: (min(group.seconds.values()), group.row))
        self.tasks = max(sum(group.tasks for group in self.groups[: pool.budget]), 1)
        self._members: list[list[_Group]] = []
        self.kinds: list[JobKind] = []
        for step in _STEPS:
            self._sort_into_kinds(step)
            if sum(members[0].fresh for members in self._members) <= _MOST_KINDS:
                break
        self.merges = self._possible_merges()
        self._decided: dict[int, tuple[int, str]] = {}

    # Times

    def _group(self, row: int) -> _Group:
        pool = self._pool
        pair = self._pairs.get(self._id[row])
        seconds = cold = self._alone(row)
        source = self._source(row)
        if source is not None:
            self._begins[self._id[row]] = source[0]
            seconds = {n: takes * max(source[1], _LEAST_WORK_LEFT) for n, takes in cold.items()}
        tasks = 1
        if pair is not None:
            other = self._row_of[pair[0]]
            tasks, after = 2, self._alone(other)
            if pair[1] == TEMPORAL:
                ratio = self._known(self._profile[row], self._profile[other])
                seconds = {n: takes + after[n] * ratio for n, takes in seconds.items() if n in after}
            else:
                seconds = {n: max(takes, after.get(n, math.inf)) for n, takes in seconds.items() if n in after} or seconds
            seconds = seconds or cold
        held = len(self._places[row]) if row in self._places else int(pool.held[row])
        fresh = self._fresh[row] and pair is None and row not in self._places
        return _Group(row, seconds, cold, self._profile[row], held, tasks, fresh)

    def _alone(self, row: int) -> dict[int, float]:
        """T on each number of GPUs that a job can have (002 Eqn 3.8); at the joint pace if it trains, or has trained, with another."""
        pool = self._pool
        curve = self._curves.of(pool, row)
        speed = dict(zip(curve.gpus.tolist(), curve.speed.tolist(), strict=True))
        least, left = int(pool.jobs.gpus_min[row]), self._left[row]
        sizes = [n for n in allowed_gpus(least, int(pool.most[row])) if n in speed]
        if (joint := self._joint(row)) is not None:
            return {n: float(left / joint.speed(n, spread=n > int(pool.node[row]))) for n in sizes}
        return {n: float(left / speed[n]) for n in sizes}

    def _joint(self, row: int) -> Joint | None:
        transfers, other = self._pool.view.transfers, self._joined.get(self._id[row])
        return None if transfers is None or other is None else transfers.joint.get((self._profile[row], other))

    # Transfers

    def _known(self, source: int, profile: int) -> float:
        """Work of a job with the weights of a source, over its work without, by their profiles; 1 if unknown."""
        transfers = self._pool.view.transfers
        if transfers is None or min(source, profile) < 0:
            return 1.0
        ratio = float(transfers.begin[source, profile])
        return 1.0 if math.isnan(ratio) else ratio

    def _source(self, row: int) -> tuple[int, float] | None:
        """The ended job whose weights let an untrained one end soonest, and the ratio; None: from the backbone."""
        job, profile = self._id[row], self._profile[row]
        if not self._fresh[row] or not self._may[row] or (job in self._pairs and self._pairs[job][1] == SPATIAL):
            return None
        if row in self._places or not self._choices.ended:
            return self._of_pair(job, profile)
        best = min(
            ((self._known(kind, profile), one) for kind, one in self._ended.items() if kind != profile or self._choices.recurring),
            default=(1.0, -1),
        )
        return (best[1], best[0]) if best[0] < 1.0 else None

    def _of_pair(self, job: int, profile: int) -> tuple[int, float] | None:
        """The decision of its pair, if the first has ended since."""
        if (first := self._begins.get(job)) is None:
            return None
        kind = self._pool.view.left.get(first)
        return None if kind is None else (first, self._known(kind, profile))

    def _possible_merges(self) -> list[Merge]:
        transfers, choices = self._pool.view.transfers, self._choices
        if transfers is None or not (choices.temporal or choices.spatial):
            return []
        found = []
        some = [(number, members[0]) for number, members in enumerate(self._members) if members[0].fresh]
        for i, one in some:
            for k, two in some:
                if one.task == two.task:
                    continue
                ratio = self._known(one.task, two.task)
                if choices.temporal and ratio < 1.0 and self._may[two.row] and self._user[one.row] == self._user[two.row]:
                    ends = {n: (takes, takes + two.cold[n] * ratio) for n, takes in one.seconds.items() if n in two.cold}
                    found.append(Merge(TEMPORAL, i, k, ends))
                if choices.spatial and i < k and (one.task, two.task) in transfers.joint and (two.task, one.task) in transfers.joint:
                    found.append(Merge(SPATIAL, i, k, self._together(one, two)))
        return found

    def _together(self, one: _Group, two: _Group) -> dict[int, tuple[float, float]]:
        transfers, pool = self._pool.view.transfers, self._pool
        assert transfers is not None
        node = int(pool.node[one.row])
        pace = transfers.joint[one.task, two.task], transfers.joint[two.task, one.task]
        sizes = max(one.cold, two.cold, key=max)
        left = self._left[one.row], self._left[two.row]
        return {
            n: tuple(float(work / joint.speed(n, spread=n > node)) for work, joint in zip(left, pace, strict=True))  # type: ignore[misc]
            for n in sizes
        }

    # Kinds

    def _sort_into_kinds(self, step: float) -> None:
        """Sort those that could be served, the shortest first: each has a GPU at least, and a merge serves two."""
        alike: dict[tuple[object, ...], list[_Group]] = defaultdict(list)
        for group in self.groups[: 2 * self._pool.budget]:
            bucket = (
                round(math.log(min(group.seconds.values())) / math.log(step)),
                round(math.log(min(group.cold.values())) / math.log(step)),
            )
            may = self._may[group.row], self._user[group.row]
            key = (group.task, group.fresh, may, group.held, group.tasks, tuple(group.seconds), tuple(group.cold), *bucket)
            alike[key].append(group)
        self._members = list(alike.values())
        self.kinds = [
            JobKind(members[0].task, len(members), _mean([one.seconds for one in members]), members[0].held, members[0].tasks)
            for members in self._members
        ]

    def order(self) -> Ints:
        """Rows in order of service."""
        return np.array([group.row for group in self.groups], dtype=np.int64)

    # The decision

    def take(self, columns: Sequence[MergeColumn], times: Sequence[int]) -> dict[int, int]:
        """GPUs of each row, by the count of each chosen column. The merges are kept for `decided`."""
        left = [list(reversed(members)) for members in self._members]
        wanted: dict[int, int] = {}
        for column, count in zip(columns, times, strict=True):
            for _ in range(count):
                taken = [left[kind].pop() for kind in column.kinds]
                if not column.gpus:
                    continue
                first = taken[0]
                if column.mode:
                    first = self._merge(taken[0], taken[1], column)
                wanted[first.row] = column.gpus
        return wanted

    def _merge(self, one: _Group, two: _Group, column: MergeColumn) -> _Group:
        """Merge two; the first holds the GPUs, or of two that train together the one that can use that many, and ends last."""
        if column.mode == SPATIAL:
            ends = self._together(one, two)[column.gpus]
            most = max(one.cold), max(two.cold)
            if (most[1] >= column.gpus, ends[1]) > (most[0] >= column.gpus, ends[0]):
                one, two = two, one
            self._begins.pop(self._id[one.row], None)
        self._begins.pop(self._id[two.row], None)
        self._decided[one.row] = two.row, column.mode
        return one

    def pinned(self, wanted: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
        """Jobs that continue on the GPUs of their pair's first, which has ended."""
        return {row: gpus for row, gpus in self._places.items() if wanted.get(row) == len(gpus)}

    def decided(self, given: set[int]) -> Merges:
        """All merges, the old ones and those of rows that have got GPUs."""
        pairs, joined = dict(self._pairs), dict(self._joined)
        for row, (other, mode) in self._decided.items():
            if row not in given:
                continue
            pairs[self._id[row]] = self._id[other], mode
            if mode == SPATIAL:
                joined[self._id[row]], joined[self._id[other]] = self._profile[other], self._profile[row]
        return Merges(pairs, self._begins, joined)


def _mean(seconds: Sequence[Mapping[int, float]]) -> dict[int, float]:
    return {n: sum(one[n] for one in seconds) / len(seconds) for n in seconds[0]}

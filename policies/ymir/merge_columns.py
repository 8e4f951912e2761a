"""The columns of the merge program: the cost of each kind of job, alone or merged, on each number of GPUs (002 Eqns 3.9 to 3.16).

Equal jobs are one kind with a count. A column is one way to serve a job, or two merged ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

TEMPORAL, SPATIAL = "temporal", "spatial"
LEAST_DURATION = 1.0  #: seconds: no job counts as shorter, or the slowdown by its start would make it wait for ever


@dataclass(frozen=True, slots=True)
class JobKind:
    """Equal jobs, or equal merged pairs."""

    task: int  #: two jobs of one task are never merged (002 footnote 2)
    count: int
    seconds: Mapping[int, float]  #: T by the numbers of GPUs that they can have (Eqn 3.8)
    held: int = 0  #: GPUs that they hold: keeping these needs no switch
    tasks: int = 1  #: 2: a merged pair, which is only resized (footnote 5, end of 3.4.3.1)


@dataclass(frozen=True, slots=True)
class Merge:
    """Two kinds whose jobs could be merged; in a temporal merge the first is trained first."""

    mode: str
    first: int
    second: int
    ends: Mapping[int, tuple[float, float]]  #: by GPUs, the seconds until the first and until the second is at its target


@dataclass(frozen=True, slots=True)
class MergeColumn:
    cost: float
    gpus: int
    kinds: tuple[int, ...]  #: of the one or two jobs that it serves
    mode: str = ""  #: of a merge; "": a job, or a merged pair, unchanged


@dataclass(frozen=True, slots=True)
class ObjectiveWeights:
    """Weights of the objective."""

    switch: float  #: seconds of a change of GPUs
    waiting: float = 1e4  #: of a job without GPUs: its slowdown is infinite, but the program needs a number
    least_gain: float = 1.1  #: a merge whose TranWt is smaller is left out (002 ch. 3.4.3.2 filters at 1)


def allowed_gpus(least: int, most: int) -> list[int]:
    """The set A of 002 ch. 3.4.3.1 without 0, as far as a job can use it: {1, 2, 3, 4m}. A gang of four or more has {4m} (3.4.3.2).

    A gang's own size is always among them.
    """
    return sorted({least, *(n for n in (1, 2, 3, *range(4, most + 1, 4)) if least <= n <= most)})


def fair_share(gpus: int, jobs: int) -> int:
    """GPUs of each job in an equal division: a-bar of 3.4.3.1, the ceiling of R / N."""
    return max(1, -(-gpus // max(jobs, 1)))


def temporal_weight(first: float, second: float, after: float) -> float:
    """TranWt of Eqn 3.15: times of ``first`` and ``second`` alone, and of the second ``after`` a start from the first's weights."""
    return _shortest_first(first, second) / (2 * first + after)


def spatial_weight(first: float, second: float, ends: tuple[float, float]) -> float:
    """TranWt of Eqn 3.16. There both reach their targets together, so its denominator is twice that time; here each has its own end."""
    return _shortest_first(first, second) / sum(ends)


def _shortest_first(first: float, second: float) -> float:
    """The sum of two jobs' completion times, one after the other, the shorter one first."""
    return 2 * min(first, second) + max(first, second)


def at_most(seconds: Mapping[int, float], gpus: int) -> float:
    """T on the most GPUs up to ``gpus`` that a job can have; on its fewest if these are more."""
    return seconds[max((n for n in seconds if n <= gpus), default=min(seconds))]


def columns_of(kinds: Sequence[JobKind], merges: Iterable[Merge], gpus: int, share: int, costs: ObjectiveWeights) -> list[MergeColumn]:
    """All columns that could be part of an optimum: within a group, more GPUs must cost less. ``gpus``: R; ``share``: a-bar."""
    columns: list[MergeColumn] = []
    shortest = min((min(kind.seconds.values()) for kind in kinds), default=0.0)
    for number, kind in enumerate(kinds):
        # If not all can have GPUs, the shortest come first.
        waiting = costs.waiting * kind.tasks * (1 + shortest / min(kind.seconds.values()))
        columns.append(MergeColumn(waiting, 0, (number,)))
        columns += _improving(_alone(number, kind, gpus, share, costs))
    for merge in merges:
        columns += _improving(_merged(merge, kinds, gpus, share, costs))
    return columns


def _alone(number: int, kind: JobKind, gpus: int, share: int, costs: ObjectiveWeights) -> Iterator[MergeColumn]:
    """Eqn 3.9, the first sum of 3.10, with its sign corrected: as printed, its minimum leaves all jobs without GPUs."""
    fair = max(at_most(kind.seconds, share * kind.tasks), LEAST_DURATION)
    for n, seconds in sorted(kind.seconds.items()):
        if n <= gpus:
            takes = seconds + (0.0 if n == kind.held else costs.switch)
            yield MergeColumn(kind.tasks * takes / fair, n, (number,))


def _merged(merge: Merge, kinds: Sequence[JobKind], gpus: int, share: int, costs: ObjectiveWeights) -> Iterator[MergeColumn]:
    """The second and third sum of Eqn 3.10. T of both includes that of the first; 3.15 means the second alone."""
    one, two = kinds[merge.first], kinds[merge.second]
    last = {n: max(ends) for n, ends in merge.ends.items()}
    if one.task == two.task or not last:
        return
    fair = max(at_most(last, 2 * share), LEAST_DURATION)
    for n, ends in sorted(merge.ends.items()):
        alone = at_most(one.seconds, n), at_most(two.seconds, n)
        weight = temporal_weight(*alone, ends[1] - ends[0]) if merge.mode == TEMPORAL else spatial_weight(*alone, ends)
        if n <= gpus and weight >= costs.least_gain:
            cost = 2 * (last[n] + costs.switch) / fair / weight
            yield MergeColumn(cost, n, (merge.first, merge.second), merge.mode)


def _improving(columns: Iterable[MergeColumn]) -> Iterator[MergeColumn]:
    """Without columns that have more GPUs than another of the group and cost no less."""
    least = float("inf")
    for column in columns:
        if column.cost < least - 1e-9:
            least = column.cost
            yield column

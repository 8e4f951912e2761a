"""The number of free GPUs over time, and its progressive filling (ElasticFlow, ASPLOS 2023, section 4.1)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..contract import Floats, Ints

_ROUNDING = 1e-12


class Timeline:
    """Free, or held, GPUs from each of ``times`` to the next, in seconds from now; the last number lasts for ever."""

    def __init__(self, times: Floats, free: Ints) -> None:
        self.times, self.free = times, free

    @classmethod
    def of(cls, free: int, releases: list[tuple[float, int]]) -> Timeline:
        """``free`` GPUs now, and more at each of ``releases``: (seconds from now, GPUs)."""
        times = np.array(sorted({0.0, *(at for at, _ in releases if 0.0 < at < np.inf)}))
        counts = np.full(len(times), free, dtype=np.int64)
        for at, gpus in releases:
            counts[times >= at] += gpus
        return cls(times, counts)

    def after(self, seconds: float) -> Timeline:
        """The same, ``seconds`` later."""
        part = int(np.searchsorted(self.times, seconds, side="right")) - 1
        return Timeline(np.append(0.0, self.times[part + 1 :] - seconds), self.free[part:])

    def brief(self) -> Timeline:
        """The same without times at which nothing changes."""
        changes = np.append(True, np.diff(self.free) != 0)
        return Timeline(self.times[changes], self.free[changes])

    def at(self, times: Floats) -> Ints:
        """The number at each of ``times``."""
        return self.free[np.searchsorted(self.times, times, side="right") - 1]

    def gpu_time(self, until: Floats) -> Floats:
        """Free GPU-seconds from now to each of ``until``."""
        before = np.concatenate([[0.0], np.cumsum(np.diff(self.times) * self.free[:-1])])
        part = np.maximum(np.searchsorted(self.times, until, side="right") - 1, 0)
        return before[part] + np.maximum(until - self.times[part], 0.0) * self.free[part]


class Filling(NamedTuple):
    """The GPUs planned for a job."""

    share: int  #: the most GPUs at any time: its minimum satisfactory share
    now: int  #: GPUs from now on, 0: it starts later
    end: float  #: seconds from now until it is done
    left: Timeline  #: the GPUs that it leaves
    held: Timeline  #: the GPUs that it has


def fill(timeline: Timeline, gpus: Ints, speed: Floats, work: float, deadline: float, slot: float = 0.0) -> Filling | None:
    """The fewest GPUs with which ``work`` (more than 0) is done within ``deadline`` seconds; None: no number suffices.

    ``gpus`` and ``speed`` are the job's curve, both ascending. For each number in turn the job takes the free GPUs up to that number
    at every time from now on (Algorithm 1); the first number that is in time is its minimum satisfactory share. It holds its GPUs
    until the end of the ``slot`` (seconds) in which it ends; no other job gets them sooner.
    """
    fitting = np.searchsorted(gpus, timeline.free, side="right") - 1  # the largest number that is free, -1: none
    for level in range(len(gpus)):
        filling = _filling(timeline, gpus, speed, np.minimum(fitting, level), work, deadline, slot)
        if filling is not None:
            return filling._replace(share=int(gpus[level]))
    return None


def follow(
    timeline: Timeline, planned: Timeline, gpus: Ints, speed: Floats, work: float, deadline: float, slot: float = 0.0
) -> Filling | None:
    """Like `fill`, with the numbers of GPUs ``planned`` before; None: they are not free, or no longer suffice."""
    times = np.union1d(timeline.times, planned.times)
    numbers = planned.at(times)
    option = np.searchsorted(gpus, numbers, side="right") - 1
    option[gpus[option] != numbers] = -1  # it cannot run on so many now
    filling = _filling(Timeline(times, timeline.at(times)), gpus, speed, option, work, deadline, slot)
    return None if filling is None or (filling.left.free < 0).any() else filling


def _filling(timeline: Timeline, gpus: Ints, speed: Floats, option: Ints, work: float, deadline: float, slot: float) -> Filling | None:
    """The result of taking ``gpus[option]`` in each part of the timeline (-1: none); None: the work is not done in time."""
    times = timeline.times
    inside = np.clip(np.append(times[1:], np.inf), None, deadline) - np.minimum(times, deadline)
    pace = np.where(option >= 0, speed[option], 0.0)
    done = np.cumsum(pace * inside)
    part = int(np.searchsorted(done, work * (1 - _ROUNDING)))  # of the timeline, in which it ends
    if part == len(done):
        return None
    end = float(times[part] + (work - (done[part - 1] if part else 0.0)) / pace[part])
    taken = np.where(option >= 0, gpus[option], 0)
    left, held = _divided(timeline, taken, slot_end(end, slot))
    return Filling(int(held.free.max()), int(taken[0]), end, left, held)


def slot_end(moment: float, slot: float) -> float:
    """The end of the slot that ``moment`` falls in, counted from now."""
    return math.ceil(moment / slot - _ROUNDING) * slot if slot and math.isfinite(moment) else moment


def _divided(timeline: Timeline, taken: Ints, end: float) -> tuple[Timeline, Timeline]:
    """The rest of a timeline if ``taken`` GPUs of each part are held until ``end``, and the held GPUs."""
    times, free = timeline.times, timeline.free
    if end not in times:
        at = int(np.searchsorted(times, end))
        times = np.concatenate((times[:at], [end], times[at:]))
        free = np.concatenate((free[:at], free[at - 1 : at], free[at:]))
        taken = np.concatenate((taken[:at], taken[at - 1 : at], taken[at:]))
    held = np.where(times < end, taken, 0)
    return Timeline(times, free - held), Timeline(times, held)

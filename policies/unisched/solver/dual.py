"""The Lagrangian dual of the coupling rows: prices of GPUs that nearly tell every job what to take, and a certified bound.

With multipliers m >= 0 on the rows each job takes its best column by itself, all copies the same, so

    D(m) = room . m + sum over jobs of copies * max(0, max over its columns of value - use . m)

is at least the objective of every choice within the rows, for any m. It is convex; a deflected subgradient method
(Camerini, Fratta and Maffioli 1975) brings it down, its steps aimed at a level below the best value so far that comes
nearer when it cannot be reached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...arrays import Floats, Ints
from .choices import Columns

_STALLED_ITERATIONS = 6  #: iterations without progress before the level comes nearer
_DEFLECTION = 1.5
_CLOSE = 2e-4  #: a level so near, relative to the bound, ends the search


@dataclass(frozen=True, slots=True)
class Dual:
    multipliers: Floats  #: (rows,)
    bound: float
    iterations: int


def evaluate(columns: Columns, multipliers: Floats) -> tuple[float, Floats, Ints]:
    """D, the reduced values (c,), and the best column of each job that takes one, once for all copies."""
    reduced = columns.prices(multipliers)
    best = np.maximum.reduceat(reduced, columns.start[:-1]) if len(columns) else np.zeros(0)
    at_best = np.flatnonzero(reduced == np.repeat(best, np.diff(columns.start)))
    owner = columns.job[at_best]
    chosen = at_best[np.append(True, owner[1:] != owner[:-1])] if len(at_best) else at_best
    chosen = chosen[reduced[chosen] > 0]
    return float(columns.room @ multipliers) + float(reduced[chosen] @ columns.copies[chosen]), reduced, chosen


def descend(columns: Columns, start: Floats, level: float, iterations: int, low_enough: float, over: Callable[[], bool]) -> Dual:
    """Lower the bound from ``start`` until it is ``low_enough``, ``iterations`` are done or time is ``over``.

    ``level``: relative aim of the first steps.
    """
    scale = 1.0 / np.maximum(columns.room, 1.0)  # rows in shares of their capacity: one step size fits all
    room = columns.room * scale
    at, bound, multipliers = start / scale, np.inf, start
    direction, stalled, count = np.zeros_like(at), 0, 0
    for count in range(1, iterations + 1):  # noqa: B007 - reported
        value, _, chosen = evaluate(columns, at * scale)
        slope = room - columns.total(chosen, columns.copies[chosen]) * scale
        if value < bound * (1 - 1e-9):
            stalled = 0 if value < bound * (1 - 0.1 * level) else stalled + 1
            bound, multipliers = value, at * scale
        else:
            stalled += 1
        if bound <= low_enough or over():
            break
        if stalled >= _STALLED_ITERATIONS:
            level, stalled, direction = level / 2, 0, np.zeros_like(at)
            if level < _CLOSE:
                break
            at = multipliers / scale
            value, _, chosen = evaluate(columns, multipliers)
            slope = room - columns.total(chosen, columns.copies[chosen]) * scale
        slope = np.where((at <= 0) & (slope > 0), 0.0, slope)
        length, along = float(direction @ direction), float(slope @ direction)
        direction = slope + (max(0.0, -_DEFLECTION * along / length) * direction if length > 0 else 0.0)
        length = float(direction @ direction)
        if length <= 0:
            break
        at = np.maximum(0.0, at - (value - bound * (1 - level)) / length * direction)
    return Dual(multipliers, bound, count)

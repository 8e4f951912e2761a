"""The plan of a swapped step before it runs: its parts, a time line of load, compute and swap-out, its time and its peak memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...engine.errors import UsageError
from .partition import MeasuredChain, Part, Parts, best_cuts, choose_accumulate, cost_of, most_accumulate, smallest_cap

Stream = Literal["load", "compute", "out"]
Direction = Literal["forward", "backward", "both"]


@dataclass(frozen=True, slots=True)
class Busy:
    """A stream is busy with a part from ``begin`` to ``end``, in seconds of the step."""

    stream: Stream
    direction: Direction
    part: int
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """Calls [start, stop) of units, and the names of the first and last one. Times are seconds of one micro-batch. A pause has no calls."""

    start: int
    stop: int
    first: str
    last: str
    weights: int
    gradients: int
    kept: int  #: of each micro-batch at its end, beside what was kept before
    forward: float
    backward: float
    load: float
    out: float


@dataclass(frozen=True, slots=True)
class SwapPlan:
    """``cuts``: the calls of units before which the model is cut."""

    cap: int
    accumulate: int
    cuts: tuple[int, ...]
    parts: tuple[PlannedPart, ...]
    stays: str
    timeline: tuple[Busy, ...]
    seconds: float
    ideal: float  #: seconds of computing, computing again included
    peak: int
    whole: int  #: peak of a plan of one part, which shows what swapping saves


def plan_step(measured: MeasuredChain, cap: int, accumulate: int | None, least: int = 1) -> SwapPlan:
    """The best partition for a cap of so many bytes; ``accumulate`` None: it is chosen. UsageError: nothing fits, and which cap would."""
    if least > 1 and len(measured.pieces) == 1:
        raise UsageError(
            "memory.swap: force: the model has no place at which it can be cut; name fewer modules as whole, or write swap: off"
        )
    count = accumulate if accumulate is not None else choose_accumulate(measured, cap)
    if count is None or (cuts := best_cuts(measured, cap, count, least)) is None:
        raise UsageError(_nothing_fits(measured, cap, count or 1))
    return planned(measured, cap, count, cuts)


def planned(measured: MeasuredChain, cap: int, accumulate: int, cuts: Sequence[int]) -> SwapPlan:
    """The plan of a given partition, ``cuts`` between pieces."""
    parts = Parts(measured)
    chosen = [parts(start, stop) for start, stop in itertools.pairwise([0, *cuts, parts.count])]
    cost = cost_of(measured, cuts, accumulate)
    timeline = tuple(schedule(chosen, accumulate))
    return SwapPlan(
        cap=cap,
        accumulate=accumulate,
        cuts=tuple(measured.pieces[cut].start for cut in cuts),
        parts=tuple(_shown(measured, part) for part in chosen),
        stays="everything" if len(chosen) == 1 else f"part {len(chosen)}, from forward to backward",
        timeline=timeline,
        seconds=max(busy.end for busy in timeline),
        ideal=cost.computing,
        peak=cost.peak,
        whole=cost_of(measured, [], accumulate).peak,
    )


def schedule(parts: Sequence[Part], accumulate: int) -> list[Busy]:
    """Time line of the executor's streams (`SwapExecutor.run`), from the times of the parts.

    A part is loaded while the one before it computes. On the way back a part's gradients leave while the next part computes the first half
    of its micro-batches; then the part after that is loaded.
    """
    line: list[Busy] = []
    last = len(parts) - 1
    now = 0.0  #: of the computing stream
    loaded = [0.0] * len(parts)  #: when each load is done
    free = 0.0

    def load(k: int) -> None:
        nonlocal free
        begin = max(free, now)
        free = loaded[k] = begin + parts[k].load
        line.append(Busy("load", "backward" if back else "forward", k, begin, free))

    back = False
    load(0)
    for k in range(last):
        load(k + 1)
        begin = max(now, loaded[k])
        now = begin + accumulate * parts[k].forward
        line.append(Busy("compute", "forward", k, begin, now))
    back = True
    gone = 0.0
    for k in range(last, -1, -1):
        if not parts[k].trains:
            break
        direction: Direction = "both" if k == last else "backward"
        now = max(now, loaded[k])
        first, second = parts[k].back(accumulate)
        begin, now = now, now + first
        if gone > now or not first:  # it waits
            line += [Busy("compute", direction, k, begin, now)] if first else []
            begin = now = max(now, gone)
        if k and parts[k - 1].trains:
            load(k - 1)
        now += second
        line.append(Busy("compute", direction, k, begin, now))
        gone = now + parts[k].out
        line.append(Busy("out", "backward", k, now, gone))
    return line


def _shown(measured: MeasuredChain, part: Part) -> PlannedPart:
    pieces = measured.pieces[part.start : part.stop]
    start, stop = (pieces[0].start, pieces[-1].stop) if pieces else (measured.pieces[part.start].start,) * 2
    return PlannedPart(
        start=start, stop=stop, first=pieces[0].name if pieces else "(pause)", last=pieces[-1].name if pieces else "(pause)",
        weights=part.weights, gradients=part.gradients, kept=part.made,
        forward=part.forward, backward=part.backward, load=part.load, out=part.out,
    )  # fmt: skip


def _nothing_fits(measured: MeasuredChain, cap: int, accumulate: int) -> str:
    least = smallest_cap(measured, accumulate)
    line = f"memory.cap: no partition of the model fits into {_size(cap)} with accumulate: {accumulate}"
    line += f"; the smallest cap that would is {_size(least)}"
    fewer = most_accumulate(measured, cap)
    if fewer is not None and fewer < accumulate:
        return f"{line}, or write accumulate: {fewer}, with which it fits"
    if accumulate > 1:
        return f"{line}; accumulate: 1 needs {_size(smallest_cap(measured, 1))}"
    return line


def _size(count: int) -> str:
    """The size as a job's file takes it, rounded up."""
    return f"{-(-count // 1024)}KiB"

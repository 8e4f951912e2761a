"""Other schedules of the same parts, as plans, and profiles at another bandwidth or rate."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from stoker.runners.device.metered import BANDWIDTH
from stoker.runners.swap.partition import MeasuredChain, Part, Parts, Piece


@dataclass(frozen=True, slots=True)
class Visit:
    """A part on the device once, for one micro-batch: seconds."""

    load: float
    compute: float
    out: float = 0.0
    waits: bool = False  #: for what it carries out


@dataclass(frozen=True, slots=True)
class Schedule:
    seconds: float
    moved: int  #: bytes, in and out


def parts_of(profile: MeasuredChain, cuts: Iterable[int]) -> list[Part]:
    """The parts with these cuts between nodes."""
    parts, wanted = Parts(profile), set(cuts)
    bounds = [0, *(k for k, piece in enumerate(profile.pieces) if piece.start in wanted and k), parts.count]
    return [parts(start, stop) for start, stop in itertools.pairwise(bounds)]


def fsdp2(parts: Sequence[Part], accumulate: int) -> Schedule:
    """All activations are kept, so nothing is computed again, and the last part stays between forward and backward."""
    visits, last = [], len(parts) - 1
    for c in range(accumulate):
        visits += [Visit(part.load, part.forward) for part in parts]
        for k in range(last, -1, -1):
            part = parts[k]
            visits.append(Visit(0.0 if k == last else part.load, part.backward - part.forward, part.out, waits=c > 0))
    moved = accumulate * (sum(2 * part.weights + part.gradients for part in parts) - parts[-1].weights)
    return Schedule(seconds(visits), moved)


def micro_batch_major(parts: Sequence[Part], accumulate: int) -> Schedule:
    """Each part is loaded for its forward, for computing it again, and for its backward, of every micro-batch."""
    visits = []
    for _ in range(accumulate):
        visits += [Visit(part.load, part.forward) for part in parts]
        for part in reversed(parts):
            visits += [Visit(part.load, part.forward), Visit(part.load, part.backward - part.forward, part.out)]
    return Schedule(seconds(visits), accumulate * sum(3 * part.weights + part.gradients for part in parts))


def seconds(visits: Sequence[Visit]) -> float:
    """With one part loaded ahead, and gradients that leave beside what computes next."""
    ends, loaded, gone = [0.0, 0.0], 0.0, 0.0
    for visit in visits:
        loaded = max(loaded, ends[-2]) + visit.load  # where the part before the last one has been
        end = max(ends[-1], loaded) + visit.compute
        if visit.out:
            gone = max(gone, end) + visit.out
            end = gone if visit.waits else end
        ends.append(end)
    return max(ends[-1], gone)


# ---- profiles ----


def _latency(taken: float, size: int) -> float:
    return max(0.0, taken - size / BANDWIDTH)


def _sizes(piece: Piece) -> tuple[int, int]:
    own = {weight.master: weight.size for weight in piece.weights}
    return sum(own.values()), sum(weight.size for weight in piece.weights if weight.trained)


def at_bandwidth(measured: MeasuredChain, bandwidth: float) -> MeasuredChain:
    """A profile that was made at `BANDWIDTH`, with the loads of another one."""
    pieces = []
    for piece in measured.pieces:
        loads, leaves = _sizes(piece)
        load, out = _latency(piece.load, loads) + loads / bandwidth, _latency(piece.out, leaves) + leaves / bandwidth
        pieces.append(replace(piece, load=load, out=out))
    return replace(measured, pieces=tuple(pieces))


def bandwidth_for(measured: MeasuredChain, load: float) -> float | None:
    """At which all loads take so many seconds; None: their latencies take longer."""
    sizes = [_sizes(piece)[0] for piece in measured.pieces]
    left = load - sum(_latency(piece.load, size) for piece, size in zip(measured.pieces, sizes, strict=True))
    return sum(sizes) / left if left > 0 else None


def at_rate(measured: MeasuredChain, times: float) -> MeasuredChain:
    """The profile of a device that computes so many times as fast."""
    pieces = tuple(replace(piece, forward=piece.forward / times, backward=piece.backward / times) for piece in measured.pieces)
    return replace(measured, pieces=pieces, part_forward=measured.part_forward / times, part_backward=measured.part_backward / times)

"""Where to cut a chain: exact dynamic programming in place of the paper's exhaustive search (004 ch. 3.3.4, fig. 3-13, Algorithm 1).

A *piece* lies between two neighbouring legal cuts. A *part* is some pieces in a row, which are loaded and computed together. The next
part loads while a part computes, so the *sum* of both must fit (Algorithm 1 bounds each by itself), with gradients, workspace and the
values that every micro-batch keeps at each cut. Time and memory of a part depend on the part before it, and on the bytes kept at the cuts
so far. So a state is the last two cuts, with its labels (seconds, bytes kept); a label goes where another one is as good in both. A cut
that stands twice is a *pause*, a part without pieces: nothing loads beside the part before it, and nothing leaves beside the part after it.

The printed objective, the sum of all computing times, is the same for every partition. So a step's time is minimised: the seconds that it
waits for copies, and those of computing again (all parts but the last, which goes forward and back in one). Of equal partitions, the one
with the smallest cuts is taken.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

MOST_CUTS = 72  #: the search is cubic in the cuts, so of more than these the least useful are left out
ACCUMULATE = (1, 2, 4, 8, 16, 32, 64)  #: micro-batches of a step that `choose_accumulate` tries
GOOD_RATIO = 1.05  #: step time over computing time that is good enough


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of a piece, under one of its names."""

    master: int  #: equal for names of one tensor (tied weights)
    size: int  #: bytes
    trained: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The nodes of a chain between two legal cuts, as measured with one micro-batch: seconds, and bytes beside weights and gradients."""

    name: str
    start: int  #: its nodes in the chain
    stop: int
    forward: float = 0.0
    backward: float = 0.0  #: computing it again included
    load: float = 0.0
    out: float = 0.0  #: of its gradients to the host
    weights: tuple[Weight, ...] = ()
    forward_work: int = 0  #: most above what was there when its forward began
    statistics: int = 0  #: kept from its forward to its backward beside the values that cross its end
    again_work: int = 0  #: the same as forward_work while it is computed again
    kept: int = 0  #: for its backward, when it has been computed again
    native: int = 0  #: the same in the last part, which keeps all of its calls at once
    backward_work: int = 0  #: most above that in its backward, in the first micro-batch, which makes the gradients
    later_work: int = 0  #: the same in the others, which add to them


@dataclass(frozen=True, slots=True)
class Crossing:
    """A value that is made in one piece and last used in another; ``last``: the count of pieces if it is kept throughout."""

    birth: int
    last: int
    size: int  #: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredChain:
    """A chain as it was profiled on a device."""

    pieces: tuple[Piece, ...]
    values: tuple[Crossing, ...] = ()  #: by storage: views of one tensor are one
    gradients: tuple[Crossing, ...] = ()  #: by value
    inputs: int = 0  #: bytes of a micro-batch
    part_forward: float = 0.0  #: seconds that each part adds to the forward of a micro-batch, whatever is in it
    part_backward: float = 0.0
    there: int = 0  #: bytes that every plan uses: weights of the glue; on a GPU also batches and the memory of libraries
    bottom: int | None = None  #: the first piece that is gone through backward; by default the first one with trained weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The pieces [start, stop) together; as `Piece`, with the overhead of a part."""

    start: int
    stop: int
    trains: bool  #: it is gone through backward
    forward: float
    backward: float
    head: float | None  #: of it the first half, where a single micro-batch goes back through it in two
    load: float
    out: float
    weights: int  #: bytes that are loaded
    gradients: int
    forward_work: int
    backward_work: int  #: in a step of one micro-batch
    later_work: int  #: in a step of several
    staying: int  #: bytes that it has made and keeps until it goes back, of a micro-batch that waits for its turn to do so
    made: int  #: bytes that cross its end and not its start, and statistics: kept of each micro-batch
    crossing: int  #: bytes that cross its end, and inputs: all that is kept of a micro-batch where nothing goes back
    arriving: int  #: bytes of the gradients of what crosses its end
    leaving: int  #: of its start

    def kept_after(self, kept: int) -> int:
        """Bytes kept of a micro-batch after this part's forward; ``kept``: before it. Where nothing goes back, used values are freed."""
        return kept + self.made if self.trains else self.crossing

    def back(self, accumulate: int) -> tuple[float, float]:
        """Seconds of the way back through it, of a whole step: until the gradients of the part behind it must be gone, and from then on."""
        first = (self.head or 0.0) if accumulate == 1 else room_after(accumulate) * self.backward
        return first, accumulate * self.backward - first

    def work(self, accumulate: int) -> int:
        """Bytes that its backward needs in a step of so many micro-batches."""
        return self.backward_work if accumulate == 1 else self.later_work


class Parts:
    """All parts of a measured chain, each made when first asked for; ``cuts``: positions between pieces, with both ends."""

    def __init__(self, measured: MeasuredChain) -> None:
        self.measured = measured
        self.count = len(measured.pieces)
        self._made: dict[tuple[int, int], Part] = {}
        self._alive: dict[int, list[int]] = {}

    @cached_property
    def first_trained(self) -> int:
        if self.measured.bottom is not None:
            return self.measured.bottom
        trained = (any(weight.trained for weight in piece.weights) for piece in self.measured.pieces)
        return next((index for index, trains in enumerate(trained) if trains), 0)

    @cached_property
    def gradients_at(self) -> list[int]:
        """Bytes of gradients that come back over each cut."""
        return [sum(c.size for c in self.measured.gradients if c.birth < cut <= c.last) for cut in range(self.count + 1)]

    def alive(self, start: int, cut: int) -> int:
        """Bytes that were made from piece ``start`` on and cross ``cut``."""
        if start not in self._alive:
            ours = [c for c in self.measured.values if c.birth >= start]
            self._alive[start] = [sum(c.size for c in ours if c.birth < at <= c.last) for at in range(self.count + 1)]
        return self._alive[start][cut]

    def __call__(self, start: int, stop: int) -> Part:
        key = start, stop
        if key not in self._made:
            self._made[key] = self._make(start, stop)
        return self._made[key]

    def _make(self, start: int, stop: int) -> Part:
        pieces = self.measured.pieces[start:stop]
        weights, load = self._loaded(pieces)
        trains, pause = stop > self.first_trained, start == stop
        statistics = sum(piece.statistics for piece in pieces)
        first, later = self._backward_work(start, stop, statistics)
        return Part(
            start=start,
            stop=stop,
            trains=trains,
            forward=0.0 if pause else sum(piece.forward for piece in pieces) + self.measured.part_forward,
            backward=self._backward(start, stop) if trains and not pause else 0.0,
            head=self._head(pieces) if trains and stop < self.count else None,
            load=load,
            out=sum(piece.out for piece in pieces),
            weights=weights,
            gradients=sum(weight.size for piece in pieces for weight in piece.weights if weight.trained),
            forward_work=statistics
            + max((self.alive(start, p) + self.measured.pieces[p].forward_work for p in range(start, stop)), default=0),
            backward_work=first,
            later_work=later,
            staying=self._staying(start, stop) + statistics if stop < self.count else 0,
            made=self.alive(start, stop) + statistics,
            crossing=self.alive(0, stop) + self.measured.inputs,
            arriving=self.gradients_at[stop],
            leaving=self.gradients_at[start],
        )

    def _staying(self, start: int, stop: int) -> int:
        return sum(c.size for c in self.measured.values if start <= c.birth < stop and c.last >= self.count)

    def _backward(self, start: int, stop: int) -> float:
        """Seconds. Pieces before the first trained one have no backward, but in the last part their forward counts: it does both in one."""
        seconds = sum(piece.backward for piece in self.measured.pieces[start:stop]) + self.measured.part_backward
        frozen = self.measured.pieces[start : self.first_trained] if stop == self.count else ()
        return seconds + sum(piece.forward for piece in frozen)

    def _head(self, pieces: Sequence[Piece]) -> float | None:
        """Seconds: all is computed again, then the pieces behind the middle go back."""
        middle = halfway(pieces[0].start, pieces[-1].stop) if pieces else None
        if middle is None:
            return None
        return sum(min(piece.forward, piece.backward) if piece.start < middle else piece.backward for piece in pieces)

    @staticmethod
    def _loaded(pieces: Sequence[Piece]) -> tuple[int, float]:
        """Bytes and seconds; a tensor that several pieces use is loaded once."""
        seen: set[int] = set()
        size, seconds = 0, 0.0
        for piece in pieces:
            own = {weight.master: weight.size for weight in piece.weights}
            fresh = sum(own[master] for master in own.keys() - seen)
            whole = sum(own.values())
            size += fresh
            seconds += piece.load * (fresh / whole if whole else 1.0)
            seen |= own.keys()
        return size, seconds

    def _backward_work(self, start: int, stop: int, statistics: int) -> tuple[int, int]:
        """Most that one micro-batch needs on its way back through a part; in a step of one, and of several.

        First all pieces are computed again, and keep what their backward needs. Then they go back one after the other, the last first,
        beside the part's own values, their gradients, and the gradients of values that pass by.
        """
        kept = again = first = later = 0
        for p in range(start, stop):
            piece = self.measured.pieces[p]
            again = max(again, kept + piece.again_work)
            kept += max(piece.kept, piece.native) if stop == self.count else piece.kept
            passing = self.gradients_at[p + 1] if p < stop - 1 else 0
            first = max(first, kept + passing + piece.backward_work)
            later = max(later, kept + passing + piece.later_work)
        always = self.alive(start, stop) + self.gradients_at[stop] + statistics
        return always + max(again, first), always + max(again, first, later)


# ---- the cost of a partition ----


def room_after(accumulate: int) -> int:
    """Micro-batches that a part goes back before the gradients of the part behind it must be gone. The others hide the next load."""
    return accumulate // 2


def halfway(start: int, stop: int) -> int | None:
    """The place in a part of several calls at which a single micro-batch has gone back through half of them. The last part has none."""
    return (start + stop) // 2 if stop - start > 1 else None


def exposed(before: Part | None, part: Part, accumulate: int) -> float:
    """Seconds that a step waits for copies because of a part (fig. 3-12).

    Forward: its load, less the time in which the part before computes. Backward there are two waits, of which the longer one counts: its
    gradients leave, less the time in which the part before goes back with the first half of its micro-batches (a single one through half
    of its calls); and the part before loads, less the time in which this part goes back with the second half (see `SwapExecutor.run`).
    """
    if before is None:
        return part.load + (part.out if part.trains else 0.0)
    seconds = max(0.0, part.load - accumulate * before.forward)
    if before.trains:
        seconds += max(0.0, before.load - part.back(accumulate)[1], part.out - before.back(accumulate)[0])
    elif part.trains:
        seconds += part.out
    return seconds


def computing(part: Part, accumulate: int, last: bool) -> float:
    """Seconds of a step in which a part computes. The last part goes forward and back in one, so that it is computed only once."""
    return accumulate * ((0.0 if last else part.forward) + part.backward)


def needed(before: Part | None, part: Part, kept: int, accumulate: int) -> int:
    """Most bytes in use while ``part`` is the newest one, and the part before is on the device too.

    ``kept``: of one micro-batch, from before the part before. The sums are w_k + w_k+1 + work + kept forward; backward
    w_k-1 + w_k + g_k + work + kept, and w_k + g_k + g_k+1 + work + kept while the gradients of the next part are leaving, where there
    are halves.
    """
    others = accumulate - 1
    here = kept if before is None else before.kept_after(kept)
    most = 0
    if part.trains:
        gone_back = part.gradients + part.work(accumulate) + accumulate * here + others * (part.staying + max(part.arriving, part.leaving))
        most = part.weights + (before.weights if before is not None else 0) + gone_back
    if before is not None:
        most = max(most, before.weights + part.weights + before.forward_work + accumulate * kept + others * before.made)
        if before.trains and (before.head is not None or accumulate > 1):
            gone_back = before.gradients + before.work(accumulate) + accumulate * kept
            gone_back += others * (before.staying + max(before.arriving, before.leaving))
            most = max(most, before.weights + part.gradients + gone_back)
    return most


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a partition."""

    computing: float  #: seconds of a step, computing again included: the step's time if all copies were hidden
    exposed: float  #: seconds of a step that only wait for copies
    kept: int  #: bytes that cross the cuts, of one micro-batch, with its inputs
    peak: int  #: bytes

    @property
    def seconds(self) -> float:
        return self.computing + self.exposed

    @property
    def ratio(self) -> float:
        """Seconds of a step over those that it computes."""
        return self.seconds / self.computing if self.computing else 1.0


def cost_of(measured: MeasuredChain, cuts: Sequence[int], accumulate: int) -> Cost:
    """The cost of the partition with these cuts between pieces."""
    parts = Parts(measured)
    before: Part | None = None
    computes, waits, kept, peak = 0.0, 0.0, measured.inputs, 0
    for start, stop in itertools.pairwise([0, *cuts, parts.count]):
        part = parts(start, stop)
        computes += computing(part, accumulate, stop == parts.count)
        waits += exposed(before, part, accumulate)
        peak = max(peak, needed(before, part, kept, accumulate))
        kept = before.kept_after(kept) if before is not None else kept
        before = part
    return Cost(computes, waits, kept, peak + measured.there)


# ---- search ----


@dataclass(slots=True)
class _Label:
    """A way to the last two cuts: its cost, and the bytes that the parts before the last one keep of a micro-batch."""

    cost: float
    kept: int
    part: Part
    before: _Label | None

    def cuts(self) -> list[int]:
        found: list[int] = []
        label: _Label | None = self
        while label is not None and label.part.start:
            found.append(label.part.start)
            label = label.before
        return found[::-1]


def best_cuts(measured: MeasuredChain, cap: int, accumulate: int, least: int = 1) -> list[int] | None:
    """Cuts between pieces with the shortest step, of equal ones those that the fewest bytes cross. None: nothing fits into ``cap``.

    ``least``: the fewest parts, 1 or 2.
    """
    count = len(measured.pieces)

    def step(before: _Label | None, part: Part) -> float | None:
        whole, kept, cost = (before.part, before.kept, before.cost) if before is not None else (None, measured.inputs, 0.0)
        if least > 1 and part.start == 0 and part.stop == count:
            return None
        if needed(whole, part, kept, accumulate) + measured.there > cap:
            return None
        return cost + exposed(whole, part, accumulate) + computing(part, accumulate, part.stop == count)

    found = _search(measured, step)
    return found.cuts() if found is not None else None


def smallest_cap(measured: MeasuredChain, accumulate: int) -> int:
    """The least bytes into which some partition fits."""

    def step(before: _Label | None, part: Part) -> float:
        whole, kept, cost = (before.part, before.kept, before.cost) if before is not None else (None, measured.inputs, 0.0)
        return max(needed(whole, part, kept, accumulate), cost)

    found = _search(measured, step)
    assert found is not None
    return int(found.cost) + measured.there


def _search(measured: MeasuredChain, step: Callable[[_Label | None, Part], float | None]) -> _Label | None:
    """The cheapest way to the end; ``step``: the cost of a way with one more part, None where it is not allowed."""
    parts = Parts(measured)
    cuts = allowed_cuts(measured)

    def reached(ways: Sequence[_Label | None], part: Part) -> Iterator[_Label]:
        for before in ways:
            if (cost := step(before, part)) is not None:
                yield _Label(cost, measured.inputs if before is None else before.part.kept_after(before.kept), part, before)

    states: dict[int, list[_Label]] = {}  #: by the end of the last part: labels of all parts that end there
    for stop in [*cuts, parts.count]:
        states[stop] = []
        for start in [0, *(cut for cut in cuts if cut < stop)]:
            states[stop] += _front(reached(states[start] if start else [None], parts(start, stop)))
        if stop < parts.count:
            states[stop] += list(_front(reached(states[stop], parts(stop, stop))))
    return min(states[parts.count], key=lambda label: (label.cost, label.kept), default=None)


def _front(labels: Iterable[_Label]) -> Iterator[_Label]:
    """The labels to which no other one is equal or better in both cost and bytes kept."""
    least: int | None = None
    for label in sorted(labels, key=lambda label: (label.cost, label.kept)):
        if least is None or label.kept < least:
            least = label.kept
            yield label


def allowed_cuts(measured: MeasuredChain, most: int = MOST_CUTS) -> list[int]:
    """All cuts; where there are more than ``most``, those that `thinned` leaves."""
    pieces = measured.pieces
    loads, computed = sum(p.load for p in pieces) or 1.0, sum(p.forward + p.backward for p in pieces) or 1.0
    return thinned([p.load / loads + (p.forward + p.backward) / computed for p in pieces], most)


def thinned(sizes: Sequence[float], most: int, crossing: Sequence[float] | None = None) -> list[int]:
    """At most ``most`` cuts between pieces of these sizes: the two smallest neighbours are joined until so few are left.

    ``crossing``: of each cut the weight of what crosses it; a cut with twice the weight goes as if its neighbours were half as large.
    """
    cuts = range(1, len(sizes))
    before, after = {cut: cut - 1 for cut in cuts}, {cut: cut + 1 for cut in cuts}
    sums = dict(enumerate(sizes))  # of what begins at each cut

    def together(cut: int) -> float:
        return (sums[before[cut]] + sums[cut]) / (crossing[cut - 1] if crossing is not None else 1.0)

    waiting = [(together(cut), cut) for cut in cuts]
    heapq.heapify(waiting)
    while len(after) > most:
        size, cut = heapq.heappop(waiting)
        if cut not in after or size < together(cut):
            if cut in after:
                heapq.heappush(waiting, (together(cut), cut))
            continue
        left, right = before.pop(cut), after.pop(cut)
        sums[left] += sums.pop(cut)
        if right in before:
            before[right] = left
        if left in after:
            after[left] = right
    return sorted(after)


def choose_accumulate(measured: MeasuredChain, cap: int) -> int | None:
    """The fewest micro-batches with a step of at most `GOOD_RATIO` of its computing time, else those that come nearest. None: none fit."""
    best: tuple[float, int] | None = None
    for accumulate in ACCUMULATE:
        cuts = best_cuts(measured, cap, accumulate)
        if cuts is None:
            break  # more would keep more
        ratio = cost_of(measured, cuts, accumulate).ratio
        if ratio <= GOOD_RATIO:
            return accumulate
        if best is None or ratio < best[0]:
            best = ratio, accumulate
    return best[1] if best is not None else None


def most_accumulate(measured: MeasuredChain, cap: int) -> int | None:
    """The most of `ACCUMULATE` that fit into ``cap``; None: none."""
    return max((count for count in ACCUMULATE if smallest_cap(measured, count) <= cap), default=None)

"""Profile of a model, piece by piece (004 figs. 3-3 to 3-11): forward, backward and load time, parameters, activations, workspace.

The executor itself is measured, cut at every legal place, so that no more than two pieces are on the device at once (ch. 3.3.4: even the
largest model can be profiled on a single GPU). A second measurement with fewer cuts gives the overhead of a part, which does not depend on
its content. Weights, statistics and generators are left as they were.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch.utils._pytree import tree_iter

from ..device.device import CapExceeded, Device
from ..train.batches import Interrupted
from ..worker import script
from .lifetimes import crossings
from .micro_batch import MicroBatch
from .model_units import Units
from .module_state import untouched
from .partition import MOST_CUTS, Crossing, MeasuredChain, Piece, Weight, cost_of, thinned
from .swap_executor import SwapExecutor

ROUNDS = 10  #: as in 004 ch. 3.3.2
MEASURING_SECONDS = 10.0  #: seconds of measuring after which no further round begins
LEAST_ROUNDS = 3  #: rounds, after one to warm up
_MICRO_BATCHES = 2  #: the first makes gradients, the second adds to them
_TELL_EVERY = 5.0  #: seconds between lines about the progress
_COARSE_PIECES = 8  #: pieces of a part in the second measurement

Begin = Callable[[Device], MicroBatch]  #: a new micro-batch, whose inputs are on the device


def measure(
    units: Units, begin: Begin, device: Device, told: Callable[[str], None] = lambda line: None, rounds: int = ROUNDS
) -> MeasuredChain:
    """Profile the model in pieces. ``told`` is told of the progress; ``rounds``: at most, after one to warm up."""
    with untouched(units.model), device.lifted() as roomy:
        shape = Shape(units, begin, roomy)
        told(f"measuring the model, {len(units)} calls, in {len(shape.cuts) + 1} pieces")
        fine = _profiled(units, shape.cuts, begin, roomy, rounds, told)
        told(f"measured {len(shape.cuts) + 1} pieces in {fine.rounds} rounds")
        numbers = {id(master): number for number, master in enumerate(units.masters.values())}
        measured = MeasuredChain(
            pieces=tuple(_piece(fine, k, numbers, shape) for k in range(len(fine.parts))),
            values=shape.values, gradients=shape.gradients, inputs=fine.inputs + fine.loss, bottom=fine.bottom,
            there=_stays(units, device) + roomy.memory()[0],
        )  # fmt: skip
        part_forward = part_backward = 0.0
        with suppress(CapExceeded):
            if (cuts := _coarse(measured, device)) is not None:
                coarse = _profiled(units, [shape.cuts[cut - 1] for cut in cuts], begin, roomy, rounds, told)
                told(f"measured {len(coarse.parts)} larger parts beside them" if cuts else "measured it in one part beside them")
                part_forward, part_backward = _overheads(fine, coarse)
    return _of_pieces(measured, part_forward, part_backward, bottom=fine.bottom)


def _stays(units: Units, device: Device) -> int:
    """Bytes of weights that are on the device for the whole step, and of their gradients."""
    held = {id(units.masters[name]): units.masters[name] for name in units.glue}
    trained = [units.masters[name] for name in units.glue if units.trains(name)]
    return size_of(list(held.values()), device.rounded) + size_of(trained, device.rounded)


def _coarse(measured: MeasuredChain, device: Device) -> list[int] | None:
    """Cuts between pieces for the second measurement. Its parts keep to the cap, so that it takes no more memory than the training will."""
    room = device.cap - (device.memory()[0] if device.emulated else 0)
    size = min(_COARSE_PIECES, len(measured.pieces))
    while size > 1:
        cuts = list(range(size, len(measured.pieces), size))
        if cost_of(measured, cuts, _MICRO_BATCHES).peak <= room:
            return cuts
        size //= 2
    return None


# ---- where it may be cut ----


class Shape:
    """Legal cuts of a model's calls, and the values and gradients that cross them, as a forward shows."""

    def __init__(self, units: Units, begin: Begin, device: Device) -> None:
        self.values, self.gradients = crossings(units, begin(device), device)
        self.cuts = self._useful(units, units.cuts())
        bounds = [0, *self.cuts, len(units)]
        self._piece_of = [piece for piece, (start, stop) in enumerate(itertools.pairwise(bounds)) for _ in range(start, stop)]
        self._piece_of.append(len(bounds) - 1)
        self.values, self.gradients = self._by_piece(self.values), self._by_piece(self.gradients)

    def _useful(self, units: Units, cuts: list[int]) -> list[int]:
        """All cuts; of very many, those that leave parts with similar weights and that few bytes cross."""
        if len(cuts) <= MOST_CUTS:
            return cuts
        weights = sizes_of(units)
        sizes = [sum(weights[start:stop]) for start, stop in itertools.pairwise([0, *cuts, len(weights)])]
        crossing = [sum(each.size for each in self.values if each.birth < cut <= each.last) for cut in cuts]
        least = max(1, min(crossing))
        return [cuts[kept - 1] for kept in thinned(sizes, MOST_CUTS, [size / least for size in crossing])]

    def _by_piece(self, found: Sequence[Crossing]) -> tuple[Crossing, ...]:
        of = self._piece_of
        return tuple(Crossing(of[each.birth], of[each.last], each.size) for each in found if of[each.birth] < of[each.last])


def sizes_of(units: Units) -> list[int]:
    """Bytes that each place adds to a part. A small constant is added to each, so that calls without weights are divided too."""
    sizes = [size_of([units.masters[name] for name in units.tensors[unit]]) for unit in units.order]
    each = max(1, sum(sizes) // (10 * len(sizes)))
    return [size + each for size in sizes]


# ---- what it takes ----


class _PartSeen:
    """Measurements of one part: the seconds of each round, and the most bytes of all rounds."""

    def __init__(self) -> None:
        self.forward: list[float] = []
        self.backward: list[float] = []
        self.load: list[float] = []
        self.out: list[float] = []
        self.forward_work = self.persisted = self.again_work = self.kept = self.native = 0
        self.backward_work = self.later_work = 0

    def most(self, **sizes: int) -> None:
        for name, size in sizes.items():
            setattr(self, name, max(size, getattr(self, name)))

    def seconds(self, name: str) -> float:
        return float(median(getattr(self, name) or [0.0]))


class Profiler(SwapExecutor):
    """An executor that measures time and memory of each of its acts."""

    def __init__(self, units: Units, cuts: Sequence[int], device: Device) -> None:
        super().__init__(units, cuts, device)
        self.seen = [_PartSeen() for _ in self.parts]
        self.inputs = self.loss = 0  #: bytes of a micro-batch
        self.rounds = 0
        self._marks: tuple[int, int] | None = None  #: bytes in use, and at most, when the part had been computed again
        self._from = self._native = 0

    def _load(self, k: int) -> None:
        if k < 0:
            return super()._load(k)
        with self.device.step() as times:
            super()._load(k)
            self.device.wait(self._loaded[k].event)
        return self.seen[k].load.append(times.stalled)

    def _send(self, k: int) -> Any:
        if k < 0:
            return super()._send(k)
        with self.device.step() as times:
            sent = super()._send(k)
            self.device.wait(sent[1])
        self.seen[k].out.append(times.stalled)
        return sent

    def computing(self) -> None:
        self._from = self.device.memory()[0]

    def computed(self) -> None:
        """Called by a micro-batch that goes back, when a call of the part has been computed again with the calls that make its inputs."""
        self._native += max(0, self.device.memory()[0] - self._from)
        if self._marks is None:
            self._marks = self.device.memory()
            self.device.reset_peak()

    def _go(self, k: int, batch: MicroBatch) -> None:
        before, _ = self.device.memory()
        self.device.reset_peak()
        with self.device.step() as times:
            super()._go(k, batch)
        now, peak = self.device.memory()
        self.seen[k].forward.append(times.computing)
        self.seen[k].most(forward_work=peak - before, persisted=now - before)

    def _go_back(self, k: int, c: int, batch: MicroBatch) -> None:
        before, _ = self.device.memory()
        self.device.reset_peak()
        self._marks, self._from, self._native = None, before, 0
        with self.device.step() as times:
            super()._go(k, batch)
        _, peak = self.device.memory()
        kept, again = self._marks or (before, before)
        if batch.loss is not None:
            self.loss = max(self.loss, 3 * size_of(batch.loss, self.device.rounded))  # as the task gives it, scaled, and its gradient
        self.seen[k].backward.append(times.computing)
        self.seen[k].most(again_work=again - before, kept=kept - before, native=self._native)
        if c == 0:
            made = sum(size_of(self._gradient(name), self.device.rounded) for name in self.names[k])
            self.seen[k].most(backward_work=peak - kept - made)
        else:
            self.seen[k].most(later_work=peak - kept)


def _profiled(units: Units, cuts: Sequence[int], begin: Begin, device: Device, rounds: int, told: Callable[[str], None]) -> Profiler:
    """Run a profiler for some rounds. Interrupted where the job is asked to stop meanwhile."""
    profiler = Profiler(units, cuts, device)
    profiler.device.reset_peak()
    begun = time.perf_counter()
    last = begun  #: when it was told how far it is
    while profiler.rounds <= min(LEAST_ROUNDS, rounds) or (profiler.rounds <= rounds and time.perf_counter() - begun < MEASURING_SECONDS):
        if script.should_stop():
            raise Interrupted
        micro = [begin(device) for _ in range(_MICRO_BATCHES)]
        for batch in micro:
            batch.computing, batch.computed = profiler.computing, profiler.computed  # type: ignore[method-assign]
        profiler.inputs = max(batch.inputs for batch in micro)
        with device.step():  # of its own: no part of what a training's step tells
            profiler.run(micro)
        if not profiler.rounds:
            profiler.seen = [_PartSeen() for _ in profiler.parts]  # libraries take their own memory in the first round
        profiler.rounds += 1
        if (now := time.perf_counter()) - last > _TELL_EVERY:
            last = now
            told(f"round {profiler.rounds} of {rounds + 1} at most, {now - begun:.0f} s")
        for parameter in units.model.parameters():
            parameter.grad = None
    return profiler


def _overheads(fine: Profiler, coarse: Profiler) -> tuple[float, float]:
    """Overhead of a part in seconds of forward and of backward: many small parts take that much longer than few large ones."""
    until = coarse.parts[-1][0]
    within = [part.seconds("forward") for part, (_, stop) in zip(fine.seen, fine.parts, strict=True) if stop <= until]
    forward = _each(within, [part.seconds("forward") for part in coarse.seen[:-1]])
    back = [part.seconds("backward") for part in fine.seen[fine.bottom :]]
    large = [part.seconds("backward") for part in coarse.seen[coarse.bottom :]]
    frozen = [part.seconds("forward") for part, (start, _) in zip(fine.seen[: fine.bottom], fine.parts, strict=False) if start >= until]
    large[-1] -= sum(frozen) - len(frozen) * forward  # the last part computes them too
    return forward, _each(back, large)


def _each(small: Sequence[float], large: Sequence[float]) -> float:
    """The overhead of one part, from the times of many small parts and of few large ones."""
    more = len(small) - len(large)
    return max(0.0, (sum(small) - sum(large)) / more) if more > 0 else 0.0


def _piece(fine: Profiler, k: int, numbers: dict[int, int], shape: Shape) -> Piece:
    units, seen, (start, stop) = fine.units, fine.seen[k], fine.parts[k]
    made = sum(crossing.size for crossing in shape.values if crossing.birth == k)
    held = [(name, units.masters[name]) for name in fine.names[k]]
    return Piece(
        name=units.order[start], start=start, stop=stop,
        forward=seen.seconds("forward"), backward=seen.seconds("backward"), load=seen.seconds("load"), out=seen.seconds("out"),
        weights=tuple(Weight(numbers[id(value)], size_of(value, fine.device.rounded), units.trains(name)) for name, value in held),
        forward_work=seen.forward_work, statistics=max(0, seen.persisted - made),
        again_work=seen.again_work, kept=seen.kept, native=seen.native,
        backward_work=max(0, seen.backward_work), later_work=max(0, seen.later_work),
    )  # fmt: skip


def _of_pieces(measured: MeasuredChain, part_forward: float, part_backward: float, bottom: int) -> MeasuredChain:
    """Take the overhead of a part out of its pieces. Nothing goes back through the pieces before ``bottom``."""
    pieces = []
    for k, piece in enumerate(measured.pieces):
        forward = max(0.0, piece.forward - part_forward)
        pieces.append(replace(piece, forward=forward, backward=0.0 if k < bottom else max(0.0, piece.backward - part_backward)))
    return replace(measured, pieces=tuple(pieces), part_forward=part_forward, part_backward=part_backward)


def size_of(value: Any, rounded: Callable[[int], int] = int) -> int:
    """Bytes of the tensors in it, by what a device takes for each (``rounded``)."""
    return sum(rounded(leaf.numel() * leaf.element_size()) for leaf in tree_iter(value) if isinstance(leaf, torch.Tensor))

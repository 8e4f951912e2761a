"""Profile of a chain, piece by piece (004 figs. 3-3 to 3-11): forward, backward and load time, parameters, activations, workspace.

Measured is what runs: the executor itself, cut at every legal place, so that no more than two pieces are on the device at once (ch. 3.3.4:
even the largest model can be profiled on a single GPU). It is measured a second time with fewer cuts, which tells what a part costs
whatever is in it. Weights, statistics and generators are left as they were.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import fx

from ..device.device import CapExceeded, Device
from ..train import rng
from ..train.batches import Interrupted
from ..worker import script
from .chain import Chain, Values, size_of, tensors, versions
from .partition import MOST_CUTS, Crossing, Measured, Piece, Weight, cost_of, thinned
from .swap_executor import MicroBatch, SwapExecutor, Tail

ROUNDS = 10  #: as in 004 ch. 3.3.2
ENOUGH = 10.0  #: seconds of measuring after which no further round begins
LEAST = 3  #: rounds, after one to warm up
_MICRO_BATCHES = 2  #: the first makes gradients, the second adds to them
_TELL = 5.0  #: seconds between lines about the progress
_COARSE = 8  #: pieces of a part in the second measurement
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

Begin = Callable[[], Values]  #: the inputs of a new micro-batch on the device


def measure(
    chain: Chain, begin: Begin, tail: Tail, device: Device, told: Callable[[str], None] = lambda line: None, rounds: int = ROUNDS
) -> Measured:
    """The chain in pieces. ``told`` hears of the progress; ``rounds``: at most, after one to warm up."""
    with untouched(chain), device.lifted() as roomy:
        shape = Shape(chain, begin(), roomy)
        told(f"measuring the model, {len(chain)} operations, in {len(shape.cuts) + 1} pieces")
        fine = _profiled(chain, shape.cuts, begin, tail, roomy, rounds, told)
        told(f"measured {len(shape.cuts) + 1} pieces in {fine.rounds} rounds")
        masters = {id(chain.attribute(name)): n for n, name in enumerate(chain.names(0, len(chain)))}
        measured = Measured(
            pieces=tuple(_piece(fine, k, masters, shape) for k in range(len(fine.parts))),
            values=shape.values, gradients=shape.gradients(fine.gradients), inputs=fine.inputs + fine.loss,
            there=0 if device.emulated else device.memory()[0],
        )  # fmt: skip
        part_forward = part_backward = 0.0
        with suppress(CapExceeded):
            if (cuts := _coarse(measured, device)) is not None:
                coarse = _profiled(chain, [shape.cuts[cut - 1] for cut in cuts], begin, tail, roomy, rounds, told)
                told(f"measured {len(coarse.parts)} larger parts beside them" if cuts else "measured it in one part beside them")
                part_forward, part_backward = _overheads(fine, coarse)
    return _of_pieces(measured, part_forward, part_backward, bottom=fine.bottom)


def _coarse(measured: Measured, device: Device) -> list[int] | None:
    """Cuts between pieces for the second measurement, into parts that keep to the cap: it need not take more than the training will."""
    room = device.cap - (device.memory()[0] if device.emulated else 0)
    size = min(_COARSE, len(measured.pieces))
    while size > 1:
        cuts = list(range(size, len(measured.pieces), size))
        if cost_of(measured, cuts, _MICRO_BATCHES).peak <= room:
            return cuts
        size //= 2
    return None


# ---- where it may be cut ----


class Shape:
    """Legal cuts of a chain, and what crosses them, as a forward shows: on the GPU node by node where there is one, else on the host."""

    def __init__(self, chain: Chain, sample: Values, device: Device) -> None:
        self.chain, self.device = chain, device
        trained = {name for name, value in chain.parameters.items() if value.requires_grad}
        statistics = {name for name in chain.buffers if name.rpartition(".")[2] in _STATISTICS}
        self._bound = chain.bound_cuts(trained | statistics)
        #: of each storage the place where it is made, its last use, and bytes
        self._spans: list[list[int]] = []
        self._walk(dict(sample))
        self.cuts = self._useful([cut for cut in range(1, len(chain)) if cut not in self._bound])
        self._piece_of = [0] * len(chain)
        for piece, (start, stop) in enumerate(itertools.pairwise([0, *self.cuts, len(chain)])):
            self._piece_of[start:stop] = [piece] * (stop - start)

    def _useful(self, cuts: list[int]) -> list[int]:
        """All of them, or of very many those that leave parts of like weights, and that little crosses."""
        if len(cuts) <= MOST_CUTS:
            return cuts
        weights = [size_of([self.chain.master(name) for name in names]) for names in self.chain.tensors_of]
        each = max(1, sum(weights) // (10 * len(weights)))  # of a node without any: they take time and memory too
        sizes = [sum(weights[start:stop]) + each * (stop - start) for start, stop in itertools.pairwise([0, *cuts, len(weights)])]
        crossing = [sum(size for place, last, size in self._spans if place < cut <= last) for cut in cuts]
        least = max(1, min(crossing))
        return [cuts[kept - 1] for kept in thinned(sizes, MOST_CUTS, [size / least for size in crossing])]

    def _walk(self, values: Values) -> None:
        chain = self.chain
        spans: dict[fx.Node, int] = {}  #: of live values, where their storage is in `_spans`; -1: inputs
        views: set[fx.Node] = set()  #: of weights
        with torch.no_grad():
            for index, node in enumerate(chain.nodes):
                live = {other: versions(value) for other, value in values.items()}
                inputs = {leaf.untyped_storage()._cdata: used for used in node.all_input_nodes if used.op != "get_attr"
                          for leaf in tensors(values[used])}  # fmt: skip
                before = dict(values)
                with self._placed(index) as weights:
                    result = self._computed(values, index)
                self._bind_in_place(before, live, spans, index)
                last = chain.last_use[node]
                leaves = list(tensors(result))
                if leaves and not isinstance(result, torch.Tensor):  # several tensors in one value
                    self._bound |= set(range(index + 1, last + 1))
                for leaf in leaves:
                    key = leaf.untyped_storage()._cdata
                    if key in weights or inputs.get(key) in views:  # of weights: they are gone when the next part computes
                        views.add(node)
                        self._bound |= set(range(index + 1, last + 1))
                    elif key in inputs:
                        spans[node] = spans.get(inputs[key], -1)
                    else:
                        spans[node] = len(self._spans)
                        self._spans.append([index, last, self.device.rounded(leaf.untyped_storage().nbytes())])
                    if spans.get(node, -1) >= 0:
                        self._spans[spans[node]][1] = max(self._spans[spans[node]][1], last)

    def _computed(self, values: Values, index: int) -> Any:
        if self.device.emulated:  # on the host, whose memory has no cap
            return self.chain.compute_node(values, index)
        return self.device.launch(lambda: self.chain.compute_node(values, index))

    @contextmanager
    def _placed(self, index: int) -> Iterator[set[int]]:
        """The node's weights are where it computes; their storages."""
        chain, names = self.chain, set(self.chain.tensors_of[index])
        if not self.device.emulated:
            placed = {id(chain.master(name)): self.device.put(chain.master(name)) for name in names}
            for name in names:
                chain.put(name, placed[id(chain.master(name))])
        try:
            yield {chain.attribute(name).untyped_storage()._cdata for name in names}
        finally:
            for name in names:
                chain.put(name, chain.master(name))

    def _bind_in_place(self, before: Values, live: dict[fx.Node, list[int]], spans: dict[fx.Node, int], index: int) -> None:
        """What a node changes in place must have been made in its part, also where a view of it is changed."""
        for node, was in live.items():
            if versions(before[node]) != was:
                made = self._spans[spans[node]][0] if spans.get(node, -1) >= 0 else self.chain.place[node]
                self._bound |= set(range(made + 1, index + 1))

    def piece(self, place: int) -> int:
        return self._piece_of[min(place, len(self._piece_of) - 1)]

    def _last(self, place: int) -> int:
        return len(self.cuts) if place >= len(self.chain) else self.piece(place)

    @property
    def values(self) -> tuple[Crossing, ...]:
        """What crosses cuts, by storage."""
        found = (Crossing(self.piece(place), self._last(last), size) for place, last, size in self._spans)
        return tuple(crossing for crossing in found if crossing.birth < crossing.last)

    def gradients(self, sizes: dict[fx.Node, int]) -> tuple[Crossing, ...]:
        """The gradients that come back over cuts, by the bytes that were seen."""
        found = (Crossing(self.piece(self.chain.place[n]), self._last(self.chain.last_use[n]), size) for n, size in sizes.items()
                 if self.chain.place[n] >= 0)  # fmt: skip
        return tuple(crossing for crossing in found if crossing.birth < crossing.last)


# ---- what it takes ----


class _PartSeen:
    """What was seen of one part: seconds of each time, and the most bytes."""

    def __init__(self) -> None:
        self.forward: list[float] = []
        self.backward: list[float] = []
        self.load: list[float] = []
        self.out: list[float] = []
        self.forward_work = self.persisted = self.again_work = self.kept = self.backward_work = self.later_work = 0

    def most(self, **sizes: int) -> None:
        for name, size in sizes.items():
            setattr(self, name, max(size, getattr(self, name)))

    def seconds(self, name: str) -> float:
        return float(median(getattr(self, name) or [0.0]))


class Profiler(SwapExecutor):
    """The executor, each of whose acts is timed and measured by itself."""

    def __init__(self, chain: Chain, cuts: Sequence[int], device: Device) -> None:
        super().__init__(chain, cuts, device)
        self.seen = [_PartSeen() for _ in self.parts]
        self.gradients: dict[fx.Node, int] = {}
        self.inputs = self.loss = 0  #: bytes of a micro-batch
        self.rounds = 0
        self._marks: tuple[int, int] = 0, 0
        self._going_back = False

    def warmed_up(self) -> None:
        """What the first round has seen is not what the others do: libraries take their own memory in it."""
        self.seen = [_PartSeen() for _ in self.parts]

    def _load(self, k: int) -> None:
        with self.device.step() as times:
            super()._load(k)
            self.device.wait(self._loaded[k].event)
        self.seen[k].load.append(times.stalled)

    def _send(self, k: int) -> Any:
        with self.device.step() as times:
            sent = super()._send(k)
            self.device.wait(sent[1])
        self.seen[k].out.append(times.stalled)
        return sent

    def _compute(self, k: int, values: Values) -> None:
        super()._compute(k, values)
        if self._going_back:
            self._marks = self.device.memory()
            self.device.reset_peak()

    def _forward(self, k: int, batch: MicroBatch) -> None:
        before, _ = self.device.memory()
        self.device.reset_peak()
        with self.device.step() as times:
            super()._forward(k, batch)
        now, peak = self.device.memory()
        self.seen[k].forward.append(times.computing)
        self.seen[k].most(forward_work=peak - before, persisted=now - before)

    def _backward(self, k: int, c: int, batch: MicroBatch, tail: Tail | None) -> torch.Tensor | None:
        before, _ = self.device.memory()
        self.device.reset_peak()
        self._going_back = True
        with self.device.step() as times:
            loss = super()._backward(k, c, batch, tail)
        self._going_back = False
        _, peak = self.device.memory()
        kept, again = self._marks
        self.loss = max(self.loss, 2 * size_of(loss, self.device.rounded))  # as the task gives it, and scaled
        self.seen[k].backward.append(times.computing)
        self.seen[k].most(again_work=again - before, kept=kept - before)
        if c == 0:
            made = sum(size_of(self.chain.attribute(name).grad, self.device.rounded) for name in self.names[k] if self._trains(name))
            self.seen[k].most(backward_work=peak - kept - made)
        else:
            self.seen[k].most(later_work=peak - kept)
        for node, value in batch.gradients.items():
            self.gradients[node] = max(self.gradients.get(node, 0), self.device.rounded(value.untyped_storage().nbytes()))
        return loss


def _profiled(
    chain: Chain, cuts: Sequence[int], begin: Begin, tail: Tail, device: Device, rounds: int, told: Callable[[str], None]
) -> Profiler:
    """Interrupted where the job is asked to stop meanwhile."""
    profiler = Profiler(chain, cuts, device)
    profiler.device.reset_peak()
    begun = time.perf_counter()
    last = begun  #: when it was told how far it is
    while profiler.rounds <= min(LEAST, rounds) or (profiler.rounds <= rounds and time.perf_counter() - begun < ENOUGH):
        if script.should_stop():
            raise Interrupted
        micro = [MicroBatch(begin(), rng.get_state()) for _ in range(_MICRO_BATCHES)]
        profiler.inputs = max(size_of(batch.values, device.rounded) for batch in micro)
        try:
            with device.step():  # of its own: no part of what a training's step tells
                profiler.run(micro, tail)
        except CapExceeded:
            profiler.abandon()
            raise
        if not profiler.rounds:
            profiler.warmed_up()
        profiler.rounds += 1
        if (now := time.perf_counter()) - last > _TELL:
            last = now
            told(f"round {profiler.rounds} of {rounds + 1} at most, {now - begun:.0f} s")
        for parameter in chain.parameters.values():
            parameter.grad = None
    return profiler


def _overheads(fine: Profiler, coarse: Profiler) -> tuple[float, float]:
    """Seconds that a part adds to forward and backward, whatever is in it: what many small parts take more than few large ones."""
    until, since = coarse.parts[-1][0], coarse.parts[coarse.bottom][0]
    within = [part.seconds("forward") for part, (_, stop) in zip(fine.seen, fine.parts, strict=True) if stop <= until]
    forward = _each(within, [part.seconds("forward") for part in coarse.seen[:-1]])
    back = [part.seconds("backward") for part in fine.seen[fine.bottom :]]
    # What is not trained goes back only in a part with something that is: it is computed again there.
    again = [part.seconds("forward") for part, (start, _) in zip(fine.seen[: fine.bottom], fine.parts, strict=False) if start >= since]
    large = [part.seconds("backward") for part in coarse.seen[coarse.bottom :]]
    large[0] -= sum(again) - len(again) * forward
    return forward, _each(back, large)


def _each(small: Sequence[float], large: Sequence[float]) -> float:
    """What each takes beside what is common to both ways of dividing."""
    more = len(small) - len(large)
    return max(0.0, (sum(small) - sum(large)) / more) if more > 0 else 0.0


def _piece(fine: Profiler, k: int, masters: dict[int, int], shape: Shape) -> Piece:
    chain, seen, (start, stop) = fine.chain, fine.seen[k], fine.parts[k]
    made = sum(crossing.size for crossing in shape.values if crossing.birth == k)
    if k < fine.bottom:  # it goes back in no part of its own, but perhaps in one with others
        seen.again_work, seen.kept = seen.forward_work, made
    names = chain.names(start, stop)
    held = [(name, chain.attribute(name)) for name in names]
    node = chain.nodes[start]
    return Piece(
        name=str(node.target) if node.op == "call_module" else node.name,
        start=start, stop=stop,
        forward=seen.seconds("forward"), backward=seen.seconds("backward"), load=seen.seconds("load"), out=seen.seconds("out"),
        weights=tuple(Weight(masters[id(value)], size_of(value, fine.device.rounded), fine._trains(name)) for name, value in held),
        forward_work=seen.forward_work, statistics=max(0, seen.persisted - made),
        again_work=seen.again_work, kept=seen.kept, backward_work=max(0, seen.backward_work), later_work=max(0, seen.later_work),
    )  # fmt: skip


def _of_pieces(measured: Measured, part_forward: float, part_backward: float, bottom: int) -> Measured:
    """Without what a part adds in its pieces. What is not trained, before the piece ``bottom``, is only computed again on the way back."""
    pieces = []
    for k, piece in enumerate(measured.pieces):
        forward = max(0.0, piece.forward - part_forward)
        pieces.append(replace(piece, forward=forward, backward=forward if k < bottom else max(0.0, piece.backward - part_backward)))
    return replace(measured, pieces=tuple(pieces), part_forward=part_forward, part_backward=part_backward)


@contextmanager
def untouched(chain: Chain) -> Iterator[None]:
    """Leaves gradients, buffers and random generators as they were."""
    buffers = {name: value.clone() for name, value in chain.buffers.items()}
    gradients = {name: parameter.grad for name, parameter in chain.parameters.items()}
    try:
        with rng.preserved():
            yield
    finally:
        with torch.no_grad():
            for name, value in buffers.items():
                chain.buffers[name].copy_(value)
        for name, gradient in gradients.items():
            chain.parameters[name].grad = gradient

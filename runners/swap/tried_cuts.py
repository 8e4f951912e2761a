"""Cuts of a chain that keep below a cap, each tried before it is used, so that the peak is measured and not only predicted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress

from ...engine.errors import UsageError
from ..device.device import CapExceeded, Device
from ..train import rng
from ..train.batches import Interrupted
from ..worker import script
from .chain import Chain, Values, size_of
from .part_times import Begin, Shape, measure, untouched
from .partition import smallest_cap
from .swap_executor import MicroBatch, SwapExecutor, Tail
from .swap_plan import plan_step

_ROUNDS = 1  #: of measuring, after one to warm up: a training is not to wait long for its first step
Cuts = tuple[int, ...]  #: nodes before which a chain is cut


def cuts_for(
    chain: Chain, cap: int, accumulate: int, begin: Begin, tail: Tail, device: Device, least: int = 1, used: Cuts | None = None,
    told: Callable[[str], None] = lambda line: None,
) -> Cuts:  # fmt: skip
    """Cuts with which a step of ``accumulate`` micro-batches stays below ``cap`` bytes, into ``least`` parts or more.

    Those that were ``used`` where they still do, else those that the planner finds, else the fewest parts of like size. UsageError: none.
    Interrupted: the job is asked to stop meanwhile. ``told`` hears of the progress.
    """

    def step(executor: SwapExecutor) -> None:
        executor.run([MicroBatch(begin(), rng.get_state()) for _ in range(accumulate)], tail)

    trial = _Trial(chain, cap, device, step, told)
    if used is not None and trial.fits(used):
        return used
    with suppress(UsageError, CapExceeded):
        measured = measure(chain, begin, tail, device, told, _ROUNDS)
        smallest = smallest_cap(measured, accumulate)
        trial.predicted = trial.beside + smallest
        for room in (max(cap - trial.beside, smallest), smallest):  # what is predicted is an upper bound, so that the tightest may fit
            planned = plan_step(measured, room, accumulate, least).cuts
            if trial.fits(planned):
                return planned
    return _fewest(trial, begin(), least, f"with accumulate: {accumulate} ")


def cuts_of_answers(chain: Chain, cap: int, begin: Begin, device: Device) -> Cuts:
    """The fewest parts with which answers, computed without gradients, stay below ``cap`` bytes."""
    trial = _Trial(chain, cap, device, lambda executor: executor.answer(begin()), lambda line: None)
    return _fewest(trial, begin(), 1, "for evaluation ")


class _Trial:
    """What is tried: some work of a chain in parts, that is to stay below a cap."""

    def __init__(self, chain: Chain, cap: int, device: Device, work: Callable[[SwapExecutor], object], told: Callable[[str], None]) -> None:
        self.chain, self.cap, self.device, self.work, self.told = chain, cap, device, work, told
        self.beside = device.memory()[0] if device.emulated else 0  #: batches; measured on a GPU they are in what is there
        self.tried: dict[Cuts, bool] = {}
        self.predicted: int | None = None  #: the smallest cap, by the planner

    def fits(self, cuts: Cuts) -> bool:
        """Tried under the cap: also on an emulated device no more memory is taken than the training may."""
        if cuts not in self.tried:
            peak = self._taken(cuts, self.device)
            self.tried[cuts] = peak is not None and peak <= self.cap
        return self.tried[cuts]

    def _taken(self, cuts: Cuts, device: Device) -> int | None:
        """Most bytes that were used; None where the device had no room for that."""
        if script.should_stop():
            raise Interrupted
        self.told(f"trying {len(cuts) + 1} parts")
        with untouched(self.chain):
            executor = SwapExecutor(self.chain, cuts, device)
            device.reset_peak()
            try:
                with device.step():  # of its own: no part of what the training's step tells
                    self.work(executor)
            except CapExceeded:
                executor.abandon()
                return None
            return device.memory()[1]

    def smallest(self) -> int | None:
        """What the planner needs: it suffices whichever of such cuts it takes for the quickest. Else the least that suffices without a cap.

        The planner may be wrong on a GPU: there its cuts may not fit into the cap although they should, as between what is used there
        is no room.
        """
        if self.predicted is not None and self.predicted > self.cap:
            return self.predicted
        with self.device.lifted() as roomy:
            beside = self.beside if roomy is not self.device else 0
            peaks = [peak + beside for cuts in self.tried if (peak := self._taken(cuts, roomy)) is not None]
        return max(min(peaks), self.cap + 1) if peaks else None


def _fewest(trial: _Trial, values: Values, least: int, purpose: str) -> Cuts:
    chain = trial.chain
    with untouched(chain), trial.device.lifted() as roomy:
        legal = Shape(chain, values, roomy).cuts
    if len(legal) + 1 < least:
        raise UsageError("memory.swap: force: the model cannot be cut into parts; write swap: off")
    weights, count = _weights(chain), least
    while True:
        cuts = _filled(weights, legal, count)
        if len(cuts) + 1 >= least and trial.fits(cuts):
            return cuts
        if count > len(legal):
            break
        count = min(2 * count, len(legal) + 1)
    smallest = trial.smallest()
    would = f"the smallest that would is {-(-smallest // 1024)}KiB" if smallest is not None else "ask for more of the GPU"
    raise UsageError(
        f"memory.cap: this model {purpose}does not fit into {-(-trial.cap // 1024)}KiB however it is cut; {would}{kept(chain)}"
    )


def kept(chain: Chain) -> str:
    """What keeps it together, if that can be changed."""
    name = chain.binding()
    if name is None:
        return ""
    return f"; {name} is used far apart under one name, so that all between is one part: give it two, as 'head.weight = words.weight' does"


def _filled(weights: Sequence[int], legal: Sequence[int], count: int) -> tuple[int, ...]:
    """Cuts into about ``count`` parts of like bytes; all legal cuts where there are no more."""
    if count > len(legal):
        return tuple(legal)
    goal = sum(weights) / count
    cuts: list[int] = []
    filled = 0
    places = [0, *legal, len(weights)]
    for start, stop in itertools.pairwise(places):
        size = sum(weights[start:stop])
        if start and filled and filled + size > goal:
            cuts.append(start)
            filled = 0
        filled += size
    return tuple(cuts)


def _weights(chain: Chain) -> list[int]:
    """Bytes that each node adds to a part; its share of them for one that has none, so that these are divided too."""
    sizes = [size_of([chain.master(name) for name in names]) for names in chain.tensors_of]
    each = max(1, sum(sizes) // (10 * len(sizes)))
    return [size + each for size in sizes]

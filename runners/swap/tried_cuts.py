"""Cuts of a model that keep below a cap, each tried before it is used, so that the peak is measured and not only predicted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress

from ...engine.errors import UsageError
from ..device.device import CapExceeded, Device
from ..train.batches import Interrupted
from ..worker import script
from .model_units import Units
from .module_state import untouched
from .part_times import Begin, measure, sizes_of
from .partition import smallest_cap
from .swap_executor import SwapExecutor
from .swap_plan import plan_step

_ROUNDS = 1  #: of measuring, after one to warm up: a training is not to wait long for its first step
Cuts = tuple[int, ...]  #: places before which a model is cut


class DoesNotFit(Exception):
    """However these units are cut. ``smallest``: a cap that would suffice, where one is known."""

    def __init__(self, smallest: int | None) -> None:
        super().__init__(smallest)
        self.smallest = smallest


def cuts_for(
    units: Units, cap: int, accumulate: int, begin: Begin, device: Device, least: int = 1, used: Cuts | None = None,
    told: Callable[[str], None] = lambda line: None,
) -> Cuts:  # fmt: skip
    """Cuts with which a step of ``accumulate`` micro-batches stays below ``cap`` bytes, into ``least`` parts or more.

    Those that were ``used`` where they still do, else those that the planner finds, else the fewest parts of like size. DoesNotFit: none.
    Interrupted: the job is asked to stop meanwhile. ``told`` hears of the progress.
    """
    trial = _Trial(units, cap, device, accumulate, begin, told)
    if used is not None and trial.fits(used):
        return used
    with suppress(UsageError, CapExceeded):
        measured = measure(units, begin, device, told, _ROUNDS)
        count, others = (1, (accumulate - 1) * measured.inputs) if units.in_turn else (accumulate, 0)
        smallest = smallest_cap(measured, count)
        trial.predicted = smallest + others
        for room in (max(cap - others, smallest), smallest):  # what is predicted is an upper bound, so that the tightest may fit
            planned = plan_step(measured, room, count, least).cuts
            if trial.fits(planned):
                return planned
    return _fewest(trial, least)


class _Trial:
    """What is tried: a step of a model in parts, that is to stay below a cap."""

    def __init__(
        self, units: Units, cap: int, device: Device, accumulate: int, begin: Begin, told: Callable[[str], None]
    ) -> None:  # fmt: skip
        self.units, self.cap, self.device, self.accumulate, self.begin, self.told = units, cap, device, accumulate, begin, told
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
        with untouched(self.units.model):
            executor = SwapExecutor(self.units, cuts, device)
            device.reset_peak()
            try:
                for _ in range(2 if self.units.seen.changing else 1):  # what a step leaves in attributes is there in the next one
                    with device.step():  # of its own: no part of what the training's step tells
                        executor.run([self.begin(device) for _ in range(self.accumulate)])
            except CapExceeded:
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
            peaks = [peak for cuts in self.tried if (peak := self._taken(cuts, roomy)) is not None]
        return max(min(peaks), self.cap + 1) if peaks else None


def _fewest(trial: _Trial, least: int) -> Cuts:
    units = trial.units
    legal = units.cuts()
    if len(legal) + 1 < least:
        raise DoesNotFit(None)
    weights, count = sizes_of(units), least
    while True:
        cuts = _filled(weights, legal, count)
        if len(cuts) + 1 >= least and trial.fits(cuts):
            return cuts
        if count > len(legal):
            break
        count = min(2 * count, len(legal) + 1)
    if trial.fits(apart := tuple(cut for cut in legal for _ in range(2))):  # with a pause at each
        return apart
    raise DoesNotFit(trial.smallest())


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

"""Finds cuts with which a model stays below a cap. Each is tried before it is used, so that its peak is measured, not only predicted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress

from ...engine.errors import UsageError
from ..device.device import CapExceeded, Device
from ..train.batches import Interrupted
from ..worker import script
from .model_profile import Begin, measure, sizes_of
from .model_units import Units
from .module_state import untouched
from .partition import smallest_cap
from .swap_executor import SwapExecutor
from .swap_plan import plan_step

_MEASURING_ROUNDS = 1  #: of measuring, after one to warm up; so a training does not wait long for its first step
Cuts = tuple[int, ...]  #: places before which a model is cut


class DoesNotFit(Exception):
    """No cuts make these units fit. ``smallest``: a cap that would suffice, where one is known."""

    def __init__(self, smallest: int | None) -> None:
        super().__init__(smallest)
        self.smallest = smallest


def cuts_for(
    units: Units, cap: int, accumulate: int, begin: Begin, device: Device, least: int = 1, used: Cuts | None = None,
    told: Callable[[str], None] = lambda line: None,
) -> Cuts:  # fmt: skip
    """Cuts with which a step of ``accumulate`` micro-batches stays below ``cap`` bytes, into ``least`` parts or more.

    The cuts in use (``used``) come first, then those of the planner, then the fewest parts of similar size. DoesNotFit: none stays below.
    Interrupted: the job is asked to stop meanwhile. ``told`` is told of the progress.
    """
    trial = _Trial(units, cap, device, accumulate, begin, told)
    if used is not None and trial.fits(used):
        return used
    with suppress(UsageError, CapExceeded):
        measured = measure(units, begin, device, told, _MEASURING_ROUNDS)
        count, others = (1, (accumulate - 1) * measured.inputs) if units.in_turn else (accumulate, 0)
        smallest = smallest_cap(measured, count)
        trial.predicted = smallest + others
        # A prediction is an upper bound, so that the tightest plan may fit although it is predicted to be above the cap.
        for room in (max(cap - others, smallest), smallest):
            planned = plan_step(measured, room, count, least).cuts
            if trial.fits(planned):
                return planned
    return _fewest(trial, least)


class _Trial:
    """Tries steps of a model in parts, each of which must stay below a cap."""

    def __init__(
        self, units: Units, cap: int, device: Device, accumulate: int, begin: Begin, told: Callable[[str], None]
    ) -> None:  # fmt: skip
        self.units, self.cap, self.device, self.accumulate, self.begin, self.told = units, cap, device, accumulate, begin, told
        self.tried: dict[Cuts, bool] = {}
        self.predicted: int | None = None  #: the smallest cap, by the planner

    def fits(self, cuts: Cuts) -> bool:
        """Whether a step stays below the cap. It is tried under that cap, so that no trial takes more memory than the training may."""
        if cuts not in self.tried:
            peak = self._taken(cuts, self.device)
            self.tried[cuts] = peak is not None and peak <= self.cap
        return self.tried[cuts]

    def _taken(self, cuts: Cuts, device: Device) -> int | None:
        """The most bytes that a step uses; None where the device has too little memory for it."""
        if script.should_stop():
            raise Interrupted
        self.told(f"trying {len(cuts) + 1} parts")
        with untouched(self.units.model):
            executor = SwapExecutor(self.units, cuts, device)
            device.reset_peak()
            try:
                for _ in range(2 if self.units.seen.changing else 1):  # attributes that a step changes are changed in the next one too
                    with device.step():  # a step of its own, which does not count in the metrics of the training's step
                        executor.run([self.begin(device) for _ in range(self.accumulate)])
            except CapExceeded:
                return None
            return device.memory()[1]

    def smallest(self) -> int | None:
        """The planner's smallest cap: its plan for that cap fits. Else the smallest peak of all cuts that were tried, now without a cap.

        The second is for a GPU, where cuts of the planner may not fit although they should, as free memory there is fragmented.
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
    """Cuts into about ``count`` parts with similar bytes; all legal cuts where there are fewer."""
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

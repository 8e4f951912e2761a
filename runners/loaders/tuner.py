"""One step of tuning: observe the pipeline, ask the controller, let the guard reduce the values, set them. No thread, no clock."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ...engine.errors import UsageError
from .tuning.controller import Controller, Decision, Knob, Observation, Unit, Values, with_along

_UNITS = {Unit.WORKERS: "", Unit.MIB: " MiB"}
_KINDS: dict[bool | None, str] = {True: " in processes", False: " in threads"}

log = logging.getLogger("stoker.loaders")

_FIRST = 8  #: the first step comes after this part of the interval, so that a bad start is soon corrected
_SLOWER = 1.5  #: factor by which the time to the next step grows, up to the interval
_SHORT = 24  #: most short steps in a row unless some change nothing: a controller that never settles must not cost a core
_STEPS = 4096  #: of the history


class Sizable(Protocol):
    """A pipeline, as far as a tuner uses it."""

    @property
    def knobs(self) -> tuple[Knob, ...]: ...
    @property
    def values(self) -> Values: ...
    def set(self, values: Values, processes: Mapping[str, bool] | None = None) -> None: ...
    def prepare(self, stage: str, limit: float) -> tuple[int, int]: ...
    def forget(self, stage: str) -> None: ...
    def make_ready(self, stage: str) -> None: ...
    def observe(self) -> Observation: ...
    def discard_window(self) -> None: ...


class Limits(Protocol):
    """The guard: the values that may be set, the processes that a stage may have, and its refusals in words.

    ``room``: bytes that may be copied for processes, before their number is known.
    """

    def allow(self, seen: Observation, wanted: Values) -> tuple[Values, str]: ...
    def allow_processes(self, seen: Observation, stage: str, wanted: int, sizes: tuple[int, int]) -> tuple[int, str]: ...
    def room(self, seen: Observation) -> float: ...


Report = Callable[[Observation, str, Decision, Values, str], None]


class Step(NamedTuple):
    """The observation, the controller's decision with its reason, the values set, and the guard's refusals (empty: none)."""

    seen: Observation
    wanted: Decision
    given: Values
    refused: str
    moved: Mapping[str, bool] = {}  #: stages whose workers become processes (True) or threads (False)

    def __str__(self) -> str:
        """``udf 2 → 4, prefetch 64 MiB; 46.8 samples/s; why; refused …``: for people; the fields have the rest."""
        sizes = zip(self.seen.knobs, self.seen.values, self.given, strict=True)
        changes = (
            f"{knob.stage} {before}{f' → {now}' if now != before else ''}{_UNITS[knob.unit]}{_KINDS.get(self.moved.get(knob.stage), '')}"
            for knob, before, now in sizes
        )
        return "; ".join(filter(None, [", ".join(changes), f"{self.seen.throughput:.3g} samples/s", self.wanted.why, self.refused]))


def _unreported(*_: object) -> None:
    """After a report that failed."""


class Tuner:
    """Steers one pipeline. If the controller fails, the values stay as set: the training never sees the failure.

    Args:
        free: knobs that the controller may turn.
        interval: seconds between two steps at most.
    """

    def __init__(
        self,
        pipeline: Sizable,
        controller: Controller,
        guard: Limits,
        *,
        free: Sequence[Knob],
        interval: float,
        report: Report,
    ) -> None:
        self.history: deque[Step] = deque(maxlen=_STEPS)
        self.gap = interval / _FIRST  #: seconds to the next step
        self.waited, self.batches = 0.0, 0  #: seconds and batches since the last step, of passes that have ended
        self._short = _SHORT
        self._pipeline, self._controller, self._guard, self._report = pipeline, controller, guard, report
        self._free = frozenset((knob.stage, knob.unit) for knob in free)
        self.interval = interval  #: seconds between two steps at most
        self.failed = ""  #: the controller's failure, since when the values stay; empty: none

    def give_up(self, why: str) -> None:
        """Ask the controller no more, and ignore a late answer."""
        self.failed = f"controller {self._controller.name!r} failed: {why}"

    def begin(self) -> None:
        """Reduce the pipeline's first values to the guard's limits: the first window is the riskiest (tf.data #62821)."""
        seen = self._pipeline.observe()
        given, refused = self._guard.allow(seen, seen.values)
        if given != seen.values:
            self._pipeline.set(given)
            log.warning("the pipeline begins with %s instead of %s: %s", given, seen.values, refused)

    def resume(self, values: Values, processes: Sequence[str]) -> None:
        """Begin with the values of an earlier run, and with processes for these stages if they can be started and the guard allows them."""
        seen = self._pipeline.observe()
        there = {reading.name for reading in seen.stages if reading.movable and not reading.processes}
        moved, values, kept = self._moves(seen, Decision(values, processes=dict.fromkeys(there.intersection(processes), True)))
        self._pipeline.set(values, moved)
        if kept:
            log.warning("the pipeline does not begin as it was: %s", kept)

    def step(self) -> float:
        """Take one step; returns the seconds of transition to leave out of the next window."""
        seen = self._pipeline.observe()
        wanted = self._decide(seen)
        moved, values, kept = self._moves(seen, wanted)
        given, refused = self._guard.allow(seen, values)
        refused = "; ".join(filter(None, [kept, refused]))
        changed = given != seen.values or bool(moved)
        if changed:
            self._pipeline.set(given, moved)
        if wanted.likely and self._guard.allow_processes(seen, wanted.likely, 1, (0, 0))[0]:
            self._pipeline.make_ready(wanted.likely)
        self._pace(short=changed or wanted.soon, resized=seen.resized)
        self.history.append(Step(seen, wanted, given, refused, moved))
        self._tell(seen, wanted, given, refused)
        return self._transition(seen) if changed else 0.0

    def discard(self) -> None:
        """Leave the measurements until now out of the next window."""
        self._pipeline.discard_window()

    def _decide(self, seen: Observation) -> Decision:
        if not self.failed:
            try:
                wanted = self._asked(seen)
            except Exception as error:
                self.give_up(f"{type(error).__name__}: {error}")
                log.exception("%s; the pipeline keeps its values %s", self.failed, seen.values)
            else:
                if not self.failed:  # it was not given up while it thought
                    return wanted
        return Decision(seen.values, self.failed)

    def _asked(self, seen: Observation) -> Decision:
        """The controller's decision, with the knobs that it may not turn at their values."""
        knobs = tuple(
            knob if (knob.stage, knob.unit) in self._free else dataclasses.replace(knob, low=value, high=value)
            for knob, value in zip(seen.knobs, seen.values, strict=True)
        )
        wanted = self._controller.decide(dataclasses.replace(with_along(seen), knobs=knobs))
        values = tuple(knob.clip(value) for knob, value in zip(knobs, wanted.values, strict=True))
        free = {stage: processes for stage, processes in wanted.processes.items() if (stage, Unit.WORKERS) in self._free}
        likely = wanted.likely if (wanted.likely, Unit.WORKERS) in self._free else ""
        return dataclasses.replace(wanted, values=values, processes=free, likely=likely)

    def _moves(self, seen: Observation, wanted: Decision) -> tuple[dict[str, bool], Values, str]:
        """The stages to move, the values with as many processes as the guard allows, and why some stages are not moved."""
        moved, values, kept = dict(wanted.processes), list(wanted.values), []
        for stage in [stage for stage, processes in moved.items() if processes]:
            place = next(place for place, knob in enumerate(seen.knobs) if knob.stage == stage and knob.unit is Unit.WORKERS)
            count, why = self._processes(seen, stage, values[place])
            values[place] = count or seen.values[place]
            if not count:
                del moved[stage]
            kept.append(why)
        return moved, tuple(values), "; ".join(filter(None, kept))

    def _processes(self, seen: Observation, stage: str, wanted: int) -> tuple[int, str]:
        """The number that a stage may have in place of threads, and why not as many as wanted."""
        count, why = self._guard.allow_processes(seen, stage, wanted, (0, 0))
        if not count:  # whatever its function's data are: they need not be measured
            return 0, why
        try:
            sizes = self._pipeline.prepare(stage, self._guard.room(seen))
        except UsageError as error:
            return 0, str(error)
        count, why = self._guard.allow_processes(seen, stage, wanted, sizes)
        if not count:
            self._pipeline.forget(stage)
        return count, why

    def _tell(self, seen: Observation, wanted: Decision, given: Values, refused: str) -> None:
        try:
            self._report(seen, "fixed" if self.failed else self._controller.name, wanted, given, refused)
        except Exception:
            log.exception("a step of the tuner could not be reported; it goes on unreported")
            self._report = _unreported

    def _pace(self, *, short: bool, resized: bool) -> None:
        """Short steps while the values still change, long ones once they are settled."""
        if resized:
            self._short = _SHORT
        if resized or (short and self._short > 0):
            self.gap = self.interval / _FIRST
            self._short -= 1
        else:
            self.gap = min(self.gap * _SLOWER, self.interval)
            self._short = min(self._short + (not short), _SHORT)

    def _transition(self, seen: Observation) -> float:
        """Time until all items in the pipeline, in queues or at workers, have left it: until then the old values show."""
        waiting = sum((stage.queue + stage.workers * stage.in_hand) / stage.per_batch for stage in seen.stages if stage.per_batch > 0)
        drained = waiting * seen.latency()
        return min(drained, self.interval) if math.isfinite(drained) else self.interval

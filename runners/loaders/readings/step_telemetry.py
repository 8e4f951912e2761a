"""A tuner's steps as rows of the table `pipelines`: its measurements, its settings, and its reasons.

A tuner may step several times a second for weeks, so only some steps are reported: at most one a second, and one in ten seconds
while nothing changes. The change of a stage counts from the last reported step, so the changes always add up to the values. A
pipeline that delivers nothing reports one step, then none until it delivers again: a job whose training hangs must fall silent,
as that is how the runner finds it (`hang_after`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...worker import script
from ..tuning.controller import Decision, Observation, StageReading, Unit, Values, reward

LEAST_PAUSE = 1.0  #: seconds between two reported steps
QUIET_PAUSE = 10.0  #: the same where nothing changed
_WORDS = 1000  #: characters of a reason


@dataclass(slots=True)
class Journal:
    """Reports some steps of one pipeline. ``clock``: monotonic seconds; ``tell`` takes the fields of `protocol.Pipeline`."""

    name: str
    tell: Callable[[Mapping[str, Any]], None] = script.report_pipeline
    clock: Callable[[], float] = time.monotonic
    _told_at: float = -float("inf")
    _sized: tuple[tuple[str, Unit], ...] | None = None  #: the last reported knobs; None: no report yet
    _values: Values = ()  #: of those knobs
    _said: tuple[str, str, str] = ("", "", "")  #: the last reported controller, reason and refusal
    _stalled: bool = False

    def step(self, seen: Observation, controller: str, wanted: Decision, given: Values, refused: str) -> None:
        stalled = seen.throughput <= 0
        sized = tuple((knob.stage, knob.unit) for knob in seen.knobs)
        fresh = sized != self._sized  # also another pipeline of the same name, after the first one
        before = seen.values if fresh else self._values
        said = (controller, wanted.why[:_WORDS], refused[:_WORDS])
        changed = fresh or given != before or seen.resized or said != self._said
        now = self.clock()
        if (stalled and self._stalled) or now - self._told_at < (LEAST_PAUSE if changed else QUIET_PAUSE):
            return
        self.tell(_fields(self.name, seen, said, wanted.values, given, before))
        self._told_at, self._stalled = now, stalled
        self._sized, self._values, self._said = sized, given, said


def _fields(name: str, seen: Observation, said: tuple[str, str, str], wanted: Values, given: Values, before: Values) -> dict[str, Any]:
    controller, why, refused = said
    stages = []
    for stage in seen.stages:
        knobs = [i for i, knob in enumerate(seen.knobs) if knob.stage == stage.name]
        stages += [
            _stage(stage, seen.window)
            | {"unit": seen.knobs[i].unit.value, "value": given[i], "action": given[i] - before[i], "wanted": wanted[i]}
            | ({"workers": given[i]} if seen.knobs[i].unit is Unit.WORKERS else {})
            for i in knobs
        ] or [_stage(stage, seen.window)]
    return {
        "name": name, "controller": controller, "throughput": seen.throughput, "demand": seen.demand, "reward": reward(seen),
        "cpus": seen.cpus, "cpu_used": seen.cpu_used, "memory_used": seen.memory_used, "memory_total": seen.memory_total,
        "why": why, "refused": refused, "stages": stages,
    }  # fmt: skip


def _stage(stage: StageReading, window: float) -> dict[str, Any]:
    return {
        "name": stage.name, "workers": stage.workers, "cpu": stage.cpu, "wait": stage.wait,
        "throughput": stage.items / window if window > 0 else 0.0, "starved": stage.starved, "blocked": stage.blocked,
        "queue": stage.queue, "queue_bytes": stage.queue_bytes,
    }  # fmt: skip


_journals: dict[str, Journal] = {}


def report(seen: Observation, controller: str, wanted: Decision, given: Values, refused: str, *, name: str = "pipeline") -> None:
    """Tell Stoker of one step of a tuner; outside a job nothing happens.

    ``given``: the values from now on, one a knob; ``refused``: the guard's refusals and reasons, empty if it allowed all.
    ``name`` tells several pipelines of one process apart.
    """
    journal = _journals.setdefault(name, Journal(name))
    journal.step(seen, controller, wanted, given, refused)

"""The agent on one live pipeline: it chooses, sees the outcome, and learns a little from each window."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..controller import Observation, Values
from .features import Encoder, Rows
from .q_network import STAY, STEPS, Choice, Learning, QAgent, Trail

FIRST_UPDATE_AFTER = 64  #: transitions before the first update: it would overfit to fewer
TRANSITIONS_KEPT = 2_000  #: transitions of a live pipeline


class Pilot:
    """``steer`` once a window. Its cost is bounded: one pass through the network and ``updates`` small updates."""

    def __init__(
        self,
        knobs: int,
        *,
        pretrained: bool = True,
        weights: Path | None = None,
        layout: str = "stages",
        rate: float = 2e-5,
        updates: int = 1,
        seed: int = 0,
    ) -> None:
        self.agent = QAgent(layout, Learning(rate=rate, batch=32, replay=TRANSITIONS_KEPT), knobs=knobs, seed=seed)
        if pretrained:
            self.agent.load(weights)
        self.updates = updates
        self.encoder = Encoder(layout)
        self._trail = Trail([], [], [])
        self._rows: Rows | None = None
        self._values: Values = ()

    def see(self, seen: Observation) -> tuple[Rows, float]:
        """Takes in a window, the outcome of the last choice, and learns from it. Returns the window's rows and normalised reward."""
        rows, earned = self.encoder.encode(seen)
        if self._rows is not None:
            self.agent.remember(self._trail, self._rows, taken(self._values, seen.values), earned, rows)
            if self.agent.replay.size >= FIRST_UPDATE_AFTER:
                for _ in range(self.updates):
                    self.agent.learn()
        self._rows, self._values = rows, seen.values
        return rows, earned

    def forget_way(self) -> None:
        """The next windows are not the outcome of the agent's choices: the values were set elsewhere, or the machine has changed."""
        self._trail = Trail([], [], [])
        self._rows = None

    def moved(self, seen: Observation, chosen: Choice) -> Values:
        return tuple(knob.clip(value + STEPS[place]) for knob, value, place in zip(seen.knobs, seen.values, chosen, strict=True))


def taken(before: Sequence[int], after: Sequence[int]) -> Choice:
    """The steps that were really made: the guard, the bounds of a knob or another controller may have changed the wanted values."""
    return np.array(
        [min(range(len(STEPS)), key=lambda place: abs(STEPS[place] - (b - a))) for a, b in zip(before, after, strict=True)], np.int64
    )


def in_words(seen: Observation, chosen: Choice) -> str:
    """``udf +5, prefetch -1``, for the table `pipelines`."""
    changes = [f"{knob.stage} {STEPS[place]:+d}" for knob, place in zip(seen.knobs, chosen, strict=True) if place != STAY]
    return ", ".join(changes) or "stays"

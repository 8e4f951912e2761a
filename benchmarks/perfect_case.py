"""What one run of the evaluation of PerFect is asked for, and what is measured of it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

Method = Literal["plain", "echo", "perfect"]
Augment = Literal["each-use", "once", "stage 2", "never"]
Peak = Literal["rule", "search", "none"]

BATCH = 32
STEPS = 456  #: 12 passes without reuse
IMAGES = 1216  #: to train on: 38 batches, so that a batch is 2.6 % of the data (the thesis's 2 048 of 50 000 are 4.1 %)
TESTED, VALIDATED, THERE = 1500, 500, 5000  #: images held out, the first of all that there are
LR, MOMENTUM, WEIGHT_DECAY = 0.05, 0.9, 5e-4


@dataclass(frozen=True, slots=True)
class Case:
    """One training."""

    method: Method = "plain"
    repeat: int = 1  #: uses of a decoded image, of PerFect before the switch
    augment: Augment = "each-use"  #: once: when it is decoded; stage 2: not before the switch
    buffer: float = 1.0  #: batches of decoded images that may be held; the thesis's figures 4-1 and 4-10 have one
    last: float | None = 0.25  #: of the steps, without reuse; None: from a plateau of the validation on
    schedule: Literal["onecycle", "cosine"] = "onecycle"  #: after the switch
    peak: Peak | float = "rule"  #: of the learning rate after the switch; none: the first schedule goes on
    moments: Literal["keep", "reset"] = "keep"  #: the optimizer's, at the switch
    weight_decay: float = WEIGHT_DECAY
    images: int = IMAGES
    steps: int = STEPS
    decode: bool = True  #: False: decoded images are read from memory; the same to the last bit, for accuracy alone
    seed: int = 0

    def __str__(self) -> str:
        """What differs from plain loading, short."""
        return " ".join([self.method, *(f"{name}={value}" for name, value in self._said())])

    def _said(self) -> list[tuple[str, object]]:
        return [(field.name, value) for field in fields(self)[1:] if (value := getattr(self, field.name)) != field.default]


@dataclass(frozen=True, slots=True)
class Point:
    """Where a training stood when it was tested."""

    step: int
    decodes: int
    cpu: float  #: seconds of the process so far, tests excluded
    accuracy: float  #: of the test images, in percent


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one training. CPU times are seconds; tests of the accuracy are in none of them."""

    curve: list[Point]
    cpu: float
    decodes: int
    decode_cpu: float
    rates: list[float]  #: the learning rate of each step
    switched: int | None  #: the step at which the stage without reuse began
    stage_1_decodes: int
    stage_1_decode_cpu: float
    peak: float | None  #: of the learning rate after the switch
    search_cpu: float

    @property
    def accuracy(self) -> float:
        return self.curve[-1].accuracy

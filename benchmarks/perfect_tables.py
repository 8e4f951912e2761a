"""The tables of the evaluation of PerFect (004 ch. 4.4): which trainings are compared, and how."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from perfect_case import IMAGES, LR, STEPS, WEIGHT_DECAY, Augment, Case

REPEATS = (2, 3, 4, 6)
PLAIN = Case()
PERFECT = Case(method="perfect", repeat=3)
_ECHO = Case("echo", 3)
_ONCE = replace(PERFECT, augment="once", last=0.4)  # the thesis's 40 epochs three times, then 80
FEWER = 320  #: images
NONE = "–"


@dataclass(frozen=True, slots=True)
class Row:
    label: str
    case: Case
    baseline: Case = PLAIN


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    rows: Sequence[Row]
    timed: bool = False  #: images are decoded, and what that costs is shown


@dataclass(frozen=True, slots=True)
class Claim:
    """What the thesis says of the accuracy of one case beside another's."""

    thesis: str
    figure: str
    one: Case
    other: Case
    says: Literal["reaches", "above", "below"]


@dataclass(frozen=True, slots=True)
class Scale:
    seeds: int  #: of the trainings of timed tables, which decode
    more: int  #: further ones, of all trainings, for which decoded images come from memory: for accuracy alone
    steps: int = STEPS
    images: int = IMAGES


@dataclass(frozen=True, slots=True)
class Plan:
    """What is trained for these tables: each row with the same seeds, so that differences are paired."""

    tables: Sequence[Table]
    scale: Scale

    def trainings(self, case: Case) -> list[Case]:
        """One a seed. The same seed means the same initial weights and the same order of images."""
        scale = self.scale
        timed = any(case in (row.case, row.baseline) for table in self.tables if table.timed for row in table.rows)
        scaled = replace(case, steps=max(1, round(case.steps * scale.steps / STEPS)), images=min(case.images, scale.images))
        return [replace(scaled, seed=seed, decode=timed and seed < scale.seeds) for seed in range(scale.seeds + scale.more)]

    def __iter__(self) -> Iterator[Case]:
        """All trainings, table by table, and seed by seed: rows that are compared are measured while the machine is as busy."""
        for table in self.tables:
            kinds = dict.fromkeys(case for row in table.rows for case in (row.baseline, row.case))
            yield from chain.from_iterable(zip(*map(self.trainings, kinds), strict=True))


# The comparisons


def same_decodes(repeat: int) -> int:
    """Steps of plain loading with as many decodes as PerFect has that reuses for three quarters of its steps."""
    return round(STEPS * (0.75 / repeat + 0.25))


def _grid(augment: Augment, searched: Sequence[int]) -> Iterator[Row]:
    plain = Case(augment=augment)
    yield Row("plain", plain, plain)
    for repeat in REPEATS:
        perfect = replace(PERFECT, repeat=repeat, augment=augment)
        yield Row(f"plain, as many decodes as PerFect {repeat}", replace(plain, steps=same_decodes(repeat)), plain)
        yield Row(f"echo {repeat}", Case("echo", repeat, augment), plain)
        yield Row(f"PerFect {repeat}", perfect, plain)
        if repeat in searched:
            yield Row(f"PerFect {repeat}, searched peak", replace(perfect, peak="search"), plain)


def _buffers() -> Iterator[Row]:
    yield Row("plain", PLAIN)
    for repeat in (3, 6):
        for batches in (1, 2, 3, 8) if repeat == 3 else (1, 3):
            yield Row(f"echo {repeat}, buffer {batches}", Case("echo", repeat, buffer=batches))
            yield Row(f"PerFect {repeat}, buffer {batches}", replace(PERFECT, repeat=repeat, buffer=batches))


def _switches() -> Iterator[Row]:
    for last in (0.5, 0.4, 0.25, 0.1, 0.05):
        yield Row(f"PerFect 3, last {last:.0%} without reuse", replace(PERFECT, last=last))
    yield Row("PerFect 3, without reuse from a plateau on", replace(PERFECT, last=None))


def _augmentations() -> Iterator[Row]:
    said: dict[Augment, str] = {"each-use": "distorted at each use", "once": "distorted once", "stage 2": "not distorted"}
    for repeat in (3, 6):
        yield Row(f"echo {repeat}, distorted once", Case("echo", repeat, "once"))
        for augment, how in said.items():
            yield Row(f"PerFect {repeat}, {how} before the switch", replace(PERFECT, repeat=repeat, augment=augment))
    yield Row("PerFect 3, distorted once before the switch, last 40% without reuse", _ONCE)


def _schedules() -> Iterator[Row]:
    yield Row("PerFect 6, first schedule goes on", replace(PERFECT, repeat=6, peak="none"))
    for schedule in ("onecycle", "cosine"):
        one = replace(PERFECT, repeat=6, schedule=schedule)
        for peak in (LR / 5, LR, 2 * LR):
            yield Row(f"PerFect 6, {schedule}, peak {peak:g}", replace(one, peak=peak))
        yield Row(f"PerFect 6, {schedule}, peak by rule", one)
        yield Row(f"PerFect 6, {schedule}, peak by rule, moments reset", replace(one, moments="reset"))
        yield Row(f"PerFect 6, {schedule}, peak searched", replace(one, peak="search"))


def _few() -> Iterator[Row]:
    said: dict[Augment, str] = {"each-use": "", "never": ", never distorted"}
    for augment, how in said.items():
        few = Case(images=FEWER, augment=augment)
        yield Row(f"plain{how}", few, few)
        yield Row(f"echo 6{how}", replace(few, method="echo", repeat=6), few)
        yield Row(f"PerFect 6{how}", replace(few, method="perfect", repeat=6), few)


def _decays() -> Iterator[Row]:
    for decay in (WEIGHT_DECAY, 10 * WEIGHT_DECAY):
        for repeat, batches in ((2, 3), (6, 3), (6, 1)):
            echo = Case("echo", repeat, buffer=batches, weight_decay=decay)
            yield Row(f"echo {repeat}, buffer {batches}, decay {decay:g}", echo, Case(weight_decay=decay))


GRID = Table("Accuracy and cost, images distorted at each use", list(_grid("each-use", searched=(3, 6))), timed=True)
BARE = Table("Accuracy, images never distorted", list(_grid("never", searched=())))
BUFFERS = Table("Size of the buffer, in batches", list(_buffers()))
SWITCHES = Table("When the reuse ends", list(_switches()))
AUGMENTED = Table("Distortion before the switch", list(_augmentations()))
SCHEDULES = Table("Learning rate after the switch", list(_schedules()))
FEW = Table(f"Fewer images: {FEWER}", list(_few()))
DECAYS = Table("Weight decay", list(_decays()))
TABLES = {
    "grid": GRID,
    "bare": BARE,
    "buffers": BUFFERS,
    "schedules": SCHEDULES,
    "switches": SWITCHES,
    "distortion": AUGMENTED,
    "few": FEW,
    "decay": DECAYS,
}
QUICK = Table("Quick", [Row("plain", PLAIN), Row("echo 3", _ECHO), Row("PerFect 3", PERFECT)], timed=True)

_SIX = replace(PERFECT, repeat=6)
CLAIMS = (
    Claim("PerFect 3 reaches plain loading, buffer of 1 batch", "4-1, 4-10", PERFECT, PLAIN, "reaches"),
    Claim("PerFect 3 reaches it, 3 batches", "4-21", replace(PERFECT, buffer=3), PLAIN, "reaches"),
    Claim("reuse 3 alone stays below it, 1 batch", "4-9", _ECHO, PLAIN, "below"),
    Claim("reuse 3 alone stays below it, 2 batches", "4-9", replace(_ECHO, buffer=2), PLAIN, "below"),
    Claim("reuse 3 alone reaches it, 3 batches", "4-9", replace(_ECHO, buffer=3), PLAIN, "reaches"),
    Claim("reuse 6 alone stays below it, 1 batch, not distorted anew", "4-25", Case("echo", 6, "once"), PLAIN, "below"),
    Claim("PerFect 6 reaches it, 3 batches", "4-27", replace(PERFECT, repeat=6, buffer=3), PLAIN, "reaches"),
    Claim("PerFect 3 is above reuse 3 alone", "4-10", PERFECT, _ECHO, "above"),
    Claim("PerFect 6 is above reuse 6 alone", "4-27", replace(PERFECT, repeat=6), replace(_ECHO, repeat=6), "above"),
    Claim("a larger buffer is better: reuse 6 alone, 3 batches and 1", "4-25, 4-26", Case("echo", 6, buffer=3), Case("echo", 6), "above"),
    Claim("fewer uses are better: reuse alone, 2 and 6", "4-25, 4-26", Case("echo", 2), Case("echo", 6), "above"),
    Claim("PerFect 3 reaches it, not distorted anew in the first 60 %", "4-18", _ONCE, PLAIN, "reaches"),
    Claim(
        "distorting anew helps: PerFect 6, each use and once",
        "4.4.3",
        replace(PERFECT, repeat=6),
        replace(PERFECT, repeat=6, augment="once"),
        "above",
    ),
    Claim(
        "PerFect 6 is above reuse 6 alone, both distorted once",
        "4.4.3",
        replace(_SIX, augment="once"),
        Case("echo", 6, "once"),
        "above",
    ),
    Claim("PerFect 3 reaches it with the last 5 % without reuse", "4-31", replace(PERFECT, last=0.05), PLAIN, "reaches"),
    Claim("PerFect 6 reaches it by a cosine too", "4-21", replace(PERFECT, repeat=6, schedule="cosine"), PLAIN, "reaches"),
    Claim("(ours) PerFect 3 is above plain loading with as many decodes", NONE, PERFECT, replace(PLAIN, steps=same_decodes(3)), "above"),
    Claim(
        "(ours) PerFect 6 is above plain loading with as many decodes",
        NONE,
        replace(PERFECT, repeat=6),
        replace(PLAIN, steps=same_decodes(6)),
        "above",
    ),
)

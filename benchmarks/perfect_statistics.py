"""What the trainings of the evaluation of PerFect come to: averages, paired differences, time to a target, beside the thesis."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfect_case import BATCH, LR, Case, Measured, Point
from perfect_tables import CLAIMS, NONE, Claim, Plan, Row, Table
from stoker.runners.loaders.reuse.theory import warning

#: 97.5 % quantile of Student's t by degrees of freedom
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
_ACCURACIES = {"accuracy %", "±", "difference", "difference here", "mean difference", "worst"}

Cells = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """Of two cases, trained with the same seeds: mean and half of its 95 % confidence interval, infinite where there is one seed."""

    mean: float
    half: float

    def interval(self) -> str:
        return f"± {self.half:.2f}" if math.isfinite(self.half) else NONE

    @property
    def below(self) -> bool:
        return self.mean + self.half < 0

    @property
    def above(self) -> bool:
        return self.mean - self.half > 0


def paired(one: Sequence[float], other: Sequence[float]) -> Difference:
    each = [a - b for a, b in zip(one, other, strict=True)]
    if len(each) == 1:
        return Difference(each[0], math.inf)
    t = _T[min(len(each) - 1, len(_T)) - 1]
    return Difference(statistics.fmean(each), t * statistics.stdev(each) / len(each) ** 0.5)


class Results:
    """Of the trainings of a plan."""

    def __init__(self, plan: Plan, runs: Mapping[Case, Measured]) -> None:
        self._plan, self._runs = plan, runs

    def has(self, case: Case) -> bool:
        return all(one in self._runs for one in self._plan.trainings(case))

    def of(self, case: Case) -> list[Measured]:
        """By seed."""
        return [self._runs[one] for one in self._plan.trainings(case)]

    def timed(self, case: Case) -> list[Measured]:
        """Only those that decoded."""
        return [self._runs[one] for one in self._plan.trainings(case) if one.decode]

    def accuracies(self, case: Case) -> list[float]:
        return [one.accuracy for one in self.of(case)]

    def target(self, baseline: Case) -> float:
        """An accuracy that the baseline ends with, but for its noise: its mean less one standard deviation over the seeds."""
        ends = self.accuracies(baseline)
        return statistics.fmean(ends) - _spread(ends)

    def difference(self, one: Case, other: Case) -> Difference:
        return paired(self.accuracies(one), self.accuracies(other))

    def tables(self) -> dict[str, list[Cells]]:
        """Of the rows whose trainings are all there."""
        there = {table.title: [row for row in table.rows if self.has(row.case) and self.has(row.baseline)] for table in self._plan.tables}
        tables = {table.title: [self._cells(table, row) for row in there[table.title]] for table in self._plan.tables}
        shown = {case for rows in there.values() for row in rows for case in (row.case, row.baseline)}
        tables["Beside the thesis"] = [self._claim(claim) for claim in CLAIMS if {claim.one, claim.other} <= shown]
        tables["The warning (Eqn 4.21)"] = self._warnings([row for rows in there.values() for row in rows])
        return {title: rows for title, rows in tables.items() if rows}

    def _warnings(self, rows: Sequence[Row]) -> list[Cells]:
        """How the mixes fared of which the theory warns, and the others."""
        found = []
        for method, said in (("echo", "reuse alone"), ("perfect", "PerFect, after the fine-tuning")):
            for warns in (True, False):
                mixes = {(row.case, row.baseline) for row in rows if row.case.method == method and warned(row.case) == warns}
                differences = [self.difference(*mix) for mix in mixes]
                if differences:
                    found.append(
                        {
                            "": said,
                            "warned": _yes(warns),
                            "mixes": len(differences),
                            "lost accuracy": sum(one.below for one in differences),
                            "mean difference": round(statistics.fmean(one.mean for one in differences), 2),
                            "worst": round(min(one.mean for one in differences), 2),
                        }
                    )
        return found

    def _cells(self, table: Table, row: Row) -> Cells:
        ends = self.accuracies(row.case)
        difference = self.difference(row.case, row.baseline)
        cells: Cells = {
            "": row.label,
            "accuracy %": round(statistics.fmean(ends), 2),
            "±": round(_spread(ends), 2),
            "difference": round(difference.mean, 2),
            "95 %": difference.interval(),
            "lost": _yes(difference.below),
            "warned": _yes(warned(row.case)),
        }
        return cells | self._costs(row) | (self._times(row) if table.timed else {})

    def _costs(self, row: Row) -> Cells:
        measured = self.of(row.case)
        plain = statistics.fmean(one.decodes for one in self.of(row.baseline))
        saved = 100 * (1 - statistics.fmean(one.decodes for one in measured) / plain)
        switched = [one for one in measured if one.switched]
        before = statistics.fmean(100 * (1 - one.stage_1_decodes / (BATCH * (one.switched or 1))) for one in switched) if switched else None
        return {
            "decodes saved %": round(saved),
            "before the switch %": NONE if before is None else round(before),
            "steps to target": self._first(self.of(row.case), row.baseline, lambda point: point.step),
        }

    def _times(self, row: Row) -> Cells:
        here, there = self.timed(row.case), self.timed(row.baseline)
        decode, plain = (statistics.fmean(one.decode_cpu for one in some) for some in (here, there))
        return {
            "decode CPU s": round(decode, 2),
            "saved %": round(100 * (1 - decode / plain)),
            "CPU s": round(statistics.fmean(one.cpu for one in here), 1),
            "CPU s to target": self._first(here, row.baseline, lambda point: point.cpu),
        }

    def _first(self, measured: Sequence[Measured], baseline: Case, what: Callable[[Point], float]) -> str | float:
        """The mean of where the target was reached first; with how many reached it, where not all did."""
        target = self.target(baseline)
        firsts = [next((what(point) for point in one.curve if point.accuracy >= target), None) for one in measured]
        reached = [first for first in firsts if first is not None]
        if not reached:
            return NONE
        mean = round(statistics.fmean(reached), 1)
        return mean if len(reached) == len(firsts) else f"{mean:g} ({len(reached)} of {len(firsts)})"

    def _claim(self, claim: Claim) -> Cells:
        found = self.difference(claim.one, claim.other)
        return {
            "thesis": claim.thesis,
            "figure": claim.figure,
            "difference here": round(found.mean, 2),
            "95 %": found.interval(),
            "so": _verdict(claim, found, _spread(self.accuracies(claim.other))),
        }


def warned(case: Case) -> bool:
    """Whether the theory (Eqn 4.21) says of such a mix that it is a bad one."""
    said = warning(
        repeat=case.repeat,
        buffer=round(case.buffer * BATCH),
        batch_size=BATCH,
        samples=case.images,
        steps=case.steps,
        lr=LR / 2,  # the mean of a cosine
        weight_decay=case.weight_decay,
        augment=case.augment == "each-use",
    )
    return said is not None


def _yes(true: bool) -> str:
    return "yes" if true else "no"


def _verdict(claim: Claim, found: Difference, noise: float) -> str:
    """``noise``: standard deviation over the seeds of what is reached, or not."""
    match claim.says:
        case "reaches":
            return "no" if found.below else "within noise" if found.mean >= -noise else "not told apart"
        case "above":
            return "yes" if found.above else "no" if found.below else "not told apart"
        case "below":
            return "yes" if found.below else "no" if found.above else "not told apart"


def _spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def readable(tables: Mapping[str, Sequence[Cells]]) -> dict[str, list[Cells]]:
    """For people: accuracies to a hundredth of a point."""
    return {title: [{name: _hundredths(name, cell) for name, cell in row.items()} for row in rows] for title, rows in tables.items()}


def _hundredths(column: str, cell: Any) -> Any:
    return f"{cell:.2f}" if column in _ACCURACIES and isinstance(cell, float) else cell

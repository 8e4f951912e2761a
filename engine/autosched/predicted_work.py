"""Unknown durations, predicted within a search of a pool (002 ch. 6.4.2.2): of its jobs, and of the arrivals copied from them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from ...policies.autosched.arrivals_ahead import HORIZON_BINS
from ...policies.autosched.duration_ranges import DurationRanges
from ...policies.contract import Bools, Ints
from .situation import JobHistory, Situation, look_ahead, predicted_durations, predictor_of, with_ran


@dataclass(frozen=True, slots=True)
class Untold:
    """Jobs of unknown duration, and the history from which it is predicted."""

    history: JobHistory
    row: Ints  #: of each job of the view, its row in the history; -1: it has none
    untold: Bools  #: jobs of the view of whose duration nothing is known
    predictor: DurationRanges | None = None  #: learnt less than a day ago


def with_predicted(situation: Situation, known: Untold) -> tuple[Situation, DurationRanges]:
    """The situation with predicted durations in place of usual ones. Raises NoPredictor."""
    jobs = situation.view.jobs
    history = with_ran(known.history, known.row, jobs.run_time)
    predictor = known.predictor or predictor_of(history)
    durations = predicted_durations(history, predictor, situation.view.now)
    coming, _ = look_ahead(history, durations, situation.view.now, situation.period / HORIZON_BINS)
    rows = np.flatnonzero((known.row >= 0) & known.untold)
    left = situation.left.copy()
    left[rows] = np.maximum(durations[known.row[rows]] - jobs.run_time[rows], 1e-3)
    return dataclasses.replace(situation, left=left, coming=coming), predictor


def accuracy_words(predictor: DurationRanges) -> str:
    """The accuracy on unseen jobs, beside that of simple rules."""
    beside = ", ".join(f"{name} {100 * share:.0f}" for name, share in predictor.beside.items())
    taken = f", so {predictor.rule} is taken" if predictor.rule else ""
    return f"durations are predicted, the range right in {100 * predictor.accuracy:.0f} % ({beside} %{taken})"

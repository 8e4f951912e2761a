"""The state of a simulated cluster at a moment of a trace, from which `stoker tune --trace` and the benchmarks start."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...policies import registry
from ...policies.autosched.duration_ranges import DAY, DurationRanges, NoPredictor
from ...policies.contract import Floats, View
from ..sim.cluster import Cluster
from ..sim.run_options import Options
from ..sim.simulator import Simulation
from ..sim.workload import Workload
from .predicted_work import accuracy_words
from .situation import JobHistory, Situation, look_ahead, predicted_durations, predictor_of, usual_durations, with_ran


class DailyPredictor:
    """The local predictor, learnt anew once a day (002 ch. 6.5.1)."""

    def __init__(self) -> None:
        self._newest: DurationRanges | None = None
        self._learnt_at = -math.inf

    def at(self, history: JobHistory, now: float) -> DurationRanges:
        """Raises NoPredictor."""
        if self._newest is None or now >= self._learnt_at + DAY:
            self._newest, self._learnt_at = predictor_of(history), now
        return self._newest


def stand_at(workload: Workload, cluster: Cluster, policy: str, config: Mapping[str, Any], options: Options, moment: float) -> Simulation:
    """The simulation of the trace up to then."""
    simulation = Simulation(workload, cluster, registry.create(policy, config), dataclasses.replace(options, until=moment), None)
    simulation.run(None)
    simulation.agenda.now = moment
    return simulation


def situation_of(
    simulation: Simulation, policy: str, options: Options, predictor: DailyPredictor | None = None, vcs: Sequence[str] = ()
) -> tuple[Situation, str]:
    """The situation as it is known at the simulation's moment, nothing later; and words on the arrivals that are expected.

    ``predictor``: predicts unknown durations, if it can. ``vcs``: the virtual cluster of each job.
    """
    view, history = plain_view(simulation), history_of(simulation, vcs)
    durations, told = usual_durations(history), ""
    if predictor is not None:
        try:
            if simulation.table.ids is None:
                history = with_ran(history, view.jobs.id, view.jobs.run_time)
            newest = predictor.at(history, view.now)
            durations = predicted_durations(history, newest, view.now)
            told = f"; {accuracy_words(newest)}"
        except NoPredictor as error:
            told = f"; durations are not predicted: {error}"
    coming, words = look_ahead(history, durations, view.now)
    words += told
    left = believed_left(view, history, durations, simulation.table.ids is None)
    situation = Situation(view, left, coming, policy, options, simulation.evictions, simulation.memory)
    return situation, words


def plain_view(simulation: Simulation) -> View:
    view = simulation.view()
    jobs = {name: np.array(column) for name, column in _columns(view).items()}
    return dataclasses.replace(view, jobs=dataclasses.replace(view.jobs.plain(), **jobs), free=None)  # type: ignore[attr-defined]


def _columns(view: View) -> dict[str, Any]:
    """Copies, as a view of the simulator is valid only until the next one."""
    jobs = view.jobs.plain()  # type: ignore[attr-defined]
    return {field.name: getattr(jobs, field.name) for field in dataclasses.fields(jobs) if getattr(jobs, field.name) is not None}


def history_of(simulation: Simulation, vcs: Sequence[str] = ()) -> JobHistory:
    workload, now = simulation.workload, simulation.now
    ended = simulation.recorder.ended
    whole = JobHistory(
        workload.submitted,
        workload.gpus_min,
        np.where(np.isnan(ended), np.nan, workload.duration),
        ended.copy(),
        [workload.users[code] for code in workload.user.tolist()],
        [workload.models[code] for code in workload.model.tolist()],
        vcs,
    )
    return whole.until(now)


def believed_left(view: View, history: JobHistory, durations: Floats, numbered: bool) -> Floats:
    """Seconds of work left: as the policy is told, else by similar jobs, and never less than a tenth of the run time so far."""
    jobs = view.jobs
    guessed = np.full(len(jobs), float(np.median(durations)) if len(durations) else 3600.0)
    if numbered and len(durations):
        guessed = durations[np.minimum(jobs.id, len(durations) - 1)]
    guessed = np.maximum(guessed - jobs.run_time, np.maximum(0.1 * jobs.run_time, 1.0))
    return np.maximum(np.where(np.isnan(jobs.remaining), guessed, jobs.remaining), 1e-6)

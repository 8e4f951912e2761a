"""The present state of a pool and the arrivals that are expected, from which trials are simulated (002 ch. 6.4.2)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...policies.arrays import kinds_of
from ...policies.autosched.arrivals_ahead import BIN_SECONDS, HORIZON_BINS, arrivals_ahead
from ...policies.autosched.causal_model import workload_features
from ...policies.autosched.duration_ranges import DurationRanges, PastJobs
from ...policies.autosched.job_aggregation import aggregate
from ...policies.autosched.search import TrialFigures
from ...policies.contract import Bools, Floats, Ints, Jobs, Memory, Phase, View
from ..forecast.ongoing import OutOfTime, drained
from ..scheduling.guards import Evictions
from ..sim.cluster import Cluster
from ..sim.results.figures import rho_of
from ..sim.results.result import Result
from ..sim.run_options import Options
from ..sim.workload import Workload, make_workload

MIN_HISTORY_JOBS = 30  #: of a history from which arrivals are copied
MAX_TRIAL_SECONDS = 7 * 86400.0  #: simulated time after which a trial ends
MAX_PREDICTOR_JOBS = 5000  #: newest jobs that the local predictor is learnt from, which takes some 4 s
DEFAULT_DURATION = 3600.0  #: seconds of a job of unknown duration, in a pool where none has ended


@dataclass(frozen=True, slots=True)
class JobHistory:
    """Jobs that were submitted by now, a row each; times as of the View's clock."""

    submitted: Floats
    gpus: Ints
    duration: Floats  #: seconds that it ran; NaN: it has not ended
    ended: Floats  #: NaN: it has not
    user: Sequence[str]
    model: Sequence[str] = ()
    vc: Sequence[str] = ()  #: virtual cluster, where a trace names it
    ran: Floats | None = None  #: run time so far of those that have not ended; None: unknown

    def __len__(self) -> int:
        return len(self.submitted)

    def until(self, now: float) -> JobHistory:
        """The history as it was known then."""
        past = np.flatnonzero(self.submitted <= now)
        over = self.ended[past] <= now
        return JobHistory(
            self.submitted[past],
            self.gpus[past],
            np.where(over, self.duration[past], np.nan),
            np.where(over, self.ended[past], np.nan),
            [self.user[row] for row in past.tolist()],
            [self.model[row] for row in past.tolist()] if len(self.model) else (),
            [self.vc[row] for row in past.tolist()] if len(self.vc) else (),
        )


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a trial needs, in a form that can be sent to another process."""

    view: View
    left: Floats  #: seconds of work that each job of the view is taken to have left
    coming: Workload
    policy: str
    options: Options
    evictions: Evictions = dataclasses.field(default_factory=Evictions)
    memory: Memory = None
    period: float = 3600.0  #: seconds after which a change is measured
    weight: Ints | None = None  #: jobs that each row stands for, those of the view first; None: itself

    @property
    def jobs(self) -> int:
        return len(self.view.jobs) + len(self.coming)

    @property
    def has_deadlines(self) -> bool:
        """Whether jobs at hand have deadlines; those of expected jobs are unknown."""
        return bool(np.isfinite(self.view.jobs.tier_deadline).any())


def look_ahead(history: JobHistory, durations: Floats, now: float, bin_seconds: float = BIN_SECONDS) -> tuple[Workload, str]:
    """The arrivals of the next hour, and words on them. ``durations``: seconds of each job of the history, known or believed. With too
    short a history no arrivals are expected, and the words say so."""
    if len(history) < MIN_HISTORY_JOBS:
        return no_jobs(), f"no arrivals are expected: the history has {len(history)} jobs, {MIN_HISTORY_JOBS} are needed"
    try:
        copied = arrivals_ahead(history.submitted, now, bin_seconds)
    except ValueError as error:
        return no_jobs(), f"no arrivals are expected: {error}"
    rows = copied.rows
    names = [history.user[row] for row in rows.tolist()]
    models = [history.model[row] for row in rows.tolist()] if len(history.model) else None
    coming = make_workload(
        "ahead", history.submitted[rows] + copied.shift, np.maximum(durations[rows], 1.0), history.gpus[rows], users=names, models=models
    )
    hours = copied.shift / 3600.0
    return coming, f"{len(rows)} arrivals are expected within {HORIZON_BINS * bin_seconds / 60:g} min, as {hours:.1f} h ago"


def no_jobs() -> Workload:
    return make_workload("ahead", [], [], [], users=[], models=[])


def predictor_of(history: JobHistory) -> DurationRanges:
    """The local predictor, from the newest jobs. Raises NoPredictor."""
    return DurationRanges.learnt(_past_jobs(history, slice(-MAX_PREDICTOR_JOBS, None)))


def _past_jobs(history: JobHistory, rows: slice) -> PastJobs:
    user, vc = _codes(history.user)[rows], _codes(history.vc)[rows] if len(history.vc) else None
    ran = np.zeros(len(history)) if history.ran is None else history.ran
    return PastJobs(history.submitted[rows], history.gpus[rows], history.duration[rows], history.ended[rows], user, ran[rows], vc)


def _codes(names: Sequence[str]) -> Ints:
    return np.unique(np.array(list(names), dtype=object).astype(str), return_inverse=True)[1].astype(np.int64)


def with_ran(history: JobHistory, row: Ints, run_time: Floats) -> JobHistory:
    """``row``: of each job at hand, with the seconds that it has run, its row in the history; -1: it is not there."""
    ran, there = np.zeros(len(history)), row >= 0
    ran[row[there]] = run_time[there]
    return dataclasses.replace(history, ran=ran)


def predicted_durations(history: JobHistory, predictor: DurationRanges, now: float) -> Floats:
    """As `usual_durations`, but for the newest jobs drawn from their predicted ranges."""
    made = usual_durations(history)
    first = max(len(history) - MAX_PREDICTOR_JOBS, 0)
    newest = _past_jobs(history, slice(first, None))
    open_rows = np.flatnonzero(np.isnan(newest.duration))
    made[first + open_rows] = predictor.draw(newest, open_rows.tolist(), now, newest.ran[open_rows])
    return made


def usual_durations(history: JobHistory) -> Floats:
    """Seconds of each job of the history: its own if it has ended, else the median of its user's jobs, else of all."""
    known = ~np.isnan(history.duration)
    median = float(np.median(history.duration[known])) if known.any() else DEFAULT_DURATION
    made = history.duration.copy()
    users = np.array(list(history.user), dtype=object)
    for row in np.flatnonzero(~known).tolist():
        own = history.duration[known & (users == users[row])]
        made[row] = float(np.median(own)) if len(own) else median
    return made


def aggregated(situation: Situation) -> Situation:
    """The situation with alike waiting jobs, and alike arrivals, joined into one each. Jobs that hold GPUs, or ever did, stay single."""
    view, coming = situation.view, situation.coming
    jobs = view.jobs if type(view.jobs) is Jobs else view.jobs.plain()  # type: ignore[attr-defined]
    largest = int(np.bincount(view.gpus.node[view.gpus.usable]).max(initial=1))
    apart: Bools = (jobs.phase != Phase.PENDING) | (jobs.run_time > 0) | (jobs.gpus_max > jobs.gpus_min) | np.isfinite(jobs.deadline)
    if jobs.profile_gpus is not None:
        apart = apart | (jobs.profile_gpus > 0)
    here = aggregate(jobs.submitted_at, situation.left, jobs.gpus_min, largest, apart, _kinds(jobs))
    then = aggregate(coming.submitted, coming.duration, coming.gpus_min, largest, np.zeros(len(coming), dtype=bool), coming.model)
    order = np.argsort(here.first)  # rows of a view stand in the order of submission of their first jobs
    rows = here.first[order]
    made = _rows_of(jobs, rows)
    ratio = np.where(situation.left[rows] > 0, here.duration[order] / np.maximum(situation.left[rows], 1e-9), 1.0)
    made = dataclasses.replace(
        made,
        submitted_at=np.where(here.weight[order] > 1, here.submitted[order], made.submitted_at),
        gpus_min=here.gpus[order],
        gpus_max=np.maximum(here.gpus[order], made.gpus_max),
        remaining=made.remaining * ratio,
    )
    came = make_workload(
        "ahead", then.submitted, then.duration, then.gpus,
        users=[coming.users[coming.user[row]] for row in then.first.tolist()],
        models=[coming.models[coming.model[row]] for row in then.first.tolist()],
    )  # fmt: skip
    weight = np.concatenate((here.weight[order], then.weight))
    return dataclasses.replace(
        situation, view=dataclasses.replace(view, jobs=made, free=None), left=here.duration[order], coming=came, weight=weight
    )


def _kinds(jobs: Jobs) -> Ints:
    """A code for all other properties that policies read: only jobs with the same code become one."""
    words = [np.unique(column, return_inverse=True)[1] for column in (jobs.kind, jobs.backbone, jobs.share) if column is not None]
    profiles = [] if jobs.profile is None else [jobs.profile]
    return kinds_of(jobs.model, jobs.priority, jobs.demand, jobs.gpu_memory, *profiles, *words)


def _rows_of(jobs: Jobs, rows: Ints) -> Jobs:
    """A part of the jobs, in the order of ``rows``."""
    held, tiers = jobs.held[rows], np.diff(jobs.tier_start)[rows]
    columns = {
        field.name: getattr(jobs, field.name)[rows]
        for field in dataclasses.fields(Jobs)
        if not field.name.startswith(("alloc_", "tier_")) and getattr(jobs, field.name) is not None
    }
    tier_rows = np.concatenate(
        [np.arange(jobs.tier_start[row], jobs.tier_start[row + 1]) for row in rows.tolist()] or [np.zeros(0, dtype=int)]
    )
    return Jobs(
        **columns,
        alloc_start=np.concatenate(([0], np.cumsum(held))),
        alloc_gpus=np.concatenate([jobs.allocation(row) for row in rows.tolist()] or [np.zeros(0, dtype=int)]).astype(np.int64),
        tier_start=np.concatenate(([0], np.cumsum(tiers))),
        tier_deadline=jobs.tier_deadline[tier_rows.astype(int)],
        tier_reward=jobs.tier_reward[tier_rows.astype(int)],
    )


def features_of(situation: Situation) -> Floats:
    """The workload features of the causal model."""
    view = situation.view
    weight = np.ones(situation.jobs) if situation.weight is None else situation.weight
    here = int(weight[: len(view.jobs)].sum())
    return workload_features(here, len(view.gpus), float(view.jobs.gpus_min.sum()), situation.left, int(weight.sum()) - here)


DECISIONS_FACTOR = 4  #: a trial is cut off after so many times the decisions that the default takes
MIN_DECISIONS = 200  #: that each trial may take


def bound_of(usual: TrialFigures) -> int:
    """Decisions after which a trial is cut off. They do not depend on other work of the machine, so a search finds the same again; a trial
    is long where jobs change places all the time."""
    return DECISIONS_FACTOR * usual.decisions + MIN_DECISIONS


class CutOff(OutOfTime):
    """A trial was cut off. ``figures``: those so far, with open jobs taken to end when a trial ends at the latest."""

    def __init__(self, figures: TrialFigures | None) -> None:
        self.figures = figures


def measure(situation: Situation, policy: object, cpu_seconds: float = math.inf, most_decisions: float = math.inf) -> TrialFigures:
    """One trial: the pool from its present state until all jobs have ended, at most `MAX_TRIAL_SECONDS`. Raises CutOff, SimulationError."""
    view = situation.view
    if type(view.jobs) is not Jobs:
        view = dataclasses.replace(view, jobs=view.jobs.plain())  # type: ignore[attr-defined]
    until = view.now + MAX_TRIAL_SECONDS
    options = dataclasses.replace(situation.options, until=until)

    def figures(workload: Workload, result: Result) -> TrialFigures:
        weight = np.ones(len(workload)) if situation.weight is None else situation.weight.astype(np.float64)
        return figures_of(workload, result, view, weight, until, situation.period)

    try:
        run = drained(
            view, situation.left, situation.coming, policy, options,  # type: ignore[arg-type]
            evictions=situation.evictions, memory=situation.memory, cpu_seconds=cpu_seconds, most_decisions=most_decisions,
        )  # fmt: skip
    except OutOfTime as error:
        raise CutOff(None if error.run is None else figures(*error.run)) from None
    return figures(*run)


def figures_of(workload: Workload, result: Result, view: View, weight: Floats, until: float, period: float) -> TrialFigures:
    """Objectives and metrics of a trial. A job that has not ended is taken to end when the trial did, which is too early."""
    fates = result.fates
    counts = ~fates.dropped & ~fates.rejected
    ended = np.where(np.isnan(fates.ended), until, fates.ended)
    jct = (ended - workload.submitted)[counts]
    share = weight[counts] / max(weight[counts].sum(), 1.0)
    order = np.argsort(jct)
    at = min(int(np.searchsorted(np.cumsum(share[order]), 0.99)), len(jct) - 1)
    p99 = float(jct[order][at]) if len(jct) else 0.0
    due = workload.last_deadline()
    asked = np.isfinite(due) & (due > view.now) & ~fates.dropped
    rho = rho_of(workload, fates, Cluster(tuple(np.bincount(view.gpus.node, minlength=len(view.nodes)).tolist())))
    known = ~np.isnan(rho)
    here = slice(len(view.jobs))
    taken = np.clip(ended[here] - view.now, 0.0, period)
    usage, total = result.usage, max(int(view.gpus.usable.sum()), 1)
    end = float(ended[counts].max(initial=view.now))
    moments = np.clip(np.concatenate((usage.ts, [end])), view.now, end)
    spans = np.diff(moments)
    whole = max(float(spans.sum()), 1e-9)
    jobs = max(float(weight[counts].sum()), 1.0)
    return TrialFigures(
        jct=float((jct * share).sum()),
        p99=p99,
        slo=float((~counts | (ended > due))[asked].mean()) if asked.any() else 0.0,
        rho=float((rho[known] * weight[known]).sum() / weight[known].sum()) if known.any() else 1.0,
        queueing=float((spans * usage.waiting).sum()) / jobs,
        utilisation=float((spans * usage.busy).sum()) / (total * whole),
        preemptions=float((fates.preemptions * weight).sum()) / jobs,
        cost=(float((spans * usage.busy).sum()) + result.warm_idle) / 3600,
        fragmentation=float((spans * np.maximum(total - usage.busy, 0) * (usage.waiting > 0)).sum()) / (total * whole),
        soon=float((taken * weight[here]).sum() / max(weight[here].sum(), 1.0)),
        decisions=result.decisions,
    )

"""Forecasts of deadlines: the probability of keeping one, and the earliest that could be kept. For people only, not for decisions.

The pool is simulated from its present state (`whatif`), on a thread of its own: one at a time, so that many questions, or a
policy that hangs, cost the daemon no more than one thread; other questions meanwhile are answered with "busy".
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...policies.contract import Floats, Phase, Policy, View
from ..jobs.states import FINAL
from ..json_rows import objects
from ..scheduling.guards import protect
from ..scheduling.plan_check import check
from ..scheduling.policy_errors import words
from ..scheduling.ticks import Rules, Scheduling
from ..scheduling.view import PROFILED_ON
from ..sim.run_options import Costs, Errors, Options
from ..sim.simulation_error import SimulationError
from ..spec.model import JobSpec
from ..store.store import Store
from .ongoing import OutOfTime, Watched, ends_from
from .start_ups import StartUps
from .trial import with_job
from .whatif import FEW_RUNS, Prospect, Question, Simulate, by_queue, look_ahead, quickest, spread_out
from .work_draws import SAID_SPREAD, DurationDraws, Finished, Known

ANSWER_PATIENCE = 8.0  #: longest wait for an answer, in seconds
QUEUE_PATIENCE = 1.0  #: seconds for which a question waits for the one before it
PROFILING = 60.0  #: seconds of a profiling run, if none has been measured: that of jobs with steps of a tenth of a second
RESUMPTION = 5.0  #: seconds of a suspension with its resumption, if none has been measured
DECISIONS_PER_JOB = 100  #: decisions in a job's expected time, in pools of many more jobs
ROUNDS_A_JOB = 20  #: decisions in the mean time for which one job holds a GPU
NEWEST_COMPLETED = 500  #: completed jobs from which durations are learnt

Answer = dict[str, Any]
#: An answer; docs/api.md explains its fields. `status` is "estimated", or why there is no estimate.
_BLANK: Answer = {
    "status": "", "reason": None, "now": None, "runs": 0, "simulated": 0, "needs": None, "gpus": None, "demand": None, "steps": [],
    "end_50": None, "end_90": None, "others": None, "cpu_seconds": 0.0,
}  # fmt: skip


class _NotEstimated(Exception):
    """There is no estimate; the status is a stable word, the reason a sentence for people."""

    def __init__(self, status: str, reason: str) -> None:
        self.status, self.reason = status, reason

    def answer(self) -> Answer:
        return {**_BLANK, "status": self.status, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class _Asked:
    """A pool, a job in its view, and the jobs submitted with it."""

    view: View
    known: Known
    target: int
    fresh: Sequence[int]


class Admission:
    def __init__(self, store: Store, scheduling: Scheduling) -> None:
        self._store, self._scheduling = store, scheduling
        self._turn = asyncio.Semaphore(1)

    async def of_job(self, job: int) -> Answer:
        """The answer for a submitted job."""
        return await self._answer(partial(self._submitted, job))

    async def of_spec(self, specs: Sequence[JobSpec], row: int) -> Answer:
        """The answer for one of several jobs before their common submission."""
        return await self._answer(partial(self._imagined, specs, row))

    async def _answer(self, ask: Callable[[], _Asked]) -> Answer:
        try:
            await asyncio.wait_for(self._turn.acquire(), QUEUE_PATIENCE)
        except TimeoutError:
            return _NotEstimated("busy", "the daemon is busy with another estimate").answer()
        answer: Future[Answer] = Future()
        answer.set_running_or_notify_cancel()
        loop = asyncio.get_running_loop()

        def run() -> None:
            try:
                answer.set_result(self._estimate(ask()))
            except _NotEstimated as none:
                answer.set_result(none.answer())
            except BaseException as error:  # passed on to the asker
                answer.set_exception(error)
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._turn.release)

        try:
            threading.Thread(target=run, name="admission", daemon=True).start()
        except RuntimeError:  # the system has no thread left
            self._turn.release()
            return _NotEstimated("busy", "the daemon can't start a thread for it now").answer()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(answer), ANSWER_PATIENCE)
        except TimeoutError:
            return _NotEstimated("slow", f"it takes longer than {ANSWER_PATIENCE:g} s").answer()

    def _submitted(self, job: int) -> _Asked:
        (row,) = objects(self._store, "api/job", job)
        if row["state"] in FINAL:
            raise _NotEstimated("ended", f"the job has {row['state']}")
        seen = self._scheduling.look(row["pool"])
        work = {found["id"]: found for found in objects(self._store, "policy/known_work", row["pool"])}
        if job not in seen.view.jobs.id:
            why = next((reason for waits, _, reason in seen.ineligible if waits == job), "the job is on its way into the queue")
            raise _NotEstimated("waits", why)
        ids = seen.view.jobs.id.tolist()
        target, array = ids.index(job), row["array_id"]
        mates = [n for n, one in enumerate(ids) if array is not None and work.get(one, {}).get("array_id") == array]
        fresh = [n for n in mates if seen.view.jobs.phase[n] == Phase.PENDING] if seen.view.jobs.phase[target] == Phase.PENDING else []
        return _Asked(seen.view, known_work(ids, work), target, sorted({*fresh, target}))

    def _imagined(self, specs: Sequence[JobSpec], row: int) -> _Asked:
        spec = specs[row]
        if spec.hold or spec.waits_for:
            raise _NotEstimated("waits", "it is held" if spec.hold else f"it waits for {', '.join(spec.waits_for)}")
        if _is_capped(spec):
            raise _NotEstimated("waits", f"it waits for earlier tasks of its array, of which at most {spec.array_cap} run at once")
        view = self._scheduling.look(spec.pool).view
        ids = view.jobs.id.tolist()
        work = {found["id"]: found for found in objects(self._store, "policy/known_work", spec.pool)}
        coming = [one for one in specs if one.pool == spec.pool and not (one.hold or one.waits_for or _is_capped(one))]
        for one in coming:
            took = self._model_takes(one)
            view = with_job(view, one, remaining=took, profile_gpus=self._profile_gpus(one))
            number = int(view.jobs.id[-1])
            whole = took if one.estimate is None else one.estimate
            work[number] = {**_NOTHING_KNOWN, "model": one.model, "whole": whole, "said": one.estimate is not None}
        new = range(len(ids), len(view.jobs))
        return _Asked(view, known_work(view.jobs.id.tolist(), work), new[coming.index(spec)], new)

    def _profile_gpus(self, spec: JobSpec) -> int:
        """GPUs of the profiling run that such a job would need first."""
        if spec.signature is None:  # it cannot be measured
            return 0
        ((measured,),) = self._store.rows("policy/is_measured", spec.signature, spec.pool)
        return 0 if measured else min(spec.gpus_min, PROFILED_ON)

    def _profiling(self, pool: str) -> float:
        """Seconds of a profiling run in the pool."""
        ((median,),) = self._store.rows("policy/profiling_runs", pool)
        return PROFILING if median is None else float(median)

    def _model_takes(self, spec: JobSpec) -> float:
        """Seconds of such a job, by earlier ones of its model; NaN: none has run."""
        ((pace, duration),) = self._store.rows("policy/model_work", spec.model, spec.gpus_min)
        if pace is not None and spec.stop.iterations is not None:
            return float(pace) * spec.stop.iterations
        return math.nan if duration is None else float(duration)

    def _estimate(self, asked: _Asked) -> Answer:
        view, row = asked.view, asked.target
        rules = self._scheduling.rules(view.pool)
        if rules is None or not len(view.gpus):
            raise _NotEstimated("no-pool", f"no runner offers pool {view.pool!r} now")
        if math.isnan(view.jobs.remaining[row]):
            raise _NotEstimated("unknown-duration", "nothing tells how long it takes")
        began = time.thread_time()
        durations = DurationDraws(view.jobs, asked.known, self._finished(view.pool))
        question = Question(view, row, np.array(asked.fresh, dtype=np.int64))
        start_up = start_up_seconds(asked.known, StartUps(self._store.rows("policy/start_ups", view.pool)))
        try:
            simulated, prospect = foresee(question, durations, rules, start_up, self._profiling(view.pool))
        except SimulationError as error:
            raise _NotEstimated("failed", str(error)) from None
        faster, gpus = quickest(view, row)
        needs = float(durations.middles()[row]) / faster + float(ahead_of_work(view, start_up)[row])
        return {
            **_BLANK,
            "status": "estimated",
            "now": view.now,
            "runs": len(prospect.ends),
            "simulated": simulated,
            "needs": needs,
            "gpus": gpus,
            "demand": ("best-effort", "soft", "strict")[int(view.jobs.demand[row])],
            "steps": _steps(view, row, prospect, needs),
            "end_50": prospect.by(0.5),
            "end_90": prospect.by(0.9),
            "others": {"deadlines": prospect.others, "missed": prospect.missed},
            "cpu_seconds": time.thread_time() - began,
        }

    def _finished(self, pool: str) -> Finished:
        rows = self._store.rows("policy/finished_times", pool, NEWEST_COMPLETED)
        return Finished(
            [model for model, _, _ in rows],
            np.array([seconds for _, seconds, _ in rows], dtype=np.float64),
            np.array([math.nan if estimate is None else estimate for _, _, estimate in rows], dtype=np.float64),
        )


def _is_capped(spec: JobSpec) -> bool:
    """Whether it may not start before another task of its array has ended."""
    return spec.array_cap is not None and spec.array_index is not None and spec.array_index >= spec.array_cap


_NOTHING_KNOWN: Answer = {"model": "", "array_id": None, "by_steps": False, "whole": None, "said": False, "cancel_requested": False}


def known_work(ids: Sequence[int], work: Mapping[int, Mapping[str, Any]]) -> Known:
    """Rows in the order of the view; a job that came or went between two looks counts as unknown."""
    rows = [work.get(job, _NOTHING_KNOWN) for job in ids]
    return Known(
        model=[row["model"] for row in rows],
        by_steps=np.array([row["by_steps"] for row in rows], dtype=bool),
        whole=np.array([math.nan if row["whole"] is None else row["whole"] for row in rows], dtype=np.float64),
        said=np.array([row["said"] for row in rows], dtype=bool),
        ending=np.array([row["cancel_requested"] for row in rows], dtype=bool),
    )


def _steps(view: View, row: int, prospect: Prospect, needs: float) -> list[Answer]:
    """Each deadline of the job. One is impossible if the job would miss it alone in the pool, and no run has met it either."""
    jobs = view.jobs
    steps = []
    for at in range(int(jobs.tier_start[row]), int(jobs.tier_start[row + 1])):
        deadline = float(jobs.tier_deadline[at])
        probability = prospect.probability(deadline)
        impossible = probability == 0.0 and view.now + needs > deadline
        steps.append({"deadline": deadline, "reward": float(jobs.tier_reward[at]), "probability": probability, "impossible": impossible})
    return steps


def start_up_seconds(known: Known, start_ups: StartUps) -> Floats:
    """Seconds of each job's first start in addition to its known duration, a row per job."""
    loading = known.by_steps | known.said | np.isnan(known.whole)
    pairs = zip(known.model, loading.tolist(), strict=True)
    return np.array([start_ups.of(model).until_work(loading=apart) for model, apart in pairs], dtype=np.float64)


def ahead_of_work(view: View, start_up: Floats) -> Floats:
    """Seconds of the first start of jobs that have never run, a row per job."""
    jobs = view.jobs
    return np.where((jobs.phase == Phase.PENDING) & (jobs.run_time == 0.0), start_up, 0.0)


def foresee(question: Question, durations: DurationDraws, rules: Rules, start_up: Floats, profiling: float) -> tuple[int, Prospect]:
    """The number of simulated runs, and the prospect.

    ``start_up``: seconds of a first start, a row per job. ``profiling``: seconds of a profiling run, if the policy gives such. If the

    simulation of the policy is slow, jobs are also, or only, listed in its order of service. Raises SimulationError if the policy
    fails.
    """
    listing = _listing(question.view, rules, start_up, profiling)
    try:
        prospect = look_ahead(question, durations, simulation(question, durations, rules, listing, start_up, profiling))
    except OutOfTime:
        return 0, look_ahead(question, durations, listing)
    few = len(prospect.ends) < FEW_RUNS
    return len(prospect.ends), spread_out(question, durations, prospect, listing) if few else prospect


def simulation(
    question: Question, durations: DurationDraws, rules: Rules, listing: Simulate, start_up: Floats, profiling: float = PROFILING
) -> Simulate:
    """Simulate a pool by its own rules."""
    start_of = _by_id(question.view, start_up)
    overhead = np.zeros(0) if question.view.jobs.overhead is None else question.view.jobs.overhead
    overhead = overhead[~np.isnan(overhead)]
    options = Options(
        costs=Costs(resume=float(np.median(overhead)) if len(overhead) else RESUMPTION, profiling=profiling),
        limits=rules.limits,
        errors=Errors(duration=SAID_SPREAD),  # the beliefs are those of the view; this is their uncertainty for the policy
        interval=_spacing(question, durations, listing),
    )

    def simulate(view: View, left: Floats, watched: Watched, cpu: float) -> Floats:
        starts = np.array([start_of[job] for job in view.jobs.id.tolist()], dtype=np.float64)
        return ends_from(
            view, left, rules.policy(), options, watched, evictions=rules.evictions, memory=rules.memory, cpu_seconds=cpu, start_up=starts
        )

    return simulate


def _spacing(question: Question, durations: DurationDraws, listing: Simulate) -> float | None:
    """Seconds between decisions that let a large pool be simulated several times; None: at every event.

    A start is late by half of it. It is a small part of the job's possible time, and of the mean time for which one job holds a
    GPU, which is that time over the number of jobs per GPU.
    """
    view, row = question.view, question.target
    rounds = max(DECISIONS_PER_JOB, ROUNDS_A_JOB * len(view.jobs) / len(view.gpus))
    if rounds > len(view.jobs):
        return None
    nobody = np.zeros(len(view.jobs), dtype=bool)
    far = float(listing(view, durations.middles(), Watched(nobody, nobody), math.inf)[row])
    deadline = float(view.jobs.deadline[row]) - view.now
    ahead = max((end for end in (far, deadline) if math.isfinite(end)), default=0.0)
    return ahead / rounds if ahead > 0.0 else None


def _by_id(view: View, start_up: Floats) -> dict[int, float]:
    """By id, as futures without the fresh jobs have other rows."""
    return dict(zip(view.jobs.id.tolist(), start_up.tolist(), strict=True))


def profiling_ahead(view: View, policy: Policy, start_up: Floats, profiling: float) -> Floats:
    """Seconds for which profiling runs will keep jobs from their work, a row per job.

    0 unless the policy gives such runs, and for jobs that have all their GPUs in theirs: these train meanwhile.
    """
    jobs = view.jobs
    if not getattr(policy, "profiles", False) or jobs.profile_gpus is None:
        return np.zeros(len(jobs))
    apart = (jobs.phase == Phase.PENDING) & (jobs.profile_gpus > 0) & (jobs.profile_gpus < jobs.gpus_min)
    return np.where(apart, start_up + profiling, 0.0)


def _listing(view: View, rules: Rules, start_up: Floats, profiling: float) -> Simulate:
    """Serve the pool in its policy's present order; jobs outside it come last."""
    policy = rules.policy()
    try:
        plan = check(policy.plan(protected := protect(view, rules.limits)), protected)
    except BaseException as error:  # a policy may be any code
        raise SimulationError(f"policy {rules.name} failed: {words(error)}") from error
    start_of = _by_id(view, ahead_of_work(view, start_up) + profiling_ahead(view, policy, start_up, profiling))
    order = [*plan.allocations, *(plan.order or (job for group in plan.waiting for job in group.jobs))]

    def simulate(view: View, left: Floats, watched: Watched, cpu: float) -> Floats:
        pending = set(view.jobs.id[view.jobs.phase == Phase.PENDING].tolist())
        told = [job for job in dict.fromkeys(order) if job in pending]
        starts = np.array([start_of[job] for job in view.jobs.id.tolist()], dtype=np.float64)
        return by_queue(view, left + starts, np.array([*told, *sorted(pending.difference(told))], dtype=np.int64))

    return simulate

"""Running the cases of the evaluation of UniSched, each in a process, and what is measured of each."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from stoker.engine.scheduling.guards import Actions
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.results.figures import FULL_REWARD, figures, finished, has_deadline, jct_of, reward_of
from stoker.engine.sim.results.result import Result
from stoker.engine.sim.run_options import PRESETS, Costs, Errors, Options
from stoker.engine.sim.simulator import simulate
from stoker.engine.sim.workload import Workload
from stoker.policies import registry
from stoker.policies.contract import Bools, Floats, Plan, Policy, View
from unisched_workloads import PER_NODE, Recipe, workload

PROFILING = 300.0  #: seconds, one best-effort lease (002 ch. 5.3.2.1)
#: Seconds of running after which an estimate that is wrong at first is right: the profile, and one best-effort lease more. 5.3.2.1 updates
#: the speed "during the execution stage"; a live worker has measured it by then many times.
CORRECTED = 2 * PROFILING
NEVER = 2.0  #: share of the training by which the end of a job that stops at a metric is known


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation."""

    recipe: Recipe
    policy: str
    config: tuple[tuple[str, Any], ...] = ()
    overhead: float = 1.0  #: suspensions and resumptions cost so many times what they do
    noise: float = 0.0  #: standard deviation of the normal factor of all estimates of run times
    partition: int = 0  #: GPUs of the cluster on which jobs of policies without profiling runs are profiled; 0: on others, at no cost
    maximum: bool = False  #: jobs that stop at a metric are believed to run to their maximum of iterations
    corrected: float = math.inf  #: seconds that a job has run when noise is gone from its estimate

    def __str__(self) -> str:
        settings = "".join(f",{key}={value}" for key, value in self.config)
        more = ("" if self.overhead == 1 else f", overhead x{self.overhead:g}") + (f", noise {self.noise:.0%}" if self.noise else "")
        more += f" for {self.corrected:g} s" if self.noise and math.isfinite(self.corrected) else ""
        more += (f", {self.partition} GPUs for profiling" if self.partition else "") + (", maximum of iterations" if self.maximum else "")
        return f"{self.policy}{settings} on {self.recipe}{more}"


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one case. Times are seconds, None where there is nothing to measure."""

    jobs: int
    r_slo: float  #: weighted rate of SLO violation, 1 - Eqn 5.15
    r_performance: float | None  #: the same, of the jobs that stop at a metric's target
    best_effort_jct: float | None  #: average
    slo_suspensions: float  #: a job
    best_effort_suspensions: float | None
    longest_profiling_wait: float | None  #: until the profiling run begins, of a policy that plans these
    cycle_cpu: float  #: CPU time of the longest decision
    cpu: float  #: of the whole simulation
    utilisation: float
    statuses: Mapping[str, int] = field(default_factory=dict)


class Watch:
    """A policy that is as it was, but for what its decisions take and when they give jobs their profiling runs."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.seconds: list[float] = []
        self.statuses: dict[str, int] = {}
        self.profiling: dict[int, float] = {}  #: by job, when its profiling run began

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def plan(self, view: View) -> Plan:
        began = time.process_time()
        plan = self._policy.plan(view)
        self.seconds.append(time.process_time() - began)
        self.statuses[plan.status] = self.statuses.get(plan.status, 0) + 1
        return plan

    def observe(self, view: View, plan: Plan, _: Actions) -> None:
        needs = view.jobs.profile_gpus
        if needs is not None:
            for job in view.jobs.id[needs > 0].tolist():
                if job in plan.allocations:
                    self.profiling.setdefault(job, view.now)


def options_of(case: Case) -> Options:
    thesis = PRESETS["thesis"]
    costs = Costs(
        suspend=thesis.suspend * case.overhead,
        resume=thesis.resume * case.overhead,
        resume_per_gpu=thesis.resume_per_gpu * case.overhead,
        profiling=PROFILING,
        profiler_gpus=case.partition,
    )
    errors = Errors(gaussian=case.noise, corrected=case.corrected)
    return Options(costs=costs, errors=replace(errors, iterations=NEVER) if case.maximum else errors, seed=case.recipe.seed)


def cluster_of(case: Case) -> Cluster:
    """Without the GPUs that are set aside, which are those of the last nodes."""
    whole, rest = divmod(case.recipe.nodes * PER_NODE - case.partition, PER_NODE)
    return Cluster((PER_NODE,) * whole + (rest,) * (rest > 0))


def measure(case: Case, traces: Path | None) -> Measured:
    began = time.process_time()
    jobs = workload(case.recipe, traces)
    cluster = cluster_of(case)
    policy = Watch(registry.create(case.policy, dict(case.config)))
    result = simulate(jobs, cluster, policy, options_of(case), observer=policy.observe)
    totals = figures(jobs, result, cluster)
    slo, done = has_deadline(jobs), finished(result.fates)
    assert totals.r_slo is not None
    return Measured(
        jobs=len(jobs),
        r_slo=totals.r_slo,
        r_performance=_r_slo(jobs, result, slo & np.array(jobs.by_performance, dtype=bool)),
        best_effort_jct=_mean(jct_of(jobs, result.fates)[done & ~slo]),
        slo_suspensions=float(result.fates.preemptions[slo].mean()),
        best_effort_suspensions=_mean(result.fates.preemptions[~slo].astype(np.float64)),
        longest_profiling_wait=_longest_wait(jobs, policy.profiling),
        cycle_cpu=max(policy.seconds),
        cpu=time.process_time() - began,
        utilisation=totals.utilisation or 0.0,
        statuses=policy.statuses,
    )


def _longest_wait(jobs: Workload, profiling: Mapping[int, float]) -> float | None:
    return max((began - float(jobs.submitted[job]) for job, began in profiling.items()), default=None)


def _r_slo(jobs: Workload, result: Result, some: Bools) -> float | None:
    earned = _mean(reward_of(jobs, result.fates)[some])
    return None if earned is None else 1.0 - earned / FULL_REWARD


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None


def run(cases: Iterable[Case], traces: Path | None, processes: int, tell: Callable[[int, int, Case], None]) -> dict[Case, Measured]:
    """Each case once, however often it is asked for. The largest workloads come first: a long one at the end is waited for alone."""
    todo = sorted(set(cases), key=lambda case: (-case.recipe.nodes * case.recipe.days, str(case.recipe), str(case)))
    if processes == 1:
        measured = {}
        for number, case in enumerate(todo):
            measured[case] = measure(case, traces)
            tell(number + 1, len(todo), case)
        return measured
    measured = {}
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:  # a fork would copy threads half-way
        futures = {pool.submit(measure, case, traces): case for case in todo}
        for number, future in enumerate(as_completed(futures)):
            measured[futures[future]] = future.result()
            tell(number + 1, len(todo), futures[future])
    return measured

"""Profiling runs, and what is believed of jobs: examples worked out by hand. Jobs are (submitted, duration, GPUs)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
from accounts import NODES, Witness, assert_accounts_agree, costs, workloads
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted import Scripted, Timetable, run, workload
from stoker.engine.sim.run_options import Costs, Errors
from stoker.engine.sim.simulation_error import SimulationError
from stoker.engine.sim.workload import Workload
from stoker.engine.traces.trace import Trace, TraceJob, to_workload
from stoker.policies.contract import Allocation, Phase, Plan, Profile, View
from stoker.policies.estimate.throughput import Throughput
from stoker.policies.placement.consolidated import Placement

GANG = [(0.0, 100.0, 4)]
COSTS = Costs(profiling=30.0, cold_start=5.0, suspend=3.0, resume=7.0, lost_on_suspend=2.0)


class FirstComeProfiled(Scripted):
    """First come first served, each job after its profiling runs of ``lease`` seconds at most."""

    profiles: ClassVar[bool] = True

    def __init__(self, lease: float) -> None:
        super().__init__(self._decide)
        self.lease = lease

    def _decide(self, view: View) -> Plan:
        jobs, placement, given = view.jobs, Placement(view), {}
        assert jobs.profile_gpus is not None
        for row in np.flatnonzero(jobs.phase == Phase.PENDING).tolist():
            profile = 0 < jobs.profile_gpus[row] < jobs.gpus_min[row]
            gpus = placement.find(int(jobs.profile_gpus[row] if profile else jobs.gpus_min[row]))
            if gpus is not None:
                placement.take(gpus)
                given[int(jobs.id[row])] = Allocation(gpus, view.now + self.lease, profile=True) if profile else Allocation(gpus)
        return Plan(given)


class ProfilingTimetable(Timetable):
    profiles: ClassVar[bool] = True


def stays(result: object) -> list[tuple[float, float, int]]:
    bars = result.bars  # type: ignore[attr-defined]
    return list(zip(bars.begins.tolist(), bars.ends.tolist(), bars.gpus.tolist(), strict=True))


def test_golden_profiling_run_of_a_gang() -> None:
    """On 2 GPUs from 0, training from 5, measured at 35, well before its lease ends.

    Its GPUs are free at that moment: on 4 of them it starts anew, cold, trains from 40 and ends at 140. Lost is all of the run, 2 x 35,
    and the start, 4 x 5.
    """
    result = run(GANG, FirstComeProfiled(60.0), "1x4", COSTS)
    assert stays(result) == [(0.0, 35.0, 2), (35.0, 140.0, 4)]
    assert result.fates.started.tolist() == [0.0]
    assert result.fates.ended.tolist() == [140.0]
    assert result.fates.run_time.tolist() == [140.0]
    assert result.fates.gpu_time.tolist() == [70.0 + 420.0]
    assert result.fates.lost.tolist() == [70.0 + 20.0]
    assert result.fates.preemptions.tolist() == [0]


def test_profiling_takes_as_many_runs_as_its_leases_are_short() -> None:
    """15 s of each lease of 20 are training: two runs, one after the other at once."""
    result = run(GANG, FirstComeProfiled(20.0), "1x4", COSTS)
    assert stays(result) == [(0.0, 20.0, 2), (20.0, 40.0, 2), (40.0, 145.0, 4)]
    assert result.fates.lost.tolist() == [80.0 + 20.0]
    assert result.fates.preemptions.tolist() == [0]


def test_a_lease_as_long_as_profiling_suffices_whatever_the_last_digits() -> None:
    result = run([(0.1, 100.0, 4)], FirstComeProfiled(0.7), "1x4", Costs(profiling=0.7))
    assert len(result.bars.job) == 2


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_small_job_trains_at_its_work_while_it_is_profiled(gpus: int) -> None:
    known: dict[float, bool] = {}
    result = run(
        [(0.0, 100.0, gpus), (50.0, 1.0, 1)], FirstComeProfiled(60.0), "1x4", COSTS,
        observer=lambda view, *_: known.update({view.now: not np.isnan(view.jobs.remaining[:1]).any()}),
    )  # fmt: skip
    assert stays(result)[-1] == (0.0, 105.0, gpus)
    assert known == {0.0: False, 35.0: True, 50.0: True, 56.0: True, 105.0: True}
    assert result.fates.lost.tolist() == [5.0 * gpus, 5.0]


def test_a_profiling_run_that_is_preempted_has_measured_so_far() -> None:
    """Taken back at 15, after 10 s of training, for job 1, which starts at that moment. From 25 on: 5 s to start, 20 to measure."""
    profile = Allocation((0, 1), 90.0, profile=True)
    policy = ProfilingTimetable({0.0: {0: profile}, 15.0: {1: (0, 1)}, 25.0: {0: profile}, 50.0: {0: (0, 1, 2, 3)}})
    result = run([*GANG, (15.0, 5.0, 2)], policy, "1x4", COSTS)
    assert stays(result) == [(0.0, 15.0, 2), (15.0, 25.0, 2), (25.0, 50.0, 2), (50.0, 155.0, 4)]
    assert result.fates.preemptions.tolist() == [0, 0]
    assert result.fates.lost.tolist() == [2 * (15.0 + 25.0) + 20.0, 10.0]


def test_what_stops_before_it_trains_measures_nothing() -> None:
    first, second = (Allocation((0, 1), end, profile=True) for end in (4.0, 90.0))
    policy = ProfilingTimetable({0.0: {0: first}, 4.0: {}, 20.0: {0: second}, 55.0: {0: (0, 1, 2, 3)}})
    result = run(GANG, policy, "1x4", COSTS)
    assert stays(result) == [(0.0, 4.0, 2), (20.0, 55.0, 2), (55.0, 160.0, 4)]
    assert result.fates.lost.tolist() == [2 * (4.0 + 35.0) + 20.0]


def test_the_end_of_the_run_cuts_a_profiling_run_off() -> None:
    result = run(GANG, FirstComeProfiled(60.0), "1x4", COSTS, until=20.0)
    assert result.fates.gpu_time.tolist() == result.fates.lost.tolist() == [40.0]


def test_a_profiling_run_is_never_shared() -> None:
    """Beside another job it would measure how fast they are together, where its speed alone is asked for; so live and simulated alike."""
    policy = ProfilingTimetable({0.0: {0: Allocation((0, 1), 90.0, profile=True), 1: (0,)}})
    with pytest.raises(SimulationError, match="job 0: is in a group \\(packed\\), but is in a profiling run, which is never shared"):
        run([*GANG, (0.0, 50.0, 1)], policy, "1x4", Costs(profiling=30.0, packing_slowdown=2.0))


def test_a_profiling_run_can_fail() -> None:
    """240 failures an hour on 2 GPUs: what a run has measured until it fails is known; the next is on its way at once."""
    result = run(GANG, FirstComeProfiled(1e3), "1x4", Costs(profiling=60.0, failures_per_gpu_hour=120.0), until=59.0)
    ends = result.bars.ends.tolist()
    assert len(ends) > 1 and ends[-1] == 59.0
    assert stays(result) == [(begin, end, 2) for begin, end in zip([0.0, *ends], ends, strict=False)]
    assert result.fates.gpu_time.tolist() == pytest.approx([118.0]) == result.fates.lost.tolist()


def test_a_job_is_unknown_until_it_has_been_profiled() -> None:
    seen: dict[float, tuple[object, ...]] = {}

    def look(view: View, *_: object) -> None:
        jobs = view.jobs
        assert (
            jobs.profile_gpus is not None and jobs.profile is not None and jobs.remaining_most is not None and jobs.uncertainty is not None
        )
        unknown = [math.isnan(column[0]) for column in (jobs.remaining, jobs.remaining_most, jobs.uncertainty)]
        seen[view.now] = (int(jobs.profile_gpus[0]), int(jobs.profile[0]), *unknown)

    jobs = workload(GANG, models=["a"], profiles=[Profile("a", Throughput([1, 8], [1.0, 8.0]))])
    run(jobs, FirstComeProfiled(60.0), "1x4", Costs(profiling=30.0), look, until=30.0)
    assert seen == {0.0: (2, -1, True, True, True), 30.0: (0, 0, False, False, False)}


def test_to_a_policy_that_does_not_profile_nothing_is_unknown() -> None:
    def look(view: View, *_: object) -> None:
        assert view.jobs.profile_gpus is not None and view.jobs.profile_gpus.tolist() == [0]
        assert view.now == 30.0 and view.jobs.remaining.tolist() == [100.0]

    run(GANG, "fifo", "1x4", Costs(profiling=30.0), look, until=30.0)


@pytest.mark.parametrize(
    ("allocation", "fault"),
    [
        (Allocation((0,), 9.0, profile=True), "has a profiling run on 1 GPUs, it needs one on 2"),
        (Allocation((0, 1), profile=True), "its profiling run has no end"),
    ],
)
def test_invalid_profiling_runs(allocation: Allocation, fault: str) -> None:
    with pytest.raises(SimulationError, match=fault):
        run(GANG, ProfilingTimetable({0.0: {0: allocation}}), "1x4", COSTS)


def test_a_job_that_needs_no_profiling_run_gets_none() -> None:
    allocation = Allocation((0, 1), 9.0, profile=True)
    with pytest.raises(SimulationError, match="it needs none on fewer than its gang"):
        run([(0.0, 9.0, 2)], ProfilingTimetable({0.0: {0: allocation}}), "1x4", COSTS)


@given(jobs=workloads(), nodes=st.sampled_from(NODES), costs=costs, lease=st.sampled_from([3.0, 10.0, 100.0]), seed=st.integers(0, 5))
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_no_job_and_no_gpu_time_is_lost_in_profiling(jobs: Workload, nodes: str, costs: Costs, lease: float, seed: int) -> None:
    costs = Costs(**{name: getattr(costs, name) for name in Costs.__slots__ if name not in ("cold_start", "failures_per_gpu_hour")},
                  cold_start=min(costs.cold_start, lease - 1.0), failures_per_gpu_hour=costs.failures_per_gpu_hour)  # fmt: skip
    result = run(jobs, FirstComeProfiled(lease), nodes, costs, observer=Witness(jobs, nodes), seed=seed)
    assert_accounts_agree(jobs, nodes, result)
    assert not result.fates.preemptions.any()
    if costs.profiling:
        large = (jobs.gpus_min > 2) & ~result.fates.dropped
        assert (result.fates.lost[large] >= 2 * costs.profiling - 1e-6).all()


# Jobs that stop at a metric's target


def believed(at: float, column: Callable[[View], object], errors: Errors, costs: Costs = Costs()) -> float:  # noqa: B008 - frozen
    """Of a job that would run for 100 s and reaches its metric in 80, at a moment of its training."""
    seen: dict[float, float] = {}
    jobs = workload([(0.0, 80.0, 1), (at, 1.0, 1)], most=[100.0, 1.0], by_performance=[True, False])
    run(jobs, "fifo", "1x2", costs, lambda view, *_: seen.update({view.now: column(view)[0]}), errors=errors, until=at)  # type: ignore[index]
    return seen[at]


@pytest.mark.parametrize(
    ("at", "known_at", "left"),
    [
        (0.0, 0.6, 100.0),  # its maximum
        (24.0, 0.6, 56.0 + 10.0),  # 30 % done: half of the way to the truth
        (48.0, 0.6, 32.0),  # from 60 % on: the truth
        (72.0, 0.6, 8.0),
        (24.0, 2.0, 76.0),  # never known: the maximum to the end
        (72.0, 2.0, 28.0),
        (40.0, 1.0, 40.0 + 10.0),  # known at the very end
        (0.0, 0.0, 80.0),  # known from the start
    ],
)
def test_the_belief_comes_down_from_the_maximum(at: float, known_at: float, left: float) -> None:
    errors = Errors(iterations=known_at)
    assert believed(at, lambda view: view.jobs.remaining, errors) == pytest.approx(left)
    assert believed(at, lambda view: view.jobs.remaining_most, errors) == pytest.approx(100.0 - at)


def test_a_mistaken_pace_is_mistaken_about_the_maximum_too() -> None:
    errors = Errors(bias=math.log(2.0))
    assert believed(24.0, lambda view: view.jobs.remaining, errors) == pytest.approx(2 * 66.0)
    assert believed(24.0, lambda view: view.jobs.remaining_most, errors) == pytest.approx(2 * 76.0)


@pytest.mark.parametrize(("at", "early"), [(0.0, 0.17), (24.0, 0.085), (48.0, 0.0)])
def test_uncertainty_adds_up(at: float, early: float) -> None:
    assert believed(at, lambda view: view.jobs.uncertainty, Errors()) == pytest.approx(early)
    noisy = believed(at, lambda view: view.jobs.uncertainty, Errors(duration=0.3, gaussian=0.4))
    assert noisy == pytest.approx(math.hypot(0.5, early))


@pytest.mark.parametrize(("at", "mistaken", "early"), [(0.0, 1.0, 1.0), (23.0, 1.0, 0.5 + 1 / 48), (24.0, 0.0, 0.5), (48.0, 0.0, 0.0)])
def test_what_has_run_corrects_the_pace_but_not_the_end(at: float, mistaken: float, early: float) -> None:
    """From 24 s on, of a job that is believed to take twice as long as it does."""
    errors = Errors(bias=math.log(2.0), corrected=24.0)
    assert believed(at, lambda view: view.jobs.remaining, errors) == pytest.approx((1 + mistaken) * (80.0 - at + 20.0 * early))
    assert believed(at, lambda view: view.jobs.remaining_most, errors) == pytest.approx((1 + mistaken) * (100.0 - at))
    noisy = Errors(duration=0.3, gaussian=0.4, corrected=24.0)
    assert believed(at, lambda view: view.jobs.uncertainty, noisy) == pytest.approx(math.hypot(0.5 * mistaken, 0.17 * early))


@pytest.mark.parametrize(("unknown", "left"), [(0.0, [40.0, 160.0, 2.0]), (1.0, [math.nan] * 3)])
def test_only_those_that_have_run_and_of_which_something_is_believed_are_corrected(unknown: float, left: list[float]) -> None:
    seen: list[list[float]] = []
    errors = Errors(bias=math.log(2.0), unknown=unknown, corrected=24.0)
    jobs = [(0.0, 80.0, 1), (0.0, 80.0, 1), (40.0, 1.0, 1)]
    run(jobs, "fifo", "1x1", observer=lambda view, *_: seen.append(view.jobs.remaining.tolist()), errors=errors, until=40.0)
    assert seen[-1] == pytest.approx(left, nan_ok=True)


def test_who_stops_by_iterations_is_as_uncertain_as_the_noise() -> None:
    def look(view: View, *_: object) -> None:
        jobs = view.jobs
        assert jobs.uncertainty is not None and jobs.remaining_most is not None
        assert jobs.uncertainty.tolist() == [0.2] and jobs.remaining_most.tolist() == jobs.remaining.tolist()

    run([(0.0, 10.0, 1)], "fifo", errors=Errors(duration=0.2), observer=look, until=0.0)


def test_overhead_is_what_stopping_and_going_on_takes() -> None:
    seen: list[list[float]] = []
    jobs = [(0.0, 10.0, 1), (0.0, 10.0, 3)]
    for charged in (Costs(), Costs(suspend=4.0, resume=18.0, resume_per_gpu=0.5, cold_start=9.0)):
        run(jobs, "fifo", "1x4", charged, lambda view, *_: seen.append(view.jobs.overhead.tolist()), until=0.0)  # type: ignore[union-attr]
    assert seen == [[0.0, 0.0], [22.0, 23.0]]


def test_the_maximum_of_a_trace_is_what_the_submitter_of_a_job_that_stops_at_a_metric_estimates() -> None:
    jobs = [
        TraceJob(key="a", submitted=0.0, duration=80.0, gpus_min=1, stop="performance", estimate=100.0),
        TraceJob(key="b", submitted=0.0, duration=80.0, gpus_min=1, stop="iterations", estimate=100.0),
        TraceJob(key="c", submitted=0.0, duration=80.0, gpus_min=1, stop="performance", estimate=60.0),  # mistaken: no maximum
        TraceJob(key="d", submitted=0.0, duration=80.0, gpus_min=1, stop="performance"),
    ]
    made = to_workload(Trace(name="t", format="f", source="s", sha256="0", jobs=jobs))
    assert made.most.tolist() == [100.0, 80.0, 80.0, 80.0]
    np.testing.assert_array_equal(made.estimate, [np.nan, 100.0, 60.0, np.nan])


def test_a_maximum_is_no_less_than_the_end() -> None:
    with pytest.raises(ValueError, match=r"most: job '0' has 9\.0; it must be no less than its 10\.0 s"):
        workload([(0.0, 10.0, 1)], most=[9.0])


def test_normal_noise_is_cut_off() -> None:
    seen: list[np.ndarray] = []
    jobs = workload([(0.0, 100.0, 1)] * 2000)
    run(jobs, "fifo", observer=lambda view, *_: seen.append(view.jobs.remaining / 100.0), errors=Errors(gaussian=0.8), until=0.0)
    factor = seen[0]
    assert np.median(factor) == pytest.approx(1.0, abs=0.06)
    assert np.quantile(factor, 0.84) == pytest.approx(1.8, abs=0.12)
    assert factor.min() == pytest.approx(0.05) and (factor < 0.0501).mean() == pytest.approx(0.117, abs=0.03)  # P(N < -0.95 / 0.8)

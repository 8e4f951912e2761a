"""What the simulator says that things cost, against examples worked out by hand. Unless said, jobs are (submitted, duration, GPUs)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scripted import Scripted, Timetable, run, workload
from stoker.engine.sim.agenda import Agenda, EventKind
from stoker.engine.sim.run_options import Costs, Errors
from stoker.engine.sim.truth import beliefs
from stoker.policies.contract import Allocation, Group, Phase, Plan, Profile, View, plan_of
from stoker.policies.estimate.goodput import Goodput, StepTime
from stoker.policies.estimate.throughput import Throughput

SRTF = "srtf,hysteresis=1"
LONG_THEN_SHORT = [(0.0, 100.0, 1), (20.0, 10.0, 1)]  # on one GPU: job 1 displaces job 0 at 20, which has 80 left


def ends(*args: object, **kwargs: object) -> list[float]:
    return run(*args, **kwargs).fates.ended.tolist()  # type: ignore[arg-type]


# Three small cases, whole


def test_golden_fifo() -> None:
    """Four GPUs. Job 0 has 3 of them until 10. Job 1 wants 2 and blocks job 2, which would fit.

    At 10 job 1 (until 15) and job 2 (until 30) start; job 3 wants all 4, and starts when job 2 has left.
    """
    rows = [(0.0, 10.0, 3), (1.0, 5.0, 2), (2.0, 20.0, 1), (3.0, 4.0, 4)]
    result = run(rows, "fifo", "1x4")
    assert result.fates.started.tolist() == [0.0, 10.0, 10.0, 30.0]
    assert result.fates.ended.tolist() == [10.0, 15.0, 30.0, 34.0]
    assert result.fates.gpu_time.tolist() == [30.0, 10.0, 20.0, 16.0]
    assert result.usage.ts.tolist() == [0.0, 1.0, 2.0, 3.0, 10.0, 15.0, 30.0, 34.0]
    assert result.usage.busy.tolist() == [3, 3, 3, 3, 3, 1, 4, 0]
    assert result.usage.running.tolist() == [1, 1, 1, 1, 2, 1, 1, 0]
    assert result.usage.waiting.tolist() == [0, 1, 2, 3, 1, 1, 0, 0]
    bars = (result.bars.job, result.bars.begins, result.bars.ends, result.bars.gpu, result.bars.gpus)
    stays = [(0, 0.0, 10.0, 0, 1), (0, 0.0, 10.0, 2, 2), (1, 10.0, 15.0, 0, 2), (2, 10.0, 30.0, 2, 1), (3, 30.0, 34.0, 0, 4)]
    assert list(zip(*(column.tolist() for column in bars), strict=True)) == stays


def test_golden_srtf_with_costs() -> None:
    """Two GPUs; 3 s to suspend, 5 s and 2 s for the second GPU to resume, 4 s to start cold.

    Job 0 (100 s on 2 GPUs) starts at 0, trains from 4. At 24 it has 80 left; job 1 (10 s) displaces it. The GPUs are free at 27: job 1
    trains from 31 and ends at 41. Job 0 resumes at 41, trains from 48 and ends at 128.
    """
    costs = Costs(suspend=3.0, resume=5.0, resume_per_gpu=2.0, cold_start=4.0)
    result = run([(0.0, 100.0, 2), (24.0, 10.0, 1)], SRTF, "1x2", costs)
    assert result.fates.started.tolist() == [0.0, 27.0]
    assert result.fates.ended.tolist() == [128.0, 41.0]
    assert result.fates.preemptions.tolist() == [1, 0]
    assert result.fates.run_time.tolist() == [27.0 + 87.0, 14.0]
    assert result.fates.gpu_time.tolist() == [228.0, 14.0]
    assert result.fates.lost.tolist() == [2 * (4.0 + 3.0 + 7.0), 4.0]
    assert result.usage.ts.tolist() == [0.0, 24.0, 27.0, 41.0, 128.0]
    assert result.usage.busy.tolist() == [2, 2, 1, 2, 0]
    assert result.usage.waiting.tolist() == [0, 1, 1, 0, 0]


def test_golden_tiresias() -> None:
    """One GPU, 2 queues, threshold 100 s of GPU-time. Job 0 (150 s) runs alone; job 1 (120 s) comes at 50.

    Equals do not displace each other, so job 0 sinks at 100 first. Then job 1 displaces it, sinks itself at 200, and takes its place behind
    job 0, which came first: job 0 ends its last 50 s at 250, job 1 its last 20 s at 270.
    """
    result = run([(0.0, 150.0, 1), (50.0, 120.0, 1)], "tiresias,queues=2,threshold_1=100")
    assert result.fates.started.tolist() == [0.0, 100.0]
    assert result.fates.ended.tolist() == pytest.approx([250.0, 270.0], abs=0.01)
    assert result.fates.preemptions.tolist() == [1, 1]


# Starting and stopping


@pytest.mark.parametrize(
    ("costs", "expected", "lost"),
    [
        (Costs(), [110.0, 30.0], 0.0),
        (Costs(suspend=3.0), [113.0, 33.0], 3.0),  # the GPU is free at 23
        (Costs(resume=5.0), [115.0, 30.0], 5.0),
        (Costs(resume=5.0, resume_per_gpu=7.0), [115.0, 30.0], 5.0),  # one GPU has no others
        (Costs(lost_on_suspend=15.0), [125.0, 30.0], 15.0),
        (Costs(lost_on_suspend=50.0), [130.0, 30.0], 20.0),  # no more than it has done
    ],
)
def test_preemption(costs: Costs, expected: list[float], lost: float) -> None:
    result = run(LONG_THEN_SHORT, SRTF, costs=costs)
    assert result.fates.ended.tolist() == expected
    assert result.fates.lost.tolist() == [lost, 0.0]


def test_one_who_is_stopped_before_it_trains_has_lost_only_what_it_held() -> None:
    """A cold start takes 30 s; job 0 is displaced after 20 of them, so it has spent 20 s and trained none. Job 1 trains from 50 to 60."""
    result = run(LONG_THEN_SHORT, SRTF, costs=Costs(cold_start=30.0))
    assert result.fates.ended.tolist() == [160.0, 60.0]  # a resumption costs nothing here
    assert result.fates.lost.tolist() == [20.0, 30.0]
    assert result.fates.gpu_time.tolist() == [120.0, 40.0]


@pytest.mark.parametrize(("until", "lost"), [(10.0, 10.0), (22.0, 20.0 + 2.0), (24.0, 20.0 + 3.0)])
def test_what_the_end_of_the_run_cuts_off_has_cost_so_much(until: float, lost: float) -> None:
    """A start of 20 s that would last 20, or a suspension of 3 s from 20 on."""
    result = run([(0.0, 100.0, 1), (20.0, 10.0, 1)], SRTF, costs=Costs(cold_start=20.0, suspend=3.0), until=until)
    assert result.fates.lost[0] == pytest.approx(lost)
    assert result.fates.gpu_time[0] == pytest.approx(min(until, 23.0))


def test_warm_and_cold() -> None:
    """10 s to start cold, 4 s where the model is loaded, one after the other: a, a, b, a, and two whose model is not known."""
    jobs = workload([(float(n), 20.0, 1) for n in range(6)], models=["a", "a", "b", "a", "", ""])
    result = run(jobs, "fifo", costs=Costs(cold_start=10.0, warm_start=4.0))
    assert result.fates.ended.tolist() == [30.0, 54.0, 84.0, 114.0, 144.0, 174.0]
    assert result.fates.lost.tolist() == [10.0, 4.0, 10.0, 10.0, 10.0, 10.0]


def test_a_gpu_loads_from_the_first_step_on_and_is_warm_for_ten_minutes() -> None:
    """The first trains from 10 on, and its model is loaded at 16: the second comes before, the third after that, the last too late."""
    times = (0.0, 13.0, 40.0, 643.9, 1252.0)
    result = run(workload([(at, 2.0, 1) for at in times], models=["a"] * 5), "fifo", costs=Costs(cold_start=10.0, warm_start=4.0))
    assert result.fates.lost.tolist() == [10.0, 10.0, 4.0, 4.0, 10.0]


def test_a_gang_is_warm_when_all_its_gpus_are() -> None:
    jobs = workload([(0.0, 20.0, 1), (0.0, 20.0, 1), (50.0, 20.0, 2), (90.0, 20.0, 2)], models=["a", "b", "a", "a"])
    assert ends(jobs, "fifo", "1x2", Costs(cold_start=10.0)) == [30.0, 30.0, 80.0, 110.0]


def test_profiling_without_profilers_delays_everybody_alike() -> None:
    assert ends([(0.0, 10.0, 1), (5.0, 10.0, 1)], "fifo", "1x2", Costs(profiling=30.0)) == [40.0, 45.0]


def test_profilers_take_one_job_at_a_time_first_come_first_served() -> None:
    """Two profilers, 30 s a job: at hand at 30, 30, 60, 65 (it came when one was free, at 35), 90 (it waited from 40 to 60)."""
    rows = [(0.0, 10.0, 1), (0.0, 10.0, 1), (0.0, 10.0, 1), (35.0, 10.0, 1), (40.0, 10.0, 1)]
    assert ends(rows, "fifo", "1x8", Costs(profiling=30.0, profiler_gpus=2)) == [40.0, 40.0, 70.0, 75.0, 100.0]


# Failures


def time_to_failure(seed: int, job: int, attempt: int, per_hour: float) -> float:
    return float(np.random.default_rng([seed, 2, job, attempt]).exponential(3600.0 / per_hour))


@pytest.mark.parametrize("interval", [0.0, 25.0, 1e9])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_failures_take_back_what_was_not_saved(interval: float, seed: int) -> None:
    """Alone on a GPU with 24 failures an hour: it trains until it fails, and goes on from its last checkpoint 5 s later.

    Without a checkpoint in all its life (1e9) it must do its 300 s in one go.
    """
    now, left, lost, attempt = 0.0, 300.0, 0.0, 0
    while (luck := time_to_failure(seed, 0, attempt, 24.0)) < left:
        unsaved = luck % interval if interval else 0.0
        now, left, lost, attempt = now + luck + 5.0, left - (luck - unsaved), lost + unsaved + 5.0, attempt + 1
    result = run([(0.0, 300.0, 1)], "fifo", costs=Costs(resume=5.0, checkpoint_interval=interval, failures_per_gpu_hour=24.0), seed=seed)
    assert attempt > 0
    assert result.fates.ended[0] == pytest.approx(now + left)
    assert result.fates.lost[0] == pytest.approx(lost)
    assert result.fates.preemptions[0] == 0
    assert len(result.bars.job) == attempt + 1


def test_gangs_fail_as_often_as_their_gpus() -> None:
    rates = []
    for gpus in (1, 4):
        rows = [(3600.0 * n, 3600.0, gpus) for n in range(60)]
        result = run(rows, "fifo,backfill=true", f"1x{4 * gpus}", Costs(failures_per_gpu_hour=1.0))
        rates.append((len(result.bars.job) - 60) / (result.fates.gpu_time.sum() / 3600.0))
    assert rates == pytest.approx([1.0, 1.0], rel=0.35)  # 60 and 240 expected failures


def test_luck_does_not_change_with_company() -> None:
    """Job 0 would fail alone at some moment; that job 1 shares its GPU for a while before changes its pace, but not that."""
    costs = Costs(failures_per_gpu_hour=24.0, packing_slowdown=2.0, checkpoint_interval=1e9)
    fails = time_to_failure(4, 0, 0, 24.0)
    assert 15.0 < fails < 300.0
    rows = [(0.0, 300.0, 1), (5.0, 5.0, 1)]
    result = run(rows, Timetable({0.0: {0: (0,), 1: (0,)}}), costs=costs, seed=4)
    first = result.bars.ends[result.bars.job == 0][0]
    assert first == pytest.approx(fails)
    # Half speed from 5 to 15, and nothing was saved: all that it had done is lost.
    assert result.fates.lost[0] >= fails - 1e-6


# Where it runs, and with whom


@pytest.mark.parametrize(
    ("gpus", "placed", "expected"),
    [
        (2, (0, 1), 10.0),  # on one node
        (2, (1, 2), 15.0),  # on two, though one would do
        (3, (0, 1, 2), 10.0),  # on two, as it must
        (1, (3,), 10.0),
    ],
)
def test_spreading(gpus: int, placed: tuple[int, ...], expected: float) -> None:
    assert ends([(0.0, 10.0, gpus)], Timetable({0.0: {0: placed}}), "2x2", Costs(spread_slowdown=1.5)) == [expected]


def test_spread_means_more_nodes_than_the_largest_would_be() -> None:
    """One node of 4 and two of 2: a gang of 4 fits one node; on the two small ones it is spread. A gang of 6 needs two, and has three."""
    costs = Costs(spread_slowdown=2.0)
    assert ends([(0.0, 10.0, 4)], Timetable({0.0: {0: (4, 5, 6, 7)}}), "1x4,2x2", costs) == [20.0]
    assert ends([(0.0, 10.0, 6)], Timetable({0.0: {0: (0, 1, 2, 3, 4, 5)}}), "1x4,2x2", costs) == [10.0]
    assert ends([(0.0, 10.0, 6)], Timetable({0.0: {0: (0, 1, 4, 5, 6, 7)}}), "1x4,2x2", costs) == [20.0]


SHARED = [(0.0, 100.0, 1), (20.0, 30.0, 1)]  #: job 1 joins job 0 on the only GPU at 20
PACK = Timetable({0.0: {0: (0,), 1: (0,)}})


def sharing(first: float, second: float) -> object:
    profiles = [Profile("a", utilisation=first), Profile("b", utilisation=second)]
    return workload(SHARED, models=["a", "b"], profiles=profiles)


def test_packing() -> None:
    """At half speed from 20 on job 1 takes 60 s, until 80. Job 0 has done 20 + 30 by then, and ends its 50 at 130."""
    result = run(SHARED, PACK, costs=Costs(packing_slowdown=2.0))
    assert result.fates.ended.tolist() == [130.0, 80.0]
    assert result.usage.busy.tolist() == [1, 1, 1, 0]
    assert result.usage.running.tolist() == [1, 2, 1, 0]
    # While both are there each has half of the GPU's time.
    assert result.fates.gpu_time.tolist() == [20.0 + 30.0 + 50.0, 30.0]


def test_the_service_that_jobs_have_attained_is_that_of_their_gpus() -> None:
    """The same two: job 0 has had 20 s when job 1 comes and 50 when that ends, of 80 s in which the GPU was held."""
    seen: dict[float, list[float]] = {}
    run(SHARED, PACK, costs=Costs(packing_slowdown=2.0), observer=lambda view, *_: seen.update({view.now: view.jobs.attained.tolist()}))
    assert [seen[moment] for moment in (0.0, 20.0, 80.0)] == [[0.0], [20.0, 0.0], [50.0]]


def test_packing_slows_by_what_both_use_beyond_the_whole() -> None:
    """0.6 + 0.8 of a GPU: 1.4 times as long. Job 1 takes 42 s, until 62; job 0 has done 20 + 30 and ends 50 later."""
    assert ends(sharing(0.6, 0.8), PACK) == pytest.approx([112.0, 62.0])


@pytest.mark.parametrize(
    ("first", "second", "slowdown", "expected"),
    [
        (0.3, 0.5, None, [100.0, 50.0]),  # two small ones
        (0.3, math.nan, None, [100.0, 50.0]),  # what one uses is not known
        (0.3, 0.5, 2.0, [130.0, 80.0]),  # whatever the profiles say
        (0.3, math.nan, 2.0, [130.0, 80.0]),
        (0.6, 0.8, 1.0, [100.0, 50.0]),  # off
    ],
)
def test_what_packing_costs_can_be_said(first: float, second: float, slowdown: float | None, expected: list[float]) -> None:
    assert ends(sharing(first, second), PACK, costs=Costs(packing_slowdown=slowdown)) == expected


def test_packing_slows_as_was_measured_of_the_pair() -> None:
    """Job 1 takes 1.5 times as long beside job 0: 45 s, until 65; job 0, 3 times slower beside it, has done 20 + 15 and ends 65 later."""
    profiles = [Profile("a", utilisation=0.2), Profile("b", utilisation=0.3)]
    slowdowns = np.array([[math.nan, 3.0], [1.5, math.nan]])
    jobs = workload(SHARED, models=["a", "b"], profiles=profiles, slowdowns=slowdowns)
    assert ends(jobs, PACK) == pytest.approx([130.0, 65.0])
    assert ends(jobs, PACK, costs=Costs(packing_slowdown=1.0)) == [100.0, 50.0]  # what is said counts first
    unknown = workload(SHARED, models=["a", "b"], profiles=profiles, slowdowns=np.full((2, 2), math.nan))
    assert ends(unknown, PACK) == [100.0, 50.0]  # by what they use
    seen = []
    run(jobs, PACK, observer=lambda view, *_: seen.append(view.slowdowns is slowdowns))
    assert seen and all(seen), "the policy sees what was measured"


@pytest.mark.parametrize(
    ("priorities", "expected"),
    [
        ([0, 0, 0], [55.0, 35.0, 60.0]),  # 10 alone, halves, thirds, halves again, and job 2 alone at the end
        ([0, 1, 0], [60.0, 20.0, 60.0]),  # job 0 waits from 10 to 20, then halves with job 2
        ([5, 1, 0], [30.0, 40.0, 60.0]),  # one after the other
    ],
)
def test_switched_jobs_take_turns_and_a_higher_priority_goes_before(priorities: list[int], expected: list[float]) -> None:
    rows = [(0.0, 30.0, 1), (10.0, 10.0, 1), (20.0, 20.0, 1)]
    jobs = workload(rows, priority=priorities, share=["switched"] * 3)

    def together(view: View) -> Plan:
        ids = view.jobs.id.tolist()
        return plan_of(view, {job: Allocation((0,)) for job in ids}, groups=[Group("switched", tuple(ids))])

    assert run(jobs, Scripted(together)).fates.ended.tolist() == pytest.approx(expected)


def test_three_on_a_gpu() -> None:
    """0.5 + 0.5 + 0.5: a pair is as fast as one alone, three take 1.5 times as long.

    Job 2 (20 s) is there from 10 to 40; jobs 0 and 1 (40 s each) have done 10 + 20 by then and end 10 later.
    """
    profiles = [Profile("a", utilisation=0.5)]
    jobs = workload([(0.0, 40.0, 1), (0.0, 40.0, 1), (10.0, 20.0, 1)], models=["a"] * 3, profiles=profiles)
    assert ends(jobs, Timetable({0.0: {0: (0,), 1: (0,), 2: (0,)}})) == pytest.approx([50.0, 50.0, 40.0])


def test_what_a_suspension_loses_is_counted_at_the_pace_of_that_time() -> None:
    """Job 0 trains alone until 20 (20 s of work), at half speed until 40 (10 s), when job 1 has ended. At 45 it has done 35 s of its work.

    There job 2 displaces it, and it loses its last 15 s: 5 at full speed and 10 at half, which is 10 s of work. It has 75 left, which it
    does from 50 on.
    """
    rows = [(0.0, 100.0, 1), (20.0, 10.0, 1), (45.0, 5.0, 1)]
    policy = Timetable({0.0: {0: (0,), 1: (0,)}, 45.0: {2: (0,)}, 50.0: {0: (0,)}})
    result = run(rows, policy, costs=Costs(packing_slowdown=2.0, lost_on_suspend=15.0))
    assert result.fates.ended.tolist() == [125.0, 40.0, 50.0]
    assert result.fates.lost.tolist() == [15.0, 0.0, 0.0]


# More GPUs than it needs

RATES = Throughput([1, 2, 4], [10.0, 18.0, 30.0], [10.0, 12.0, 20.0])


@pytest.mark.parametrize(
    ("least", "placed", "seconds"),
    [
        (1, (0,), 90.0),
        (1, (0, 1), 90.0 / 1.8),
        (1, (0, 1, 2), 90.0 / 2.4),  # half-way between 18 and 30
        (1, (0, 1, 2, 3), 90.0 / 3.0),
        (1, (0, 4), 90.0 / 1.2),  # over two nodes
        (2, (0, 1), 90.0),  # its duration is meant on the 2 GPUs that it needs
        (2, (0, 1, 2, 3), 90.0 * 18 / 30),
        (2, (0, 4), 90.0 * 18 / 12),
    ],
)
def test_speed_on_more_gpus_is_the_profiles(least: int, placed: tuple[int, ...], seconds: float) -> None:
    jobs = workload([(0.0, 90.0, least)], gpus_max=[4], models=["a"], profiles=[Profile("a", RATES)])
    assert ends(jobs, Timetable({0.0: {0: placed}}), "2x4", Costs(spread_slowdown=9.0)) == pytest.approx([seconds])


@pytest.mark.parametrize(
    ("least", "placed", "seconds"),
    [
        (2, (0, 1), 90.0),
        (2, (0, 1, 2, 3), 90.0 * 18 / 20),  # two nodes, as few as 4 GPUs can be on: 20 it/s all the same
        (2, (0, 1, 2, 4), 90.0 * 18 / 20),  # three are no slower than two
        (4, (0, 1, 2, 3), 90.0),  # its duration is meant over two nodes, as there are no larger ones
        (4, (0, 1, 2, 4), 90.0),
    ],
)
def test_a_gang_over_several_nodes_has_their_speed(least: int, placed: tuple[int, ...], seconds: float) -> None:
    jobs = workload([(0.0, 90.0, least)], gpus_max=[4], models=["a"], profiles=[Profile("a", RATES)])
    assert ends(jobs, Timetable({0.0: {0: placed}}), "3x2", Costs(spread_slowdown=9.0)) == pytest.approx([seconds])


def test_a_job_that_grows() -> None:
    """100 s on 1 GPU; at 40 it moves to 4, three times as fast: stopped until 42, resumed at 42 + 5 + 3 x 1, its 60 s take 20."""
    jobs = workload([(0.0, 100.0, 1)], gpus_max=[4], models=["a"], profiles=[Profile("a", RATES)])
    policy = Timetable({0.0: {0: (0,)}, 40.0: {0: (0, 1, 2, 3)}})
    result = run(jobs, policy, "1x4", Costs(suspend=2.0, resume=5.0, resume_per_gpu=1.0))
    assert result.fates.ended.tolist() == [70.0]
    assert result.fates.gpu_time.tolist() == [42.0 + 4 * 28.0]
    assert result.fates.lost.tolist() == [2.0 + 4 * 8.0]


def test_the_chart_shows_the_gpus_that_a_gang_has() -> None:
    """Job 0 on GPUs 0, 1 and 3 of four, and job 1 on the one in between."""
    result = run(workload([(0.0, 9.0, 3), (0.0, 5.0, 1)]), Timetable({0.0: {0: (0, 1, 3), 1: (2,)}}), "1x4")
    bars = result.bars
    assert sorted(zip(bars.job.tolist(), bars.gpu.tolist(), bars.gpus.tolist(), bars.ends.tolist(), strict=True)) == [
        (0, 0, 2, 9.0),
        (0, 3, 1, 9.0),
        (1, 2, 1, 5.0),
    ]
    assert (result.fates.run_time.tolist(), result.fates.gpu_time.tolist()) == ([9.0, 5.0], [27.0, 5.0])
    assert result.usage.running.tolist() == [2, 1, 0]


def test_a_batch_size_that_the_policy_chooses() -> None:
    """One GPU, a step of 1 s + 0.01 s a sample, M0 = 100, phi = 300: batch 100 takes 2 s (50 samples/s), batch 300 takes 4 s, 75
    samples/s of which (300 + 100) / (300 + 300) count: 50 too. Batch 200: 3 s, 66.7 samples/s of which 0.8 count, 53.3 or 16/15 as fast.

    100 s of work; with 200 from 20 s on the 80 s that are left take 75.
    """
    goodput = Goodput(StepTime(grad=1.0, grad_per_sample=0.01), 100, 1000, (1, 1000), ((0.0, 300.0),))
    jobs = workload([(0.0, 100.0, 1)], models=["a"], batch_size=[100], profiles=[Profile("a", goodput=goodput)])
    alone = {0.0: {0: Allocation((0,))}}
    assert run(jobs, Timetable(alone)).fates.ended.tolist() == [100.0]
    larger = {20.0: {0: Allocation((0,), batch_size=200)}}
    assert run(jobs, Timetable(alone | larger)).fates.ended == pytest.approx([95.0])
    as_fast = {20.0: {0: Allocation((0,), batch_size=300)}}
    assert run(jobs, Timetable(alone | as_fast)).fates.ended == pytest.approx([100.0])
    assert run(jobs, Timetable({0.0: {0: Allocation((0,), batch_size=200)}})).fates.ended == pytest.approx([93.75])


def test_efficiency_is_that_of_the_progress_at_the_last_choice_of_the_batch_size() -> None:
    """As above, but phi grows from 300 to 1 100. With batch 300 half of the work takes 50 s at the efficiency of its begin; then phi is
    700, (700 + 100) / (700 + 300) of 75 samples/s count, 60 or 6/5 as fast, and the other half takes 50 / 1.2 s.
    """
    goodput = Goodput(StepTime(grad=1.0, grad_per_sample=0.01), 100, 1000, (1, 1000), ((0.0, 300.0), (1.0, 1100.0)))
    jobs = workload([(0.0, 100.0, 1)], models=["a"], batch_size=[100], profiles=[Profile("a", goodput=goodput)])
    chosen = {0: Allocation((0,), batch_size=300)}
    assert run(jobs, Timetable({0.0: chosen})).fates.ended == pytest.approx([100.0])
    assert run(jobs, Timetable({0.0: chosen, 50.0: chosen})).fates.ended == pytest.approx([50.0 + 50.0 / 1.2])


def test_what_a_stop_undoes_is_told_from_the_last_paces_alone() -> None:
    """On one GPU, its batch size chosen anew every 10 s, of which 35 s are lost when it gives way at 200: those of the last four rounds.

    Phi grows from 300 to 1 100 with the work, so each round is faster than the one before it, as above.
    """
    goodput = Goodput(StepTime(grad=1.0, grad_per_sample=0.01), 100, 1000, (1, 1000), ((0.0, 300.0), (1.0, 1100.0)))
    rows = [(0.0, 1000.0, 1), (200.0, 1.0, 1)]
    jobs = workload(rows, models=["a", ""], batch_size=[100, 0], profiles=[Profile("a", goodput=goodput)])
    chosen = {0: Allocation((0,), batch_size=300)}
    done, paces = 0.0, []
    for _ in range(20):
        phi = 300.0 + 0.8 * done
        paces.append(1.5 * (phi + 100.0) / (phi + 300.0))
        done += 10.0 * paces[-1]
    lost = 5.0 * paces[-4] + 10.0 * sum(paces[-3:])
    left: list[float] = []
    timetable = Timetable({10.0 * tick: chosen for tick in range(20)} | {200.0: {1: (0,)}})
    run(jobs, timetable, "1x1", Costs(lost_on_suspend=35.0), until=200.0, observer=lambda view, *_: left.append(view.jobs.remaining[0]))
    assert left[-1] == pytest.approx(1000.0 - done + lost)


def test_events_that_are_void_are_forgotten_and_the_others_keep_their_order() -> None:
    agenda = Agenda(3)
    agenda.put(5.0, EventKind.END, 1)
    for moment in range(5000):
        agenda.void(0)
        agenda.put(9000.0 - moment, EventKind.END, 0)
    agenda.put(5.0, EventKind.STOPPED, 2)
    assert len(agenda._heap) < 3000
    agenda.now = 9000.0
    assert [agenda.pop() for _ in range(4)] == [(EventKind.END, 1), (EventKind.STOPPED, 2), (EventKind.END, 0), None]


def test_the_view_tells_what_is_so() -> None:
    """Job 0 of 100 s on 2 GPUs as seen at 60, having grown at 40 to 4 GPUs (18 to 30 it/s, 10 s to start): it has trained 50 s.

    It has held 2 GPUs for 40 s and 4 for 20 s, the start included. Work left: 100 - 40 - 10 x 30 / 18.
    """
    seen: dict[float, tuple[float, ...]] = {}

    def look(view: View, *_: object) -> None:
        jobs = view.jobs
        columns = (jobs.attained, jobs.run_time, jobs.lease_time, jobs.remaining, jobs.progress)
        seen[view.now] = tuple(float(column[0]) for column in columns if column is not None)

    jobs = workload([(0.0, 100.0, 2), (60.0, 9.0, 1)], gpus_max=[4, 1], models=["a", "b"], profiles=[Profile("a", RATES)])
    run(jobs, Timetable({0.0: {0: (0, 1)}, 40.0: {0: (0, 1, 2, 3)}}), "1x4", Costs(resume=10.0), look, until=60.0)
    left = 60.0 - 10 * 30 / 18
    assert seen[60.0] == pytest.approx((40 * 2 + 20 * 4, 60.0, 20.0, left, 1 - left / 100))


# Leases


def leased(*until: float) -> Callable[[View], Plan]:
    """Job 0 on GPU 0: until the first of the moments, renewed there until the second, and so on; after the last without end."""

    def decide(view: View) -> Plan:
        if not len(view.jobs) or view.jobs.id[0] != 0 or view.jobs.phase[0] == Phase.STOPPING:
            return Plan({})
        later = [moment for moment in until if moment > view.now]
        if view.jobs.phase[0] == Phase.ACTIVE and not later:
            return Plan({})  # as it is
        return Plan({0: Allocation((0,), lease_end=later[0] if later else None)})

    return decide


WAITS = (0.0, 9.0, 1)  #: a job that the policies below never start; a lease that nobody waits for would go on


def test_a_lease_that_is_not_renewed_ends_in_a_suspension() -> None:
    """Renewed at 30, not at 60: suspended until 62, resumed and training at 67, with 40 s left."""
    jobs = [(0.0, 100.0, 1), WAITS]
    result = run(jobs, Scripted(leased(30.0, 60.0)), costs=Costs(suspend=2.0, resume=5.0), until=200.0)
    assert result.fates.ended[0] == 107.0
    assert result.fates.preemptions[0] == 1
    assert result.bars.ends.tolist() == [62.0, 107.0]


def test_the_end_of_a_lease_that_was_renewed_before_is_no_event() -> None:
    asked: list[float] = []
    policy = Timetable({0.0: {0: Allocation((0,), 30.0)}, 10.0: {0: Allocation((0,), 500.0)}})
    assert ends([(0.0, 100.0, 1)], policy, observer=lambda view, *_: asked.append(view.now)) == [100.0]
    assert asked == [0.0, 10.0, 100.0]


def test_a_lease_can_be_made_one_without_end() -> None:
    policy = Timetable({0.0: {0: Allocation((0,), 30.0)}, 10.0: {0: Allocation((0,))}})
    assert run([(0.0, 100.0, 1)], policy).fates.preemptions.tolist() == [0]


def test_a_lease_that_runs_out_between_rounds_does_so_then() -> None:
    """Rounds of 20 s, a lease until 35: the GPU is free from there, and not only from the round of 40 on."""
    result = run([(0.0, 100.0, 1), WAITS], Scripted(leased(35.0), 20.0), until=200.0)
    assert result.bars.ends[0] == 35.0
    assert result.fates.preemptions[0] == 1


def test_a_lease_goes_on_while_nobody_waits() -> None:
    result = run([(0.0, 100.0, 1)], Scripted(leased(35.0), 20.0))
    assert (result.bars.ends.tolist(), result.fates.preemptions.tolist()) == ([100.0], [0])


def test_a_lease_that_runs_out_at_a_round_can_be_renewed_there() -> None:
    result = run([(0.0, 100.0, 1)], Scripted(leased(40.0, 500.0), 20.0))
    assert result.bars.ends.tolist() == [100.0]


def test_a_lease_outlasts_a_change_of_pace() -> None:
    """Job 1 shares the GPU from 10 to 20; the lease of job 0 still ends at 30, of its own accord."""
    table = Timetable({0.0: {0: Allocation((0,), 30.0), 1: (0,)}, 30.0: {}})
    policy = Scripted(lambda view: replace(table.plan(view), wake_at=None))
    result = run([(0.0, 100.0, 1), (10.0, 5.0, 1), (25.0, 9.0, 1)], policy, costs=Costs(packing_slowdown=2.0), until=200.0)
    assert result.bars.ends.tolist()[:2] == [20.0, 30.0]


# -- what goes in -----------------------------------------------------------------------------------------------------------


def test_columns_are_sorted_by_submission_and_names_are_told_once() -> None:
    jobs = workload([(3.0, 1.0, 1), (1.0, 2.0, 1), (1.0, 3.0, 1)], users=["b", "a\0", "a"], tiers=[[(9.0, 50.0), (4.0, 100.0)], [], []])
    assert (jobs.duration.tolist(), jobs.users, jobs.user.tolist()) == ([2.0, 3.0, 1.0], ["a", "a\0", "b"], [1, 0, 2])
    assert (jobs.tier_start.tolist(), jobs.tier_deadline.tolist(), jobs.tier_reward.tolist()) == ([0, 0, 0, 2], [4.0, 9.0], [100.0, 50.0])
    assert workload([(3.0, 1.0, 1), (1.0, 2.0, 1)]).tier_start.tolist() == [0, 0, 0]


def test_where_nothing_is_random_no_generator_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading them takes longer than to believe the truth of a million jobs."""
    monkeypatch.setattr(np.random, "default_rng", None)
    assert beliefs(workload([(0.0, 4.0, 1)], estimate=[6.0]), Errors(), seed=0).tolist() == [1.5]
    with pytest.raises(TypeError):
        beliefs(workload([(0.0, 4.0, 1)]), Errors(unknown=0.5), seed=0)

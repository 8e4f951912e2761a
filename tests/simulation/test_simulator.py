"""The simulator against closed forms, optimal schedules and the laws that every schedule keeps."""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from accounts import NODES, Witness, assert_accounts_agree, costs, workloads
from expected import erlang_c, exponential, first_free, lindley, mean_wait, mean_wait_of_one, poisson
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from scripted import (
    Row,
    Scripted,
    Timetable,
    arrays,
    feasible,
    in_one_pool,
    least_total_completion,
    run,
    workload,
)
from stoker.engine.scheduling.guards import Actions, PreemptionLimits
from stoker.engine.sim import failures, simulator
from stoker.engine.sim.results.result import Result
from stoker.engine.sim.run_options import NO_LIMITS, Costs, Errors
from stoker.engine.sim.simulation_error import SimulationError
from stoker.engine.sim.workload import Workload
from stoker.policies import registry
from stoker.policies.contract import Allocation, Demand, Floats, Group, Phase, Plan, View, plan_of
from stoker.policies.estimate.throughput import Profile, Throughput
from waiting import patient

SAMPLE = 1_500  #: jobs that are simulated
LONG = 3_000_000  #: jobs of a recursion; its average is then some 0.5 % from its mean

# Queues in closed form: the simulator gives each job the waiting time of the recursion, whose average is the closed form's.


def waits(arrivals: Floats, services: Floats, servers: int) -> Floats:
    result = run(workload([(a, s, 1) for a, s in zip(arrivals.tolist(), services.tolist(), strict=True)]), "fifo", f"1x{servers}")
    return result.fates.started - arrivals


@pytest.mark.parametrize("seed", [0, 1])
def test_one_server_is_lindleys(seed: int) -> None:
    arrivals, services = poisson(SAMPLE, 0.7, seed), exponential(SAMPLE, seed)
    np.testing.assert_allclose(waits(arrivals, services, 1), lindley(arrivals, services), atol=1e-9)


@pytest.mark.parametrize("servers", [2, 8])
def test_several_servers_are_kiefer_and_wolfowitzs(servers: int) -> None:
    arrivals, services = poisson(SAMPLE, 0.8 * servers, 3), exponential(SAMPLE, 3)
    assert np.array_equal(waits(arrivals, services, servers), first_free(arrivals, services, servers))


def test_mm1_waits_as_the_closed_form_says() -> None:
    expected = 0.7 / (1.0 - 0.7)  # Wq = rho / (mu - lambda), mu = 1
    assert mean_wait(1, 0.7) == pytest.approx(expected)
    assert lindley(poisson(LONG, 0.7, 0), exponential(LONG, 0)).mean() == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("servers", [2, 4])
def test_mmc_waits_as_erlang_c_says(servers: int) -> None:
    n, load = 1_500_000, 0.7 * servers
    expected = mean_wait(servers, load)
    assert first_free(poisson(n, load, 0), exponential(n, 0), servers).mean() == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("short", "long", "second_moment"),
    [(1.0, 1.0, 1.0), (0.25, 3.25, 0.75 / 16 + 0.25 * 3.25**2)],
    ids=["deterministic", "two lengths"],
)
def test_mg1_waits_as_pollaczek_and_khinchine_say(short: float, long: float, second_moment: float) -> None:
    services = np.random.default_rng(5).choice([short, long], LONG, p=[0.75, 0.25])
    assert lindley(poisson(LONG, 0.6, 7), services).mean() == pytest.approx(mean_wait_of_one(0.6, second_moment), rel=0.02)
    few = services[:400]
    np.testing.assert_allclose(waits(poisson(400, 0.6, 7), few, 1), lindley(poisson(400, 0.6, 7), few), atol=1e-9)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("jobs", [4_000, pytest.param(20_000, marks=pytest.mark.nightly)])
def test_nothing_drifts_in_a_long_run(jobs: int) -> None:
    arrivals, services = poisson(jobs, 3.6, 9), exponential(jobs, 9)
    assert np.array_equal(waits(arrivals, services, 4), first_free(arrivals, services, 4))


def test_erlang_c() -> None:
    assert erlang_c(1, 0.7) == pytest.approx(0.7)  # one server is busy for the share rho of the time
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)  # worked out: a^c/c! c/(c-a) = 1, over 1 + 1 + 1


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 30), st.integers(1, 4)), min_size=1, max_size=25))
@settings(max_examples=40)
@pytest.mark.parametrize("backfill", [False, True], ids=["head blocks", "backfill"])
@pytest.mark.parametrize("name", ["fifo", "sjf"])
def test_every_job_ends_when_a_plain_loop_says(name: str, backfill: bool, rows: list[Row]) -> None:
    rows = sorted(rows, key=lambda row: row[0])
    assert run(rows, f"{name},backfill={backfill}", "1x4").fates.ended.tolist() == in_one_pool(
        rows, 4, shortest=name == "sjf", backfill=backfill
    )


# Optimal schedules on one machine

small = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4), st.just(1)), min_size=1, max_size=4)


@given(small)
@settings(max_examples=60)
@example([(0, 4, 1), (1, 1, 1), (2, 1, 1)])
def test_shortest_remaining_time_is_optimal_on_one_machine(rows: list[Row]) -> None:
    rows = sorted(rows, key=lambda row: row[0])
    assert run(rows, "srtf,hysteresis=1").fates.ended.sum() == pytest.approx(least_total_completion(rows))


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 4), st.integers(0, 10)), min_size=1, max_size=6))
@settings(max_examples=80)
@example([(0, 4, 4), (1, 1, 0), (2, 2, 5)])
def test_earliest_deadline_first_meets_all_that_can_be_met_on_one_machine(jobs: list[tuple[int, int, int]]) -> None:
    jobs = sorted(jobs, key=lambda job: job[0])
    rows: list[Row] = [(submitted, work, 1) for submitted, work, _ in jobs]
    deadlines = [float(submitted + work + slack) for submitted, work, slack in jobs]
    strict = workload(rows, demand=[Demand.STRICT] * len(rows), tiers=[[(deadline, 100.0)] for deadline in deadlines])
    met = bool((run(strict, "edf").fates.ended <= np.array(deadlines) + 1e-9).all())
    assert met == feasible(rows, deadlines)


def test_a_decision_is_in_force_when_it_is_committed() -> None:
    """What comes meanwhile is decided on after that; who has ended by then is not stopped."""
    rows: list[Row] = [(0.0, 10.0, 1), (0.5, 10.0, 1), (1.5, 4.0, 1)]
    late = run(rows, "fifo", "1x2", Costs(commit=1.0))
    assert late.fates.started.tolist() == [1.0, 2.0, 12.0]
    assert late.fates.ended.tolist() == [11.0, 12.0, 16.0]
    moves = Timetable({0.0: {0: (0,)}, 10.5: {0: (1,)}})
    ended = run([(0.0, 10.0, 1)], moves, "1x2", Costs(commit=1.0))
    assert ended.fates.ended.tolist() == [11.0]
    assert ended.fates.preemptions.tolist() == [0]


# What every schedule keeps


@pytest.mark.parametrize("name", sorted(registry.POLICIES))
@given(jobs=workloads(), nodes=st.sampled_from(NODES), costs=costs, seed=st.integers(0, 5))
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.sampled(4)
def test_no_job_is_lost_and_no_gpu_is_used_twice(name: str, jobs: Workload, nodes: str, costs: Costs, seed: int) -> None:
    result = run(jobs, name, nodes, costs, observer=Witness(jobs, nodes), seed=seed)
    assert_accounts_agree(jobs, nodes, result)


@pytest.mark.parametrize("name", sorted(registry.POLICIES))
@given(jobs=workloads(), nodes=st.sampled_from(NODES), costs=costs, guarded=st.booleans())
@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.sampled(5)
def test_who_looks_on_changes_nothing(name: str, jobs: Workload, nodes: str, costs: Costs, guarded: bool) -> None:
    """Unobserved, plans take short ways: starts that need no question, and plans that need no long check."""
    limits = PreemptionLimits(min_run_time=10.0, max_preemptions=3, cooldown=20.0) if guarded else NO_LIMITS
    unseen, seen = (run(jobs, name, nodes, costs, look, limits=limits) for look in (None, lambda *_: None))
    assert digest(unseen) == digest(seen)


@pytest.mark.parametrize("name", ["srtf", "tiresias", "themis", "edf", "priority"])
@given(jobs=workloads(), nodes=st.sampled_from(NODES), costs=costs)
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
def test_the_guards_of_the_daemon_hold(name: str, jobs: Workload, nodes: str, costs: Costs) -> None:
    """At most so many preemptions, and none before a job has run for the minimum; figures stay true under them."""
    result = run(jobs, name, nodes, costs, limits=PreemptionLimits(min_run_time=20.0, max_preemptions=2, cooldown=30.0))
    assert_accounts_agree(jobs, nodes, result)
    assert result.fates.preemptions.max(initial=0) <= 2
    if not costs.failures_per_gpu_hour:
        cut = result.bars.ends < result.fates.ended[result.bars.job]
        assert (result.bars.ends - result.bars.begins >= 20.0 - 1e-9)[cut].all()


@pytest.mark.parametrize("name", ["fifo,backfill=true", "sjf,backfill=true", "srtf,hysteresis=1", "edf", "las", "tiresias"])
@given(jobs=workloads())
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_no_gpu_idles_while_a_job_that_fits_waits(name: str, jobs: Workload) -> None:
    def observe(view: View, _: Plan, actions: Actions) -> None:
        starts = {start.job for start in actions.starts}
        waits = (view.jobs.phase == Phase.PENDING) & ~np.isin(view.jobs.id, list(starts))
        if actions.stops or (view.jobs.phase == Phase.STOPPING).any() or not waits.any():
            return  # room is being made; the decision that finds it has its turn at this very moment
        free = 4 - len(view.jobs.alloc_gpus) - sum(len(start.gpus) for start in actions.starts)
        assert free < view.jobs.gpus_min[waits].min(), f"at {view.now} {free} GPUs are idle"

    run(jobs, name, "1x4", observer=observe)


def test_the_makespan_of_a_full_machine_is_its_work() -> None:
    """One GPU, all there from the start: whatever the order and however often it changes, the last ends when all work is done."""
    rows = [(0.0, float(length), 1) for length in (50, 20, 90, 10, 30)]
    for name in sorted(registry.POLICIES):
        result = run(rows, name)
        assert not result.fates.rejected.any(), name
        last = result.fates.ended.max()
        length = np.diff(
            np.append(np.minimum(result.usage.ts, last), last)
        )  # one that works in rounds may leave the GPU idle until the next
        assert last == pytest.approx(200.0 + length[result.usage.busy == 0].sum()), name
        assert getattr(registry.create(name, {}), "interval", None) is not None or last == pytest.approx(200.0), name


# The same in, the same out

MIXED = [(float(7 * i % 50), float(13 * i % 70 + 1), 1 + i % 4) for i in range(40)]
ALL_COSTS = Costs(2.0, 3.0, 0.5, 5.0, 1.0, 10.0, 1.0, 4.0, 2, 1.5, 1.5, 2.0)
_DIGEST = """
import hashlib, json, sys
sys.path[:0] = sys.argv[1:]
import test_simulator as t
print(json.dumps({name: t.digest(t.mixed(name)) for name in ("fifo", "srtf", "tiresias", "themis")}))
"""


def mixed(name: str) -> Result:
    jobs = workload(MIXED, models=[f"m{i % 3}" for i in range(40)])
    return run(jobs, name, "2x4", ALL_COSTS, errors=Errors(0.3, 0.1, 0.2), seed=3)


def digest(result: Result) -> str:
    whole = hashlib.sha256()
    for name, values in arrays(result).items():
        whole.update(name.encode() + values.tobytes())
    return whole.hexdigest()


def test_two_processes_of_different_hash_seeds_give_the_same_bytes() -> None:
    def digests(seed: str) -> str:
        tests = Path(__file__).parents[1]
        command = [sys.executable, "-c", _DIGEST, str(Path(__file__).parent), str(tests), str(tests.parent / "benchmarks")]
        environment = os.environ | {"PYTHONHASHSEED": seed}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=patient(100)).stdout

    assert digests("1") == digests("2") != ""


@pytest.mark.parametrize("name", sorted(registry.POLICIES))
@pytest.mark.sampled(5)
def test_the_real_clock_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(mixed(name))
    ticks = itertools.count(1e6, 1e3)
    monkeypatch.setattr(time, "time", lambda: next(ticks))
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    assert digest(mixed(name)) == before


def test_another_seed_is_another_run() -> None:
    jobs = workload(MIXED)
    noisy = [run(jobs, "srtf", "2x4", errors=Errors(1.0), seed=seed) for seed in (0, 1)]
    assert digest(noisy[0]) != digest(noisy[1])


# Estimates are wrong, the truth is not


@given(jobs=workloads(), errors=st.builds(Errors, st.floats(0, 2), st.floats(-1, 1), st.floats(0, 1)), seed=st.integers(0, 9))
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_wrong_estimates_change_decisions_but_no_work(jobs: Workload, errors: Errors, seed: int) -> None:
    result = run(jobs, "srtf", "1x4", errors=errors, seed=seed)
    done = ~result.fates.dropped
    np.testing.assert_allclose(result.fates.gpu_time[done], (jobs.duration * jobs.gpus_min)[done], atol=1e-6)


def believed(**options: object) -> Floats:
    seen: list[Floats] = []
    jobs = options.pop("jobs", None) or workload([(0.0, 100.0, 1)] * 400)
    run(jobs, "fifo", observer=lambda view, *_: seen.append(view.jobs.remaining.copy()), until=0.0, **options)
    return seen[0]


def test_errors_have_the_distribution_that_they_say() -> None:
    exact = believed()
    assert (exact == 100.0).all()
    noise = np.log(believed(errors=Errors(duration=0.5, bias=0.2)) / 100.0)
    assert noise.mean() == pytest.approx(0.2, abs=4 * 0.5 / 20)
    assert noise.std() == pytest.approx(0.5, rel=0.15)
    assert np.isnan(believed(errors=Errors(unknown=0.25))).mean() == pytest.approx(0.25, abs=0.09)


def test_what_the_submitter_says_is_believed() -> None:
    jobs = workload([(0.0, 100.0, 1), (0.0, 100.0, 1), (0.0, 0.0, 1)], estimate=[150.0, float("nan"), 30.0])
    assert believed(jobs=jobs).tolist() == [150.0, 100.0, 0.0]


def test_a_mistaken_estimate_misleads_the_policy_alone() -> None:
    """Job 0 says 10 s and takes 100; job 1 says 50 s and does: job 0 goes first, and takes its 100 s."""
    jobs = workload([(0.0, 100.0, 1), (0.0, 50.0, 1)], estimate=[10.0, 50.0])
    assert run(jobs, "sjf").fates.ended.tolist() == [100.0, 150.0]
    assert run([(0.0, 100.0, 1), (0.0, 50.0, 1)], "sjf").fates.ended.tolist() == [150.0, 50.0]


# The end of a run, and runs that have none


def test_until() -> None:
    result = run([(0.0, 10.0, 1), (0.0, 50.0, 1), (40.0, 1.0, 1), (99.0, 1.0, 1)], "fifo", until=30.0)
    assert result.fates.ended[0] == 10.0
    assert np.isnan(result.fates.ended[1:]).all()
    assert result.fates.started[1] == 10.0
    assert result.fates.run_time.tolist() == [10.0, 20.0, 0.0, 0.0]  # job 1 has held its GPU until the end
    assert result.bars.ends.tolist() == [10.0, 30.0]


def test_what_happens_at_the_end_still_happens() -> None:
    assert run([(0.0, 10.0, 1)], "fifo", until=10.0).fates.ended.tolist() == [10.0]


def test_jobs_that_can_never_fit_are_dropped_at_once() -> None:
    result = run([(0.0, 5.0, 9), (0.0, 5.0, 8)], "fifo", "2x4")
    assert result.fates.dropped.tolist() == [True, False]
    assert result.fates.ended[1] == 5.0


def test_no_jobs_and_jobs_that_take_no_time() -> None:
    assert run([], "fifo").events == 0
    assert run([(3.0, 0.0, 1), (3.0, 0.0, 1)], "srtf").fates.ended.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("interval", [None, 60.0])
def test_a_policy_that_starts_nothing_comes_to_an_end(interval: float | None) -> None:
    result = run([(0.0, 5.0, 1), (9.0, 5.0, 1)], Scripted(lambda _: Plan({}), interval))
    assert np.isnan(result.fates.started).all()
    assert np.isnan(result.fates.ended).all()


def test_a_policy_that_only_asks_to_be_woken_comes_to_an_end_but_not_before_all_jobs_have_been_profiled() -> None:
    def decide(view: View) -> Plan:
        return Plan({int(job): Allocation((0,)) for job in view.jobs.id[:1]}, wake_at=view.now + 1.0)

    result = run([(0.0, 5.0, 1), (3000.0, 5.0, 1)], Scripted(decide), costs=Costs(profiling=5000.0))
    assert result.fates.ended.tolist() == [5005.0, 8005.0]  # it is asked in vain 3 000 times in between
    assert run([(0.0, 5.0, 1)], Scripted(lambda view: Plan({}, wake_at=view.now + 1.0))).decisions < 2000


def swap(view: View) -> Plan:
    """Whoever waits gets the GPU."""
    waits = view.jobs.id[view.jobs.phase == Phase.PENDING]
    return plan_of(view, {int(job): Allocation((0,)) for job in waits[:1]})


def test_a_policy_that_goes_round_in_circles_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three jobs on two GPUs: each decision starts one on the GPU that is free, and has the other one cleared for another."""
    monkeypatch.setattr(simulator, "_AT_ONE_MOMENT", 200)

    def decide(view: View) -> Plan:
        held = set(view.jobs.alloc_gpus.tolist())
        waits = view.jobs.id[view.jobs.phase == Phase.PENDING].tolist()
        return plan_of(view, {job: Allocation((gpu,)) for job, gpu in zip(waits, [*({0, 1} - held), *held], strict=False)})

    with pytest.raises(SimulationError, match=r"policy scripted at 4 s: the policy goes round in circles"):
        run([(0.0, 9.0, 1), (0.0, 9.0, 1), (4.0, 9.0, 1)], Scripted(decide), "1x2")


def test_a_policy_that_goes_round_in_circles_as_time_passes_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start takes longer than the round after which the job is stopped again."""
    monkeypatch.setattr(simulator, "_IN_VAIN", 50)
    with pytest.raises(SimulationError, match="the last 50 jobs that it stopped had got nothing done"):
        run([(0.0, 500.0, 1), (0.0, 500.0, 1)], Scripted(swap, 60.0), costs=Costs(cold_start=90.0, resume=90.0))


def test_stops_in_vain_are_forgiven_when_a_job_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Job 0 is displaced twice before it trains, at 20 and at 70, but between that job 1 ends, at 60."""
    monkeypatch.setattr(simulator, "_IN_VAIN", 1)
    rows = [(0.0, 100.0, 1), (20.0, 10.0, 1), (70.0, 10.0, 1)]
    result = run(rows, "srtf,hysteresis=1", costs=Costs(cold_start=30.0, resume=30.0))
    assert result.fates.ended.tolist() == [240.0, 60.0, 110.0]
    assert result.fates.preemptions.tolist() == [2, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("until", [None, 1e6])
@pytest.mark.sampled(2)
def test_a_job_that_never_saves_anything_ends_the_run(monkeypatch: pytest.MonkeyPatch, until: float | None) -> None:
    """60 failures an hour, and nothing is saved in its first hour; job 1 is done in a second. A run that stops anyway is left alone."""
    monkeypatch.setattr(failures, "_IN_VAIN", 50)
    costs = Costs(failures_per_gpu_hour=60.0, checkpoint_interval=3600.0)
    jobs = workload([(0.0, 7200.0, 1), (0.0, 1.0, 1)], key=["stuck", "short"])
    if until is not None:
        assert run(jobs, "fifo", "1x2", costs, until=until).fates.lost[0] > 50
        return
    told = "'stuck' never ends: it has failed 50 times since it last saved any work; give a shorter --checkpoint-interval"
    with pytest.raises(SimulationError, match=told) as raised:
        run(jobs, "fifo", "1x2", costs)
    assert "\n" not in str(raised.value)


def test_failures_are_forgiven_when_work_was_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute of work is saved about once in three failures; 100 of them take hundreds, but never 40 in a row that save nothing."""
    monkeypatch.setattr(failures, "_IN_VAIN", 40)
    result = run([(0.0, 6000.0, 1)], "fifo", costs=Costs(failures_per_gpu_hour=60.0, checkpoint_interval=60.0))
    assert len(result.bars.job) > 100


# Bad policies


@pytest.mark.parametrize(
    ("plan", "fault"),
    [
        (lambda _: None, "plan() answered with a NoneType, not a Plan"),
        (lambda _: Plan({7: Allocation((0,))}), "job 7: is allocated, but is not in the view"),
        (lambda _: Plan({0: Allocation((0,))}), "job 0: has 1 GPUs, it takes 2"),
        (lambda _: Plan({0: Allocation((0, 9))}), "job 0: has GPU row 9, the view has rows 0 to 3"),
        (lambda _: Plan({0: Allocation((1, 1))}), "job 0: has a GPU twice in (1, 1)"),
        (lambda _: Plan({0: Allocation((0, 1)), 1: Allocation((1, 2))}), "job 1: has GPU n0/gpu1, which job 0 has too"),
        (lambda view: Plan({0: Allocation((0, 1), lease_end=view.now)}), "job 0: its lease ends at 5.0, which is not a time after now"),
        (lambda _: Plan({}, preempt=[0]), "job 0: is to be preempted, but holds no GPUs that could be taken"),
        (lambda _: Plan({}, preempt=["0"]), "preempt: '0' is not the id of a job"),
        (lambda _: Plan({0: Allocation((0, 1))}, rejected=[0]), "job 0: is rejected, but does not wait"),
        (lambda _: Plan({0: Allocation((0, 1))}, groups=[Group("packed", (0, 1))]), "job 1: is in a group (packed), but is not allocated"),
    ],
)
def test_an_invalid_plan_ends_the_run_and_is_shown(plan: Callable[[View], Plan], fault: str) -> None:
    with pytest.raises(SimulationError) as error:
        run([(5.0, 10.0, 2), (5.0, 10.0, 2)], Scripted(plan), "1x4")
    assert str(error.value).startswith(f"policy scripted at 5 s: invalid plan: {fault}")
    assert "; the plan: " in str(error.value)


@pytest.mark.parametrize(
    ("at", "source", "fault"),
    [
        (1.0, 0, None),  # runs, and has saved one
        (6.0, 0, None),  # has ended
        (0.0, 0, "job 0 has saved no checkpoint yet"),
        (1.0, 1, "that is itself"),
        (1.0, 2, "job 2 starts from the backbone big, and this one from small: the models differ"),
        (1.0, 3, "there is no such job"),
        (1.0, 9, "there is no such job"),
    ],
)
def test_a_job_begins_with_the_weights_of_one_that_has_saved_some(at: float, source: int, fault: str | None) -> None:
    jobs = workload([(0.0, 5.0, 1), (0.0, 5.0, 1), (0.0, 5.0, 1), (50.0, 1.0, 1)], backbone=["small", "small", "big", "small"])
    begun = Allocation((1,), begin_from=source)
    plans = {0.0: {0: (0,), 2: (2,)}, at: {0: (0,), 1: begun, 2: (2,)}, 40.0: {3: (0,)}}
    if fault is None:
        assert run(jobs, Timetable(plans), "1x3").fates.ended.tolist() == [5.0, at + 5.0, 5.0, 51.0]
        return
    with pytest.raises(SimulationError, match=f"invalid plan: job 1: is to begin with the weights of job {source}: {fault}"):
        run(jobs, Timetable(plans), "1x3")


def test_who_stays_is_not_started_over() -> None:
    """The first job runs on GPUs 0 and 1, a second one is given GPU 1 too; so it is if somebody else is preempted for it."""

    def decide(view: View) -> Plan:
        if view.now < 5:
            return Plan({0: Allocation((0, 1)), 1: Allocation((2,))})
        return Plan({2: Allocation((1, 2))}, preempt=(1,))

    with pytest.raises(SimulationError, match="invalid plan: job 2: has GPU n0/gpu1, which job 0 has too"):
        run([(0.0, 10.0, 2), (0.0, 10.0, 1), (5.0, 10.0, 2)], Scripted(decide), "1x4")


@pytest.mark.parametrize("fault", [ZeroDivisionError("division by zero"), SystemExit(3)])
def test_a_policy_that_raises_ends_the_run(fault: BaseException) -> None:
    def decide(_: View) -> Plan:
        raise fault

    with pytest.raises(SimulationError, match=rf"policy scripted at 2 s: the policy failed: {type(fault).__name__}: {fault}"):
        run([(2.0, 10.0, 1)], Scripted(decide))


def test_a_view_cannot_be_written_to() -> None:
    def decide(view: View) -> Plan:
        view.jobs.phase[0] = Phase.ACTIVE
        return Plan({})

    with pytest.raises(SimulationError, match="read-only"):
        run([(2.0, 10.0, 1)], Scripted(decide))


# When a policy is asked


def test_a_policy_is_asked_when_it_said() -> None:
    asked: list[float] = []

    def decide(view: View) -> Plan:
        asked.append(view.now)
        return Plan({0: Allocation((0,))} if view.now == 50.0 else {}, wake_at=50.0)

    assert run([(10.0, 5.0, 1)], Scripted(decide)).fates.ended.tolist() == [55.0]
    assert asked == [10.0, 50.0, 55.0]


def test_a_later_answer_replaces_the_time_to_be_woken() -> None:
    asked: list[float] = []

    def decide(view: View) -> Plan:
        asked.append(view.now)
        return Plan({}, wake_at={0.0: 50.0, 20.0: 30.0}.get(view.now))

    run([(0.0, 5.0, 1), (20.0, 5.0, 1)], Scripted(decide))
    assert asked == [0.0, 20.0, 30.0]


@pytest.mark.parametrize(("rigid", "expected"), [(False, [60.0, 120.0, 180.0, 540.0, 600.0, 660.0]), (True, [60.0, 540.0])])
def test_rounds_are_held_at_multiples_and_those_at_which_nothing_can_come_of_it_are_left_out(rigid: bool, expected: list[float]) -> None:
    """Job 0 comes at 10, starts at 60 and ends at 210; job 1 comes at 500, starts at 540 and ends at 690.

    Who is rigid need not be asked while nobody waits, nobody while there are no jobs.
    """
    asked: list[float] = []
    policy = Timetable({0.0: {0: (0,), 1: (0,)}}, interval=60.0)
    policy.rigid = rigid  # type: ignore[attr-defined]
    result = run([(10.0, 150.0, 1), (500.0, 150.0, 1)], policy, observer=lambda view, *_: asked.append(view.now))
    assert result.fates.started.tolist() == [60.0, 540.0]
    assert result.fates.ended.tolist() == [210.0, 690.0]
    assert asked == expected


def shares(policy: str, *others: Row, interval: float | None = None) -> list[float]:
    """When each of two jobs ends that share three GPUs, and what else waits."""
    concave = Profile("concave", Throughput([1, 2, 3, 4, 8], [1.0, 1.8, 2.4, 2.8, 3.6]))
    rows: list[Row] = [(0.0, 10_000.0, 1), (0.0, 9_000.0, 1), *others]
    jobs = workload(
        rows,
        gpus_max=[8, 8, *(gpus for _, _, gpus in others)],
        models=["concave", "concave", *("other" for _ in others)],
        profiles=[concave],
    )
    ended: list[float] = run(jobs, policy, "1x3", interval=interval).fates.ended.tolist()
    return ended[:2]


def test_rounds_divide_anew_whether_or_not_somebody_waits() -> None:
    """Shares follow progress: the third GPU changes hands as the one who has it gets ahead. A job that never fits changes nothing of it."""
    alone = shares("optimus")
    assert alone == pytest.approx(shares("optimus", (0.0, 10.0, 3)))
    assert alone == pytest.approx([6640.0, 6866.7], abs=0.1)


@pytest.mark.parametrize("setting", ["optimus,round=300", "optimus,round=1234.5"])
def test_rounds_are_as_long_as_the_policy_is_told_or_the_options_say(setting: str) -> None:
    own = float(setting.split("=")[1])
    assert shares(setting) == shares("optimus", interval=own) == shares("optimus,round=86400", interval=own)
    assert shares(setting) != shares("optimus")


@pytest.mark.parametrize(
    ("policy", "interval", "started"),
    [("optimus", 400.0, 400.0), ("optimus", None, 600.0), ("optimus,round=300", None, 600.0), ("optimus,round=300", 60.0, 360.0),
     ("pollux", 30.0, 330.0), ("elasticflow", 30.0, 330.0)],
)  # fmt: skip
def test_a_job_that_comes_between_rounds_starts_at_the_next(policy: str, interval: float | None, started: float) -> None:
    result = run([(0.0, 5000.0, 1), (310.0, 100.0, 1)], policy, "1x2", interval=interval)
    assert result.fates.started.tolist() == [0.0, started]


@pytest.mark.parametrize("interval", [0.1, 0.7, 1 / 3, 60.1])
@pytest.mark.slow
@pytest.mark.sampled(2)
def test_each_round_divides_anew_whatever_the_last_digits(interval: float) -> None:
    """Job ``k`` comes just after round ``k`` and starts at the next."""
    rows = [((number + 0.5) * interval, 1000.0 * interval, 1) for number in range(100)]
    started = run(rows, "optimus", "1x100", interval=interval).fates.started
    assert np.rint(started / interval).tolist() == list(range(1, 101))


@pytest.mark.parametrize("interval", [0.1, 0.3, 1.7, 1 / 3, 60.1])
def test_no_round_is_missed_or_held_twice_for_want_of_digits(interval: float) -> None:
    """Multiples of 0.1 are no multiples of 0.1 to `%`. Job 1 waits for 300 rounds."""
    rounds: list[float] = []
    rows = [(0.0, 300.5 * interval, 1), (0.0, interval, 1)]
    run(rows, "fifo", observer=lambda view, *_: rounds.append(view.now), interval=interval)
    assert np.rint(np.array(rounds) / interval).tolist()[:302] == list(range(302))


def test_the_interval_of_the_options_counts_before_the_policys() -> None:
    result = run([(10.0, 5.0, 1)], Timetable({0.0: {0: (0,)}}, interval=60.0), interval=25.0)
    assert result.fates.started.tolist() == [25.0]


def test_a_policy_may_give_a_job_up() -> None:
    def decide(view: View) -> Plan:
        return Plan({1: Allocation((0,))}, rejected=[0]) if view.now == 0 else Plan({})

    result = run([(0.0, 5.0, 1), (0.0, 5.0, 1)], Scripted(decide))
    assert result.fates.rejected.tolist() == [True, False]
    assert np.isnan(result.fates.ended[0])
    assert result.fates.ended[1] == 5.0
    assert result.usage.waiting.tolist() == [0, 0]


@given(jobs=workloads())
@settings(max_examples=20)
def test_a_rigid_policy_need_not_be_asked_while_nobody_waits(jobs: Workload) -> None:
    """What `rigid` leaves out changes nothing."""
    assume(len(jobs) > 1)
    for name in ("fifo", "srtf,hysteresis=1"):
        asked = registry.create(name.split(",")[0], dict(part.split("=") for part in name.split(",")[1:]))
        asked.rigid = False  # type: ignore[attr-defined]
        np.testing.assert_array_equal(run(jobs, name, "1x4").fates.ended, run(jobs, asked, "1x4").fates.ended)

"""AutoSched from a moment of a simulation: trials from the present state, no look into what is to come, a run reconfigured on its way."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import time
from multiprocessing.connection import Connection
from typing import ClassVar

import learnt_before
import numpy as np
import pytest
from learnt_before import Past, learnt_from
from stoker.engine.autosched import search_process, tuning_controller
from stoker.engine.autosched.moment_of_trace import situation_of, stand_at
from stoker.engine.autosched.search_process import SearchFailed, SearchRequest, SearchResult, find, find_apart
from stoker.engine.autosched.simulated_tuning import SimulatedTuning
from stoker.engine.autosched.situation import (
    CutOff,
    JobHistory,
    Situation,
    aggregated,
    bound_of,
    look_ahead,
    measure,
    no_jobs,
    predictor_of,
)
from stoker.engine.autosched.summary import summary_of
from stoker.engine.autosched.tuning_controller import (
    Controller,
    Trigger,
    has_harmed,
    is_burst,
    measured_gain,
    newest,
    refusal,
    tried_before,
)
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.run_options import Errors, Options
from stoker.engine.sim.simulator import Simulation, simulate
from stoker.engine.sim.study import choose
from stoker.engine.sim.workload import Workload, make_workload
from stoker.policies import registry
from stoker.policies.autosched.causal_model import CausalModel, NoModel, Samples
from stoker.policies.autosched.duration_ranges import NoPredictor
from stoker.policies.contract import Floats, Plan, View
from stoker.policies.keys import tunable
from waiting import patient

CLUSTER = Cluster.parse("2x4")
HOUR = 3600.0
NOW = 6 * HOUR


def crowded(seed: int = 0, jobs: int = 150, hours: float = 8.0) -> Workload:
    rng = np.random.default_rng(seed)
    users = [f"u{n % 5}" for n in range(jobs)]
    return make_workload(
        "crowded", np.sort(rng.uniform(0, hours * HOUR, jobs)), rng.lognormal(6.8, 1.2, jobs), rng.choice([1, 1, 2, 4], jobs), users=users
    )


def altered_after(workload: Workload, now: float) -> Workload:
    """The same up to now; all that comes later takes another time, on other GPUs, at another moment."""
    later = workload.submitted > now
    return dataclasses.replace(
        workload,
        submitted=np.where(later, now + (workload.submitted - now) * 0.5 + 1.0, workload.submitted),
        duration=np.where(later, workload.duration * 7.0 + 50.0, workload.duration),
        most=np.where(later, workload.duration * 7.0 + 50.0, workload.most),
        gpus_min=np.where(later, 3, workload.gpus_min),
        gpus_max=np.where(later, 3, workload.gpus_max),
    )


def at(workload: Workload, now: float = NOW) -> Situation:
    simulation = stand_at(workload, CLUSTER, "tiresias", {}, Options(), now)
    return situation_of(simulation, "tiresias", Options())[0]


def test_a_trial_goes_on_as_the_simulation_would() -> None:
    """Nothing comes after now: the trial of what is in force ends with the very completion times of the simulation that goes on."""
    whole = crowded()
    rows = np.flatnonzero(whole.submitted <= NOW)
    past = make_workload("past", whole.submitted[rows], whole.duration[rows], whole.gpus_min[rows])
    fates = simulate(past, CLUSTER, registry.create("tiresias", {}), Options()).fates
    situation = dataclasses.replace(at(past), coming=no_jobs())
    open_at = fates.ended > NOW
    expected = float((fates.ended - past.submitted)[open_at].mean())
    assert len(situation.view.jobs) == open_at.sum()
    assert measure(situation, registry.create("tiresias", {})).jct == pytest.approx(expected, rel=1e-6)


def test_a_trial_knows_of_durations_what_the_policy_knows() -> None:
    """Nothing is told of them: Lucid believes of each job what the jobs that have ended took, within a trial too."""
    options = Options(errors=Errors(unknown=1.0))
    past = crowded(hours=6.0)
    fates = simulate(past, CLUSTER, registry.create("lucid", {}), options).fates
    simulation = stand_at(past, CLUSTER, "lucid", {}, options, NOW)
    situation = situation_of(simulation, "lucid", options)[0]
    jobs = situation.view.jobs
    assert np.isnan(jobs.remaining).all() and situation.view.finished_service is not None
    in_truth = dataclasses.replace(situation, left=past.duration[jobs.id] - jobs.run_time, coming=no_jobs())
    expected = float((fates.ended - past.submitted)[jobs.id].mean())
    assert measure(in_truth, registry.create("lucid", {})).jct == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_what_comes_after_now_changes_no_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_process, "MIN_TRIAL_CPU_SECONDS", 60.0)  # the one bound that depends on the machine
    monkeypatch.setattr(learnt_before, "SEARCHES", 5)
    as_it_was = crowded(jobs=100)
    both = (as_it_was, altered_after(as_it_was, NOW))
    searches = [find(SearchRequest.of(at(workload), {}, trials=5)) for workload in both]
    first, second = ([(trial.config, trial.reward) for trial in answer.found.trials] for answer in searches)
    assert first == second
    pytest.importorskip("causallearn")
    one, other = (learnt_from(Past(workload, CLUSTER, NOW, math.inf), "tiresias", {}, Options(), "jct").samples.target for workload in both)
    assert one.tolist() == other.tolist() and len(one) > 40


@pytest.mark.slow
def test_what_comes_after_now_changes_no_turn_before_it() -> None:
    """The whole controller, bursts and predicted durations included."""
    pytest.importorskip("sklearn")
    workload = crowded(jobs=300)
    as_it_was = dataclasses.replace(workload, duration=workload.duration / 8, most=workload.most / 8)
    options, turns = Options(errors=Errors(unknown=1.0), until=NOW + 60.0), []
    for one in (as_it_was, altered_after(as_it_was, NOW)):
        control = SimulatedTuning("tiresias", {}, options, trials=4, causal=False)
        control.searches = lambda request: find(dataclasses.replace(request, seconds=math.inf))
        simulate(one, CLUSTER, registry.create("tiresias", {}), options, control=control)
        turns.append([(turn.at, turn.gain, turn.applied, turn.why) for turn in control.turns if turn.at <= NOW])
        assert control._predictor._newest is not None
    assert turns[0] == turns[1] and len(turns[0]) >= 4


def test_aggregated_trials_are_of_the_same_service_and_number() -> None:
    burst = make_workload("burst", [0.0] * 2 + [100.0 + n for n in range(20)], [9000.0] * 2 + [600.0] * 20, [4, 4] + [1] * 20)
    situation = at(burst, 200.0)
    less = aggregated(situation)
    assert less.jobs < situation.jobs and less.weight is not None and less.weight.sum() == situation.jobs
    assert (less.left * less.view.jobs.gpus_min).sum() == pytest.approx((situation.left * situation.view.jobs.gpus_min).sum())
    assert measure(less, registry.create("tiresias", {})).jct == pytest.approx(
        measure(situation, registry.create("tiresias", {})).jct, rel=0.2
    )


def test_jobs_of_unlike_priority_do_not_become_one() -> None:
    burst = make_workload("burst", [0.0] * 2 + [100.0 + n for n in range(20)], [9000.0] * 2 + [600.0] * 20, [4, 4] + [1] * 20)
    situation = at(burst, 200.0)
    urgent = np.where(np.arange(len(situation.view.jobs)) % 2, 5, 0)
    view = dataclasses.replace(situation.view, jobs=dataclasses.replace(situation.view.jobs, priority=urgent))
    less, apart = aggregated(situation), aggregated(dataclasses.replace(situation, view=view))
    assert less.jobs < apart.jobs < situation.jobs and set(apart.view.jobs.priority.tolist()) == {0, 5}


def test_what_is_found_on_grouped_jobs_is_told_by_the_jobs_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_process, "MIN_TRIAL_CPU_SECONDS", 60.0)
    jobs = [
        (4, 20_000.0),
        (8, 2000.0),
        *((1 + n % 2, 100.0 + n) for n in range(32)),
    ]  # the small ones are simulated as few, and had better overtake
    workload = make_workload("burst", np.arange(len(jobs)), [seconds for _, seconds in jobs], [gpus for gpus, _ in jobs])
    simulation = stand_at(workload, CLUSTER, "fifo", {"backfill": False}, Options(), 60.0)
    situation = situation_of(simulation, "fifo", Options())[0]
    assert aggregated(situation).jobs < situation.jobs
    found = find(SearchRequest.of(situation, {"backfill": False}, trials=4)).found
    before, after = (measure(situation, registry.create("fifo", config)) for config in (found.in_force, found.best))
    assert found.gain == pytest.approx(before.jct / after.jct) and found.gain > 1.5


def test_a_simulation_tunes_itself_and_a_run_with_the_configuration_in_force_is_unchanged() -> None:
    workload = crowded(hours=4.0, jobs=80)
    plain = simulate(workload, CLUSTER, registry.create("tiresias", {}), Options()).fates.ended
    control = SimulatedTuning("tiresias", {}, Options(), trials=4)
    tuned = simulate(workload, CLUSTER, registry.create("tiresias", {}), Options(), control=control).fates.ended
    assert control.turns and np.isfinite(tuned).all()
    assert control.model is not None and len(control.model.samples) >= 3 * len(control.turns) - 3, "it learns from each search"
    still = SimulatedTuning("tiresias", {}, Options(), trials=1)
    assert simulate(workload, CLUSTER, registry.create("tiresias", {}), Options(), control=still).fates.ended.tolist() == plain.tolist()


def test_a_search_hands_on_what_it_has_simulated_and_from_120_samples_on_a_model_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("causallearn")
    monkeypatch.setattr(search_process, "MIN_TRIAL_CPU_SECONDS", 60.0)
    request = SearchRequest.of(at(crowded(jobs=40)), {}, trials=7, seconds=math.inf)
    none = CausalModel.untrained(request.space, "jct")
    first = find(dataclasses.replace(request, model=none))
    assert not first.at_work and first.words.endswith("so far 0") and first.model is not None
    assert len(first.model.samples) == first.found.count("simulated") - 1, "the one in force is the reference"
    rng, keys = np.random.default_rng(0), len(none.encoder.keys)
    columns, metrics = rng.random((120, keys + 4)), rng.random((120, 4))
    metrics[:, 0] = columns[:, 0]  # queueing grows with the first key, and the reward falls with it
    learnt = none.relearnt(Samples(columns, metrics, -metrics[:, 0] + 0.01 * rng.random(120)))
    then = find(dataclasses.replace(request, model=learnt))
    assert then.at_work and then.words.startswith("of 120 simulations; ") and then.model is not None
    assert len(then.model.samples) > 120 and then.model.edges()
    assert find(request).model is None


#: GPUs and seconds of jobs. By day short ones stand behind one that wants all: best overtaken. By night short ones that want all stand
#: before long small ones, which would hold them up: best not.
DAY = [(4, 100.0), (4, 20_000.0), (8, 2000.0), *[(1, 100.0)] * 32]
NIGHT = [(4, 1000.0), (4, 2000.0), *[(8, 500.0)] * 10, *[(1, 50_000.0)] * 22]


def test_a_load_whose_best_configuration_changes_is_followed_in_a_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_process, "MIN_TRIAL_CPU_SECONDS", 60.0)
    jobs, begins = DAY + NIGHT + DAY, {0.0: True, 40_000.0: False, 400_000.0: True}
    submitted = [at for at, hour in zip(begins, (DAY, NIGHT, DAY), strict=True) for _ in hour]
    workload = make_workload("days", submitted, [seconds for _, seconds in jobs], [gpus for gpus, _ in jobs])
    applied: list[tuple[float, bool, float]] = []

    class Control(SimulatedTuning):
        def act(self, simulation: Simulation) -> None:
            super().act(simulation)
            if self.turns and self.turns[-1].applied and self.turns[-1].at == simulation.now:
                applied.append((simulation.now, self.config["backfill"], self.turns[-1].gain))

    control = Control("fifo", {"backfill": False}, Options(), trials=8, causal=False)
    simulate(workload, CLUSTER, registry.create("fifo", {"backfill": False}), Options(), control=control)
    for begin, backfill in begins.items():
        at, found, gain = next(turn for turn in applied if turn[0] >= begin)
        assert at < begin + 3600 and found is backfill and gain > 1.1


def test_what_has_harmed_is_taken_back_in_a_simulation_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches that believe the jobs at hand to be fast: what they find seems to have harmed."""
    monkeypatch.setattr(search_process, "MIN_TRIAL_CPU_SECONDS", 60.0)

    def misled(request: SearchRequest) -> SearchResult:
        answer = find(request)
        reference = dataclasses.replace(answer.found.reference, soon=answer.found.reference.soon / 1000)
        return dataclasses.replace(answer, found=dataclasses.replace(answer.found, reference=reference))

    workload = make_workload("day", [0.0] * len(DAY), [seconds for _, seconds in DAY], [gpus for gpus, _ in DAY])
    ends = []
    for watches in (True, False):
        control = SimulatedTuning("fifo", {"backfill": False}, Options(), trials=8, causal=False, watches=watches, searches=misled)
        simulate(workload, CLUSTER, registry.create("fifo", {"backfill": False}), Options(), control=control)
        first, *later = control.turns
        assert first.applied and later and not any(turn.applied for turn in later)
        ends.append((control.did()["taken_back"], control.config["backfill"]))
    assert ends == [(1, False), (0, True)]


def test_auto_is_a_word_and_no_key() -> None:
    (choice,) = choose(["tiresias,queues=2,auto=true"], [])
    assert choice.auto and choice.config["queues"] == 2 and "auto" not in choice.config
    with pytest.raises(ValueError, match="auto: 'maybe' is not true or false"):
        choose(["tiresias,auto=maybe"], [])
    with pytest.raises(ValueError, match="edf,auto=true: the policy has no keys to tune"):
        choose(["edf,auto=true"], [])


class Hanging:
    """Fifo-like; with ``speed`` above a half it never comes to an end of a plan."""

    @dataclasses.dataclass(frozen=True)
    class Config:
        speed: float = tunable(0.1, "", low=0.0, high=1.0)

    name: ClassVar[str] = "hanging"

    def __init__(self, config: Config) -> None:
        self.config, self.inner = config, registry.create("fifo", {})

    def plan(self, view: View) -> Plan:
        while self.config.speed > 0.2:
            time.sleep(0.01)
        return self.inner.plan(view)


def test_a_trial_that_hangs_is_cut_off_named_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_process, "MIN_TRIAL_CPU_SECONDS", 0.05)
    situation = dataclasses.replace(at(crowded(jobs=40)), policy=f"{__name__}:Hanging")
    found = find(SearchRequest.of(situation, {}, trials=6)).found
    why = {trial.why for trial in found.trials if trial.outcome == "failed"}
    assert found.count("failed") >= 1 and all("cut off" in words for words in why)


class Asking(Hanging):
    """Fifo-like, and asks again after ``every`` seconds."""

    @dataclasses.dataclass(frozen=True)
    class Config:
        every: float = tunable(1e6, "", low=1.0, high=1e6, log=True)

    name: ClassVar[str] = "asking"

    def plan(self, view: View) -> Plan:
        return dataclasses.replace(self.inner.plan(view), wake_at=view.now + self.config.every)


def test_learning_from_a_policy_that_hangs_ends_in_time() -> None:
    """What is in force hangs at its first plan: nothing is seen of the past."""
    pytest.importorskip("causallearn")
    past = Past(crowded(jobs=40), CLUSTER, NOW, seconds=1.0)
    with pytest.raises(NoModel, match="so far 0"):
        learnt_from(past, f"{__name__}:Hanging", {"speed": 0.5}, Options(), "jct").fit()


def test_a_trial_may_cost_what_the_default_costs_whatever_is_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_process, "MIN_TRIAL_CPU_SECONDS", 60.0)
    situation = dataclasses.replace(at(crowded(jobs=40)), policy=f"{__name__}:Asking")
    usual = bound_of(measure(situation, registry.create(situation.policy, {})))
    costly = {"every": 10.0}
    assert measure(situation, registry.create(situation.policy, costly)).decisions > usual
    found = find(SearchRequest.of(situation, costly, trials=8, aggregate=False, first=({"every": 20.0}, {"every": 1e6}))).found
    assert [trial.outcome for trial in found.trials[:3]] == ["simulated", "failed", "simulated"]
    assert f"cut off after {usual} decisions" in found.trials[1].why


@pytest.mark.parametrize("objective", ["p99", "rho", "cost"])
@pytest.mark.sampled(3)
def test_other_objectives_are_made_small(objective: str) -> None:
    situation = at(crowded())
    found = find(SearchRequest.of(situation, {}, objective, trials=8, aggregate=False)).found
    before, after = (getattr(measure(situation, registry.create("tiresias", config)), objective) for config in (found.in_force, found.best))
    assert found.gain == pytest.approx(before / after) and found.gain >= 1.0
    assert found.gain == max(trial.reward or 0.0 for trial in found.trials)


class Polite(Hanging):
    """Plans only where other work comes first."""

    name: ClassVar[str] = "polite"

    def plan(self, view: View) -> Plan:
        if os.nice(0) < search_process.NICENESS:
            raise RuntimeError("it is in the way")
        return self.inner.plan(view)


def patiently(pipe: Connection, request: SearchRequest) -> None:
    """Where others keep the cores busy, a niced process has few seconds of processor time in the real time of a trial."""
    search_process.MIN_TRIAL_CPU_SECONDS = 60.0
    search_process._work(pipe, request)


@pytest.fixture
def patient_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_process, "_work", patiently)  # of this process: the one that is begun has the real one


@pytest.mark.usefixtures("patient_searches")
def test_a_search_is_in_nobodys_way() -> None:
    situation = dataclasses.replace(at(crowded(jobs=40)), policy=f"{__name__}:Polite")
    request = SearchRequest.of(situation, {}, trials=2, seconds=patient(60.0))
    assert find_apart(request).found.count("simulated") == 2


@pytest.mark.usefixtures("patient_searches")
def test_a_search_in_its_own_process_answers_the_same() -> None:
    request = SearchRequest.of(at(crowded(jobs=60)), {}, trials=4, seconds=patient(60.0))
    apart, here = find_apart(request).found, find(request).found
    assert [trial.config for trial in apart.trials] == [trial.config for trial in here.trials] and apart.gain == here.gain


def test_bad_input_is_one_line() -> None:
    few = JobHistory(np.arange(10.0), np.ones(10, dtype=int), np.ones(10), np.arange(10.0), ["u"] * 10)
    assert look_ahead(few, np.ones(10), 20.0)[1] == "no arrivals are expected: the history has 10 jobs, 30 are needed"
    empty = dataclasses.replace(at(make_workload("", [0.0, 9.0], [1.0, 1.0], [1, 1]), 5.0), coming=no_jobs())
    with pytest.raises(SearchFailed, match="no job is there or expected"):
        find(SearchRequest.of(empty, {}))
    with pytest.raises(SearchFailed, match="no job at hand has a deadline, so by slo all configurations are alike"):
        find(SearchRequest.of(at(crowded(jobs=40)), {}, objective="slo"))
    constant = dataclasses.replace(at(make_workload("", [0.0], [100.0], [1]), 1.0), coming=no_jobs())
    request = SearchRequest.of(constant, {}, trials=5)
    answer = find(request)
    assert answer.found.gain == 1.0 and summary_of(answer, request)["alike"]
    waits = SearchRequest.of(at(crowded()), {}, trials=5)
    assert not summary_of(find(waits), waits)["alike"]


def test_what_was_in_force_is_tried_again() -> None:
    """The first stays, and of the others the newest three; what is in force last comes once."""
    first, others = {"queues": 3}, [{"queues": n} for n in (1, 2, 4, 5)]
    tried: list[dict[str, int]] = []
    for one in (first, *others):
        tried = tried_before(one, tried)
    assert tried == [first, *others]
    assert tried_before({"queues": 9}, tried) == [first, *others[1:], {"queues": 9}]
    assert tried_before(others[0], tried) == [first, *others[1:], others[0]]
    assert tried_before(first, tried) == [first, *others[1:]] and tried_before(first, []) == [first]


def test_a_trial_that_is_cut_off_says_what_it_had_come_to() -> None:
    situation = at(crowded())
    with pytest.raises(CutOff) as cut:
        measure(situation, registry.create("tiresias", {}), most_decisions=5)
    whole = measure(situation, registry.create("tiresias", {}))
    assert cut.value.figures is not None and cut.value.figures.decisions == 5 and cut.value.figures.jct > whole.jct


def test_a_burst_is_beyond_three_sigmas() -> None:
    """One a check for 20 checks, then 5: mean 1, 1 + 3 = 4. With 4 of them chance may do it, and 5 are needed."""
    steady = [300.0 * n + 10 for n in range(20)]

    def arrivals(count: int) -> Floats:
        return np.array([*steady, *(6000.0 + 10 + n for n in range(count))])

    assert is_burst(arrivals(5), 6300.0, 300.0) and not is_burst(arrivals(4), 6300.0, 300.0)
    # A burst in the middle of a search is seen after it, and not again after the next.
    later = arrivals(5)
    assert not is_burst(later, 6900.0, 300.0) and is_burst(later, 6900.0, 300.0, 6000.0) and not is_burst(later, 6900.0, 300.0, 6310.0)


def test_a_daily_wave_is_no_burst() -> None:
    """30 arrivals a check in the mean, by night 6 and at noon 54: beside the mean of all days a quarter of the checks would be bursts."""
    rng, checks = np.random.default_rng(0), np.arange(3 * 288)
    counts = rng.poisson(30.0 * (1.0 + 0.8 * np.sin(2 * np.pi * checks / 288)))
    moments = np.repeat(300.0 * checks + 10.0, counts)
    seen = [is_burst(moments[moments <= now], now, 300.0, now - 300.0) for now in (300.0 * checks[-288:] + 300.0).tolist()]
    assert sum(seen) <= 9
    sudden = np.sort(np.concatenate((moments, 300.0 * checks[-1] + np.arange(60.0))))
    assert is_burst(sudden, 300.0 * checks[-1] + 300.0, 300.0)


def test_a_search_is_due_once_a_period_and_upon_bursts() -> None:
    """A restart reads the last search from the tables; a clock that is set moves what it remembers; a burst puts off no periodic search."""
    quiet, burst = np.array([300.0 * n for n in range(40)]), np.array([300.0 * n for n in range(40)] + [12_000.0 + n for n in range(9)])
    controller = Controller(HOUR)
    assert controller.due(12_000.0, lambda: quiet, stored=11_000.0) is None
    assert controller.due(12_290.0, lambda: burst, stored=11_000.0) == Trigger("a burst of arrivals", 1.1)
    assert controller.due(12_300.0, lambda: quiet, stored=11_000.0) is None and controller.period_ends(12_300.0, 11_000.0) == 14_600.0
    assert controller.due(14_600.0, lambda: quiet, stored=11_000.0) == Trigger("hourly", 1.005)
    controller.clock_set(-1000.0)
    assert controller.period_ends(13_700.0) == 17_200.0
    assert Controller(12.0).due(50.0, lambda: quiet) == Trigger("a period is over", 1.005), "nothing was ever searched"


def test_which_best_is_applied() -> None:
    before, after = {"queues": 2}, {"queues": 3}
    assert refusal(before, after, 1.2, 1.1) == ""
    assert refusal(before, after, 1.05, 1.1) == "it gains 1.050 ×, less than 1.1" and refusal(before, before, 1.0, 1.0)
    assert refusal(before, after, 1.2, 1.1, [after]) == "what gains 1.200 × was taken back in the last 24 periods"


@pytest.mark.nightly  # when a search is due: above
def test_bursts_put_off_no_search_of_a_period(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every check sees a burst: the hourly searches are made all the same, an hour apart."""
    monkeypatch.setattr(tuning_controller, "is_burst", lambda *_: True)
    control = SimulatedTuning("tiresias", {}, Options(), trials=2)
    simulate(crowded(hours=4.0, jobs=80), CLUSTER, registry.create("tiresias", {}), Options(), control=control)
    hourly = [turn.at for turn in control.turns if turn.why == "hourly"]
    assert len(hourly) >= 3 and np.diff(hourly).max() == pytest.approx(HOUR) and len(control.turns) > 3 * len(hourly)


def test_a_clock_that_was_set_back_holds_up_nothing() -> None:
    assert newest(100.0, 40.0, None, 90.0) == 90.0
    assert newest(100.0, 40.0, 5000.0) == 40.0 and newest(100.0) == -math.inf


def test_without_the_extra_it_searches_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sklearn", "sklearn.ensemble", "causallearn"):
        monkeypatch.setitem(sys.modules, name, None)
    workload = crowded()
    model = learnt_from(Past(workload, CLUSTER, NOW), "tiresias", {}, Options(), "jct")
    answer = find(SearchRequest.of(at(workload), {}, trials=3, model=model))
    assert not answer.at_work and len(answer.found.trials) == 3
    assert answer.words == "the extra is not installed: pip install '.[autosched]' in Stoker's source tree"
    with pytest.raises(NoPredictor, match="the extra is not installed"):
        predictor_of(JobHistory(np.arange(200.0), np.ones(200, dtype=int), np.full(200, 9.0), np.arange(200.0) + 9, ["u"] * 200))


def test_what_was_measured_by_hand() -> None:
    """Jobs were to take 100 s of the period and took 125: gain 0.8, which harms; none at hand: nothing is known."""
    gain = measured_gain(100.0, 125.0)
    assert gain == 0.8 and has_harmed(gain) and not has_harmed(0.95)
    assert measured_gain(100.0, None) is None

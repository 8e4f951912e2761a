"""Forecasts of deadlines: simulation from the middle, draws of durations, what is read off, and the words for it."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Scripted
from stoker.engine.cli.jobs import forecasting
from stoker.engine.errors import Conflict
from stoker.engine.forecast import admission
from stoker.engine.forecast.admission import Admission, simulation, start_up_seconds
from stoker.engine.forecast.ongoing import STOPS_IN, OutOfTime, Watched, drained, ends_from
from stoker.engine.forecast.start_ups import COMMAND, RECIPE, StartUps
from stoker.engine.forecast.trial import with_job
from stoker.engine.forecast.whatif import Prospect, Question, by_queue, look_ahead, quickest, spread_out
from stoker.engine.forecast.work_draws import (
    ENOUGH_ENDED_JOBS,
    MEDIAN_IF_UNKNOWN,
    SAID_SPREAD,
    STEPS_SPREAD,
    DurationDraws,
    Finished,
    Known,
)
from stoker.engine.scheduling.guards import Evictions, PreemptionLimits
from stoker.engine.scheduling.ticks import Rules
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.run_options import NO_LIMITS, Costs, Options
from stoker.engine.sim.simulator import simulate
from stoker.engine.sim.workload import make_workload
from stoker.engine.spec.expand import with_deadlines
from stoker.engine.spec.model import Demand, JobSpec, Share, Tier
from stoker.policies import registry
from stoker.policies.contract import Phase, Plan, Profile, View
from stoker.policies.estimate.throughput import Throughput
from views import NOW, Job, make_view, placed, views
from waiting import patient

NOTHING = Finished([], np.zeros(0), np.zeros(0))


def rules(policy: str, limits: PreemptionLimits = NO_LIMITS) -> Rules:
    return Rules(policy, lambda: registry.create(policy, {}), limits, Evictions())


def everybody(view: View) -> Watched:
    return Watched(np.ones(len(view.jobs), dtype=bool), np.zeros(len(view.jobs), dtype=bool))


def ends(view: View, policy: str = "fifo", left: Any = None, options: Options | None = None, **more: Any) -> list[float]:
    left = view.jobs.remaining if left is None else np.array(left, dtype=np.float64)
    made = registry.create(policy, {})
    return ends_from(view, left, made, options or Options(), everybody(view), evictions=Evictions(), **more).tolist()


def said(view: View, **columns: Any) -> Known:
    """Whole durations, said by the submitters."""
    n = len(view.jobs)
    known = Known(
        ["m"] * n, np.zeros(n, dtype=bool), view.jobs.remaining + view.jobs.run_time, np.ones(n, dtype=bool), np.zeros(n, dtype=bool)
    )
    return dataclasses.replace(known, **columns)


class TestFromTheMiddle:
    def test_places_and_nodes_that_leave(self) -> None:
        jobs = [Job(1, held=(0,), remaining=100), Job(2, remaining=30)]
        view = make_view([1, 1], jobs)
        options = Options(costs=Costs())
        assert ends(view, options=options) == [100, 30]
        assert ends(placed(view, {2: [0]}), options=options) == [100, 130]
        left = ends(placed(view, {}, [NOW + 10, math.inf]), options=options)
        assert left == [120, 30]  # stopped at 10 s, it goes on when the other node is free
        assert np.isnan(ends(placed(view, {2: [0]}, [NOW + 10, math.inf]), options=options)[1])
        assert ends(placed(make_view([1, 1], jobs[1:]), {2: [0]}, [NOW + 40, math.inf]), options=options) == [30]

    def test_worked_example(self) -> None:
        jobs = [
            Job(1, held=(0,), remaining=100),
            Job(2, held=(1,), remaining=300),
            Job(3, remaining=50),
            Job(4, gpus=2, remaining=10),
        ]
        assert ends(make_view([2], jobs)) == [100, 300, 150, 310]

    def test_what_is_believed_decides_and_what_is_true_happens(self) -> None:
        """Shortest first by what is believed: job 2 goes before job 3, and takes longer."""
        jobs = [Job(1, held=(0,), remaining=10), Job(2, remaining=20), Job(3, remaining=30)]
        assert ends(make_view([1], jobs), "sjf", left=[10, 100, 30]) == [10, 110, 140]

    def test_a_lease_that_runs_out_ends_if_somebody_waits(self) -> None:
        """Nobody renews it: the job is resumed in its turn, which costs. Alone it goes on, and so it does on a lease that lasts."""
        jobs = [Job(1, held=(0,), remaining=100, run_time=5, lease_end=NOW + 40)]
        assert ends(make_view([1], [*jobs, Job(2, remaining=10)]), options=Options(costs=Costs(resume=7.0))) == [107.0, 117.0]
        assert ends(make_view([1], jobs), options=Options(costs=Costs(resume=7.0))) == [100.0]
        jobs = [Job(1, held=(0,), remaining=100, run_time=5, lease_end=NOW + 400)]
        assert ends(make_view([1], jobs), options=Options(costs=Costs(resume=7.0))) == [100.0]

    @pytest.mark.parametrize("said", [300.0, math.nan], ids=["known", "unknown"])
    @pytest.mark.parametrize("since", [4.0, 20.0, 35.0])
    def test_cycles_stay_where_they_are_in_time(self, since: float, said: float) -> None:
        """Cycles begin at multiples of 40 s since the epoch, whenever it is asked: then, and not before, the holders give way."""
        begun = math.floor(NOW / 40.0) * 40.0
        holders = [Job(n, held=(n,), remaining=said, run_time=since, lease_time=since, lease_end=begun + 40) for n in range(2)]
        new = Job(3, remaining=5, submitted=9, tiers=((begun + 75, 1.0),))
        view = make_view([2], [*holders, new], now=begun + since)
        watched = Watched(np.array([False, False, True]), np.zeros(3, dtype=bool))
        policy = registry.create("unisched", {"be_lease": 40.0})
        found = ends_from(view, np.array([300.0, 300.0, 5.0]), policy, Options(), watched, evictions=Evictions())
        assert found[2] == pytest.approx(45 - since)

    def test_a_first_start_takes_its_time(self) -> None:
        """Job 1 is about to start since 2 s, job 2 has run before: only a first start takes as long as it says."""
        jobs = [Job(1, held=(0,), remaining=10, lease_time=2), Job(2, remaining=10, run_time=5), Job(3, remaining=10)]
        options = Options(costs=Costs(resume=7.0))
        assert ends(make_view([3], jobs), options=options, start_up=np.array([6.0, 6.0, 4.0])) == [14, 17, 14]

    @pytest.mark.parametrize(("policy", "expected"), [("unisched", 160.0), ("fifo", 100.0)])
    def test_a_new_gang_is_profiled_before_it_trains_where_the_policy_does_that(self, policy: str, expected: float) -> None:
        options = Options(costs=Costs(profiling=60.0))
        assert ends(make_view([4], [Job(1, gpus=4, profile_gpus=2, remaining=100)]), policy, options=options) == [expected]

    @pytest.mark.parametrize("jobs", [Job(1, gpus=2, profile_gpus=2, remaining=100), Job(1, gpus=4, remaining=100)], ids=["small", "known"])
    def test_who_has_all_its_gpus_in_its_profiling_run_or_is_known_loses_no_time(self, jobs: Job) -> None:
        assert ends(make_view([4], [jobs]), "unisched", options=Options(costs=Costs(profiling=60.0))) == [100.0]

    def test_a_profiling_run_goes_on_where_it_is(self) -> None:
        """It has trained for 15 of 60 s, after a start of 5 s; then the gang has its own first start."""
        job = Job(1, gpus=4, profile_gpus=2, held=(0, 1), remaining=100, lease_time=20, lease_end=NOW + 280)
        options = Options(costs=Costs(profiling=60.0, resume=30.0))
        assert ends(make_view([4], [job]), "unisched", options=options, start_up=np.array([5.0])) == [45 + 5 + 100]

    def test_what_is_believed_of_a_job_stays_as_wrong_when_its_speed_is_known(self) -> None:
        """Job 1 is believed to be the shortest from the start to the end, and takes the longest."""
        jobs = [Job(1, gpus=4, profile_gpus=2, remaining=10), Job(2, gpus=4, remaining=50)]
        options = Options(costs=Costs(profiling=60.0))
        assert ends(make_view([4], jobs), "unisched", left=[200, 50], options=options)[1] > 260

    def test_a_job_that_is_stopping_gives_its_gpus_up_and_goes_on_later(self) -> None:
        jobs = [Job(1, held=(0,), remaining=30, run_time=9, stopping=True, submitted=1), Job(2, remaining=10, submitted=0)]
        second, first = ends(make_view([1], jobs), options=Options(costs=Costs(resume=3.0)))
        assert (first, second) == (STOPS_IN + 10 + 3 + 30, STOPS_IN + 10)

    def test_gpus_that_are_out_of_use_stay_so(self) -> None:
        assert ends(make_view([2], [Job(1, remaining=10), Job(2, remaining=10)], unusable=[1])) == [10, 20]
        assert np.isnan(ends(make_view([2], [Job(1, gpus=2, remaining=10)], unusable=[1]))).all()

    def test_what_is_larger_than_the_pool_holds_up_nobody(self) -> None:
        found = ends(make_view([2], [Job(1, gpus=3, remaining=10), Job(2, remaining=10)]))
        assert math.isnan(found[0]) and found[1] == 10

    def test_who_gave_way_does_not_displace_yet(self) -> None:
        """Job 2 displaces job 1 by its priority at once, but not if it gave way to it a moment ago."""
        jobs = [Job(1, held=(0,), remaining=100, run_time=100, lease_time=100), Job(2, remaining=10, priority=5)]
        view, limits = make_view([1], jobs), PreemptionLimits(min_run_time=0.0, cooldown=60.0)
        found = [
            ends_from(
                view, view.jobs.remaining, registry.create("priority", {}), Options(limits=limits), everybody(view), evictions=evictions
            )[1]
            for evictions in (Evictions(), Evictions({(2, 1): NOW - 20.0}))
        ]
        assert found == [10, 50]

    def test_it_gives_up_when_its_time_is_spent(self) -> None:
        with pytest.raises(OutOfTime):
            ends(make_view([1], [Job(1, remaining=10), Job(2, remaining=10)]), cpu_seconds=0.0)

    def test_it_ends_when_it_knows(self) -> None:
        """Job 3 is not asked for: the simulation need not come to its end."""
        view = make_view([1], [Job(1, remaining=10), Job(2, remaining=10), Job(3, remaining=10)])
        watched = Watched(np.array([True, False, False]), np.zeros(3, dtype=bool))
        found = ends_from(view, view.jobs.remaining, registry.create("fifo", {}), Options(), watched, evictions=Evictions())
        assert found[0] == 10 and math.isnan(found[2])

    @pytest.mark.parametrize("policy", ["fifo", "srtf", "edf", "las", "priority"])
    @pytest.mark.parametrize("moment", [400.0, 900.0])
    def test_goes_on_as_the_whole_simulation_does(self, policy: str, moment: float) -> None:
        """A simulation that begins in the middle of another, after the last arrival, ends all jobs when that does."""
        rng = np.random.default_rng(7)
        n = 40
        workload = make_workload(
            "w", rng.uniform(0, 300, n).round(), rng.lognormal(5, 1, n).round(3) + 1, rng.choice([1, 1, 2, 4], n),
            priority=rng.integers(0, 3, n), tiers=[[(float(rng.uniform(500, 3000)), 1.0)] for _ in range(n)],
        )  # fmt: skip
        seen: list[View] = []

        def observe(view: View, *_: Any) -> None:
            if view.now >= moment and not seen:
                jobs = view.jobs.plain()
                columns = {f.name: v.copy() for f in dataclasses.fields(jobs) if isinstance(v := getattr(jobs, f.name), np.ndarray)}
                seen.append(dataclasses.replace(view, jobs=dataclasses.replace(jobs, **columns), free=None))

        whole = simulate(workload, Cluster((4, 4)), registry.create(policy, {}), Options(), observer=observe)
        (view,) = seen
        assert (view.jobs.held > 0).any() and (view.jobs.held == 0).any()
        expected = whole.fates.ended[view.jobs.id] - view.now
        assert ends(view, policy) == pytest.approx(expected.tolist(), abs=1e-6)

    def test_what_jobs_say_of_themselves_goes_with_them(self) -> None:
        """Into a View with one more job, into the simulation that goes on from there, and beside jobs that are to come."""
        alone = make_view([1], [Job(1, remaining=10)])
        assert with_job(alone, JobSpec(name="new", command=("true",))).jobs.backbone is None, "nobody says any"
        view = with_job(alone, JobSpec(name="new", command=("true",), kind="prompt", backbone="minilm", share=Share(gpu="packed")))
        coming = make_workload("later", [view.now + 5], [10.0], [1], backbone=["smollm"])
        seen: list[Any] = []

        def decide(now: View) -> Plan:
            seen.append([column if column is None else column.tolist() for column in (now.jobs.kind, now.jobs.backbone, now.jobs.share)])
            return registry.create("fifo", {}).plan(now)

        drained(view, np.array([10.0, 10.0]), coming, Scripted(decide), Options(), evictions=Evictions())
        assert seen[0] == [["train", "prompt"], ["", "minilm"], ["", "packed"]]
        assert seen[1] == [["train", "prompt", ""], ["", "minilm", "smollm"], ["", "packed", ""]]

    def test_one_more_job_is_in_every_column(self) -> None:
        """Beside other deadlines `submit --require-deadline` and `--dry-run` broke on one that it was not in."""
        alone = make_view([1], [Job(1, remaining=10)])
        missing = [each.name for each in dataclasses.fields(alone.jobs) if getattr(alone.jobs, each.name) is None]
        whole = dataclasses.replace(alone, jobs=dataclasses.replace(alone.jobs, **{name: np.zeros(1) for name in missing}))
        jobs = with_job(whole, JobSpec(name="new", command=("true",))).jobs
        rows = {each.name: len(getattr(jobs, each.name)) for each in dataclasses.fields(jobs)}
        assert {name for name, count in rows.items() if count != 2} == {
            "alloc_start", "alloc_gpus", "tier_start", "tier_deadline", "tier_reward",
        }  # fmt: skip

    @pytest.mark.parametrize("policy", ["fifo", "srtf", "edf", "tiresias", "themis", "elasticflow"])
    @given(view=views(deadlines=True, max_jobs=8))
    @settings(max_examples=20)
    def test_any_pool_can_be_gone_on_with(self, policy: str, view: View) -> None:
        left = np.nan_to_num(view.jobs.remaining, nan=100.0)
        made = registry.create(policy, {})
        found = ends_from(view, left, made, Options(limits=PreemptionLimits()), everybody(view), evictions=Evictions(), cpu_seconds=20.0)
        ended = ~np.isnan(found)
        assert len(found) == len(view.jobs) and (found[ended] >= left[ended] - 1e-6).all()


class TestDurations:
    def draws(self, jobs: list[Job], count: int = 400, finished: Finished = NOTHING, **columns: Any) -> np.ndarray[Any, Any]:
        view = make_view([8], jobs)
        durations = DurationDraws(view.jobs, said(view, **columns), finished)
        return np.array([durations.draw(number, 0) for number in range(count)])

    def test_a_duration_that_was_said_is_its_median(self) -> None:
        found = np.log(self.draws([Job(1, remaining=100)]))
        assert np.median(found) == pytest.approx(math.log(100), abs=0.02)
        assert found.std() == pytest.approx(SAID_SPREAD, rel=0.1)

    def test_what_has_run_is_less_uncertain_and_never_over_before(self) -> None:
        new, old = self.draws([Job(1, remaining=100)]), self.draws([Job(1, remaining=20, run_time=80, held=(0,))])
        assert old.min() > 0 and (old + 80).mean() > new.mean()

    def test_steps_and_their_pace_are_nearly_certain(self) -> None:
        found = self.draws([Job(1, remaining=100, run_time=900)], by_steps=np.array([True]))
        assert np.log(found).std() == pytest.approx(STEPS_SPREAD, rel=0.1)

    def test_an_estimators_uncertainty_counts(self) -> None:
        view = make_view([8], [Job(1, remaining=100)])
        jobs = dataclasses.replace(view.jobs, uncertainty=np.array([0.8]))
        durations = DurationDraws(jobs, said(view, by_steps=np.array([True])), NOTHING)
        assert np.log([durations.draw(number, 0)[0] for number in range(400)]).std() == pytest.approx(0.8, rel=0.1)

    def test_errors_of_estimates_are_learnt(self) -> None:
        """Submitters say half of what it takes: of a duration that was measured nothing of that is true."""
        ended = Finished(["x"] * ENOUGH_ENDED_JOBS, np.full(ENOUGH_ENDED_JOBS, 200.0), np.full(ENOUGH_ENDED_JOBS, 100.0))
        assert np.median(self.draws([Job(1, remaining=100)], finished=ended)) == pytest.approx(200, rel=0.02)
        assert np.median(self.draws([Job(1, remaining=100)], finished=ended, said=np.array([False]))) == pytest.approx(100, rel=0.02)
        few = Finished(["x"] * 2, np.full(2, 200.0), np.full(2, 100.0))
        assert np.median(self.draws([Job(1, remaining=100)], finished=few)) == pytest.approx(100, rel=0.02)

    def test_of_what_nothing_is_known_the_model_tells_or_else_the_pool(self) -> None:
        unknown = {"whole": np.array([math.nan])}
        estimates = np.full(2 * ENOUGH_ENDED_JOBS, math.nan)
        ended = Finished(["m"] * ENOUGH_ENDED_JOBS + ["x"] * ENOUGH_ENDED_JOBS, np.repeat([50.0, 5000.0], ENOUGH_ENDED_JOBS), estimates)
        assert np.median(self.draws([Job(1)], finished=ended, **unknown)) == pytest.approx(50, rel=0.02)
        pool = Finished(["x"] * ENOUGH_ENDED_JOBS, np.full(ENOUGH_ENDED_JOBS, 5000.0), np.full(ENOUGH_ENDED_JOBS, math.nan))
        assert np.median(self.draws([Job(1)], finished=pool, **unknown)) == pytest.approx(5000, rel=0.02)
        assert np.median(self.draws([Job(1)], **unknown)) == pytest.approx(MEDIAN_IF_UNKNOWN, rel=0.05)

    def test_one_that_has_outrun_its_estimate_has_as_long_to_go(self) -> None:
        assert np.median(self.draws([Job(1, remaining=0, run_time=5000, held=(0,))], whole=np.array([60.0]))) == pytest.approx(
            5000, rel=0.05
        )

    def test_one_that_is_cancelled_is_as_good_as_gone(self) -> None:
        assert self.draws([Job(1, remaining=900, held=(0,))], ending=np.array([True])).max() == 0

    def test_few_draws_show_the_whole_range(self) -> None:
        eight = np.sort(np.log(self.draws([Job(1, remaining=100)], 8)[:, 0] / 100) / SAID_SPREAD)
        assert eight[0] < -1 and eight[-1] > 1 and np.abs(eight.mean()) < 0.2

    @given(view=views())
    def test_draws_are_of_their_number_alone(self, view: View) -> None:
        known = said(view)
        if not len(view.jobs):
            return
        once, again = (DurationDraws(view.jobs, known, NOTHING) for _ in range(2))
        first = [once.draw(number, 0) for number in (0, 1, 2)]
        assert all(np.array_equal(again.draw(number, 0), first[number]) for number in (2, 0, 1))
        assert all((drawn >= 0).all() and np.isfinite(drawn).all() for drawn in first)


class TestProspect:
    moments = st.one_of(st.floats(0, 1e6), st.just(math.inf))

    @given(ends=st.lists(moments, min_size=1, max_size=40), deadlines=st.lists(st.floats(-10, 2e6), min_size=2, max_size=10))
    def test_a_later_deadline_is_never_less_likely(self, ends: list[float], deadlines: list[float]) -> None:
        prospect = Prospect(np.sort(ends), 0, 0.0)
        found = [prospect.probability(deadline) for deadline in sorted(deadlines)]
        assert found == sorted(found) and found[0] >= 0.0 and found[-1] <= 1.0

    @given(ends=st.lists(moments, min_size=1, max_size=40), share=st.floats(0.01, 1.0))
    def test_what_is_promised_is_the_earliest_that_is_kept_so_often(self, ends: list[float], share: float) -> None:
        prospect = Prospect(np.sort(ends), 0, 0.0)
        promised = prospect.by(share)
        if promised is None:
            assert prospect.probability(1e300) < share + 1e-9
        else:
            assert prospect.probability(promised) >= share - 1e-9
            assert prospect.probability(np.nextafter(promised, -1)) < share + 1e-9


class TestLookingAhead:
    def ask(self, view: View, target: int = -1, policy: str = "fifo", **more: Any) -> Prospect:
        row = target % len(view.jobs)
        durations = DurationDraws(view.jobs, said(view), NOTHING)
        question = Question(view, row, np.array([row]))

        def listing(view: View, left: Any, watched: Watched, cpu: float) -> Any:
            return by_queue(view, left, view.jobs.id[view.jobs.phase == Phase.PENDING])

        simulate = simulation(question, durations, rules(policy), listing, np.zeros(len(view.jobs)))
        return look_ahead(question, durations, simulate, cpu=60.0, **more)

    def test_an_empty_pool_is_as_sure_as_the_estimate(self) -> None:
        prospect = self.ask(make_view([2], [Job(1, remaining=100)]))
        assert prospect.probability(NOW + 1000) == 1.0 and prospect.probability(NOW + 10) == 0.0
        assert prospect.by(0.5) == pytest.approx(NOW + 100, rel=0.05)
        assert prospect.by(0.9) == pytest.approx(NOW + 100 * math.exp(1.28 * SAID_SPREAD), abs=15)

    def test_a_full_pool_is_waited_for(self) -> None:
        jobs = [Job(1, held=(0,), remaining=1000), Job(2, held=(1,), remaining=1000), Job(3, remaining=100, submitted=9)]
        prospect = self.ask(make_view([2], jobs))
        assert prospect.probability(NOW + 200) <= 0.1
        assert 700 < (prospect.by(0.5) or 0) - NOW < 1300

    def test_fewer_runs_are_the_first_of_more(self) -> None:
        view = make_view([1], [Job(1, held=(0,), remaining=50), Job(2, remaining=100)])
        few, more = self.ask(view, runs=4), self.ask(view, runs=12)
        assert len(few.ends) == 4 and set(few.ends) <= set(more.ends)
        assert np.array_equal(self.ask(view, runs=12).ends, more.ends)

    def test_few_runs_are_spread_out_as_far_as_the_queue_says(self) -> None:
        """On a pool where the listing is exact but for a factor, a few runs tell what many do."""
        view = make_view([1], [Job(1, held=(0,), remaining=50), Job(2, remaining=100)])
        durations = DurationDraws(view.jobs, said(view), NOTHING)

        def halved(view: View, left: Any, watched: Watched, cpu: float) -> Any:
            return by_queue(view, left, np.array([2])) / 2

        few, many = self.ask(view, 1, runs=2), self.ask(view, 1, runs=32)
        found = spread_out(Question(view, 1, np.array([1])), durations, few, halved)
        assert found.ends == pytest.approx(many.ends, abs=1e-3)

    def test_what_is_not_in_sight_is_not_spread(self) -> None:
        view = make_view([2], [Job(1, gpus=2, remaining=50)], unusable=[0])
        durations = DurationDraws(view.jobs, said(view), NOTHING)
        few = self.ask(view, runs=2)
        found = spread_out(Question(view, 0, np.array([0])), durations, few, lambda view, left, *_: by_queue(view, left, np.array([1])))
        assert np.isinf(found.ends).all() and len(found.ends) == 2

    def test_who_comes_with_an_earlier_deadline_makes_others_late(self) -> None:
        other = Job(1, remaining=100, tiers=((NOW + 180, 1.0),))
        urgent = Job(2, remaining=100, submitted=9, tiers=((NOW + 150, 1.0),))
        late = Job(2, remaining=100, submitted=9, tiers=((NOW + 9000, 1.0),))
        harm = self.ask(make_view([1], [other, urgent]), policy="edf")
        assert harm.others == 1 and (harm.missed or 0) > 0.5
        assert self.ask(make_view([1], [other, late]), policy="edf").missed == 0
        assert self.ask(make_view([2], [other, urgent]), policy="edf").missed == 0

    def test_of_one_that_runs_it_is_not_asked_whom_it_harms(self) -> None:
        jobs = [Job(1, remaining=100, tiers=((NOW + 180, 1.0),)), Job(2, held=(0,), remaining=100, submitted=9)]
        assert self.ask(make_view([1], jobs)).others == 0

    @given(view=views(deadlines=True))
    def test_the_queue_alone_gives_an_end_to_whoever_the_simulation_ends(self, view: View) -> None:
        left = np.nan_to_num(view.jobs.remaining, nan=100.0)
        found = by_queue(view, left, view.jobs.id[view.jobs.phase == Phase.PENDING])
        assert (found[~np.isnan(found)] >= 0).all()
        assert not np.isnan(found[view.jobs.held > 0]).any()

    def test_by_the_queue_alone_nobody_is_displaced_at_the_end_of_a_lease(self) -> None:
        view = make_view([1], [Job(1, held=(0,), remaining=100, lease_end=NOW + 20), Job(2, remaining=10)])
        assert by_queue(view, view.jobs.remaining, np.array([2])).tolist() == [100, 110]

    def test_the_most_gpus_are_the_quickest_where_that_is_known(self) -> None:
        profile = Profile("m", Throughput([1, 2, 4], [10.0, 18.0, 30.0]))
        view = make_view([4], [Job(1, gpus=1, gpus_max=4, profile=0), Job(2, gpus=2, gpus_max=4)], profiles=[profile])
        assert quickest(view, 0) == (3.0, 4)
        assert quickest(view, 1) == (1.0, 2)


class Hanging:
    """A policy that does not answer before it is let go."""

    Config: ClassVar[type] = type(None)
    name: ClassVar[str] = "hanging"
    gate = threading.Event()

    def plan(self, view: View) -> Plan:
        self.gate.wait(patient(30))
        raise RuntimeError("let go")


class StubScheduling:
    def __init__(self, view: View, policy: Callable[[], Any]) -> None:
        self.view, self.policy = view, policy

    def look(self, pool: str) -> Any:
        return type("Seen", (), {"view": self.view, "ineligible": []})()

    def rules(self, pool: str) -> Rules:
        return Rules("stub", self.policy, NO_LIMITS, Evictions())


class TestBounds:
    def spec(self, **fields: Any) -> JobSpec:
        return JobSpec(name="x", recipe="toy", estimate=10.0, **fields)

    def test_a_policy_that_hangs_costs_one_thread(self, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(admission, "ANSWER_PATIENCE", 0.2)
        monkeypatch.setattr(admission, "QUEUE_PATIENCE", 0.1)
        before = threading.active_count()

        async def ask() -> list[str]:
            asked = Admission(store, StubScheduling(make_view([1]), Hanging))  # type: ignore[arg-type]
            found = await asyncio.gather(*(asked.of_spec([self.spec()], 0) for _ in range(20)))
            assert threading.active_count() <= before + 1
            Hanging.gate.set()
            end = time.monotonic() + 10
            while threading.active_count() > before and time.monotonic() < end:
                await asyncio.sleep(0.01)
            monkeypatch.setattr(admission, "ANSWER_PATIENCE", patient(30))
            last = await asked.of_spec([self.spec()], 0)
            assert last["status"] == "failed" and "let go" in last["reason"]
            return [answer["status"] for answer in found]

        statuses = asyncio.run(ask())
        assert statuses.count("slow") == 1 and statuses.count("busy") == 19

    def test_a_thread_that_cannot_be_started_blocks_no_later_question(self, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        start, failures = threading.Thread.start, iter([RuntimeError("can't start new thread")])

        def fails_once(thread: threading.Thread) -> None:
            if thread.name == "admission" and (error := next(failures, None)):
                raise error
            start(thread)

        monkeypatch.setattr(admission, "QUEUE_PATIENCE", 0.1)
        monkeypatch.setattr(threading.Thread, "start", fails_once)
        fifo = partial(registry.create, "fifo", {})

        async def ask() -> list[str]:
            asked = Admission(store, StubScheduling(make_view([1]), fifo))  # type: ignore[arg-type]
            return [(await asked.of_spec([self.spec()], 0))["status"] for _ in range(2)]

        assert asyncio.run(ask()) == ["busy", "estimated"]

    def test_a_policy_that_is_slow_is_asked_for_its_order_only(self, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(admission, "ANSWER_PATIENCE", 60.0)  # of the clock: what is to be seen here is counted in processor time

        class Slow:
            name = "slow"

            def plan(self, view: View) -> Plan:
                end = time.thread_time() + 0.4
                while time.thread_time() < end:
                    pass
                return registry.create("fifo", {}).plan(view)

        view = make_view([1], [Job(n, remaining=10.0) for n in range(1, 30)])

        async def ask() -> Any:
            return await Admission(store, StubScheduling(view, Slow)).of_spec([self.spec()], 0)  # type: ignore[arg-type]

        answer = asyncio.run(ask())
        assert (answer["status"], answer["simulated"], answer["runs"]) == ("estimated", 0, 32)
        assert answer["cpu_seconds"] < 4.0


def specs(*tasks: tuple[int | None, bool]) -> list[JobSpec]:
    demand = Demand("strict", (Tier(NOW),))
    return [
        JobSpec(name=f"j{n}", array_index=index, array_size=None if index is None else 3, demand=demand if timed else Demand())
        for n, (index, timed) in enumerate(tasks)
    ]


def test_of_an_array_the_first_and_the_last_task_stand_for_all() -> None:
    assert with_deadlines(specs((0, True), (1, True), (2, True), (None, False), (None, True))) == [0, 2, 4]


def _profiled_for(con: Any) -> None:
    """Profiling runs of 10, 20 and 90 s, and some that tell nothing: stopped, not of profiling, without a worker."""
    con.execute(
        "INSERT INTO jobs BY NAME SELECT 1 AS id, 'a' AS name, 'train' AS kind, 'default' AS pool, 'ann' AS owner, 'cancelled' AS state,"
        " now() AS state_since, 0 AS priority, false AS held, 1 AS gpus_min, 1 AS gpus_max, 0 AS gpu_memory, 'best-effort' AS demand,"
        " 'toy' AS model, now() AS submitted_at, now() AS finished_at, 0 AS attempts, 0 AS failures, 0 AS preemptions,"
        " false AS cancel_requested, 0 AS run_time, 0 AS attained, '{}' AS labels, '{}' AS spec"
    )
    con.execute(
        "INSERT INTO leases BY NAME SELECT n AS id, 1 AS job_id, n AS attempt, 1 AS gpu_count, 'ended' AS state, 'unisched' AS policy,"
        " TIMESTAMP '2026-01-01' AS granted_at, CASE WHEN lived THEN granted_at + INTERVAL 3 SECOND END AS started_at,"
        " granted_at + to_seconds(3 + seconds) AS ended_at, outcome, profile"
        " FROM (VALUES (1, 10, 'profiled', true, true), (2, 20, 'profiled', true, true), (3, 90, 'profiled', true, true),"
        " (4, 999, 'cancelled', true, true), (5, 999, 'profiled', false, true), (6, 999, 'profiled', true, false))"
        " ended(n, seconds, outcome, profile, lived)"
    )


class TestProfiling:
    """What a spec is told of the profiling run that it would need; its gang has 4 GPUs, 100 s of work, and its start takes no time."""

    def ask(self, store: Any, policy: str, **fields: Any) -> dict[str, Any]:
        work: dict[str, Any] = {"recipe": "toy"} | fields
        spec = JobSpec(name="x", estimate=100.0, gpus_min=4, gpus_max=4, **work)

        async def run() -> dict[str, Any]:
            asked = Admission(store, StubScheduling(make_view([4]), partial(registry.create, policy, {})))  # type: ignore[arg-type]
            return await asked.of_spec([spec], 0)

        answer = asyncio.run(run())
        assert answer["status"] == "estimated"
        return {"takes": answer["end_50"] - answer["now"], "signature": spec.signature, "pool": spec.pool}

    @pytest.fixture(autouse=True)
    def _starts_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(admission, "start_up_seconds", lambda known, _: np.zeros(len(known.model)))
        monkeypatch.setattr(admission, "ANSWER_PATIENCE", 60.0)

    def test_it_comes_first_where_the_policy_in_force_gives_such_runs(self, store: Any) -> None:
        late, soon = (self.ask(store, policy)["takes"] for policy in ("unisched", "fifo"))
        assert late == pytest.approx(soon + admission.PROFILING)

    def test_of_a_command_nothing_can_be_measured(self, store: Any) -> None:
        assert self.ask(store, "unisched", recipe=None, command=["true"])["takes"] == pytest.approx(self.ask(store, "fifo")["takes"])

    def test_not_where_its_speed_is_known(self, store: Any) -> None:
        asked = self.ask(store, "unisched")
        measured = "INSERT INTO speeds VALUES ($1, 'A100', 'toy', 4, 1.0, 0.1, NULL, NULL, 3, now(), NULL)"
        store.exclusive(lambda con: con.execute(measured, [asked["signature"]]))
        assert self.ask(store, "unisched")["takes"] == asked["takes"], "measured on other GPUs than the pool has"
        gpu = "INSERT INTO gpus (id, node_id, idx, pool, kind, name, memory, health) VALUES ('g', 'n', 0, $1, 'cuda', 'A100', 0, 'ok')"
        store.exclusive(lambda con: con.execute(gpu, [asked["pool"]]))
        assert self.ask(store, "unisched")["takes"] == pytest.approx(asked["takes"] - admission.PROFILING)

    def test_runs_take_as_long_as_they_did(self, store: Any) -> None:
        """The median of 10, 20 and 90 s; what was stopped or did not measure does not count."""
        before = self.ask(store, "unisched")["takes"]
        store.exclusive(_profiled_for)
        assert self.ask(store, "unisched")["takes"] == pytest.approx(before - admission.PROFILING + 20.0)


class TestStartUps:
    MEASURED: ClassVar = [
        ("train/a", 1.0, 7.0, 3, False, True),
        ("train/b", 1.0, 3.0, 1, False, False),
        ("train/b", 0.1, 0.1, 9, True, True),
        ("command/x@1", 0.1, 0.0, 5, False, True),
    ]

    def test_of_the_model_else_of_its_like_else_what_libraries_take(self) -> None:
        measured = StartUps(self.MEASURED)
        assert measured.of("train/a").until_work(loading=True) == 8.0
        assert measured.of("train/a").until_work(loading=False) == 1.0
        assert measured.of("train/b").until_work(loading=True) == 0.2  # its newest start was a fork
        assert measured.of("other").until_work(loading=True) == 7.0  # (3 x 8 + 4) / 4: forks teach nothing of fresh processes
        assert measured.of("command/y@2").until_work(loading=True) == 0.1
        assert StartUps().of("other").until_work(loading=True) == sum(RECIPE)
        assert StartUps().of("command/y@2").until_work(loading=True) == sum(COMMAND)

    def test_what_was_measured_holds_its_loading(self) -> None:
        """By steps, as said, as earlier jobs of the model took, and unknown."""
        known = Known(
            ["train/a"] * 4, np.array([True, False, False, False]), np.array([math.nan, 9, 9, math.nan]),
            np.array([False, True, False, False]), np.zeros(4, dtype=bool),
        )  # fmt: skip
        assert start_up_seconds(known, StartUps(self.MEASURED)).tolist() == [8, 8, 1, 8]

    def test_a_second_of_work_on_an_idle_host_is_not_done_in_five(self, store: Any) -> None:
        async def ask(recipe: str | None, deadline: float) -> Any:
            work: dict[str, Any] = {"recipe": recipe} if recipe else {"command": ["true"]}
            spec = JobSpec(name="x", estimate=1.0, demand=Demand("strict", (Tier(NOW + deadline),)), **work)
            policy = partial(registry.create, "fifo", {})
            return await Admission(store, StubScheduling(make_view([1]), policy)).of_spec([spec], 0)  # type: ignore[arg-type]

        late, kept, command = (asyncio.run(ask(*asked)) for asked in (("toy", 5.0), ("toy", 9.0), (None, 5.0)))
        assert (late["steps"][0]["probability"], late["steps"][0]["impossible"]) == (0.0, True)
        assert late["needs"] == pytest.approx(1.0 + sum(RECIPE), rel=0.05)
        assert (kept["steps"][0]["probability"], command["steps"][0]["probability"]) == (1.0, 1.0)


class TestWords:
    def forecast(self, *steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
        found = {
            "status": "estimated", "reason": None, "runs": 24, "simulated": 24, "needs": 7200.0, "gpus": 4, "demand": "strict",
            "steps": list(steps), "end_50": NOW + 60, "end_90": NOW + 1800, "others": {"deadlines": 7, "missed": 0.0},
        }  # fmt: skip
        return {**found, **fields}

    def step(self, after: float, probability: float, *, impossible: bool = False, reward: float = 1.0) -> dict[str, Any]:
        return {"deadline": NOW + after, "reward": reward, "probability": probability, "impossible": impossible}

    def lines(self, *arguments: Any, **fields: Any) -> list[str]:
        return forecasting.lines(self.forecast(*arguments, **fields), NOW)

    def test_likely(self) -> None:
        (line,) = self.lines(self.step(7800, 0.92))
        assert "(in 2h 10m): likely met (92% of 24 simulated runs); 9 of 10 runs end by " in line

    def test_unlikely(self) -> None:
        (line,) = self.lines(self.step(7800, 0.1), runs=1, simulated=1)
        assert "unlikely (10% of 1 simulated run); the earliest that can be kept 9 times in 10 is " in line
        (line,) = self.lines(self.step(7800, 0.1), end_90=None)
        assert line.endswith("no end is in sight")

    def test_impossible(self) -> None:
        (line,) = self.lines(self.step(2399.6, 0.0, impossible=True))
        assert "impossible: needs at least 2h on 4 GPUs, 40m are left; the earliest" in line
        (line,) = self.lines(self.step(-5, 0.0, impossible=True))
        assert "it is over" in line

    def test_each_step_of_a_soft_deadline_has_its_line(self) -> None:
        first, second = self.lines(self.step(600, 0.2, reward=80), self.step(7800, 0.6, reward=20), demand="soft")
        assert "for 80: unlikely (20%" in first and "earliest" not in first
        assert "for 20: uncertain (60%" in second and "earliest" in second

    def test_what_it_does_to_others(self) -> None:
        _, line = self.lines(self.step(600, 1.0), others={"deadlines": 7, "missed": 1.5})
        assert line == "because of it 1.5 of 7 deadlines of other jobs would be missed, in the mean"
        assert len(self.lines(self.step(600, 1.0), others={"deadlines": 7, "missed": None})) == 1

    def test_without_enough_simulated_runs_that_is_said(self) -> None:
        assert "(92% of 24 runs in the order of the queue)" in self.lines(self.step(7800, 0.92), simulated=0)[0]
        assert "(92% of 24 runs in the order of the queue, set right by 3 simulated)" in self.lines(self.step(7800, 0.92), simulated=3)[0]

    def test_no_estimate_says_why_and_what_to_do(self) -> None:
        (line,) = forecasting.lines({"status": "unknown-duration", "reason": "nothing tells how long it takes"}, NOW)
        assert line == (
            "deadline: not estimated: nothing tells how long it takes: "
            "give --estimate, or --iterations where jobs of its model have run before"
        )

    def test_a_deadline_that_is_required(self) -> None:
        forecasting.require([("a", self.forecast(self.step(600, 0.95)))], NOW)
        for forecast in (self.forecast(self.step(600, 0.5)), {"status": "busy", "reason": "the daemon is busy"}):
            with pytest.raises(Conflict, match="--require-deadline: nothing was submitted: b: deadline"):
                forecasting.require([("b", forecast)], NOW)

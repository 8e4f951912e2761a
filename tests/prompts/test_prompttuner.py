"""PromptTuner: warm pools as small as deadlines allow (002 ch. 4.4.4), its algorithms as they must be read, and what they do in time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import run
from stoker.engine.scheduling.plan_check import PlanError, check
from stoker.engine.sim.results.result import Result
from stoker.engine.sim.run_options import Costs
from stoker.engine.sim.workload import Workload, make_workload
from stoker.policies import registry
from stoker.policies.contract import Demand, Plan, Profile, View
from stoker.policies.estimate.throughput import Throughput
from views import NOW, Job, make_view

LOADING, WARM = 10.0, 0.5
COSTS = Costs(cold_start=LOADING + WARM, warm_start=WARM)
GPT = Profile("gpt", Throughput(list(range(1, 9)), [float(n) for n in range(1, 9)]))  #: as many times faster as it has GPUs


class Tuning(NamedTuple):
    at: float
    seconds: float  #: on one GPU
    within: float | None = None  #: its deadline, seconds after its submission
    backbone: str = "gpt"
    gpus: int = 1
    most: int = 8


def workload(jobs: Sequence[Tuning], *, after: float = 0.0) -> Workload:
    return make_workload(
        "tunings",
        [job.at + after for job in jobs],
        [job.seconds for job in jobs],
        [job.gpus for job in jobs],
        gpus_max=[job.most if job.backbone else job.gpus for job in jobs],
        models=["gpt" if job.backbone else "" for job in jobs],
        profiles=[GPT],
        backbone=[job.backbone for job in jobs],
        demand=[Demand.BEST_EFFORT if job.within is None else Demand.STRICT for job in jobs],
        tiers=[[] if job.within is None else [(after + job.at + job.within, 100.0)] for job in jobs],
    )


class Watched:
    """What was decided, and when."""

    def __init__(self) -> None:
        self.plans: list[tuple[float, Plan]] = []

    def __call__(self, view: View, plan: Plan, _: Any) -> None:
        self.plans.append((view.now, plan))

    def pool(self, moment: float, backbone: str = "gpt") -> list[int]:
        """The GPUs of a warm pool after the last decision up to a moment."""
        plan = [plan for now, plan in self.plans if now <= moment][-1]
        return list((plan.warm or {}).get(backbone, ()))

    def gpus(self, job: int) -> list[int]:
        """That a job started on."""
        return [gpu for _, plan in self.plans if job in plan.allocations for gpu in plan.allocations[job].gpus]

    def codes(self, moment: float) -> dict[int, str]:
        (plan,) = [plan for now, plan in self.plans if now == moment][-1:]
        return {int(job): waiting.reason.code for waiting in plan.waiting for job in waiting.jobs}


def tuned(jobs: Sequence[Tuning] | Workload, nodes: str = "1x8", **config: float) -> tuple[Result, Watched]:
    watched = Watched()
    settings = ",".join(["prompttuner", *(f"{key}={value}" for key, value in config.items())])
    made = jobs if isinstance(jobs, Workload) else workload(jobs)
    return run(made, settings, nodes=nodes, costs=COSTS, observer=watched), watched


class TestWarmPool:
    def test_a_job_starts_when_its_llm_is_loaded_and_the_next_at_once(self) -> None:
        result, watched = tuned([Tuning(0, 30, within=100), Tuning(50, 30, within=100)])
        assert result.fates.started.tolist() == [LOADING, 50]
        assert result.fates.ended.tolist() == [LOADING + WARM + 30, 50 + WARM + 30]
        assert watched.gpus(0) == watched.gpus(1) == watched.pool(60)

    def test_it_gets_the_fewest_gpus_on_which_it_ends_in_time(self) -> None:
        """Algorithm 1, line 7: from one GPU up."""
        result, watched = tuned([Tuning(0, 30, within=27)])  # 17 s are left after the loading
        assert len(watched.gpus(0)) == 2 and result.fates.ended[0] == LOADING + WARM + 15

    def test_as_printed_it_would_get_more_than_there_are(self) -> None:
        """Algorithm 1, line 7 has ``A_i ≤ R_l``: with one warm GPU two would be given; with none, one."""
        later = Tuning(45, 40, within=22)  # needs two, of which one is warm
        result, watched = tuned([Tuning(0, 30, within=100), later], nodes="1x1")
        assert watched.gpus(1) == [0] and result.fates.ended[1] > 45 + 22, "it is late on all that there is"
        assert result.fates.started[0] == LOADING, "nothing starts while nothing is warm"

    def test_a_job_that_ends_on_its_deadline_is_in_time(self) -> None:
        """Algorithm 1, line 9 has ``<``."""
        result, watched = tuned([Tuning(0, 30, within=100), Tuning(50, 30, within=30)])
        assert watched.gpus(1) == [0] and result.fates.started[1] == 50

    def test_the_most_urgent_goes_first(self) -> None:
        _, watched = tuned([Tuning(0, 30, within=100), Tuning(5, 20, within=400), Tuning(6, 20, within=150)], nodes="1x1")
        starts = [job for _, plan in watched.plans for job in plan.allocations]
        assert starts == [0, 2, 1]

    def test_a_pool_is_of_one_llm(self) -> None:
        result, watched = tuned([Tuning(0, 30, within=100), Tuning(50, 30, within=100, backbone="bert")])
        assert result.fates.started[1] == 50 + LOADING
        assert not set(watched.pool(60)) & set(watched.pool(60, "bert"))


class TestColdPool:
    def test_who_can_wait_for_a_running_job_does(self) -> None:
        _, watched = tuned([Tuning(0, 30, within=100), Tuning(5, 30, within=200)])
        assert (
            watched.codes(0) == {0: "loading"} and watched.codes(5) == {0: "delayed", 1: "delayed"} and watched.gpus(1) == watched.gpus(0)
        )
        assert max(len(watched.pool(now)) for now, _ in watched.plans) == 1

    def test_who_cannot_makes_the_pool_grow(self) -> None:
        result, watched = tuned([Tuning(0, 30, within=45), Tuning(5, 30, within=50)])
        assert len(watched.pool(6)) == 2 and result.fates.started[1] == 5 + LOADING

    def test_what_is_booked_by_one_is_not_there_for_the_next(self) -> None:
        """Lines 28 to 31: the first k moments of E_l become that of the end of who waits for them."""
        jobs = [Tuning(0, 30, within=100), Tuning(5, 50, within=100), Tuning(6, 50, within=100)]
        result, watched = tuned(jobs)
        assert watched.codes(6) == {0: "delayed", 1: "delayed", 2: "loading"}
        assert (result.fates.ended <= [100, 105, 106]).all()

    def test_gpus_that_load_count_in_each_round(self) -> None:
        """E_l must: rounds while the first job's GPU loads, as the others come, add none for it again."""
        _, watched = tuned([Tuning(0, 30, within=45), *(Tuning(0.5 + n, 1, within=500, backbone="bert") for n in range(9))])
        assert all(len(watched.pool(now)) == 1 for now, _ in watched.plans if now < 50)

    def test_no_more_join_than_are_cold(self) -> None:
        """As printed B grows without bound: line 12 never ends where a deadline cannot be met."""
        result, watched = tuned([Tuning(0, 300, within=40)], nodes="1x4")
        assert watched.codes(0) == {0: "loading"} and watched.gpus(0) == [0], "beyond hope, so it gets what it must have"
        assert result.fates.ended[0] == LOADING + WARM + 300

    def test_who_has_less_time_than_the_loading_takes_is_beyond_hope(self) -> None:
        """Line 12 as printed loads only for these."""
        _, watched = tuned([Tuning(0, 300, within=400), Tuning(20, 1, within=LOADING - 1)])
        assert watched.codes(20) == {1: "late"} and len(watched.pool(21)) == 1

    def test_all_gpus_of_a_pool_may_be_waited_for(self) -> None:
        """Line 28 as printed, ``k < E_l.len``, never books the last one."""
        _, watched = tuned([Tuning(0, 30, within=100), Tuning(1, 30, within=300)], nodes="1x2")
        assert watched.gpus(1) == watched.gpus(0)

    def test_idle_gpus_of_another_llm_are_lent_when_none_is_cold(self) -> None:
        jobs = [Tuning(0, 30, within=100), Tuning(45, 30, within=60, backbone="bert")]
        result, watched = tuned(jobs, nodes="1x1", window=300)
        assert watched.codes(45) == {1: "loading"} and result.fates.started[1] == 45 + LOADING
        assert watched.pool(46) == [] and watched.pool(46, "bert") == [0]
        _, watched = tuned(jobs, nodes="1x2", window=300)
        assert watched.pool(46) == [0] and watched.pool(46, "bert") == [1], "a cold one comes first"

    def test_idle_gpus_of_its_pool_count_beside_cold_ones(self) -> None:
        """As printed only cold ones do: a job that needs two, of which one is warm, would wait for the window."""
        jobs = [Tuning(0, 30, within=100), Tuning(45, 40, within=60, gpus=2, most=2)]
        result, watched = tuned(jobs, nodes="1x2", window=300)
        assert result.fates.started[1] == 45 + LOADING and watched.pool(46) == [0, 1]

    def test_gpus_that_another_job_waits_for_are_not_lent(self) -> None:
        """Two are warm, one of them idle, and a job waits for both: only who is more urgent takes the idle one."""
        jobs = [Tuning(0, 100, within=125, most=1), Tuning(1, 20, within=32, most=1), Tuning(40, 40, within=200, gpus=2, most=2)]
        for within, lent in ((400, False), (60, True)):
            _, watched = tuned([*jobs, Tuning(41, 30, within=within, backbone="bert")], nodes="1x2", window=300)
            assert len(watched.pool(42, "bert")) == lent and watched.codes(41)[3] == ("loading" if lent else "resources")

    @pytest.mark.parametrize("moment", [0.0, 5e5])
    def test_moments_are_not_durations(self, moment: float) -> None:
        """Lines 19 and 30 as printed push seconds where E_l has moments: right at 0 o'clock only."""
        jobs = [Tuning(float(at), 20 + at % 7 * 10, within=60 + at % 5 * 20) for at in range(0, 60, 3)]
        result, _ = tuned(workload(jobs, after=moment))
        at_first, _ = tuned(jobs)
        assert result.fates.ended - moment == pytest.approx(at_first.fates.ended, abs=1e-3)


class TestWindow:
    @pytest.mark.parametrize("window", [10.0, 60.0])
    def test_a_gpu_leaves_its_pool_when_it_has_served_nobody_for_the_window(self, window: float) -> None:
        result, watched = tuned([Tuning(0, 30, within=100), Tuning(300, 30, within=100)], window=window)
        ended = LOADING + WARM + 30
        assert watched.pool(ended + window - 1) and not watched.pool(ended + window)
        assert result.fates.started[1] == 300 + LOADING
        assert result.warm_idle == pytest.approx(2 * (LOADING + window)), "what loads and what waits for a job is paid for"

    def test_nothing_runs_while_nothing_waits_and_no_window_ends(self) -> None:
        _, watched = tuned([Tuning(0, 1000, within=2000)])
        assert [now for now, _ in watched.plans] == [0, LOADING, LOADING + WARM + 1000, LOADING + WARM + 1060]

    def test_rounds_are_apart(self) -> None:
        assert all(plan.wake_at is None or plan.wake_at >= now + 0.05 - 1e-9 for now, plan in tuned(
            [Tuning(at / 50, 3, within=20 + at % 11) for at in range(60)]
        )[1].plans)  # fmt: skip


class TestTheOthers:
    def test_who_is_beyond_hope_waits_for_idle_gpus(self) -> None:
        jobs = [Tuning(0, 60, within=200), Tuning(10, 500, within=20), Tuning(12, 30, within=60)]
        result, watched = tuned(jobs, nodes="1x2")
        assert watched.codes(12)[1] == "late" and result.fates.started[1] > result.fates.started[2]

    def test_who_has_no_deadline_comes_last_and_uses_what_is_free(self) -> None:
        jobs = [Tuning(0, 20), Tuning(0, 20), Tuning(0, 20, within=35)]
        result, watched = tuned(jobs, nodes="1x2")
        assert result.fates.started.tolist()[2] == LOADING and result.fates.started[0] <= result.fates.started[1]
        assert np.isfinite(result.fates.ended).all() and len(watched.pool(11)) == 2

    def test_who_has_no_backbone_runs_on_cold_gpus_and_gives_way(self) -> None:
        jobs = [Tuning(0, 1000, backbone=""), Tuning(1, 1000, backbone=""), Tuning(100, 30, within=60)]
        result, watched = tuned(jobs, nodes="1x2")
        assert result.fates.ended[2] <= 160 and result.fates.preemptions.tolist() == [0, 1, 0], "the one that started last"
        assert result.fates.ended[1] > result.fates.ended[0] and np.isfinite(result.fates.ended).all()
        assert not {gpu for gpus in (watched.gpus(0), watched.gpus(1)) for gpu in gpus} & set(watched.pool(50))

    def test_a_job_of_unknown_length_is_neither_put_off_nor_given_up(self) -> None:
        waits = Job(1, tiers=((NOW + 20, 100.0),))
        view = make_view([2], [waits])
        view = dataclasses.replace(view, jobs=dataclasses.replace(view.jobs, backbone=np.array(["gpt"], dtype=object)))
        plan = registry.create("prompttuner", {}).plan(view)
        assert plan.warm == {"gpt": [0]} and plan.waiting[0].reason.code == "loading"


tunings = st.builds(
    Tuning,
    at=st.floats(0, 200),
    seconds=st.floats(0.5, 200),
    within=st.none() | st.floats(1, 300),
    backbone=st.sampled_from(["gpt", "bert", ""]),
    gpus=st.integers(1, 2),
    most=st.integers(2, 6),
)


@settings(max_examples=30)
@given(
    jobs=st.lists(tunings, min_size=1, max_size=14), nodes=st.sampled_from(["1x2", "1x4", "2x3"]), window=st.sampled_from([0.0, 7.0, 60.0])
)
def test_whatever_comes_is_served(jobs: list[Tuning], nodes: str, window: float) -> None:
    """`check` has each GPU in one pool and with one job. All end, and who starts from a backbone does so on GPUs of its pool, warm."""
    result, watched = tuned(jobs, nodes=nodes, window=window)
    assert np.isfinite(result.fates.ended).all()
    order = sorted(range(len(jobs)), key=lambda row: jobs[row].at)
    for _, plan in watched.plans:
        for number, allocation in plan.allocations.items():
            backbone = jobs[order[number]].backbone
            pooled = {gpu for gpus in (plan.warm or {}).values() for gpu in gpus}
            assert set(allocation.gpus) <= set((plan.warm or {}).get(backbone, ())) if backbone else not set(allocation.gpus) & pooled
    tuning = [row for row in range(len(jobs)) if jobs[order[row]].backbone]
    assert (result.fates.preemptions[tuning] == 0).all()


def test_bad_pools_are_refused() -> None:
    view = make_view([2], [])
    for warm, words in (
        ({"gpt": [0], "bert": [0]}, "GPU .* is in the pools of gpt and bert"),
        ({"gpt": [7]}, "warm: gpt: has GPU row 7"),
        ({"gpt": [0.5]}, "are not rows"),
        ({"": [0]}, "is not a mapping of backbones"),
        ([0], "is not a mapping of backbones"),
    ):
        with pytest.raises(PlanError, match=words):
            check(Plan({}, warm=warm), view)  # type: ignore[arg-type]

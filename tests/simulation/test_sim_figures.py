"""Figures of simulations against values worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.results import figures as f
from stoker.engine.sim.results.result import Bars, Fates, Result, Usage
from stoker.engine.sim.workload import Workload, make_workload
from stoker.policies.contract import Demand, Profile
from stoker.policies.estimate.throughput import Throughput

NAN = float("nan")


def result(
    started: Sequence[float],
    ended: Sequence[float],
    run_time: Sequence[float],
    *,
    gpus: Sequence[int] | None = None,
    lost: Sequence[float] | None = None,
    preemptions: Sequence[int] | None = None,
    rejected: Sequence[int] = (),
    dropped: Sequence[int] = (),
    usage: Sequence[tuple[float, int]] = (),
) -> Result:
    """A result by hand; ``rejected`` and ``dropped`` name rows, ``usage`` is (moment, GPUs held)."""
    n = len(started)
    marks = [np.isin(np.arange(n), rows) for rows in (rejected, dropped)]
    none = np.zeros(0, dtype=np.int64)
    return Result(
        fates=Fates(
            started=np.array(started, dtype=float),
            ended=np.array(ended, dtype=float),
            run_time=np.array(run_time, dtype=float),
            gpu_time=np.array(run_time, dtype=float) * (np.array(gpus) if gpus is not None else 1),
            lost=np.array(lost if lost is not None else [0.0] * n, dtype=float),
            preemptions=np.array(preemptions if preemptions is not None else [0] * n),
            rejected=marks[0],
            dropped=marks[1],
        ),
        usage=Usage(
            ts=np.array([ts for ts, _ in usage], dtype=float),
            busy=np.array([busy for _, busy in usage], dtype=np.int64),
            running=np.array([busy for _, busy in usage], dtype=np.int64),
            waiting=np.zeros(len(usage), dtype=np.int64),
        ),
        bars=Bars(none, np.zeros(0), np.zeros(0), none, none),
        events=2 * n,
        decisions=n,
        plan_seconds=0.1,
        wall_seconds=0.2,
    )


#: Two GPUs, first in, first out: a holds one for 10 s, b both for 10 s after it, c waits behind b and runs 2 s.
QUEUE = make_workload("queue", [0, 0, 4], [10, 10, 2], [1, 2, 1], key=["a", "b", "c"])
TWO = Cluster.parse("1x2")
SERVED = result([0, 10, 20], [10, 20, 22], [10, 10, 2], gpus=[1, 2, 1], usage=[(0, 1), (10, 2), (20, 1), (22, 0)])


def test_times_of_a_queue() -> None:
    got = f.figures(QUEUE, SERVED, TWO)
    assert got.jct_avg == pytest.approx(16)  # 10, 20 and 18
    assert got.jct_p50 == 18
    assert got.jct_p99 == pytest.approx(18 + 0.98 * 2)
    assert got.wait_avg == pytest.approx(26 / 3)  # 0, 10 and 16
    assert got.wait_p99 == pytest.approx(10 + 0.98 * 6)
    assert got.makespan == 22
    assert got.utilisation == pytest.approx((10 + 20 + 2) / 44)
    assert (got.slo_violations, got.r_slo) == (None, None)


def test_finish_time_fairness_of_a_queue() -> None:
    """Jobs in the cluster: 2 until 4 s, 3 until 10 s, 2 until 20 s, then 1."""
    rho = f.rho_of(QUEUE, SERVED.fates, TWO)
    contended = [(8 + 18) / 10, (8 + 18 + 20) / 20, (18 + 20 + 2) / 18]
    ideal = [10 * contended[0] / 2, 10 * contended[1], 2 * contended[2] / 2]  # a third of 2 GPUs is less than the gang of each
    assert rho == pytest.approx([10 / ideal[0], 20 / ideal[1], 18 / ideal[2]])
    got = f.figures(QUEUE, SERVED, TWO)
    assert got.rho_max == pytest.approx(8.1)
    assert got.rho_avg == pytest.approx(sum(rho) / 3)
    assert got.fair_share == pytest.approx(2 / 3)


def test_a_job_with_room_for_itself_is_as_fast_as_alone() -> None:
    """Two jobs on eight GPUs: a share of four is more than either needs, so T_id is the duration, not twice it."""
    workload = make_workload("roomy", [0, 0], [10, 30], [1, 2])
    served = result([0, 0], [10, 30], [10, 30])
    rho = f.rho_of(workload, served.fates, Cluster.parse("1x8"))
    assert rho == pytest.approx([1, 1])


def test_a_job_that_fills_the_cluster_has_the_ideal_time_of_themis() -> None:
    """T_id = duration x N: two jobs that each need everything, one after the other."""
    workload = make_workload("full", [0, 0], [10, 10], [4, 4])
    served = result([0, 10], [10, 20], [10, 10])
    rho = f.rho_of(workload, served.fates, Cluster.parse("2x2"))
    assert rho == pytest.approx([10 / (10 * 2), 20 / (10 * 1.5)])


def test_an_elastic_job_would_use_more_than_its_least() -> None:
    """Alone on eight GPUs it runs on its four at most, three times as fast as on one; with a share of half it has the same four."""
    profile = Profile("net", Throughput([1, 2, 4, 8], [1.0, 1.8, 3.0, 4.0]))
    workload = make_workload("elastic", [0, 0], [30, 30], [1, 1], gpus_max=[4, 4], models=["net", "net"], profiles=[profile])
    served = result([0, 0], [30, 30], [30, 30])
    assert f.rho_of(workload, served.fates, Cluster.parse("1x8")) == pytest.approx([3, 3])


def test_rounding_does_not_make_a_lone_job_unfair() -> None:
    submitted, duration = 1e7 + 0.1, 0.3
    workload = make_workload("lone", [submitted], [duration], [1])
    got = f.figures(workload, result([submitted], [submitted + duration], [duration]), TWO)
    assert got.fair_share == 1


def test_a_job_of_no_duration_has_no_fairness() -> None:
    workload = make_workload("nothing", [0, 0], [0, 5], [1, 1])
    rho = f.rho_of(workload, result([0, 0], [0, 5], [0, 5]).fates, TWO)
    assert np.isnan(rho[0]) and rho[1] == 1


#: Five jobs with deadlines (one tier or three) and one without.
SLO = make_workload(
    "slo",
    [0, 0, 0, 0, 0, 0],
    [10, 10, 10, 10, 10, 10],
    [1] * 6,
    demand=[Demand.STRICT, Demand.STRICT, Demand.SOFT, Demand.SOFT, Demand.STRICT, Demand.BEST_EFFORT],
    tiers=[[(15, 100)], [(15, 100)], [(12, 80), (20, 50), (30, 20)], [(12, 80), (20, 50), (30, 20)], [(90, 100)], []],
)
#: Ended at 15 (just in time), 16 (late), 19 (second step), 31 (after the last), rejected, whenever.
SLO_SERVED = result([0, 0, 0, 0, NAN, 0], [15, 16, 19, 31, NAN, 99], [10, 10, 10, 10, 0, 10], rejected=[4])


def test_rewards_and_violations() -> None:
    reward = f.reward_of(SLO, SLO_SERVED.fates)
    assert reward[:5].tolist() == [100, 0, 50, 0, 0] and np.isnan(reward[5])
    assert f.violates(SLO, SLO_SERVED.fates).tolist() == [False, True, False, True, True, False]
    got = f.figures(SLO, SLO_SERVED, TWO)
    assert got.slo_violations == pytest.approx(3 / 5)
    assert got.r_slo == pytest.approx(1 - 150 / 500)


def test_r_slo_of_perfect_service_is_zero_and_of_none_is_one() -> None:
    """Lower is better, as in the tables of 002 ch. 5.5, though Eqn 5.15 as printed is the complement."""
    workload = make_workload("both", [0], [1], [1], demand=[Demand.STRICT], tiers=[[(5, 100)]])
    assert f.figures(workload, result([0], [1], [1]), TWO).r_slo == 0
    assert f.figures(workload, result([0], [6], [6]), TWO).r_slo == 1


def test_jobs_that_never_ended_have_no_times_but_violate() -> None:
    workload = make_workload("cut", [0, 1], [2, 100], [1, 1], tiers=[[], [(50, 100)]])
    got = f.figures(workload, result([0, 1], [2, NAN], [2, 20]), TWO)
    assert (got.jct_avg, got.makespan, got.slo_violations) == (2, None, 1)


#: Cut off at 20: one kept, one late, one whose only deadline has passed, two with a deadline ahead, one given up, three that came too late.
CUT = make_workload(
    "cut",
    [0, 0, 0, 0, 0, 0, 20, 25, 30],
    [5, 15, 50, 50, 50, 50, 5, 5, 5],
    [1, 1, 1, 1, 1, 1, 1, 1, 64],
    tiers=[[(10, 100)], [(10, 100)], [(20, 100)], [(30, 100)], [(10, 100), (30, 40)], [(99, 100)], [(40, 100)], [(40, 100)], [(40, 100)]],
)
CUT_SERVED = result(
    [0, 0, 0, 0, 0, NAN, NAN, NAN, NAN],
    [5, 15, NAN, NAN, NAN, NAN, NAN, NAN, NAN],
    [5, 15, 20, 20, 20, 0, 0, 0, 0],
    rejected=[5],
    dropped=[8],
)


def test_of_a_run_that_is_cut_off_only_what_is_known_counts() -> None:
    fates = CUT_SERVED.fates
    assert np.flatnonzero(f.not_submitted(CUT, fates, 20.0)).tolist() == [6, 7]
    assert np.flatnonzero(f.takes_part(CUT, fates, 20.0)).tolist() == [0, 1, 2, 3, 4, 5]
    assert np.flatnonzero(f.undecided(CUT, fates, 20.0)).tolist() == [3, 4]
    got = f.figures(CUT, CUT_SERVED, TWO, 20.0)
    assert got.slo_violations == pytest.approx(3 / 4) and got.r_slo == pytest.approx(1 - 100 / 400)
    assert got.jct_avg == 10


def test_a_run_that_is_not_cut_off_has_no_undecided_jobs() -> None:
    got = f.figures(CUT, CUT_SERVED, TWO)
    assert got.slo_violations == pytest.approx(7 / 8), "who never ends has not kept its deadline"
    assert not f.undecided(CUT, CUT_SERVED.fates, np.inf).any() and not f.not_submitted(CUT, CUT_SERVED.fates, np.inf).any()


def test_use_is_measured_to_the_cut_when_jobs_are_still_at_work() -> None:
    """a holds one GPU of two for 10 s, b then both until the cut at 30; c has not started."""
    served = result([0, 10, NAN], [10, NAN, NAN], [10, 20, 0], gpus=[1, 2, 1], usage=[(0, 1), (10, 2)])
    assert f.extent(QUEUE, served.fates, 30.0) == (0, 30)
    got = f.figures(QUEUE, served, TWO, 30.0)
    assert got.utilisation == pytest.approx((10 + 2 * 20) / 60)
    assert got.makespan is None, "who knows when the others would have ended"


def test_use_is_measured_to_the_cut_when_nothing_had_ended() -> None:
    served = result([0, NAN, NAN], [NAN] * 3, [5, 0, 0], usage=[(0, 1)])
    got = f.figures(QUEUE, served, TWO, 5.0)
    assert (got.utilisation, got.makespan, got.jct_avg) == (0.5, None, None)


def test_policies_of_a_study_that_is_cut_off_are_measured_over_one_time() -> None:
    """Whether the first job had ended by the cut or not: another was to come."""
    workload = make_workload("later", [0, 100], [10, 10], [1, 1])
    quick, slow = result([0, NAN], [10, NAN], [10, 0], usage=[(0, 1), (10, 0)]), result([15, NAN], [NAN, NAN], [5, 0], usage=[(15, 1)])
    assert [f.extent(workload, served.fates, 20.0) for served in (quick, slow)] == [(0, 20), (0, 20)]
    got = [f.figures(workload, served, TWO, 20.0) for served in (quick, slow)]
    assert [one.utilisation for one in got] == [10 / 40, 5 / 40] and [one.makespan for one in got] == [10, None]


def test_a_cut_after_everything_changes_nothing() -> None:
    assert f.figures(QUEUE, SERVED, TWO, 1e6) == f.figures(QUEUE, SERVED, TWO)


def test_a_job_that_came_and_ended_at_the_cut_takes_part() -> None:
    workload = make_workload("moment", [0, 20], [5, 0], [1, 1])
    served = result([0, 20], [5, 20], [5, 0])
    assert f.takes_part(workload, served.fates, 20.0).all()


def test_dropped_jobs_count_for_nothing() -> None:
    workload = make_workload("large", [0, 5], [2, 2], [64, 1], tiers=[[(10, 100)], [(10, 100)]])
    got = f.figures(workload, result([NAN, 5], [NAN, 7], [0, 2], dropped=[0], usage=[(5, 1), (7, 0)]), TWO)
    assert (got.jct_avg, got.makespan, got.slo_violations, got.r_slo, got.utilisation) == (2, 2, 0, 0, 0.5)
    assert got.rho_max == 1


def test_costs_are_added_up() -> None:
    got = f.figures(QUEUE, result([0, 1, 4], [9, 25, 12], [9, 15, 5], lost=[1.5, 8, 0], preemptions=[1, 2, 0]), TWO)
    assert (got.preemptions, got.lost_gpu_time) == (3, 9.5)


@pytest.mark.parametrize("served", [result([], [], []), result([NAN] * 3, [NAN] * 3, [0] * 3)], ids=["no jobs", "nothing ended"])
def test_nothing_is_none_and_not_a_number_is_nowhere(served: Result) -> None:
    workload: Workload = QUEUE if len(served.fates.ended) else make_workload("empty", [], [], [])
    got = msgspec.structs.asdict(f.figures(workload, served, TWO))
    assert {value for name, value in got.items() if name not in ("preemptions", "lost_gpu_time")} == {None}
    assert (got["preemptions"], got["lost_gpu_time"]) == (0, 0)


def test_contention_by_integration_agrees_with_counting() -> None:
    """Against a loop over every second, on times that are whole seconds."""
    rng = np.random.default_rng(7)
    submitted = np.sort(rng.integers(0, 100, 40))
    ended = submitted + rng.integers(1, 60, 40)
    workload = make_workload("random", submitted, ended - submitted, [8] * 40)
    served = result(submitted.tolist(), ended.tolist(), (ended - submitted).tolist())
    rho = f.rho_of(workload, served.fates, Cluster.parse("1x8"))
    for job in range(40):
        seconds = range(submitted[job], ended[job])
        average = sum(int(((submitted <= t) & (ended > t)).sum()) for t in seconds) / len(seconds)
        assert rho[job] == pytest.approx(1 / average)


def test_columns_are_those_of_the_table() -> None:
    """Every figure has a column of sim_runs, from jct_avg to lost_gpu_time and in its order."""
    from stoker.engine.store.sqlfiles import MIGRATIONS

    text = (MIGRATIONS / "0002_simulation.sql").read_text()
    columns = [line.split()[0] for line in text[text.index("CREATE TABLE sim_runs") :].split(");")[0].splitlines()[1:] if line.strip()]
    first, last = columns.index("jct_avg"), columns.index("lost_gpu_time")
    assert columns[first : last + 1] == list(f.Figures.__struct_fields__)

"""Policies are asked again when time alone changes whose turn it is, so that outcomes do not hang on what else happens."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import run, workload
from stoker.engine.sim.run_options import Errors
from stoker.engine.sim.workload import Workload
from stoker.policies import registry
from stoker.policies.contract import Demand, Plan, Policy, Profile, View
from stoker.policies.estimate.throughput import Throughput

LINEAR = Profile("linear", Throughput([1, 2, 4], [1.0, 2.0, 4.0]))
NONE, SOFT, STRICT = Demand.BEST_EFFORT, Demand.SOFT, Demand.STRICT
UNKNOWN = Errors(unknown=1.0)


@pytest.mark.parametrize(
    ("demand", "tiers"),
    [(STRICT, [(100.0, 100.0)]), (SOFT, [(100.0, 100.0), (900.0, 50.0)])],
    ids=["its last deadline", "one of several"],
)
def test_edf_takes_the_gpu_of_a_job_as_its_deadline_passes(demand: Demand, tiers: list[tuple[float, float]]) -> None:
    jobs = workload([(0, 1000, 1), (1, 50, 1)], demand=[demand, STRICT], tiers=[tiers, [(300.0, 100.0)]])
    result = run(jobs, "edf")
    assert result.fates.started.tolist() == pytest.approx([0, 100], abs=0.01)
    assert result.fates.ended.tolist() == pytest.approx([1050, 150], abs=0.01)


def test_edf_looks_at_no_deadline_while_nobody_waits() -> None:
    jobs = workload([(0, 1000, 1), (1, 50, 1)], demand=[STRICT, STRICT], tiers=[[(100.0, 100.0)], [(300.0, 100.0)]])
    assert run(jobs, "edf", "1x2").decisions == 2, "when they come"


@pytest.mark.parametrize(
    ("gangs", "config", "turn"),
    [
        ((1, 1), "", 7200.0),  # as long again as it has run is more than twice what the other is taken to need
        ((1, 1), ",unknown=100", 200.0),
        ((1, 1), ",hysteresis=5", 18000.0),
        ((2, 1), ",measure=service,hysteresis=4", 7200.0),  # twice that in GPU-seconds is four times as much
        ((1, 2), ",measure=service", None),  # from 4 hours on; it ends before
    ],
    ids=str,
)
def test_srtf_takes_the_gpu_of_a_job_that_has_run_for_too_long(gangs: tuple[int, int], config: str, turn: float | None) -> None:
    jobs = workload([(0, 10_000 if turn is None else 50_000, gangs[0]), (10, 40, gangs[1])])
    result = run(jobs, "srtf" + config, "1x2" if 2 in gangs else "1x1", errors=UNKNOWN)
    assert result.fates.started[1] == pytest.approx(10_000 if turn is None else turn, abs=0.01)


def test_srtf_of_unknown_jobs_takes_turns_that_grow() -> None:
    """Without a hysteresis, after 3960 s: a tenth more than the hour that it is taken to need at first."""
    result = run([(0, 50_000, 1), (10, 40_000, 1)], "srtf,hysteresis=1", errors=UNKNOWN)
    assert result.fates.started[1] == pytest.approx(3960, abs=0.01)
    # Each turn makes the run time of both a tenth more at least, from an hour on: ln(50000 / 3600) / ln(1.1) turns of each at most.
    assert 10 < result.fates.preemptions.sum() <= 56
    assert result.decisions < 120


@pytest.mark.parametrize(("interval", "turn"), [(None, 170.0), (60.0, 180.0)])
def test_infless_sizes_a_job_anew_that_can_no_longer_meet_its_deadline(interval: float | None, turn: float) -> None:
    """4000 s and a tenth more, on 4 GPUs, and 30 s to start: from 1300 - 1100 - 30 on no number of them suffices, and one is free."""
    jobs = workload(
        [(0, 10_000, 2), (1, 4000, 1)],
        gpus_max=[2, 4], demand=[NONE, STRICT], tiers=[[], [(1300.0, 100.0)]], models=["other", "linear"], profiles=[LINEAR],
    )  # fmt: skip
    result = run(jobs, "infless", "1x4", interval=interval)
    assert result.fates.started[1] == pytest.approx(turn, abs=0.01)
    assert result.fates.gpu_time[1] == pytest.approx(4000.0)


def test_genie_lets_others_pass_when_the_head_of_the_line_can_wait_no_more() -> None:
    jobs = workload(
        [(0, 10_000, 1), (1, 1000, 2), (2, 100, 1)], demand=[NONE, STRICT, STRICT], tiers=[[], [(1500.0, 100.0)], [(9000.0, 100.0)]]
    )
    result = run(jobs, "genie,backfill=false", "1x2")
    assert result.fates.started.tolist() == pytest.approx([0, 10_000, 500], abs=0.01)


class Often:
    """A policy that is asked at every whole second besides."""

    Config = type(None)

    def __init__(self, policy: Policy) -> None:
        self.policy, self.name = policy, policy.name

    def plan(self, view: View) -> Plan:
        plan = self.policy.plan(view)
        soon = math.floor(view.now) + 1.0
        return dataclasses.replace(plan, wake_at=soon if plan.wake_at is None else min(plan.wake_at, soon))


def with_deadlines(rows: list[tuple[int, int, int]], due: list[int]) -> Workload:
    """Deadlines a fraction of a second after whole ones, so that nothing else falls on them; two where they are even."""
    rows = sorted(rows)
    tiers = [
        [(row[0] + after + 0.37, 100.0), (row[0] + 2 * after + 0.61, 50.0)][: 2 - after % 2] for row, after in zip(rows, due, strict=False)
    ]
    return workload(rows, demand=[SOFT if after % 2 == 0 else STRICT for after in due[: len(rows)]], tiers=tiers)


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("edf", {}),
        ("genie,backfill=false", {}),
        ("srtf,unknown=7.3", {"errors": Errors(unknown=0.6)}),
        ("srtf,unknown=7.3,hysteresis=1.05,measure=service", {"errors": UNKNOWN}),
    ],
    ids=["edf", "genie", "srtf", "srtf by service"],
)
@given(
    rows=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60), st.sampled_from([1, 1, 2, 3])), min_size=2, max_size=8),
    due=st.lists(st.integers(3, 90), min_size=8, max_size=8),
    nodes=st.sampled_from(["1x1", "1x2", "1x3", "2x2"]),
)
@settings(max_examples=40)
@pytest.mark.sampled(2)
def test_asking_at_other_moments_makes_no_difference(
    policy: str, options: dict[str, Any], rows: list[tuple[int, int, int]], due: list[int], nodes: str
) -> None:
    jobs = with_deadlines(rows, due)
    name, *config = policy.split(",")
    often = Often(registry.create(name, dict(setting.split("=") for setting in config)))
    ended, asked_often = (run(jobs, one, nodes, **options).fates.ended.tolist() for one in (policy, often))
    # Which of alike jobs goes first when the turns of both come in one millisecond is not said.
    alike = list(zip(sorted(rows), due, strict=False))
    np.testing.assert_allclose(
        [end for _, end in sorted(zip(alike, ended, strict=True))],
        [end for _, end in sorted(zip(alike, asked_often, strict=True))],
        atol=0.05,
    )

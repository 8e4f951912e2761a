"""What merges bring in the simulator, by hand: less work from the weights of another, a pace together, and what dies with whom."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from scripted import Scripted, Timetable, run
from stoker.engine.sim.run_options import Costs
from stoker.engine.sim.simulation_error import SimulationError
from stoker.engine.sim.workload import Workload, make_workload
from stoker.policies.contract import Allocation, Plan, Profile, View
from stoker.policies.estimate.throughput import Throughput
from stoker.policies.estimate.transfers import Joint, Transfers

#: Two tasks. From the weights of an a, b has a quarter of its work; together a takes half of its time and b four fifths, on one GPU.
TABLE = Throughput([1, 2], [1.0, 1.5])
PROFILES = (Profile("a", TABLE), Profile("b", TABLE))
BEGIN = np.array([[0.0, 0.25], [math.nan, 0.0]])
JOINT = {(0, 1): Joint(0.5, TABLE), (1, 0): Joint(0.8, TABLE)}


def jobs(*rows: tuple[str, float, float], **more: Any) -> Workload:
    """(task, submitted, seconds on one GPU)"""
    models, submitted, duration = zip(*rows, strict=True)
    transfers = Transfers(BEGIN, JOINT)
    return make_workload(
        "test", submitted, duration, [1] * len(rows), gpus_max=[2] * len(rows), models=models,
        profiles=PROFILES, transfers=transfers, **more,
    )  # fmt: skip


def ends(work: Workload, script: Mapping[float, Mapping[int, Any]], nodes: str = "1x2", costs: Costs | None = None) -> list[float]:
    policy = Timetable(script)
    policy.elastic = True  # type: ignore[attr-defined]
    return [round(end, 6) for end in run(work, policy, nodes, costs or Costs()).fates.ended.tolist()]


def test_a_job_has_less_to_do_from_the_weights_of_one_that_has_ended() -> None:
    work = jobs(("a", 0, 100), ("b", 0, 80))
    assert ends(work, {0: {0: (0,)}, 100: {1: Allocation((0,), begin_from=0)}}) == [100, 120]
    # The other way round nothing is known, and the work is the same; nor has it less to do once it has trained.
    assert ends(work, {0: {1: (0,)}, 80: {0: Allocation((0,), begin_from=1)}}) == [180, 80]
    moved = {0: {0: (0,), 1: (1,)}, 40: {0: (1,)}, 140: {1: Allocation((0,), begin_from=0)}}  # at 40 job 0 takes the GPU of job 1
    assert ends(work, moved) == [100, 180]


def test_who_goes_on_where_the_other_has_ended_does_not_start_anew() -> None:
    work, costs = jobs(("a", 0, 100), ("b", 0, 80)), Costs(cold_start=30.0, warm_start=30.0)
    assert ends(work, {0: {0: (0,)}, 130: {1: Allocation((0,), begin_from=0)}}, costs=costs) == [130, 130 + costs.handover + 20]
    assert ends(work, {0: {0: (0,)}, 130: {1: Allocation((1,), begin_from=0)}}, costs=costs) == [130, 180]
    assert ends(work, {0: {0: (0,)}, 131: {1: Allocation((0,), begin_from=0)}}, costs=costs) == [130, 181]


def test_two_that_train_together_end_each_at_its_own_time() -> None:
    """a takes 100 * 0.5 s; b, of 40 s, 40 * 0.8. Who holds the GPUs makes no difference while both train."""
    work = jobs(("a", 0, 100), ("b", 0, 40))
    assert ends(work, {0: {0: Allocation((0,), joint=1)}, 32: {0: (0,)}}) == [50, 32]
    # b holds them and ends first; a goes on at the pace of both, in a lease of its own.
    assert ends(work, {0: {1: Allocation((0,), joint=0)}, 32: {0: Allocation((0,), begin_from=1)}}) == [50, 32]
    # On two GPUs from the tenth second on: a has 40 s left at half the speed again.
    both = {0: {0: Allocation((0,), joint=1)}, 10: {0: Allocation((0, 1), joint=1)}, 24: {0: (0, 1)}}
    assert ends(work, both) == [pytest.approx(10 + 40 / 1.5, abs=1e-5), pytest.approx(10 + 22 / 1.5, abs=1e-5)]


def test_a_suspension_stops_both_and_loses_nothing_of_either() -> None:
    work = jobs(("a", 0, 100), ("b", 0, 80))
    # At 20 both move to the other GPU, which takes 30 s. b has 64 s in all at its pace, of which 50 are done when a ends, at 80.
    script = {0: {0: Allocation((0,), joint=1)}, 20: {0: Allocation((1,), joint=1)}, 80: {1: Allocation((0,), begin_from=0)}}
    costs = Costs(resume=30.0)
    assert ends(work, script, costs=costs) == [80, 80 + 14]
    result = run(work, _elastic(Timetable(script)), "1x2", costs)
    assert result.fates.gpu_time.tolist() == [80, 14]  # GPUs that two share in one process count once
    assert result.fates.started.tolist() == [0, 0]
    assert (int(result.usage.busy.max()), int(result.usage.busy[-1])) == (1, 0)


def test_a_failure_takes_both_back_to_their_last_checkpoint() -> None:
    work = jobs(("a", 0, 4000), ("b", 0, 4000))
    costs = Costs(failures_per_gpu_hour=8.0, checkpoint_interval=100.0)

    def plan(view: View) -> Plan:
        waits = [job for job in view.jobs.id.tolist() if not view.jobs.held.sum()]
        if not waits:
            return Plan({})
        other = next((job for job in waits if job != waits[0]), None)
        return Plan({waits[0]: Allocation((0,), joint=other if waits[0] == 0 else None)})

    fates = run(work, _elastic(Scripted(plan)), "1x1", costs).fates
    assert fates.lost[0] > 0 and fates.lost[0] == pytest.approx(fates.ended[0] - 2000)  # what was lost was trained again
    assert fates.ended[1] >= 3200 + fates.lost[0] - 1e-6  # and of b just as much


def _elastic(policy: Scripted) -> Scripted:
    policy.elastic = True  # type: ignore[attr-defined]
    return policy


@pytest.mark.parametrize(
    ("rows", "script", "words"),
    [
        ([("a", 0, 100), ("a", 0, 100)], {0: {0: Allocation((0,), joint=1)}}, "nothing is known of how it trains together with job 1"),
        ([("a", 0, 100), ("b", 0, 90)], {0: {0: (0,)}, 9: {0: Allocation((0, 1), joint=1)}}, "job 0 has trained already"),
        ([("a", 0, 100), ("b", 0, 90)], {0: {0: Allocation((0,), joint=0)}}, "must wait and have no part in another lease"),
        ([("a", 0, 100), ("b", 0, 90)], {0: {0: Allocation((0,), joint=1), 1: Allocation((1,))}}, "must wait and have no part"),
        ([("a", 0, 100), ("b", 0, 90)], {0: {0: Allocation((0,), joint=7)}}, "must wait and have no part"),
        ([("a", 0, 100), ("b", 0, 90)], {0: {0: Allocation((0,), joint="x")}}, "'x', which is not the id of a job"),
    ],
    ids=["unknown pair", "has trained", "itself", "runs", "nobody", "no id"],
)
def test_who_cannot_train_together_is_told(rows: list[tuple[str, float, float]], script: dict[float, Any], words: str) -> None:
    with pytest.raises(SimulationError, match=words):
        ends(jobs(*rows), script)

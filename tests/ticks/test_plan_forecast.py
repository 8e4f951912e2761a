"""Expected starts of waiting jobs, by hand and against a forecast that takes GPUs one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from stoker.engine.forecast.expected_starts import HORIZON, estimate_starts
from stoker.policies.contract import Phase
from views import NOW, Job, make_view, placed, views


def forecast(view, order):
    return (estimate_starts(view, order) - NOW).tolist()


def test_worked_example():
    # Two GPUs, busy for 100 s and 300 s. 3 (1 GPU, 50 s) starts at 100, 4 (2 GPUs, 10 s) at 300, 5 when 4 ends.
    jobs = [
        Job(1, held=(0,), remaining=100),
        Job(2, held=(1,), remaining=300),
        Job(3, remaining=50),
        Job(4, gpus=2, remaining=10),
        Job(5, remaining=math.nan),
    ]
    assert forecast(make_view([2], jobs), [3, 4, 5]) == [100, 300, 310]


def test_unknown_lengths_make_later_starts_unknown():
    jobs = [Job(1, held=(0,)), Job(2, held=(1,), remaining=60), Job(3), Job(4)]
    starts = forecast(make_view([2], jobs), [3, 4])
    assert starts[0] == 60
    assert math.isnan(starts[1])


def test_a_lease_that_ends_before_its_job_sets_gpus_free():
    jobs = [
        Job(1, held=(0,), lease_end=NOW + 20),
        Job(2, held=(1,), remaining=300, lease_end=NOW + 40),
        Job(3, held=(2,), remaining=30, lease_end=NOW + 40),
        Job(4, held=(3,), remaining=300, lease_end=NOW - 1),
        *(Job(n, remaining=500) for n in range(5, 9)),
    ]
    assert forecast(make_view([4], jobs), [5, 6, 7, 8]) == [0, 20, 30, 40]


def test_who_may_start_on_some_nodes_only_waits_for_these():
    jobs = [Job(1, held=(0,), remaining=100), Job(2, remaining=10), Job(3, gpus=2, remaining=5), Job(4)]
    view = make_view([1, 2], jobs)
    assert forecast(view, [2, 3, 4]) == [0, 10, 15]
    assert forecast(placed(view, {2: [0]}), [2, 3, 4]) == [100, 0, 5]
    assert forecast(placed(view, {2: [1], 3: [0, 1]}), [2, 3, 4]) == [0, 10, 15]
    out_of_use = make_view([1, 2], jobs, unusable=[0])
    assert np.isnan(forecast(placed(out_of_use, {2: [0]}), [2, 3, 4])).all()  # its host does not serve, and may come back
    assert forecast(placed(view, {2: []}), [2, 3, 4])[1:] == [0, 5]  # nobody can send it


def test_nothing_starts_on_a_node_that_has_left_by_then():
    jobs = [Job(1, held=(0,), remaining=100), Job(2, held=(1,), remaining=300), Job(3, remaining=50), Job(4, gpus=2, remaining=10)]
    view = make_view([1, 1], jobs)
    assert forecast(view, [3, 4]) == [100, 300]
    assert forecast(placed(view, {}, [NOW + 101, math.inf]), [3])[0] == 100
    assert forecast(placed(view, {}, [NOW + 100, math.inf]), [3])[0] == 300  # it leaves when it would be free
    assert math.isnan(forecast(placed(view, {}, [NOW + 101, math.inf]), [4])[0])  # never two at a time
    assert forecast(placed(view, {}, [NOW + 301, math.inf]), [4])[0] == 300
    assert math.isnan(forecast(placed(view, {3: [0]}, [NOW + 50, math.inf]), [3])[0])
    jobs = [Job(1, held=(1,), remaining=300), Job(2, held=(2,), remaining=300), Job(3, gpus=2, remaining=10), Job(4, remaining=50)]
    view = placed(make_view([1, 1, 1], jobs), {}, [NOW + 200, math.inf, math.inf])
    assert forecast(view, [3, 4]) == [300, 0]  # who cannot use a node before it leaves keeps nobody from it


def test_what_the_pool_cannot_hold_holds_up_nobody():
    starts = forecast(make_view([2], [Job(1, gpus=3), Job(2)], unusable=[1]), [1, 2])
    assert math.isnan(starts[0])
    assert starts[1] == 0


def test_a_job_that_needs_more_memory_than_there_is_has_no_start_and_holds_up_nobody():
    jobs = [Job(1, gpus=2, memory=24), Job(2, memory=24), Job(3, memory=80), Job(4, memory=81)]
    starts = forecast(make_view([3], jobs, memory=[24, 80, 0]), [1, 2, 3, 4])
    assert starts[0] == starts[1] == 0 and not math.isnan(forecast(make_view([1], [Job(3, memory=80)], memory=[0]), [3])[0])
    assert math.isnan(forecast(make_view([2], [Job(4, memory=81), Job(5)], memory=[24, 80]), [4, 5])[0])
    assert forecast(make_view([2], [Job(4, memory=81), Job(5)], memory=[24, 80]), [4, 5])[1] == 0


def test_behind_one_that_waits_for_gpus_to_come_back_nothing_is_told():
    view = make_view([3], [Job(1), Job(2, gpus=3), Job(3)], unusable=[1])
    starts = forecast(view, [1, 2, 3])
    assert starts[0] == 0
    assert math.isnan(starts[1]) and math.isnan(starts[2])


def test_a_job_that_has_left_the_view_is_passed_over():
    starts = forecast(make_view([1], [Job(2)]), [7, 2])
    assert math.isnan(starts[0])
    assert starts[1] == 0


def test_stopping_jobs_are_as_good_as_gone_and_overdue_ones_too():
    jobs = [Job(1, held=(0,), stopping=True), Job(2, held=(1,), remaining=-5), Job(3, gpus=2)]
    assert forecast(make_view([2], jobs), [3]) == [0]


def test_beyond_the_horizon_nothing_is_told():
    jobs = [Job(1, held=(0,), remaining=HORIZON + 1), Job(2)]
    assert math.isnan(forecast(make_view([1], jobs), [2])[0])


def test_an_empty_order():
    assert len(estimate_starts(make_view([1]), [])) == 0


@given(views())
def test_agrees_with_gpus_taken_one_by_one(view):
    jobs = view.jobs
    ends = np.full(len(view.gpus), NOW)
    for row in range(len(jobs)):
        left = 0.0 if jobs.phase[row] == Phase.STOPPING else jobs.remaining[row]
        ends[jobs.allocation(row)] = NOW + (math.inf if math.isnan(left) else left)
    ends = ends[view.gpus.usable]
    order = [int(jobs.id[row]) for row in range(len(jobs)) if jobs.phase[row] == Phase.PENDING]
    expected = []
    for row in np.flatnonzero(jobs.phase == Phase.PENDING):
        n = int(jobs.gpus_min[row])
        if n > sum(not 0 < size < jobs.gpu_memory[row] for size in view.gpus.memory):
            expected.append(math.nan)
            continue
        ends.sort()
        start = ends[n - 1] if n <= len(ends) else math.inf
        if len(ends) < n <= len(view.gpus):
            ends[:] = math.inf  # waits for GPUs to come back, for who knows how long
        if n <= len(ends):
            ends[:n] = start + (math.inf if math.isnan(jobs.remaining[row]) else jobs.remaining[row])
        expected.append(start if math.isfinite(start) and start <= NOW + HORIZON else math.nan)
    assert estimate_starts(view, order).tolist() == pytest.approx(expected, nan_ok=True)

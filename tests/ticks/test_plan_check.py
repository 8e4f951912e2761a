"""Bad plans: each is refused with one line that names the job."""

from __future__ import annotations

import math

import numpy as np
import pytest
from stoker.engine.scheduling.plan_check import PlanError, check
from stoker.policies.contract import Allocation, Group, Plan, Reason, Waiting
from views import GIB, Job, make_view

VIEW = make_view(
    [4],
    [
        Job(1, held=(0,)),
        Job(2, gpus=2, gpus_max=3),
        Job(3, held=(3,), stopping=True),
        Job(4, memory=48 * GIB),
        Job(5),
    ],
    unusable=[0],
    memory=[80 * GIB, 24 * GIB, 80 * GIB, 80 * GIB],
)
BEHIND = Reason("behind", "waits its turn")


def plan(allocations=None, waiting=(), **rest):
    return Plan({job: Allocation(gpus) for job, gpus in (allocations or {}).items()}, waiting, **rest)


@pytest.mark.parametrize(
    "good",
    [
        plan({1: (0,), 2: (1, 2)}, [Waiting(BEHIND, [4]), Waiting(BEHIND, np.array([5]))], order=[5, 4]),
        plan({2: (1, 2, 3)}),  # 3 is held by a job that is stopping
        plan({2: (1, 2), 5: (1,)}, groups=[Group("packed", (2, 5))]),
        plan({2: [np.int64(1), np.int64(2)]}),
        Plan({5: Allocation((2,), lease_end=VIEW.now + 60)}, gap=0.1),
    ],
)
def test_good_plans_pass(good):
    check(good, VIEW)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (plan({99: (1,)}), "job 99: is allocated, but is not in the view"),
        (plan({3: (3,)}), "job 3: .* stopping"),
        (plan({2: (1,)}), "job 2: has 1 GPUs, it takes 2 to 3"),
        (plan({5: (1, 2)}), "job 5: has 2 GPUs, it takes 1"),
        (plan({5: ()}), "job 5: has 0 GPUs"),
        (plan({2: (1, 1)}), "job 2: has a GPU twice"),
        (plan({2: (1, 2), 5: (2,)}), "job 5: has GPU n0/g2, which job 2 has too"),
        (plan({5: (0,)}), "job 5: has GPU n0/g0, which is not usable"),
        (plan({4: (1,)}), "job 4: needs .* bytes on each GPU, n0/g1 has"),
        (plan({5: (4,)}), "job 5: has GPU row 4, the view has rows 0 to 3"),
        (plan({5: (-1,)}), "job 5: has GPU row -1"),
        (plan({5: (1.0,)}), "job 5: .* not rows"),
        (plan({5: 1}), "job 5: .* not rows"),
        (Plan({5: (1,)}), "job 5: a tuple is not an Allocation"),
        (Plan([(5, (1,))]), "a list is not a mapping"),
        (Plan({5: Allocation((1,), lease_end=VIEW.now)}), "job 5: its lease ends"),
        (Plan({5: Allocation((1,), lease_end=math.nan)}), "job 5: its lease ends"),
        (Plan({5: Allocation((1,), lease_end=math.inf)}), "job 5: its lease ends"),
        (plan(waiting=[Waiting(BEHIND, [99])]), "job 99: is waiting, but is not in the view"),
        (plan({5: (1,)}, [Waiting(BEHIND, [5])]), "job 5: is both allocated and waiting"),
        (plan(waiting=[Waiting(BEHIND, [4, 5]), Waiting(BEHIND, [5])]), "job 5: is waiting twice"),
        (plan(waiting=[Waiting(Reason("", "x"), [5])]), "a reason needs a code"),
        (plan(waiting=[Waiting(BEHIND, [5])], order=[5, 4]), "order: job 4"),
        (plan(waiting=[Waiting(BEHIND, [5])], order=[5, 5]), "order: names a job twice"),
        (plan(groups=[Group("packed", (2, 5))]), "job 2: is in a group"),
        (plan({2: (1, 2), 5: (1,)}, groups=[Group("merged", (2, 5))]), "groups: kind 'merged' is not known; 'packed' and 'switched' are"),
        (plan({2: (1, 2), 5: (1,)}, groups=[Group("switched", (2, 5))]), "job 2: is in a group .switched., but its submitter does not say"),
        (
            plan({2: (1, 2), 5: (1,)}, groups=[Group("packed", (2, 5)), Group("switched", (5,))]),
            "job 5: is in groups of two kinds, packed and switched",
        ),
        (plan({5.0: (1,)}), "allocations: 5.0 is not the id of a job"),
        (plan(waiting=[Waiting(BEHIND, ["5"])]), "waiting: '5' is not the id of a job"),
        (plan(gap=math.nan), "gap"),
    ],
)
def test_bad_plans_are_refused(bad, message):
    with pytest.raises(PlanError, match=message) as caught:
        check(bad, VIEW)
    assert "\n" not in str(caught.value)


def test_who_shares_already_may_go_on():
    view = make_view([1], [Job(1, held=(0,)), Job(2, held=(0,)), Job(3)])
    check(plan({1: (0,), 2: (0,)}), view)
    with pytest.raises(PlanError, match="job 3: has GPU n0/g0, which job 1 has too"):
        check(plan({1: (0,), 3: (0,)}, preempt=[2]), view)


def test_a_running_job_keeps_what_is_left_of_its_gang():
    check(plan({1: (0,)}), make_view([1], [Job(1, gpus=4, held=(0,))]))


def test_the_answer_is_plain_and_is_read_once():
    """What NumPy counts with cannot be bound by the store, and a generator is empty when it is read again."""
    allocations = {
        np.int64(2): Allocation((gpu for gpu in np.array([1, 2])), lease_end=np.float32(VIEW.now + 60)),
        np.int64(1): Allocation(np.array([0])),
    }
    waiting = (Waiting(BEHIND, (np.int64(job) for job in ids)) for ids in [(4,), (5,)])
    groups = [Group("packed", (np.int64(2), np.int64(1)))]
    answer = check(Plan(allocations, waiting, groups, gap=np.float64(0.5), order=np.array([5, 4])), VIEW)
    assert answer == Plan(
        {2: Allocation((1, 2), VIEW.now + 60), 1: Allocation((0,))},
        (Waiting(BEHIND, [4]), Waiting(BEHIND, [5])),
        (Group("packed", (2, 1)),),
        gap=0.5,
        order=[5, 4],
        preempt=frozenset(),
    )
    first = answer.allocations[2]
    assert {type(number) for number in (*answer.allocations, *first.gpus, *answer.order)} == {int}
    assert type(first.lease_end) is type(answer.gap) is float

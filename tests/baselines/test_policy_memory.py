"""What a policy keeps in mind goes out with its plan and comes back with the view: the object itself may vanish at any time."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Row, run, workload
from stoker.engine.scheduling.guards import PreemptionLimits
from stoker.engine.scheduling.plan_check import LARGEST_MEMORY, PlanError, check
from stoker.engine.sim.run_options import Costs
from stoker.policies import registry
from stoker.policies.contract import Demand, Memory, Plan, Policy, View
from stoker.policies.estimate.throughput import Profile, Throughput
from views import Job, make_view

CONCAVE = Profile("concave", Throughput([1, 2, 3, 4], [1.0, 1.8, 2.4, 2.8]))
SETTINGS = {
    "optimus": {"round": 40.0},
    "pollux": {"round": 40.0},
    "elasticflow": {"round": 40.0},
    "unisched": {"be_lease": 30.0},
    "chronus": {"be_lease": 30.0},
}


class Forgetful:
    """The same policy, made anew for each decision."""

    Config: ClassVar[type] = object

    def __init__(self, name: str, config: dict[str, Any]) -> None:
        self._make = lambda: registry.create(name, config)
        self.name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._make(), name)

    def plan(self, view: View) -> Plan:
        return self._make().plan(view)


jobs_of_a_day = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 400), st.sampled_from([1, 1, 1, 2, 4])), min_size=2, max_size=14)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(registry.POLICIES))
@given(rows=jobs_of_a_day, due=st.lists(st.integers(20, 900), min_size=14, max_size=14), guarded=st.booleans())
@settings(max_examples=10)
@pytest.mark.sampled(4)
def test_a_policy_that_is_made_anew_for_each_decision_decides_the_same(name: str, rows: list[Row], due: list[int], guarded: bool) -> None:
    rows = sorted(rows)
    asks = [after % 3 == 0 for after in due[: len(rows)]]
    jobs = workload(
        rows,
        gpus_max=[min(2 * gpus, 4) for _, _, gpus in rows],
        models=["concave"] * len(rows),
        profiles=[CONCAVE],
        demand=[Demand.STRICT if one else Demand.BEST_EFFORT for one in asks],
        tiers=[[(row[0] + after, 100.0)] if one else [] for row, after, one in zip(rows, due, asks, strict=False)],
    )
    options: dict[str, Any] = {"costs": Costs(suspend=2.0, resume=3.0), "limits": PreemptionLimits(min_run_time=20.0)} if guarded else {}
    kept, made_anew = (run(jobs, policy, "2x4", **options).fates for policy in policies(name))
    for field in dataclasses.fields(kept):
        np.testing.assert_array_equal(getattr(kept, field.name), getattr(made_anew, field.name), err_msg=field.name)


def policies(name: str) -> tuple[Policy, Policy]:
    config = SETTINGS.get(name, {})
    return registry.create(name, config), Forgetful(name, config)


@pytest.mark.parametrize(
    ("memory", "why"),
    [
        ([1, 2], "memory: a list is not an object of JSON"),
        ({"at": math.inf}, "memory: cannot be kept as JSON"),
        ({"who": {1, 2}}, "memory: cannot be kept as JSON"),
        ({"all": "x" * LARGEST_MEMORY}, "characters of JSON"),
    ],
    ids=["list", "inf", "set", "size"],
)
def test_what_cannot_be_kept_is_refused(memory: Any, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        check(Plan({}, memory=memory), make_view([1], []))


def test_memory_is_what_json_gives_back() -> None:
    memory: Memory = {"gangs": {3: (0, 1)}}
    assert check(Plan({}, memory=memory), make_view([1], [Job(1)])).memory == {"gangs": {"3": [0, 1]}}

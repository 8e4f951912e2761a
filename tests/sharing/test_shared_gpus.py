"""Several leases on a GPU: from the plan to the tables, the runner's assignment and what people see; and what is learnt of jobs there."""

from __future__ import annotations

import json
import math
import time
import typing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from one_runner import Host, spec
from stoker.engine.estimation.estimating import Estimating
from stoker.engine.forecast.explain import explain
from stoker.engine.jobs import leases
from stoker.engine.jobs.leases import Grant
from stoker.engine.json_rows import objects
from stoker.engine.protocol import Assignment, Record, Records, Sample, Speed
from stoker.engine.scheduling import guards
from stoker.engine.scheduling.enact import Decision, Enactment, enact
from stoker.engine.scheduling.view import snapshot
from stoker.engine.spec.model import JobSpec, Share
from stoker.engine.store.store import Store
from stoker.policies import contract
from stoker.policies.baselines.lucid import Lucid
from stoker.policies.contract import PACKED, Allocation, Group

NOTHING = Decision("default", "test", 0, 0.0, 0.0, 1, 0, "ok", None, 0.0, 0.0, 0.0, "applied")
ON_0 = Allocation((0,))


@pytest.fixture
def host(store: Store) -> Host:
    return Host(store)


def packed(*jobs: int) -> list[Group]:
    return [Group(PACKED, jobs)]


def test_two_jobs_on_one_gpu_stand_in_every_place_where_people_look(host: Host) -> None:
    host.submit("left"), host.submit("right"), host.submit("alone")
    assert host.tick({1: ON_0, 2: ON_0, 3: Allocation((1,))}, groups=packed(1, 2)) == "applied"
    host.runs(1, 2, 3)
    assert host.shares() == [(1, "n1/cpu0", "packed"), (2, "n1/cpu0", "packed"), (3, "n1/cpu1", "exclusive")]
    assert host.assigned() == {1: (["n1/cpu0"], "packed"), 2: (["n1/cpu0"], "packed"), 3: (["n1/cpu1"], "exclusive")}
    assert host.rows("SELECT id, job_id, share, shared_with FROM gpus_now ORDER BY id") == [
        ("n1/cpu0", 1, "packed", "2 right"), ("n1/cpu1", 3, "exclusive", None)
    ]  # fmt: skip
    assert host.rows("SELECT gpus, busy FROM pools_now") == [(2, 2)]
    ((plan,),) = host.rows("SELECT plan FROM decisions")
    assert [start.get("share") for start in json.loads(plan)["starts"]] == ["packed", "packed", None]
    told = explain(host.store, 2)
    assert [(one["job"], one["name"], one["gpus"]) for one in told["shared_with"]] == [(1, "left", 1)]
    assert told["summary"].endswith("; shares its GPUs with job 1 (left)")
    assert host.rows("SELECT id, shared_with FROM jobs_now ORDER BY id") == [(1, "2 right"), (2, "1 left"), (3, None)]
    assert explain(host.store, 3)["shared_with"] == [] and "shares" not in explain(host.store, 3)["summary"]


def test_a_job_joins_one_that_runs_and_the_pair_says_so(host: Host) -> None:
    host.submit("first"), host.submit("second")
    host.tick({1: ON_0})
    host.runs(1)
    assert host.shares() == [(1, "n1/cpu0", "exclusive")]
    assert host.tick({1: ON_0, 2: ON_0}, groups=packed(1, 2)) == "applied"
    assert host.shares() == [(1, "n1/cpu0", "packed"), (2, "n1/cpu0", "packed")]
    assert host.rows("SELECT job_id, after FROM events WHERE kind = 'lease.share'") == [(1, "packed")]
    host.ends(1)
    host.runs(2)
    assert host.shares() == [(2, "n1/cpu0", "packed")], "the other one goes on"
    told = [[(lease["share"], lease["beside"]) for lease in objects(host.store, "api/leases", job)] for job in (1, 2)]
    assert told == [[("packed", [2])], [("packed", [1])]], "their histories tell it"


def test_memory_that_does_not_fit_waits_with_that_reason(store: Store) -> None:
    host = Host(store, memory=4 << 30)
    host.submit("large", gpu_memory=3 << 30), host.submit("small", gpu_memory=2 << 30), host.submit("tiny", gpu_memory=1 << 30)
    host.tick({1: ON_0})
    host.tick({1: ON_0, 2: ON_0}, groups=packed(1, 2))
    why = "waits for memory of GPU n1/cpu0: it would take 5 GiB with job 1, of 4 GiB"
    assert host.rows("SELECT reason FROM waiting WHERE job_id = 2") == [(why,)]
    assert host.shares() == [(1, "n1/cpu0", "exclusive")], "nobody has come beside it"
    host.tick({1: ON_0, 3: ON_0}, groups=packed(1, 3))
    assert host.shares() == [(1, "n1/cpu0", "packed"), (3, "n1/cpu0", "packed")]
    # Decided on a view from before: the room is looked at again when the plan is carried out.
    slot = (("n1/cpu0", "n1"),)
    late = host.store.write(enact, Enactment(NOTHING, grants=[Grant(2, slot, None, share=PACKED, memory=2 << 30)]))
    assert late.skipped == {2: "waits for memory of GPU n1/cpu0, which those who share it have taken"}
    alone = host.store.write(enact, Enactment(NOTHING, grants=[Grant(2, slot, None)]))
    assert alone.skipped == {2: "its GPUs are no longer free"}


def test_a_job_that_can_share_with_nobody_is_told_so(store: Store) -> None:
    host = Host(store, memory=4 << 30, nodes=2)
    wish = Share(gpu="packed")
    host.submit("gang", gpus_min=3, gpus_max=3, share=wish), host.submit("whole", share=Share(gpu="packed", memory=4 << 30))
    host.submit("half", gpu_memory=2 << 30, share=wish), host.submit("silent", gpu_memory=4 << 30)
    told = [explain(store, job)["summary"].partition("; ")[2] for job in (1, 2, 3, 4)]
    assert told == [
        "shares with nobody, as gangs over several nodes do not, and no node of the pool has 3 GPUs",
        "shares with nobody, as it takes 4.0 GiB of a GPU and the largest of the pool has 4.0 GiB", "", "",
    ]  # fmt: skip


def test_a_job_that_is_to_be_alone_is_told_that_others_share(host: Host) -> None:
    host.submit("left"), host.submit("right"), host.submit("closed", share=Share(gpu="exclusive"))
    assert "joins" not in explain(host.store, 3)["summary"]
    host.tick({1: ON_0, 2: ON_0}, groups=packed(1, 2))
    assert explain(host.store, 3)["summary"].endswith("; joins nobody on the GPU that others share (share: exclusive)")
    host.tick({3: Allocation((1,))})
    assert "joins" not in explain(host.store, 3)["summary"]


def test_one_of_a_pair_alone_is_named_by_a_plan(host: Host) -> None:
    """A policy that takes over from one that packs names whom it keeps, with or without the other; nobody may come beside them."""
    host.submit("left"), host.submit("right"), host.submit("late")
    host.tick({1: ON_0, 2: ON_0}, groups=packed(1, 2))
    host.runs(1, 2)
    assert host.tick({1: ON_0}) == "applied" and host.tick({1: ON_0, 2: ON_0}) == "applied"
    assert host.tick({1: ON_0, 3: ON_0}, groups=packed(1, 3)) == "invalid"
    assert host.rows("SELECT error FROM decisions ORDER BY id DESC LIMIT 1") == [("job 3: has GPU n1/cpu0, which job 2 has too",)]
    assert host.shares() == [(1, "n1/cpu0", "packed"), (2, "n1/cpu0", "packed")]
    assert host.tick({3: ON_0}, preempt=[1, 2]) == "applied", "both make way"
    assert host.rows("SELECT job_id, stop_reason FROM leases WHERE stop_reason IS NOT NULL ORDER BY 1") == [
        (1, "preempted"), (2, "preempted")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("allocations", "groups", "why"),
    [
        ({1: ON_0, 2: ON_0}, [], "job 2: has GPU n1/cpu0, which job 1 has too"),
        ({1: ON_0}, packed(1, 2), "job 2: is in a group (packed), but is not allocated"),
        ({1: ON_0, 2: ON_0}, [Group("merged", (1, 2))], "groups: kind 'merged' is not known"),
    ],
)
def test_a_plan_that_cannot_be_shared_changes_nothing(
    host: Host, allocations: dict[int, Allocation], groups: list[Group], why: str
) -> None:
    host.submit("left"), host.submit("right")
    assert host.tick(allocations, groups=groups) == "invalid"
    assert host.rows("SELECT error FROM decisions")[0][0].startswith(why) and host.shares() == []


def test_what_is_said_of_shares_has_the_same_names_from_the_wish_to_the_runner() -> None:
    kinds = {contract.EXCLUSIVE, *contract.KINDS}
    assert {leases.EXCLUSIVE, *leases.REASONS} == kinds == set(typing.get_args(typing.get_type_hints(Share)["gpu"]))
    asked = Assignment(lease=1, job=1, attempt=1, spec={}, gpus=[], world_size=1)
    started = guards.Start(1, (), None)
    assert {asked.share, started.share, Grant(1, (), None).share} == {contract.EXCLUSIVE}, "what nobody has said"
    assert started.memory == Grant(1, (), None).memory == 0
    assert "share" in JobSpec.__struct_fields__ and "share" in contract.Jobs.__slots__


def test_gangs_over_several_nodes_and_profiling_runs_are_in_no_group(store: Store) -> None:
    host = Host(store, nodes=2)
    for name in ("left", "right"):
        host.submit(name, gpus_min=2, gpus_max=2)
    spread = Allocation((0, 2))
    assert host.tick({1: spread, 2: spread}, groups=packed(1, 2)) == "invalid"
    large = [host.submit(name, gpus_min=4, gpus_max=4) for name in ("large", "larger")]
    profiled = Allocation((0, 1), time.time() + 60.0, profile=True)
    assert host.tick({large[0]: profiled, 1: Allocation((0, 1))}, groups=packed(large[0], 1)) == "invalid"
    assert [error for (error,) in host.rows("SELECT error FROM decisions ORDER BY id")] == [
        "job 1: is in a group (packed), but its GPUs are on several nodes; those are never shared",
        f"job {large[0]}: is in a group (packed), but is in a profiling run, which is never shared",
    ]


def test_a_job_that_asks_to_be_alone_is_in_no_group(host: Host) -> None:
    host.submit("open"), host.submit("closed", share=Share(gpu="exclusive"))
    assert host.tick({1: ON_0, 2: ON_0}, groups=packed(1, 2)) == "invalid"
    why = "job 2: is in a group (packed), but its submitter says share: exclusive"
    assert host.rows("SELECT error FROM decisions") == [(why,)]


def test_beside_others_nothing_is_learnt_of_a_job_and_alone_its_use_of_the_gpu_is(host: Host) -> None:
    for name in ("alone", "left", "right"):
        host.submit(name)
    host.tick({1: ON_0, 2: Allocation((1,)), 3: Allocation((1,))}, groups=packed(2, 3))
    host.runs(1, 2, 3)
    speed = Speed(compute=0.5, steps=10, memory=1 << 20)
    host.report(records=[Records(lease=host.lease(job), rank=0, records=[Record(seq=1, ts=time.time(), step=100, values={}, speed=speed)])
                         for job in (1, 2, 3)])  # fmt: skip
    now = time.time()
    for busy in (0.1, 0.2, 0.9):
        now += 1.0
        host.report(samples=[Sample(ts=now, gpu=f"n1/cpu{slot}", lease=host.lease(job), utilisation=busy)
                             for job, slot in ((1, 0), (2, 1), (3, 1))])  # fmt: skip
    Estimating(host.store, lambda found: None, lambda: now).look()
    assert host.rows("SELECT model, utilisation FROM speeds") == [("toy/alone", 0.2)]
    with host.store.read() as con:
        view = snapshot(con, "default", now).view
    assert view.jobs.profile is not None
    known = view.profiles[view.jobs.profile[view.jobs.id.tolist().index(1)]]
    assert (known.utilisation, known.memory) == (0.2, 0.0), "a slot without memory of its own: all jobs fit"
    for job in (1, 2, 3):
        host.ends(job)
    assert host.rows("SELECT DISTINCT model FROM profiles WHERE samples > 0") == [("toy/alone",)]


def test_memory_of_a_slot_is_what_jobs_were_seen_to_take_alone(store: Store) -> None:
    host = Host(store, memory=4 << 30)
    host.submit("alone"), host.submit("left"), host.submit("right")
    host.tick({1: ON_0, 2: Allocation((1,)), 3: Allocation((1,))}, groups=packed(2, 3))
    host.runs(1, 2, 3)
    now = time.time()
    timed(host, 1, 0.5, at=1.0)
    for taken in (1, 3, 2):
        now += 1.0
        host.report(samples=[Sample(ts=now, gpu=f"n1/cpu{slot}", lease=host.lease(job), utilisation=0.5, memory_used=taken << 29)
                             for job, slot in ((1, 0), (2, 1), (3, 1))])  # fmt: skip
    Estimating(host.store, lambda found: None, lambda: now).look()
    assert host.rows("SELECT model, peak_memory FROM speeds") == [("toy/alone", 3 << 29)]
    with host.store.read() as con:
        view = snapshot(con, "default", now).view
    assert view.jobs.profile is not None
    row = view.jobs.id.tolist().index(1)
    assert view.profiles[view.jobs.profile[row]].memory == 0.375 and view.jobs.gpu_memory[row] == 3 << 29


def timed(host: Host, job: int, seconds: float, *, at: float, steps: int = 10) -> None:
    """A job reports that each of its last steps took so long, the last one ``at`` seconds from now."""
    seq = int(host.rows(f"SELECT coalesce(max(seq), 0) FROM report_marks WHERE lease_id = {host.lease(job)}")[0][0]) + 1
    speed = Speed(compute=seconds, steps=steps)
    record = Record(seq=seq, ts=time.time() + at, step=100, values={}, speed=speed)
    host.report(records=[Records(lease=host.lease(job), rank=0, records=[record])])


SLOWDOWNS = "SELECT model, beside, gpu_name, slowdown, samples FROM slowdowns WHERE kind = 'packed' ORDER BY model"


def test_how_two_models_slow_each_other_is_measured_of_the_pair(host: Host) -> None:
    for name in ("left", "right", "third"):
        host.submit(name)
    host.tick({1: ON_0, 2: Allocation((1,))})
    host.runs(1, 2)
    timed(host, 1, 0.5, at=10.0), timed(host, 2, 1.0, at=10.0)
    for job in (1, 2):
        host.ends(job)
    left, right = host.submit("left"), host.submit("right")
    host.tick({left: ON_0, right: ON_0}, groups=packed(left, right))
    host.runs(left, right)
    timed(host, left, 5.0, at=10.0)  # began 40 s before the other was there
    assert host.rows(SLOWDOWNS) == []
    timed(host, left, 1.0, at=20.0), timed(host, right, 1.2, at=20.0), timed(host, left, 0.8, at=30.0)
    assert host.rows(SLOWDOWNS) == [
        ("toy/left", "toy/right", "cpu", pytest.approx(1.8), 2), ("toy/right", "toy/left", "cpu", pytest.approx(1.2), 1)
    ]  # fmt: skip
    assert host.rows("SELECT model, compute FROM speeds ORDER BY model") == [("toy/left", 0.5), ("toy/right", 1.0)]
    with host.store.read() as con:
        view = snapshot(con, "default", time.time()).view
    assert view.jobs.profile is not None and view.slowdowns is not None
    rows = [view.profiles[row].name for row in view.jobs.profile[[view.jobs.id.tolist().index(job) for job in (left, right)]]]
    assert rows == ["toy/left on 1", "toy/right on 1"]
    first, second = (view.jobs.profile[view.jobs.id.tolist().index(job)] for job in (left, right))
    assert (view.slowdowns[first, second], view.slowdowns[second, first]) == (pytest.approx(1.8), pytest.approx(1.2))
    assert math.isnan(view.slowdowns[first, first])
    host.tick({left: ON_0, right: ON_0, 3: ON_0}, groups=packed(left, right, 3))
    timed(host, left, 2.0, at=40.0)
    assert host.rows(SLOWDOWNS)[0][4] == 2, "beside two others nothing is measured of either"


def test_lucid_packs_live_who_was_measured_to_fit(host: Host) -> None:
    for name in ("light", "lighter", "heavy"):
        host.submit(name, estimate=600.0)
    host.submit("closed", estimate=600.0, share=Share(gpu="exclusive"))
    host.store.write(learnt, {"light": 0.2, "lighter": 0.3, "heavy": 0.9, "closed": 0.1})
    host.scheduling._pools["default"].policy = Lucid(Lucid.Config(profiler_capacity=0, pack_knob=1))
    taken = host.submit("taken")
    host.store.write(enact, Enactment(NOTHING, grants=[Grant(taken, (("n1/cpu1", "n1"),), None)]))
    host.scheduling.tick("default")
    assert host.shares() == [(1, "n1/cpu0", "packed"), (2, "n1/cpu0", "packed"), (taken, "n1/cpu1", "exclusive")]
    assert host.rows("SELECT job_id FROM waiting") == [(3,), (4,)], "who keeps a GPU busy, or asks to be alone, shares it with nobody"


def learnt(tx, batch):  # type: ignore[no-untyped-def]
    """How busy jobs keep a slot, as if it had been measured."""
    for found in batch:
        measured = {"gpu_name": "cpu", "model": "toy", "gang": 1, "compute": 0.5, "samples": 1, "updated_at": tx.now}
        tx.upsert("speeds", ["signature", "gpu_name"], [
            {**measured, "signature": spec(name).signature, "utilisation": busy} for name, busy in found.items()])  # fmt: skip
    return [None for _ in batch]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=6))
def test_time_on_a_shared_gpu_is_divided_and_adds_up_to_the_time_of_the_gpu(store: Store, stays: list[tuple[int, int]]) -> None:
    """Any leases on one GPU: what they had adds up to the time in which anybody was there."""
    if not store.rows("store/job_states", [1]):
        Host(store).submit("any")
    with store.read() as con:
        base = float(con.execute("SELECT epoch(make_timestamp(epoch_us(now())))").fetchall()[0][0]) - 1000.0
    rows = [(number, base + begin, base + begin + length) for number, (begin, length) in enumerate(stays, 1)]
    store.write(stayed, rows)
    with store.read() as con:
        found = con.execute("SELECT lease_id, gpu_seconds FROM gpu_time ORDER BY lease_id").fetchall()
    there = {second for begin, length in stays for second in range(begin, begin + length)}
    users = {second: sum(begin <= second < begin + length for begin, length in stays) for second in there}
    expected = [sum(1 / users[second] for second in range(begin, begin + length)) for begin, length in stays]
    assert [had for _, had in found] == pytest.approx(expected, abs=1e-3)
    assert sum(had for _, had in found) == pytest.approx(len(there), abs=1e-3)


def stayed(tx, batch):  # type: ignore[no-untyped-def]
    """Leases that have ended, of one GPU and one job each, in place of those of the example before."""
    for rows in batch:
        tx.delete("leases", "job_id", [1])
        tx.delete("lease_gpus", "gpu_id", ["g"])
        tx.insert("leases", [
            {"id": number, "job_id": 1, "attempt": 1, "gpu_count": 1, "state": "ended", "granted_at": begin, "started_at": begin,
             "ended_at": end, "policy": "t", "share": "packed"} for number, begin, end in rows])  # fmt: skip
        tx.insert("lease_gpus", [{"lease_id": number, "gpu_id": "g", "node_id": "n"} for number, _, _ in rows])
    return [None for _ in batch]

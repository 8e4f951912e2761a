"""A plan on its way into the store: what the policy's numbers are made of, and whose error it is when it can't be carried out."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from stoker.engine.config import Config, Guards, PolicyDefault
from stoker.engine.errors import StokerError
from stoker.engine.fleet import registration as runners
from stoker.engine.jobs.submission import SubmitRequest, submit
from stoker.engine.protocol import VERSION, GpuInfo, Hello
from stoker.engine.scheduling import ticks as module
from stoker.engine.scheduling.policy_settings import PolicySetting, set_policy
from stoker.engine.scheduling.ticks import Scheduling
from stoker.engine.spec.model import JobSpec, Provenance, Submission
from stoker.engine.tasks import Tasks
from stoker.policies.contract import Allocation, Phase, Plan, Reason, Waiting
from stoker.policies.own import Loaded


class Numpy:
    """Answers in numbers of NumPy's and in generators: the first job starts, the others wait."""

    def plan(self, view):
        first, *others = view.jobs.id
        gpus = (gpu for gpu in np.flatnonzero(view.gpus.usable)[:1])
        waiting = (Waiting(Reason("later", "is not the first"), (job for job in others)) for _ in range(1))
        return Plan({first: Allocation(gpus, np.float64(view.now + 600))}, waiting, gap=np.float32(0.5))


@pytest.fixture
def scheduling(store):
    gpus = [GpuInfo(id=f"n1/cpu{i}", index=i, kind="cpu", name="cpu") for i in range(2)]
    hello = Hello(protocol=VERSION, version="t", node="n1", host="h", boot_id="b", pid=1, pid_started=1.0, home="/h", address="localhost",
                  pool="default", gpus=gpus, leases=[])  # fmt: skip
    store.write(runners.hello, hello)
    made = Scheduling(store, Tasks(lambda *_: None), Config(policy=PolicyDefault("fifo"), guards=Guards(min_run_time=0.0)))
    made.reload()
    jobs = [JobSpec(name=name, recipe="toy") for name in ("a", "b")]
    store.write(submit, SubmitRequest(Submission(jobs=jobs, provenance=Provenance(argv=[], cwd="/")), "ann"))
    return made


def rows(store, sql):
    with store.read() as con:
        return con.execute(sql).fetchall()


def test_a_plan_in_numpys_numbers_is_carried_out(store, scheduling, monkeypatch):
    monkeypatch.setattr(module, "_create", lambda setting: Numpy())
    scheduling._pools["default"].policy = Numpy()
    assert scheduling.foresee([JobSpec(name="c", recipe="toy")])[0][1] == "is not the first"
    scheduling.tick("default")
    assert rows(store, "SELECT outcome, gap, error FROM decisions") == [("applied", 0.5, None)]
    assert rows(store, "SELECT state FROM jobs ORDER BY id") == [("assigned",), ("pending",)]
    assert rows(store, "SELECT job_id, code FROM waiting") == [(2, "later")]


def test_what_goes_wrong_on_the_way_is_the_policys_error(store, scheduling, monkeypatch):
    def fails(*_):
        raise TypeError("cannot be reconciled")

    monkeypatch.setattr(module, "reconcile", fails)
    scheduling.tick("default")
    assert rows(store, "SELECT outcome, error FROM decisions") == [
        ("error", 'TypeError: cannot be reconciled (test_plan_enactment.py, line 63: raise TypeError("cannot be reconciled"))')
    ]
    assert rows(store, "SELECT count(*) FROM leases") == [(0,)]


def test_an_error_of_the_store_is_not_the_policys(store, scheduling, monkeypatch):
    def full(*_):
        raise StokerError("the disk is full")

    monkeypatch.setattr(store, "write", full)
    with pytest.raises(StokerError, match="disk is full"):
        scheduling.tick("default")


class Counts:
    """Keeps in mind how often it was asked, up to ``most``, and tells it as the reason to wait."""

    def __init__(self, most: int) -> None:
        self.most = most

    def plan(self, view):
        asked = min((view.memory or {"asked": 0})["asked"] + 1, self.most)
        return Plan({}, [Waiting(Reason("counts", f"asked {asked}"), view.jobs.id)], memory={"asked": asked})


def test_what_a_policy_keeps_in_mind_outlives_the_daemon(store, scheduling, monkeypatch):
    monkeypatch.setattr(module, "_create", lambda setting: Counts(3))

    def restarted():
        made = Scheduling(store, Tasks(lambda *_: None), Config(policy=PolicyDefault("fifo")))
        made.reload()
        return made

    for _ in range(3):
        restarted().tick("default")
    assert {reason for (reason,) in rows(store, "SELECT reason FROM waiting")} == {"asked 3"}
    daemon = restarted()
    assert daemon.foresee([JobSpec(name="c", recipe="toy")])[0][1] == "asked 3", "a dry run asks with the same memory"
    assert daemon.rules("default").memory == {"asked": 3}, "and so does a forecast"
    before = len(rows(store, "SELECT 1 FROM decisions"))
    for _ in range(5):
        daemon.tick("default")
    assert len(rows(store, "SELECT 1 FROM decisions")) <= before + 1, "ticks that decide the same, with the same memory, share a row"
    assert rows(store, "SELECT memory FROM decisions WHERE memory IS NOT NULL ORDER BY id") == [(f'{{"asked": {n}}}',) for n in (1, 2, 3)]


def test_another_policy_does_not_get_the_memory_of_the_one_before(store, scheduling, monkeypatch):
    monkeypatch.setattr(module, "_create", lambda setting: Counts(9))
    made = Scheduling(store, Tasks(lambda *_: None), Config(policy=PolicyDefault("fifo")))
    made.reload()
    made.tick("default")
    store.write(set_policy, PolicySetting("default", "srtf", 5.0, {}, "ann"))
    made.reload()
    assert made.rules("default").memory is None
    made.tick("default")
    assert {reason for (reason,) in rows(store, "SELECT reason FROM waiting")} == {"asked 1"}


class _Sets:
    """A pool whose policies count how often they were asked, with their own code or Stoker's."""

    def __init__(self, store, monkeypatch):
        self.store, self.codes = store, {}
        jobs = [JobSpec(name="c", recipe="toy")]
        store.write(submit, SubmitRequest(Submission(jobs=jobs, provenance=Provenance(argv=[], cwd="/")), "ann"))
        monkeypatch.setattr(module, "_create", lambda setting: Counts(9))
        monkeypatch.setattr(module, "_load", lambda pool, policy: Loaded(Counts, self.codes.get(policy, "")))
        self.restart()

    def restart(self):
        self.made = Scheduling(self.store, Tasks(lambda *_: None), Config(policy=PolicyDefault("fifo")))
        self.made.reload()

    def set(self, policy, code=""):
        self.codes[policy] = code
        self.store.write(set_policy, PolicySetting("default", policy, 5.0, {}, "ann", code))
        self.made.reload()

    def asked(self):
        self.made.tick("default")
        ((reason,),) = set(rows(self.store, "SELECT reason FROM waiting"))
        return int(reason.removeprefix("asked "))


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ([("fifo", "")], [2]),  # it is the default too
        ([("srtf", ""), ("srtf", ""), ("srtf", "")], [1, 2, 3]),
        ([("srtf", ""), ("fifo", ""), ("srtf", "")], [1, 1, 1]),
        ([("mine:P", "a"), ("mine:P", "a"), ("mine:P", "b"), ("mine:P", "b"), ("mine:P", "a")], [1, 2, 1, 2, 1]),
    ],
)
@pytest.mark.sampled(2)
def test_the_same_policy_with_another_configuration_goes_on_with_what_it_kept(store, monkeypatch, settings, asked, restarts):
    pool, seen = _Sets(store, monkeypatch), []
    assert pool.asked() == 1
    for policy, code in settings:
        pool.set(policy, code)
        assert (pool.made.rules("default").memory or {"asked": 0})["asked"] + 1 == asked[len(seen)], "a forecast goes on with it too"
        if restarts:
            pool.restart()
        seen.append(pool.asked())
    assert seen == asked


def test_a_setting_that_was_replaced_before_its_first_tick_has_been_in_between_all_the_same(store, monkeypatch):
    pool = _Sets(store, monkeypatch)
    pool.set("srtf")
    assert [pool.asked(), pool.asked()] == [1, 2]
    pool.set("fifo")
    pool.set("srtf")
    assert pool.asked() == 1
    pool.set("srtf")
    pool.set("srtf")
    assert pool.asked() == 2


def test_a_policy_that_is_set_again_is_tried_with_what_it_kept(store, monkeypatch):
    pool = _Sets(store, monkeypatch)
    pool.set("mine:P", "a")
    pool.asked()
    seen = []

    class Tells(Counts):
        def plan(self, view):
            seen.append(view.memory)
            return super().plan(view)

    for name, code in (("mine:P", "a"), ("mine:P", "b"), ("fifo", "")):
        assert pool.made.would_fail("default", Tells(9), name, code) is None
    assert seen == [{"asked": 1}, None, None]


class Leases:
    """Gives each job a GPU for a day, once, and renews nothing."""

    def plan(self, view):
        waits = view.jobs.id[view.jobs.phase == Phase.PENDING]
        return Plan({int(job): Allocation((gpu,), lease_end=view.now + 86400) for gpu, job in enumerate(waits)})


def test_the_ends_of_leases_stay_when_the_same_policy_is_set_again(store, scheduling, monkeypatch):
    monkeypatch.setattr(module, "_create", lambda setting: Leases())
    ends = "SELECT expires_at IS NOT NULL FROM leases"
    for policy in ("srtf", "srtf", "fifo"):
        store.write(set_policy, PolicySetting("default", policy, 5.0, {}, "ann"))
        scheduling.reload()
        scheduling.tick("default")
        assert set(rows(store, ends)) == {(policy == "srtf",)}


def test_the_newest_memory_outlives_the_retention_of_decisions(store, scheduling, monkeypatch):
    monkeypatch.setattr(module, "_create", lambda setting: Counts(2))
    scheduling._pools["default"].policy = Counts(2)
    scheduling.tick("default")
    scheduling.tick("default")
    store.write(submit, SubmitRequest(Submission(jobs=[JobSpec(name="c", recipe="toy")], provenance=Provenance(argv=[], cwd="/")), "ann"))
    scheduling.tick("default")
    store.write(thin_out, None)
    assert rows(store, "SELECT memory FROM decisions WHERE memory IS NOT NULL") == [('{"asked": 2}',)]


def thin_out(tx, batch):
    return [tx.purge("thin_decisions", tx.now + 1000.0) for _ in batch]


#: Of each field of a plan: what the daemon does with it, and where that is shown; or a plan that it refuses, as it does nothing with it.
ENACTED = {
    "allocations": "leases: this file",
    "waiting": "the table waiting: this file",
    "status": "decisions.status: test_unisched_live.py",
    "gap": "decisions.gap: this file",
    "order": "places in the queue: test_outlook.py",
    "preempt": "stops: test_plan_guards.py",
    "wake_at": "the next tick: test_lease_clock.py",
    "groups": "leases.share: sharing/test_shared_gpus.py",
    "rejected": "the reason to wait: test_policies_elastic.py",
    "memory": "decisions.memory: this file",
    "warm": "pools of warm GPUs: on_the_host/test_warm_pools.py",
    "Allocation.gpus": "leases: this file",
    "Allocation.lease_end": "leases.expires_at: test_lease_clock.py",
    "Allocation.profile": "leases.profile: test_profiling_live.py",
    "Allocation.begin_from": "leases.options: test_weights_of_jobs.py",
    "Allocation.joint": "leases.options: beginnings/test_joint_leases.py",
}
REFUSED = {
    "Allocation.batch_size": (Plan({1: Allocation((0,), batch_size=64)}), "job 1: is to train with a batch of 64"),
}


def test_each_field_of_a_plan_is_enacted_or_refused():
    fields = {field.name for field in dataclasses.fields(Plan)} | {f"Allocation.{field.name}" for field in dataclasses.fields(Allocation)}
    assert fields == ENACTED.keys() | REFUSED.keys() and not ENACTED.keys() & REFUSED.keys()


@pytest.mark.parametrize("field", REFUSED)
def test_what_the_daemon_does_not_do_is_refused(store, scheduling, field):
    plan, why = REFUSED[field]
    scheduling._pools["default"].policy = Says(plan)
    scheduling.tick("default")
    ((outcome, error),) = rows(store, "SELECT outcome, error FROM decisions")
    assert outcome == "invalid" and error.startswith(why)
    assert rows(store, "SELECT count(*) FROM leases") == [(0,)]


class Says:
    def __init__(self, plan):
        self.answer = plan

    def plan(self, view):
        return self.answer

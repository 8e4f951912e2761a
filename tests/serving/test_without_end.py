"""A job of kind infer has no end: what assumes one leaves it out, is refused, or says so. Without processes."""

from __future__ import annotations

import dataclasses
import math
import time

import numpy as np
import pytest
from one_runner import Host
from stoker.engine.api.jobs.model_requests import _server
from stoker.engine.errors import Conflict, NotFound, StokerError, UsageError
from stoker.engine.forecast.explain import explain
from stoker.engine.forecast.ongoing import drained
from stoker.engine.forecast.work_draws import ENDLESS, DurationDraws, Finished, Known
from stoker.engine.jobs.control import Control, control
from stoker.engine.jobs.outcomes import End, judge
from stoker.engine.jobs.submission import SubmitRequest, submit
from stoker.engine.protocol import Record, Records, WorkerUpdate
from stoker.engine.scheduling.guards import Evictions
from stoker.engine.scheduling.view import snapshot
from stoker.engine.sim.run_options import Options
from stoker.engine.sim.workload import make_workload
from stoker.engine.spec.check import problems
from stoker.engine.spec.model import Demand, Dependency, JobSpec, Provenance, Retries, Stop, Submission, Tier
from stoker.policies import registry
from stoker.policies.contract import Allocation
from views import Job, World, make_view


def spec(**fields):
    return JobSpec(**({"name": "tagger", "kind": "infer", "recipe": "toy"} | fields))


@pytest.fixture
def host(store):
    return Host(store)


def server(host, name="tagger", **fields):
    """Submitted as a person would: no stop rule."""
    asked = spec(name=name, **fields)
    return host.store.write(submit, SubmitRequest(Submission(jobs=[asked], provenance=Provenance(argv=[], cwd="/")), "ann"))[0]["id"]


# ---- what is refused ----


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"stop": Stop(iterations=5)}, [("stop", "a server has no end: it lives until it is cancelled; remove it")]),
        ({"estimate": 60.0}, [("estimate", "a server has no end: it lives until it is cancelled; remove it")]),
        ({"demand": Demand("strict", (Tier(4e9 / 2),))}, [("deadline", "a server has no end: it lives until it is cancelled; remove it")]),
        ({"gpus_min": 2, "gpus_max": 2}, [("gpus", "a server has one GPU; leave it out, and for several servers submit an array")]),
        ({"recipe": None, "command": ("python", "serve.py")},
         [("kind", "infer is for a recipe or an entrypoint whose task answers; give a command that serves the kind train")]),
        ({"cron": "0 3 * * *"}, [("cron", "a server that never ends cannot recur; submit it once")]),
        ({"array_index": 0, "array_size": 2, "array_cap": 1, "name": "tagger[0]"},
         [("array.max_running", "servers do not end, so those beyond it would never start; remove it")]),
        ({"array_index": 0, "array_size": 2, "name": "tagger[0]"}, []),
        ({"timeout": 60.0, "retries": Retries(2), "hang_after": 30.0, "grace": 5.0, "hold": True}, []),
    ],
)  # fmt: skip
def test_what_needs_an_end_is_refused_and_the_rest_is_not(fields, told):
    assert [(problem.field, problem.problem) for problem in problems(spec(**fields))] == told


def test_nobody_waits_for_a_server_to_end_well_and_none_begins_with_its_weights(host):
    server(host)
    with pytest.raises(
        UsageError, match=r"after: tagger serves a model until it is cancelled, so next could never start; write \{job: tagger, mode: any\}"
    ):
        host.submit("next", after=(Dependency("tagger"),))
    host.submit("next", after=(Dependency("tagger", "any"),))
    with pytest.raises(UsageError, match=r"weights: next: job 1 serves a model and saves no checkpoint; name the job that trained it"):
        host.submit("next", weights="job:tagger")
    with pytest.raises(NotFound, match="weights: tagger is to begin with those of job 'nobody', and there is no such job"):
        server(host, weights="job:nobody")


# ---- how it ends ----


@pytest.mark.parametrize(
    ("end", "given", "expected"),
    [
        (End("failed", -9, None, "killed by SIGKILL"), {}, ("pending", "lost", "killed by SIGKILL; the server comes back", False)),
        (End("failed", 75, None, "left with 75"), {}, ("pending", "lost", "left with 75; the server comes back", False)),
        (End("lost", None, None, "its supervisor was killed"), {}, ("pending", "lost", "its supervisor was killed", False)),
        (End("completed", 0, None), {}, ("failed", "failed", "the server ended by itself, with exit code 0: look at its log", True)),
        (End("failed", 1, None, "exit code 1: no"), {}, ("failed", "failed", "exit code 1: no", True)),
        (End("failed", 1, None, "exit code 1: no"), {"retries": Retries(1)},
         ("pending", "failed", "exit code 1: no; retry 1 of 1 in 10 s", True)),
        (End("failed", 2, None, "weights: of another model"), {"retries": Retries(1)},
         ("failed", "failed", "weights: of another model; the job itself is wrong, so it is not tried again", True)),
        (End("stopped", 75, "cancelled"), {}, ("cancelled", "cancelled", "cancelled", False)),
        (End("stopped", 75, "held"), {"held": True}, ("submitted", "preempted", "held", False)),
        (End("stopped", 75, "drain"), {}, ("pending", "preempted", "its runner is being drained", False)),
        (End("stopped", 75, "preempted"), {}, ("pending", "preempted", "preempted", False)),
        (End("stopped", 75, "timeout"), {}, ("failed", "timeout", "ran longer than its timeout: raise timeout, or stop earlier", True)),
        (End("failed", -9, "cancelled", "killed"), {}, ("cancelled", "cancelled", "cancelled", False)),
    ],
)  # fmt: skip
def test_a_server_that_is_killed_comes_back_and_no_retry_is_counted(end, given, expected):
    verdict = judge(end, **({"retries": Retries(), "failures": 0, "cancelled": False, "held": False, "ours": True, "serves": True} | given))
    assert (verdict.state, verdict.outcome, verdict.reason, verdict.failed) == expected


def test_one_that_is_killed_again_and_again_comes_back_later_each_time(host):
    job = server(host, retries=Retries(0))
    waits = []
    for _ in range(3):
        host.store.write(_due, job)
        assert host.tick({job: Allocation((0,))}) == "applied"
        host.runs(job)
        host.report(WorkerUpdate(lease=host.lease(job), state="exited", ts=time.time(), exit_code=-9, outcome="failed", message="killed"))
        ((state, failures, delay),) = host.rows(
            f"SELECT state, failures, coalesce(round(epoch(not_before - state_since)), 0) FROM jobs WHERE id = {job}"
        )
        assert (state, failures) == ("pending", 0)
        waits.append(delay)
    assert waits == [0, 2, 4]


def _due(tx, batch):
    for job in batch:
        tx.update("jobs", ["id"], [{"id": job, "not_before": None}])
    return [None] * len(batch)


# ---- what is learnt, believed and foretold ----


def test_a_server_that_is_held_is_told_of_in_its_own_words(host):
    job = server(host)
    host.tick({job: Allocation((0,))})
    host.runs(job)
    told = host.store.write(control, Control("hold", (job,), "ann"))
    assert [one["message"] for one in told] == ["is being stopped; when released, it serves again"]


def test_it_is_of_a_model_of_its_own_and_its_steps_are_nobodys():
    trained, served = spec(kind="train", params={"width": 8}), spec(params={"width": 8})
    assert trained.model == "toy" and served.model == "infer/toy"
    assert trained.signature is not None and served.signature is None  # so it is neither profiled nor timed
    assert spec(recipe=None, entrypoint="mine:task").model == "infer/mine:task"


def test_nothing_tells_when_it_ends(host):
    job = server(host)
    host.tick({job: Allocation((0,))})
    host.runs(job)
    records = [Record(seq=n, ts=time.time() + n, step=100 * n) for n in (1, 2, 3)]
    host.report(records=[Records(lease=host.lease(job), rank=0, records=records)])
    with host.store.read() as con:
        jobs = snapshot(con, "default", time.time()).view.jobs
    assert jobs.kind.tolist() == ["infer"] and np.isnan(jobs.remaining).all() and jobs.profile_gpus.tolist() == [0]
    assert host.rows("SELECT remaining, est_end FROM outlook") == [(None, None)]
    assert host.rows("SELECT progress, eta FROM jobs_now") == [(None, None)]
    assert host.rows("SELECT count(*) FROM speeds") == host.rows("SELECT count(*) FROM slowdowns") == [(0,)]


def test_a_forecast_takes_it_to_be_there_for_ever():
    jobs = make_view([2], [Job(1, run_time=50.0), Job(2, run_time=50.0), Job(3)]).jobs
    jobs = dataclasses.replace(jobs, kind=np.array(["infer", "infer", "train"], dtype=object))
    nothing = np.full(3, math.nan)
    known = Known(["a", "a", "a"], np.zeros(3, dtype=bool), nothing, np.zeros(3, dtype=bool), np.array([False, True, False]))
    ended = Finished(["a"] * 10, np.full(10, 60.0), np.full(10, math.nan))
    left = DurationDraws(jobs, known, ended).middles()
    assert left.tolist() == [ENDLESS, 0.0, pytest.approx(60.0)]


@pytest.mark.parametrize("policy", ["fifo", "las", "gandiva"])
def test_a_tuning_simulates_until_all_others_have_ended(policy):
    """One of two GPUs serves for ever, so that jobs of 100 s, one at hand and two to come, end one after the other."""
    view = make_view([2], [Job(1, held=(0,), lease_time=50.0, run_time=50.0), Job(2, held=(1,), remaining=100.0)])
    view = dataclasses.replace(view, jobs=dataclasses.replace(view.jobs, kind=np.array(["infer", "train"], dtype=object)))
    coming = make_workload("later", [view.now + 1.0, view.now + 2.0], [100.0, 100.0], [1, 1], kind=["train", "train"])
    run = drained(view, np.array([ENDLESS, 100.0]), coming, registry.create(policy, {}), Options(), evictions=Evictions(), cpu_seconds=20.0)
    ends = run[1].fates.ended - view.now
    assert math.isnan(ends[0]) and np.isfinite(ends[1:]).all() and ends[1:].max() < 1000


class Serving(World):
    """A world in which job 1 serves."""

    def view(self):
        view = super().view()
        kind = np.array(["infer" if job == 1 else "train" for job in view.jobs.id.tolist()], dtype=object)
        return dataclasses.replace(view, jobs=dataclasses.replace(view.jobs, kind=kind))


@pytest.mark.parametrize("name", sorted(registry.POLICIES))
@pytest.mark.parametrize("first", [True, False], ids=["it comes first", "it comes last"])
@pytest.mark.sampled(4)
def test_every_policy_serves_it_and_lets_others_end_beside_it(name, first):
    jobs = {1: Job(1, submitted=0.0 if first else 9.0)}
    jobs |= {number: Job(number, remaining=300.0, submitted=float(number)) for number in (2, 3, 4, 5)}
    world = Serving([2], jobs, progress=True)
    policy = registry.create(name, {})
    held = 0
    for _ in range(260):
        world.tick(policy)
        held += bool(world.jobs[1].held)
    assert world.finished == {2, 3, 4, 5}, "others starve beside a server"
    assert held > 60, "a server starves"
    assert world.jobs[1].held, "nobody else is there any more"


# ---- what it was, when it is over ----


def test_a_replay_leaves_it_out_and_says_so(host):
    job, other = server(host), host.submit("other")
    host.tick({job: Allocation((0,)), other: Allocation((1,))})
    host.runs(job, other)
    host.ends(other)
    history = [host.store.rows("api/sim_history", "default", 0.0), host.store.objects("api/sim_left_out", "default", 0.0)]
    assert [row[0] for row in history[0]] == [other]
    assert history[1] == [{"not_ended": 0, "never_ran": 0, "held_before": 0, "servers": 1}]
    assert [row[-1] for row in host.store.rows("policy/tuning_history", "default", 0.0)] == [other]
    host.ends(job)
    assert [row[0] for row in host.store.rows("api/sim_history", "default", 0.0)] == [other]
    assert [row[0] for row in host.store.rows("api/sim_stays", "default", 0.0)] == [other], "nor is what it held kept when it has ended"


# ---- where it is, and what it was built with ----


def test_a_server_of_a_recipe_is_built_as_the_job_was_whose_weights_it_has(host):
    trained = host.submit("trained", backbone="tiny")
    host.tick({trained: Allocation((0,))})
    host.runs(trained)
    host.report(records=[Records(lease=host.lease(trained), rank=0, records=[Record(seq=1, ts=time.time(), step=5, checkpoint=5)])])
    plain, other = server(host, weights="job:trained"), server(host, "other", weights="job:trained", params={"width": 3})
    host.tick({plain: Allocation((1,))})
    host.ends(trained)
    host.tick({other: Allocation((0,))})
    host.board.refresh()
    found = {one.job: one for one in host.board._answers["n1"].leases}
    assert found[plain].spec["params"] == {"model": "trained"} and found[plain].spec["backbone"] == "tiny"
    assert found[other].spec["params"] == {"model": "trained", "width": 3}
    assert found[plain].begin_from is not None


class _Call:
    """As much of a request as it takes to find a server."""

    def __init__(self, store, ref):
        self.daemon, self.who, self._ref = type("Daemon", (), {"store": store}), type("Who", (), {"user": "ann"}), ref

    def path(self, name):
        return self._ref


def test_where_it_serves_is_found_by_name_and_of_an_array_any_that_does(host):
    trains, job = host.submit("trains"), server(host)
    tasks = [spec(name=f"many[{n}]", array_index=n, array_size=2) for n in range(2)]
    answer = host.store.write(submit, SubmitRequest(Submission(jobs=tasks, provenance=Provenance(argv=[], cwd="/")), "ann"))
    second = answer[1]["id"]
    with pytest.raises(UsageError, match=f"job {trains} trains trains, it answers nothing: ask a job of kind infer"):
        _server(_Call(host.store, "trains"))
    with pytest.raises(Conflict, match=f"job {job} tagger does not serve now, it is pending: 'stoker explain tagger' says why"):
        _server(_Call(host.store, "tagger"))
    host.tick({job: Allocation((0,)), second: Allocation((1,))})
    host.runs(job, second)
    assert _server(_Call(host.store, "tagger"))["run_dir"] == "/r"
    assert _server(_Call(host.store, "many"))["job"] == second
    with pytest.raises(StokerError, match="there is no job 'nobody'"):
        _server(_Call(host.store, "nobody"))


def test_what_clients_saw_is_told_by_job_and_minute(host):
    job = server(host)
    host.tick({job: Allocation((0,))})
    host.runs(job)
    assert "loads its model, and answers nobody yet" in explain(host.store, job)["summary"]
    minute = time.time() // 60

    def values(number, p50, requests, refused=0.0):
        counts = {"requests": requests, "errors": 0.0, "refused": refused, "queue": 3.0}
        return {"minute": number, "p50": p50, "p95": 2 * p50, "p99": 3 * p50, **counts}

    told = [values(minute - 1, 0.5, 2.0), values(minute - 1, 0.25, 4.0), values(minute, 0.002, 1.0), {}, {"minute": 1e300}]
    records = [Record(seq=n, ts=time.time() + n / 1000, step=n, values=each) for n, each in enumerate(told, 1)]
    host.report(records=[Records(lease=host.lease(job), rank=0, records=records)])
    rows = host.rows("SELECT name, epoch(minute) / 60, p50, p99, requests, refused, queue FROM latency_now")
    assert rows == [("tagger", minute - 1, 0.25, 0.75, 4, 0, 3), ("tagger", minute, 0.002, 0.006, 1, 0, 3)]
    summary = explain(host.store, job)["summary"]
    assert "serves since" in summary and "5 requests answered" in summary and "p50 2 ms, p95 4 ms, p99 6 ms of 1" in summary

"""Jobs that begin with the weights of another one, from the submission to what the runner is told: real tables, and no process."""

from __future__ import annotations

import asyncio
import time

import pytest
from one_runner import Host
from stoker.engine.errors import NotFound, UsageError
from stoker.engine.jobs.control import Control, control
from stoker.engine.jobs.submission import SubmitRequest, submit
from stoker.engine.protocol import Record, Records, WorkerUpdate
from stoker.engine.spec.model import Dependency, JobSpec, Provenance, Submission
from stoker.policies.contract import Allocation, Group


@pytest.fixture
def host(store):
    return Host(store, slots=3)


def send(host, *jobs, user="ann"):
    return host.store.write(submit, SubmitRequest(Submission(jobs=list(jobs), provenance=Provenance(argv=[], cwd="/")), user))


def job(name, recipe="toy", **fields):
    return JobSpec(name=name, recipe=recipe, **fields)


def saves(host, number, step=10):
    record = Record(seq=step + 1, ts=time.time(), step=step, checkpoint=step)
    host.report(records=[Records(lease=host.lease(number), rank=0, records=[record])])


def states(host):
    return [row[0] for row in host.rows("SELECT state FROM jobs ORDER BY id")]


def told(host):
    """Of each job on the runner the directory with whose checkpoints it begins."""
    host.board.refresh()
    return {one.job: one.begin_from for one in asyncio.run(host.board.poll("n1", -1, 0.0)).leases}


def starts(host, number, gpu=0, **given):
    assert host.tick({number: Allocation((gpu,), **given)}) == "applied"
    host.runs(number)


def runs_in(host, number, directory):
    host.report(WorkerUpdate(lease=host.lease(number), state="running", ts=time.time(), run_dir=directory))


def test_a_job_waits_for_the_checkpoint_and_is_told_where_it_is(host):
    send(host, job("a"), job("b", weights="job:a"))
    assert host.tick({1: Allocation((0,))}) == "applied"
    runs_in(host, 1, "/h/jobs/1/run-1")
    assert states(host) == ["running", "submitted"]
    host.tick({})
    assert host.rows("SELECT code, reason FROM waiting") == [("weights", "waits for job 1 to save a checkpoint, with which it is to begin")]
    saves(host, 1)
    assert states(host) == ["running", "pending"]
    starts(host, 2, 1)
    assert told(host) == {1: None, 2: "/h/jobs/1/checkpoints"}
    assert host.rows("SELECT CAST(options ->> 'begin_from' AS BIGINT) FROM leases ORDER BY id") == [(None,), (1,)]


def test_a_job_whose_source_ends_without_a_checkpoint_is_cancelled_with_that_reason(host):
    send(host, job("a"), job("b", weights="job:a"), job("c", weights="job:b"))
    starts(host, 1)
    host.ends(1, "failed")
    assert states(host) == ["failed", "cancelled", "cancelled"]
    reasons = [row[0] for row in host.rows("SELECT state_reason FROM jobs WHERE id > 1 ORDER BY id")]
    assert reasons == [
        "job 1, with whose weights it was to begin, ended as failed without a checkpoint",
        "job 2, with whose weights it was to begin, ended as cancelled without a checkpoint",
    ]


def test_it_waits_for_whatever_else_it_waits_for(host):
    send(host, job("a"), job("b"), job("c", weights="job:a", after=(Dependency("b"),)), job("d", weights="job:a", hold=True))
    starts(host, 1)
    saves(host, 1)
    assert states(host)[2:] == ["submitted", "submitted"]
    starts(host, 2, 1)
    host.ends(2)
    host.store.write(control, Control("release", (4,), "ann"))
    assert states(host)[2:] == ["pending", "pending"]


def test_the_newest_job_of_the_name_is_meant_and_one_of_its_own_name_is_an_earlier_one(host):
    send(host, job("nightly"))
    starts(host, 1)
    saves(host, 1)
    host.ends(1)
    send(host, job("nightly", weights="job:nightly"))
    send(host, job("nightly", weights="job:nightly"))
    assert host.rows("SELECT begin_from, state FROM jobs WHERE id > 1 ORDER BY id") == [(1, "pending"), (2, "submitted")]


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"weights": "job:nobody"}, NotFound, "weights: x is to begin with those of job 'nobody', and there is no such job"),
        ({"weights": "job:shell"}, UsageError, "weights: x: job 2 runs a command, whose checkpoints only itself can read"),
        ({"weights": "job:other"}, UsageError, "weights: x: job 3 trains digits-cnn, and this one toy: the models differ"),
        ({"weights": "job:1", "backbone": "big"}, UsageError, "job 1 starts from the backbone small, and this one from big"),
        ({"weights": "job:4"}, UsageError, "weights: x: job 4 has ended as cancelled without a checkpoint"),
        ({"weights": "job:sweep"}, UsageError, "weights: sweep is an array of 2 tasks; name one of them, such as job:sweep[0]"),
    ],
)
def test_what_can_never_be_is_refused_in_one_line(host, fields, kind, words):
    send(
        host,
        job("a", backbone="small"),
        JobSpec(name="shell", command=("true",)),
        job("other", "digits-cnn"),
        job("gone"),
        *(job(f"sweep[{i}]", array_index=i, array_size=2) for i in range(2)),
    )
    host.store.write(control, Control("cancel", (4,), "ann"))
    with pytest.raises(kind) as error:
        send(host, job("x", **fields))
    assert words in str(error.value) and "\n" not in str(error.value)
    assert host.rows("SELECT count(*) FROM jobs") == [(6,)]


def test_a_plan_lets_a_job_begin_with_another_and_its_next_lease_does_too(host):
    send(host, job("a"), job("b"), job("c"))
    starts(host, 1)
    saves(host, 1)
    assert host.tick({2: Allocation((1,), begin_from=1)}) == "applied"
    runs_in(host, 2, "/h/jobs/2/run-2")
    host.ends(2, "lost")
    assert states(host)[1] == "pending"
    starts(host, 2, 1)  # no word of it in this plan
    assert host.rows("SELECT options ->> 'begin_from' FROM leases WHERE job_id = 2") == [("1",), ("1",)]
    assert host.tick({3: Allocation((2,), begin_from=2)}) == "invalid"
    ((error,),) = host.rows("SELECT error FROM decisions ORDER BY id DESC LIMIT 1")
    assert error == "job 3: is to begin with the weights of job 2: job 2 has saved no checkpoint yet"


def test_a_lease_that_shares_later_on_keeps_what_it_begins_with(host):
    send(host, job("a"), job("b"), job("c"))
    starts(host, 1)
    saves(host, 1)
    starts(host, 2, 1, begin_from=1)
    assert host.tick({2: Allocation((1,)), 3: Allocation((1,))}, groups=[Group("packed", (2, 3))]) == "applied"
    assert host.rows("SELECT share, options ->> 'begin_from' FROM leases WHERE job_id = 2") == [("packed", "1")]


@pytest.mark.parametrize(
    ("source", "words"),
    [(99, "there is no such job"), (2, "that is itself"), (3, "job 3 has saved no checkpoint yet"), (4, "job 4 runs a command")],
)
def test_a_plan_with_a_source_that_cannot_be_is_refused(host, source, words):
    send(host, job("a"), job("b"), job("c"), JobSpec(name="d", command=("true",)), job("e", weights="/w.pt"))
    assert host.tick({2: Allocation((0,), begin_from=source)}) == "invalid"
    assert words in host.rows("SELECT error FROM decisions ORDER BY id DESC LIMIT 1")[0][0]
    starts(host, 1)
    saves(host, 1)
    assert host.tick({5: Allocation((1,), begin_from=1)}) == "invalid"
    assert "it begins with /w.pt already" in host.rows("SELECT error FROM decisions ORDER BY id DESC LIMIT 1")[0][0]
    assert host.rows("SELECT count(*) FROM leases") == [(1,)]

"""Jobs whose first steps are trained together: who waits for whom, with what each begins, who is refused. Real tables, and no process."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest
from one_runner import Host
from stoker.engine.errors import NotFound, UsageError
from stoker.engine.jobs.begin_from import LEAST_JOINT_GAIN
from stoker.engine.jobs.control import Control, control
from stoker.engine.jobs.leases import Grant, LeaseStop, grant, stop
from stoker.engine.protocol import Begun, Record, Records
from stoker.engine.scheduling import ticks
from stoker.engine.spec.check import require
from stoker.engine.spec.model import Dependency, Reuse
from stoker.policies.contract import Allocation
from test_adapter_bank import job, left, offered, ran, send, starts, tells

LABELS = "negative, positive"
TOGETHER = "has trained 25 steps together with job"


@pytest.fixture
def host(store):
    return Host(store, slots=2)


def merged(name, merge="transfer", data=None, **fields):
    return msgspec.structs.replace(job(name, data=data or name), merge=merge, **fields)


def pair(host):
    send(host, merged("amazon"), merged("movies", "job:amazon"))


def trained(partner, state="joint", **fields):
    return Begun(**{"state": state, "source": partner, "labels": LABELS, "step": 25, "why": f"{TOGETHER} {partner}", **fields})


def states(host):
    return dict(host.rows("SELECT id, state FROM jobs"))


def test_one_waits_for_the_others_lease_and_begins_with_its_half_while_that_goes_on(host):
    pair(host)
    starts(host, 1)
    assert host.rows("SELECT reason FROM waiting WHERE job_id = 2") == [("waits to train its first steps together with job 1",)]
    joint = offered(host).joint
    assert (joint.job, joint.spec["name"]) == (2, "movies")
    tells(host, 1, begun=trained(2))
    assert states(host)[2] == "pending"
    assert host.tick({1: Allocation((0,)), 2: Allocation((1,))}) == "applied"
    host.board.refresh()
    (offer,) = next(one for one in asyncio.run(host.board.poll("n1", -1, 0.0)).leases if one.job == 2).offers
    assert (offer.job, offer.directory, offer.part, offer.steps, offer.named) == (1, "/checkpoints", "joint-2", 25, True)
    tells(host, 1, begun=trained(2))  # by the next attempt of its runner, say
    assert [row[:3] for row in host.rows("SELECT job_id, from_job, outcome, cost_steps FROM transfers ORDER BY 1")] == [
        (1, 2, "joint"), (2, 1, "joint"),
    ]  # fmt: skip
    assert host.rows("SELECT cost_steps FROM transfers ORDER BY job_id") == [(0,), (25,)]


def test_whose_runner_has_forgotten_it_is_still_no_training_from_the_backbone(host):
    pair(host)
    starts(host, 1)
    tells(host, 1, begun=trained(2))
    tells(host, 1, adapter=left(begun=False))
    assert host.rows("SELECT begun FROM adapters WHERE job_id = 1") == [(True,)]


def test_while_it_has_not_told_of_it_its_next_attempt_trains_together_too(host):
    pair(host)
    starts(host, 1)
    host.ends(1, "lost")
    assert states(host) == {1: "pending", 2: "submitted"}
    starts(host, 1)
    assert offered(host).joint.job == 2 and host.rows("SELECT count(*) FROM beginnings") == [(0,)]


@pytest.mark.parametrize("how", ["can't", "ended", "cancelled"])
def test_whose_partner_does_not_train_with_it_begins_from_its_backbone(how, host):
    pair(host)
    if how == "cancelled":
        host.store.write(control, Control("cancel", (1,), "ann"))
    else:
        starts(host, 1)
        if how == "can't":
            tells(host, 1, begun=trained(2, "cold", step=0, why="does not train together with job 2: they differ in x"))
        host.ends(1)
    assert states(host)[2] == "pending"
    starts(host, 2)
    assert offered(host).offers == [] and offered(host).joint is None
    why = "job 1 does not train together with job 2: they differ in x" if how == "can't" else "job 1 ended before it had trained with it"
    assert host.rows("SELECT source, state, why FROM beginnings WHERE job_id = 2") == [(None, "cold", why)]


def test_nobody_says_of_another_job_that_it_trained_with_it(host):
    send(host, merged("amazon"), merged("movies", "job:amazon"), merged("bens"))
    starts(host, 3)
    tells(host, 3, begun=trained(2))
    assert states(host)[2] == "submitted" and host.rows("SELECT count(*) FROM beginnings") == [(0,)]


@pytest.fixture
def unasked(monkeypatch):
    """Whatever a plan trains together was measured to be worth it."""
    monkeypatch.setattr(ticks, "not_together", lambda *_: {})


def test_whom_a_plan_trains_with_another_waits_for_that_too_and_no_plan_starts_it(host, unasked):
    send(host, merged("amazon"), merged("movies"), merged("bens"))
    assert together(host, 1, 2)[0] == "applied" and states(host)[2] == "submitted"
    host.runs(1)
    assert host.tick({2: Allocation((1,))}) == "invalid" and host.tick({3: Allocation((1,), joint=2)}) == "invalid"
    assert host.rows("SELECT reason FROM waiting WHERE job_id = 2") == [("waits to train its first steps together with job 1",)]
    host.ends(1, "lost")
    starts(host, 1)  # whatever this plan says
    assert offered(host).joint.job == 2
    tells(host, 1, begun=trained(2))
    host.ends(1)
    starts(host, 2)
    assert [offer.part for offer in offered(host).offers] == ["joint-2"]


def test_a_job_that_is_gone_when_a_plan_would_train_it_with_another_is_not_waited_for(host, unasked):
    send(host, merged("amazon"), merged("movies"))
    host.store.write(control, Control("hold", (2,), "ann"))
    host.store.write(lambda tx, _: [grant(tx, [Grant(1, (("n1:0", "n1"),), None, joint=2)], "fifo", 1)], None)
    assert host.rows("SELECT options ->> 'joint' FROM leases") == [(None,)]
    assert host.rows("SELECT begins, begin_after FROM jobs WHERE id = 2") == [(None, None)]


def test_who_is_cancelled_while_another_trains_with_it_is_told_nothing(host, unasked):
    send(host, merged("amazon"), merged("movies"))
    assert together(host, 1, 2)[0] == "applied"
    host.runs(1)
    host.store.write(control, Control("cancel", (2,), "ann"))
    tells(host, 1, begun=trained(2))
    assert host.rows("SELECT job_id FROM beginnings") == [(1,)] and states(host)[2] == "cancelled"


@pytest.mark.parametrize("how", ["runs", "was lost"])
def test_who_is_held_by_its_user_is_waited_for_no_longer_unless_the_other_one_names_it(how, host, unasked):
    send(host, merged("amazon"), merged("movies"), merged("bens"), merged("nyt", "job:bens"))
    assert together(host, 1, 2)[0] == "applied"
    host.runs(1)
    if how == "was lost":
        host.ends(1, "lost")
    host.store.write(control, Control("hold", (1, 3), "ann"))
    assert states(host)[2] == "pending" and states(host)[4] == "submitted"
    starts(host, 2) if how == "was lost" else host.tick({2: Allocation((1,))})
    assert host.rows("SELECT state, why FROM beginnings WHERE job_id = 2") == [("cold", "job 1 is held, so they do not train together")]
    assert together(host, 1, 2)[0] == "invalid"


@pytest.mark.parametrize("at_once", [False, True])
def test_one_job_has_first_steps_with_one_other_and_nobody_else_waits_for_them(at_once, host):
    send(host, merged("amazon", begin="auto"), merged("movies", "job:amazon"), merged("nyt", "job:amazon"), merged("bens", "job:amazon"))
    host.store.write(control, Control("hold", (4,), "ann"))
    starts(host, 1)
    tells(host, 1, begun=trained(3))  # which is not so
    assert set(states(host).values()) == {"running", "submitted"}
    tells.seq += 2
    told = [
        Record(seq=tells.seq - 1, ts=time.time(), step=0, begun=trained(2)),
        Record(seq=tells.seq, ts=time.time(), step=25, checkpoint=25),
    ]
    for records in [told] if at_once else [told[:1], told[1:]]:
        assert states(host)[3] == "submitted"
        host.report(records=[Records(lease=host.lease(1), rank=0, records=records)])
    assert states(host) == {1: "running", 2: "pending", 3: "pending", 4: "submitted"}
    assert host.rows("SELECT job_id, source, state, why FROM beginnings ORDER BY job_id") == [
        (1, 2, "joint", f"{TOGETHER} 2"), (2, 1, "joint", f"{TOGETHER} 1"),
        (3, None, "cold", "job 1 has done its first steps without it"), (4, None, "cold", "job 1 has done its first steps without it"),
    ]  # fmt: skip
    host.store.write(control, Control("release", (4,), "ann"))
    assert states(host)[4] == "pending"


def test_who_cannot_train_together_is_not_said_to_begin_with_the_other_one(host):
    send(host, merged("amazon", begin="auto"), merged("movies", "job:amazon"))
    starts(host, 1)
    tells(host, 1, begun=trained(2, "cold", step=0, why="does not train together with job 2: they differ in x"))
    assert host.rows("SELECT source, state FROM beginnings ORDER BY job_id") == [(None, "cold"), (None, "cold")]


def test_whose_plan_came_to_nothing_begins_as_its_spec_says(host, unasked):
    ran(host, send(host, job("old", data="old"))[0]["id"])
    send(host, merged("amazon"), merged("movies", begin="auto"))
    assert together(host, 2, 3)[0] == "applied"
    host.runs(2)
    host.ends(2)  # on a runner of an older version, say, which trains nobody together
    assert states(host)[3] == "pending"
    starts(host, 3)
    assert [(offer.job, offer.named, offer.part) for offer in offered(host).offers] == [(1, False, "")]


@pytest.mark.parametrize(("outcome", "words"), [("oom", "ran out of memory"), ("hang", "made no progress")])
def test_one_phase_that_takes_the_lease_down_is_no_failure_of_the_first_and_the_last_phase(outcome, words, host, unasked):
    send(host, merged("amazon"), merged("movies"))
    for attempt in range(2):
        if attempt:
            starts(host, 1)
            assert offered(host).joint is None
        else:
            assert together(host, 1, 2)[0] == "applied"
            host.runs(1)
        if outcome == "hang":
            host.store.write(lambda tx, _: [stop(tx, [LeaseStop(host.lease(1), "hang", "daemon")])], None)
        host.ends(1, "failed" if outcome == "hang" else outcome)
        if not attempt:
            assert states(host) == {1: "pending", 2: "pending"} and host.rows("SELECT failures FROM jobs WHERE id = 1") == [(0,)]
            ((why,),) = host.rows("SELECT why FROM beginnings WHERE job_id = 2")
            assert why.startswith(f"job 1 {words} while it trained its first steps together with another job")
            assert together(host, 1, 2)[0] == "applied" and states(host)[2] == "pending"  # the same pair is not tried again
            assert offered(host).joint is None
            host.runs(1)
            host.ends(1, "lost")
    assert host.rows("SELECT failures FROM jobs WHERE id = 1") == [(1,)]  # its own


def test_a_half_that_is_damaged_says_nothing_of_the_adapter_of_the_bank(host):
    pair(host)
    starts(host, 1)
    tells(host, 1, begun=trained(2))
    tells(host, 1, adapter=left(begun=True))
    host.ends(1)
    starts(host, 2)
    tells(host, 2, begun=Begun(state="cold", labels=LABELS, why="x", damaged={1: "its adapter is damaged"}))
    assert host.rows("SELECT gone FROM adapters WHERE job_id = 1") == [(None,)]


@pytest.mark.parametrize(
    ("first", "fields", "words"),
    [
        ({"merge": None}, {}, "job 1 does not say merge: transfer, so it trains with nobody together"),
        ({"params": {"petl": "lora", "batch_size": 8}}, {"params": {"petl": "lora", "batch_size": 16}}, "job 1 has batch_size: 8"),
        ({"recipe": "causal-lm"}, {}, "job 1 trains causal-lm, and this one text-classifier"),
        ({}, {"params": {"petl": "adapter"}}, "job 1 has petl: lora, and this one adapter"),
    ],
)
def test_what_can_never_be_is_refused_in_one_line(first, fields, words, host):
    send(host, msgspec.structs.replace(merged("amazon"), **first))
    with pytest.raises(UsageError) as error:
        send(host, merged("movies", "job:amazon", **fields))
    assert str(error.value).startswith("merge: movies: ") and words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"merge": "both"}, "merge: must be transfer, never or job:NAME, not 'both'"),
        ({"merge": "job:"}, "merge: must name a job, such as job:amazon, not 'job:'"),
        ({"merge": "compute"}, "merge: for compute write share: {gpu: packed}; with warm starts"),
        ({"gpus_max": 2}, "merge: is for jobs on one GPU, and this one takes up to 2; give gpus: 1, or remove it"),
        ({"begin": "auto"}, "merge: does not work with begin; remove one of them"),
        ({"weights": "job:z"}, "merge: does not work with weights; remove one of them"),
        ({"reuse": Reuse(repeat=2)}, "merge: does not work with reuse; remove one of them"),
        ({"params": {"layers": "head"}}, "merge: with layers: head only the head is trained"),
        ({"recipe": None, "command": ("x",), "backbone": None, "params": {}}, "merge: is for a job that fine-tunes a backbone by a recipe"),
    ],
)
def test_a_spec_that_cannot_be_is_told_in_one_line(fields, problem):
    require(merged("a", "job:b"))
    require(merged("a", "transfer", begin="auto"))
    with pytest.raises(UsageError) as error:
        require(msgspec.structs.replace(merged("movies", "job:amazon"), **fields))
    assert problem in str(error.value) and "\n" not in str(error.value)


def test_jobs_that_wait_for_each_other_are_refused(host):
    with pytest.raises(UsageError, match="merge: a: job b does not say merge: transfer"):
        send(host, merged("a", "job:b"), merged("b", "job:a"))
    with pytest.raises(NotFound, match="merge: a is to train its first steps together with job 'a', and there is no such job before it"):
        send(host, merged("a", "job:a"))


def test_who_waits_for_the_end_of_the_other_cannot_train_together_with_it(host):
    send(host, merged("amazon"))
    for source, first in (("job:1", ()), ("job:other", (merged("other"),))):
        after = (Dependency(job=source.removeprefix("job:")),)
        with pytest.raises(UsageError, match=r"merge: movies: 'after' names job .* too"):
            send(host, *first, merged("movies", source, after=after))


def test_who_has_begun_and_whoever_is_anothers_are_refused(host):
    send(host, merged("amazon"))
    with pytest.raises(UsageError, match="job 1 is ann's"):
        send(host, merged("movies", "job:1"), user="ben")
    starts(host, 1)
    with pytest.raises(UsageError, match="job 1 has begun to train; give begin: job:1"):
        send(host, merged("movies", "job:amazon"))


def together(host, one, two):
    """What comes of a plan that trains two of them together."""
    outcome = host.tick({one: Allocation((0,), joint=two)})
    return outcome, (host.rows("SELECT error FROM decisions ORDER BY id DESC LIMIT 1")[0][0] or "").partition(": ")[2]


def test_a_plan_trains_two_together_only_where_both_say_so_and_it_was_measured_to_be_worth_it(host):
    send(host, merged("amazon"), merged("movies"), merged("nyt", None))
    assert together(host, 1, 2) == (
        "invalid", "is to train together with job 2: nothing was measured of such a pair; merge: job:1 in one of them tries it",
    )  # fmt: skip
    assert together(host, 1, 3) == (
        "invalid",
        "is to train together with job 3: job 3 does not say merge: transfer, so it trains with nobody together",
    )
    for number, steps in ((1, 200), (2, 200)):
        ran(host, number, steps=steps)
    for number, steps in ((4, 150), (6, 80)):  # with those together 175 and 105 of 200 alone
        send(host, merged(f"a{number}", data="amazon"), merged(f"m{number}", f"job:a{number}", data="movies"))
        starts(host, number)
        tells(host, number, begun=trained(number + 1))
        tells(host, number, adapter=left(steps=200, begun=True))
        host.ends(number)
        starts(host, number + 1)
        tells(host, number + 1, begun=trained(number, cost=25))
        tells(host, number + 1, adapter=left(steps=steps, begun=True))
        host.ends(number + 1)
    assert host.rows("SELECT round(measured, 3) FROM transfers ORDER BY job_id") == [(1.0,), (1.143,), (1.0,), (1.905,)]
    send(host, merged("a8", data="amazon"), merged("m9", data="movies"))
    assert LEAST_JOINT_GAIN < (1.0 * 1.143 * 1.0 * 1.905) ** 0.25
    assert together(host, 8, 9)[0] == "applied" and offered(host).joint.job == 9

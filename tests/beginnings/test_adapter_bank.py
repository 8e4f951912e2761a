"""The bank of what ended jobs have left: who waits for whom, what is offered to whom, what is learnt. Real tables, and no process."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest
from one_runner import Host
from stoker.engine.adapters.adapter_choice import Banked, Gain, Gains, offers
from stoker.engine.adapters.stored_adapters import data_of, gain_of
from stoker.engine.errors import NotFound, UsageError
from stoker.engine.jobs.control import Control, control
from stoker.engine.jobs.submission import SubmitRequest, submit
from stoker.engine.protocol import Begun, LeftAdapter, Record, Records, Speed
from stoker.engine.scheduling.view import snapshot
from stoker.engine.spec.model import JobSpec, Provenance, Replicas, Stop, Submission
from stoker.policies import registry
from stoker.policies.contract import Allocation

STOP = Stop(iterations=100, metric="accuracy", target=0.8)


@pytest.fixture
def host(store):
    return Host(store, slots=2)


def send(host, *jobs, user="ann"):
    return host.store.write(submit, SubmitRequest(Submission(jobs=list(jobs), provenance=Provenance(argv=[], cwd="/")), user))


def job(name, begin=None, data=None, stop=STOP, recipe="text-classifier", backbone="minilm", **params):
    given = {"petl": "lora", **params, **({"data": data} if data else {})}
    return JobSpec(name=name, recipe=recipe, backbone=backbone, params=given, stop=stop, begin=begin)


def starts(host, number):
    assert host.tick({number: Allocation((0,))}) == "applied"
    host.runs(number)


def tells(host, number, **what):
    seq = tells.seq = getattr(tells, "seq", 0) + 1
    record = Record(**{"seq": seq, "ts": time.time(), "step": 0, **what})
    host.report(records=[Records(lease=host.lease(number), rank=0, records=[record])])


def left(labels="negative, positive", steps=20, **fields):
    told = {"backbone": "minilm", "revision": "r1", "petl": "lora of rank 8", "digest": f"d{labels}", "reached": True, **fields}
    return LeftAdapter(labels=labels, steps=steps, **told)


def ran(host, number, **fields):
    """From its start to its end, with what it leaves."""
    starts(host, number)
    tells(host, number, adapter=left(**fields))
    host.ends(number)


def offered(host):
    host.board.refresh()
    (one,) = asyncio.run(host.board.poll("n1", -1, 0.0)).leases
    return one


def test_a_job_waits_for_the_named_one_to_end_and_is_offered_what_that_left(host):
    send(host, job("a", data="amazon"), job("b", "job:a", data="movies"))
    starts(host, 1)
    assert host.rows("SELECT state, reason FROM jobs JOIN waiting ON job_id = id WHERE id = 2") == [
        ("submitted", "waits for job 1 to end, with whose adapter it is to begin")
    ]
    tells(host, 1, step=10, checkpoint=10)
    assert host.rows("SELECT state FROM jobs WHERE id = 2") == [("submitted",)]
    tells(host, 1, adapter=left())
    host.ends(1)
    starts(host, 2)
    (offer,) = offered(host).offers
    assert (offer.job, offer.directory, offer.named, offer.data) == (1, "/h/jobs/1/checkpoints", True, "amazon")
    assert host.rows("SELECT source, state, why FROM beginnings") == [(1, "planned", "as it was told")]


@pytest.mark.parametrize("how", ["cancelled", "silent"])
def test_whose_source_leaves_nothing_trains_from_the_backbone_and_says_so(how, host):
    send(host, job("a"), job("b", "job:a"))
    if how == "cancelled":
        host.store.write(control, Control("cancel", (1,), "ann"))
    else:
        starts(host, 1)
        host.ends(1)
    starts(host, 2)
    assert offered(host).offers == []
    assert host.rows("SELECT source, state, why FROM beginnings") == [
        (None, "cold", "job 1 has left no adapter, so it trains from its backbone")
    ]


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"begin": "job:nobody"}, NotFound, "begin: x is to begin with the adapter of job 'nobody', and there is no such job"),
        ({"begin": "job:x"}, NotFound, "begin: x is to begin with the adapter of job 'x', and there is no such job before it"),
        ({"begin": "job:lm"}, UsageError, "begin: x: job 2 trains causal-lm, and this one text-classifier"),
        ({"begin": "job:a", "petl": "prompt"}, UsageError, "job 1 has petl: lora, and this one prompt: forms of what is trained are never"),
        ({"begin": "job:a", "r": 4}, UsageError, "job 1 has r: 8, and this one 4"),
        ({"begin": "job:a", "backbone": "/m"}, UsageError, "job 1 starts from the backbone minilm, and this one from /m"),
        ({"begin": "job:gone"}, UsageError, "job 3 has ended as cancelled, and its adapter is not in the bank"),
        ({"begin": "job:copies[0]"}, UsageError, "job 5 trains as replicas, which leave no adapter"),
        ({"begin": "job:bens"}, UsageError, "job 4 is ben's, and jobs begin with adapters of their own user's jobs only"),
    ],
)
def test_what_can_never_be_is_refused_in_one_line(host, fields, kind, words):
    send(host, job("a", r=8), job("lm", recipe="causal-lm"), job("gone"))
    send(host, job("bens"), user="ben")
    send(host, msgspec.structs.replace(job("copies[0]"), array_index=0, array_size=1, replicas=Replicas(min=1, max=1, global_batch=8)))
    host.store.write(control, Control("cancel", (3,), "ann"))
    with pytest.raises(kind) as error:
        send(host, job("x", **fields))
    assert words in str(error.value) and "\n" not in str(error.value)
    assert host.rows("SELECT count(*) FROM jobs") == [(5,)]


def test_auto_tries_the_same_kind_of_labels_and_learns_what_came_of_it(host):
    """Cold on movies 20 steps, on trec 30; then movies begins with amazon's twice: what was measured is what is expected of the next."""
    send(host, job("trec", data="trec"), job("amazon", data="amazon"), job("movies", data="movies"))
    ran(host, 1, labels="abbr, desc, num", steps=30)
    ran(host, 2, steps=20)
    ran(host, 3, steps=24)
    send(host, job("again", "auto", data="movies", seed=1))
    starts(host, 4)
    (offer,) = offered(host).offers
    assert (offer.job, offer.same_kind, offer.expected) == (2, True, None)
    tells(host, 4, begun=Begun(state="kept", source=2, labels="negative, positive", step=5, cost=5, why="kept at step 5"))
    tells(host, 4, adapter=left(steps=12, begun=True))
    host.ends(4)
    assert host.rows("SELECT from_data, data, outcome, measured, cost_steps, same_data FROM transfers") == [
        ("amazon", "movies", "kept", 2.0, 5, False)
    ]
    send(host, job("third", "auto", data="movies", seed=2))
    starts(host, 5)
    (offer,) = offered(host).offers
    assert (offer.job, offer.expected, offer.same_kind) == (2, 2.0, False)
    assert offer.why == "2.0 x fewer steps expected, as measured for this pair of data (1 job)"
    assert host.rows("SELECT expected FROM transfers WHERE job_id = 5") == [(2.0,)]


@pytest.mark.parametrize(
    ("told", "ratio"),
    [
        ({"steps": 100, "reached": False}, 0.2),  # it missed its target
        ({"steps": 15, "reached": False}, None),  # it was ended before jobs from the backbone are there
        ({"steps": 10, "digest": "other texts"}, None),  # of the same file, which has changed
    ],
)
def test_a_gain_is_measured_of_the_same_texts_and_no_gain_is_told_too(told, ratio, host):
    send(host, job("a", data="amazon"), job("cold", data="movies"), job("b", "auto", data="movies", seed=1))
    ran(host, 1)
    ran(host, 2, steps=20)
    starts(host, 3)
    tells(host, 3, begun=Begun(state="kept", source=1, labels="negative, positive", step=5, why="kept at step 5"))
    tells(host, 3, adapter=left(begun=True, **told))
    assert host.rows("SELECT measured FROM transfers") == [(ratio,)]


def test_what_was_undone_is_not_tried_again(host):
    send(host, job("amazon", data="amazon"))
    ran(host, 1)
    for number in (2, 3):
        send(host, job(f"nyt-{number}", "auto", data="nyt", seed=number))
        starts(host, number)
        if number == 2:
            assert [offer.job for offer in offered(host).offers] == [1]
            tells(host, 2, begun=Begun(state="undone", source=1, labels="negative, positive", step=5, cost=5, why="undone at step 5"))
            tells(host, 2, adapter=left())
            host.ends(2)
    assert offered(host).offers == []
    assert host.rows("SELECT state, why FROM beginnings WHERE job_id = 3")[0][0] == "cold"


def test_others_and_the_same_data_are_not_offered_and_of_one_set_the_newest_two_are_kept(host):
    for number in range(1, 4):
        send(host, job(f"amazon-{number}", data="amazon"))
        ran(host, number)
    send(host, job("bens", data="tweets"), user="ben")
    ran(host, 4)
    assert host.rows("SELECT job_id FROM adapters WHERE gone IS NULL ORDER BY 1") == [(2,), (3,), (4,)]
    send(host, job("same", "auto", data="amazon"), job("movies", "auto", data="movies"))
    starts(host, 5)
    assert offered(host).offers == []
    host.ends(5)
    starts(host, 6)
    assert [offer.job for offer in offered(host).offers] == [3, 2]


def test_what_could_not_be_read_is_offered_no_more_and_a_job_that_has_begun_keeps_to_it(host):
    send(host, job("a", data="amazon"), job("b", "auto", data="movies"))
    ran(host, 1)
    starts(host, 2)
    tells(host, 2, begun=Begun(state="cold", labels="x", why="trains from its backbone: job 1: damaged", damaged={1: "damaged"}))
    tells(host, 2, step=3, checkpoint=3)
    host.ends(2, "lost")
    starts(host, 2)
    assert offered(host).offers == []
    assert host.rows("SELECT gone FROM adapters") == [("damaged",)]
    assert host.rows("SELECT state FROM beginnings") == [("cold",)]


def test_what_a_job_has_told_stands_when_it_is_started_again_before_its_first_checkpoint(host):
    send(host, job("a", data="amazon"), job("b", "auto", data="movies"))
    ran(host, 1)
    starts(host, 2)
    tells(host, 2, begun=Begun(state="kept", source=1, labels="negative, positive", step=5, cost=5, why="kept at step 5"))
    host.ends(2, "lost")
    starts(host, 2)
    assert [offer.job for offer in offered(host).offers] == [1]
    assert host.rows("SELECT state, cost FROM beginnings") == [("kept", 5)]


def decides(host, **config):
    """One decision of Ymir."""
    host.scheduling._pools["default"].policy = host.policies.setdefault(str(config), registry.create("ymir", config))
    host.scheduling.tick("default")
    return host.rows("SELECT outcome FROM decisions ORDER BY id DESC LIMIT 1")[0][0]


def measured(store):
    """Jobs 1 to 3 have ended: movies has half the steps from amazon, which is job 1's."""
    host = Host(store, slots=1)
    host.policies = {}
    send(host, job("amazon", data="amazon"), job("movies", data="movies"), job("again", "auto", data="movies", seed=1))
    for number, steps in ((1, 20), (2, 20), (3, 10)):
        starts(host, number)
        tells(host, number, speed=Speed(compute=0.1, steps=10))
        if number == 3:
            tells(host, 3, begun=Begun(state="kept", source=1, labels="negative, positive", step=5, cost=0, why="kept"))
        tells(host, number, adapter=left(steps=steps, begun=number == 3))
        host.ends(number)
    return host


def test_ymir_plans_by_what_was_measured_and_only_for_jobs_that_may_begin_so(store):
    """Movies begins with what job 1 left, or waits for job 5, which is of amazon too."""
    host = measured(store)
    send(host, job("never", data="movies", seed=2))
    assert decides(host) == "applied"
    assert host.rows("SELECT options FROM leases WHERE job_id = 4") == [(None,)]
    host.ends(4)
    send(host, job("first", "auto", data="amazon", seed=3), job("second", "auto", data="movies", seed=4))
    assert decides(host, ended=False) == "applied"
    assert host.rows("SELECT job_id FROM leases WHERE state <> 'ended'") == [(5,)]
    ((code, reason),) = host.rows("SELECT code, reason FROM waiting WHERE job_id = 6")
    assert code == "merged" and "weights of job 5 once that has ended" in reason
    host.runs(5)
    tells(host, 5, step=10, checkpoint=10)
    tells(host, 5, adapter=left())
    host.ends(5)
    assert decides(host, ended=False) == "applied"
    assert [offer.job for offer in offered(host).offers] == [5, 1]
    assert host.rows("SELECT source, expected FROM beginnings WHERE job_id = 6") == [(5, 2.0)]


def test_a_policy_is_told_of_those_that_may_help_some_job_and_not_of_all_that_ever_ended(store):
    host = measured(store)
    send(host, job("nyt", data="nyt"))
    starts(host, 4)
    tells(host, 4, speed=Speed(compute=0.1, steps=10))
    tells(host, 4, adapter=left())
    host.ends(4)
    send(host, job("more", "auto", data="movies", seed=2))
    with store.read() as con:
        view = snapshot(con, "default", time.time()).view
    assert set(view.left) == {1, 2, 3} and {view.ended[row] for row in view.left.values()} == {1, 3}
    assert len(view.profiles) == 2 and view.transfers.begin[view.left[1], view.left[3]] == 0.5


def test_nobody_waits_for_what_another_users_job_will_leave(store):
    host = measured(store)
    send(host, job("bens", data="amazon", seed=3), user="ben")
    send(host, job("second", "auto", data="movies", seed=4))
    assert decides(host, ended=False) == "applied"
    assert host.rows("SELECT code FROM waiting") == [("resources",)]


def test_whatever_a_job_reports_nobody_elses_adapter_is_gone_and_what_is_of_no_recipe_is_not_kept(host):
    send(host, job("a", data="amazon"))
    ran(host, 1)
    send(host, JobSpec(name="own", entrypoint="module:function"), user="ben")
    starts(host, 2)
    tells(host, 2, begun=Begun(state="cold", labels="x", why="", damaged={1: "damaged", 99: "damaged"}), adapter=left())
    host.ends(2)
    assert host.rows("SELECT job_id, gone FROM adapters") == [(1, None)]


def test_what_is_expected_is_of_the_adapter_it_began_with_and_who_forgot_that_is_no_training_from_the_backbone(host):
    """Its checkpoints may have gone to another host, without what was decided."""
    send(host, job("a", data="amazon"), job("b", "auto", data="movies"))
    ran(host, 1)
    starts(host, 2)
    tells(host, 2, begun=Begun(state="begun", source=1, labels="x", why="", expected=2.0))
    tells(host, 2, begun=Begun(state="kept", source=1, labels="x", why=""))
    tells(host, 2, adapter=left(begun=False))
    assert host.rows("SELECT begun, expected FROM adapters a JOIN beginnings b ON a.job_id = b.job_id WHERE b.job_id = 2") == [(True, None)]


def test_measured_pairs_come_before_kinds_and_kinds_before_what_was_never_tried():
    bank = [Banked(number, data, "d", labels) for number, data, labels in
            [(1, "a", "x"), (2, "b", "y"), (3, "c", "z"), (4, "d", "z"), (5, "e", "w"), (6, "own", "z")]]  # fmt: skip
    gains = Gains(
        {("a", "own"): Gain(2, 1.5), ("d", "own"): Gain(0, 1.0, 1)},
        {("y", "z"): Gain(1, 3.0), ("w", "z"): Gain(3, 0.9)},
    )
    assert [offer.banked.job for offer in offers(bank, "own", "z", gains)] == [1, 2, 3]
    assert [offer.banked.job for offer in offers(bank, "own", None, gains)] == [1, 2, 3, 5]
    assert [offer.same_kind for offer in offers(bank, "own", "z", gains)] == [False, False, True]


def test_gains_are_averaged_as_ratios():
    assert gain_of([4.0, 1.0, None]) == Gain(2, 2.0, 1)


def test_data_of_a_file_is_its_whole_path():
    spec = JobSpec(name="x", recipe="text-classifier", params={"data": "mails.csv"}, workdir="/w")
    assert data_of(spec) == "/w/mails.csv"

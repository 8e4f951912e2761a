"""What is said of a job that waits behind another one, or is packed with nobody: by name, with what would change it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from e2e import DaemonProcess, Jobs, RunnerProcess, command, until
from stoker.engine.forecast.in_the_way import Before, before, unpacked
from stoker.engine.forecast.in_the_way import command as remedy
from stoker.engine.home import Home
from stoker.policies import registry
from stoker.policies.contract import Profile
from views import Job, make_view

HELD = Job(1, held=(0,))
GANG, SMALL = Job(2, gpus=2), Job(3)


@pytest.mark.parametrize(
    ("policy", "config", "jobs", "said"),
    [
        ("fifo", {}, [HELD, GANG, SMALL], Before(2, passes=True)),
        ("fifo", {}, [HELD, GANG, Job(3, gpus=2), Job(4, gpus=2)], Before(2, passes=False)),  # the key would not help
        ("fifo", {}, [HELD, Job(2, gpus=9), Job(3, gpus=2), Job(4)], Before(3, passes=True)),  # what can never start holds up nobody
        ("fifo", {"backfill": True}, [HELD, GANG, Job(3, gpus=2)], None),  # nobody holds it back: there is no room
        ("fifo", {}, [HELD, GANG], None),
        ("sjf", {}, [HELD, Job(2, gpus=2, remaining=5), Job(3, remaining=50)], Before(2, passes=True)),
        ("genie", {"backfill": False}, [HELD, GANG, SMALL], Before(2, passes=True)),
        (
            "priority",
            {},
            [Job(1, held=(0,), priority=9), Job(2, gpus=2, priority=5), Job(3, gpus=2), Job(4)],
            Before(3, passes=True),  # of its own priority
        ),
        ("tiresias", {}, [HELD, GANG, Job(3, gpus=2)], None),  # passes whoever does not fit, by itself
    ],
)
def test_who_is_before_it_and_whether_a_key_would_let_it_pass(policy: str, config: dict, jobs: Sequence[Job], said: Before | None) -> None:
    assert before(jobs[-1].id, registry.create(policy, config), make_view([2], jobs)) == said


def test_the_remedy_leaves_all_else_as_it_is() -> None:
    assert remedy("fifo", {"backfill": False}, "default", None) == "stoker policy set fifo backfill=true"
    auto = {"period": 1800.0, "objective": "jct"}
    said = remedy("priority", {"quantum": 0.5, "order": "age"}, "train", auto)
    assert said == "stoker policy set priority quantum=0.5 order=age backfill=true --pool train --auto --every 1800s --objective jct"


PROFILES = (Profile("small", utilisation=0.2, memory=0.3), Profile("large", utilisation=0.9, memory=0.9), Profile("unmeasured"))
MEASURED, LARGE, UNMEASURED = range(3)


def trained(number: int, **facts: object) -> Job:
    return Job(number, **{"run_time": 200.0, "remaining": 1000.0, "profile": MEASURED, **facts})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("holder", "waits", "config", "words", "named"),
    [
        ({"profile": UNMEASURED}, {}, {}, "how much {jobs} uses is not known yet", (1,)),
        ({}, {"profile": UNMEASURED}, {}, "how much {jobs} uses is not known yet", (2,)),
        ({"profile": UNMEASURED}, {"profile": UNMEASURED}, {}, "how much {jobs} use is not known yet", (1, 2)),
        ({"profile": LARGE}, {"profile": LARGE}, {}, "it and {jobs} would slow each other too much (sharing scores 4, at most 2)", (1,)),
        ({"profile": LARGE}, {}, {}, "the memory of a GPU does not hold it and {jobs}", (1,)),
        ({"remaining": 10.0}, {}, {}, "{jobs} ends so much sooner that it would be slowed for its whole remaining time", (1,)),
        ({}, {}, {"pack_knob": -1}, "pack_knob=-1 lets nobody share", ()),
        ({"gpus": 2, "held": (0, 1)}, {}, {}, "no job of its size runs alone that may be joined", ()),
    ],
)
def test_why_a_job_is_packed_with_nobody(holder: dict, waits: dict, config: dict, words: str, named: tuple) -> None:
    holds = trained(1, **{"held": (0,), **holder})
    view = make_view([len(holds.held)], [holds, trained(2, **waits)], profiles=PROFILES)
    found = unpacked(2, registry.create("lucid", config), view)
    assert found is not None and (found.words, found.jobs) == (words, named)


def test_of_a_job_that_is_packed_and_under_a_policy_that_does_not_pack_nothing_is_said() -> None:
    view = make_view([1], [trained(1, held=(0,)), trained(2)], profiles=PROFILES)
    assert unpacked(2, registry.create("lucid", {}), view) is None
    assert unpacked(2, registry.create("fifo", {}), view) is None


@pytest.mark.slow
def test_what_explain_says_would_let_it_pass_does(
    home: Home, start_daemon: Callable[..., DaemonProcess], start_runner: Callable[..., RunnerProcess]
) -> None:
    daemon = start_daemon()
    jobs = Jobs(daemon.client())
    start_runner(slots=2)
    first = jobs.shell("s1", "exec sleep 600")
    until(lambda: jobs.state(first) == "running")
    gang = jobs.shell("gang20", "exec sleep 600", gpus_min=2, gpus_max=2)
    last = jobs.shell("s2", "exec sleep 600")
    until(lambda: jobs.waits(last) == "behind")
    said = command(home, "explain", str(last)).out
    sentence = "gang20 (2 GPUs) is before it; 'stoker policy set priority backfill=true' would let it pass"
    assert sentence in said
    answer = jobs.client.get(f"/v1/jobs/{last}/explain")
    assert answer["before"] == {"id": gang, "name": "gang20", "gpus": 2, "remedy": "stoker policy set priority backfill=true"}
    assert command(home, *answer["before"]["remedy"].split()[1:]).code == 0
    until(lambda: jobs.state(last) == "running")
    command(home, "policy", "set", "lucid", "profiler_capacity=0")
    until(lambda: jobs.waits(gang) == "resources")
    third = jobs.shell("s3", "exec sleep 600")
    until(lambda: jobs.waits(third) == "resources")
    assert "; not packed: how much s1 and s3 use is not known yet" in command(home, "explain", str(third)).out
    for job in (first, last):
        jobs.act("cancel", job)
        jobs.ended(job)

"""`stoker submit --deadline` on a real daemon with a runner of two CPU slots: what is said, to people and to programs."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from e2e import DaemonProcess, Jobs, RunnerProcess, Said, command, end_workers, until
from stoker.engine.client import Client
from stoker.engine.forecast.start_ups import COMMAND
from stoker.engine.forecast.work_draws import SAID_SPREAD
from stoker.engine.home import Home

on_the_full_pool, on_the_empty_pool = pytest.mark.xdist_group("full-pool"), pytest.mark.xdist_group("empty-pool")

HOUR = 3600.0
FIELDS = {
    "status", "reason", "now", "runs", "simulated", "needs", "gpus", "demand", "steps", "end_50", "end_90", "others", "cpu_seconds",
}  # fmt: skip
PERCENT = re.compile(r"\((\d+)% of 32 simulated runs\)")


@pytest.fixture
def pool(home: Home, start_daemon: Callable[..., Any], start_runner: Callable[..., Any]) -> Jobs:
    daemon = start_daemon()
    start_runner("here", 2)
    return Jobs(daemon.client())


@contextmanager
def two_slots() -> Iterator[Home]:
    """A daemon and a runner for several tests."""
    path = Path(tempfile.mkdtemp(prefix="stoker-"))
    home = Home(path)
    daemon, runner = DaemonProcess(home), RunnerProcess(home)
    try:
        daemon.start()
        runner.start()
        yield home
    finally:
        daemon.end()
        runner.end()
        end_workers(home)
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def jobs_of(home: Home) -> Iterator[Jobs]:
    """What a test leaves is cancelled, but for what is called long: the next one finds no queue."""
    with closing(Client(home, url="", token="")) as client:
        jobs = Jobs(client)
        yield jobs
        others = "FROM jobs WHERE finished_at IS NULL AND name NOT LIKE 'long%'"
        for (job,) in jobs.sql(f"SELECT id {others}"):
            jobs.act("cancel", job)
        until(lambda: jobs.sql(f"SELECT count(*) {others}") == [(0,)])


@pytest.fixture(scope="module")
def empty_home() -> Iterator[Home]:
    with two_slots() as home:
        yield home


@pytest.fixture
def empty(empty_home: Home) -> Iterator[Jobs]:
    with jobs_of(empty_home) as jobs:
        yield jobs


@pytest.fixture(scope="module")
def full_home() -> Iterator[Home]:
    """Two jobs have the slots for an hour, as they say. For all tests of the module that only ask, or submit what never starts."""
    with two_slots() as home, closing(Client(home, url="", token="")) as client:
        jobs = Jobs(client)
        running = [jobs.shell(f"long{n}", "sleep 3600", estimate=HOUR) for n in range(2)]
        until(lambda: all(jobs.state(job) == "running" for job in running))
        yield home


@pytest.fixture
def full(full_home: Home) -> Iterator[Jobs]:
    with jobs_of(full_home) as jobs:
        yield jobs


def submit(home: Home, *options: str) -> Said:
    return command(home, "submit", *options, "--", sys.executable, "-c", "pass")


def forecast(home: Home, *options: str) -> dict[str, Any]:
    """Of a job that is submitted with --json."""
    said = submit(home, "--json", *options)
    assert said.code == 0, said.err
    (job,) = json.loads(said.out)["jobs"]
    found: dict[str, Any] = job["forecast"]
    assert found.keys() == FIELDS
    return found


@on_the_empty_pool
def test_an_empty_pool_keeps_a_generous_deadline(empty_home: Home, empty: Jobs) -> None:
    said = submit(empty_home, "--name", "easy", "--estimate", "10m", "--deadline", "2h")
    assert said.code == 0
    assert re.fullmatch(r"job \d+ easy\n", said.out), "stdout is for programs"
    assert "(in 2h): likely met (100% of 32 simulated runs); 9 of 10 runs end by " in said.err


def test_the_numbers_for_programs(home: Home, pool: Jobs) -> None:
    """Where nothing has run yet: no start-up has been measured."""
    before = time.time()
    found = forecast(home, "--estimate", "10m", "--deadline", "2h")
    after = time.time()
    assert (found["status"], found["reason"], found["runs"], found["simulated"]) == ("estimated", None, 32, 32)
    assert (found["gpus"], found["demand"]) == (1, "strict")
    assert 600 <= found["needs"] <= 600 + sum(COMMAND) + 1e-6, "its start, too, unless it has its slot already"
    (step,) = found["steps"]
    assert before <= step["deadline"] - 2 * HOUR <= after
    assert (step["probability"], step["impossible"]) == (1.0, False)
    assert before <= found["now"] <= after
    assert found["end_50"] - found["now"] == pytest.approx(600, rel=0.05)
    assert found["end_90"] - found["now"] == pytest.approx(600 * math.exp(1.28 * SAID_SPREAD), rel=0.1)
    assert found["others"] == {"deadlines": 0, "missed": 0.0}
    assert 0 < found["cpu_seconds"] < 5


@on_the_full_pool
def test_a_full_pool_keeps_a_near_deadline_hardly_and_says_which_it_would(full_home: Home, full: Jobs) -> None:
    """The first slot is free when the sooner of two jobs of about an hour ends."""
    found = forecast(full_home, "--estimate", "10m", "--deadline", "20m")
    assert found["steps"][0]["probability"] <= 0.1
    sooner = HOUR * math.exp(-0.55 * SAID_SPREAD)  # the median of the smaller of two normal draws is 0.55 deviations below the mean
    ((began,),) = full.sql("SELECT epoch(min(l.started_at)) FROM leases l JOIN jobs j ON j.id = l.job_id WHERE j.name LIKE 'long%'")
    assert found["end_50"] - began == pytest.approx(sooner + 600, rel=0.15)
    assert found["end_90"] > found["end_50"]
    said = submit(full_home, "--estimate", "10m", "--deadline", "20m")
    assert "unlikely (" in said.err and "the earliest that can be kept 9 times in 10 is " in said.err
    later = forecast(full_home, "--estimate", "10m", "--deadline", "6h")
    assert later["steps"][0]["probability"] == 1.0


@on_the_empty_pool
def test_an_impossible_deadline_is_said_to_be_and_the_job_is_taken(empty_home: Home, empty: Jobs) -> None:
    said = submit(empty_home, "--name", "dreamer", "--gpus", "2", "--estimate", "10h", "--deadline", "40m")
    assert said.code == 0
    assert "impossible: needs at least 10h on 2 GPUs, 40m are left; the earliest" in said.err
    assert empty.show("dreamer")["deadline"] is not None


@on_the_empty_pool
def test_of_unknown_duration_it_says_what_to_add(empty_home: Home, empty: Jobs) -> None:
    said = submit(empty_home, "--name", "riddle", "--deadline", "2h", "--priority", "3")
    assert said.code == 0 and said.out.startswith("job ")
    assert "not estimated: nothing tells how long it takes: give --estimate" in said.err


@on_the_full_pool
def test_soft_deadlines_have_a_line_each(full_home: Home, full: Jobs) -> None:
    said = submit(full_home, "--estimate", "10m", "--soft", "12m=100", "--soft", "1h=50", "--soft", "9h=10")
    first, second, third = said.err.splitlines()
    assert "for 100: unlikely" in first and "for 50: " in second and "for 10: likely met (100%" in third
    chances = [int(found[1]) for line in (first, second, third) if (found := PERCENT.search(line))]
    assert len(chances) == 3 and chances == sorted(chances)


@on_the_full_pool
def test_of_an_array_the_first_and_the_last_task_are_told(full_home: Home, full: Jobs) -> None:
    said = command(
        full_home, "submit", "--name", "sweep", "--array", "a=1,2,3", "--estimate", "1h", "--deadline", "1d", "--json", "--", "echo", "{a}"
    )  # fmt: skip
    first, middle, last = (row["forecast"] for row in json.loads(said.out)["jobs"])
    assert middle is None
    assert first["end_50"] < last["end_50"], "the last waits for the others"


@on_the_full_pool
def test_a_dry_run_says_the_same_and_submits_nothing(full_home: Home, full: Jobs) -> None:
    options = ("--name", "ghost", "--estimate", "10m", "--deadline", "20m")
    said = submit(full_home, "--dry-run", *options)
    assert said.code == 0 and "unlikely (" in said.err and "ghost" in said.out
    trial = json.loads(submit(full_home, "--dry-run", "--json", *options).out)["jobs"][0]["forecast"]
    real = forecast(full_home, *options)
    assert trial.keys() == real.keys() == FIELDS
    assert trial["end_90"] - trial["now"] == pytest.approx(real["end_90"] - real["now"], rel=0.1)
    assert full.sql("SELECT count(*) FROM jobs WHERE name = 'ghost'") == [(1,)]


@on_the_full_pool
def test_a_required_deadline_refuses_what_would_miss_it(full_home: Home, full: Jobs) -> None:
    refused = submit(full_home, "--name", "picky", "--estimate", "10m", "--deadline", "20m", "--require-deadline")
    assert refused.code == 4 and "nothing was submitted: picky: deadline " in refused.line
    taken = submit(full_home, "--name", "picky", "--estimate", "10m", "--deadline", "1d", "--require-deadline")
    assert taken.code == 0 and "likely met" in taken.err
    without = submit(full_home, "--name", "picky", "--require-deadline")
    assert without.code == 2 and "has a deadline" in without.line
    assert full.sql("SELECT count(*) FROM jobs WHERE name = 'picky'") == [(1,)]


@on_the_full_pool
def test_explain_says_how_it_stands_now(full_home: Home, full: Jobs) -> None:
    submit(full_home, "--name", "asked", "--estimate", "10m", "--deadline", "20m")
    until(lambda: "unlikely (" in command(full_home, "explain", "asked").out)  # as soon as its start is foretold
    answer = json.loads(command(full_home, "explain", "asked", "--json").out)
    assert answer["forecast"]["status"] == "estimated"
    full.act("cancel", "asked")
    until(lambda: full.state("asked") == "cancelled")
    assert json.loads(command(full_home, "explain", "asked", "--json").out)["forecast"] is None
    assert full.client.get("/v1/jobs/asked/forecast")["status"] == "ended"


@on_the_empty_pool
def test_what_waits_for_others_is_not_estimated(empty: Jobs) -> None:
    before = empty.shell("before", "sleep 60")
    after = empty.shell("after", "true", estimate=10.0, after=[{"job": str(before)}])
    answer = empty.client.get(f"/v1/jobs/{after}/forecast")
    assert answer["status"] == "waits" and answer["reason"] == f"waits for job {before} to end"


def test_a_pool_without_runners_is_not_estimated(home: Home, start_daemon: Callable[..., Any]) -> None:
    start_daemon()
    said = submit(home, "--estimate", "10m", "--deadline", "2h")
    assert said.code == 0 and said.out.startswith("job ") and "not estimated: no runner offers pool 'default' now" in said.err


@pytest.mark.xdist_group("clock")
@pytest.mark.slow
def test_under_leases_all_that_is_told_is_that_of_their_ends(
    home: Home, start_daemon: Callable[..., Any], start_runner: Callable[..., Any]
) -> None:
    """Nobody is displaced before the cycle ends: the start, the end of the holder's lease, the forecast, and what then happens."""
    (home.path / "config.toml").write_text("[guards]\nmin_run_time = 0\n")
    jobs = Jobs(start_daemon().client())
    start_runner("here", 1)
    assert command(home, "policy", "set", "unisched", "be_lease=15", "slo_leases=1", "overhead=1", "interrupt=false").code == 0
    holder = jobs.shell("holder", "sleep 600", estimate=HOUR)
    until(lambda: jobs.state(holder) == "running")
    time.sleep((1.0 - time.time()) % 15.0)  # leases end at multiples of 15 s
    lease_end = math.ceil(time.time() / 15.0) * 15.0
    job = jobs.shell("urgent", "sleep 2", estimate=2.0, demand={"kind": "strict", "tiers": [{"deadline": lease_end + 18, "reward": 100}]})
    found = until(lambda: (now := jobs.client.get(f"/v1/jobs/{job}/forecast"))["status"] == "estimated" and now)
    assert lease_end + 1 < found["end_50"] < lease_end + 6
    assert found["steps"][0]["probability"] == 1.0
    until(lambda: jobs.sql(f"SELECT est_start FROM jobs_now WHERE id = {job}")[0][0] is not None)
    said = command(home, "explain", str(job)).out
    assert "lease ends in " in said and "likely met (100% of 32 " in said and "at risk" not in said, said
    answer = jobs.client.get(f"/v1/jobs/{job}/explain")
    assert answer["waiting"]["est_start"] == pytest.approx(lease_end, abs=1)
    assert answer["deadline"]["verdict"] == "on time"
    until(lambda: jobs.state(job) == "completed")
    assert jobs.show("urgent")["finished_at"] == pytest.approx(found["end_50"], abs=12)
    assert re.search(r": met \d+s before\n", command(home, "explain", str(job)).out)


@pytest.mark.slow
def test_the_start_of_a_training_is_learnt_and_counts(home: Home, pool: Jobs) -> None:
    """A second of training is not done soon after a second: its start takes as long as that of the job before."""
    recipe = {"recipe": "toy", "params": {"step_ms": 1.0, "eval_every": 0, "checkpoint_every": 0}, "stop": {"iterations": 100}}
    recipe["warm"] = "off"  # so it starts cold
    first = pool.submit("first", **recipe)
    until(lambda: pool.state(first) == "completed")
    ((took,),) = pool.sql(
        "SELECT epoch(min(m.ts) - l.granted_at) FROM leases l JOIN metrics m ON m.lease_id = l.id"
        f" WHERE l.job_id = {first} GROUP BY l.granted_at"
    )
    assert took > 0.5
    job = {"name": "second", **recipe, "estimate": 1.0, "demand": {"kind": "strict", "tiers": [{"deadline": time.time() + took / 2 + 1}]}}
    body = {"jobs": [job], "provenance": {"argv": ["test"], "cwd": "/"}, "dry_run": True}
    found = pool.client.post("/v1/jobs", body)["jobs"][0]["forecast"]
    assert found["needs"] == pytest.approx(1.0 + took, abs=0.2)
    assert (found["steps"][0]["probability"], found["steps"][0]["impossible"]) == (0.0, True)

"""Two real jobs on one CPU slot: packed by Lucid from what it has measured.

By night, as measuring takes a minute. By day: two real jobs on a slot, test_shared_chaos.py; what is measured of them, Lucid's decision
in a daemon and the division of their time, test_shared_gpus.py; the same in the simulator, test_conformance.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e import DaemonProcess, Jobs, RunnerProcess, until
from stoker.engine.home import Home
from stoker.engine.sim.results.history import History
from stoker.engine.sim.run_options import Options
from stoker.engine.sim.simulator import simulate
from stoker.policies import registry
from stoker.runners.lease import processes

pytestmark = pytest.mark.nightly

#: It computes all the time, as little as that is.
TOY = {
    "recipe": "toy",
    "params": {"batch_size": 256, "samples": 4096, "width": 512, "step_ms": 0.0, "eval_every": 0, "checkpoint_every": 50},
    "grace": 20.0,
    "retries": {"limit": 5, "backoff": 0.1},
}
#: It waits for its data most of the time.
WAITS = {**TOY, "params": {"batch_size": 16, "samples": 4096, "width": 8, "step_ms": 20.0, "eval_every": 0, "checkpoint_every": 50}}
CONFIG = """
[runners]
telemetry_interval = 0.5
[guards]
min_run_time = 0.0
"""


@pytest.fixture
def start(home: Home, start_daemon: Callable[..., DaemonProcess], start_runner: Callable[..., RunnerProcess]) -> Iterator[Any]:
    """One slot under a policy; the daemon, its runner and its jobs. What runs at the end is cancelled."""
    opened: list[Jobs] = []

    def begin(policy: str, **config: int) -> tuple[DaemonProcess, RunnerProcess, Jobs]:
        home.config.write_text(CONFIG)
        daemon = start_daemon(env={"PYTHONPATH": str(Path(__file__).parents[1])})
        runner = start_runner(slots=1)
        opened.append(Jobs(daemon.client()))
        opened[0].client.post("/v1/policy", {"policy": policy, "interval": 5.0, "config": config})
        return daemon, runner, opened[0]

    yield begin
    for jobs in opened:
        end_all(jobs)


def end_all(jobs: Jobs) -> None:
    for (job,) in jobs.sql("SELECT id FROM jobs WHERE finished_at IS NULL"):
        jobs.act("cancel", job)
    until(lambda: not jobs.sql("SELECT 1 FROM jobs WHERE finished_at IS NULL"))


def shares(jobs: Jobs) -> dict[int, str]:
    return dict(jobs.sql("SELECT job_id, share FROM live_shares"))


def cores(jobs: Jobs, job: int) -> set[frozenset[int]]:
    """Cores on which the processes of a job may run: one set when all are alike."""
    ((pid,),) = jobs.sql(f"SELECT pid FROM workers JOIN leases l ON l.id = lease_id WHERE l.job_id = {job} ORDER BY l.id DESC LIMIT 1")
    return {frozenset(os.sched_getaffinity(one.pid)) for one in processes.descendants(pid, processes.table())}


def step(jobs: Jobs, job: int) -> int:
    return int(jobs.sql(f"SELECT coalesce(max(step), 0) FROM metrics WHERE job_id = {job}")[0][0])


def goes_on(jobs: Jobs, *those: int) -> None:
    """Until each has trained a few steps more."""
    for job in those:
        before = step(jobs, job)
        until(lambda job=job, before=before: step(jobs, job) > before + 5)


def mine() -> frozenset[int]:
    return frozenset(os.sched_getaffinity(0))


def cores_are_one(jobs: Jobs, *those: int) -> None:
    """They share the first core that the runner may use, and no other."""
    own = frozenset(sorted(mine())[:1])
    until(lambda: all(cores(jobs, job) == {own} for job in those), says=lambda: str([cores(jobs, job) for job in those]))
    for job in those:
        assert json.loads((jobs.run_dir(job) / "cpus.json").read_text()) == {"cpus": 0.5}


def test_lucid_packs_jobs_that_wait_and_decides_the_same_when_their_history_is_replayed(start: Any) -> None:
    _, _, jobs = start("lucid")
    first = jobs.submit("first", **WAITS, stop={"iterations": 1_000_000})
    until(lambda: jobs.sql("SELECT 1 FROM speeds WHERE utilisation < 0.65"))
    assert cores(jobs, first) == {mine()}, "alone it may use what idle slots lend"
    second = jobs.submit("second", **WAITS, stop={"iterations": 1_000_000})
    until(lambda: jobs.state(second) == "running")
    assert shares(jobs) == {first: "packed", second: "packed"}
    assert jobs.sql("SELECT job_id, shared_with FROM gpus_now") == [(first, f"{second} second")]
    third = jobs.submit("third", **WAITS, stop={"iterations": 100})
    cores_are_one(jobs, first, second)
    goes_on(jobs, first, second)
    until(lambda: jobs.sql("SELECT 1 FROM slowdowns WHERE samples >= 2"))
    assert (jobs.state(third), jobs.waits(third)) == ("pending", "resources"), "there are never three"
    jobs.act("cancel", second)
    assert jobs.ended(third)["state"] == "completed"
    jobs.act("cancel", first)
    jobs.ended(first)
    assert starts(jobs) == [(first, "exclusive"), (second, "packed"), (third, "packed")] == replayed(jobs, "lucid")
    ((held, divided),) = jobs.sql("SELECT sum(epoch(until - since)), (SELECT sum(gpu_seconds) FROM gpu_time) FROM gpu_leased")
    assert divided == pytest.approx(held, abs=0.01), "their times add up to that of the slot"


def starts(jobs: Jobs) -> list[tuple[int, str]]:
    """Jobs in the order in which they started, and how they shared their GPUs then."""
    plans = jobs.sql("SELECT plan FROM decisions WHERE plan IS NOT NULL ORDER BY id")
    begun = [start for (plan,) in plans for start in json.loads(plan)["starts"]]
    return [(start["job"], start.get("share", "exclusive")) for start in begun]


def replayed(jobs: Jobs, policy: str) -> list[tuple[int, str]]:
    """The same in a simulation of the daemon's history."""
    history = History.of(jobs.client.get("/v1/simulations/history"))
    begun: list[tuple[int, str]] = []
    simulate(
        history.workload(), history.cluster(), registry.create(policy, {}), Options(),
        observer=lambda view, plan, actions: begun.extend((start.job, start.share) for start in actions.starts),
    )  # fmt: skip
    return [(history.jobs[number]["id"], share) for number, share in begun]


def test_lucid_packs_two_jobs_that_compute_where_its_knob_allows_it(start: Any) -> None:
    _, _, jobs = start("lucid", pack_knob=4)
    first = jobs.submit("first", **TOY, stop={"iterations": 1_000_000})
    until(lambda: jobs.sql("SELECT 1 FROM speeds WHERE utilisation IS NOT NULL"))
    second = jobs.submit("second", **TOY, stop={"iterations": 200})
    until(lambda: jobs.state(second) == "running")
    assert shares(jobs) == {first: "packed", second: "packed"}
    goes_on(jobs, first, second)
    cores_are_one(jobs, first, second)
    assert jobs.ended(second)["state"] == "completed"
    assert shares(jobs) == {first: "packed"}
    goes_on(jobs, first)

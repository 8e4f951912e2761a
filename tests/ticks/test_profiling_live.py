"""Profiling on real parts: a daemon, a runner of CPU slots, gangs of three; and the measuring run as a process of its own."""

import os
import signal

import pytest
from e2e import Jobs, rank_of, until

POLICY = '''
from dataclasses import dataclass
from stoker.policies.contract import Allocation, Phase, Plan

class ProfilesFirst:
    """First come, first served; who has to be profiled first, is."""
    @dataclass(frozen=True)
    class Config:
        pass
    name = "profiles-first"
    profiles = True
    def __init__(self, config):
        pass
    def plan(self, view):
        jobs, given = view.jobs, {}
        free = sorted(set(range(len(view.gpus))) - set(jobs.alloc_gpus.tolist()))
        for row in (jobs.phase == Phase.PENDING).nonzero()[0]:
            gang, wanted = int(jobs.gpus_min[row]), int(jobs.profile_gpus[row])
            profile = 0 < wanted < gang
            gpus = free[:wanted if profile else gang]
            if len(gpus) == (wanted if profile else gang):
                free = free[len(gpus):]
                given[int(jobs.id[row])] = Allocation(tuple(gpus), view.now + 300 if profile else None, profile=profile)
        return Plan(given)
'''
GANG = 3
TOY = {
    "recipe": "toy",
    "gpus_min": GANG,
    "gpus_max": GANG,
    "params": {"batch_size": 24, "step_ms": 2.0, "eval_every": 0, "checkpoint_every": 0},
}


@pytest.fixture
def jobs(home, start_daemon, start_runner):
    folder = home.path / "lib"
    folder.mkdir()
    (folder / "profiles_first.py").write_text(POLICY)
    (home.path / "config.toml").write_text("[guards]\nmin_run_time = 0\n[policy]\nname = 'profiles_first:ProfilesFirst'\n")
    daemon = start_daemon(env={"PYTHONPATH": str(folder)})
    start_runner(slots=GANG)
    return Jobs(daemon.client())


def losses(jobs: Jobs, job: int) -> list[tuple]:
    return jobs.sql(f"SELECT step, value FROM metrics WHERE job_id = {job} AND name = 'loss' ORDER BY step")


def states(jobs: Jobs, job: int) -> list[str]:
    return [event["after"] for event in jobs.events("job.state") if event["job_id"] == job]


@pytest.mark.xdist_group("clock")
@pytest.mark.nightly  # eight processes that train; what it says of the profiling run, the test below says too
def test_a_gang_is_profiled_on_two_slots_and_then_trains_as_if_it_had_not_been(jobs):
    profiled = jobs.submit("first", **TOY, stop={"iterations": 12})
    until(lambda: jobs.state(profiled) == "profiling")
    assert jobs.sql(f"SELECT gpus, state FROM jobs_now WHERE id = {profiled}") == [(2, "profiling")]
    row = jobs.ended(profiled)
    assert (row["state"], row["attempts"], row["preemptions"], row["failures"]) == ("completed", 1, 0, 0)
    assert states(jobs, profiled) == ["submitted", "pending", "profiling", "pending", "assigned", "starting", "running", "completed"]
    ((model, gang, compute, within, across, samples),) = jobs.sql(
        "SELECT model, gang, compute, within_node, across_nodes, samples FROM speeds"
    )
    assert (model, gang, across) == ("toy", GANG, None) and samples >= 1
    assert 0.002 < compute < 5 and 0 <= within < 5  # a step sleeps for 2 ms
    assert jobs.sql("SELECT profile, attempt, outcome, gpu_count FROM leases ORDER BY id") == [
        (True, 0, "profiled", 2), (False, 1, "completed", GANG),
    ]  # fmt: skip
    twin = jobs.submit("twin", **TOY, stop={"iterations": 12})
    assert jobs.ended(twin)["state"] == "completed"
    assert "profiling" not in states(jobs, twin)
    assert losses(jobs, twin) == losses(jobs, profiled) and len(losses(jobs, twin)) == 12


@pytest.mark.xdist_group("clock")
@pytest.mark.slow
@pytest.mark.nightly  # a store and a run that measures: test_profiling.py; gangs: test_training.py, test_gangs_over_hosts.py
def test_a_profiling_run_that_is_killed_is_made_again_and_the_gang_trains(jobs):
    job = jobs.submit("first", **TOY, stop={"iterations": 5}, retries={"limit": 1, "backoff": 1.0})
    os.kill(until(lambda: rank_of(jobs)), signal.SIGKILL)
    row = jobs.ended(job)
    assert (row["state"], row["failures"], row["preemptions"]) == ("completed", 1, 0)
    assert jobs.sql("SELECT profile, outcome, gpu_count FROM leases ORDER BY id") == [
        (True, "failed", 2), (True, "profiled", 2), (False, "completed", GANG),
    ]  # fmt: skip
    assert states(jobs, job) == [
        "submitted", "pending", "profiling", "pending", "profiling", "pending", "assigned", "starting", "running", "completed",
    ]  # fmt: skip
    ((gang, compute, across, samples),) = jobs.sql("SELECT gang, compute, across_nodes, samples FROM speeds")
    assert (gang, across) == (GANG, None) and samples >= 1 and compute > 0.002  # a step sleeps for 2 ms
    assert len(losses(jobs, job)) == 5

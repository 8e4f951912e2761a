"""CPU slots with a declared memory: what is placed by it, and what is learnt there."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from e2e import DaemonProcess, Jobs, RunnerProcess, until
from one_runner import Host
from stoker.engine.estimation.speeds import write_utilisations
from stoker.engine.json_rows import objects
from stoker.engine.protocol import Record, Records, Sample, Speed
from stoker.engine.store.store import Store
from stoker.policies.contract import Allocation

GIB = 1 << 30


def test_jobs_are_placed_by_the_memory_that_slots_are_declared_to_have(
    start_daemon: Callable[..., DaemonProcess], start_runner: Callable[..., RunnerProcess]
) -> None:
    jobs = Jobs(start_daemon().client())
    small = start_runner("here", 2, "--slot-memory", str(GIB))
    assert jobs.sql("SELECT DISTINCT kind, memory FROM gpus_now") == [("cpu", GIB)]
    large = jobs.submit("large", "true", gpu_memory=2 * GIB)
    until(lambda: jobs.waits(large) == "impossible")
    assert "2 GiB" in jobs.client.get("/v1/jobs/large")["waiting"]["reason"]
    body = {"jobs": [{"name": "dry", "command": ["true"], "gpu_memory": 2 * GIB}], "provenance": {"argv": ["test"], "cwd": "/"}}
    (dry,) = jobs.client.post("/v1/jobs", {**body, "dry_run": True})["jobs"]
    assert dry["est_start"] is None and "2 GiB" in dry["reason"]
    assert jobs.ended(jobs.submit("fits", "true", gpu_memory=GIB))["state"] == "completed"
    assert jobs.ended(jobs.submit("says-nothing", "true"))["state"] == "completed"
    assert jobs.state(large) == "pending"
    # The same runner with other slots.
    small.end()
    start_runner("here", 2, "--slot-memory", str(4 * GIB))
    assert jobs.ended(large)["state"] == "completed"


@pytest.mark.parametrize(("declared", "known"), [(0, 3 * GIB), (2 * GIB, 2 * GIB), (8 * GIB, 3 * GIB)])
def test_what_has_run_on_a_slot_needs_no_more_than_the_slot_has(store: Store, declared: int, known: int) -> None:
    host = Host(store, memory=declared)
    job = host.submit("a")
    assert host.tick({job: Allocation((0,))}) == "applied"
    host.runs(job)
    now, lease = time.time(), host.lease(job)
    speed = Record(seq=1, ts=now, step=1, speed=Speed(compute=0.1, steps=20))
    samples = [Sample(ts=now + 1 + i, gpu="n1/cpu0", lease=lease, utilisation=1.0, memory_used=3 * GIB) for i in range(3)]
    host.report(records=[Records(lease=lease, rank=0, records=[speed])], samples=samples)
    store.write(write_utilisations, objects(store, "policy/utilisations", now - 60))
    assert host.rows("SELECT peak_memory FROM speeds") == [(known,)]
    assert objects(store, "policy/utilisations", now - 60) == [], "nothing more is known now"

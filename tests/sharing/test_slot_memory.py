"""CPU slots with a declared memory: what is placed by it, and what is learnt there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from e2e import DaemonProcess, Jobs, RunnerProcess, until
from msgspec import convert
from one_runner import Host
from stoker.engine.errors import UsageError
from stoker.engine.estimation.speeds import write_utilisations
from stoker.engine.jobs.submission import check, pools_of
from stoker.engine.json_rows import objects
from stoker.engine.protocol import Record, Records, Sample, Speed
from stoker.engine.spec.model import JobSpec
from stoker.engine.store.store import Store
from stoker.policies.contract import Allocation

GIB = 1 << 30


def test_jobs_are_placed_by_the_memory_that_slots_are_declared_to_have(
    start_daemon: Callable[..., DaemonProcess], start_runner: Callable[..., RunnerProcess]
) -> None:
    jobs = Jobs(start_daemon().client())
    small = start_runner("here", 2, "--slot-memory", str(GIB))
    assert jobs.sql("SELECT DISTINCT kind, memory FROM gpus_now") == [("cpu", GIB)]
    assert jobs.ended(jobs.submit("fits", "true", gpu_memory=GIB))["state"] == "completed"
    assert jobs.ended(jobs.submit("says-nothing", "true"))["state"] == "completed"
    for options in ({}, {"dry_run": True}):
        body = {"jobs": [{"name": "large", "command": ["true"], "gpu_memory": 2 * GIB}], "provenance": {"argv": ["test"], "cwd": "/"}}
        with pytest.raises(UsageError, match=r"gpu_memory: large needs 2048 MiB of a GPU, pool 'default' has 1024 MiB at most"):
            jobs.client.post("/v1/jobs", body | options)
    assert jobs.sql("SELECT count(*) FROM jobs") == [(2,)]
    # The same runner with other slots.
    small.end()
    large = start_runner("here", 2, "--slot-memory", str(4 * GIB))
    submitted = jobs.submit("large", "true", gpu_memory=2 * GIB, hold=True)
    large.end()
    start_runner("here", 2, "--slot-memory", str(GIB))
    jobs.act("release", submitted)
    until(lambda: jobs.waits(submitted) == "impossible")
    reason = jobs.client.get("/v1/jobs/large")["waiting"]["reason"]
    assert "needs 1 GPU of 2 GiB; the pool has only 0" in reason and "'memory: {cap: SIZE}', or a smaller cap, trains in less" in reason


NEEDS = {
    "a command": ({"command": ["true"], "gpu_memory": 2 * GIB}, r"gpu_memory: .* has 1024 MiB at most: lower it, or add a runner$"),
    "a training": ({"recipe": "toy", "gpu_memory": 2 * GIB}, r"gpu_memory: .*, or write 'memory: \{cap: 1024MiB\}' in its place, which"),
    "a cap": ({"recipe": "toy", "memory": {"cap": GIB + 1}}, r"memory.cap: large needs 1025 MiB of a GPU, pool 'default' has 1024 MiB at"),
    "a share": (
        {"command": ["true"], "gpu_memory": GIB, "share": {"gpu": "packed", "memory": 2 * GIB}}, r"share.memory: .*: lower it, or add a r"
    ),
    "a gang": ({"command": ["true"], "gpus_min": 2, "gpus_max": 2, "gpu_memory": 2 * GIB}, r"needs 2048 MiB of each GPU.*at most: lower"),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "line"), NEEDS.values(), ids=NEEDS)
def test_what_is_too_large_for_every_gpu_is_refused_with_what_would_fit(fields: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        check([convert({"name": "large", **fields}, JobSpec)], {"default": {GIB: 2, GIB // 2: 4}}, 0.0)


def test_where_a_gpu_is_large_enough_or_its_memory_is_not_known_nothing_is_refused() -> None:
    pools = pools_of([("known", GIB, 1), ("known", 4 * GIB, 1), ("unknown", 0, 1), ("unknown", GIB, 3), ("away", GIB, 0)])
    assert pools == {"known": {GIB: 1, 4 * GIB: 1}, "unknown": {0: 1, GIB: 3}, "away": {GIB: 0}}
    for pool in pools:
        check([JobSpec(name="a", pool=pool, command=("true",), gpu_memory=3 * GIB)], pools, 0.0)
    for pool in ("known", "unknown"):
        with pytest.raises(UsageError, match="has 1024 MiB at most"):
            check([JobSpec(name="a", pool=pool, command=("true",), gpu_memory=3 * GIB, gpus_min=2, gpus_max=2)], pools, 0.0)


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

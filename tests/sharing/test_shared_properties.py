"""Whatever is asked for: no GPU holds more than its memory or more than its kind allows, and the times of those on it add up to its own."""

from __future__ import annotations

import numpy as np
import pytest
from accounts import costs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from one_runner import Host
from packs_all import PacksAll
from scripted import run, workload
from stoker.engine.jobs.leases import Grant
from stoker.engine.scheduling.enact import Decision, Enactment, enact
from stoker.engine.sim.run_options import Costs
from stoker.engine.spec.model import Share
from stoker.engine.store.store import Store
from stoker.policies.contract import PACKED, Allocation, Group

GIB = 1 << 30
NOTHING = Decision("default", "test", 0, 0.0, 0.0, 1, 0, "ok", None, 0.0, 0.0, 0.0, "applied")
#: What jobs take of a GPU of 4 GiB, 0: not said; and whether they let others beside them.
JOBS = st.lists(st.tuples(st.sampled_from([3, 2, 1, 0]), st.sampled_from([None, None, "packed", "exclusive"])), min_size=3, max_size=5)
#: A plan that gives a job GPUs beside all who are there; a decision from before, of which nobody knows any more; an end.
WHAT = st.sampled_from(["plan", "plan", "late and packed", "late and packed", "late and alone", "end"])
STEPS = st.lists(st.tuples(WHAT, st.integers(0, 4), st.sampled_from([(0,), (0,), (0, 1)])), min_size=3, max_size=9)


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(JOBS, STEPS)
def test_no_gpu_holds_more_than_its_memory_or_its_kind_allows(
    store: Store, jobs: list[tuple[int, str | None]], steps: list[tuple[str, int, tuple[int, ...]]]
) -> None:
    host = Host(store, memory=4 * GIB)
    numbers = [
        host.submit(f"job-{number}", gpu_memory=size * GIB, gpus_max=2, share=None if share is None else Share(gpu=share))
        for number, (size, share) in enumerate(jobs)
    ]
    for what, number, gpus in steps:
        job = numbers[number % len(numbers)]
        if what == "plan":
            beside = {other: allocation for other, allocation in held(host).items() if set(allocation) & set(gpus)}
            groups = [Group(PACKED, (*beside, job))] if beside and job not in beside else []
            host.tick({**{other: Allocation(gpus) for other, gpus in beside.items()}, job: Allocation(gpus)}, groups=groups)
        elif what.startswith("late"):
            slots = tuple((f"n1/cpu{gpu}", "n1") for gpu in gpus)
            share, memory = ("packed", jobs[number % len(jobs)][0] * GIB) if what.endswith("packed") else ("exclusive", 0)
            host.store.write(enact, Enactment(NOTHING, grants=[Grant(job, slots, None, share=share, memory=memory)]))
        elif job in held(host):
            host.ends(job)
        holds(host)
    for job in held(host):
        host.ends(job)


def held(host: Host) -> dict[int, tuple[int, ...]]:
    """Rows of the GPUs of each job that has some."""
    found: dict[int, list[int]] = {}
    for job, gpu, _ in host.shares():
        found.setdefault(job, []).append(int(gpu.removeprefix("n1/cpu")))
    return {job: tuple(gpus) for job, gpus in found.items()}


def holds(host: Host) -> None:
    rows = host.rows(
        "SELECT gpu_id, count(*), count(*) FILTER (s.share = 'exclusive'), sum(j.gpu_memory) "
        "FROM live_shares s JOIN jobs j ON j.id = s.job_id GROUP BY gpu_id"
    )
    for gpu, holders, alone, memory in rows:
        assert holders == 1 or (alone == 0 and memory <= 4 * GIB), (gpu, host.shares())


ROWS = st.lists(st.tuples(st.integers(0, 60).map(float), st.integers(0, 90).map(float), st.just(1)), min_size=1, max_size=8)


@given(ROWS, costs, st.sampled_from([1.0, 1.7]), st.sampled_from(["1x1", "1x2"]), st.integers(0, 3))
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_in_the_simulator_the_times_of_jobs_add_up_to_that_of_the_gpus(
    rows: list[tuple[float, float, int]], charged: Costs, slowdown: float, nodes: str, seed: int
) -> None:
    named = {name: getattr(charged, name) for name in Costs.__slots__}
    most = 0
    attained: dict[int, float] = {}

    def look(view: object, plan: object, actions: object) -> None:
        nonlocal most
        jobs = view.jobs  # type: ignore[attr-defined]
        most = max(most, np.bincount(jobs.alloc_gpus, minlength=1).max())
        for job, service in zip(jobs.id.tolist(), jobs.attained.tolist(), strict=True):
            assert service >= attained.get(job, 0.0) - 1e-6, "service is taken back"
            attained[job] = service

    result = run(workload(rows), PacksAll(PacksAll.Config()), nodes, Costs(**{**named, "packing_slowdown": slowdown}), look, seed=seed)
    fates, usage = result.fates, result.usage
    assert most <= 2 and (usage.busy <= int(nodes[-1])).all()
    assert fates.gpu_time.sum() == pytest.approx((np.diff(usage.ts) * usage.busy[:-1]).sum(), abs=1e-6)
    assert all(service <= fates.gpu_time[job] + 1e-6 for job, service in attained.items())
    assert (fates.run_time >= fates.gpu_time - 1e-6).all() and (fates.run_time <= 2 * fates.gpu_time + 1e-6).all()

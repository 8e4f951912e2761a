"""A job that is alone in its pool is never suspended: every policy, on real stores and simulated, however late a plan is in force."""

from __future__ import annotations

import math
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stoker.engine.config import Config, Guards, PolicyDefault
from stoker.engine.fleet import registration as runners
from stoker.engine.fleet.watch import look_at_leases
from stoker.engine.jobs.submission import SubmitRequest, submit
from stoker.engine.protocol import VERSION, GpuInfo, Hello, Report, WorkerUpdate
from stoker.engine.scheduling.guards import PreemptionLimits
from stoker.engine.scheduling.ticks import Scheduling
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.run_options import Costs, Errors, Options
from stoker.engine.sim.simulator import simulate
from stoker.engine.sim.workload import make_workload
from stoker.engine.spec.model import Demand, JobSpec, Provenance, Submission, Tier
from stoker.policies import registry
from stores import reopened

START = 1_800_000_003.2  #: a little after the beginning of a cycle
LASTS = 130.0  #: seconds for which a live job is watched: several leases
#: Leases as short as they may be, so that many of them end.
SHORT: dict[str, dict[str, Any]] = {
    "unisched": {"be_lease": 20.0, "slo_leases": 2}, "chronus": {"be_lease": 20.0, "slo_leases": 2}, "themis": {"lease_term": 60.0},
    "lucid": {"profile_time": 40.0}, "gandiva": {"slice": 30.0},
}  # fmt: skip
GPUS = 4

policies = pytest.mark.parametrize("name", sorted(registry.POLICIES))
gangs = st.sampled_from([1, 2, 4])
demands = st.sampled_from(["best-effort", "strict", "late"])
min_run_times = st.sampled_from([0.0, 30.0, 47.3])


def test_every_policy_that_gives_leases_gives_short_ones_here():
    for name, config in SHORT.items():
        registry.create(name, config)


class Tasks:
    """In the place of the periodic tasks: when the pool is to be asked."""

    def __init__(self) -> None:
        self.due: set[float] = set()
        self.soon = False

    def every(self, *_: Any, **__: Any) -> None:
        pass

    def wake(self, _: str) -> None:
        self.soon = True

    def wake_at(self, _: str, moment: float) -> None:
        self.due.add(moment)


class Pool:
    """Four slots. Time passes from tick to tick, and while the decision of a tick is being committed."""

    def __init__(self, path: Path, name: str, guards: Guards, specs: list[JobSpec], chance: random.Random) -> None:
        self.now, self.delay, self.chance = START, 0.0, chance
        self.store = reopened(path, clock=lambda: self.now + self.delay)
        gpus = [GpuInfo(id=f"n1/cpu{i}", index=i, kind="cpu", name="cpu") for i in range(GPUS)]
        self.store.write(runners.hello, Hello(protocol=VERSION, version="t", node="n1", host="h", boot_id="b", pid=1, pid_started=1.0,
                         home="/h", address="localhost", pool="default", gpus=gpus, leases=[]))  # fmt: skip
        self.tasks = Tasks()
        config = Config(policy=PolicyDefault("fifo"), guards=guards)
        self.scheduling = Scheduling(self.store, self.tasks, config, lambda: self.now)  # type: ignore[arg-type]
        self.scheduling.reload()
        self.scheduling._pools["default"].policy = registry.create(name, SHORT.get(name, {}))
        self.store.write(submit, SubmitRequest(Submission(jobs=specs, provenance=Provenance(argv=[], cwd="/")), "ann"))

    def tick(self) -> None:
        self.delay = self.chance.uniform(0.005, 0.06)
        self.scheduling.tick("default")
        self.now, self.delay = self.now + self.delay, 0.0

    def run(self, interval: float) -> None:
        """Ticks at their appointments, a little late, and in rounds; the clock looks before and after each."""
        self.tick()
        update = WorkerUpdate(lease=1, state="running", ts=self.now, pid=7, pid_started=1.0, boot_id="b", run_dir="/r")
        self.store.write(runners.report, Report(node="n1", session=1, workers=[update], records=[]))
        while self.now < START + LASTS and not self.stops():
            coming = [moment for moment in self.tasks.due if moment > self.now]
            self.now = min([*coming, (math.floor(self.now / interval) + 1) * interval])
            self.now += self.chance.choice([0.0, self.chance.uniform(0.0, 0.02)])
            self.look()
            self.tick()
            self.look()
            self.tick()  # a commit wakes the pool

    def look(self) -> None:
        look_at_leases(self.store, self.now, self.scheduling.asked_at, self.scheduling.spared, self.tasks.wake)

    def stops(self) -> list[Any]:
        with self.store.read() as con:
            return con.execute("SELECT id, stop_reason, epoch(stop_at) FROM leases WHERE stop_reason IS NOT NULL").fetchall()

    def errors(self) -> list[Any]:
        with self.store.read() as con:
            return con.execute("SELECT error FROM decisions WHERE error IS NOT NULL").fetchall()


def demand_of(kind: str, seconds: float) -> Demand:
    """``late``: a strict deadline that passes while the job runs."""
    if kind == "best-effort":
        return Demand()
    return Demand("strict", (Tier(START + (10.0 * seconds if kind == "strict" else 0.5 * seconds)),))


real = given(
    gpus=gangs, kind=demands, min_run_time=min_run_times, estimate=st.sampled_from([None, 15.0, 1000.0]),
    interval=st.sampled_from([13.0, 50.0]), seed=st.integers(0, 2**16),
)  # fmt: skip


def keeps_its_first_lease(
    template: Path, name: str, gpus: int, kind: str, min_run_time: float, estimate: float | None, interval: float, seed: int
) -> None:
    spec = JobSpec(name="alone", command=("sleep", "1000"), gpus_min=gpus, gpus_max=gpus, estimate=estimate, demand=demand_of(kind, 100.0))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stoker.duckdb"
        shutil.copy(template, path)
        pool = Pool(path, name, Guards(min_run_time=min_run_time), [spec], random.Random(seed))
        try:
            pool.run(interval)
            assert pool.errors() == []
            assert pool.stops() == []
            assert pool.now >= START + LASTS
        finally:
            pool.store.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SHORT))
@settings(max_examples=2)
@real
@pytest.mark.sampled(2)
def test_alone_on_a_real_store_it_keeps_its_first_lease(template: Path, name: str, **drawn: Any):
    keeps_its_first_lease(template, name, **drawn)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(registry.POLICIES.keys() - SHORT.keys()))
@settings(max_examples=1)
@real
@pytest.mark.sampled(5)
def test_so_it_does_where_leases_have_no_end(template: Path, name: str, **drawn: Any):
    keeps_its_first_lease(template, name, **drawn)


@pytest.mark.parametrize("name", ["unisched", "chronus"])
@pytest.mark.parametrize("min_run_time", [0.0, 30.0])
@pytest.mark.sampled(2)
def test_beside_one_who_waits_a_lease_ends_only_if_the_policy_says_so(database: Path, name: str, min_run_time: float):
    """The job that runs has far less left than the one that waits, so it is chosen in every cycle."""
    short, long = (
        JobSpec(name=name, command=("sleep", "1000"), gpus_min=GPUS, gpus_max=GPUS, estimate=estimate)
        for name, estimate in (("short", 400.0), ("long", 40_000.0))
    )
    pool = Pool(database, name, Guards(min_run_time=min_run_time), [short, long], random.Random(0))
    pool.run(50.0)
    assert pool.stops() == []
    with pool.store.read() as con:
        assert con.execute("SELECT epoch(expires_at) > ? FROM leases", [pool.now]).fetchall() == [(True,)]
        assert con.execute("SELECT max(epoch(expires_at) - epoch(granted_at)) > 60 FROM leases").fetchall() == [(True,)]
    pool.store.close()


@policies
@settings(max_examples=10)
@given(
    lengths=st.lists(st.floats(1.0, 400.0), min_size=1, max_size=4), gpus=gangs, kind=demands, min_run_time=min_run_times,
    commit=st.sampled_from([0.0, 0.011, 0.042, 1.3]), wrong=st.sampled_from([0.0, 1.0]), costly=st.booleans(),
)  # fmt: skip
def test_alone_in_a_simulation_it_starts_once(
    name: str, lengths: list[float], gpus: int, kind: str, min_run_time: float, commit: float, wrong: float, costly: bool
):
    """One job after another, each alone."""
    submitted = [1000.0 * number + 3.2 for number in range(len(lengths))]
    factor = {"best-effort": None, "strict": 3.0, "late": 0.5}[kind]
    tiers = [[] if factor is None else [(at + factor * length + 5.0, 100.0)] for at, length in zip(submitted, lengths, strict=True)]
    workload = make_workload(
        "w", submitted, lengths, [gpus] * len(lengths), tiers=tiers, demand=[0 if factor is None else 2] * len(lengths)
    )
    options = Options(
        costs=Costs(suspend=4.0, resume=18.0, commit=commit) if costly else Costs(commit=commit),
        limits=PreemptionLimits(min_run_time, 10, 60.0),
        errors=Errors(duration=wrong),
    )
    result = simulate(workload, Cluster((GPUS,)), registry.create(name, SHORT.get(name, {})), options)
    assert result.fates.preemptions.tolist() == [0] * len(lengths)
    ended = ~np.isnan(result.fates.ended)
    assert (ended | result.fates.rejected).all()
    held = (result.fates.ended - result.fates.started)[ended]
    assert held == pytest.approx(np.array(lengths)[ended], abs=1e-6)

"""The end of a lease: the policy is asked in that moment, and what it does not renew ends with its plan, if somebody waits.

A bad policy keeps none.
"""

from __future__ import annotations

import itertools
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from e2e import DaemonProcess, Jobs, until
from msgspec.structs import replace
from stoker.engine.config import Config, Guards, PolicyDefault
from stoker.engine.fleet import registration as runners
from stoker.engine.fleet.watch import PATIENCE, look_at_leases
from stoker.engine.jobs.submission import SubmitRequest, submit
from stoker.engine.protocol import VERSION, GpuInfo, Hello, Report
from stoker.engine.scheduling.ticks import Scheduling
from stoker.engine.spec.model import JobSpec, Provenance, Submission
from stoker.policies.contract import Allocation, Plan, View
from stores import reopened

START = 1_000_000.0
TERM = 3.0
HELLO = Hello(
    protocol=VERSION, version="t", node="n1", host="h", boot_id="b", pid=1, pid_started=1.0, home="/h", address="localhost",
    pool="default", gpus=[GpuInfo(id=f"n1/cpu{i}", index=i, kind="cpu", name="cpu") for i in range(2)], leases=[],
)  # fmt: skip


class Terms:
    """Each job has the GPU of its row on leases of `TERM`; those named in ``renewed`` get another one when theirs has run out.

    Jobs for whom there is no such GPU wait.
    """

    @dataclass(frozen=True)
    class Config:
        pass

    name: ClassVar[str] = "terms"

    def __init__(self) -> None:
        self.renewed: set[int] = set()
        self.fails = False

    def plan(self, view: View) -> Plan:
        if self.fails:
            raise ZeroDivisionError("a policy is anybody's code")
        ends = dict(zip(view.jobs.id.tolist(), view.jobs.lease_end.tolist(), strict=True))
        rows = dict(zip(view.jobs.id.tolist(), itertools.count()))
        held = {job for job, end in ends.items() if math.isfinite(end)}
        wanted = [job for job in list(ends)[: len(view.gpus)] if job not in held or (job in self.renewed and ends[job] <= view.now)]
        return Plan({job: Allocation((rows[job],), view.now + TERM) for job in wanted})


class Woken:
    """In the place of the periodic tasks: what was to be woken, and when."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.now: list[str] = []

    def every(self, *_: Any, **__: Any) -> None:
        pass

    def wake(self, name: str) -> None:
        self.now.append(name)

    def wake_at(self, name: str, moment: float) -> None:
        assert name == "policy default"
        self.at.append(moment)


class Pool:
    """Two jobs on two slots, on a clock that the test turns."""

    def __init__(self, path) -> None:
        self.now, self.delay = START, 0.0
        self.store = reopened(path, clock=lambda: self.now + self.delay)
        self.store.write(runners.hello, HELLO)
        self.woken, self.policy = Woken(), Terms()
        self.start(min_run_time=0.0)
        self.submit("a", "b")

    def start(self, min_run_time: float) -> None:
        """The daemon starts, with this guard."""
        config = Config(policy=PolicyDefault("fifo"), guards=Guards(min_run_time=min_run_time))
        self.scheduling = Scheduling(self.store, self.woken, config, lambda: self.now)  # type: ignore[arg-type]
        self.scheduling.reload()
        self.scheduling._pools["default"].policy = self.policy  # type: ignore[assignment]

    def submit(self, *names: str) -> None:
        specs = [JobSpec(name=name, recipe="toy") for name in names]
        self.store.write(submit, SubmitRequest(Submission(jobs=specs, provenance=Provenance(argv=[], cwd="/")), "ann"))

    def tick(self) -> None:
        self.scheduling.tick("default")

    def look(self) -> None:
        look_at_leases(self.store, self.now, self.scheduling.asked_at, self.scheduling.spared, self.woken.wake)

    def leases(self) -> list[tuple[Any, ...]]:
        """Reason to stop, moment of that, end: of each lease, in seconds from the start."""
        with self.store.read() as con:
            rows = con.execute("SELECT stop_reason, epoch(stop_at), epoch(expires_at) FROM leases ORDER BY id").fetchall()
        return [(reason, None if stop is None else round(stop - START, 6), round(end - START, 6)) for reason, stop, end in rows]


@pytest.fixture
def pool(database: Path):
    made = Pool(database)
    made.tick()
    assert made.leases() == [(None, None, TERM)] * 2
    yield made
    made.store.close()


def test_the_policy_is_to_be_asked_at_the_very_end_of_a_lease(pool):
    assert pool.woken.at == [START + TERM]
    pool.now += 1.0
    pool.tick()
    assert pool.woken.at[1:] == [START + TERM], "a tick in between keeps the appointment"


def test_what_is_renewed_at_its_end_goes_on_and_what_is_not_ends_in_the_same_moment(pool):
    pool.policy.renewed = {1}
    pool.submit("c")
    pool.now += TERM
    pool.tick()
    assert pool.leases() == [(None, None, 2 * TERM), ("expired", TERM, TERM)]
    with pool.store.read() as con:
        query = "SELECT outcome, epoch(ts), plan ->> '$.stops[0].reason' FROM decisions ORDER BY id DESC LIMIT 1"
        assert con.execute(query).fetchall() == [("applied", pool.now, "expired")]
        assert con.execute("SELECT actor, reason FROM events WHERE kind = 'lease.stop'").fetchall() == [("daemon", "expired")]
    assert pool.woken.at[-1] == START + 2 * TERM
    pool.tick()
    assert pool.leases() == [(None, None, 2 * TERM), ("expired", TERM, TERM)], "while it stops its end is what it was"


def test_under_a_new_policy_leases_lose_their_ends_but_not_those_of_profiling_runs(pool):
    """Nothing else would ever end one that measures nothing."""
    pool.store.write(_make_profiling, 1)
    pool.scheduling._pools["default"].inherited = True
    pool.now += 1.0
    pool.tick()
    with pool.store.read() as con:
        ends = con.execute("SELECT id, epoch(expires_at) FROM leases ORDER BY id").fetchall()
    assert ends == [(1, START + TERM), (2, None)]
    pool.now = START + TERM
    pool.tick()
    with pool.store.read() as con:
        assert con.execute("SELECT stop_reason FROM leases ORDER BY id").fetchall() == [("expired",), (None,)]


def _make_profiling(tx, batch):
    tx.update("leases", ["id"], [{"id": lease, "profile": True} for lease in batch])
    return [None] * len(batch)


def test_what_is_not_renewed_goes_on_until_somebody_waits(pool):
    """Ending it would cost its work, and give nobody anything."""
    pool.now += TERM
    for _ in range(3):
        pool.tick()
        pool.now += PATIENCE
        pool.look()
    assert pool.leases() == [(None, None, TERM)] * 2
    pool.submit("c")
    pool.tick()
    assert [stop for stop, _, _ in pool.leases()] == ["expired", "expired"]


def test_nobody_gives_way_to_a_gang_that_the_pool_could_not_hold(pool):
    pool.store.write(submit, SubmitRequest(Submission(jobs=[JobSpec(name="wide", recipe="toy", gpus_min=2, gpus_max=2)],
                                                      provenance=Provenance(argv=[], cwd="/")), "ann"))  # fmt: skip
    pool.store.write(runners.report, Report(node="n1", session=1, gpus=[replace(HELLO.gpus[1], health="dirty")]))
    pool.now += TERM
    pool.tick()
    assert [stop for stop, _, _ in pool.leases()] == [None, None]


def test_a_lease_lasts_for_the_minimum_run_time_from_its_grant_on(database: Path):
    """The grant comes a little after the decision: protection and renewal are one moment all the same."""
    pool = Pool(database)
    pool.start(min_run_time=2 * TERM)
    pool.delay, pool.policy.renewed = 0.042, {1}
    pool.tick()
    pool.submit("c")
    granted = pool.delay
    assert pool.leases() == [(None, None, round(granted + 2 * TERM, 6))] * 2
    pool.now = START + 2 * TERM + granted / 2
    pool.tick()
    assert [stop for stop, _, _ in pool.leases()] == [None, None]
    pool.now = START + 2 * TERM + granted
    pool.tick()
    assert pool.leases()[0] == (None, None, round(granted + 3 * TERM, 6))
    assert pool.leases()[1][0] == "expired"
    pool.store.close()


def test_a_daemon_that_protects_longer_than_the_one_before_puts_off_the_ends_of_leases(pool):
    pool.submit("c")
    pool.start(min_run_time=2 * TERM)
    pool.now += TERM
    pool.tick()
    assert pool.leases() == [(None, None, 2 * TERM)] * 2
    assert pool.woken.at[-1] == START + 2 * TERM
    pool.look()
    assert [stop for stop, _, _ in pool.leases()] == [None, None]
    pool.now = START + 2 * TERM
    pool.tick()
    assert [stop for stop, _, _ in pool.leases()] == ["expired", "expired"]


def test_the_clock_asks_the_policy_before_it_ends_a_lease(pool):
    pool.policy.renewed = {1, 2}
    pool.now += TERM + 0.4
    pool.look()
    assert pool.woken.now == ["default"]
    assert [stop for stop, _, _ in pool.leases()] == [None, None]
    pool.tick()
    pool.woken.now.clear()
    pool.look()
    assert pool.woken.now == []
    assert [stop for stop, _, _ in pool.leases()] == [None, None]


def test_a_policy_that_fails_keeps_no_lease(pool):
    pool.policy.fails = True
    pool.now += TERM
    pool.tick()
    assert [stop for stop, _, _ in pool.leases()] == [None, None], "a plan that is none changes nothing"
    pool.look()
    assert pool.leases() == [("expired", TERM, TERM)] * 2


def test_a_policy_that_hangs_keeps_no_lease(pool):
    """It was asked before the leases ran out, and has not come back since."""
    pool.now += TERM + PATIENCE - 0.1
    pool.look()
    assert [stop for stop, _, _ in pool.leases()] == [None, None]
    pool.now += 0.1
    pool.look()
    assert [stop for stop, _, _ in pool.leases()] == ["expired", "expired"]


def test_a_lease_renewed_while_the_clock_looked_is_not_ended(pool):
    from stoker.engine.fleet.watch import run_out

    pool.policy.renewed = {1, 2}
    pool.now += TERM
    pool.tick()
    assert pool.store.write(run_out, [1, 2]) == 0
    assert [stop for stop, _, _ in pool.leases()] == [None, None]


FOREIGN = '''
import itertools, time
from dataclasses import dataclass
from stoker.policies.contract import Allocation, Phase, Plan

class Short:
    """Leases of 0.6 s, never renewed; gangs wait."""
    @dataclass(frozen=True)
    class Config:
        pass
    name = "short"
    def __init__(self, config):
        pass
    def plan(self, view):
        pending = view.jobs.id[(view.jobs.phase == Phase.PENDING) & (view.jobs.gpus_min == 1)].tolist()
        free = sorted(set(range(len(view.gpus))) - set(view.jobs.alloc_gpus.tolist()))
        return Plan({job: Allocation((gpu,), view.now + 0.6) for job, gpu in zip(pending, free)})
'''


#: Of a daemon whose clock does not look at leases: only the appointment at the end of a lease is left.
BLIND = "from stoker.engine import services\nservices.LEASE_CLOCK = 3600.0"


@pytest.mark.slow
@pytest.mark.usefixtures("database")
def test_the_end_of_a_lease_waits_for_no_look_of_the_clock(home):
    folder = home.path / "lib"
    folder.mkdir()
    (folder / "short_leases.py").write_text(FOREIGN)
    (home.path / "config.toml").write_text("[guards]\nmin_run_time = 0\n[policy]\nname = 'short_leases:Short'\ninterval = 3600\n")
    daemon = DaemonProcess(home, env={"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}, changes=BLIND)
    try:
        client = daemon.start()
        assert client.post("/v1/runner/hello", msgspec.to_builtins(HELLO))["session"] == 1
        jobs = Jobs(client)
        jobs.submit("waits", recipe="toy", gpus_min=2, gpus_max=2)
        for number in range(1, 4):
            job = jobs.submit(f"job-{number}", recipe="toy")
            query = f"SELECT epoch(stop_at) - epoch(expires_at) FROM leases WHERE job_id = {job} AND stop_at IS NOT NULL"
            ((lag,),) = until(lambda query=query: jobs.sql(query))
            assert lag >= 0
            client.post("/v1/runner/report", msgspec.to_builtins(_gone(number)))
    finally:
        daemon.end()


def _gone(lease: int) -> Any:
    from stoker.engine.protocol import Report, WorkerUpdate

    return Report(node="n1", session=1, workers=[WorkerUpdate(lease=lease, state="exited", ts=START, outcome="completed")])

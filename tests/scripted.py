"""What tests of the simulator share: policies that follow a script, what tries all schedules, short ways to run a case."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.results.result import Result
from stoker.engine.sim.run_options import Costs, Options
from stoker.engine.sim.simulator import Observer, simulate
from stoker.engine.sim.workload import Workload, make_workload
from stoker.policies import registry
from stoker.policies.contract import Allocation, Group, Phase, Plan, Policy, View, plan_of

Row = tuple[float, float, int]  #: submitted, duration, GPUs
FREE = Costs()


class Scripted:
    """A policy that answers as a function does."""

    @dataclass(frozen=True)
    class Config:
        pass

    name: ClassVar[str] = "scripted"

    def __init__(self, decide: Callable[[View], Plan], interval: float | None = None) -> None:
        self.decide, self.interval = decide, interval

    def plan(self, view: View) -> Plan:
        return self.decide(view)


class Timetable(Scripted):
    """From each moment on, the jobs named there have the GPUs named there; jobs that are given the same GPUs are packed."""

    def __init__(self, entries: Mapping[float, Mapping[int, tuple[int, ...] | Allocation]], interval: float | None = None) -> None:
        super().__init__(self._at, interval)
        self.entries = entries

    def _at(self, view: View) -> Plan:
        wanted = self.entries[max(moment for moment in self.entries if moment <= view.now)]
        at_hand = set(view.jobs.id[view.jobs.phase != Phase.STOPPING].tolist())
        given = {
            job: one if isinstance(one, Allocation) else Allocation(one) for job, one in wanted.items() if job in at_hand
        }  # fmt: skip
        users = defaultdict(set)
        for job, one in given.items():
            for gpu in one.gpus:
                users[gpu].add(job)
        groups = sorted({tuple(sorted(jobs)) for jobs in users.values() if len(jobs) > 1})
        wake_at = min((moment for moment in self.entries if moment > view.now), default=None)
        return plan_of(view, given, groups=[Group("packed", jobs) for jobs in groups], wake_at=wake_at)


def workload(rows: Sequence[Row], **columns: Any) -> Workload:
    submitted, duration, gpus = zip(*rows, strict=True) if rows else ((), (), ())
    return make_workload("test", submitted, duration, gpus, **columns)


def run(
    jobs: Workload | Sequence[Row],
    policy: Policy | str,
    nodes: str = "1x1",
    costs: Costs = FREE,
    observer: Observer | None = None,
    **options: Any,
) -> Result:
    """A simulation; a policy's name may be followed by its configuration: ``srtf,hysteresis=1``."""
    if isinstance(policy, str):
        name, *settings = policy.split(",")
        policy = registry.create(name, dict(setting.split("=") for setting in settings), interval=options.get("interval"))
    jobs = jobs if isinstance(jobs, Workload) else workload(jobs)
    return simulate(jobs, Cluster.parse(nodes), policy, Options(costs=costs, **options), observer=observer)


def in_one_pool(rows: Sequence[Row], gpus: int, *, shortest: bool, backfill: bool) -> list[float]:
    """When each job ends that is never preempted, in a pool without nodes: as plain as can be, to compare with.

    At each submission and end, those who wait are looked at in order and start when enough GPUs are free; without ``backfill`` up to the
    first who cannot. What ends at a moment makes room for what is submitted at that moment.
    """
    ends: dict[int, float] = {}
    moments = sorted({submitted for submitted, _, _ in rows})
    waits: list[int] = []
    while moments:
        now = moments.pop(0)
        waits += [job for job, row in enumerate(rows) if row[0] == now and job not in waits and job not in ends]
        waits.sort(key=lambda job: (rows[job][1], job) if shortest else job)
        free = gpus - sum(rows[job][2] for job, end in ends.items() if end > now)
        for job in list(waits):
            if rows[job][2] <= free:
                free -= rows[job][2]
                waits.remove(job)
                ends[job] = now + rows[job][1]
                moments = sorted({*moments, ends[job]})
            elif not backfill:
                break
    return [ends[job] for job in range(len(rows))]


def least_total_completion(rows: Sequence[Row]) -> float:
    """The least sum of completion times on one GPU over every preemptive schedule, by trying them all; times are whole numbers."""
    best: dict[tuple[int, tuple[int, ...]], float] = {}

    def cost(now: int, left: tuple[int, ...]) -> float:
        if not any(left):
            return 0.0
        if (now, left) not in best:
            ready = [job for job, units in enumerate(left) if units and rows[job][0] <= now]
            idle = [cost(now + 1, left)] if len(ready) < sum(1 for units in left if units) else []
            steps = (tuple(units - (other == job) for other, units in enumerate(left)) for job in ready)
            best[now, left] = min(
                [*idle, *((now + 1 if not step[job] else 0) + cost(now + 1, step) for job, step in zip(ready, steps, strict=True))]
            )
        return best[now, left]

    return cost(0, tuple(int(duration) for _, duration, _ in rows))


def feasible(rows: Sequence[Row], deadlines: Sequence[float]) -> bool:
    """Whether one GPU can meet all deadlines: no interval from a submission to a deadline holds more work than it is long."""
    return all(
        sum(work for (submitted, work, _), due in zip(rows, deadlines, strict=True) if submitted >= begin and due <= end) <= end - begin
        for (begin, _, _), end in itertools.product(rows, deadlines)
        if end > begin
    ) and all(due >= submitted + work for (submitted, work, _), due in zip(rows, deadlines, strict=True))


def arrays(result: Result) -> dict[str, np.ndarray]:
    """Every array of a result; what is not here is a time of the real clock or a count."""
    parts = {"fates": result.fates, "usage": result.usage, "bars": result.bars}
    return {f"{part}.{name}": getattr(table, name) for part, table in parts.items() for name in type(table).__slots__}

"""The daemon's own history, as a workload and as the real outcome to compare simulations with."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....policies.contract import PACKED, SWITCHED, Demand, Floats, Profile
from ..cluster import Cluster
from ..study import PolicyChoice, Run, StudyOutcome, WorkloadSource
from ..workload import Workload, make_workload
from .figures import FULL_REWARD
from .recorder import usage
from .result import Bars, Fates, Result, Usage, are_neighbours

AS_IT_WAS = "as it was"
_DEMANDS = {"best-effort": Demand.BEST_EFFORT, "soft": Demand.SOFT, "strict": Demand.STRICT}


@dataclass(frozen=True, slots=True)
class History:
    """Jobs that ran and have ended, ordered by the time when they could first run; rows of ``GET /v1/simulations/history``."""

    pool: str
    jobs: Sequence[Mapping[str, Any]]
    stays: Sequence[Mapping[str, Any]]  #: the jobs' holds of GPUs over time
    nodes: Sequence[int]  #: GPUs of each node of the pool now
    left_out: Mapping[str, int]  #: further jobs: ``not_ended``, ``never_ran``, ``servers``, ``held_before`` the first came
    models: Sequence[Mapping[str, Any]] = ()  #: models' use of a GPU, if measured
    slowdowns: Sequence[Mapping[str, Any]] = ()  #: models' slowdowns by each other on a GPU

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> History:
        more = (answer.get(name, ()) for name in ("models", "slowdowns"))
        return cls(answer["pool"], answer["jobs"], answer["stays"], answer["nodes"], answer["left_out"], *more)

    @property
    def begin(self) -> float:
        """Its second 0, since the epoch."""
        return float(self.jobs[0]["submitted"])

    def cluster(self) -> Cluster:
        return Cluster(tuple(self.nodes))

    def source(self) -> WorkloadSource:
        """Runs of the same jobs have the same digest, like those of one file."""
        return WorkloadSource(hashlib.sha256(json.dumps(self.jobs, sort_keys=True).encode()).hexdigest())

    def workload(self) -> Workload:
        """Each job takes its real GPU-time, start-up not counted, on the least GPUs that it needs.

        Slowdowns by others on its GPUs are not counted, as the policy of the replay chooses its partners. It is submitted when it
        could first run: earlier waits, for other jobs or a person, do not depend on the policy.
        """
        jobs = self.jobs
        return make_workload(
            f"history of {self.pool}",
            [job["submitted"] - self.begin for job in jobs],
            [job.get("work", job["attained"]) / job["gpus_min"] for job in jobs],
            [job["gpus_min"] for job in jobs],
            key=[f"{job['name']} #{job['id']}" for job in jobs],
            gpus_max=[job["gpus_max"] for job in jobs],
            priority=[job["priority"] for job in jobs],
            demand=[_DEMANDS[job["demand"]] for job in jobs],
            users=[job["owner"] for job in jobs],
            models=[job["model"] for job in jobs],
            tiers=[self._tiers(job) for job in jobs],
            estimate=[np.nan if job["estimate"] is None else job["estimate"] for job in jobs],
            gpu_memory=[job["gpu_memory"] for job in jobs],
            profiles=[Profile(row["model"], utilisation=_known(row["utilisation"]), memory=_known(row["memory"])) for row in self.models],
            slowdowns=self._slowdowns(PACKED),
            switched_slowdowns=self._slowdowns(SWITCHED),
            iterations=[job.get("steps") or np.nan for job in jobs],
            kind=[job.get("kind", "") for job in jobs],
            share=[job.get("share", "") for job in jobs],
        )

    def _slowdowns(self, kind: str) -> Floats | None:
        row_of = {row["model"]: number for number, row in enumerate(self.models)}
        table = np.full((len(row_of), len(row_of)), np.nan)
        for pair in self.slowdowns:
            if pair.get("kind", PACKED) == kind and pair["model"] in row_of and pair["beside"] in row_of:
                table[row_of[pair["model"]], row_of[pair["beside"]]] = pair["slowdown"]
        return None if np.isnan(table).all() else table

    def _tiers(self, job: Mapping[str, Any]) -> list[tuple[float, float]]:
        """Rewards as submitted, since policies weigh jobs by them. Jobs older than the limit of rewards may exceed it."""
        deadlines = [deadline - self.begin for deadline in job["deadlines"] or ()]
        return [(deadline, min(reward, FULL_REWARD)) for deadline, reward in zip(deadlines, job["rewards"] or (), strict=True)]

    def outcome(self, cluster: Cluster) -> StudyOutcome:
        """The real outcome of the jobs that fit the simulated cluster, so that both are of the same jobs.

        A lease counts from its grant to its end; time without training was lost.
        """
        place = {job["id"]: row for row, job in enumerate(self.jobs)}
        dropped = np.array([job["gpus_min"] > cluster.total for job in self.jobs], dtype=bool)
        stays = [stay for stay in self.stays if not dropped[place[stay["job_id"]]]]
        owner = np.array([place[stay["job_id"]] for stay in stays], dtype=np.int64)
        begins, ends = (np.array([stay[name] for stay in stays], dtype=np.float64) for name in ("begins", "ends"))
        gpus = np.array([stay["gpu_count"] for stay in stays], dtype=np.int64)
        begins, ends = begins - self.begin, np.maximum(ends, begins) - self.begin
        held, gpu_time = np.zeros(len(place)), np.zeros(len(place))
        np.add.at(held, owner, ends - begins)
        divided = np.array([_known(stay.get("gpu_seconds")) for stay in stays], dtype=np.float64)
        np.add.at(gpu_time, owner, np.where(np.isnan(divided), (ends - begins) * gpus, divided))
        attained = np.array([job["attained"] for job in self.jobs], dtype=np.float64)
        fates = Fates(
            started=np.array([job["started"] - self.begin for job in self.jobs]),
            ended=np.array([job["ended"] - self.begin for job in self.jobs]),
            run_time=held,
            gpu_time=gpu_time,
            lost=np.maximum(gpu_time - attained, 0.0),
            preemptions=np.where(dropped, 0, [job["preemptions"] for job in self.jobs]),
            rejected=np.zeros(len(place), dtype=bool),
            dropped=dropped,
        )
        bars = Bars(owner, begins, ends, np.array([min(stay["gpus"], default=0) for stay in stays], dtype=np.int64), gpus)
        # A GPU that has left the pool since has no place in the chart.
        apart = {row: some for row, stay in enumerate(stays) if len(some := stay["gpus"]) < gpus[row] or not are_neighbours(some)}
        result = Result(
            fates,
            self._usage(fates, bars, list(self._overlaps(stays))),
            bars.split(apart),
            events=0,
            decisions=0,
            plan_seconds=0.0,
            wall_seconds=0.0,
        )
        return StudyOutcome(Run(-1, PolicyChoice(AS_IT_WAS, AS_IT_WAS, {}), 0), result)

    def _overlaps(self, stays: Sequence[Mapping[str, Any]]) -> Iterator[tuple[float, int]]:
        """Moments at which a shared GPU gets one more holder, or, negative, one less."""
        changes: dict[int, list[tuple[float, int]]] = defaultdict(list)
        for stay in stays:
            for gpu in stay["gpus"] if stay.get("gpu_seconds") is not None else ():
                changes[gpu] += [(stay["begins"] - self.begin, 1), (max(stay["ends"], stay["begins"]) - self.begin, -1)]
        for of_gpu in changes.values():
            held = 0
            for moment, change in sorted(of_gpu):
                held += change
                if held + (change < 0) > 1:
                    yield moment, change

    def _usage(self, fates: Fates, stays: Bars, overlaps: Sequence[tuple[float, int]]) -> Usage:
        """State of the pool after each change, by these jobs alone."""
        moments, more = np.array(overlaps, dtype=np.float64).reshape(-1, 2).T
        submitted = np.array([job["submitted"] - self.begin for job in self.jobs])[~fates.dropped]
        state = usage(
            [
                (stays.begins, stays.gpus, 1, 0),
                (moments, -more, 0, 0),
                (stays.ends, -stays.gpus, -1, 0),
                (submitted, 0, 0, 1),
                (fates.ended[~fates.dropped], 0, 0, -1),
            ]
        )
        return dataclasses.replace(state, waiting=np.maximum(state.waiting, 0))  # a lease may end a moment after its job


def _known(value: float | None) -> float:
    return np.nan if value is None else value

"""The truth of a simulation: the speed of jobs, the costs of starts and stops, failures. Policies see none of this.

The speed of a known model depends on the number of GPUs, and on whether they are on one node or on several: 002 ch. 5.3.2.1
measures one communication time within a node and one between nodes, and leaves links of several speeds within a node to later work.
So neither cells within a node nor the number of nodes beyond one matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import combinations

import numpy as np

from ...policies.contract import PACKED, SWITCHED, Bools, Floats, Gpus, Profile, precedence
from ...policies.placement.cells import Grid
from .run_options import Costs, Errors
from .workload import Workload

_MAX_ENUMERATED = 6  #: equals in turns up to which each subset is computed; more keep a GPU busy all the time
LEAST_NOISE = 0.05  #: normal noise is cut off here, so that no job is believed to take no time
#: Standard error of the logarithm, if the length of a job that stops at a metric is taken from its maximum of iterations: by 002 fig. 5.1
#: it spares up to 22 % of them for the best metric, 31 % for 99 % of it; evenly up to either, the root mean of log(1 - spared)^2 is 0.17.
EARLY_SHARE = 0.17


def beliefs(workload: Workload, errors: Errors, seed: int) -> Floats:
    """Believed work over true work, one per job; NaN: no belief. The submitter's estimate counts before noise.

    Each job has one error, until its run corrects it (`errors_stay`): at every moment it is believed to have its true work left
    times that factor, as estimated from its steps with a wrong pace or end. So a job never overruns its estimate, and is never
    believed done.
    """
    factor = np.ones(len(workload))
    if errors.duration or errors.bias or errors.unknown:  # else there are no draws, and loading NumPy's generators takes 10 ms
        rng = np.random.default_rng([seed, 1])
        if errors.duration or errors.bias:
            factor = np.exp(rng.normal(errors.bias, errors.duration, len(workload)))
        factor[rng.random(len(workload)) < errors.unknown] = np.nan
    if errors.gaussian:
        noise = np.random.default_rng([seed, 3]).normal(1.0, errors.gaussian, len(workload))
        factor *= np.maximum(noise, LEAST_NOISE)
    said = ~np.isnan(workload.estimate) & (workload.duration > 0)
    factor[said] *= workload.estimate[said] / workload.duration[said]
    return factor


def errors_stay(ran: Floats, errors: Errors) -> Bools:
    """Whether the belief of jobs that have run for ``ran`` seconds still has its first error."""
    stay: Bools = ran < errors.corrected
    return stay


def unlearnt(progress: Floats, errors: Errors) -> Floats:
    """The believed share of the way from a job's end to its maximum, by its progress, if it stops at a metric.

    002 fig. 5.7c: the error of the predicted iterations falls as metrics come in. Here it does so evenly, to 0 at ``errors.iterations``.
    """
    if errors.iterations > 1:
        return np.ones_like(progress)
    share: Floats = np.maximum(1.0 - progress / errors.iterations, 0.0) if errors.iterations > 0 else np.zeros_like(progress)
    return share


class Truth:
    """Speeds and costs of one workload on one cluster."""

    def __init__(self, workload: Workload, gpus: Gpus, costs: Costs, seed: int) -> None:
        self._workload, self._costs, self._seed = workload, costs, seed
        self._node = gpus.node.tolist()
        self._gangs, self._profiles = workload.gpus_min.tolist(), workload.profile.tolist()
        self._grid = Grid(gpus.node, gpus.index)
        self._rate = cache(_rate)

    def fits(self) -> Bools:
        """Whether the cluster can hold each job."""
        fits: Bools = self._workload.gpus_min <= len(self._grid.node)
        return fits

    def speed(self, job: int, gpus: Sequence[int], partners: list[int], batch: int = 0, progress: float = 0.0, kind: str = PACKED) -> float:
        """Work per second: 1 on ``gpus_min`` GPUs of as few nodes as the cluster allows, alone, with its submitted batch size.

        ``partners``: jobs that share GPUs with it; ``batch``: the policy's batch size, 0: none; ``progress``: the done share of
        its work, on which the efficiency of large batches depends; ``kind``: of its sharing.
        """
        profile = self._profile(job)
        if profile is not None and profile.goodput is not None and batch > 0:
            least = self._gangs[job]
            own = int(self._workload.batch_size[job]) or profile.goodput.initial_batch
            alone = float(profile.goodput.rate(self._nodes(gpus), len(gpus), batch, progress))
            alone /= float(profile.goodput.rate(self._grid.nodes_needed(least, None), least, own, progress))
        elif profile is not None and profile.throughput is not None:
            least = self._gangs[job]
            needs_several = least > self._grid.largest(None)
            alone = self._rate(profile, len(gpus), self._nodes(gpus) > 1) / self._rate(profile, least, needs_several)
        else:
            slowdown = self._costs.spread_slowdown
            alone = 1.0 / slowdown if slowdown != 1.0 and self._is_scattered(gpus) else 1.0
        if not partners:
            return alone
        return alone * self._turns(job, partners) if kind == SWITCHED else alone / self._packing(job, partners)

    def _turns(self, job: int, partners: list[int]) -> float:
        """Its share of its speed alone if jobs take turns: a higher priority has the GPU for as long as it computes, others the rest.

        A higher priority computes for the part of the time in which it keeps a GPU busy alone; if that is not known, all the time.
        Equals have the same number of turns, each of one step, except those that load too long to ask for so many. If steps are not
        known, they have equal time. Slowdowns measured for the pair come first.
        """
        everyone = (job, *partners)
        rank = {one: self._rank(one) for one in everyone}
        left = 1.0
        for level in sorted({of for of in rank.values() if of >= rank[job]}, reverse=True):
            equals = [one for one in everyone if rank[one] == level]
            below = min(1.0, sum(self._busy(one) for one in everyone if rank[one] < level))
            if level == rank[job] and len(equals) == 2:
                measured = self._measured(self._workload.switched_slowdowns, job, next(iter(set(equals) - {job})))
                if measured is not None:
                    return max(left, 0.0) / measured
            wanted, turns, slower = self._wanted(equals, below)
            given = _divided(wanted, turns, left)
            left -= sum(given)
            if len(equals) == 1:  # after each of its steps the turn goes to lower priorities
                left -= self._costs.turn / (self._step(equals[0]) * slower[0])
        at = equals.index(job)
        return given[at] / wanted[at] / slower[at]

    def _wanted(self, equals: Sequence[int], below: float) -> tuple[list[float], list[float], list[float]]:
        """For jobs of one priority: the part of the time that each would use, the weight of its turns, and the factor on its steps.

        ``below``: part of the time in which jobs of lower priority would compute alone.
        """
        busy, steps = [self._busy(one) for one in equals], [self._step(one) for one in equals]
        if not all(map(math.isfinite, steps)):
            return busy, [1.0] * len(equals), [1.0] * len(equals)
        handed = self._costs.turn if len(equals) > 1 else 0.0
        cycles = [step + self._costs.pause * below for step in steps]
        turns = [part * step + handed for part, step in zip(busy, steps, strict=True)]
        if 1 < len(equals) <= _MAX_ENUMERATED:
            loads = [max(cycle - turn, 0.0) for cycle, turn in zip(cycles, turns, strict=True)]
            cycles = list(_cycles(tuple(loads), tuple(turns)))
        wanted = [turn / cycle for turn, cycle in zip(turns, cycles, strict=True)]
        return wanted, turns, [cycle / step for cycle, step in zip(cycles, steps, strict=True)]

    def _rank(self, job: int) -> int:
        kind, priority = self._workload.kind, int(self._workload.priority[job])
        return int(precedence(None if kind is None else kind[job], priority))

    def _busy(self, job: int) -> float:
        """Part of the time in which it keeps its GPU busy if it is alone."""
        profile = self._profile(job)
        return 1.0 if profile is None or not profile.utilisation > 0 else min(profile.utilisation, 1.0)  # NaN is not greater

    def _step(self, job: int) -> float:
        """Seconds of its step alone; inf: not known."""
        iterations, duration = float(self._workload.iterations[job]), float(self._workload.duration[job])
        return duration / iterations if iterations > 0 and duration > 0 else math.inf

    def _measured(self, slowdowns: Floats | None, job: int, partner: int) -> float | None:
        """The measured factor on its time beside another job; None: not measured."""
        rows = self._profiles[job], self._profiles[partner]
        measured = math.nan if slowdowns is None or min(rows) < 0 else float(slowdowns[rows])
        return None if math.isnan(measured) else measured

    def _nodes(self, gpus: Sequence[int]) -> int:
        return 1 if len(gpus) == 1 else len({self._node[gpu] for gpu in gpus})

    def _is_scattered(self, gpus: Sequence[int]) -> bool:
        """Whether they are on more nodes than so many GPUs need."""
        nodes = self._nodes(gpus)
        return nodes > 1 and nodes > self._grid.nodes_needed(len(gpus), None)

    def _packing(self, job: int, partners: list[int]) -> float:
        """The factor on its time by the jobs that share its GPUs.

        By the option, else as measured for the pair, else by their joint use beyond one whole GPU.
        """
        if self._costs.packing_slowdown is not None:
            return self._costs.packing_slowdown
        if len(partners) == 1 and (measured := self._measured(self._workload.slowdowns, job, partners[0])) is not None:
            return measured
        used = [profile.utilisation if (profile := self._profile(one)) is not None else math.nan for one in (job, *partners)]
        return 1.0 if any(math.isnan(share) for share in used) else max(1.0, sum(used))

    def _profile(self, job: int) -> Profile | None:
        row = self._profiles[job]
        return self._workload.profiles[row] if row >= 0 else None

    def start_cost(self, job: int, gpus: Sequence[int], *, resumed: bool) -> float:
        """Seconds from the grant of a lease until the job trains, on cold GPUs."""
        costs = self._costs
        return costs.resume + costs.resume_per_gpu * (len(gpus) - 1) if resumed else costs.cold_start

    def time_to_failure(self, job: int, gpus: int, attempt: int, *, profile: bool = False) -> float:
        """Seconds of training until it fails; inf: never. The draw depends on the job and the attempt, not on the policy.

        Profiling runs are counted apart.
        """
        rate = self._costs.failures_per_gpu_hour * gpus / 3600.0
        if rate <= 0:
            return math.inf
        return float(np.random.default_rng([self._seed, 4 if profile else 2, job, attempt]).exponential(1.0 / rate))


@lru_cache(maxsize=1024)
def _cycles(loads: tuple[float, ...], turns: tuple[float, ...]) -> tuple[float, ...]:
    """Least seconds from one step to the next of jobs that load and then queue: each sees the others as if it were not there, as in
    the mean value analysis of closed networks (Reiser and Lavenberg 1980).

    A job that does not load asks at the end of its step, so it waits for another's whole step; one that loads arrives during a step.
    """
    seen: dict[tuple[int, ...], dict[int, float]] = {(): {}}  #: by the present jobs: the cycle of each
    for size in range(1, len(loads) + 1):
        for there in combinations(range(len(loads)), size):
            seen[there] = {}
            for one in there:
                others = seen[tuple(other for other in there if other != one)]
                waits = sum(
                    turns[other] * (1 - loads[other] / cycle) - turns[other] / cycle * min(loads[one], turns[other] / 2)
                    for other, cycle in others.items()
                )
                seen[there][one] = loads[one] + turns[one] + max(waits, 0.0)
    return tuple(seen[tuple(range(len(loads)))].values())


def _divided(wanted: Sequence[float], weights: Sequence[float], whole: float) -> list[float]:
    """``whole`` divided by weights; none gets more than it wants, and the others share the rest."""
    given, left, weight = [0.0] * len(wanted), max(whole, 0.0), sum(weights)
    for number in sorted(range(len(wanted)), key=lambda one: wanted[one] / weights[one]):
        given[number] = min(wanted[number], left * weights[number] / weight)
        left, weight = left - given[number], weight - weights[number]
    return given


def _rate(profile: Profile, gpus: int, spread: bool) -> float:
    assert profile.throughput is not None
    return profile.throughput.rate(gpus, spread=spread)

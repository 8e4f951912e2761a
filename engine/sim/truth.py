"""The truth of a simulation: how fast jobs train, what starts and stops cost, when jobs fail. Policies see none of this.

The speed of a model that is known depends on the number of GPUs and on whether they are on one node or on several: 002 ch. 5.3.2.1
measures one communication time within a node and one between nodes, and leaves links of several speeds within a node to later work.
So neither cells within a node nor the number of nodes beyond the first play a part in it.
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

_FEW = 6  #: equals that take turns, of whom each group is looked at; more keep a GPU busy all the time
LEAST_NOISE = 0.05  #: normal noise is cut off here: nothing is believed to take no time
#: Standard error of the logarithm of what the maximum of iterations says of a job that stops at a metric: 002 fig. 5.1 has it spare up to
#: 22 % of them for the best metric and 31 % for 99 % of that; evenly up to either, the root of the mean of log(1 - spared)^2 is 0.17.
EARLY_SHARE = 0.17


def beliefs(workload: Workload, errors: Errors, seed: int) -> Floats:
    """Believed work over true work, one a job; NaN where nothing is believed. What the submitter says counts before noise.

    The error is of the job and stays, until what it has run corrects it (`errors_stay`): at every moment a job is believed to have so
    many times the work left that it has, as an estimate from its steps and a mistaken pace or end would say. So a job never
    overruns, and is never believed done.
    """
    factor = np.ones(len(workload))
    if errors.duration or errors.bias or errors.unknown:  # else nothing is drawn, and loading NumPy's generators takes 10 ms
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
    """Whether what is believed of jobs that have run for ``ran`` seconds is still as wrong as it was at first."""
    stay: Bools = ran < errors.corrected
    return stay


def unlearnt(progress: Floats, errors: Errors) -> Floats:
    """What share of the way from its end to its maximum a job that stops at a metric is believed to go on, by its progress.

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
        """Jobs that the cluster can hold, one a job."""
        fits: Bools = self._workload.gpus_min <= len(self._grid.node)
        return fits

    def speed(self, job: int, gpus: Sequence[int], partners: list[int], batch: int = 0, progress: float = 0.0, kind: str = PACKED) -> float:
        """Work a second: 1 on ``gpus_min`` GPUs of as few nodes as the cluster allows, alone, with the batch size that it came with.

        ``partners``: jobs that share GPUs with it; ``batch``: the batch size that the policy chose, 0: none; ``progress``: share
        of its work that is done, on which the efficiency of large batches depends; ``kind``: how it shares the GPUs.
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
        """Its speed of that alone where jobs take turns: who goes before has the GPU for as long as it computes, the others what is left.

        Who goes before computes for the part of the time in which it keeps a GPU busy alone; where that is not known, all the time.
        Equals have as many turns each, of a step of theirs, but for those that load too long to ask for so many; where steps are not known,
        as much time each; or they slow each other as was measured of the pair.
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
            if len(equals) == 1:  # after each of its steps the turn is handed down
                left -= self._costs.turn / (self._step(equals[0]) * slower[0])
        at = equals.index(job)
        return given[at] / wanted[at] / slower[at]

    def _wanted(self, equals: Sequence[int], below: float) -> tuple[list[float], list[float], list[float]]:
        """Of jobs of one priority: the part of the time that each would use, what its turns weigh, how many times longer its steps are.

        ``below``: part of the time in which those of lower priorities would compute alone.
        """
        busy, steps = [self._busy(one) for one in equals], [self._step(one) for one in equals]
        if not all(map(math.isfinite, steps)):
            return busy, [1.0] * len(equals), [1.0] * len(equals)
        handed = self._costs.turn if len(equals) > 1 else 0.0
        cycles = [step + self._costs.pause * below for step in steps]
        turns = [part * step + handed for part, step in zip(busy, steps, strict=True)]
        if 1 < len(equals) <= _FEW:
            loads = [max(cycle - turn, 0.0) for cycle, turn in zip(cycles, turns, strict=True)]
            cycles = list(_cycles(tuple(loads), tuple(turns)))
        wanted = [turn / cycle for turn, cycle in zip(turns, cycles, strict=True)]
        return wanted, turns, [cycle / step for cycle, step in zip(cycles, steps, strict=True)]

    def _rank(self, job: int) -> int:
        kind, priority = self._workload.kind, int(self._workload.priority[job])
        return int(precedence(None if kind is None else kind[job], priority))

    def _busy(self, job: int) -> float:
        """Part of the time in which it keeps a GPU busy that it has alone."""
        profile = self._profile(job)
        return 1.0 if profile is None or not profile.utilisation > 0 else min(profile.utilisation, 1.0)  # NaN is not greater

    def _step(self, job: int) -> float:
        """Seconds of a step of it alone, inf: not known."""
        iterations, duration = float(self._workload.iterations[job]), float(self._workload.duration[job])
        return duration / iterations if iterations > 0 and duration > 0 else math.inf

    def _measured(self, slowdowns: Floats | None, job: int, partner: int) -> float | None:
        """How many times longer it was measured to take beside another one."""
        rows = self._profiles[job], self._profiles[partner]
        measured = math.nan if slowdowns is None or min(rows) < 0 else float(slowdowns[rows])
        return None if math.isnan(measured) else measured

    def _nodes(self, gpus: Sequence[int]) -> int:
        return 1 if len(gpus) == 1 else len({self._node[gpu] for gpu in gpus})

    def _is_scattered(self, gpus: Sequence[int]) -> bool:
        """Over more nodes than so many GPUs need."""
        nodes = self._nodes(gpus)
        return nodes > 1 and nodes > self._grid.nodes_needed(len(gpus), None)

    def _packing(self, job: int, partners: list[int]) -> float:
        """How many times longer it takes because of who shares its GPUs.

        Unless said, as was measured of the pair, else what they use together beyond the whole of a GPU.
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
        """Seconds from the grant of a lease until the job trains, on GPUs that are cold."""
        costs = self._costs
        return costs.resume + costs.resume_per_gpu * (len(gpus) - 1) if resumed else costs.cold_start

    def time_to_failure(self, job: int, gpus: int, attempt: int, *, profile: bool = False) -> float:
        """Seconds of training until it fails, inf: never. The draw is of the job and the attempt, whatever the policy does.

        Profiling runs are counted apart.
        """
        rate = self._costs.failures_per_gpu_hour * gpus / 3600.0
        if rate <= 0:
            return math.inf
        return float(np.random.default_rng([self._seed, 4 if profile else 2, job, attempt]).exponential(1.0 / rate))


@lru_cache(maxsize=1024)
def _cycles(loads: tuple[float, ...], turns: tuple[float, ...]) -> tuple[float, ...]:
    """Seconds from a step to the next, at least, of jobs that load and then wait for those that asked before: each what it sees of the
    others as if it were not there, as in the mean value analysis of closed networks (Reiser and Lavenberg 1980).

    Who does not load asks when its step is over, so another's step lies before it as a whole; who loads comes in the middle of one.
    """
    seen: dict[tuple[int, ...], dict[int, float]] = {(): {}}  #: by who is there: the cycle of each
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
    """``whole`` divided among all by their weights; none gets more than it wants, and the others have what it leaves."""
    given, left, weight = [0.0] * len(wanted), max(whole, 0.0), sum(weights)
    for number in sorted(range(len(wanted)), key=lambda one: wanted[one] / weights[one]):
        given[number] = min(wanted[number], left * weights[number] / weight)
        left, weight = left - given[number], weight - weights[number]
    return given


def _rate(profile: Profile, gpus: int, spread: bool) -> float:
    assert profile.throughput is not None
    return profile.throughput.rate(gpus, spread=spread)

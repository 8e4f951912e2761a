"""Figures of a simulation: completion times, deadlines, fairness and use, of every job and of the whole run.

Each is defined in docs/simulator.md, with the paper that it is from. All are computed from the jobs' fates and the
state of the cluster over time; nothing is sampled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...policies.contract import Bools, Floats, Ints
from .cluster import Cluster
from .result import Fates, Result, Usage
from .workload import Workload

FULL_REWARD = 100.0  #: W_max of 002 Eqn 5.15, W_min is 0
ROUNDING = 1e-6  #: a job alone on the cluster has rho = 1 but for the last digits of sums of times


@dataclass(frozen=True, slots=True)
class Figures:
    """One run in numbers: the columns of `sim_runs`, where they are explained. None where nothing is defined."""

    jct_avg: float | None
    jct_p50: float | None
    jct_p99: float | None
    wait_avg: float | None
    wait_p99: float | None
    makespan: float | None
    slo_violations: float | None
    r_slo: float | None
    rho_avg: float | None
    rho_max: float | None
    fair_share: float | None
    utilisation: float | None
    preemptions: int
    lost_gpu_time: float


def figures(workload: Workload, result: Result, cluster: Cluster) -> Figures:
    """Figures over the jobs that were simulated; times and fairness over those of them that came to their end.

    ``r_slo`` is 1 - mean(reward) / 100: 002 Eqn 5.15 as printed is the mean reward itself, the attainment, while the
    text calls it a violation rate and its tables hold lower for better. So what is reported is its complement.
    """
    fates = result.fates
    done = finished(fates)
    jct, waited = jct_of(workload, fates)[done], wait_of(workload, fates)[done]
    simulated = ~fates.dropped
    reward = reward_of(workload, fates)[simulated & has_deadline(workload)]
    rho = rho_of(workload, fates, cluster)
    rho = rho[~np.isnan(rho)]
    span = extent(workload, fates)
    return Figures(
        jct_avg=_mean(jct),
        jct_p50=_percentile(jct, 50),
        jct_p99=_percentile(jct, 99),
        wait_avg=_mean(waited),
        wait_p99=_percentile(waited, 99),
        makespan=span[1] - span[0] if span else None,
        slo_violations=_mean(violates(workload, fates)[simulated & has_deadline(workload)].astype(np.float64)),
        r_slo=1.0 - float(reward.mean()) / FULL_REWARD if len(reward) else None,
        rho_avg=_mean(rho),
        rho_max=float(rho.max()) if len(rho) else None,
        fair_share=_mean((rho <= 1.0 + ROUNDING).astype(np.float64)),
        utilisation=_utilisation(result.usage, span, cluster.total),
        preemptions=int(fates.preemptions.sum()),
        lost_gpu_time=float(np.nansum(fates.lost)),
    )


def finished(fates: Fates) -> Bools:
    """Jobs that came to their end."""
    done: Bools = np.isfinite(fates.ended) & ~fates.rejected & ~fates.dropped
    return done


def jct_of(workload: Workload, fates: Fates) -> Floats:
    """Job completion time: submission to end (s), profiling included (002 ch. 5.4.3); NaN of a job that never ended."""
    return np.where(finished(fates), fates.ended - workload.submitted, np.nan)


def wait_of(workload: Workload, fates: Fates) -> Floats:
    """Queueing delay: the part of the JCT in which the job held no GPU (s)."""
    return np.maximum(jct_of(workload, fates) - fates.run_time, 0.0)


def extent(workload: Workload, fates: Fates) -> tuple[float, float] | None:
    """First submission and last end of what was simulated; None when nothing ended."""
    done = finished(fates)
    if not done.any():
        return None
    return float(workload.submitted[~fates.dropped].min()), float(fates.ended[done].max())


def has_deadline(workload: Workload) -> Bools:
    some: Bools = np.diff(workload.tier_start) > 0
    return some


def reward_of(workload: Workload, fates: Fates) -> Floats:
    """Reward of the deadline that each job met (002 fig. 5.5a): 0 of one that met none or never ended, NaN without deadlines."""
    owner = _tier_owner(workload)
    met = np.where(finished(fates)[owner], fates.ended[owner], np.inf) <= workload.tier_deadline
    reward = np.where(has_deadline(workload), 0.0, np.nan)
    np.maximum.at(reward, owner[met], workload.tier_reward[met])
    return reward


def violates(workload: Workload, fates: Fates) -> Bools:
    """Jobs with deadlines that ended after the last of them, or never; one that was rejected never ended."""
    last = np.full(len(workload), np.inf)
    some = has_deadline(workload)
    last[some] = workload.tier_deadline[workload.tier_start[1:][some] - 1]
    late: Bools = some & ~(finished(fates) & (fates.ended <= last))
    return late


def rho_of(workload: Workload, fates: Fates, cluster: Cluster) -> Floats:
    """Finish-time fairness rho = T_sh / T_id (Themis, NSDI'20, sec. 3; 002 ch. 6.6.4) of each job, NaN where it is not defined.

    T_sh is the JCT. T_id is the time that the job would take alone on 1/N of the cluster, where N is the average number of
    jobs that contended from its submission to its end, itself included. On fewer GPUs than its gang it has the gang's GPUs a
    part of the time; on more it is as fast as its profile says. For a job that fills the cluster T_id is duration x N, as Themis
    writes it. A job that was rejected contends for nothing; one that has not ended contends to the last.
    """
    done = finished(fates)
    share = cluster.total / _contention(workload, fates)[done]
    ideal = workload.duration[done] / _speed(workload, done, share)
    rho = np.full(len(workload), np.nan)
    rho[done] = np.divide(jct_of(workload, fates)[done], ideal, out=np.full(len(ideal), np.nan), where=ideal > 0)
    return rho


def _contention(workload: Workload, fates: Fates) -> Floats:
    """Average number of unfinished jobs over the life of each job that ended: the exact integral of a step function; 1 of others."""
    done = finished(fates)
    average = np.ones(len(workload))
    if not done.any():
        return average
    contends = ~fates.dropped & ~fates.rejected
    begins, ends = workload.submitted[contends], fates.ended[done]
    moments, place = np.unique(np.concatenate((begins, ends)), return_inverse=True)
    change = np.zeros(len(moments))
    np.add.at(change, place, np.repeat([1.0, -1.0], [len(begins), len(ends)]))
    count = np.cumsum(change)
    area = np.concatenate(([0.0], np.cumsum(np.diff(moments) * count[:-1])))
    lived = fates.ended - workload.submitted
    known = done & (lived > 0)
    average[known] = (np.interp(fates.ended[known], moments, area) - np.interp(workload.submitted[known], moments, area)) / lived[known]
    return np.maximum(average, 1.0)


def _speed(workload: Workload, rows: Bools, share: Floats) -> Floats:
    """How fast jobs are on ``share`` GPUs, which need not be whole; 1 is their speed on ``gpus_min``."""
    least, most, profile = workload.gpus_min[rows], workload.gpus_max[rows], workload.profile[rows]
    speed = np.minimum(share / least, 1.0)
    for number, of_model in enumerate(workload.profiles):
        grows = (profile == number) & (share > least) & (most > least)
        if of_model.throughput is not None and grows.any():
            table = of_model.throughput
            held = np.minimum(share[grows], most[grows])
            speed[grows] = np.interp(held, table.gpus, table.rates) / np.interp(least[grows], table.gpus, table.rates)
    return speed


def _tier_owner(workload: Workload) -> Ints:
    """Job of each deadline."""
    return np.repeat(np.arange(len(workload)), np.diff(workload.tier_start))


def _utilisation(usage: Usage, span: tuple[float, float] | None, gpus: int) -> float | None:
    """GPU-time held over GPU-time there was, first submission to last end."""
    if span is None or span[1] <= span[0]:
        return None
    begin, end = span
    moments = np.clip(np.concatenate((usage.ts, [end])), begin, end)
    return float((np.diff(moments) * usage.busy).sum()) / (gpus * (end - begin))


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None


def _percentile(values: Floats, percent: float) -> float | None:
    """Linear between the two nearest ranks, NumPy's default."""
    return float(np.percentile(values, percent)) if len(values) else None

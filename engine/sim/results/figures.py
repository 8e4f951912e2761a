"""Figures of a simulation: completion times, deadlines, fairness and use, of every job and of the whole run.

Each is defined in docs/simulator.md, with its paper. All are computed from the jobs' fates and the state of the cluster
over time; nothing is sampled.
"""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
import numpy as np

from ....policies.contract import Bools, Floats
from ..cluster import Cluster
from ..workload import Workload
from .result import Fates, Result, Usage

FULL_REWARD = 100.0  #: W_max of 002 Eqn 5.15, W_min is 0
Long = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]  #: of a BIGINT column
Figure = Annotated[
    float, msgspec.Meta(ge=-1e18, le=1e18)
]  #: no figure is larger than the GPU seconds of the largest cluster over the longest time
ROUNDING = 1e-6  #: a job alone on the cluster has rho = 1 up to the rounding of sums of times


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One run in numbers: the columns of `sim_runs`, where they are explained. None: not defined."""

    jct_avg: Figure | None
    jct_p50: Figure | None
    jct_p99: Figure | None
    wait_avg: Figure | None
    wait_p99: Figure | None
    makespan: Figure | None
    slo_violations: Figure | None
    r_slo: Figure | None
    rho_avg: Figure | None
    rho_max: Figure | None
    fair_share: Figure | None
    utilisation: Figure | None
    preemptions: Long
    lost_gpu_time: Figure


def figures(workload: Workload, result: Result, cluster: Cluster, until: float = math.inf) -> Figures:
    """Figures over the simulated jobs; times and fairness over those of them that ended.

    ``until`` is the time of the cut: later deadlines are undecided. Use is measured over its `extent`, and there is no makespan while
    a job that takes part has not ended, as it would be longer than the simulated time.
    ``r_slo`` is 1 - mean(reward) / 100: 002 Eqn 5.15 as printed is the mean reward itself, the attainment, while the
    text calls it a violation rate and its tables hold lower for better. So what is reported is its complement.
    """
    fates = result.fates
    done = finished(fates)
    jct, waited = jct_of(workload, fates)[done], wait_of(workload, fates)[done]
    judged = has_deadline(workload) & takes_part(workload, fates, until) & ~undecided(workload, fates, until)
    reward = reward_of(workload, fates)[judged]
    rho = rho_of(workload, fates, cluster)
    rho = rho[~np.isnan(rho)]
    span = extent(workload, fates, until)
    all_ended = not (takes_part(workload, fates, until) & _open(fates)).any()
    return Figures(
        jct_avg=_mean(jct),
        jct_p50=_percentile(jct, 50),
        jct_p99=_percentile(jct, 99),
        wait_avg=_mean(waited),
        wait_p99=_percentile(waited, 99),
        makespan=float(fates.ended[done].max()) - _first(workload, fates) if done.any() and all_ended else None,
        slo_violations=_mean(violates(workload, fates)[judged].astype(np.float64)),
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


def not_submitted(workload: Workload, fates: Fates, until: float) -> Bools:
    """Jobs that came when the simulation was cut off or later, so that no policy could do anything for them."""
    late: Bools = (workload.submitted >= until) & _open(fates)
    return late


def takes_part(workload: Workload, fates: Fates, until: float) -> Bools:
    """Jobs that figures are about: they fit the cluster, and came before the simulation was cut off."""
    return ~fates.dropped & ~not_submitted(workload, fates, until)


def undecided(workload: Workload, fates: Fates, until: float) -> Bools:
    """Jobs with deadlines that had not ended at the cut, before their last deadline: neither kept nor violated."""
    ahead: Bools = has_deadline(workload) & (workload.last_deadline() > until) & _open(fates)
    return ahead & takes_part(workload, fates, until)


def _open(fates: Fates) -> Bools:
    """Jobs that could still end."""
    return ~(finished(fates) | fates.rejected | fates.dropped)


def jct_of(workload: Workload, fates: Fates) -> Floats:
    """Job completion time: submission to end (s), profiling included (002 ch. 5.4.3); NaN of a job that never ended."""
    return np.where(finished(fates), fates.ended - workload.submitted, np.nan)


def wait_of(workload: Workload, fates: Fates) -> Floats:
    """Queueing delay: the part of the JCT in which the job held no GPU (s)."""
    return np.maximum(jct_of(workload, fates) - fates.run_time, 0.0)


def extent(workload: Workload, fates: Fates, until: float = math.inf) -> tuple[float, float] | None:
    """First submission and last end of the simulated jobs, or the time of the cut if jobs were not at their end by then or still to
    come. So the policies of a study are measured over the same time. None: no job ended."""
    if math.isfinite(until) and _open(fates).any():
        return _first(workload, fates), until
    done = finished(fates)
    return (_first(workload, fates), float(fates.ended[done].max())) if done.any() else None


def _first(workload: Workload, fates: Fates) -> float:
    """First submission of a job that fits the cluster."""
    return float(workload.submitted[~fates.dropped].min())


def has_deadline(workload: Workload) -> Bools:
    some: Bools = np.diff(workload.tier_start) > 0
    return some


def reward_of(workload: Workload, fates: Fates) -> Floats:
    """Reward of the deadline that each job met (002 fig. 5.5a): 0 for one that met none or never ended, NaN without deadlines."""
    owner = np.repeat(np.arange(len(workload)), np.diff(workload.tier_start))
    met = np.where(finished(fates)[owner], fates.ended[owner], np.inf) <= workload.tier_deadline
    reward = np.where(has_deadline(workload), 0.0, np.nan)
    np.maximum.at(reward, owner[met], workload.tier_reward[met])
    return reward


def violates(workload: Workload, fates: Fates) -> Bools:
    """Jobs with deadlines that ended after the last of them, or never; a rejected one never ended."""
    late: Bools = has_deadline(workload) & ~(finished(fates) & (fates.ended <= workload.last_deadline()))
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
    ideal = workload.duration[done] / _speed(workload, done, share, max(cluster.nodes))
    rho = np.full(len(workload), np.nan)
    rho[done] = np.divide(jct_of(workload, fates)[done], ideal, out=np.full(len(ideal), np.nan), where=ideal > 0)
    return rho


def _contention(workload: Workload, fates: Fates) -> Floats:
    """Average number of unfinished jobs over the life of each ended job, as the exact integral of a step function; 1 for others."""
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


def _speed(workload: Workload, rows: Bools, share: Floats, node: int) -> Floats:
    """Speed of jobs on ``share`` GPUs (may be fractions), or on fewer of them if that is faster; 1 is the speed on ``gpus_min``.

    ``node``: GPUs of the largest node.
    """
    least, most, profile = workload.gpus_min[rows], workload.gpus_max[rows], workload.profile[rows]
    speed, held = np.minimum(share / least, 1.0), np.minimum(share, most)
    for number, of_model in enumerate(workload.profiles):
        grows = (profile == number) & (share > least) & (most > least)
        if of_model.throughput is None:
            continue
        for fewest in np.unique(least[grows]).tolist():
            alike = grows & (least == fewest)
            gpus = np.arange(fewest, math.ceil(held[alike].max()) + 1)
            best = np.maximum.accumulate([of_model.throughput.consolidated(n, node) for n in gpus.tolist()])
            speed[alike] = np.interp(held[alike], gpus, best) / best[0]
    return speed


def _utilisation(usage: Usage, span: tuple[float, float] | None, gpus: int) -> float | None:
    """Held GPU-time over available GPU-time, within the `extent`."""
    if span is None or span[1] <= span[0]:
        return None
    begin, end = span
    moments = np.clip(np.concatenate((usage.ts, [end])), begin, end)  # the last state lasts to the end
    return float((np.diff(moments) * usage.busy).sum()) / (gpus * (end - begin))


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None


def _percentile(values: Floats, percent: float) -> float | None:
    """Linear between the two nearest ranks, as NumPy's default."""
    return float(np.percentile(values, percent)) if len(values) else None

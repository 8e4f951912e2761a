"""A cycle's knowledge of each job: its role, its remaining work and its worth (002 ch. 5.3.2 and 5.3.3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from math import erfc, sqrt

import numpy as np

from ..arrays import Bools, Floats, Ints
from ..contract import Jobs, Phase, View
from ..estimate.resumption import execution_time
from ..queues.laxity import has_deadline, next_deadline, reward
from .settings import MAXIMUM, UniSchedConfig

AT_ONCE = 1e-6  #: seconds within which two moments are one, for the rounding of sums of lease lengths
LEAST_CHANCE = 0.05  #: a deadline that is less likely than this is given up
#: Leases that a crowd lasts. With 1 and soft deadlines jobs waited for hours to be profiled, and met none; 4 and far more do as well.
CROWD_LEASES = 4
HOUR = 3600.0
BEST_EFFORT_MOST = 0.99  #: of any best-effort job's reward: profiling comes before all of them


class Role:
    """The part of a job in this cycle."""

    PROFILER = 0  #: its speed is unknown: it needs a profiling run
    SLO = 1  #: can still meet a deadline, if it gets its leases
    BEST_EFFORT = 2  #: has no deadline, or none that it can still meet


@dataclass(frozen=True, slots=True)
class Roles:
    """One row a job of the view."""

    role: Ints
    wants: Ints  #: GPUs that it is to get: its gang, or those of its profiling run
    left: Floats  #: seconds of work on its gang, placed as well as can be; of an SLO job never more than until its last deadline
    overhead: Floats  #: seconds that a suspension costs with its resumption
    lost: Bools  #: has a deadline, but none that it can still meet
    toll: Floats  #: reward that waiting best-effort jobs lose if it runs to its end before them
    outweighed: Bools  #: could meet a deadline, but none that is worth its toll
    chance: Floats  #: factor of its deadlines' rewards, 0 to 1: below 1 the estimate says that all will be missed


def roles_of(view: View, config: UniSchedConfig) -> Roles:
    jobs = view.jobs
    slo = has_deadline(jobs)
    left = _left(jobs, slo, view.now, config)
    overhead = np.full(len(jobs), config.overhead)
    if jobs.overhead is not None:
        overhead = np.maximum(np.nan_to_num(jobs.overhead, nan=config.overhead), 0.0)
    # The deadline can be met if it runs without a pause from now on; whether it will is the optimum's to say.
    chance = _chance(jobs, slo, left, view.now, config)
    alive = chance >= LEAST_CHANCE
    room = jobs.deadline - view.now
    left = np.where(alive & (left > room + AT_ONCE), room - AT_ONCE, left)  # it must not pause any more
    toll = _toll(view, slo, left, config)
    outweighed = alive & (toll > 0.0) & (chance * reward(jobs, view.now + left) <= toll)
    role = np.where(alive & ~outweighed, Role.SLO, Role.BEST_EFFORT)
    wants = jobs.gpus_min
    if jobs.profile_gpus is not None:
        unknown = (jobs.profile_gpus > 0) & (jobs.phase == Phase.PENDING)
        role = np.where(unknown, Role.PROFILER, role)
        wants = np.where(unknown, jobs.profile_gpus, wants)
    return Roles(role, wants, left, overhead, slo & ~alive, toll, outweighed, chance)


def _toll(view: View, slo: Bools, left: Floats, config: UniSchedConfig) -> Floats:
    """What it costs to let each job run to its end before the best-effort jobs that wait: by its GPU-time over the pool's all end later.

    The text's rewards know no such price: a best-effort lease is paid for now, and the leases that a deadline takes later are free. So no
    factor on best-effort rewards makes deadlines give way that take GPUs for long. Jobs that come while the others wait are not counted.
    """
    if config.waiting_cost == 0.0:
        return np.zeros(len(left))
    jobs, capacity = view.jobs, int(np.count_nonzero(view.gpus.usable))
    waiting = np.count_nonzero(~slo & (jobs.phase == Phase.PENDING) & (jobs.gpus_min <= capacity))
    if not waiting:  # as in a pool without GPUs
        return np.zeros(len(left))
    toll: Floats = config.waiting_cost * waiting * left / HOUR * jobs.gpus_min / capacity
    return toll


def _left(jobs: Jobs, slo: Bools, now: float, config: UniSchedConfig) -> Floats:
    """Seconds of work left, as far as anything is known of it.

    Of a job with a deadline of which nothing is known it is at most half of the time that is left to it: a guess for jobs of any
    kind must not give up the deadline of a job that may be short.
    """
    known = jobs.remaining
    if config.iterations == MAXIMUM and jobs.remaining_most is not None:
        known = np.where(np.isnan(jobs.remaining_most), known, jobs.remaining_most)
    guess = np.maximum(config.unknown, jobs.run_time)
    guess = np.where(slo, np.minimum(guess, np.maximum(jobs.deadline - now, 0.0) / 2.0), guess)
    return np.maximum(np.where(np.isnan(known), guess, known), 0.0)


def _chance(jobs: Jobs, slo: Bools, left: Floats, now: float, config: UniSchedConfig) -> Floats:
    """1 where the last deadline is met by a run from now on, if the estimate is right.

    Else the probability that an estimate is off, up or down, by as much as the job would be late. The first estimates of a job that
    stops at a metric are hardly better than its maximum (5.3.2.2): to believe them would give up deadlines that are met.
    """
    room = np.where(slo, jobs.deadline, now) - now
    chance = (slo & (left <= room + AT_ONCE)).astype(np.float64)
    if jobs.uncertainty is None or config.iterations == MAXIMUM:
        return chance
    doubtful = slo & (chance == 0.0) & (room > AT_ONCE) & (jobs.uncertainty > 0.0) & np.isfinite(left)
    for row in np.flatnonzero(doubtful).tolist():
        chance[row] = erfc(np.log(left[row] / room[row]) / (sqrt(2.0) * jobs.uncertainty[row]))
    return chance


def profiling_reward(view: View, config: UniSchedConfig) -> Floats:
    """What a profiling run of each job is worth: 1, or what a job with a deadline is expected to lose by waiting on.

    5.3.3.2 gives all of them 1, so that none is profiled while deadlines can use the GPUs, and leaves it to users to ask for more. But
    a job with a deadline loses its slack while it waits to be profiled. The wait is ``CROWD_LEASES`` leases: a run
    that is outbid for this lease will be outbid for the next ones too.
    """
    worth = np.ones(len(view.jobs))
    if config.urgent_profiling:
        worth = np.maximum(worth, reward(view.jobs, view.now) * loses_its_slack(view, CROWD_LEASES * config.be_lease))
    return worth


def loses_its_slack(view: View, wait: float) -> Floats:
    """Probability that each job, whose length is not known, can no longer meet its next deadline after a wait of so many seconds.

    It is taken to need anything from half of the time to that deadline to all of it. 0 of a job without a deadline ahead of it.
    """
    time = next_deadline(view.jobs, view.now) - view.now
    lost: Floats = np.minimum(2.0 * wait / np.maximum(time, wait), 1.0)
    return lost


def best_effort_reward(roles: Roles, config: UniSchedConfig) -> Floats:
    """The reciprocal of the remaining time, counted in leases, below the 1 of a profiling run (5.3.3.2).

    The text leaves the unit open. With leases, a job that ends within its next one is worth nearly as much as a profiling run, and no
    sum of best-effort rewards on a node comes near the 100 of a deadline. After its last deadline a job earns nothing (fig. 5.5a);
    ``late`` keeps the shortest of such jobs first, behind best-effort jobs up to ``1 / late`` times as long. So it is for those whose
    deadlines are not worth what others would wait for them.
    """
    leases = np.maximum(_with_suspensions(roles, config) / config.be_lease, 0.0)
    return BEST_EFFORT_MOST / (1.0 + leases) * np.where(roles.lost | roles.outweighed, config.late, 1.0)


def _with_suspensions(roles: Roles, config: UniSchedConfig) -> Floats:
    if not config.resumption_aware:
        return roles.left
    return execution_time(roles.left, config.be_lease, np.inf, np.minimum(roles.overhead, config.be_lease))

"""A job's end, and its effect on others, in many simulated futures of its pool.

Each future draws the true durations of all jobs (`durations`), and lets the pool's own policy decide from its beliefs.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...policies.contract import Bools, Floats, Ints, Phase, View
from ...policies.placement.consolidated import Placement
from .expected_starts import estimate_starts
from .ongoing import OutOfTime, Watched
from .work_draws import DurationDraws

MOST_RUNS = 32
FEW_RUNS = 8  #: fewer do not show the spread of ends
HARM_RUNS = 8  #: futures in which the effect on others is computed; each is simulated twice
CPU_SECONDS = 1.0  #: of this thread, for all runs
SHARE_OF_ENDS = 0.6  #: of that time, if others have deadlines too
OVERTIME = 1.5  #: times the available time after which a run is given up
#: Gives the ends of a view's jobs, in seconds from its moment, NaN: never. Arguments: seconds of work left, watched jobs, CPU seconds.
Simulate = Callable[[View, Floats, Watched, float], Floats]


@dataclass(frozen=True)
class Prospect:
    """The results of simulated futures for one job. Times are seconds since the epoch."""

    ends: Floats  #: its end in each run, ascending, inf: not in sight
    others: int  #: other jobs with deadlines ahead
    missed: float | None  #: deadlines that these miss because of it, the mean over some runs; None: too slow to compute

    def probability(self, deadline: float) -> float:
        """Share of the runs in which it ends by then."""
        return float(np.searchsorted(self.ends, deadline, side="right")) / len(self.ends)

    def by(self, share: float) -> float | None:
        """The earliest moment by which it has ended in that share of the runs; None: not in sight."""
        end = float(self.ends[max(math.ceil(share * len(self.ends) - 1e-9), 1) - 1])
        return None if math.isinf(end) else end


@dataclass(frozen=True)
class Question:
    """A question: ``target`` is a row of the view, ``fresh`` are it and the jobs submitted with it."""

    view: View
    target: int
    fresh: Ints

    @cached_property
    def others(self) -> Bools:
        """Jobs that may miss a deadline because of the fresh ones; none if the target runs already."""
        jobs = self.view.jobs
        timed = np.isfinite(jobs.deadline) & (jobs.deadline > self.view.now) & (jobs.phase != Phase.STOPPING)
        timed[self.fresh] = False
        return timed if (jobs.phase[self.fresh] == Phase.PENDING).all() else np.zeros(len(jobs), dtype=bool)


def look_ahead(
    question: Question, durations: DurationDraws, simulate: Simulate, *, runs: int = MOST_RUNS, cpu: float = CPU_SECONDS
) -> Prospect:
    """Simulate up to ``runs`` futures, as many as fit in about ``cpu`` seconds of this thread's CPU time.

    Futures do not depend on their number. Raises OutOfTime if not even one fits, SimulationError if the policy fails.
    """
    others = int(question.others.sum())
    clock = _Clock(cpu * (SHARE_OF_ENDS if others else 1.0))
    ends = [_end(question, durations.draw(number, question.target), simulate, clock) for number in clock.count(runs)]
    clock = _Clock(cpu * (1.0 - SHARE_OF_ENDS))
    missed: float | None = 0.0
    if others:
        with contextlib.suppress(OutOfTime):
            missed = None
            harm = [_harm(question, durations.draw(number, question.target), simulate, clock) for number in clock.count(HARM_RUNS)]
            missed = sum(harm) / len(harm)
    return Prospect(np.sort(np.array(ends)), others, missed)


class _Clock:
    """Allows as many runs as fit in so many seconds of this thread's CPU time, judged by the earlier ones."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._began = seconds, time.thread_time()

    def left(self) -> float:
        """Seconds after which a run is given up."""
        return OVERTIME * self._seconds - (time.thread_time() - self._began)

    def count(self, most: int) -> Iterator[int]:
        for number in range(most):
            spent = time.thread_time() - self._began
            if number and spent * (number + 1) / number > self._seconds:
                return
            yield number


def _end(question: Question, left: Floats, simulate: Simulate, clock: _Clock) -> float:
    """The job's end in one future."""
    view, target = question.view, question.target
    end = float(simulate(view, left, Watched(_rows(len(left), [target]), _rows(len(left), [])), clock.left())[target])
    return math.inf if math.isnan(end) else view.now + end


def _harm(question: Question, left: Floats, simulate: Simulate, clock: _Clock) -> int:
    """The number of others' deadlines missed in one future that would have been met without the fresh jobs."""
    view, others = question.view, question.others
    stay = ~_rows(len(left), question.fresh)
    deadline = (view.jobs.deadline - view.now)[stay]
    with_them = simulate(view, left, Watched(_rows(len(left), []), others), clock.left())[stay]
    without = simulate(_only(view, stay), left[stay], Watched(_rows(int(stay.sum()), []), others[stay]), clock.left())
    return int((_met(without, deadline) & ~_met(with_them, deadline) & others[stay]).sum())


def _rows(count: int, rows: Sequence[int] | Ints) -> Bools:
    chosen = np.zeros(count, dtype=bool)
    chosen[np.asarray(rows, dtype=np.int64)] = True
    return chosen


def _met(ends: Floats, deadline: Floats) -> Bools:
    met: Bools = ends <= deadline  # False for NaN
    return met


def _only(view: View, stay: Bools) -> View:
    """The view without pending jobs."""
    jobs = view.jobs
    tiers = np.diff(jobs.tier_start)
    columns = {
        name: getattr(jobs, name)[stay]
        for name in type(jobs).__dataclass_fields__
        if name not in ("alloc_start", "alloc_gpus", "tier_start", "tier_deadline", "tier_reward") and getattr(jobs, name) is not None
    }
    kept = np.repeat(stay, tiers)
    columns |= {
        "alloc_start": np.concatenate([[0], np.cumsum(jobs.held[stay])]).astype(np.int64),
        "tier_start": np.concatenate([[0], np.cumsum(tiers[stay])]).astype(np.int64),
        "tier_deadline": jobs.tier_deadline[kept],
        "tier_reward": jobs.tier_reward[kept],
    }
    return replace(view, jobs=replace(jobs, **columns))


def spread_out(question: Question, durations: DurationDraws, prospect: Prospect, listing: Simulate) -> Prospect:
    """The prospect with the many ends of ``listing``, which is cheap, scaled to the mean of the few simulated ones.

    A ratio estimator: both use the same first draws, so a constant factor in the listing's error cancels.
    """
    view, target = question.view, question.target
    nobody = Watched(_rows(len(view.jobs), []), _rows(len(view.jobs), []))
    listed = np.array([listing(view, durations.draw(number, target), nobody, math.inf)[target] for number in range(MOST_RUNS)])
    few = prospect.ends - view.now
    scale = float(few.mean()) / max(float(listed[: len(few)].mean()), 1e-9)
    return replace(prospect, ends=np.sort(view.now + scale * listed)) if np.isfinite(listed).all() and np.isfinite(few).all() else prospect


def by_queue(view: View, left: Floats, order: Ints) -> Floats:
    """The ends if jobs were served in this order (ids), each as soon as enough GPUs are free, and none was displaced.

    For policies whose simulation is too slow.
    """
    jobs = replace(view.jobs, remaining=left, lease_end=None)  # the end of a lease would displace its holder
    starts = estimate_starts(replace(view, jobs=jobs), order, horizon=math.inf) - view.now
    ends = np.where(view.jobs.held > 0, left, np.nan)
    row_of = {job: row for row, job in enumerate(jobs.id.tolist())}
    rows = np.array([row_of[job] for job in order.tolist()], dtype=np.int64)
    ends[rows] = starts + left[rows]
    return ends


def quickest(view: View, row: int) -> tuple[float, int]:
    """The best known speed of a job relative to ``gpus_min`` GPUs, and the number of GPUs for it."""
    jobs = view.jobs
    least, most = int(jobs.gpus_min[row]), int(jobs.gpus_max[row])
    profile = view.profiles[jobs.profile[row]] if jobs.profile is not None and jobs.profile[row] >= 0 else None
    if profile is None or profile.throughput is None:
        return 1.0, least
    node = Placement(view).largest_node(memory=float(jobs.gpu_memory[row]))
    counts = range(least, max(min(most, len(view.gpus)), least) + 1)
    rates = {count: profile.throughput.consolidated(count, node) for count in counts}
    best = max(rates, key=lambda count: rates[count])
    return rates[best] / rates[least], best

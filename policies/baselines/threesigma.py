"""3Sigma: plans ahead with distributions of run times, by a mixed-integer program once a minute."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..contract import Bools, Floats, Ints, Jobs, Phase, Plan, Reason, View, Waiting, tunable
from ..estimate.distributions import remaining_samples
from ..estimate.lengths import remaining_time
from ..placement.consolidated import Placement
from ..placement.feasible import holdable_in
from ..queues.later import Later
from ..queues.laxity import has_deadline, ranks
from ..queues.reasons import lacking
from ..queues.serving import Ranking, serve

#: A search ends after so many nodes, the same on every machine; the limit in seconds is for the worst case only.
MOST_NODES = 2000
GOOD_ENOUGH = 0.01  #: relative gap


class ThreeSigma:
    """Each cycle plans the starts of jobs within a window, for the greatest expected utility; SLO jobs preempt best-effort jobs.

    3Sigma (EuroSys 2018) as 002 ch. 5.4.4 compares with it, in cycles of 60 s. A job's remaining time is a distribution
    (`durations`). Starting job j at time s has the expected utility of its end (Eqn 1), and takes at a later t its GPUs times the
    probability that it still runs (Eqn 2), which must fit the pool at each t of the window. An end earns the reward of its
    deadline. If a job would hardly have met its last deadline even from its submission on, its estimate is probably too high, so
    the reward then falls off linearly after the deadline (section 4.2.2). Best-effort jobs, and SLO jobs that are lost, earn 1 less
    their lateness. Running best-effort jobs may be preempted for SLO jobs at the price of their own utility. Only jobs that the
    program starts now are placed; all others are planned anew in the next cycle.
    """

    @dataclass(frozen=True)
    class Config:
        window: float = tunable(3600.0, "seconds planned ahead", low=60.0, high=1e6)
        slots: int = tunable(6, "starting times in the window", low=1, high=48)
        most: int = tunable(96, "most waiting jobs that a cycle considers", low=1, high=2000)
        slo_weight: float = tunable(10.0, "utility of a met deadline, if a best-effort job has 1 at most", low=1.0, high=1e4)
        spread: float = tunable(0.5, "standard deviation of the logarithm of true over estimated run times", low=0.0, high=3.0)
        suspicious: float = tunable(
            0.95, "probability of missing the deadline from which on an estimate counts as too high", low=0.0, high=1.0
        )
        unknown: float = tunable(3600.0, "seconds that a job of unknown length is taken to last, before any has ended", low=1.0, high=1e7)
        round: float = tunable(60.0, "seconds from one round to the next", low=0.1, high=86400.0)
        time_limit: float = tunable(5.0, "seconds for the solver, after which a simple order takes its place", low=0.05, high=60.0)

    name: ClassVar[str] = "threesigma"
    rigid: ClassVar[bool] = True
    uses_history: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        self.config = config
        self.interval = config.round

    def plan(self, view: View) -> Plan:
        if not (view.jobs.phase == Phase.PENDING).any():
            return Plan({})
        cycle = _Cycle(view, self.config, self.interval)
        return cycle.plan() if cycle.anybody_could_start() else cycle.nobody()


class Solution(NamedTuple):
    slot: Ints  #: of each candidate, the number of slots when it does not start within the window
    status: str
    gap: float | None


class _Cycle:
    """One plan in the making. Candidates are the waiting jobs that the program considers; their arrays have one row each."""

    def __init__(self, view: View, config: ThreeSigma.Config, length: float) -> None:
        self.view, self.jobs, self.config, self.length = view, view.jobs, config, length
        self.placement = Placement(view)
        self.free = self.placement.free_soon()
        self.pending = np.flatnonzero(self.jobs.phase == Phase.PENDING)
        self.has_deadline = has_deadline(self.jobs)
        self.victims = self._victims()

    def anybody_could_start(self) -> bool:
        """A quick test that ends most cycles of a busy pool."""
        if self.jobs.gpus_min[self.pending].min() <= self.free:
            return True
        alive = self.has_deadline[self.pending] & (self.jobs.deadline[self.pending] >= self.view.now)
        return len(self.victims) > 0 and bool(alive.any())

    def nobody(self) -> Plan:
        return Plan(
            {},
            waiting=Later(lambda: lacking(self.view, self._in_order(self.pending), self.placement)),
            order=Later(lambda: [int(job) for job in self.jobs.id[self._in_order(self.pending)]]),
        )

    def _in_order(self, rows: Ints) -> Ints:
        return rows[np.argsort(self.urgency[rows], kind="stable")]

    @cached_property
    def urgency(self) -> Floats:
        """Place of each job in an order by live deadlines, the earliest first, then by the least service."""
        deadline = np.where(self.has_deadline & (self.jobs.deadline >= self.view.now), self.jobs.deadline, np.inf)
        return ranks(deadline, remaining_time(self.jobs, self.config.unknown) * self.jobs.gpus_min)

    def plan(self) -> Plan:
        self.possible = self._possible()
        self.candidates = self._in_order(self.possible)[: self.config.most]
        self.starts = np.linspace(0.0, self.config.window, self.config.slots, endpoint=False)
        self.left, self.hopeless = self._samples(self.candidates)
        self.victims_left, _ = self._samples(self.victims)
        self.slo, self.utility, self.loss = self._utilities()
        need = self.jobs.gpus_min[self.candidates]
        everybody = int(need.sum()) <= self.free and len(self.candidates) == len(self.possible)
        by_preemption = self.slo.any() and need[self.slo].min() <= self.free + self._held()[self.victims].sum()
        nobody = not len(need) or (need.min() > self.free and not by_preemption)
        if everybody or nobody:
            slot = np.full(len(need), self.config.slots if nobody else 0)
            return self._carried_out(Solution(slot, "ok", None))
        return self._carried_out(self._solve() or Solution(np.zeros(len(need), dtype=np.int64), "fallback", None))

    def _possible(self) -> Ints:
        """Waiting jobs that the empty pool could hold: for others the program, which only counts GPUs, would wait for ever."""
        holdable = holdable_in(self.placement, np.ones(len(self.view.gpus), dtype=bool))
        memory, need = self.jobs.asks[self.pending], self.jobs.gpus_min[self.pending]
        possible = [holdable(n, least) for n, least in zip(need.tolist(), memory.tolist(), strict=True)]
        return self.pending[np.flatnonzero(possible)]

    def _victims(self) -> Ints:
        """Running best-effort jobs that may be stopped."""
        may = (self.jobs.phase == Phase.ACTIVE) & ~self.has_deadline
        return np.flatnonzero(may if self.jobs.protected is None else may & ~self.jobs.protected)

    def _samples(self, rows: Ints) -> tuple[Floats, Floats]:
        return remaining_samples(self.view, rows, self.config.spread, self.config.unknown, self.length)

    def _utilities(self) -> tuple[Bools, Floats, Floats]:
        """Whether a candidate can still meet a deadline, its expected utility by slot, and the loss by the preemption of each victim."""
        finish = self.starts[None, :, None] + self.left[:, None, :]
        horizon = max(finish.max(initial=0.0), self.victims_left.max(initial=0.0)) + self.starts[-1] + 1.0
        earned = expected_reward(self.jobs, self.candidates, self.view.now + finish, self.hopeless >= self.config.suspicious)
        slo = earned[:, 0] > 0
        best_effort = 1.0 - finish.mean(axis=2) / horizon
        return slo, np.where(slo[:, None], self.config.slo_weight * earned, best_effort), 1.0 - self.victims_left.mean(axis=1) / horizon

    def _solve(self) -> Solution | None:
        return solve(
            Program(
                need=self.jobs.gpus_min[self.candidates],
                slo=self.slo,
                utility=self.utility,
                running=still_running(self.left, self.starts),
                victim_need=self._held()[self.victims] if self.slo.any() else np.zeros(0, dtype=np.int64),
                victim_running=still_running(self.victims_left, self.starts),
                loss=self.loss,
                capacity=self._capacity(),
                free=self.free,
            ),
            self.config.time_limit,
        )

    def _capacity(self) -> Floats:
        """GPUs expected to be free in each slot without starts and preemptions."""
        rows = np.flatnonzero(self.jobs.phase == Phase.ACTIVE)
        left, _ = self._samples(rows)
        ended = 1.0 - still_running(left, self.starts)
        return np.asarray(self.free + self._held()[rows] @ ended)

    def _held(self) -> Ints:
        """GPUs that each job's end would free."""
        return np.bincount(self.jobs.holder[self.view.gpus.usable[self.jobs.alloc_gpus]], minlength=len(self.jobs))

    def _carried_out(self, solution: Solution) -> Plan:
        """Place the jobs that start now, SLO jobs first, then by utility per GPU; the others wait for a later cycle."""
        jobs = self.jobs
        chosen = solution.slot == 0
        all_start = bool(chosen.all()) and len(chosen) > 0
        later = np.setdiff1d(self.possible, self.possible if all_start else self.candidates[chosen])
        claim, hold, density = np.zeros(len(jobs)), np.full(len(jobs), np.inf), np.full(len(jobs), -np.inf)
        claim[self.candidates[self.slo & chosen]] = 1.0
        hold[self.victims] = self.loss / 2  # between the claims of both
        density[self.candidates] = self.utility[:, 0] / jobs.gpus_min[self.candidates]
        key = ranks(-claim, -density, self.urgency)
        view = dataclasses.replace(self.view, jobs=_without(jobs, later))
        plan = serve(view, Ranking(key=key, claim=claim, hold=hold, displaceable="best-effort jobs"))
        planned = np.full(len(jobs), self.config.slots)
        planned[self.candidates] = solution.slot
        later = later[np.lexsort((self.urgency[later], planned[later]))]
        return dataclasses.replace(
            plan,
            waiting=Later(lambda: [*plan.waiting, *self._planned_later(later)]),
            order=Later(lambda: [*plan.order, *jobs.id[later].tolist()]),
            status=solution.status,
            gap=solution.gap,
        )

    def _planned_later(self, later: Ints) -> list[Waiting]:
        reason = Reason("planned", "starts in a later cycle: until then others gain more by the GPUs")
        return [Waiting(reason, self.jobs.id[later])] if len(later) else []


def _without(jobs: Jobs, rows: Ints) -> Jobs:
    """The jobs as if ``rows`` did not wait: they count as stopping without GPUs, so nothing is planned for them."""
    phase = jobs.phase.copy()
    phase[rows] = Phase.STOPPING
    columns = {field.name: getattr(jobs, field.name) for field in dataclasses.fields(Jobs)}
    return Jobs(**columns | {"phase": phase})


def expected_reward(jobs: Jobs, rows: Ints, finish: Floats, suspicious: Bools) -> Floats:
    """Expected reward (0 to 1) of ``rows``, averaged over the last axis of ``finish``.

    The estimate of a ``suspicious`` job is probably too high, so a late end earns something too: after the last deadline the reward
    falls to 0 within another time from submission to deadline.
    """
    count = np.diff(jobs.tier_start)[rows] * has_deadline(jobs)[rows]
    most = int(count.max(initial=0))
    if not most:
        return np.zeros(finish.shape[:2])
    column = np.arange(most)
    exists = column < count[:, None]
    tier = np.where(exists, jobs.tier_start[rows][:, None] + column, 0)
    deadline = np.where(exists, jobs.tier_deadline[tier], np.inf)
    reward = np.hstack([np.where(exists, jobs.tier_reward[tier], 0.0), np.zeros((len(rows), 1))]) / 100.0
    missed = (finish[..., None] > deadline[:, None, None, :]).sum(axis=3)
    earned = np.take_along_axis(reward, missed.reshape(len(rows), -1), axis=1).reshape(finish.shape)
    last = deadline[np.arange(len(rows)), count - 1][:, None, None]
    lenient = suspicious & (count > 0)
    span = np.maximum(last[lenient, 0, 0] - jobs.submitted_at[rows][lenient], 1.0)[:, None, None]
    fading = reward[lenient, count[lenient] - 1][:, None, None] * np.clip(1.0 - (finish[lenient] - last[lenient]) / span, 0.0, 1.0)
    earned[lenient] = np.where(finish[lenient] > last[lenient], fading, earned[lenient])
    expected: Floats = earned.mean(axis=2)
    return expected


def still_running(left: Floats, starts: Floats) -> Floats:
    """Probability that a job with ``left`` seconds runs for longer than each of ``starts`` (Eqn 2)."""
    return np.asarray((left[:, :, None] > starts).mean(axis=1)) if len(left) else np.zeros((0, len(starts)))


@dataclass(frozen=True, slots=True)
class Program:
    """Maximise the utility of starts less the loss by preemptions, within the expected capacity of each slot."""

    need: Ints
    slo: Bools
    utility: Floats  #: candidates x slots
    running: Floats  #: probability that a candidate still runs so many slots after its start
    victim_need: Ints
    victim_running: Floats
    loss: Floats
    capacity: Floats  #: by slot
    free: int  #: GPUs that need no preemption now


def solve(program: Program, time_limit: float) -> Solution | None:
    """The slot of each candidate; None: the solver finds nothing in time."""
    from ortools.linear_solver import pywraplp  # slow to import, and no other policy needs it

    # SCIP is the fastest solver of OR-tools here: 0.03 to 0.2 s for 100 jobs; CP-SAT takes 0.4 to 1 s and HiGHS more.
    solver = pywraplp.Solver.CreateSolver("SCIP")
    start = _build(solver, program)
    solver.SetTimeLimit(int(1000 * time_limit))
    solver.SetSolverSpecificParametersAsString(f"limits/nodes = {MOST_NODES}")
    parameters = pywraplp.MPSolverParameters()
    parameters.SetDoubleParam(pywraplp.MPSolverParameters.RELATIVE_MIP_GAP, GOOD_ENOUGH)
    result = solver.Solve(parameters)
    if result not in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE):
        return None
    slots = program.utility.shape[1]
    slot = [next((slot for slot, variable in enumerate(row) if variable.solution_value() > 0.5), slots) for row in start]
    value, bound = solver.Objective().Value(), solver.Objective().BestBound()
    gap = max(0.0, bound - value) / max(abs(value), 1e-9)
    status = "optimal" if result == pywraplp.Solver.OPTIMAL else "feasible"
    return Solution(np.array(slot, dtype=np.int64), status, gap)


def _build(solver: Any, program: Program) -> list[list[Any]]:
    """The program in ``solver``; returns a variable for each candidate and slot: whether it starts then."""
    jobs, slots = program.utility.shape
    objective = solver.Objective()
    objective.SetMaximization()
    start = [[solver.BoolVar("") for _ in range(slots)] for _ in range(jobs)]
    for job, row in enumerate(start):
        once = solver.Constraint(0.0, 1.0)
        for slot, variable in enumerate(row):
            once.SetCoefficient(variable, 1.0)
            objective.SetCoefficient(variable, float(program.utility[job, slot]))
    # Shares of victims: whole ones are chosen when the starts are placed, and a continuous variable costs no search.
    preempt = [solver.NumVar(0.0, 1.0, "") for _ in program.victim_need]
    for victim, variable in enumerate(preempt):
        objective.SetCoefficient(variable, -float(program.loss[victim]))
    for slot in range(slots):
        within = solver.Constraint(-solver.infinity(), float(program.capacity[slot]))
        for job, begin in itertools.product(range(jobs), range(slot + 1)):
            within.SetCoefficient(start[job][begin], float(program.need[job] * program.running[job, slot - begin]))
        for victim, variable in enumerate(preempt):
            within.SetCoefficient(variable, -float(program.victim_need[victim] * program.victim_running[victim, slot]))
    # No job is preempted for a best-effort job.
    without_victims = solver.Constraint(-solver.infinity(), float(program.free))
    for job in np.flatnonzero(~program.slo).tolist():
        without_victims.SetCoefficient(start[job][0], float(program.need[job]))
    return start

"""What a policy would say, as far as that is known without asking it: of most events nothing comes, or one start that is plain to see.

Who looks on sees every decision, so then nothing is foreseen; tests hold the two ways against each other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...policies.cells import Free
from ...policies.contract import Plan
from ...policies.line import Waiter
from ...policies.standstill import Standstill
from ..guards import Actions, Start
from .arrivals import Arrivals


class Foreseen:
    """``gangs``: GPUs of each job. ``alone``: whether the only job that waits starts where there is room for it (``Policy.starts_alone``).

    Without that the policy is always to be asked. ``arrivals``: where jobs stand that come; None: that is not known. ``proofs``: whether
    what the policy's plans prove (`Standstill`) holds here. ``stops_freely``: whether a stop takes no time and leaves the work of who stops
    as it is.
    """

    def __init__(
        self, gangs: Sequence[int], free: Free, *, alone: bool, arrivals: Arrivals | None, proofs: bool, stops_freely: bool
    ) -> None:
        self._gangs, self._free = gangs, free
        self._alone, self._arrivals, self._proofs, self._stops_freely = alone, arrivals, alone and proofs, stops_freely
        self._still: Standstill | None = None  #: of those who wait since the last decision
        self._sequel: tuple[list[Start], Standstill] | None = None  #: those for whom others stop at this moment, and what is known then
        self._freed: list[int] = []  #: GPUs that jobs left since then
        self._came: list[int] = []  #: jobs that came since then

    def freed(self, gpus: list[int]) -> None:
        self._freed += gpus

    def came(self, job: int) -> None:
        self._came.append(job)

    def happened(self, *, ends: bool, stops: bool) -> None:
        """An event that is the end of a job, or of the stopping of one, or anything else."""
        if not ends:
            self._still = None
        if not stops:
            self._sequel = None

    def doubt(self) -> None:
        """What was proved does not hold any more."""
        self._still = self._sequel = None

    def answer(self, now: float, waiting: Collection[int]) -> list[Start] | None:
        """All that the policy would start, and it would do nothing else; None: it is to be asked."""
        sequel, came, freed = self._sequel, self._came, self._freed
        self._sequel, self._came, self._freed = None, [], []
        if sequel is not None:
            starts, self._still = sequel
            return starts
        if self._still is not None:
            if self._still.lasts(now) and (given := self._proved(self._still, came, freed)) is not None:
                return given
            self._still = None  # it was of who waited
        if not (self._alone and waiting):
            return None
        return self._if_they_fit(came) if len(waiting) == len(came) else self._if_it_fits(waiting)

    def _proved(self, still: Standstill, came: Sequence[int], freed: Sequence[int]) -> list[Start] | None:
        sizes = still.frees(freed) if freed else ()
        if not (came or sizes):
            return []
        waiters = self._waiters(came) if still.ordered else None
        if waiters is None:
            return None if sizes or still.blocking else self._if_they_fit(came)
        given = still.starts(self._free, sizes, waiters)
        return None if given is None else [Start(job, gpus, None) for job, gpus in given.items()]

    def _waiters(self, came: Sequence[int]) -> list[Waiter] | None:
        """None: it is not known where they stand."""
        if not came:
            return []
        return None if self._arrivals is None else self._arrivals.of(came)

    def _if_they_fit(self, came: Sequence[int]) -> list[Start] | None:
        """All who came, which are looked at before all others; of several it must be known in which order."""
        if len(came) == 1:
            return self._if_it_fits(came)
        waiters = self._waiters(came)
        if waiters is None:
            return None
        free, starts = self._free.copy(), []
        for waiter in sorted(waiters):
            gpus = free.find(waiter.gpus, None, False)
            if gpus is None:
                return None
            free.set(gpus, False)
            starts.append(Start(waiter.job, gpus, None))
        return starts

    def _if_it_fits(self, only: Collection[int]) -> list[Start] | None:
        """The only one; of several nobody knows."""
        if len(only) > 1:
            return None
        (job,) = only
        gpus = self._free.find(self._gangs[job], None, False)
        return None if gpus is None else [Start(job, gpus, None)]

    def said(self, plan: Plan, actions: Actions, waiting: Collection[int]) -> None:
        """The policy has been asked, this is done of its plan, and these wait now."""
        self._still, self._came, self._freed = None, [], []
        if not self._proofs or plan.standstill is None or plan.preempt is None:
            return
        started, stopped = {start.job for start in actions.starts}, {stop.job for stop in actions.stops}
        later = [Start(job, allocation.gpus, None) for job, allocation in plan.allocations.items() if job not in started]
        moves = {start.job for start in later if start.job not in waiting}  # stopped only where they can go on at once
        if not (plan.preempt or later):
            self._still = plan.standstill
        elif self._stops_freely and stopped and stopped.issuperset(moves.union(plan.preempt)):
            self._sequel = later, plan.standstill

    @property
    def follows(self) -> bool:
        """Whether it is known what comes of the stops that are under way."""
        return self._sequel is not None

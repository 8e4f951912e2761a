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
        self._sequel: tuple[Start, Standstill] | None = None  #: the start for which others stop at this moment, and what is known after it
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
        still, sequel, came, freed = self._still, self._sequel, self._came, self._freed
        self._sequel, self._came, self._freed = None, [], []
        if sequel is not None:
            start, self._still = sequel
            return [start]
        waiters = self._waiters(came)
        if still is not None and still.lasts(now):
            sizes = still.frees(freed)
            if not (came or sizes):
                return []
            if still.ordered and waiters is not None:
                if (given := still.starts(self._free, sizes, waiters)) is not None:
                    return [Start(job, gpus, None) for job, gpus in given.items()]
            elif not (sizes or still.blocking):
                return self._if_they_fit(came, waiters)
        self._still = None  # it was of who waited
        if not (self._alone and waiting):
            return None
        return self._if_they_fit(came, waiters) if len(waiting) == len(came) else self._if_they_fit(waiting, None)

    def _waiters(self, came: Sequence[int]) -> list[Waiter] | None:
        """None: it is not known where they stand."""
        if not came:
            return []
        return None if self._arrivals is None else self._arrivals.of(came)

    def _if_they_fit(self, jobs: Collection[int], waiters: Sequence[Waiter] | None) -> list[Start] | None:
        """All of these, who come first; of several it must be known in which order."""
        if len(jobs) > 1:
            if waiters is None:
                return None
            jobs = [waiter.job for waiter in sorted(waiters)]
        free = self._free if len(jobs) == 1 else self._free.copy()
        starts = []
        for job in jobs:
            gpus = free.find(self._gangs[job], None, False)
            if gpus is None:
                return None
            if len(jobs) > 1:
                free.set(gpus, False)
            starts.append(Start(job, gpus, None))
        return starts

    def said(self, plan: Plan, actions: Actions) -> None:
        """The policy has been asked, and this is done of its plan."""
        self._still, self._came, self._freed = None, [], []
        if not self._proofs or plan.standstill is None:
            return
        if not plan.preempt:
            self._still = plan.standstill
        elif self._stops_freely and not actions.starts and {stop.job for stop in actions.stops} == set(plan.preempt):
            ((job, allocation),) = plan.allocations.items()
            self._sequel = Start(job, allocation.gpus, None), plan.standstill

    @property
    def follows(self) -> bool:
        """Whether it is known what comes of the stops that are under way."""
        return self._sequel is not None

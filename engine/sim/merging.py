"""Jobs that truly help each other: one that begins with another's weights has less work, and two that train together have one pace.

``Workload.transfers`` gives the saving and the pace for their kinds. The bank of ended jobs is empty at the start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...policies.contract import Phase, Plan
from ...policies.estimate.transfers import Joint
from .agenda import Agenda, EventKind
from .results.recorder import Recorder
from .table import Job, Table

_LEAST_WORK_LEFT = 1e-6  #: share of its work left to a job with nothing to learn


class Merging:
    """``nodes``: the node of each GPU."""

    def __init__(self, table: Table, recorder: Recorder, agenda: Agenda, nodes: Sequence[int]) -> None:
        self._table, self._recorder, self._agenda, self._nodes = table, recorder, agenda, nodes
        self._transfers = table.workload.transfers
        self._profile = table.workload.profile.tolist()
        self._partner: dict[int, int] = {}  #: jobs that hold the GPUs, and their partners there
        self._together: dict[int, tuple[float, float, float]] = {}  #: of such pairs: both jobs' work left at the start, ratio of paces
        self._joint: dict[int, Joint] = {}  #: jobs that train, or have trained, with another; they keep that pace to the end
        self._left: dict[int, tuple[float, tuple[int, ...]]] = {}  #: ended jobs, with time and GPUs
        self.left: dict[int, int] = {}  #: `View.left`

    # From the weights of another

    def begin(self, job: Job, source: int | None) -> None:
        """A job that has not trained yet begins with the weights of another."""
        if source is None or self._transfers is None or job.left < job.work:
            return
        rows = self._profile[source], self._profile[job.number]
        ratio = float(self._transfers.begin[rows]) if min(rows) >= 0 else math.nan
        if not math.isnan(ratio):
            job.left = job.work = job.work * max(ratio, _LEAST_WORK_LEFT)

    def goes_on(self, source: int | None, gpus: Sequence[int]) -> bool:
        """Whether the source of its weights has left these GPUs at this moment."""
        if source is None or source not in self._left:
            return False
        moment, theirs = self._left[source]
        return moment == self._agenda.now and set(gpus) <= set(theirs)

    # Together

    def objection(self, plan: Plan) -> str | None:
        """Why two jobs of a plan cannot train together; None: all pairs can."""
        for number, allocation in plan.allocations.items():
            partner = allocation.joint
            if partner is None or self._partner.get(number) == partner:
                continue
            if not self._known(number, partner):
                return f"job {number}: nothing is known of how it trains together with job {partner}"
            for one in (number, partner):
                if self._table.at_hand[one].left < self._table.at_hand[one].work:
                    return f"job {number}: is to train together with job {partner}, but job {one} has trained already"
        return None

    def _known(self, number: int, partner: int) -> bool:
        return self._transfers is not None and (self._profile[number], self._profile[partner]) in self._transfers.joint

    def join(self, job: Job, partner: int | None) -> None:
        """They train together from this lease of ``job`` on, until either has ended."""
        if partner is None or self._transfers is None or self._partner.get(job.number) == partner or partner not in self._table.at_hand:
            return
        other = self._table.of(partner)
        rows = self._profile[job.number], self._profile[partner]
        own, others = self._transfers.joint[rows], self._transfers.joint[rows[::-1]]
        self._joint[job.number], self._joint[partner] = own, others
        self._partner[job.number] = partner
        ratio = others.speed(1, spread=False) / own.speed(1, spread=False)  # the same on any number of GPUs, as they take the same steps
        self._together[job.number] = job.left, other.left, ratio

    def speed(self, number: int, gpus: Sequence[int]) -> float | None:
        """Work per second of a job that trains, or has trained, with another; None: it is alone."""
        joint = self._joint.get(number)
        return None if joint is None else joint.speed(len(gpus), spread=len({self._nodes[gpu] for gpu in gpus}) > 1)

    def follow(self, job: Job) -> None:
        """Update the partner's work and end: it pauses and trains exactly as ``job`` does."""
        partner = self._partner.get(job.number)
        if partner is None:
            return
        other = self._table.of(partner)
        own, others, ratio = self._together[job.number]
        other.left = max(0.0, others - ratio * (own - job.left))
        other.since = job.since
        other.speed = ratio * job.speed if job.phase == Phase.ACTIVE else 0.0
        self._agenda.void(partner)
        if other.speed > 0:
            self._agenda.put(other.since + other.left / other.speed, EventKind.END, partner)

    def leave(self, job: Job, gpus: Sequence[int]) -> None:
        """It leaves its GPUs, and with it its partner."""
        if (partner := self._partner.get(job.number)) is not None:
            self._record(partner, job, gpus)

    def end(self, job: Job) -> bool:
        """It is at its target; returns whether it was a partner, without GPUs of its own."""
        if self._transfers is None:
            return False
        number, now = job.number, self._agenda.now
        if self._profile[number] >= 0:
            self.left[number] = self._profile[number]
        self._left[number] = now, tuple(job.gpus)
        holder = next((one for one, partner in self._partner.items() if partner == number), None)
        if holder is not None:
            self._record(number, self._table.at_hand[holder], self._table.at_hand[holder].gpus)
            del self._partner[holder], self._together[holder]
            self._agenda.void(number)
            return True
        if (partner := self._partner.get(number)) is not None:
            job.left, job.speed, job.since = 0.0, 0.0, now
            self.follow(job)
            self._record(partner, job, job.gpus)
            del self._partner[number], self._together[number]
        return False

    def _record(self, partner: int, holder: Job, gpus: Sequence[int]) -> None:
        """Record a stay of the partner; the GPUs count once, for the holder."""
        now = self._agenda.now
        self._recorder.leave(partner, holder.granted, now, gpus, 0.0)
        self._recorder.share(holder.granted, len(gpus))
        self._recorder.share(now, -len(gpus))

    def part(self, number: int) -> None:
        """It gets GPUs of its own; its former partner continues alone."""
        for holder in [one for one, partner in self._partner.items() if partner == number]:
            self.leave(self._table.at_hand[holder], self._table.at_hand[holder].gpus)
            del self._partner[holder], self._together[holder]

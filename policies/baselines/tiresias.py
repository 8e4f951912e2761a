"""Tiresias: discretised two-dimensional scheduling by attained service or Gittins index (Gu et al., NSDI 2019)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ..contract import Floats, Phase, Plan, View, tunable
from ..placement.skew import spreadable
from ..queues.levels import Queues, Standing, after, ranks_of, waking
from ..queues.queue_lists import ListOrder, QueueLists
from ..queues.serving import Ranking, serve


class Tiresias:
    """Jobs start in the highest of a few queues and sink as they are served; a higher queue goes first and displaces a lower one.

    The thresholds apply to a job's GPUs times seconds run (``service``: 2D-LAS, and ``gittins``: 2D-Gittins) or to its seconds alone
    (``time``: LAS). Each queue has a list, as in the published program: a new job of a queue goes to its end, and after each decision
    running jobs stand before waiting ones. So a displaced job goes before all that waited in its queue, and within a queue only a job
    that has just sunk gives way to waiting ones. With ``gittins`` the waiting jobs of a queue go in the order of their index. A job
    that does not fit is passed over. A job that has waited ``starve_limit`` times as long as it has run goes to the highest queue. A
    job is spread over more nodes than it needs only if its model's skew is known and within ``pack_limit``.

    Gu et al., sec. 3; the three priorities as in 002 ch. 6.6.3. Thresholds, and 3 queues, are those of the simulator published
    with the paper.
    """

    @dataclass(frozen=True)
    class Config:
        priority: str = tunable("service", "measure by which a job sinks: GPU-time, time, or GPU-time with Gittins indices within a queue",
                                choices=("service", "time", "gittins"))  # fmt: skip
        queues: int = tunable(3, "number of queues; one threshold fewer is in use, in ascending order", low=1, high=5)
        threshold_1: float = tunable(3250.0, "in use from 2 queues on: (GPU-)seconds after which a job sinks", low=1.0, high=1e7,
                                     log=True, needs=("queues", 2))  # fmt: skip
        threshold_2: float = tunable(7200.0, "in use from 3 queues on", low=1.0, high=1e7, log=True, needs=("queues", 3),
                                     above="threshold_1")  # fmt: skip
        threshold_3: float = tunable(18000.0, "in use from 4 queues on", low=1.0, high=1e7, log=True, needs=("queues", 4),
                                     above="threshold_2")  # fmt: skip
        threshold_4: float = tunable(86400.0, "in use with 5 queues", low=1.0, high=1e7, log=True, needs=("queues", 5),
                                     above="threshold_3")  # fmt: skip
        starve_limit: float = tunable(0.0, "a job that has waited so many times as long as it has run goes to the highest queue; 0: never",
                                      low=0.0, high=1000.0, log=True)  # fmt: skip
        pack_limit: float = tunable(0.3, "a job whose largest tensor is more than this share of its model is not spread over nodes",
                                    low=0.0, high=1.0)  # fmt: skip

        @property
        def thresholds(self) -> tuple[float, ...]:
            """Those in use, by the number of ``queues`` (002 fig. 6.3a)."""
            return (self.threshold_1, self.threshold_2, self.threshold_3, self.threshold_4)[: self.queues - 1]

    name: ClassVar[str] = "tiresias"
    rigid: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        self.config = config
        self.uses_history = config.priority == "gittins"
        self.queues = Queues(config.thresholds, config.starve_limit)
        self._lists = QueueLists([float(config.priority == "time"), config.starve_limit, *self.queues.thresholds.tolist()])

    def plan(self, view: View) -> Plan:
        jobs = view.jobs
        if not (jobs.phase == Phase.PENDING).any():
            return Plan({}, memory=view.memory)
        standing = self.queues.standing(jobs, view.now, by_service=self.config.priority != "time")
        order = self._lists.order(jobs, view.now, standing, self.queues.floor, view.memory)
        # The upper half of a queue's width is for its running jobs, which are not displaced by their equals.
        rank = 0.5 * self._rank(view, standing, order)
        place = standing.queue + 0.5 + rank
        ranking = Ranking(
            key=place,
            claim=-place,
            hold=-np.where(order.settled, standing.queue + rank, place),
            displaceable="jobs of lower queues",
            relaxed=spreadable(view, self.config.pack_limit),
            weakest=True,
        )
        plan = serve(view, ranking)
        plan = replace(plan, memory=self._lists.memory(jobs, standing, order, after(jobs, plan)[0], view.memory))
        return waking(plan, view.now, self.queues.next_change(jobs, view.now, standing, plan))

    def _rank(self, view: View, standing: Standing, order: ListOrder) -> Floats:
        """From 0 to 1, the order of the jobs within one queue."""
        if self.config.priority != "gittins" or view.finished_service is None or not len(view.finished_service):
            return order.at
        index = gittins_index(view.finished_service, standing.level, self.queues.room(standing))
        return ranks_of(np.lexsort((order.at, -index))) / len(view.jobs)


def gittins_index(finished: Floats, attained: Floats, quantum: Floats) -> Floats:
    """Chance that a job ends within its next ``quantum`` of service, over the expected service within it.

    G = P(S - a <= D | S > a) / E[min(S - a, D) | S > a] (Gu et al., sec. 3), where S has the distribution of ``finished`` (ascending),
    a is ``attained`` and D is ``quantum``. 0 for a job that has had more than any finished one.
    """
    total = np.concatenate(([0.0], np.cumsum(finished)))
    first = np.searchsorted(finished, attained, side="right")
    last = np.searchsorted(finished, attained + quantum, side="right")
    beyond = len(finished) - first
    beyond_quantum = len(finished) - last
    capped = np.where(beyond_quantum > 0, quantum, 0.0) * beyond_quantum
    spent = total[last] - total[first] - attained * (last - first) + capped
    index: Floats = np.divide(last - first, spent, out=np.zeros(len(attained)), where=(beyond > 0) & (spent > 0))
    return index

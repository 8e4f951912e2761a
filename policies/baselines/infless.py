"""INFless: every job is sized for its own deadline when it comes, and keeps its GPUs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ..contract import Demand, Phase, Plan, View, tunable
from ..prompttuner.gpu_pools import GpuPools, reused
from ..queues.elastic import Curves, Pool, decide, divide, pack
from ..queues.levels import AT_ONCE, waking


class Infless:
    """A serverless inference scheduler, mapped to jobs that train (Yang et al., ASPLOS 2022, as 002 ch. 4.3.2 and 4.6.1 use it).

    002 lets INFless run prompt-tuning jobs, with several instances, that is GPUs, for one job. The mapping:

    - sizing: of the numbers of GPUs with which the job ends by its deadline, the one with the most throughput per GPU, the
      smaller of equals (the paper picks the instance with the highest throughput for its resources among those that meet the latency);
    - over-provisioning: ``headroom`` on the estimated time, and ``startup`` seconds for an instance to initialise, which 002
      measures at 11 % of a job's latency on average, and up to half;
    - no global schedule: jobs are served as they come, each for itself. A later job takes the remaining GPUs, none is
      preempted or moved for another, and a job that does not fit holds back none;
    - autoscaling: a running job that would miss its deadline gets more GPUs if enough are free to meet it. It is not scaled
      down, as its load does not fall.

    A job without a deadline, or whose deadline no number of GPUs meets, gets ``gpus_min``; so a waiting job is sized anew when its
    number no longer meets its deadline. Not mapped: batching of requests (a job's batch size is its owner's; there is no stream of
    requests), and CPU shares and memory of an instance. Idle instances stay warm for ``keep_alive`` seconds, for jobs of the same
    backbone; the paper's histogram chooses such a window for each function, here it is one for all. A start on warm instances alone
    takes no ``startup``.
    """

    @dataclass(frozen=True)
    class Config:
        headroom: float = tunable(0.1, "share by which the work is assumed to be longer than estimated", low=0.0, high=10.0)
        startup: float = tunable(30.0, "seconds until a job trains on new GPUs", low=0.0, high=3600.0)
        keep_alive: float = tunable(0.0, "seconds for which idle GPUs stay warm for their backbone", low=0.0, high=86400.0)

    name: ClassVar[str] = "infless"
    interval: ClassVar[float | None] = None

    def __init__(self, config: Config) -> None:
        self.config = config
        self.curves = Curves()

    def plan(self, view: View) -> Plan:
        pool = Pool(view)
        warm = GpuPools(view, self.config.startup) if self.config.keep_alive > 0 else None
        left = pool.placement.free_soon()
        wanted: dict[int, int] = {}
        # Running jobs first: a present instance is not given away.
        running = view.jobs.phase[pool.rows] == Phase.ACTIVE
        for row in pool.rows[running].tolist():
            held = int(pool.held[row])
            wanted[row] = n if (n := self._rescaled(pool, row, held)) - held <= left else held
            left -= wanted[row] - held
        waits, spare = pool.rows[~running], math.inf
        # A job stopped for a resize comes back before another gets its GPUs.
        for row in waits[np.argsort(view.jobs.run_time[waits] <= 0, kind="stable")].tolist():
            if left <= 0:
                break
            size = self._size(pool, row, warm=warm)
            n = size or int(view.jobs.gpus_min[row])
            if n <= left:
                wanted[row] = n
                left -= n
            elif size is not None:
                spare = min(spare, self._spare(pool, row, size))
        given = pack(pool, wanted, lambda row, n: int(pool.held[row]), migrate=False)
        if warm is None:
            return waking(decide(pool, divide(pool, given, pool.rows)), view.now, spare + AT_ONCE)
        given = reused(warm, pool.held, given)
        plan = decide(pool, divide(pool, given, pool.rows))
        warm.shrink(self.config.keep_alive, ())
        soonest = min(spare + AT_ONCE, warm.next_change(self.config.keep_alive, (), waits=False) - view.now)
        return replace(waking(plan, view.now, soonest), memory=warm.memory(), warm=warm.members())

    def _size(self, pool: Pool, row: int, least: int = 0, warm: GpuPools | None = None) -> int | None:
        """More than ``least`` GPUs with which a job that starts now ends in time; None: impossible. On warm ones if these are enough."""
        time = self._time(pool, row)
        curve = self.curves.of(pool, row)
        if warm is not None and warm.backbone[row] and math.isfinite(time):
            ready = int(warm.ready(warm.backbone[row], row).sum())
            at_once = (curve.gpus > least) & (curve.gpus <= ready) & (curve.speed * time >= self._work(pool, row))
            if at_once.any():
                return int(curve.gpus[np.where(at_once, curve.speed / curve.gpus, -np.inf).argmax()])
        time -= self.config.startup
        enough = (curve.gpus > least) & (curve.speed * time >= self._work(pool, row))
        if math.isinf(time) or not enough.any():
            return None
        return int(curve.gpus[np.where(enough, curve.speed / curve.gpus, -np.inf).argmax()])

    def _spare(self, pool: Pool, row: int, n: int) -> float:
        """Seconds for which a waiting job may still start on ``n`` GPUs and end in time."""
        curve = self.curves.of(pool, row)
        speed = float(curve.speed[np.searchsorted(curve.gpus, n)])
        return max(self._time(pool, row) - self.config.startup - self._work(pool, row) / speed, 0.0)

    def _rescaled(self, pool: Pool, row: int, held: int) -> int:
        """GPUs of a running job: more if it is late and they help."""
        curve = self.curves.of(pool, row)
        speed = float(np.interp(held, curve.gpus, curve.speed))
        if speed * self._time(pool, row) * (1.0 + self.config.headroom) >= self._work(pool, row):
            return held  # late only when the headroom is used up, so small changes of the estimate have no effect
        return self._size(pool, row, held) or held

    def _time(self, pool: Pool, row: int) -> float:
        """Seconds until the deadline, inf: there is none."""
        asks = pool.jobs.demand[row] != Demand.BEST_EFFORT
        return float(pool.jobs.deadline[row]) - pool.view.now if asks else math.inf

    def _work(self, pool: Pool, row: int) -> float:
        """Seconds on ``gpus_min`` GPUs, NaN when unknown: then no size is enough."""
        return float(pool.jobs.remaining[row]) * (1.0 + self.config.headroom)

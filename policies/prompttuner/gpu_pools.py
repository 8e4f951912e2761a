"""A cold pool, and a warm pool of GPUs for each LLM (002 ch. 4.4.4, fig. 4.6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ..contract import Bools, Demand, Floats, Ints, Memory, Phase, Strings, View


class GpuPools:
    """The pool of each GPU, and whether it may be given now. GPUs are rows of ``view.gpus``.

    Jobs are rows of ``view.jobs``. ``loading``: seconds that a GPU takes to load a backbone.
    """

    def __init__(self, view: View, loading: float) -> None:
        jobs, gpus, count = view.jobs, view.gpus, len(view.gpus)
        self._view, self._loading = view, loading
        self.backbone: Strings = np.full(len(jobs), "", dtype=object) if jobs.backbone is None else jobs.backbone  #: of each job; '': none
        self.of: Strings = np.full(count, "", dtype=object) if gpus.warm is None else gpus.warm.copy()  #: backbone of its pool; '': cold
        self._ready_at: Floats = np.full(count, -np.inf) if gpus.warm_at is None else gpus.warm_at.copy()
        self._holder: Ints = np.full(count, -1, dtype=np.int64)
        self._holder[jobs.alloc_gpus] = jobs.holder
        # The GPUs of a running job are in its pool, also where another policy has given them; they return there (002 ch. 4.4.4).
        held = np.flatnonzero(self._holder >= 0)
        active = held[jobs.phase[self._holder[held]] == Phase.ACTIVE]
        self.of[active] = self.backbone[self._holder[active]]
        self.of[~gpus.usable & (self._holder < 0)] = ""
        self.free: Bools = gpus.usable & (self._holder < 0)
        self._idle_since = self._idle(view.memory)
        self.victims: dict[int, list[int]] = self._displaceable()  #: jobs that may be preempted, the last started first, with their GPUs

    def _idle(self, memory: Memory) -> Floats:
        """Since when each GPU of a warm pool has been idle; inf: it serves a job, or is loading."""
        known: Mapping[str, float] = (memory or {}).get("idle", {})
        ready = self.free & (self.of != "") & (self._ready_at <= self._view.now)
        since = np.full(len(self.free), np.inf)
        for gpu in np.flatnonzero(ready).tolist():
            since[gpu] = known.get(self._view.gpus.id[gpu], self._view.now)
        return since

    def _displaceable(self) -> dict[int, list[int]]:
        """Running jobs without a backbone and a deadline. They use cold GPUs, which a pool may need."""
        jobs = self._view.jobs
        able = (jobs.phase == Phase.ACTIVE) & (jobs.demand == Demand.BEST_EFFORT) & (self.backbone == "")
        if jobs.protected is not None:
            able &= ~jobs.protected
        rows = np.flatnonzero(able)
        return {row: jobs.allocation(row).tolist() for row in rows[np.argsort(jobs.lease_time[rows], kind="stable")].tolist()}

    def able(self, job: int) -> Bools:
        """GPUs that have the memory for it, on nodes where it may start."""
        return self._view.suits(job)

    def ready(self, backbone: str, job: int) -> Bools:
        """Warm GPUs that the job can be given now."""
        ready: Bools = self.free & (self.of == backbone) & (self._ready_at <= self._view.now) & self.able(job)
        return ready

    def cold(self, job: int) -> Bools:
        """GPUs of the cold pool that are free."""
        cold: Bools = self.free & (self.of == "") & self.able(job)
        return cold

    def idle_of_others(self, backbone: str, job: int) -> list[int]:
        """Idle GPUs of other pools, the longest idle first."""
        rows = np.flatnonzero(self.free & np.isfinite(self._idle_since) & (self.of != "") & (self.of != backbone) & self.able(job))
        order: list[int] = rows[np.argsort(self._idle_since[rows], kind="stable")].tolist()
        return order

    def moments(self, backbone: str, busy_until: Callable[[int], float]) -> list[float]:
        """E_l of 002 table 4.4: when each GPU of a warm pool can next be given, ascending. GPUs that are loading count too."""
        now = self._view.now
        moments = []
        for gpu in np.flatnonzero(self.of == backbone).tolist():
            holder = int(self._holder[gpu])
            if holder < 0 and not self.free[gpu]:
                continue  # given to a job in this round, which enters its end itself
            leaves = now if holder < 0 else busy_until(holder)
            moments.append(max(leaves, float(self._ready_at[gpu]), now))
        return sorted(moments)

    def take(self, among: Bools, count: int) -> tuple[int, ...]:
        """Take so many of these GPUs, on the fewest nodes; of equal nodes, the one where the fewest others stay free."""
        rows = np.flatnonzero(among)
        node = self._view.gpus.node[rows]
        of_node = Counter(node.tolist())
        whole = [name for name, there in of_node.items() if there >= count]
        best = [min(whole, key=lambda name: (of_node[name], name))] if whole else sorted(of_node, key=lambda name: (-of_node[name], name))
        place = {name: rank for rank, name in enumerate(best)}
        order = sorted(zip(rows.tolist(), node.tolist(), strict=True), key=lambda pair: (place.get(pair[1], len(place)), pair[0]))
        taken = tuple(sorted(gpu for gpu, _ in order[:count]))
        self.free[list(taken)] = False
        return taken

    def join(self, backbone: str, gpus: Sequence[int]) -> None:
        """Cold GPUs begin to load the LLM, and are in its pool."""
        if not len(gpus):
            return
        rows = list(gpus)
        self.of[rows] = backbone
        self._ready_at[rows] = self._view.now + self._loading

    def shrink(self, window: float, booked: Collection[str]) -> bool:
        """GPUs that were idle for the window leave their pool, unless jobs wait for it (002 ch. 4.4.4.2, end). True: some have left."""
        leave = self._spare(booked) & (self._idle_since + window <= self._view.now + 1e-6)
        self.of[leave] = ""
        return bool(leave.any())

    def _spare(self, booked: Collection[str]) -> Bools:
        spare: Bools = self.free & (self.of != "") & ~np.isin(self.of.astype(str), list(booked))
        return spare

    def members(self) -> dict[str, list[int]]:
        """`Plan.warm`."""
        return {name: np.flatnonzero(self.of == name).tolist() for name in sorted({*self.of.tolist()} - {""})}

    def memory(self) -> dict[str, Any]:
        """Since when each idle GPU of a warm pool has been idle."""
        idle = np.flatnonzero(np.isfinite(self._idle_since) & self.free & (self.of != ""))
        return {"idle": {self._view.gpus.id[gpu]: float(self._idle_since[gpu]) for gpu in idle.tolist()}}

    def next_change(self, window: float, booked: Collection[str], *, waits: bool) -> float:
        """When the next window ends or, if a job waits, the next GPU has loaded; inf: never."""
        idle = np.where(self._spare(booked), self._idle_since, np.inf)
        loads = self._ready_at[(self.of != "") & (self._ready_at > self._view.now)]
        return float(min((idle + window).min(initial=np.inf), loads.min(initial=np.inf) if waits else np.inf))


def reused(pools: GpuPools, held: Ints, given: Mapping[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    """Exchange the GPUs of jobs that start now: first for those that are warm for them, then for cold ones, which load.

    ``held``: number of GPUs that each job holds.
    """
    starts = [job for job, gpus in given.items() if held[job] == 0 and pools.free[list(gpus)].all()]
    others = [gpu for job, gpus in given.items() if job not in starts for gpu in gpus]
    pools.free[others] = False
    found = dict(given)
    for job in starts:
        name, count = str(pools.backbone[job]), len(given[job])
        ready, able = pools.ready(name, job) if name else pools.cold(job), pools.able(job)
        warm = pools.take(ready, min(count, int(ready.sum())))
        cold = pools.take(pools.cold(job), min(count - len(warm), int(pools.cold(job).sum())))
        rest = pools.take(pools.free & able, count - len(warm) - len(cold))  # warm for another backbone
        pools.join(name, [*cold, *rest])
        found[job] = tuple(sorted([*warm, *cold, *rest]))
    return found

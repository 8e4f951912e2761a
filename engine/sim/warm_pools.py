"""Which GPUs are cold, loading or warm, and for what: as a policy's pools have it (`Plan.warm`), else as jobs leave them (``warm: auto``).

And what GPUs cost that are warm and serve no job.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ...policies.contract import Floats, Strings

IDLE = 600.0  #: seconds without a job after which nothing is kept loaded, as runners have it


class WarmPools:
    """``loading``: seconds until a cold GPU has loaded a backbone. Nobody uses pools until a policy has named some.

    Until then each GPU has what trained there last, loaded from its first step on: runners have it for two models and a whole node.
    """

    def __init__(self, gpus: int, loading: float) -> None:
        self._loading = loading
        self.used = False
        self._held_at = [-np.inf] * gpus
        self._of, self._ready_at = [""] * gpus, [-np.inf] * gpus
        self._since = 0.0
        self.idle_gpu_time = 0.0  #: GPU-seconds in a pool without a job, loading included

    def columns(self) -> tuple[Strings, Floats]:
        """``warm`` and ``warm_at`` of `Gpus`."""
        if not self.used:
            return np.full(len(self._of), "", dtype=object), np.full(len(self._of), -np.inf)
        return np.array(self._of, dtype=object), np.array(self._ready_at)

    def change(self, warm: Mapping[str, Collection[int]], loaded: Mapping[int, str], now: float) -> None:
        """GPUs are in these pools from now on, and in no others. ``loaded``: what has been loaded on GPUs by the jobs that train there."""
        if not self.used:
            self.used, self._of = True, [""] * len(self._of)
        pool_of = {gpu: backbone for backbone, gpus in warm.items() for gpu in gpus}
        for gpu, before in enumerate(self._of):
            backbone = pool_of.get(gpu, "")
            if backbone != before:
                self._of[gpu] = backbone
                there = not backbone or loaded.get(gpu) == backbone
                self._ready_at[gpu] = -np.inf if there else now + self._loading

    def wait(self, backbone: str, gpus: Sequence[int], now: float) -> float | None:
        """Seconds until these GPUs have all loaded it, 0: they have; None: not all are in its pool, so the job starts cold."""
        if not backbone or any(self._of[gpu] != backbone for gpu in gpus):
            return None
        return max(0.0, *(self._ready_at[gpu] - now for gpu in gpus))

    def is_warm(self, model: str, gpus: Sequence[int], now: float) -> bool:
        """Whether all these GPUs have it loaded, without pools. Who comes while they load starts cold."""
        return bool(model) and all(
            self._of[gpu] == model and self._ready_at[gpu] <= now and now - self._held_at[gpu] <= IDLE for gpu in gpus
        )

    def trains(self, model: str, gpus: Sequence[int], since: float) -> None:
        """It trains there from that moment on, and is loaded meanwhile for the next. Without a name nobody knows what it is."""
        for gpu in gpus if self._loading and not self.used else ():
            if self._of[gpu] != model:
                self._of[gpu], self._ready_at[gpu] = model, since + self._loading

    def account(self, now: float, held: Sequence[Collection[int]]) -> None:
        """Count the time up to now, in which GPUs were held as they are. ``held``: the jobs on each GPU."""
        if self.used:
            idle = sum(1 for backbone, jobs in zip(self._of, held, strict=True) if backbone and not jobs)
            self.idle_gpu_time += idle * (now - self._since)
        elif self._loading:
            for gpu, jobs in enumerate(held):
                if jobs:
                    self._held_at[gpu] = now
        self._since = now

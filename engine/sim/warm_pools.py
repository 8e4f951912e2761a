"""The state of GPUs, cold, loading or warm, and their backbone or model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ...policies.contract import Floats, Strings

KEPT_LOADED = 600.0  #: seconds after which a GPU without a job is cold, as on runners


class LoadedByJobs:
    """Without pools (``warm: auto``): each GPU has the model of its last job loaded, from that job's first step on.

    ``loading``: seconds until a cold GPU has loaded a model. Runners keep two models for a whole node.
    """

    def __init__(self, gpus: int, loading: float) -> None:
        self._loading = loading
        self._model, self._ready_at, self._held_at = [""] * gpus, [-np.inf] * gpus, [-np.inf] * gpus

    def is_warm(self, model: str, gpus: Sequence[int], now: float) -> bool:
        """Whether all these GPUs have it loaded. A job that comes while they load starts cold."""
        return bool(model) and all(
            self._model[gpu] == model and self._ready_at[gpu] <= now and now - self._held_at[gpu] <= KEPT_LOADED for gpu in gpus
        )

    def trains(self, model: str, gpus: Sequence[int], since: float) -> None:
        """The model trains there from that moment on, and is loaded for the next job meanwhile. A model without a name is never warm."""
        for gpu in gpus if self._loading else ():
            if self._model[gpu] != model:
                self._model[gpu], self._ready_at[gpu] = model, since + self._loading

    def account(self, now: float, held: Sequence[Collection[int]]) -> None:
        """``held``: the jobs on each GPU up to now."""
        for gpu, jobs in enumerate(held) if self._loading else ():
            if jobs:
                self._held_at[gpu] = now


class WarmPools:
    """A policy's pools of warm GPUs (`Plan.warm`), each for a backbone. ``loading``: as above."""

    def __init__(self, gpus: int, loading: float, now: float) -> None:
        self._loading, self._since = loading, now
        self._backbone, self._ready_at = [""] * gpus, [-np.inf] * gpus
        self.idle_gpu_time = 0.0  #: GPU-seconds in a pool without a job, loading included

    def columns(self) -> tuple[Strings, Floats]:
        """``warm`` and ``warm_at`` of `Gpus`."""
        return np.array(self._backbone, dtype=object), np.array(self._ready_at)

    def change(self, warm: Mapping[str, Collection[int]], loaded: Mapping[int, str], now: float) -> None:
        """GPUs are in these pools from now on, and in no others. ``loaded``: the backbones that running jobs have loaded, by GPU."""
        pool_of = {gpu: backbone for backbone, gpus in warm.items() for gpu in gpus}
        for gpu, before in enumerate(self._backbone):
            backbone = pool_of.get(gpu, "")
            if backbone != before:
                self._backbone[gpu] = backbone
                there = not backbone or loaded.get(gpu) == backbone
                self._ready_at[gpu] = -np.inf if there else now + self._loading

    def wait(self, backbone: str, gpus: Sequence[int], now: float) -> float | None:
        """Seconds until all these GPUs have loaded it; 0: they have. None: not all are in its pool, so the job starts cold."""
        if not backbone or any(self._backbone[gpu] != backbone for gpu in gpus):
            return None
        return max(0.0, *(self._ready_at[gpu] - now for gpu in gpus))

    def account(self, now: float, held: Sequence[Collection[int]]) -> None:
        """Count the time up to now. ``held``: the jobs on each GPU in that time."""
        idle = sum(1 for backbone, jobs in zip(self._backbone, held, strict=True) if backbone and not jobs)
        self.idle_gpu_time += idle * (now - self._since)
        self._since = now

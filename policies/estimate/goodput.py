"""Pollux' model of goodput: throughput times statistical efficiency (Qiao et al., OSDI 2021).

An iteration takes (section 3.2)

    T_grad = alpha_grad + beta_grad * m                                      m samples on each of K GPUs
    T_sync = 0 for K = 1, alpha_local + beta_local * (K - 2) on one node, alpha_node + beta_node * (K - 2) over several
    T_iter = s * T_grad + (T_grad ** gamma + T_sync ** gamma) ** (1 / gamma)  s passes accumulated before the last one

where gamma from 1 (no overlap) to 10 (full overlap) tells how far communication hides behind computation. Training with a
batch of M samples instead of the initial M0 makes (section 3.1)

    efficiency(M) = (phi + M0) / (phi + M)

of the progress per sample of M0; phi is the gradient noise scale, which grows during training.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import Floats, Ints

Numbers = Floats | Ints | float | int

_CANDIDATES = 50  #: batch sizes tried for an allocation, in geometric progression


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of an iteration by allocation and batch; every method works element by element."""

    grad: float  #: alpha_grad, constant seconds of a pass
    grad_per_sample: float  #: beta_grad
    local: float = 0.0  #: alpha_local, seconds of synchronisation of two GPUs of one node
    local_per_gpu: float = 0.0  #: beta_local, more for each further GPU
    node: float = 0.0  #: alpha_node, seconds of synchronisation over nodes
    node_per_gpu: float = 0.0  #: beta_node
    overlap: float = 1.0  #: gamma, 1 to 10

    def compute(self, local_batch: Numbers) -> Floats:
        """T_grad: forward and backward pass over ``local_batch`` samples on each GPU."""
        return self.grad + self.grad_per_sample * np.asarray(local_batch, dtype=np.float64)

    def sync(self, nodes: Numbers, gpus: Numbers) -> Floats:
        """T_sync: gradients of ``gpus`` GPUs, averaged."""
        nodes, further = np.asarray(nodes), np.maximum(np.asarray(gpus) - 2, 0)
        over_nodes, on_one = self.node + self.node_per_gpu * further, self.local + self.local_per_gpu * further
        return np.where(nodes > 1, over_nodes, np.where(np.asarray(gpus) > 1, on_one, 0.0))

    def step(self, nodes: Numbers, gpus: Numbers, local_batch: Numbers, passes: Numbers = 1) -> Floats:
        """T_iter with ``passes`` passes of ``local_batch`` samples, the last of which overlaps with synchronisation."""
        compute, sync = self.compute(local_batch), self.sync(nodes, gpus)
        longer, shorter = np.maximum(compute, sync), np.minimum(compute, sync)
        # The same as (a ** gamma + b ** gamma) ** (1 / gamma), without the powers of tiny times.
        overlapped = longer * (1.0 + (shorter / longer) ** self.overlap) ** (1.0 / self.overlap)
        return np.asarray((np.asarray(passes) - 1) * compute + overlapped, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Goodput:
    """Beliefs about a job that lets the scheduler choose its batch size."""

    step_time: StepTime
    initial_batch: int  #: M0, for which its learning rate was chosen
    max_batch: int  #: the largest batch
    local_batch: tuple[int, int]  #: fewest and most samples of a pass on one GPU
    noise_scale: tuple[tuple[float, float], ...]  #: (progress 0 to 1, phi in samples), progress ascending; between them it is interpolated

    def __post_init__(self) -> None:
        least, most = self.local_batch
        if not (1 <= least <= most and 1 <= self.initial_batch <= self.max_batch):
            raise ValueError(
                f"goodput: batch sizes {self.initial_batch} to {self.max_batch}, on a GPU {least} to {most}: they must ascend from 1 on"
            )
        progress = [at for at, _ in self.noise_scale]
        if not progress or progress != sorted(progress) or min(phi for _, phi in self.noise_scale) < 0:
            raise ValueError("goodput: noise_scale needs one (progress, phi) at least, progress ascending and phi not negative")

    def noise(self, progress: float) -> float:
        """phi at ``progress``; if that is unknown (NaN), phi at the start."""
        at, phi = zip(*self.noise_scale, strict=True)
        return float(np.interp(0.0 if np.isnan(progress) else progress, at, phi))

    def efficiency(self, batch: Numbers, progress: float = 0.0) -> Floats:
        """Progress of a sample in a batch of ``batch``, against one in the initial batch."""
        phi = self.noise(progress)
        return np.minimum((phi + self.initial_batch) / (phi + np.asarray(batch, dtype=np.float64)), 1.0)

    def rate(self, nodes: Numbers, gpus: Numbers, batch: Numbers, progress: float = 0.0) -> Floats:
        """Goodput in samples of the initial batch per second, with a batch of ``batch`` samples over all GPUs; 0 if impossible."""
        local, passes, whole = self._split(gpus, batch)
        throughput = whole / self.step_time.step(nodes, gpus, np.maximum(local, 1), passes)
        return np.where(local >= self.local_batch[0], throughput * self.efficiency(whole, progress), 0.0)

    def best(self, nodes: Ints, gpus: Ints, progress: float = 0.0) -> tuple[Floats, Ints]:
        """The highest goodput of each allocation and the batch size that reaches it (max over m and s of the paper's eqn of SPEEDUP)."""
        least = np.clip(self.local_batch[0] * gpus, self.initial_batch, self.max_batch)
        batches = np.ceil(np.geomspace(least, self.max_batch, _CANDIDATES)).astype(np.int64)
        rates = self.rate(nodes, gpus, batches, progress)
        choice = rates.argmax(axis=0), np.arange(len(gpus))
        return rates[choice], self._split(gpus, batches)[2][choice].astype(np.int64)

    def _split(self, gpus: Numbers, batch: Numbers) -> tuple[Ints, Ints, Ints]:
        """The division of a batch: samples of a pass on a GPU, passes, and the resulting batch in whole samples."""
        count = np.asarray(gpus, dtype=np.int64)
        passes = np.maximum(-(-np.asarray(batch) // (count * self.local_batch[1])), 1).astype(np.int64)
        local = np.minimum(-(-np.asarray(batch) // (count * passes)), self.max_batch // (count * passes))
        return local, passes, local * count * passes

"""Pollux' model of goodput: throughput times statistical efficiency (Qiao et al., OSDI 2021).

An iteration takes (section 3.2)

    T_grad = alpha_grad + beta_grad * m                                      m samples on each of K GPUs
    T_sync = 0 for K = 1, alpha_local + beta_local * (K - 2) on one node, alpha_node + beta_node * (K - 2) over several
    T_iter = s * T_grad + (T_grad ** gamma + T_sync ** gamma) ** (1 / gamma)  s passes accumulated before the last one

where gamma from 1 (nothing overlaps) to 10 (all does) tells how far communication hides behind computation. Training with a
batch of M samples instead of the initial M0 makes (section 3.1)

    efficiency(M) = (phi + M0) / (phi + M)

of the progress a sample that M0 makes; phi is the gradient noise scale, which grows as training goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import Bools, Floats, Ints

Numbers = Floats | Ints | float | int

_CANDIDATES = 50  #: batch sizes tried for an allocation, in geometric progression
_MOST_OVERLAP = 10.0  #: the paper's bound on gamma: near enough to the maximum of the two times


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of an iteration by allocation and batch; every method works element by element."""

    grad: float  #: alpha_grad, seconds of a pass whatever its size
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
    """What is believed of a job that lets the scheduler choose its batch size."""

    step_time: StepTime
    initial_batch: int  #: M0, what its learning rate was chosen for
    max_batch: int  #: more is never trained with
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
        """phi at ``progress``; where that is unknown (NaN), as it is at the start."""
        at, phi = zip(*self.noise_scale, strict=True)
        return float(np.interp(0.0 if np.isnan(progress) else progress, at, phi))

    def efficiency(self, batch: Numbers, progress: float = 0.0) -> Floats:
        """Progress of a sample in a batch of ``batch``, against one in the initial batch."""
        phi = self.noise(progress)
        return np.minimum((phi + self.initial_batch) / (phi + np.asarray(batch, dtype=np.float64)), 1.0)

    def rate(self, nodes: Numbers, gpus: Numbers, batch: Numbers, progress: float = 0.0) -> Floats:
        """Goodput in samples of the initial batch a second, with a batch of ``batch`` samples over all GPUs; 0 where it cannot be."""
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
        """How a batch is cut: samples of a pass on a GPU, passes, and the batch that comes out in whole samples."""
        count = np.asarray(gpus, dtype=np.int64)
        passes = np.maximum(-(-np.asarray(batch) // (count * self.local_batch[1])), 1).astype(np.int64)
        local = np.minimum(-(-np.asarray(batch) // (count * passes)), self.max_batch // (count * passes))
        return local, passes, local * count * passes


def fit_step_time(nodes: Ints, gpus: Ints, local_batch: Ints, step_time: Floats, sync_time: Floats) -> StepTime:
    """The step times that fit measurements best, one row each (section 4.1: least squared logarithmic errors).

    ``sync_time`` is the part of ``step_time`` that was not spent in computation. What was never observed is taken to cost
    nothing, as the paper's prior has it, so that the scheduler tries it; what it finds corrects that.
    """
    if not len(step_time):
        raise ValueError("fit: needs one measurement at least")
    if not (np.isfinite(step_time).all() and (sync_time >= 0).all() and (step_time > sync_time).all()):
        raise ValueError("fit: every step must take longer than its synchronisation, and that no less than 0 s")
    rows = _Measured(np.asarray(nodes), np.asarray(gpus), np.asarray(local_batch), np.log(step_time), np.log(step_time - sync_time))
    observed = _observed(rows)
    start = np.log(np.array([0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.0]))
    start[:2] += np.mean(rows.log_compute) - np.log(0.1 + 0.01 * np.mean(rows.local_batch))
    start[2:6:2] = np.log(np.mean(step_time) / 2)
    start[3:6:2] = start[2:6:2] - np.log(20.0)
    return _model(_least_squares(rows, start, observed), observed)


@dataclass(frozen=True, slots=True)
class _Measured:
    nodes: Ints
    gpus: Ints
    local_batch: Ints
    log_step: Floats
    log_compute: Floats


def _observed(rows: _Measured) -> Bools:
    """Which parameters the rows say anything about, in the order of StepTime's fields."""
    far, near, more = rows.nodes > 1, (rows.nodes == 1) & (rows.gpus > 1), rows.gpus > 2
    several = len(np.unique(rows.local_batch)) > 1
    return np.array(
        [several, True, near.any(), (near & more).any(), far.any(), (far & more).any(), (near | far).any()],
        dtype=bool,
    )


def _model(x: Floats, observed: Bools) -> StepTime:
    """Parameters from the unbounded numbers that the fit moves: logarithms, and for gamma that of (gamma - 1) / (10 - gamma)."""
    grad, per_sample, local, local_per_gpu, node, node_per_gpu, odds = np.where(observed, np.exp(np.clip(x, -40.0, 40.0)), 0.0).tolist()
    overlap = 1.0 + (_MOST_OVERLAP - 1.0) * odds / (1.0 + odds)
    return StepTime(grad, per_sample, local, local_per_gpu, node, node_per_gpu, overlap)


def _residuals(x: Floats, rows: _Measured, observed: Bools) -> Floats:
    model = _model(x, observed)
    step = np.log(model.step(rows.nodes, rows.gpus, rows.local_batch)) - rows.log_step
    compute = np.log(model.compute(rows.local_batch)) - rows.log_compute
    # A whisper of the paper's regularisation: where the data do not tell, no overlap and no cost of further GPUs.
    prior = 1e-3 * np.array([model.overlap - 1.0, model.local_per_gpu / (model.local + 1e-9), model.node_per_gpu / (model.node + 1e-9)])
    return np.concatenate([step, compute, prior])


def _least_squares(rows: _Measured, x: Floats, observed: Bools, rounds: int = 200) -> Floats:
    """Levenberg-Marquardt with a numerical Jacobian: seven numbers do not need a library."""
    free = np.flatnonzero(observed)
    damping, errors = 1e-2, _residuals(x, rows, observed)
    for _ in range(rounds):
        slopes = np.column_stack([(_residuals(x + 1e-6 * _unit(i, len(x)), rows, observed) - errors) / 1e-6 for i in free.tolist()])
        normal, gradient = slopes.T @ slopes, slopes.T @ errors
        trial = x.copy()
        trial[free] -= np.clip(
            np.linalg.solve(normal + damping * (np.diag(np.diag(normal)) + 1e-9 * np.eye(len(free))), gradient), -2.0, 2.0
        )
        found = _residuals(trial, rows, observed)
        better = float(errors @ errors - found @ found)
        if better > 0:
            x, errors, damping = trial, found, damping / 3.0
            if better < 1e-10 * float(errors @ errors):
                break
        else:
            damping *= 4.0
            if damping > 1e10:
                break
    return x


def _unit(i: int, n: int) -> Floats:
    unit = np.zeros(n)
    unit[i] = 1.0
    return unit

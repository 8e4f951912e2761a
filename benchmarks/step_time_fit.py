"""Pollux' fit of step times to measurements (Qiao et al., OSDI 2021, section 4.1), which gave the parameters in engine/traces/models.py."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from stoker.policies.arrays import Bools, Floats, Ints
from stoker.policies.estimate.goodput import StepTime

MOST_OVERLAP = 10.0  #: the paper's bound on gamma: near enough to the maximum of the two times


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
    overlap = 1.0 + (MOST_OVERLAP - 1.0) * odds / (1.0 + odds)
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

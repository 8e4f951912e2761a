"""Pollux' goodput model: by hand, refitted from its own times, and against the measurements that its authors published."""

from __future__ import annotations

import csv
import math
import os
from pathlib import Path

import numpy as np
import pytest
from step_time_fit import fit_step_time
from stoker.policies.estimate.goodput import Goodput, StepTime

MODEL = StepTime(grad=0.1, grad_per_sample=0.01, local=0.2, local_per_gpu=0.05, node=0.4, node_per_gpu=0.1, overlap=2.0)
JOB = Goodput(MODEL, initial_batch=20, max_batch=320, local_batch=(5, 80), noise_scale=((0.0, 100.0), (1.0, 300.0)))


def test_step_time_worked_example():
    # 20 samples on a GPU: 0.1 + 20 * 0.01 = 0.3 s. One GPU need not synchronise.
    assert MODEL.step(1, 1, 20) == pytest.approx(0.3)
    # 4 GPUs of a node: 0.2 + 2 * 0.05 = 0.3 s more, half hidden by gamma = 2: (0.3^2 + 0.3^2)^(1/2).
    assert MODEL.step(1, 4, 20) == pytest.approx(0.3 * math.sqrt(2))
    # On two nodes 0.4 + 2 * 0.1 = 0.6 s; a pass before the last adds its 0.3 s whole.
    assert MODEL.step(2, 4, 20, passes=2) == pytest.approx(0.3 + math.sqrt(0.3**2 + 0.6**2))


def test_overlap_runs_from_the_sum_to_the_maximum():
    sums = StepTime(0.3, 0.0, local=0.2, overlap=1.0)
    most = StepTime(0.3, 0.0, local=0.2, overlap=10.0)
    assert sums.step(1, 2, 1) == pytest.approx(0.5)
    assert most.step(1, 2, 1) == pytest.approx(0.3, rel=0.01)


def test_efficiency_worked_example():
    # phi = 100 at the start: (100 + 20) / (100 + 80) = 2/3; half-way phi = 200: 220 / 280. The initial batch wastes nothing.
    assert JOB.efficiency(80) == pytest.approx(2 / 3)
    assert JOB.efficiency(80, 0.5) == pytest.approx(220 / 280)
    assert JOB.efficiency(20, 0.7) == 1.0
    assert JOB.noise(math.nan) == 100.0


def test_goodput_is_throughput_times_efficiency():
    # 80 samples over 4 GPUs of one node, 20 each.
    assert JOB.rate(1, 4, 80) == pytest.approx(80 / (0.3 * math.sqrt(2)) * 2 / 3)
    # 160 samples on one GPU are two passes of 80.
    assert JOB.rate(1, 1, 160) == pytest.approx(160 / (2 * 0.9) * 120 / 260)
    # 64 GPUs of 5 samples fill the largest batch; on 128 each would have fewer than 5.
    assert JOB.rate(16, 64, 320) > 0
    assert JOB.rate(32, 128, 320) == 0


def test_the_best_batch_beats_all_others():
    nodes, gpus = np.array([1, 1, 2, 4]), np.array([1, 4, 8, 16])
    best, batch = JOB.best(nodes, gpus, 0.3)
    for at in range(4):
        every = JOB.rate(nodes[at], gpus[at], np.arange(20, 321), 0.3)
        assert best[at] == pytest.approx(JOB.rate(nodes[at], gpus[at], batch[at], 0.3))
        assert best[at] >= 0.98 * every.max()  # 50 of 301 are tried
        assert 20 <= batch[at] <= 320


def test_more_noise_makes_for_larger_batches():
    growing = Goodput(MODEL, 20, 2000, (5, 80), ((0.0, 10.0), (1.0, 300.0)))
    early, late = (int(growing.best(np.array([1]), np.array([2]), progress)[1][0]) for progress in (0.0, 1.0))
    assert early < late


@pytest.mark.parametrize(
    "wrong",
    [
        {"initial_batch": 0},
        {"max_batch": 10},
        {"local_batch": (9, 3)},
        {"noise_scale": ()},
        {"noise_scale": ((0.5, 1.0), (0.1, 1.0))},
        {"noise_scale": ((0.0, -1.0),)},
    ],
    ids=str,
)
def test_impossible_models_are_refused(wrong):
    sound = {"initial_batch": 20, "max_batch": 320, "local_batch": (5, 80), "noise_scale": ((0.0, 100.0),)}
    with pytest.raises(ValueError, match="goodput: "):
        Goodput(MODEL, **{**sound, **wrong})


def grid():
    """Allocations up to 4 nodes of 4 GPUs, each with four batch sizes."""
    shapes = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (2, 5), (3, 9), (4, 16)]
    return (np.array(column) for column in zip(*[(n, k, m) for n, k in shapes for m in (8, 16, 32, 64)], strict=True))


def test_the_fit_finds_the_times_it_was_given():
    nodes, gpus, local = grid()
    step = MODEL.step(nodes, gpus, local)
    fitted = fit_step_time(nodes, gpus, local, step, step - MODEL.compute(local))
    assert np.abs(fitted.step(nodes, gpus, local) / step - 1).max() < 0.01
    assert fitted.grad_per_sample == pytest.approx(0.01, rel=0.02)
    assert fitted.overlap == pytest.approx(2.0, rel=0.1)


def test_what_was_not_observed_costs_nothing():
    local = np.array([8, 16, 32])
    alone = np.ones(3, dtype=np.int64)
    fitted = fit_step_time(alone, alone, local, MODEL.compute(local), np.zeros(3))
    assert fitted.step(1, 1, 64) == pytest.approx(MODEL.compute(64), rel=1e-3)
    assert fitted.step(4, 16, 64) == fitted.step(1, 1, 64)


@pytest.mark.parametrize(("step", "sync"), [([], []), ([0.1], [0.2]), ([0.1], [-0.1]), ([math.nan], [0.0])])
def test_impossible_measurements_are_refused(step, sync):
    ones = np.ones(len(step), dtype=np.int64)
    with pytest.raises(ValueError, match="fit: "):
        fit_step_time(ones, ones, ones, np.array(step), np.array(sync))


@pytest.mark.parametrize("name", ["bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3"])
def test_predictions_against_published_measurements(name):
    """Fitted to every second placement, step times of the others: mean error below 10 %, nine of ten within 22 %.

    The rest is not the fit's: one formula stands for placements as different as 1+4+4 and 3+3+3, which measure up to 30 % apart.
    """
    if not os.environ.get("STOKER_TRACES"):
        pytest.skip("STOKER_TRACES is not set: the published profiles are not here")
    with (Path(os.environ["STOKER_TRACES"]) / "pollux" / "profiles" / name / "placements.csv").open() as file:
        rows = list(csv.DictReader(file))
    shapes = [[int(digit) for digit in row["placement"]] for row in rows]
    nodes, gpus = np.array([len(shape) for shape in shapes]), np.array([sum(shape) for shape in shapes])
    local, step, sync = (np.array([float(row[key]) for row in rows]) for key in ("local_bsz", "step_time", "sync_time"))
    train = np.array([sorted({row["placement"] for row in rows}).index(row["placement"]) % 2 == 0 for row in rows])
    fitted = fit_step_time(nodes[train], gpus[train], local[train], step[train], sync[train])
    error = np.abs(fitted.step(nodes, gpus, local) / step - 1)[~train]
    assert len(error) > 200
    assert error.mean() < 0.10
    assert np.quantile(error, 0.9) < 0.22

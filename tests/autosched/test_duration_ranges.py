"""The local predictor (002 ch. 6.4.2.2): ranges, conditioning on what has run, and users who do the same again."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from stoker.engine.autosched.moment_of_trace import DailyPredictor
from stoker.engine.autosched.situation import JobHistory
from stoker.policies.autosched.duration_ranges import (
    DurationRanges,
    NoPredictor,
    PastJobs,
    as_they_may_end,
    drawn,
    drawn_range,
    features,
    likeliest,
    possible,
    range_of,
)


def of_users(jobs: int = 400, seed: int = 0) -> PastJobs:
    """Each of six users has a duration of its own, within a tenth."""
    rng = np.random.default_rng(seed)
    submitted, user = np.sort(rng.uniform(0, 5 * 86400, jobs)), rng.integers(0, 6, jobs)
    duration = np.array([100.0, 900.0, 2500.0, 5000.0, 10000.0, 40000.0])[user] * rng.uniform(0.9, 1.1, jobs)
    ended = submitted + duration + rng.uniform(0, 600, jobs)
    return PastJobs(submitted, rng.choice([1, 2, 4], jobs), duration, ended, user, np.zeros(jobs))


def test_the_ranges_of_the_thesis() -> None:
    assert range_of(np.array([0.0, 299.0, 300.0, 1800.0, 3599.0, 7199.0, 14399.0, 14400.0])).tolist() == [0, 0, 1, 2, 2, 3, 4, 5]


def test_a_job_is_no_shorter_than_it_has_run() -> None:
    shares, classes = np.array([0.7, 0.2, 0.1]), np.array([0, 1, 3])
    known, rng = np.array([310.0, 500.0, 1500.0]), np.random.default_rng(0)
    assert [likeliest(possible(shares, classes, known, ran)) for ran in (0.0, 400.0, 2000.0, 90000.0)] == [0, 1, 3, 5]
    assert {drawn(known, 1, 400.0, rng) for _ in range(50)} == {500.0, 1500.0}
    assert drawn(known, 5, 20000.0, rng) == 40000.0


@pytest.mark.slow
def test_users_who_do_the_same_again_are_learnt() -> None:
    pytest.importorskip("sklearn")
    learnt = DurationRanges.learnt(of_users())
    assert learnt.accuracy > 0.9 > max(learnt.beside["mean"], learnt.beside["quantile"])
    fresh = of_users(seed=1)
    whole = learnt.draw(fresh, [300, 301], float(fresh.submitted[301]), np.array([0.0, 50000.0]))
    assert range_of(whole)[0] == range_of(fresh.duration[[300]])[0] and whole[1] > 50000.0


def test_a_simple_rule_that_was_right_more_often_is_taken() -> None:
    """User 0 takes minutes, user 5 eleven hours: with no other jobs known, as the last of each, or as the median of all."""
    jobs, known = of_users(), np.array([100.0, 1000.0, 40000.0])
    rows = [int(np.flatnonzero(jobs.user == user)[-1]) for user in (0, 5)]
    now, fresh = float(jobs.ended.max()), np.zeros(2)
    as_last = DurationRanges(None, known, 0.5, {"last": 0.9, "mean": 0.1, "quantile": 0.6})
    assert as_last.rule == "last" and as_last.draw(jobs, rows, now, fresh).tolist() == [100.0, 40000.0]
    as_median = DurationRanges(None, known, 0.5, {"last": 0.1, "mean": 0.1, "quantile": 0.6})
    assert as_median.draw(jobs, rows, now, fresh).tolist() == [1000.0, 1000.0]
    assert as_median.draw(jobs, rows, now, np.array([0.0, 20000.0])).tolist() == [1000.0, 40000.0]  # it has run for longer than that
    few_minutes = np.array([100.0] * 9 + [1000.0] * 3)  # the median says that it has 300 s at most; of those that ran for 250 s none did
    as_median = DurationRanges(None, few_minutes, 0.5, {"quantile": 0.6})
    assert as_median.draw(jobs, rows, now, np.array([0.0, 250.0])).tolist() == [100.0, 1000.0]
    assert DurationRanges(None, known, 0.95, as_last.beside).rule == ""


def test_ranges_are_drawn_as_likely_as_they_are() -> None:
    shares, classes, rng = np.array([0.7, 0.2, 0.1]), np.array([0, 1, 3]), np.random.default_rng(0)
    known = np.array([310.0, 500.0, 1500.0])
    counts = np.bincount([drawn_range(possible(shares, classes, known, 0.0), rng) for _ in range(2000)], minlength=4) / 2000
    assert counts == pytest.approx([0.7, 0.2, 0.0, 0.1], abs=0.03)
    assert {drawn_range(possible(shares, classes, known, 400.0), rng) for _ in range(100)} == {1, 3}
    assert drawn_range(possible(shares, classes, known, 9e4), rng) == 5


def test_a_range_counts_by_its_jobs_that_ran_for_longer() -> None:
    """Nine in ten of the short ones had ended by then, so that one which has run so long is as likely a long one."""
    known = np.concatenate((np.linspace(10.0, 190.0, 90), np.linspace(210.0, 290.0, 10), np.full(10, 2500.0)))
    shares = possible(np.array([0.9, 0.1]), np.array([0, 2]), known, 200.0)
    assert shares[0] == pytest.approx(0.9 * 0.1 / (0.9 * 0.1 + 0.1), abs=0.02) and shares.sum() == pytest.approx(1.0)
    assert possible(np.array([0.9, 0.1]), np.array([0, 2]), known, 0.0) == pytest.approx([0.9, 0, 0.1, 0, 0, 0])


@pytest.mark.slow
def test_jobs_that_run_still_are_not_forgotten() -> None:
    """Half of the jobs are short and half long. Of those of the last hours all that have ended are short ones, and the newest wait."""
    pytest.importorskip("sklearn")
    rng, now = np.random.default_rng(0), 6 * 86400.0
    submitted = np.sort(rng.uniform(5 * 86400.0, now, 400))
    duration = np.where(rng.random(400) < 0.5, 8 * 3600.0, 100.0) * rng.uniform(0.9, 1.1, 400)
    ended = submitted + duration
    waits = np.arange(400) >= 360
    open_ended = waits | (ended > now)
    ran, nobody = np.where(open_ended & ~waits, now - submitted, 0.0), np.zeros(400, dtype=int)
    past = PastJobs(submitted, nobody + 1, np.where(open_ended, np.nan, duration), np.where(open_ended, np.nan, ended), nobody, ran)
    rows = np.flatnonzero(waits).tolist()

    def share_of_long(learnt_from: PastJobs) -> float:
        classifier = dataclasses.replace(DurationRanges.learnt(learnt_from), beside={})
        return float((classifier.draw(past, rows, now, np.zeros(len(rows))) > 3600.0).mean())

    assert 0.25 < share_of_long(past) < 0.75
    assert share_of_long(dataclasses.replace(past, ran=np.zeros(400))) < 0.1  # by those that have ended alone


def test_what_is_cut_off_is_spread_over_all_that_is_longer() -> None:
    nan = math.nan
    duration, user = np.array([100.0, 200.0, 900.0, 5000.0, nan, nan, nan, nan]), np.array([0, 0, 0, 1, 0, 1, 0, 0])
    past = PastJobs(np.zeros(8), np.ones(8, dtype=int), duration, duration, user, np.array([0, 0, 0, 0, 150.0, 150.0, 0, 9000.0]))
    found = np.array([as_they_may_end(past, np.random.default_rng(seed)) for seed in range(200)])
    assert (found[:, :4] == duration[:4]).all() and np.isnan(found[:, 6]).all() and (found[:, 7] == 18000.0).all()
    assert float((found[:, 4] == 200.0).mean()) == pytest.approx(0.5, abs=0.1) and set(found[:, 4]) == {200.0, 900.0}
    assert set(found[:, 5]) == {5000.0}  # of its own user


@pytest.mark.slow
def test_a_virtual_cluster_tells_what_users_do_not() -> None:
    pytest.importorskip("sklearn")
    jobs = of_users()
    nobody = dataclasses.replace(jobs, user=np.zeros(len(jobs.user), dtype=int))
    without, beside = DurationRanges.learnt(nobody), DurationRanges.learnt(dataclasses.replace(nobody, vc=jobs.user))
    assert beside.accuracy > 0.9 > without.accuracy


@pytest.mark.slow
def test_it_is_learnt_anew_once_a_day() -> None:
    pytest.importorskip("sklearn")
    jobs = of_users()
    whole = JobHistory(jobs.submitted, jobs.gpus, jobs.duration, jobs.ended, [f"u{code}" for code in jobs.user.tolist()])
    daily = DailyPredictor()
    first = daily.at(whole.until(2 * 86400.0), 2 * 86400.0)
    assert daily.at(whole.until(2.9 * 86400.0), 2.9 * 86400.0) is first
    later = daily.at(whole.until(3 * 86400.0), 3 * 86400.0)
    assert later is not first and len(later.known) > len(first.known)


def test_it_takes_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever others may take: threads that wait for each other on a busy machine take ten times as long."""
    ensemble, pools = pytest.importorskip("sklearn.ensemble"), pytest.importorskip("threadpoolctl")
    seen = []
    for name in ("fit", "predict_proba"):
        whole = getattr(ensemble.HistGradientBoostingClassifier, name)

        def looked(*given: Any, whole: Any = whole) -> Any:
            seen.append([one["num_threads"] for one in pools.threadpool_info() if one["user_api"] == "openmp"])
            return whole(*given)

        monkeypatch.setattr(ensemble.HistGradientBoostingClassifier, name, looked)
    with pools.threadpool_limits(4):
        jobs = of_users(120)
        learnt = dataclasses.replace(DurationRanges.learnt(jobs), beside={})  # no simple rule is better
        learnt.draw(jobs, [100], float(jobs.submitted[100]), np.zeros(1))
    assert len(seen) == 4 and all(threads and set(threads) == {1} for threads in seen)


def test_features_know_nothing_of_what_is_to_come() -> None:
    jobs = of_users()
    now = float(jobs.submitted[200])
    later = jobs.submitted > now
    altered = dataclasses.replace(
        jobs,
        duration=np.where(jobs.ended > now, 7.0, jobs.duration),
        ended=np.where(jobs.ended > now, 9e9, jobs.ended),
        gpus=np.where(later, 8, jobs.gpus),
    )
    assert features(jobs, 200, now) == pytest.approx(features(altered, 200, now), nan_ok=True)


def test_too_few_jobs_say_so() -> None:
    with pytest.raises(NoPredictor, match="50 jobs have ended; 100 are needed"):
        DurationRanges.learnt(of_users(50))

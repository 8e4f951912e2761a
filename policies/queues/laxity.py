"""Deadlines of many jobs at once: the next possible one, laxity, rewards.

A job has its deadlines as tiers, earliest first, each with the reward for an end by then (002 ch. 5.3.1); a strict
deadline is one tier. Every function has one row a job and no loop over jobs.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from ..contract import Bools, Demand, Floats, Ints, Jobs


def has_deadline(jobs: Jobs) -> Bools:
    """SLO jobs: those that ask for a deadline and name one."""
    slo: Bools = (jobs.demand != Demand.BEST_EFFORT) & (np.diff(jobs.tier_start) > 0)
    return slo


def next_deadline(jobs: Jobs, finish: float | Floats) -> Floats:
    """The first deadline that an end at ``finish`` meets; inf if it meets none (or the job has none)."""
    tier, met = _first_met(jobs, finish)
    deadline = np.full(len(jobs), np.inf)
    deadline[met] = jobs.tier_deadline[tier[met]]
    return deadline


def reward(jobs: Jobs, finish: float | Floats) -> Floats:
    """The reward of an end at ``finish``; 0 after the last deadline and for best effort."""
    tier, met = _first_met(jobs, finish)
    earned = np.zeros(len(jobs))
    earned[met] = jobs.tier_reward[tier[met]]
    return earned


def ranks(*columns: Floats | Bools | Ints) -> Floats:
    """Place of each row when sorted by the first column, then by the second, and so on; equal rows have equal places."""
    order = np.lexsort(columns[::-1])
    moves = [column[order][1:] != column[order][:-1] for column in columns]
    place = np.zeros(len(order))
    place[order[1:]] = np.cumsum(reduce(np.logical_or, moves))
    return place


def _first_met(jobs: Jobs, finish: float | Floats) -> tuple[Ints, Bools]:
    """Row of the first tier that is not before ``finish``, and whether there is one."""
    n = len(jobs)
    count = np.diff(jobs.tier_start)
    owner = np.repeat(np.arange(n), count)
    at = np.broadcast_to(np.asarray(finish, dtype=np.float64), n)
    missed = np.bincount(owner[jobs.tier_deadline < at[owner]], minlength=n)
    met: Bools = has_deadline(jobs) & (missed < count)
    return jobs.tier_start[:-1] + missed, met

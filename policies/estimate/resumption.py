"""The time that suspensions and resumptions add to a job's execution (002 ch. 5.3.2.3).

An SLO job that runs ``needed`` = n of the ``available`` = m lease terms before its deadline is assumed to run in any n of the m with the
same probability. Each gap in its terms is one suspension. Terms with k gaps are k + 1 runs: n terms are cut into k + 1 runs in
C(n-1, k) ways, which stand among the m - n other terms in C(m-n+1, k+1) ways, hence the probabilities of Eqn 5.3. The sum has a closed
form: a term begins a run if it is used and the one before it is not. The first term begins one with probability n/m, each of
the m - 1 others with (m-n)/m n/(m-1); together n (m-n+1)/m runs, and one suspension less than runs:

    E[k] = n (m - n + 1) / m - 1 = (n - 1) (m - n) / m

which is exact for any m, while binomials of some hundred terms would leave the range of a float.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..arrays import Bools, Floats


def suspensions(needed: ArrayLike, available: ArrayLike) -> Floats:
    """Expected suspensions of SLO jobs that run ``needed`` of ``available`` lease terms (arrays that broadcast).

    0 without slack, also if the terms do not suffice; ``needed - 1``, the limit, if ``available`` is infinite.
    """
    n, m = np.broadcast_arrays(np.asarray(needed, dtype=np.float64), np.asarray(available, dtype=np.float64))
    possible = (n > 1) & (m > n)
    slack = np.array(possible, dtype=np.float64)
    np.divide(m - n, m, out=slack, where=possible & np.isfinite(m))
    expected: Floats = np.maximum(n - 1, 0.0) * slack
    return expected


def best_effort_suspensions(needed: ArrayLike) -> Floats:
    """Expected suspensions of best-effort jobs: one after each lease term with probability 1/2 (end of 5.3.2.3)."""
    expected: Floats = np.asarray(needed, dtype=np.float64) / 2.0
    return expected


def execution_time(work: ArrayLike, lease: ArrayLike, available: ArrayLike, overhead: ArrayLike) -> Floats:
    """Eqn 5.1 with 5.3: seconds that jobs hold their GPUs, from ``work`` seconds of training alone.

    ``lease`` is the length of a lease term and ``overhead`` the cost of one suspension with its resumption, in seconds; ``available``
    is the number of whole terms until the deadline, NaN or inf for a job without one (best effort). Arrays that broadcast.

    The overhead itself takes lease terms, so n is the least number of terms that holds the work and the suspensions of n terms. The
    result is never below ``work``, never falls when ``overhead`` rises, and fits the deadline if the work alone does. It is ``work``
    if even that does not fit (then there is no slack for suspensions), NaN if ``work`` is, and inf for a best-effort job whose
    overhead uses up its leases. ValueError for negative or missing lengths.
    """
    columns = (np.asarray(given, dtype=np.float64) for given in (work, lease, available, overhead))
    w, length, m, cost = np.broadcast_arrays(*columns)
    _check(w, length, m, cost)
    bound = np.isfinite(m)
    m = np.floor(np.where(bound, m, 0.0))
    alone = np.ceil(w / length)
    slo = _slo(w, length, m, cost, alone)
    total: Floats = np.where(bound, slo, _best_effort(w, length, cost))
    return total


def _check(work: Floats, lease: Floats, available: Floats, overhead: Floats) -> None:
    if (work < 0).any():
        raise ValueError(f"work: {np.nanmin(work):g} s is negative; give the seconds that are left, 0 for none")
    if not (lease > 0).all():
        raise ValueError(f"lease: {lease.min():g} s is not a length; give the seconds of a lease term")
    if (available < 0).any():
        raise ValueError(f"available: {np.nanmin(available):g} lease terms are negative; give 0 for a deadline that is past")
    if not (overhead >= 0).all():
        raise ValueError(f"overhead: {overhead.min():g} s is not a duration; give 0 where suspending costs nothing")


def _slo(work: Floats, lease: Floats, m: Floats, cost: Floats, alone: Floats) -> Floats:
    n = _least_terms(work, lease, m, cost, alone)
    # n - 1 terms do not suffice, so it takes longer than those: without this bound the estimate would fall as n rises by one, as
    # past m/2 that leaves less room for suspensions.
    least = np.where(n > alone, (n - 1) * lease, work)
    total: Floats = np.where(alone > m, work, np.maximum(work + cost * suspensions(n, m), least))
    return total


def _least_terms(work: Floats, lease: Floats, m: Floats, cost: Floats, alone: Floats) -> Floats:
    """Least n >= ``alone`` with n lease >= work + cost (n-1)(m-n)/m; n = m always does.

    The difference is a convex parabola in n: if it is negative at ``alone``, n is the next number after its larger root.
    """

    def fits(n: Floats) -> Bools:
        enough: Bools = n * lease >= work + cost * suspensions(n, m)
        return enough

    with np.errstate(divide="ignore", invalid="ignore"):
        square, linear = cost / m, lease - cost * (m + 1) / m
        spread = np.sqrt(np.maximum(linear**2 - 4 * square * (cost - work), 0.0))
        # The root in the form without cancellation.
        root = np.where(linear > 0, 2 * (work - cost) / (linear + spread), (spread - linear) / (2 * square))
    n = np.where(fits(alone) | (alone > m), alone, np.clip(np.ceil(root), alone, np.maximum(m, alone)))
    n = np.where((n > alone) & fits(n - 1), n - 1, n)  # rounding
    exact: Floats = np.where((n < m) & ~fits(n), n + 1, n)
    return exact


def _best_effort(work: Floats, lease: Floats, cost: Floats) -> Floats:
    """Least n with n lease >= work + cost n/2."""
    gain = lease - cost / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        n = np.where(work > 0, np.ceil(work / gain), 0.0)
        total: Floats = np.where((gain > 0) | ~(work > 0), work + cost * best_effort_suspensions(n), np.inf)
    return total

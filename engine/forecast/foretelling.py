"""Keeps the forecast of a pool's waiting jobs up to date: their places and expected starts in `waiting`.

They are computed anew when an input has changed (the waiting jobs, a learnt pace or estimate, GPUs), when the order of service has
changed, when a forecast start has passed, and otherwise twice a minute, as small changes add up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from ...policies.contract import Phase, View
from ..scheduling.enact import Forecast, write_forecast
from ..store.store import Store
from .expected_starts import estimate_starts

LOOK_INTERVAL = 1.0  #: seconds between checks whether one is due; the check is free
FORECAST_INTERVAL = 0.5  #: least seconds between two forecasts of a pool
CORE_SHARE = 0.01  #: most of a core for the forecasts of one pool: those of very long queues are made less often
REFRESH = 30.0  #: seconds after which a forecast is made anew without a known change
UNWRITTEN_SHIFT_SECONDS = 5.0  #: seconds by which a start may move without a write

Place = tuple[int | None, float | None]  #: in the queue, from 1, and expected start (s since the epoch); None: not known


class Foretelling:
    """The forecast of one pool. Any thread may call `news`, one thread calls `refresh`."""

    def __init__(
        self,
        store: Store,
        pool: str,
        look: Callable[[], View],
        clock: Callable[[], float] = time.time,
        guarded: Callable[[View, int], float] = lambda view, job: math.inf,
    ) -> None:
        """``guarded``: the time at which a guard lets a job start that its policy would start; inf: not known."""
        self._store, self._pool, self._look, self._guarded, self._clock = store, pool, look, guarded, clock
        self._news = self._told = True  #: the writer of the present values is not known yet
        self._order: Sequence[int] = ()  #: of the last forecast
        self._again = -math.inf  #: earliest time of the next one
        self._wrong_at = -math.inf  #: time at which it becomes wrong

    def news(self) -> None:
        """An event has come on which starts may depend."""
        self._news = True

    def clock_set(self) -> None:
        """The clock was set, so the time of the next forecast is no longer known."""
        self._news, self._again = True, -math.inf

    def refresh(self, order: Sequence[int]) -> None:
        """Update the forecast if it may be wrong; ``order``: the waiting jobs (ids), in the order of service."""
        now = self._clock()
        if now < self._again or not (order or self._told) or not (self._news or now >= self._wrong_at or order != self._order):
            return
        began = time.thread_time()
        self._news, self._order = False, order  # before the tables are read, so that later changes are seen the next time
        try:
            starts = self._tell(order)
        except Exception:
            self._news = True  # still owed
            raise
        self._wrong_at = min([now + REFRESH, *(start for start in starts if start > now)])
        self._again = now + max(FORECAST_INTERVAL, (time.thread_time() - began) / CORE_SHARE)

    def _tell(self, order: Sequence[int]) -> list[float]:
        """Write the forecast; returns the known expected starts."""
        view = self._look()
        waiting = set(view.jobs.id[view.jobs.phase == Phase.PENDING].tolist())
        order = [job for job in order if job in waiting]  # others have left the queue since the order was made
        starts = np.asarray(estimate_starts(view, order)).tolist()
        if order and math.isnan(starts[0]) and math.isfinite(until := self._guarded(view, order[0])):
            starts[0] = max(until, view.now)  # the holder of its GPUs gives way then, whatever its remaining time
        places: dict[int, Place] = {
            job: (place, None if math.isnan(start) else start) for place, (job, start) in enumerate(zip(order, starts, strict=True), 1)
        }
        told: dict[int, Place] = {job: (place, start) for job, place, start in self._store.rows("policy/foretold", self._pool)}
        moved = {job: place for job, place in places.items() if _moved(told.get(job, _NOTHING), place, view.now)}
        moved |= dict.fromkeys(told.keys() - places.keys(), _NOTHING)  # no longer in line, for example held meanwhile
        if moved:
            self._store.write(write_forecast, Forecast([(job, *place) for job, place in moved.items()]))
        self._told = bool(places)
        return [start for start in starts if not math.isnan(start)]


_NOTHING: Place = (None, None)


def _moved(before: Place, after: Place, now: float) -> bool:
    """Whether a place is worth a write: another position, or a moved start. An overdue start counts as now."""
    if before[0] != after[0]:
        return True
    if before[1] is None or after[1] is None:
        return before[1] is not after[1]
    return abs(max(before[1], now) - max(after[1], now)) > UNWRITTEN_SHIFT_SECONDS

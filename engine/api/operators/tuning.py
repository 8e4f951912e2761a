"""Endpoints of AutoSched: start a search for a pool's configuration, follow it, and list what was tuned."""

from __future__ import annotations

from typing import Any

import msgspec

from ....policies.autosched.objectives import OBJECTIVES
from ....policies.autosched.search import TRIALS
from ...autosched.pool_requests import PoolRequest
from ...errors import UsageError
from ...json_rows import objects
from ..call import Call, endpoint

MOST_TRIALS = 1000
NEWEST_TUNINGS = 200


def require_objective(name: str) -> None:
    """Raise UsageError for an objective that searches do not know."""
    if name not in OBJECTIVES:
        raise UsageError(f"objective: {name!r} is not one of {', '.join(OBJECTIVES)}")


class TuneRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pool: str = "default"
    objective: str = "jct"
    dry_run: bool = False
    trials: int = TRIALS
    only: tuple[str, ...] = ()
    ranges: dict[str, tuple[float, float]] = {}
    seed: int = 0


async def start(call: Call) -> dict[str, Any]:
    asked = await call.message(TuneRequest)
    require_objective(asked.objective)
    if not 2 <= asked.trials <= MOST_TRIALS:
        raise UsageError(f"trials: {asked.trials} is outside its range 2 to {MOST_TRIALS}")
    wanted = PoolRequest(asked.pool, asked.objective, asked.dry_run, asked.trials, asked.only, asked.ranges, asked.seed, call.who.user)
    return await call.control(call.daemon.tuning.begin, wanted)


async def progress(call: Call) -> dict[str, Any]:
    return call.daemon.tuning.answer(call.query("pool") or "default", call.query("search"))


async def history(call: Call) -> dict[str, Any]:
    return {"tunings": await call.read(objects, call.daemon.store, "api/tunings", NEWEST_TUNINGS)}


ENDPOINTS = [
    endpoint("/v1/tune", "admin", start, ["POST"]),
    endpoint("/v1/tune", "read", progress),
    endpoint("/v1/tunings", "read", history),
]

"""Endpoints of pools: the backbones that are kept warm."""

from __future__ import annotations

from typing import Any

import msgspec

from ...errors import NotFound, UsageError, nearest
from ...json_rows import objects
from ...scheduling.warm_by_hand import KeepWarm, keep_warm
from ...spec.check import NAME, is_backbone
from ...spec.reading.tree import shown
from ...store.store import Store
from ..call import Call, endpoint

MOST_BACKBONES = 20  #: backbones of a pool


class Backbones(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    backbones: tuple[str, ...]


async def show(call: Call) -> dict[str, Any]:
    pool = call.path("pool")
    if not (warm := await _kept(call, pool)):
        await _require(call, pool)
    return {"pool": pool, "warm": warm}


async def change(call: Call) -> dict[str, Any]:
    pool, asked = call.path("pool"), await call.message(Backbones)
    if not NAME.fullmatch(pool):
        raise UsageError(f"pool: must be a name, not {shown(pool)}")
    for name in asked.backbones:
        if not is_backbone(name):
            raise UsageError(f"backbones: must be names of models or absolute paths of their directories, not {shown(name)}")
    if len(asked.backbones) > MOST_BACKBONES:
        raise UsageError(f"backbones: {len(asked.backbones)} are more than {MOST_BACKBONES}, which is the most")
    if asked.backbones or not await _kept(call, pool):  # backbones kept in a pool that no longer exists can still be dropped
        await _require(call, pool)
    await call.control(call.daemon.store.write, keep_warm, KeepWarm(pool, asked.backbones, call.who.user))
    return {"pool": pool, "warm": await _kept(call, pool)}


async def _kept(call: Call, pool: str) -> list[dict[str, Any]]:
    return await call.read(objects, call.daemon.store, "api/pool_warm", pool)


async def _require(call: Call, pool: str) -> None:
    if absent := await call.read(absent_pool, call.daemon.store, pool):
        raise NotFound(f"{absent}; it comes with the first runner that offers it")


def absent_pool(store: Store, pool: str) -> str:
    """Words on a pool that is not there, with the nearest and all that are; empty: it is there."""
    known = ["default", *(name for (name,) in store.rows("api/known_pools"))]
    return "" if pool in known else f"pool: there is no pool {pool!r}{nearest(pool, known)}; there are: {', '.join(sorted(set(known)))}"


ENDPOINTS = [
    endpoint("/v1/pools/{pool}/warm", "read", show),
    endpoint("/v1/pools/{pool}/warm", "admin", change, ["POST"]),
]

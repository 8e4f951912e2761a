"""Endpoints of the prompt bank: add prompts, cluster them, find them. Runner code computes features, the client clusters."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.responses import Response

from ...errors import NotFound, UsageError
from ...json_rows import objects
from ...prompts.bank_files import bank_arrays
from ...prompts.stored_prompts import BankKey, NewClusters, NewPrompt, NewPrompts, add_prompts, require_prompts, set_clusters
from ..call import Call, endpoint
from ..thread_pools import Kind

MOST_AT_ONCE = 64  #: prompts of one request: each is a few statements, for which all other writes wait
MOST_FOUND = 10_000


class PromptsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    bank: BankKey
    prompts: list[NewPrompt]


class ClustersRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    bank: BankKey
    medoids: list[tuple[int, int]]  #: number of a prompt, and of the medoid of its cluster


async def add(call: Call) -> dict[str, Any]:
    asked = await call.message(PromptsRequest)
    asked.bank.require_names()
    if not 0 < len(asked.prompts) <= MOST_AT_ONCE:
        raise UsageError(f"prompts: there must be 1 to {MOST_AT_ONCE} in one request, not {len(asked.prompts)}")
    require_prompts(asked.prompts)
    new = NewPrompts(asked.bank, asked.prompts, call.who.user)
    return await _changed(call, await asyncio.wrap_future(call.daemon.store.submit(add_prompts, new)))


async def cluster(call: Call) -> dict[str, Any]:
    asked = await call.message(ClustersRequest)
    new = NewClusters(asked.bank, dict(asked.medoids))
    return await _changed(call, await asyncio.wrap_future(call.daemon.store.submit(set_clusters, new)))


async def _changed(call: Call, answer: dict[str, Any]) -> dict[str, Any]:
    await call.run(Kind.REPORT, call.daemon.bank_files.refresh)
    return answer


async def find(call: Call) -> dict[str, Any]:
    words = (call.query("words") or "").lower().split()
    given, limit = call.number("near"), min(int(call.number("limit") or 20), MOST_FOUND)
    near = None if given is None else int(given)
    found = await call.read(objects, call.daemon.store, "api/prompts_found", call.query("llm"), words, near, limit)
    if near is not None and not found and not await call.read(call.daemon.store.rows, "api/prompt_shown", near):
        raise NotFound(f"near: no prompt has the number {near}")
    return {"prompts": found}


async def show(call: Call) -> dict[str, Any]:
    word = call.path("id")
    if not word.isdecimal() or len(word) > 15:
        raise UsageError(f"id: {word[:100]!r} is no number of a prompt")
    found = await call.read(objects, call.daemon.store, "api/prompt_shown", int(word))
    if not found:
        raise NotFound(f"id: no prompt has the number {word}")
    near = await call.read(objects, call.daemon.store, "api/prompts_found", None, [], int(word), 6)
    return {"prompt": found[0], "nearest": [row for row in near if row["id"] != found[0]["id"]]}


async def banks(call: Call) -> dict[str, Any]:
    return {"banks": await call.read(objects, call.daemon.store, "api/prompt_banks", call.query("llm"))}


async def texts(call: Call) -> dict[str, Any]:
    return {"banks": await call.read(objects, call.daemon.store, "api/prompt_texts", call.path("llm"))}


async def features(call: Call) -> Response:
    """Features of all prompts of a bank, for clustering: msgpack of [numbers as int64, features as float32, n × d]."""
    bank = BankKey(llm=call.path("llm"), revision=call.path("revision"), tokenizer=call.path("tokenizer"))
    return Response(await call.run(Kind.REPORT, _packed, call, bank), media_type="application/octet-stream")


def _packed(call: Call, bank: BankKey) -> bytes:
    found = bank_arrays(call.daemon.store, bank)
    if not found:
        raise NotFound(f"there is no bank {bank}")
    return msgspec.msgpack.encode([found["id"].astype("<i8").tobytes(), found["features"].tobytes()])


ENDPOINTS = [
    endpoint("/v1/prompts", "submit", add, ["POST"]),
    endpoint("/v1/prompts", "read", find),
    endpoint("/v1/prompts/clusters", "submit", cluster, ["POST"]),
    endpoint("/v1/prompts/banks", "read", banks),
    endpoint("/v1/prompts/texts/{llm}", "read", texts),
    endpoint("/v1/prompts/features/{llm}/{revision}/{tokenizer}", "read", features),
    endpoint("/v1/prompts/{id}", "read", show),
]

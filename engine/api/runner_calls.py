"""Endpoints of runners: register, long poll, report."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.responses import Response

from .. import protocol
from ..errors import Conflict, NotFound, Stale
from ..fleet import offers
from ..fleet import registration as runners
from ..fleet.places_told import drop_bundle, take_sent
from ..protocol import (
    VERSION,
    Asked,
    BundleKept,
    BundlePiece,
    BundleWanted,
    CheckpointSent,
    Hello,
    LastLog,
    LogPiece,
    Poll,
    Report,
    Welcome,
)
from .call import Call, endpoint


async def hello(call: Call) -> Welcome:
    message = await call.message(Hello)
    if message.protocol == VERSION:  # a message of another version is not read further
        offers.require(message)
    ((daemon,),) = await call.read(call.daemon.store.rows, "api/identity")
    if message.serves not in (None, daemon):
        where = f"{message.home} on {message.host}"
        raise Conflict(
            f"runner {message.node}: the jobs in {where} are another daemon's: choose another --home, or look for the right --url"
        )
    if message.fetch_at_most is not None:
        message = msgspec.structs.replace(message, fetch_at_most=call.daemon.config.runners.fetched_bytes)
    if message.fence_after is not None:
        message = msgspec.structs.replace(message, fence_after=call.daemon.config.runners.fenced_after)
    session = await asyncio.wrap_future(call.daemon.store.submit(runners.hello, message, urgent=True))  # nothing can be stopped without it
    call.daemon.fleet.registered(message.node, session)
    config = call.daemon.config
    return Welcome(
        session=session,
        telemetry_interval=config.runners.telemetry_interval,
        heartbeat=call.daemon.fleet.heartbeat,
        warm=config.warm.mode,
        warm_memory=config.warm.memory,
        turn=config.share.turn,
        shared=await call.control(call.daemon.shared_place, message),
        keeps_logs=not await call.read(call.daemon.remote_logs.is_home_of, message),
        input_memory=config.share.input_memory,
        download=config.backbones.download,
        fence_after=config.runners.fenced_after,
        daemon=daemon,
    )


async def poll(call: Call) -> Any:
    message = await call.message(Poll)
    fleet = call.daemon.fleet
    fleet.hear(message.node, message.session)
    requests = call.daemon.remote_requests
    wait = 0.0 if requests.waiting(message) else min(message.wait, fleet.heartbeat)
    answer = await call.daemon.board.poll(message.node, message.version, wait)
    if not fleet.current(message.node, message.session):
        raise Stale(f"runner {message.node}: another agent has registered under this name since")
    return requests.hand_out(message, answer)


async def report(call: Call) -> Any:
    message = await call.message(Report)
    call.daemon.fleet.hear(message.node, message.session)
    if message.now is not None:
        now = call.daemon.clock()
        behind = call.daemon.fleet.behind(message.node, message.session, message.now, now)
        message = msgspec.structs.replace(message, now=now - behind)
    if call.daemon.unstored:  # the end of a job whose cancellation was not stored would count as a failure
        await call.control(call.daemon.unstored.look)
    return await asyncio.wrap_future(call.daemon.store.submit(runners.report, message, urgent=bool(message.workers)))


async def log(call: Call) -> dict[str, Any]:
    message = await call.message(LogPiece)
    call.daemon.fleet.hear(message.node, message.session)
    call.daemon.remote_requests.take(message)
    return {}


async def asked(call: Call) -> dict[str, Any]:
    message = await call.message(Asked)
    call.daemon.fleet.hear(message.node, message.session)
    call.daemon.remote_requests.take(message)
    return {}


async def last_log(call: Call) -> dict[str, Any]:
    message = await call.message(LastLog)
    call.daemon.fleet.hear(message.node, message.session)
    await call.upload(call.daemon.kept_logs.take, message)
    return {}


async def bundle_piece(call: Call) -> BundleKept:
    message = await call.message(BundlePiece)
    call.daemon.fleet.hear(message.node, message.session)
    most = call.daemon.config.runners.fetched_bytes
    return await call.upload(
        call.daemon.bundles.take, message.digest, message.offset, message.data, last=message.last, at_most=most, what="its checkpoint"
    )


async def bundle(call: Call) -> Response:
    message = await call.message(BundleWanted)
    call.daemon.fleet.hear(message.node, message.session)
    try:
        content = await call.upload(call.daemon.bundles.read, message.digest, message.offset)
    except NotFound:  # the runner that has it sends it again
        await asyncio.wrap_future(call.daemon.store.submit(drop_bundle, message.digest, urgent=True))
        raise
    return Response(content, media_type="application/octet-stream")


async def checkpoint_sent(call: Call) -> dict[str, Any]:
    message = await call.message(CheckpointSent)
    call.daemon.fleet.hear(message.node, message.session)
    await asyncio.wrap_future(call.daemon.store.submit(take_sent, message, urgent=True))
    return {}


ENDPOINTS = [
    endpoint(protocol.HELLO, "runner", hello, ["POST"]),
    endpoint(protocol.POLL, "runner", poll, ["POST"]),
    endpoint(protocol.REPORT, "runner", report, ["POST"]),
    endpoint(protocol.LOG, "runner", log, ["POST"]),
    endpoint(protocol.LAST_LOG, "runner", last_log, ["POST"]),
    endpoint(protocol.ASKED, "runner", asked, ["POST"]),
    endpoint(protocol.BUNDLE_PIECE, "runner", bundle_piece, ["POST"]),
    endpoint(protocol.BUNDLE, "runner", bundle, ["POST"]),
    endpoint(protocol.CHECKPOINT_SENT, "runner", checkpoint_sent, ["POST"]),
]

"""Endpoints of runners: register, long poll, report."""

from __future__ import annotations

import asyncio
from typing import Any

from .. import protocol
from ..errors import Stale
from ..protocol import Hello, Poll, Report, Welcome
from ..workflow import runners
from .call import Call, endpoint


async def hello(call: Call) -> Welcome:
    message = await call.message(Hello)
    session = await asyncio.wrap_future(call.daemon.store.submit(runners.hello, message))
    call.daemon.fleet.registered(message.node, session)
    interval = call.daemon.config.runners.telemetry_interval
    return Welcome(session=session, telemetry_interval=interval, heartbeat=call.daemon.fleet.heartbeat)


async def poll(call: Call) -> Any:
    message = await call.message(Poll)
    fleet = call.daemon.fleet
    fleet.hear(message.node, message.session)
    answer = await call.daemon.board.poll(message.node, message.version, min(message.wait, fleet.heartbeat))
    if not fleet.current(message.node, message.session):
        raise Stale(f"runner {message.node}: another agent has registered under this name since")
    return answer


async def report(call: Call) -> Any:
    message = await call.message(Report)
    call.daemon.fleet.hear(message.node, message.session)
    return await asyncio.wrap_future(call.daemon.store.submit(runners.report, message))


ENDPOINTS = [
    endpoint(protocol.HELLO, "runner", hello, ["POST"]),
    endpoint(protocol.POLL, "runner", poll, ["POST"]),
    endpoint(protocol.REPORT, "runner", report, ["POST"]),
]

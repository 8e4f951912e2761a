"""Endpoints about jobs that serve a model: where each serves, and requests that are handed on to its socket.

A program on any host asks by HTTP with a token, as for all else: no further port is opened, and none without a token.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from typing import Any

import msgspec

from ...errors import Conflict, LimitExceeded, StokerError, Unreachable, UsageError
from ...fleet.remote_requests import MESSAGES, RemoteRequests
from ...jobs.states import FINAL
from ...json_rows import objects
from ...protocol import LONGEST_REQUEST, SERVER_SOCKET, AskRequest
from ...spec.model import SERVES, Serve
from ..call import Call, endpoint
from .jobs import log_source, resolve

LONGEST_ANSWER = 64 << 20  #: bytes
TIMEOUT, LONGEST = 60.0, 600.0  #: seconds until an answer
_FAILED: dict[str, type[StokerError]] = {"busy": LimitExceeded, "unreachable": Unreachable, "refused": UsageError}


class Requests(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    requests: list[Any]


def _server(call: Call) -> dict[str, Any]:
    """A lease that serves: of the job, or of any task of the array; raises an error where none serves."""
    ref, store = call.path("ref"), call.daemon.store
    named = resolve(store, ref, call.who.user)
    rows = objects(store, "api/servers", named.job, named.array)
    if rows[0]["kind"] != SERVES:
        raise UsageError(f"job {rows[0]['job']} {rows[0]['name']} trains, it answers nothing: ask a job of kind {SERVES}")
    serving = [row for row in rows if row["run_dir"] is not None]
    if not serving:
        row = rows[0]
        if row["state"] in FINAL:
            raise Conflict(f"job {row['job']} {row['name']} has ended: {row['state']}; submit it again to ask it")
        raise Conflict(f"job {row['job']} {row['name']} does not serve now, it is {row['state']}: 'stoker explain {row['name']}' says why")
    row = random.choice(serving)  # tasks of an array are replicas
    serve = msgspec.convert(json.loads(row["serve"]), Serve) if row["serve"] else Serve()
    return {**{name: row[name] for name in ("job", "name", "lease", "node", "run_dir", "since")}, "serve": msgspec.to_builtins(serve)}


def _found(call: Call) -> dict[str, Any]:
    """The lease that serves, and whether its socket is on this host."""
    where = _server(call)
    source, _ = log_source(call.daemon.store, where["job"], where["lease"], where["node"])
    return {**where, "here": source is None or call.daemon.remote_logs.is_here(source)}


async def server(call: Call) -> dict[str, Any]:
    return await call.read(_found, call)


async def ask(call: Call) -> dict[str, Any]:
    requests = (await call.message(Requests)).requests
    timeout = min(call.number("timeout") or TIMEOUT, LONGEST)
    where = await call.read(_found, call)
    answers = await call.unless_gone(_handed_on(call.daemon.remote_requests, where, requests, timeout))
    return {"job": where["job"], "answers": answers}


async def _handed_on(remote: RemoteRequests, where: dict[str, Any], requests: list[Any], timeout: float) -> list[dict[str, Any]]:
    name = where["name"]
    line = json.dumps({"requests": requests}).encode() + b"\n"
    if len(line) > LONGEST_REQUEST:
        raise LimitExceeded(f"the request is larger than {LONGEST_REQUEST >> 20} MiB: send less at once")
    try:
        async with asyncio.timeout(timeout):
            if not where["here"]:
                return await asked_through(remote, where, requests, timeout)
            said = await _told(where["run_dir"], line)
    except TimeoutError:
        raise LimitExceeded(f"{name} has not answered within {timeout:g} s") from None
    except BlockingIOError:
        raise LimitExceeded(f"{name} has more clients waiting than it takes: ask again later") from None
    except (OSError, ValueError) as error:
        raise Unreachable(f"{name} on runner {where['node']} cannot be asked from here now, it may be loading: {error}") from None
    if not said.endswith(b"\n"):
        raise Unreachable(f"{name} ended before it answered: 'stoker explain {name}' says why; ask again when it serves again")
    answer = json.loads(said)
    if "error" in answer:
        raise (LimitExceeded if answer.get("busy") else UsageError)(f"{name}: {answer['error']}")
    answers: list[dict[str, Any]] = answer["answers"]
    return answers


async def asked_through(remote: RemoteRequests, where: dict[str, Any], requests: list[Any], timeout: float) -> list[Any]:
    """Ask the server through the runner of its host."""
    node, of = where["node"], {field: where[field] for field in ("job", "name", "lease")}
    found = await remote.ask(MESSAGES, node, lambda number: AskRequest(number=number, requests=requests, timeout=timeout, **of))
    if found is None:
        raise Unreachable(
            f"{where['name']} runs on another host, and its runner {node} is of a version that hands on no requests: update it"
        )
    if found.failed:
        raise _FAILED[found.failed](found.error)
    answers: list[Any] = found.answers
    return answers


async def _told(run_dir: str, line: bytes) -> bytes:
    """The answer of the server; the connection is closed also when the request is given up."""
    there = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{there}/{SERVER_SOCKET}", limit=LONGEST_ANSWER)
    finally:
        os.close(there)
    try:
        writer.write(line)
        await writer.drain()
        return await reader.readline()
    finally:
        writer.close()


ENDPOINTS = [
    endpoint("/v1/jobs/{ref}/server", "read", server),
    endpoint("/v1/jobs/{ref}/ask", "submit", ask, ["POST"]),
]

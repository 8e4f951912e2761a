"""The OpenAPI document of the endpoints: their paths and roles, the bodies that they decode, and the answers as listed here.

A test compares the answers of all endpoints with this list; it fails for an endpoint that is missing here.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import msgspec

from ... import __version__
from ..errors import KINDS
from ..protocol import Asked, BundlePiece, BundleWanted, CheckpointSent, Hello, LastLog, LogPiece, Poll, Report, SnapshotPiece
from ..traces.trace import Trace, TraceJob
from . import runner_calls as runner
from .answers import Encoded
from .call import Call, Endpoint, Nothing, endpoint
from .jobs import jobs, model_requests, retries
from .jobs.jobs import Action, Moved, Priority
from .jobs.written_jobs import Submitted
from .operators import kept, operators, pool_calls, reports, tuning
from .studies import prompt_banks, simulations, traces

#: For each endpoint: the fields of its answer with their types ("?": or null, "~" before the name: not always there), or a media type;
#: the names in its query; the type of its body.
SAID: dict[str, tuple[str, str, Any]] = {
    "GET /healthz": ("ok: boolean", "", None),
    "GET /metrics": ("text/plain", "", None),
    "GET /v1/openapi.json": ("openapi: string, info: object, paths: object, components: object", "", None),
    "GET /v1/status": (
        "version: string, pid: integer, home: string, started_at: number, now: number, role: string, disk: object, database: object, "
        "runners: array, notices: array, pools: array, jobs: object, tasks: array", "", None),
    "GET /v1/top": ("now: number, gpus: array, running: array, queue: array, counts: object, warm: array, notices: array", "", None),
    "GET /v1/runners": ("runners: array", "", None),
    "GET /v1/kept": ("kept: array", "", None),
    "POST /v1/jobs": ("jobs: array, schedule: integer?, dry_run: boolean, ~schedules: array", "", Submitted),
    "GET /v1/jobs": ("jobs: array", "state user name label id since all arrays limit", None),
    "GET /v1/jobs/{ref}": (
        "job: object, tasks: array?, array: object?, tiers: array, dependencies: array, provenance: object?, progress: object?, "
        "serving: object?, shared_input: object?, replicas: object?, "
        "expected: object?, silent: array, leases: array, waiting: object?, events: array",
        "", None),
    "GET /v1/jobs/{ref}/explain": (
        "job: object, summary: string, waiting: object?, guard: object?, before: object?, decisions: array, blockers: array, "
        "deadline: object?, expected: object?, shared_with: array, silent: array, tasks: array?, array: object?", "", None),
    "GET /v1/jobs/{ref}/forecast": (
        "status: string, reason: string?, now: number?, runs: integer, simulated: integer, needs: number?, gpus: integer?, "
        "demand: string?, steps: array, end_50: number?, end_90: number?, others: object?, cpu_seconds: number", "", None),
    "GET /v1/jobs/{ref}/pipeline": (
        "job: object, shown: object, pipelines: array, decisions: array, history: array", "rank name decisions points", None),
    "GET /v1/jobs/{ref}/metrics": ("job: integer, rows: array, after: string, more: boolean", "name after", None),
    "GET /v1/jobs/{ref}/logs": (
        "text: string, file: string, offset: integer, more: boolean, done: boolean, ~times: array, lease: integer?, path: string?, "
        "host: string?, node: string?", "lease node lines file offset wait since times", None),
    "GET /v1/jobs/{ref}/server": (
        "job: integer, name: string, lease: integer, node: string, run_dir: string, since: number, serve: object, "
        "here: boolean", "", None),
    "POST /v1/jobs/{ref}/ask": ("job: integer, answers: array", "timeout", model_requests.Requests),
    "POST /v1/jobs/{ref}/cancel": ("jobs: array", "", Action),
    "POST /v1/jobs/{ref}/hold": ("jobs: array", "", Action),
    "POST /v1/jobs/{ref}/release": ("jobs: array", "", Action),
    "POST /v1/jobs/{ref}/move": ("jobs: array", "", Moved),
    "POST /v1/jobs/{ref}/priority": ("jobs: array", "", Priority),
    "POST /v1/jobs/{ref}/retry": ("jobs: array", "", retries.Retry),
    "POST /v1/cancel": ("jobs: array", "", retries.Matching),
    "POST /v1/runners/{node}/drain": ("ok: boolean", "", operators.Leave),
    "POST /v1/runners/{node}/resume": ("ok: boolean", "", Nothing),
    "POST /v1/runners/{node}/stop": ("ok: boolean", "", operators.Leave),
    "POST /v1/runners/{node}/forget": ("ok: boolean", "", Nothing),
    "POST /v1/sql": (
        "columns: array, types: array, rows: array, truncated: boolean, seconds: number", "", operators.Query),
    "POST /v1/sql/copy": ("path: string, bytes: integer", "", operators.CopyRequest),
    "GET /v1/schema": ("tables: array", "", None),
    "GET /v1/policy": ("policies: array, pools: array, history: array", "name", None),
    "POST /v1/policy": (
        "id: integer, pool: string, policy: string, interval: number, config: object, code: string?, set_by: string, ts: number, "
        "modules: array, code_before: string?, notes: array", "", operators.PolicyChange),
    "GET /v1/schedules": ("schedules: array", "", None),
    "POST /v1/schedules/{id}/remove": ("ok: boolean", "", Nothing),
    "GET /v1/tokens": ("tokens: array", "", None),
    "POST /v1/tokens": ("id: integer, token: string", "", operators.TokenRequest),
    "POST /v1/tokens/{id}/revoke": ("ok: boolean", "", Nothing),
    "POST /v1/backup": ("path: string, bytes: integer, seconds: number, tables: object", "", operators.BackupRequest),
    "POST /v1/compact": ("before: integer, after: integer", "", Nothing),
    "POST /v1/shutdown": ("ok: boolean, pid: integer", "", operators.ShutdownRequest),
    "GET /v1/pools/{pool}/warm": ("pool: string, warm: array", "", None),
    "POST /v1/pools/{pool}/warm": ("pool: string, warm: array", "", pool_calls.Backbones),
    "POST /v1/prompts": ("added: integer, known: integer, ids: array, replaced: array", "", prompt_banks.PromptsRequest),
    "GET /v1/prompts": ("prompts: array", "llm words near limit", None),
    "POST /v1/prompts/clusters": ("clusters: integer, prompts: integer", "", prompt_banks.ClustersRequest),
    "GET /v1/prompts/banks": ("banks: array", "llm", None),
    "GET /v1/prompts/{id}": ("prompt: object, nearest: array", "", None),
    "GET /v1/prompts/texts/{llm}": ("banks: array", "", None),
    "GET /v1/prompts/features/{llm}/{revision}/{tokenizer}": ("application/msgpack", "", None),
    "GET /v1/adapters": ("adapters: array", "user all", None),
    "POST /v1/ui": ("url: string, port: integer, seconds: number, user: string, role: string", "", operators.PageRequest),
    "POST /v1/report": ("columns: array, rows: array, truncated: boolean", "", reports.ReportQuery),
    "POST /v1/simulations": ("~id: integer, ~upload: string", "more", simulations.RunMessage),
    "POST /v1/simulations/uploads/{token}": ("~id: integer, ~upload: string", "offset last", simulations.JobColumns),
    "GET /v1/simulations": ("runs: array", "study limit", None),
    "GET /v1/simulations/history": (
        "pool: string, jobs: array, stays: array, nodes: array, left_out: object, models: array, slowdowns: array", "pool since", None),
    "POST /v1/traces": ("~id: integer, ~name: string, ~jobs: integer, ~existing: boolean, ~upload: string", "total", Trace),
    "POST /v1/traces/uploads/{token}": (
        "~upload: string, jobs: integer, ~id: integer, ~name: string, ~existing: boolean", "offset", list[TraceJob]),
    "GET /v1/traces": ("traces: array", "", None),
    "GET /v1/traces/{name}": ("trace: object, summary: object", "", None),
    "GET /v1/traces/{name}/jobs": ("jobs: array", "offset limit id", None),
    "DELETE /v1/traces/{name}": ("id: integer, name: string, jobs: integer", "", None),
    "POST /v1/tune": ("search: string, pool: string, state: string, ~trials: integer", "", tuning.TuneRequest),
    "GET /v1/tune": (
        "search: string, pool: string, state: string, ~trials: integer, ~why: string, ~idle: boolean, ~before: object, ~after: object, "
        "~gain: number, ~applied: boolean", "pool search", None),
    "GET /v1/tunings": ("tunings: array", "", None),
    "POST /v1/runner/hello": (
        "session: integer, telemetry_interval: number, heartbeat: number, warm: string, turn: string, input_memory: number, "
        "warm_memory: number, shared: object?, keeps_logs: boolean, fence_after: number?, download: boolean, "
        "daemon: string?", "", Hello),
    "POST /v1/runner/poll": (
        "version: integer, leases: array, shutdown: string?, logs: array, asks: array, warm: array, draining: boolean, "
        "send: array", "", Poll),
    "POST /v1/runner/report": ("stale: array", "", Report),
    "POST /v1/runner/log": ("", "", LogPiece),
    "POST /v1/runner/bundle_piece": ("bytes: integer, whole: boolean", "", BundlePiece),
    "POST /v1/runner/bundle": ("application/octet-stream", "", BundleWanted),
    "POST /v1/runner/checkpoint_sent": ("", "", CheckpointSent),
    "POST /v1/snapshots": ("bytes: integer, whole: boolean", "", SnapshotPiece),
    "POST /v1/runner/last_log": ("", "", LastLog),
    "POST /v1/runner/asked": ("", "", Asked),
}  # fmt: skip


def _answer(said: str) -> dict[str, Any]:
    """The ``content`` of an answer."""
    if "/" in said:
        return {said: {"schema": {"type": "string"}}}
    properties, required = {}, []
    for field in filter(None, said.split(", ")):
        name, _, kind = field.removeprefix("~").partition(": ")
        properties[name] = {"type": [kind[:-1], "null"] if kind.endswith("?") else kind}
        if not field.startswith("~"):
            required.append(name)
    return {"application/json": {"schema": {"type": "object", "properties": properties, "required": required}}}


def _operation(path: str, role: str, function: Endpoint, said: tuple[str, str, Any], body: dict[str, Any] | None) -> dict[str, Any]:
    answer, query, _ = said
    inside = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in re.findall(r"\{(\w+)\}", path)]
    asked = [{"name": name, "in": "query", "required": False, "schema": {}} for name in query.split()]
    about = (function.__doc__ or "").strip().partition("\n")[0]
    return {
        "summary": about or function.__name__.replace("_", " "),
        "description": f"Needs a token of role {role}." if role != "none" else "Needs no token.",
        "parameters": inside + asked,
        **({} if body is None else {"requestBody": {"content": {"application/json": {"schema": body}}}}),
        "responses": {"200": {"description": "done", "content": _answer(answer)}, "default": {"$ref": "#/components/responses/Refused"}},
        "security": [{"token": []}] if role != "none" else [],
    }


@functools.cache
def described(endpoints: tuple[tuple[str, str, Endpoint, str], ...]) -> bytes:
    """The document for these endpoints (path, role, function, method), as JSON."""
    known = [(entry, SAID[f"{entry[3]} {entry[0]}"]) for entry in endpoints if f"{entry[3]} {entry[0]}" in SAID]
    bodies, components = msgspec.json.schema_components(
        [said[2] for _, said in known if said[2] is not None], ref_template="#/components/schemas/{name}"
    )
    schemas = iter(bodies)
    paths: dict[str, dict[str, Any]] = {}
    for (path, role, function, method), said in known:
        body = None if said[2] is None else next(schemas)
        paths.setdefault(path, {})[method.lower()] = _operation(path, role, function, said, body)
    error = {"type": "object", "properties": {"code": {"enum": sorted(KINDS)}, "message": {"type": "string"}}}
    refused = {"schema": {"type": "object", "properties": {"error": error}, "required": ["error"]}}
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Stoker", "version": __version__, "description": "What is asked and answered in words: docs/api.md"},
            "paths": paths,
            "components": {
                "schemas": components,
                "responses": {"Refused": {"description": "one line that says why", "content": {"application/json": refused}}},
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


async def document(call: Call) -> Any:
    """This document."""
    return Encoded(await call.control(described, tuple((path, role, function, methods[0]) for path, role, function, methods in table())))


ENDPOINTS = [endpoint("/v1/openapi.json", "none", document)]
_PARTS = (jobs, kept, model_requests, operators, pool_calls, prompt_banks, reports, retries, runner, simulations, traces, tuning)


def table() -> list[tuple[str, str, Endpoint, list[str]]]:
    """All endpoints: path, role, function and methods of each."""
    return [*ENDPOINTS, *(entry for part in _PARTS for entry in part.ENDPOINTS)]

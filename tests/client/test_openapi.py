"""The OpenAPI document, compared with what each endpoint answers on a daemon: a walk over all of them."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e import DaemonProcess, daemon_apart
from stoker.engine.api.openapi import table
from stoker.engine.client import Client
from stoker.engine.errors import StokerError
from stoker.engine.protocol import VERSION

pytestmark = pytest.mark.xdist_group("client-openapi")

GPU = {"id": "n2/cpu0", "index": 0, "kind": "cpu", "name": "cpu", "memory": 0, "health": "ok", "note": None}
HELLO = {
    "protocol": VERSION, "version": "t", "node": "n2", "host": "h", "boot_id": "b", "pid": 1, "pid_started": 1.0, "home": "/h",
    "address": "localhost", "pool": "default", "gpus": [GPU], "leases": [],
}  # fmt: skip
BANK = {"llm": "tiny", "revision": "r1", "tokenizer": "t1"}
TRACE_JOB = {"key": "1", "submitted": 0.0, "duration": 10.0, "gpus_min": 1}
TRACE = {"name": "t", "format": "neutral", "source": "s", "sha256": "0", "jobs": [TRACE_JOB], "starts_at": 0.0}
NOBODY = {"path": "relative"}

#: Requests in order: what is asked (a body: a POST), and what a refusal says where an answer would take a job that serves, or much time.
# The daemon is told to end by the last one.
WALK: list[tuple[str, Any, str]] = [
    ("GET /healthz", None, ""),
    ("GET /metrics", None, ""),
    ("GET /v1/openapi.json", None, ""),
    ("POST /v1/runner/hello", HELLO, ""),
    ("POST /v1/jobs", {"spec": {"name": "a", "command": ["true"], "hold": True}}, ""),
    ("POST /v1/jobs", {"spec": {"name": "a", "command": ["true"]}, "dry_run": True}, ""),
    ("POST /v1/jobs", {"spec": {"name": "n", "command": ["true"], "cron": "0 0 * * *"}}, ""),
    ("POST /v1/jobs", {"jobs": [{"name": "b", "command": ["true"]}], "provenance": {"argv": [], "cwd": "/"}}, ""),
    ("GET /v1/jobs", None, ""),
    ("GET /v1/jobs/{ref}", None, ""),
    ("GET /v1/jobs/{ref}/explain", None, ""),
    ("GET /v1/jobs/{ref}/forecast", None, ""),
    ("GET /v1/jobs/{ref}/pipeline", None, "not-found"),
    ("GET /v1/jobs/{ref}/metrics", None, ""),
    ("GET /v1/jobs/{ref}/logs", None, ""),
    ("GET /v1/jobs/{ref}/logs?times=1", None, ""),
    ("GET /v1/jobs/{ref}/server", None, "bad-request"),
    ("POST /v1/jobs/{ref}/ask", {"requests": ["x"]}, "bad-request"),
    ("POST /v1/jobs/{ref}/hold", {}, ""),
    ("POST /v1/jobs/{ref}/release", {}, ""),
    ("POST /v1/jobs/{ref}/priority", {"priority": 2}, ""),
    ("POST /v1/jobs/{ref}/move", {"restart": True}, ""),
    ("POST /v1/jobs/{ref}/cancel", {}, ""),
    ("POST /v1/jobs/{ref}/retry", {}, ""),
    ("POST /v1/cancel", {"name": "nothing"}, ""),
    ("GET /v1/kept", None, ""),
    ("GET /v1/status", None, ""),
    ("GET /v1/top", None, ""),
    ("GET /v1/runners", None, ""),
    ("POST /v1/runner/poll", {"node": "n2", "session": 1, "version": -1, "wait": 0.0}, ""),
    ("POST /v1/runner/report", {"node": "n2", "session": 1}, ""),
    ("POST /v1/runner/log", {"node": "n2", "session": 1, "number": 1}, ""),
    ("POST /v1/runner/asked", {"node": "n2", "session": 1, "number": 1, "answers": [{"answer": "x"}]}, ""),
    ("POST /v1/runner/last_log", {"node": "n2", "session": 1, "job": 99, "lease": 99, "data": "eA=="}, "not-found"),
    ("POST /v1/runner/bundle_piece", {"node": "n2", "session": 1, "digest": "ab" * 32, "offset": 0, "data": "eA==", "last": False}, ""),
    ("POST /v1/runner/bundle", {"node": "n2", "session": 1, "digest": "cd" * 32, "offset": 0}, "not-found"),
    ("POST /v1/runner/checkpoint_sent", {"node": "n2"}, "bad-request"),
    ("POST /v1/snapshots", {"digest": "ab" * 32, "offset": 0, "data": "eA==", "last": False}, ""),
    ("POST /v1/sql", {"query": "SELECT 1 AS a"}, ""),
    ("POST /v1/sql/copy", NOBODY, "bad-request"),
    ("POST /v1/report", {"query": "extent", "values": {"jobs": None, "since": 0.0, "now": 1.0}}, ""),
    ("GET /v1/adapters", None, ""),
    ("POST /v1/ui", {"port": None}, ""),
    ("GET /v1/schema", None, ""),
    ("GET /v1/policy", None, ""),
    ("POST /v1/policy", {"policy": "fifo"}, ""),
    ("GET /v1/pools/{pool}/warm", None, ""),
    ("POST /v1/pools/{pool}/warm", {"backbones": []}, ""),
    ("POST /v1/tune", {"pool": "none"}, "not-found"),
    ("GET /v1/tune", None, "not-found"),
    ("GET /v1/tunings", None, ""),
    ("GET /v1/schedules", None, ""),
    ("POST /v1/schedules/{id}/remove", {}, ""),
    ("POST /v1/tokens", {"name": "t", "role": "read"}, ""),
    ("GET /v1/tokens", None, ""),
    ("POST /v1/tokens/{id}/revoke", {}, ""),
    ("POST /v1/prompts", {"bank": BANK, "prompts": [{"text": "x", "features": [1.0, 0.5], "source": "s", "task": None}]}, ""),
    ("POST /v1/prompts/clusters", {"bank": BANK, "medoids": [[1, 1]]}, ""),
    ("GET /v1/prompts", None, ""),
    ("GET /v1/prompts/banks", None, ""),
    ("GET /v1/prompts/{id}", None, ""),
    ("GET /v1/prompts/texts/{llm}", None, ""),
    ("GET /v1/prompts/features/{llm}/{revision}/{tokenizer}", None, ""),
    ("POST /v1/traces", TRACE, ""),
    ("GET /v1/traces", None, ""),
    ("GET /v1/traces/{name}", None, ""),
    ("GET /v1/traces/{name}/jobs", None, ""),
    ("POST /v1/traces/uploads/{token}", [TRACE_JOB], "not-found"),
    ("DELETE /v1/traces/{name}", None, ""),
    ("POST /v1/simulations", {"run": {}, "jobs": {}, "usage": {}}, "bad-request"),
    ("POST /v1/simulations/uploads/{token}", {"job": [0]}, "bad-request"),
    ("GET /v1/simulations", None, ""),
    ("GET /v1/simulations/history", None, ""),
    ("POST /v1/runners/{node}/drain", {}, ""),
    ("POST /v1/runners/{node}/resume", {}, ""),
    ("POST /v1/runners/{node}/stop", {}, ""),
    ("POST /v1/runners/{node}/forget", {}, "conflict"),
    ("POST /v1/backup", {}, ""),
    ("POST /v1/compact", {}, ""),
    ("POST /v1/shutdown", {}, ""),
]  # fmt: skip
NAMED = {"ref": "1", "node": "n2", "pool": "default", "id": "1", "name": "t", "token": "none", "llm": "tiny", "revision": "r1",
         "tokenizer": "t1"}  # fmt: skip


@pytest.fixture(scope="module")
def daemon(template: Path) -> Iterator[DaemonProcess]:
    with daemon_apart(template) as running:
        yield running


@pytest.fixture(scope="module")
def document(daemon: DaemonProcess) -> dict[str, Any]:
    found: dict[str, Any] = daemon.client().get("/v1/openapi.json")
    return found


def asked(client: Client, request: str, body: Any) -> tuple[str, Any]:
    """The code of a refusal ("": none), and the answer."""
    method, path = request.split(" ")
    path = re.sub(r"\{(\w+)\}", lambda found: NAMED[found[1]], path)
    try:
        answer = client.fetch(method, path, None if body is None else json.dumps(body).encode())
    except StokerError as error:
        return error.code, str(error)
    try:
        return "", json.loads(answer)
    except ValueError:
        return "", answer


def fits(value: Any, schema: dict[str, Any], place: str = "") -> list[str]:
    """Where an answer is not as its schema says; what the schema does not describe is none of it."""
    kinds = {"object": dict, "array": list, "integer": int, "number": (int, float), "string": str, "boolean": bool, "null": type(None)}
    allowed = schema.get("type", [])
    allowed = [allowed] if isinstance(allowed, str) else allowed
    if allowed and not any(
        isinstance(value, kinds[kind]) and not (kind in ("integer", "number") and isinstance(value, bool)) for kind in allowed
    ):
        return [f"{place}: {value!r:.80} is not {allowed}"]
    if not isinstance(value, dict) or "properties" not in schema:
        return []
    wrong = [f"{place}.{name}: is not described" for name in value.keys() - schema["properties"].keys()]
    wrong += [f"{place}.{name}: is missing" for name in schema.get("required", []) if name not in value]
    return wrong + [
        each for name in value if name in schema["properties"] for each in fits(value[name], schema["properties"][name], f"{place}.{name}")
    ]


def test_the_document_names_every_parameter_of_a_query_and_every_body(document: dict[str, Any]) -> None:
    for path, _, function, methods in table():
        said = document["paths"][path][methods[0].lower()]
        named = set(re.findall(r'(?:call\.(?:query|number)|getlist)\("(\w+)"', inspect.getsource(function)))
        assert named <= {one["name"] for one in said["parameters"]}, path
        assert ("requestBody" in said) == (methods[0] == "POST"), path
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert references == document["components"]["schemas"].keys() and document["openapi"] == "3.1.0"


def test_the_bodies_of_the_document_are_those_that_are_taken(document: dict[str, Any]) -> None:
    for request, body, _ in WALK:
        method, path = request.partition("?")[0].split(" ")
        if isinstance(body, dict):
            schema = document["paths"][path][method.lower()]["requestBody"]["content"]["application/json"]["schema"]
            fields = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]["properties"]
            assert body.keys() <= fields.keys(), request


def test_a_file_of_jobs_is_taken_as_its_text_and_told_by_its_lines(daemon: DaemonProcess) -> None:
    for spec, words in (
        ("name: x\n", "<spec>:1: command: nothing to run"),
        ({"name": "x", "command": "true", "gpuz": 1}, "gpuz: unknown field (did you mean 'gpus'?)"),
        ({"jobs": [{"name": "x", "command": "true", "stop": {"iteration": 1}}]}, "stop.iteration: unknown field"),
        ({"name": "x", "command": "a\0b"}, "command: a NUL or a lone surrogate in a text"),
        ({}, "name: missing"),
    ):
        code, said = asked(daemon.client(), "POST /v1/jobs", {"spec": spec})
        assert code == "bad-request" and words in said, said


def test_every_endpoint_answers_as_the_document_says(daemon: DaemonProcess, document: dict[str, Any]) -> None:
    client, wrong, walked = daemon.client(), [], set()
    for request, body, code in WALK:
        got, answer = asked(client, request, body)
        method, path = request.partition("?")[0].split(" ")
        walked.add(f"{method} {path}")
        if got != code:
            wrong.append(f"{request}: {got} {answer!r:.300}")
        elif not code:
            (content,) = document["paths"][path][method.lower()]["responses"]["200"]["content"].items()
            if content[0] == "application/json":
                wrong += [f"{request}{each}" for each in fits(answer, content[1]["schema"])]
    assert wrong == []
    assert walked == {f"{methods[0]} {path}" for path, _, _, methods in table()}

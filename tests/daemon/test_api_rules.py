"""What the API takes and what it refuses, on a real daemon: every field of every request with every kind of nonsense in it."""

from __future__ import annotations

import copy
import functools
import http.client
import itertools
import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import hypothesis
import hypothesis.strategies as st
import pytest
from e2e import DaemonProcess, daemon_apart, until
from stoker.engine.api import runner_calls as runner
from stoker.engine.api.jobs import jobs, model_requests, retries
from stoker.engine.api.operators import kept, operators, reports
from stoker.engine.api.studies import prompt_banks, simulations, traces
from stoker.engine.cli.main import run
from stoker.engine.client import Client, _UnixConnection
from stoker.engine.forecast.deadline_watch import DeadlineWatch
from stoker.engine.home import Home
from stoker.engine.jobs.submission import SubmitRequest, submit
from stoker.engine.protocol import VERSION
from stoker.engine.spec.model import Demand, JobSpec, Provenance, Submission, Tier
from stoker.engine.store.store import Store

pytestmark = pytest.mark.xdist_group("api-rules")

PROVENANCE = {"argv": ["x"], "cwd": "/", "git_commit": None, "git_diff": None, "snapshot": None, "client": "t"}
SPEC = {
    "name": "a", "kind": "train", "pool": "default", "user": "", "priority": 0, "gpus_min": 1, "gpus_max": 1, "gpu_memory": 0,
    "demand": {"kind": "soft", "tiers": [{"deadline": 4e9, "reward": 100.0}]},
    "stop": {"iterations": 10, "metric": "accuracy", "target": 0.5, "mode": "max"}, "recipe": "toy", "params": {"lr": 0.1},
    "env": {"A": "b"}, "env_file": None, "workdir": "/", "retries": {"limit": 1, "backoff": 1.0, "factor": 2.0, "max_backoff": 9.0,
    "never_on": [3]}, "timeout": 100.0, "grace": 30.0, "hang_after": 60.0, "estimate": 50.0, "idempotency_key": None,
    "labels": {"team": "nlp"}, "after": [], "hold": True, "array_index": None, "array_size": None, "array_cap": None, "cron": None,
    "reuse": {"repeat": 3, "shuffle_buffer": None, "shuffle_batches": 3.0, "memory": 1 << 30, "augment": "once", "schedule": "cosine",
              "peak": 0.1, "switch": {"on": "plateau", "epochs": None, "fraction": 0.25, "watch": None, "mode": None, "min_epochs": 1.0,
                                      "patience": 3, "min_delta": 0.002}},
    "pipeline": {"tune": "rate", "processes": False, "workers": {"decode": 2}, "memory": 1 << 30, "interval": 2.0},
}  # fmt: skip
RUN = {
    "study": "s", "trace": "t", "trace_id": None, "trace_sha256": None, "policy": "fifo", "config": {}, "nodes": "1x8", "options": {},
    "seed": 0, "version": "1", "status": "completed", "error": None, "jobs": 1, "finished": 1, "rejected": 0, "dropped": 0,
    "not_submitted": 0, "undecided": 0, "jct_avg": 1.0, "jct_p50": 1.0, "jct_p99": 1.0, "wait_avg": 1.0, "wait_p99": 1.0, "makespan": 1.0,
    "slo_violations": 0.0, "r_slo": 0.0, "rho_avg": 1.0, "rho_max": 1.0, "fair_share": 1.0, "utilisation": 0.5, "preemptions": 0,
    "lost_gpu_time": 0.0, "events": 1, "decisions": 1, "plan_seconds": 0.1, "wall_seconds": 0.1,
}  # fmt: skip
COLUMNS = {
    "job": [0], "started": [0.0], "ended": [1.0], "run_time": [1.0], "gpu_time": [1.0], "lost": [0.0], "preemptions": [0], "rho": [1.0],
    "reward": [None], "rejected": [False],
}  # fmt: skip
TRACE_JOB = {
    "key": "1", "submitted": 0.0, "duration": 10.0, "gpus_min": 1, "gpus_max": 0, "user_name": None, "pool": None, "model": None,
    "batch_size": 8, "iterations": 5.0, "status": None, "priority": 0, "estimate": 3.0, "demand": "strict", "deadlines": [10.0],
    "rewards": [5.0], "stop": None, "scale": None, "raw": {"a": "b"},
}  # fmt: skip
TRACE = {
    "name": "t", "format": "neutral", "source": "s", "sha256": "0", "jobs": [TRACE_JOB], "starts_at": 0.0, "dropped": {"x": 1},
    "repaired": {}, "recipe": None,
}  # fmt: skip
GPU = {"id": "n1/cpu0", "index": 0, "kind": "cpu", "name": "cpu", "memory": 0, "health": "ok", "note": None}
HELLO = {
    "protocol": VERSION, "version": "t", "node": "n1", "host": "h", "boot_id": "b", "pid": 1, "pid_started": 1.0, "home": "/h",
    "address": "localhost", "pool": "default", "gpus": [GPU], "leases": [], "pilot": "slurm/c/7/h",
}  # fmt: skip
STAGE = {
    "name": "decode", "workers": 1, "unit": "workers", "value": 1, "action": 0, "wanted": 1, "cpu": 0.1, "wait": 0.1, "throughput": 1.0,
    "starved": 0.0, "blocked": 0.0, "queue": 1, "queue_bytes": 1,
}  # fmt: skip
PIPELINE = {
    "name": "p", "controller": "rate", "throughput": 1.0, "demand": 1.0, "reward": 1.0, "cpus": 1.0, "cpu_used": 1.0, "memory_used": 1,
    "memory_total": 1, "why": "", "refused": "", "stages": [STAGE],
}  # fmt: skip
SPEED = {"compute": 1.0, "communication": 0.1, "steps": 5, "memory": 1}
RECORD = {"seq": 1, "ts": 1.8e9, "step": 1, "values": {"loss": 0.1}, "total": 10, "checkpoint": 1, "memory": 1}
WORKER = {
    "lease": 1, "state": "running", "ts": 1.8e9, "pid": 1, "pid_started": 1.0, "boot_id": "b", "run_dir": "/x", "exit_code": 0,
    "outcome": "failed", "message": "m",
}  # fmt: skip
SAMPLE = {"ts": 1.8e9, "gpu": "n2/cpu0", "lease": 1, "utilisation": 0.5, "memory_used": 1, "power": 1.0, "temperature": 1.0}
RECORDS = [RECORD, {**RECORD, "seq": 2, "speed": SPEED}, {**RECORD, "seq": 3, "pipeline": PIPELINE}]
REPORT = {  #: of the runner n2, which has lease 1
    "node": "n2", "session": 1, "workers": [WORKER], "records": [{"lease": 1, "rank": 0, "records": RECORDS}], "samples": [SAMPLE],
    "gpus": [{**GPU, "id": "n2/cpu0"}], "left": False,
}  # fmt: skip

BANK = {"llm": "tiny", "revision": "r1", "tokenizer": "t1"}

#: every request with a body: one that would be taken
REQUESTS: dict[str, Any] = {
    "/v1/jobs": {"jobs": [SPEC], "provenance": PROVENANCE, "dry_run": False},
    "/v1/snapshots": {"digest": "ab" * 32, "offset": 0, "data": "eA==", "last": False},
    "/v1/jobs/{ref}/retry": {"array": False, "key": "once"},
    "/v1/cancel": {"user": "nobody", "states": ["pending"], "name": "a*", "labels": {"team": "nlp"}},
    "/v1/jobs/{ref}/ask": {"requests": ["a text"]},
    "/v1/jobs/{ref}/cancel": {"array": False},
    "/v1/jobs/{ref}/hold": {"array": False},
    "/v1/jobs/{ref}/release": {"array": False},
    "/v1/jobs/{ref}/move": {"array": False},
    "/v1/jobs/{ref}/priority": {"priority": 1, "array": False},
    "/v1/ui": {"port": None},
    "/v1/runners/{node}/drain": {"now": False},
    "/v1/runners/{node}/resume": {},
    "/v1/runners/{node}/stop": {"now": False},
    "/v1/runners/{node}/forget": {},
    "/v1/sql": {"query": "SELECT 1", "limit": 1, "timeout": 1.0, "format": "json"},
    "/v1/sql/copy": {"path": "relative"},
    "/v1/report": {"query": "jct", "values": {"since": 0.0, "jobs": None, "now": 1.0}},
    "/v1/policy": {"policy": "fifo", "pool": "default", "interval": 1.0, "config": {"backfill": True}},
    "/v1/prompts": {"bank": BANK, "prompts": [{"text": "x", "features": [1.0, 0.5], "source": "s", "task": None}]},
    "/v1/prompts/clusters": {"bank": BANK, "medoids": [[1, 1]]},
    "/v1/schedules/{id}/remove": {},
    "/v1/tokens": {"name": "t", "role": "read"},
    "/v1/tokens/{id}/revoke": {},
    "/v1/backup": {"path": "relative"},
    "/v1/compact": {},
    "/v1/shutdown": {"runners": "no", "workers": "no"},
    "/v1/simulations": {"run": RUN, "jobs": COLUMNS, "usage": {"ts": [0.0], "busy": [1], "running": [1], "waiting": [0]}},
    "/v1/simulations/uploads/{token}": COLUMNS,
    "/v1/traces": TRACE,
    "/v1/traces/uploads/{token}": [TRACE_JOB],
    "/v1/runner/hello": HELLO,
    "/v1/runner/poll": {"node": "n2", "session": 1, "version": 0, "wait": 0.0},
    "/v1/runner/report": REPORT,
    "/v1/runner/log": {"node": "n2", "session": 1, "number": 1, "text": "x", "file": "1", "offset": 0, "more": False, "missing": False},
    "/v1/runner/asked": {"node": "n2", "session": 1, "number": 1, "answers": ["x"], "failed": "", "error": ""},
    "/v1/runner/last_log": {"node": "n2", "session": 1, "job": 2, "lease": 1, "node_rank": 0, "data": "eA==", "file": "1", "begin": 0},
    "/v1/runner/bundle_piece": {"node": "n2", "session": 1, "digest": "ab" * 32, "offset": 0, "data": "eA==", "last": False},
    "/v1/runner/bundle": {"node": "n2", "session": 1, "digest": "cd" * 32, "offset": 0},
    "/v1/runner/checkpoint_sent": {"node": "n2", "session": 1, "job": 2, "after": 0, "digest": "ab" * 32, "refused": ""},
}
#: runners may be a version ahead of the daemon: what it does not know of their messages it passes over
OPEN = {"/v1/runner/hello", "/v1/runner/poll", "/v1/runner/report", "/v1/runner/log", "/v1/runner/last_log", "/v1/runner/asked",
        "/v1/runner/bundle_piece", "/v1/runner/bundle", "/v1/runner/checkpoint_sent"}  # fmt: skip


class Number(str):
    """A number as it stands in JSON, whether Python could say it or not."""


NONSENSE: list[Any] = [
    None, "", "x" * 10_000, "../x", "<script>alert(1)</script>", "\x1b[2J\x07", "a\nb", "\0", "'; DROP TABLE jobs; --", "\u202e\uffff", 17,
    -1, 0, True, [], {}, [[]], {"a": 1}, Number("1e12"), Number("9e12"), Number("1e13"), Number("-1e12"), Number("1e308"), Number("-1e308"),
    Number("NaN"), Number("Infinity"), Number("1e999"), Number("9223372036854775807"), Number("9223372036854775808"), Number("2147483648"),
    Number("1" + "0" * 400), Number("0.5"), Number("-0.0"), Number("1e-320"),
]  # fmt: skip
Place = tuple[str | int, ...]


def places(value: Any, path: Place = ()) -> Iterator[Place]:
    """Every value within a body, the body included."""
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, (*path, index))


def with_value(body: Any, path: Place, value: Any) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(body)
    within = changed
    for key in path[:-1]:
        within = within[key]
    within[path[-1]] = value
    return changed


def encode(value: Any) -> bytes:
    """JSON in which each `Number` stands as it is."""

    def marked(item: Any) -> Any:
        if isinstance(item, Number):
            return f"NUMBER:{item}"
        if isinstance(item, dict):
            return {key: marked(inner) for key, inner in item.items()}
        return [marked(inner) for inner in item] if isinstance(item, list) else item

    return re.sub(r'"NUMBER:([^"]*)"', r"\1", json.dumps(marked(value))).encode()


class Api:
    """A daemon on its socket with a held job 1, to which anything may be posted."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self.daemon = daemon
        self.client: Client = daemon.client()
        self.client.post("/v1/jobs", {"jobs": [{"name": "first", "command": ["true"], "hold": True}], "provenance": PROVENANCE})
        self.client.post("/v1/runner/hello", {**HELLO, "node": "n2", "gpus": [{**GPU, "id": "n2/cpu0"}]})
        self.client.post("/v1/jobs", {"jobs": [{"name": "second", "recipe": "toy"}], "provenance": PROVENANCE})
        until(lambda: self.client.post("/v1/runner/poll", {**REQUESTS["/v1/runner/poll"], "version": -1})["leases"])

    def send(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        with closing(_UnixConnection(self.daemon.home.socket, 60.0)) as connection:
            connection._validate_path = lambda url: None  # type: ignore[attr-defined]
            connection.request(method, path, body)
            answer: http.client.HTTPResponse = connection.getresponse()
            return answer.status, answer.read()

    def post(self, endpoint: str, body: Any) -> tuple[int, str]:
        """The status, and what was wrong ('' when nothing was); fails when the answer is not as a refusal must be."""
        path = re.sub(r"\{ref\}", "1", endpoint).replace("{node}", "n1").replace("{id}", "77").replace("{token}", "none")
        status, answer = self.send("POST", path, encode(body))
        if status == 200:
            return status, ""
        message = json.loads(answer)["error"]["message"]
        assert 400 <= status < 500, (status, message, endpoint)
        assert message.isprintable() and len(message) <= 1000, message
        assert not re.search(r"Traceback|\w+ Error:|CAST\(|LINE 1|INSERT INTO|unnest", message), message
        return status, message


@pytest.fixture(scope="module")
def api(template: Path) -> Iterator[Api]:
    with daemon_apart(template) as daemon:
        yield Api(daemon)
        daemon.end()
        assert "Traceback" not in daemon.said() and "a write failed" not in daemon.said(), daemon.said()[-3000:]


PARTS = (jobs, kept, model_requests, operators, prompt_banks, reports, retries, runner, simulations, traces)
TABLES = [entry for part in PARTS for entry in part.ENDPOINTS]


def test_every_request_with_a_body_is_known_here() -> None:
    assert {path for path, _, _, methods in TABLES if "POST" in methods} == REQUESTS.keys()


def harmless(endpoint: str, place: Place, value: Any) -> bool:
    """Whether what it may do, when it is taken, does not end the test."""
    return not (endpoint == "/v1/shutdown" and (not place or value is True)) and endpoint != "/v1/compact"


CASES = [(endpoint, place) for endpoint, body in REQUESTS.items() for place in places(body)]
_names = itertools.count()


@hypothesis.settings(max_examples=600)
@hypothesis.given(st.sampled_from(CASES), st.sampled_from(NONSENSE))
@pytest.mark.slow
def test_nonsense_in_any_field_is_taken_or_refused_in_one_line(api: Api, case: tuple[str, Place], value: Any) -> None:
    endpoint, place = case
    hypothesis.assume(harmless(endpoint, place, value))
    body = with_value(REQUESTS[endpoint], place, value)
    if endpoint == "/v1/traces" and isinstance(body, dict) and place != ("name",):
        body["name"] = f"trace-{next(_names)}"
    if endpoint == "/v1/backup" and body in ({"path": ""}, {"path": None}, {}, None):
        return  # a backup, which takes its time
    api.post(endpoint, body)


OBJECTS = [
    (endpoint, place)
    for endpoint, place in CASES
    if endpoint not in OPEN
    and place[-1:] not in (("params",), ("env",), ("labels",), ("workers",), ("config",), ("options",), ("raw",), ("values",))
    and isinstance(functools.reduce(lambda value, key: value[key], place, REQUESTS[endpoint]), dict)
    and not (endpoint == "/v1/traces" and place[-1:] in (("dropped",), ("repaired",)))
]  # fmt: skip


@pytest.mark.parametrize(("endpoint", "place"), OBJECTS, ids=str)
def test_keys_that_do_not_exist_are_refused_with_the_one_that_was_meant(api: Api, endpoint: str, place: Place) -> None:
    known = functools.reduce(lambda value, key: value[key], place, REQUESTS[endpoint])
    status, said = api.post(endpoint, with_value(REQUESTS[endpoint], place, {"colour": 1, **known}))
    assert status == 400 and "unknown field `colour`" in said
    longest = max(known, key=len, default="")
    if len(longest) > 4:
        slip = longest[:-2] + longest[-1]
        status, said = api.post(endpoint, with_value(REQUESTS[endpoint], place, {slip: 1, **known}))
        assert status == 400 and f"unknown field `{slip}`" in said and f"(did you mean '{longest}'?)" in said


TIMES = {
    "/v1/jobs": [
        (("jobs", 0, "demand", "tiers", 0, "deadline"), "soft"), (("jobs", 0, "demand", "tiers", 0, "reward"), "soft"),
        (("jobs", 0, "estimate"), "estimate"), (("jobs", 0, "timeout"), "timeout"), (("jobs", 0, "grace"), "grace"),
        (("jobs", 0, "hang_after"), "hang_after"), (("jobs", 0, "retries", "backoff"), "retries.backoff"),
        (("jobs", 0, "retries", "max_backoff"), "retries.max_backoff"), (("jobs", 0, "pipeline", "interval"), "pipeline.interval"),
    ],
    "/v1/simulations": [(("run", "makespan"), "makespan"), (("jobs", "started", 0), "started"), (("usage", "ts", 0), "ts")],
    "/v1/traces": [
        (("jobs", 0, "submitted"), "submitted"), (("jobs", 0, "duration"), "duration"), (("jobs", 0, "estimate"), "estimate"),
        (("jobs", 0, "deadlines", 0), "deadlines"), (("starts_at",), "starts_at"),
    ],
    "/v1/policy": [(("interval",), "interval")],
    "/v1/sql": [(("timeout",), "timeout")],
    "/v1/runner/hello": [(("pid_started",), "pid_started")],
    "/v1/runner/poll": [(("wait",), "wait")],
    "/v1/runner/report": [(("workers", 0, "ts"), "ts"), (("samples", 0, "ts"), "ts"), (("records", 0, "records", 0, "ts"), "ts")],
}  # fmt: skip
#: what is beyond the years that each of them may name; simulated seconds may be more
BEYOND = ("1e19", "9e18", "-1e19", "1e300", "NaN", "Infinity", "-Infinity")


@pytest.mark.parametrize(("endpoint", "place", "field"), [(path, *each) for path, fields in TIMES.items() for each in fields], ids=str)
def test_times_that_are_none_are_refused_with_their_field(api: Api, endpoint: str, place: Place, field: str) -> None:
    beyond = BEYOND if endpoint == "/v1/simulations" or place == ("pid_started",) else (*BEYOND, "1e12", "9e12", "1e13", "-1e12")
    for number in beyond:
        if place == ("pid_started",) and number in ("1e19", "9e18", "-1e19", "1e300"):
            continue
        status, said = api.post(endpoint, with_value({**REQUESTS[endpoint]}, place, Number(number)))
        assert status == 400 and (field in said or f"at `{place[-1]}`" in said), (number, said)


@pytest.mark.slow
def test_a_deadline_in_the_past_is_refused_and_a_repetition_of_its_submission_is_not(api: Api) -> None:
    soon = time.time() + 4.0
    demand = {"kind": "strict", "tiers": [{"deadline": soon}]}
    body = {
        "jobs": [{"name": "brief", "recipe": "toy", "hold": True, "demand": demand, "idempotency_key": "brief"}],
        "provenance": PROVENANCE,
    }
    first = api.client.post("/v1/jobs", body)["jobs"][0]["id"]
    while time.time() < soon:
        time.sleep(0.1)
    (again,) = api.client.post("/v1/jobs", body)["jobs"]
    assert (again["id"], again["existing"]) == (first, True)
    for change in ({"dry_run": True}, {}, {"cron": "0 0 * * *"}):
        job = {**body["jobs"][0], "name": "late", "idempotency_key": None, **{k: v for k, v in change.items() if k == "cron"}}
        status, said = api.post("/v1/jobs", {**body, "jobs": [job], "dry_run": "dry_run" in change})
        assert status == 400 and said == "late: deadline: a deadline is in the past; give a later time"


def test_a_priority_must_be_given(api: Api) -> None:
    before = api.client.get("/v1/jobs/1")["job"]["priority"]
    for body in (None, {}, {"array": False}):
        status, said = api.post("/v1/jobs/{ref}/priority", body)
        assert status == 400 and "missing required field `priority`" in said
    assert api.client.get("/v1/jobs/1")["job"]["priority"] == before


GETS = {
    "/v1/jobs": ("state", "user", "all", "arrays", "limit", "name", "label", "since"),
    "/v1/jobs/1/pipeline": ("rank", "name", "decisions", "points"),
    "/v1/jobs/1/logs": ("lease", "file", "offset", "since", "times"), "/v1/simulations": ("study", "limit"),
    "/v1/prompts": ("llm", "words", "near", "limit"), "/v1/prompts/banks": ("llm",),
    "/v1/simulations/history": ("pool", "since"), "/v1/traces/none/jobs": ("offset", "limit", "id"),
}  # fmt: skip


@pytest.mark.parametrize(("path", "name"), [(path, name) for path, names in GETS.items() for name in names])
@pytest.mark.sampled(3)
def test_nonsense_in_a_query(api: Api, path: str, name: str) -> None:
    for value in NONSENSE:
        status, answer = api.send("GET", f"{path}?{name}={quote(str(value))}")
        assert status < 500, (value, answer)
        if status != 200:
            message = json.loads(answer)["error"]["message"]
            assert message.isprintable() and len(message) <= 1000 and "Traceback" not in message


# -- What an older daemon has stored ---------------------------------------------------------------------------------------


STORED = (1e12, 9e12, -1e12, -6.2e10, 2.5334e11)  #: deadlines that an older daemon took; the last ones are the first and the last dates


@pytest.mark.slow
def test_deadlines_that_are_no_dates_do_not_break_what_is_shown(
    database: Path, home: Home, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """They are shown as the nearest date, and nobody's report fails for them."""
    store = Store.open(database)
    for number, _ in enumerate(STORED):
        spec = JobSpec(name=f"odd{number}", recipe="toy", hold=True, estimate=10.0, demand=Demand("strict", (Tier(4e9),)))
        store.write(submit, SubmitRequest(Submission(jobs=[spec], provenance=Provenance(argv=[], cwd="/")), "ann"))

    def as_it_was(con: Any) -> None:
        for job, deadline in enumerate(STORED, 1):
            moment = f"make_timestamp(CAST(CAST({deadline!r} AS DOUBLE) * 1000000 AS BIGINT))"
            con.execute(f"UPDATE tiers SET deadline = {moment} WHERE job_id = {job}")
            con.execute(f"UPDATE jobs SET deadline = {moment}, spec = replace(spec, '4000000000.0', '{deadline!r}') WHERE id = {job}")

    store.exclusive(as_it_was)
    DeadlineWatch(store).look()
    store.close()
    daemon = DaemonProcess(home)
    try:
        daemon.start()
        each = [[word, f"odd{number}"] for number, _ in enumerate(STORED) for word in ("show", "explain", "release", "explain")]
        for arguments in (
            *each, ["show", "odd0", "--json"], ["ps", "--all"], ["ps", "--all", "--json"], ["top", "--once"], ["status"],
            ["sql", "SELECT * FROM jobs_now"], ["sql", "FROM slo"], ["report", "--out", str(tmp_path)],
        ):  # fmt: skip
            code = run(["--home", str(home.path), *arguments])
            assert code == 0, (arguments, capsys.readouterr())
        assert "9999-01-01" in capsys.readouterr().out
        assert daemon.client().get("/v1/jobs/1/forecast")["status"]
        assert "Traceback" not in daemon.said()
    finally:
        daemon.end()

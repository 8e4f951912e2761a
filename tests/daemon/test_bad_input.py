"""What bad input gets, on a real daemon: one clear line, the right exit code, nothing lost, and the daemon goes on."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from e2e import DaemonProcess, Jobs, RunnerProcess, Said, command, end_workers, free_port, until
from stoker.client.following import failure
from stoker.engine.cli.main import run
from stoker.engine.cli.running.checks import Finding, trouble
from stoker.engine.client import Client
from stoker.engine.errors import StokerError, UsageError
from stoker.engine.home import Home
from waiting import patient

pytestmark = pytest.mark.xdist_group("bad-input")

#: policies that misbehave, one way each: what their plan() does
FOREIGN = """
import sys
from dataclasses import dataclass, field
from stoker.policies.contract import Allocation, Plan, Reason, Waiting, plan_of

class Base:
    @dataclass(frozen=True)
    class Config:
        knob: int = field(default=1)
    name = "foreign"
    def __init__(self, config):
        pass

def policy(plan):
    return type("Bad", (Base,), {"plan": plan})

def running(view):
    return {int(job): Allocation(tuple(int(gpu) for gpu in view.jobs.allocation(row)))
            for row, job in enumerate(view.jobs.id) if view.jobs.phase[row] == 1}

def with_first_waiting(view, gpus):
    waiting = [int(job) for row, job in enumerate(view.jobs.id) if view.jobs.phase[row] == 0]
    return plan_of(view, running(view) | {job: Allocation(gpus) for job in waiting[:1]})

def raises(self, view):
    raise RuntimeError("I am\\nbroken")

Raises = policy(raises)
Leaves = policy(lambda self, view: sys.exit("bye"))
SaysNothing = policy(lambda self, view: None)
SaysNonsense = policy(lambda self, view: Plan({int(view.jobs.id[0]): "all of them"}))
UnknownJob = policy(lambda self, view: Plan(running(view) | {987654: Allocation((0,))}))
TwiceForOne = policy(lambda self, view: with_first_waiting(view, (1, 1)))
TwiceForTwo = policy(lambda self, view: with_first_waiting(view, (0, 1)))
HalfAGang = policy(lambda self, view: with_first_waiting(view, (1,)))
NoSuchGpu = policy(lambda self, view: with_first_waiting(view, (7, 8)))
TextOnly = policy(lambda self, view: Plan(running(view), waiting=[Waiting(Reason("", ""), view.jobs.id)]))

class NoDefaults(Base):
    def __init__(self, config):
        raise LookupError("no licence")
    def plan(self, view):
        raise AssertionError

class NoPolicy:
    pass
"""


class Live:
    """A daemon on its socket and on TCP, with a runner of two slots; foreign policies are on its path."""

    def __init__(self, home: Home, modules: Path) -> None:
        self.home = home
        self.modules = modules
        self.port = free_port()
        path = os.pathsep.join([str(modules), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.daemon = DaemonProcess(home, "--tcp", f"127.0.0.1:{self.port}", env={"PYTHONPATH": path})
        self.client = self.daemon.start()
        self.runner = RunnerProcess(home)
        self.runner.start()
        self.jobs = Jobs(self.client)
        self.known = self.stays()  #: after the latest test
        self.excused = 0  #: tracebacks in the daemon's log that the running test has brought about by faulty code of its own

    def end(self) -> None:
        self.client.close()
        self.runner.end()
        end_workers(self.home)
        self.daemon.end()

    def stays(self) -> tuple[int, set[int]]:
        """What no bad input may change: the daemon's process, and the jobs that there are."""
        # Unlike a statement this costs next to nothing where nothing has changed.
        there = self.client.get("/v1/jobs", all="1", arrays="1", limit="10000")["jobs"]
        return self.client.get("/v1/status")["pid"], {row["id"] for row in there}

    def raw(self, method: str, target: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        """One request as it is given, nothing quoted or checked."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patient(60))
        connection._encode_request = lambda line: line.encode("utf-8", "surrogateescape")  # type: ignore[attr-defined]
        connection._validate_path = lambda url: None  # type: ignore[attr-defined]
        with closing(connection):
            connection.request(method, target, body, {"Authorization": f"Bearer {self.token}", **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def metrics(self) -> str:
        return self.raw("GET", "/metrics")[1].decode()

    @property
    def token(self) -> str:
        if not hasattr(self, "_token"):
            self._token = self.make_token("admin")
        return self._token

    def make_token(self, role: str) -> str:
        return str(self.client.post("/v1/tokens", {"name": f"a-{role}", "role": role})["token"])


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    os.environ["OMP_NUM_THREADS"] = "1"
    path = Path(tempfile.mkdtemp(prefix="stoker-"))
    modules = path / "modules"
    modules.mkdir()
    (modules / "foreign.py").write_text(FOREIGN)
    (modules / "leaving.py").write_text("raise SystemExit('not today')\n")
    (modules / "torn.py").write_text("class Torn(\n")
    running = Live(Home(path), modules)
    yield running
    running.end()
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def goes_on(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every test on the shared daemon: the same process answers, every job is still there, and nothing failed inside."""
    if "live" not in request.fixturenames:
        yield
        return
    live: Live = request.getfixturevalue("live")
    said = len(live.daemon.said())
    yield
    (before, jobs), live.known = live.known, live.stays()
    now, after = live.known
    assert now == before and after >= jobs
    assert live.daemon.said()[said:].count("Traceback") == live.excused
    live.excused = 0


@pytest.fixture
def stoker(live: Live, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """The command line in this process, in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Said:
        capsys.readouterr()
        code = run(["--home", str(live.home.path), *arguments])
        return Said(code, *capsys.readouterr())

    return call


# -- Submissions ---------------------------------------------------------------------------------------------------------

FILES = {
    "unknown field": ("name: a\ncomand: 'true'\n", 2, "job.yaml:2: comand: unknown field (did you mean 'command'?)"),
    "unknown field within one": ("name: a\ncommand: 'true'\nretries: {limt: 1}\n", 2, "job.yaml:3: retries.limt"),
    "wrong type": ("name: a\ncommand: 'true'\ngpus: many\n", 2, "job.yaml:3: gpus: "),
    "a number that is none": ("name: a\ncommand: 'true'\npriority: .nan\n", 2, "job.yaml:3: priority: "),
    "a deadline in the past": ("name: a\ncommand: 'true'\ndeadline: 2001-01-01 12:00\n", 2, "in the past"),
    "no time at all": ("name: a\ncommand: 'true'\ndeadline: soonish\n", 2, "job.yaml:3: deadline: "),
    "more GPUs than the pool has": ("name: a\ncommand: 'true'\ngpus: 3\n", 2, "gpus: a asks for 3 GPUs, pool 'default' has 2"),
    "an absurd number of GPUs": ("name: a\ncommand: 'true'\ngpus: 99999999999\n", 2, "job.yaml:3: gpus: "),
    "no such pool": ("name: a\ncommand: 'true'\npool: defualt\n", 2, "pool 'defualt' (did you mean 'default'?)"),
    "a cycle": ("jobs:\n- {name: a, command: 'true', after: [b]}\n- {name: b, command: 'true', after: [a]}\n", 2, "a → b → a is a cycle"),
    "itself": ("name: a\ncommand: 'true'\nafter: a\n", 2, "a job cannot wait for itself"),
    "no such job to wait for": ("name: a\ncommand: 'true'\nafter: never-heard-of\n", 3, "'never-heard-of'"),
    "no such script": ("name: a\ncommand: python no_such_file.py\n", 2, "no file 'no_such_file.py'"),
    "nothing to run": ("name: a\n", 2, "command: "),
    "two things to run": ("name: a\ncommand: 'true'\nrecipe: toy\n", 2, "recipe"),
    "no such recipe": ("name: a\nrecipe: tyo\n", 2, "(did you mean 'toy'?)"),
    "a recipe's parameter": ("name: a\nrecipe: toy\nparams: {width: wide}\n", 2, "params.width: "),
    "cron nonsense": ("name: a\ncommand: 'true'\ncron: every tuesday\n", 2, "job.yaml:3: cron: "),
    "a day that never comes": ("name: a\ncommand: 'true'\ncron: '0 0 30 2 *'\n", 2, "never fires"),
    "a secret in the open": ("name: a\ncommand: 'true'\nenv: {API_TOKEN: abc123}\n", 2, "env.API_TOKEN: "),
    "no YAML": ("name: [a\n", 2, "job.yaml:2: "),
    "nothing": ("", 2, "job.yaml"),
    "a tag that would run code": ("name: !!python/object/apply:os.system ['true']\n", 2, "job.yaml:1: "),
    "a billion laughs": ("a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{b}: &{b} [*{a},*{a},*{a},*{a},*{a},*{a},*{a},*{a},*{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)), 2, "job.yaml"),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
@pytest.mark.sampled(2)
def test_files(live: Live, stoker: Callable[..., Said], case: str) -> None:
    text, code, words = FILES[case]
    Path("job.yaml").write_text(text)
    _, before = live.stays()
    said = stoker("submit", "job.yaml")
    assert said.code == code and words in said.line
    assert live.stays()[1] == before, "a refused submission leaves nothing behind"


OPTIONS = {
    "no such file": (["job.yml"], 3, "job.yml"),
    "a file that is no YAML by name": (["train.py"], 3, "write it after '--'"),
    "a script that does not exist": (["--", "python", "nowhere/train.py"], 2, "no file 'nowhere/train.py'"),
    "a program that does not exist": (["--", "./run.sh"], 2, "no file './run.sh'"),
    "a negative number of GPUs": (["--gpus", "-1", "--", "true"], 2, "gpus"),
    "no duration": (["--timeout", "1 fortnight", "--", "true"], 2, "timeout"),
    "a deadline in the past": (["--deadline", "1999-12-31T12:00", "--", "true"], 2, "in the past"),
    "an option that is none": (["--gpu", "1", "--", "true"], 2, "--gpu"),
    "nothing after --": (["--"], 2, "nothing follows '--'"),
    "nothing at all": ([], 2, "nothing to run"),
    "a name of digits": (["--name", "17", "--", "true"], 2, "name"),
    "an array of nothing": (["--array", "lr=", "--", "true"], 2, "array"),
    "a hostile name": (["--name", "'; DROP TABLE jobs; --", "--", "true"], 2, "name"),
    "a NUL": (["--name", "nul", "--", "echo", "a\0b"], 2, "NUL"),
    "half a surrogate": (["--name", "odd", "--label", "x=\udcff", "--", "true"], 2, ""),
}


@pytest.mark.parametrize("case", OPTIONS)
@pytest.mark.sampled(2)
def test_options(live: Live, stoker: Callable[..., Said], case: str) -> None:
    arguments, code, words = OPTIONS[case]
    _, before = live.stays()
    said = stoker("submit", *arguments)
    assert said.code == code and words in said.line
    assert live.stays()[1] == before


def test_what_a_client_posts_is_checked_again(live: Live) -> None:
    """The daemon does not rely on the command line's checks: others post too."""
    for fields, words in (
        ({"gpus_min": 0}, "gpus"), ({"gpus_min": 3, "gpus_max": 3}, "asks for 3 GPUs"), ({"command": []}, "command"),
        ({"workdir": "relative"}, "workdir"), ({"after": [{"job": "p"}]}, "cannot wait for itself"), ({"recipe": "toy"}, "given beside"),
        ({"demand": {"kind": "strict", "tiers": []}}, "one deadline"), ({"labels": {"": ""}}, "label"),
        ({"array_index": 5, "array_size": 2, "name": "p[5]"}, "tasks count from 0"), ({"cron": "* * *"}, "five fields"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=words):
            live.jobs.submit_all({"name": "p", "command": ["true"], **fields})
    with pytest.raises(UsageError) as caught:
        live.jobs.submit_all({"name": "p", "command": ["true"], "gpus_min": 0, "timeout": -1}, {"name": "q", "command": []})
    said = [part.split(": ")[:2] for part in str(caught.value).split("; ") if ": " in part]
    assert said == [["p", "gpus"], ["p", "timeout"], ["q", "command"]]
    with pytest.raises(UsageError) as caught:
        wide = {"command": ["true"], "gpus_min": 3, "gpus_max": 3}
        tasks = [{**wide, "name": f"r[{task}]", "array_index": task, "array_size": 2} for task in range(2)]
        live.jobs.submit_all({**wide, "name": "p"}, {**wide, "name": "q"}, *tasks)
    assert str(caught.value).count("asks for 3 GPUs") == 3
    with pytest.raises(UsageError, match="is a cycle"):
        live.jobs.submit_all(
            {"name": "p", "command": ["true"], "after": [{"job": "q"}]}, {"name": "q", "command": ["true"], "after": [{"job": "p"}]}
        )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"command": ["no-such-program-anywhere"]}, "no program 'no-such-program-anywhere'"),
        ({"command": ["./gone.sh"], "workdir": "/tmp"}, "there is no program /tmp/gone.sh"),
        ({"command": ["true"], "workdir": "/no/such/directory"}, "workdir: there is no directory /no/such/directory"),
        ({"command": ["true"], "env_file": "/no/such/file"}, "env_file: cannot read /no/such/file"),
    ],
)
def test_what_only_the_runner_can_see_fails_the_job_in_words(live: Live, fields: dict[str, Any], words: str) -> None:
    job = live.jobs.submit("cannot-start", **fields)
    ended = live.jobs.ended(job)
    assert ended["state"] == "failed" and words in ended["state_reason"] and "\n" not in ended["state_reason"]
    assert "stoker logs" not in str(failure([ended])), "it has written nothing"


def test_a_bad_line_of_an_env_file_is_named_and_its_value_is_not(live: Live, stoker: Callable[..., Said], tmp_path: Path) -> None:
    (tmp_path / "env").write_text("FINE=1\nhunter2 is my password\n")
    assert stoker("submit", "--name", "envy", "--env-file", "env", "--", "true").code == 0
    ended = live.jobs.ended("envy")
    assert f"env_file: {tmp_path}/env, line 2: expected NAME=VALUE, the name of letters A to Z" in ended["state_reason"]
    shown = stoker("show", "envy").out + stoker("logs", "envy").out + stoker("sql", "SELECT * FROM events").out
    assert "hunter2" not in shown


# -- References, commands, SQL ---------------------------------------------------------------------------------------------

HOSTILE_REFS = [
    "'; DROP TABLE jobs; --", "%", "_", "*", "x" * 5000,
    "\x01\x1b[2J", "ünïcode✓", "-1", "1e3", "0", "9" * 30, "../../etc/passwd", "..", ".",
    "a/b", "?all=1", "#", "%00", "%2e%2e%2f", "{}", "[0]", "NULL", "\udcff", " ", "", "\n",
]  # fmt: skip


@pytest.mark.parametrize("ref", HOSTILE_REFS, ids=range(len(HOSTILE_REFS)))
@pytest.mark.sampled(2)
def test_hostile_references(live: Live, stoker: Callable[..., Said], ref: str) -> None:
    for arguments in (["show"], ["explain"], ["logs"], ["cancel"], ["hold"], ["priority", "3"]):
        said = stoker(*arguments, "--", ref)
        assert said.code in (2, 3), (arguments, said)
        assert len(said.line) < 400 and "\x1b" not in said.err


COMMANDS = {
    "an unknown command": (["sumbit"], 2),
    "an unknown option": (["ps", "--al"], 2),
    "a state that is none": (["ps", "--state", "runing"], 2),
    "a limit that is none": (["sql", "--limit", "many", "SELECT 1"], 2),
    "a negative limit": (["sql", "--limit", "-5", "SELECT 1"], 2),
    "a priority that is none": (["priority", "high", "x"], 2),
    "an interval that is none": (["policy", "set", "fifo", "--interval", "0"], 2),
    "an interval that is not a number": (["policy", "set", "fifo", "--interval", "nan"], 2),
    "a query that is to be asked every NaN seconds": (["sql", "--watch", "nan", "SELECT 1"], 2),
    "a query that may take NaN seconds": (["sql", "--timeout", "nan", "SELECT 1"], 2),
    "looks at NaN seconds": (["top", "--interval", "nan"], 2),
    "waiting for NaN seconds": (["drain", "--wait", "--timeout", "inf", "here"], 2),
    "a policy that is none": (["policy", "set", "tiresais"], 3),
    "a key that is none": (["policy", "set", "fifo", "backfil=true"], 2),
    "a value that is none": (["policy", "set", "fifo", "backfill=perhaps"], 2),
    "half a setting": (["policy", "set", "fifo", "backfill"], 2),
    "a runner that is none": (["drain", "../here"], 3),
    "a runner of many words": (["runner", "stop", "a b/c?d"], 3),
    "a schedule that is none": (["schedule", "remove", "0x1"], 2),
    "a token that is none": (["token", "revoke", "77"], 3),
    "a role that is none": (["token", "create", "x", "--role", "root"], 2),
    "a backup where nothing can be": (["backup", "no/such/dir/x.duckdb"], 2),
    "a backup over the database": (["backup", "DATABASE"], 2),
    "a query file that is none": (["sql", "-f", "nope.sql"], 3),
    "a home that is a file": (["--home", "/etc/passwd", "ps"], 6),
    "a URL that is none": (["--url", "tcp//:x", "ps"], 2),
    "a port where nobody is": (["--url", "http://127.0.0.1:1", "ps"], 6),
    "a report of nonsense": (["report", "--since", "yesteryear"], 2),
}


@pytest.mark.parametrize("case", COMMANDS)
@pytest.mark.sampled(2)
def test_commands(live: Live, stoker: Callable[..., Said], case: str) -> None:
    arguments, code = COMMANDS[case]
    said = stoker(*(str(live.home.database) if word == "DATABASE" else word for word in arguments))
    assert (said.code, bool(said.line)) == (code, True)


def test_a_traceback_is_never_shown_by_the_real_program(live: Live) -> None:
    """The same through a process, as people run it: what the in-process tests cannot see is how the program ends."""
    said = command(live.home, "submit", "--gpus", "x", "--", "true")
    assert said.code == 2 and "gpus" in said.line


@pytest.mark.parametrize(
    "query",
    [
        "DROP TABLE jobs", "DELETE FROM jobs", "UPDATE jobs SET priority = 1", "INSERT INTO jobs SELECT * FROM jobs",
        "SELECT 1; DROP TABLE jobs",
        "/* SELECT */ DROP TABLE jobs", "COPY jobs TO '/tmp/x.csv'", "FROM read_text('/etc/passwd')", "SELECT getenv('HOME')",
        "ATTACH '/tmp/x'",
        "PRAGMA database_list", "SET memory_limit = '1TB'", "INSTALL httpfs", "LOAD httpfs", "CHECKPOINT", "EXPORT DATABASE '/tmp/x'", "",
        "SELECT * FROM glob('/*')", "CREATE VIEW v AS SELECT 1", "EXPLAIN ANALYZE DELETE FROM jobs", "SELECT digest FROM tokens", "\0",
        "SELECT '",
    ],
)  # fmt: skip
def test_hostile_sql(live: Live, query: str) -> None:
    with pytest.raises(UsageError) as refused:
        live.client.post("/v1/sql", {"query": query})
    assert "\n" not in str(refused.value)


def test_sql_that_never_ends_is_cut_off(live: Live) -> None:
    endless = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t"
    with pytest.raises(StokerError) as cut:
        live.client.post("/v1/sql", {"query": endless, "timeout": 0.3})
    assert cut.value.exit_code == 7


# -- HTTP ------------------------------------------------------------------------------------------------------------------

JOB = {"jobs": [{"name": "x", "command": ["true"]}], "provenance": {"argv": [], "cwd": "/"}}
DEEP = b'{"jobs":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


def _job(**fields: Any) -> bytes:
    return json.dumps({**JOB, "jobs": [{"name": "x", "command": ["true"], **fields}]}).encode()


BODIES = {
    "nothing": ("/v1/jobs", b""),
    "not JSON": ("/v1/jobs", b"name: a"),
    "half of it": ("/v1/jobs", b'{"jobs": [{"name": '),
    "not UTF-8": ("/v1/jobs", b'{"jobs": [{"name": "\xff\xfe"}]}'),
    "a list": ("/v1/jobs", b"[]"),
    "a number": ("/v1/jobs", b"17"),
    "no jobs": ("/v1/jobs", b'{"jobs": [], "provenance": {"argv": [], "cwd": "/"}}'),
    "no provenance": ("/v1/jobs", b'{"jobs": [{"name": "x", "command": ["true"]}]}'),
    "an unknown field": ("/v1/jobs", _job(colour="red")),
    "a wrong type": ("/v1/jobs", _job(gpus_min="one")),
    "NaN": ("/v1/jobs", _job(timeout=float("nan"))),
    "infinity": ("/v1/jobs", b'{"jobs": [{"name": "x", "command": ["true"], "timeout": 1e999}], "provenance": {"argv": [], "cwd": "/"}}'),
    "a number beyond all columns": ("/v1/jobs", _job(priority=10**30)),
    "a parameter beyond all columns": ("/v1/jobs", _job(params={"n": 10**300})),
    "bytes beyond all columns": ("/v1/jobs", _job(gpu_memory=2**63)),
    "deep nesting": ("/v1/jobs", DEEP),
    "twice the same name": ("/v1/jobs", json.dumps({**JOB, "jobs": JOB["jobs"] * 2}).encode()),
    "a surrogate": ("/v1/jobs", b'{"jobs": [{"name": "x", "command": ["\\ud800"]}], "provenance": {"argv": [], "cwd": "/"}}'),
    "SQL that is none": ("/v1/sql", b'{"query": 7}'),
    "SQL in another format": ("/v1/sql", b'{"query": "SELECT 1", "format": "xml"}'),
    "SQL with no time": ("/v1/sql", b'{"query": "SELECT 1", "timeout": -1}'),
    "SQL with no rows": ("/v1/sql", b'{"query": "SELECT 1", "limit": -1}'),
    "a priority in words": ("/v1/jobs/17/priority", b'{"priority": "high"}'),
    "a priority beyond all columns": ("/v1/jobs/17/priority", b'{"priority": 99999999999999999999}'),
    "a priority that is a truth": ("/v1/jobs/17/priority", b'{"priority": true}'),
    "a cancellation of a list": ("/v1/jobs/17/cancel", b"[1, 2]"),
    "a policy of nothing": ("/v1/policy", b"{}"),
    "a policy with a wrong configuration": ("/v1/policy", b'{"policy": "fifo", "config": [1]}'),
    "an interval of NaN": ("/v1/policy", b'{"policy": "fifo", "interval": NaN}'),
    "a token of nothing": ("/v1/tokens", b'{"name": 1, "role": "read"}'),
    "a backup into a list": ("/v1/backup", b'{"path": ["x"]}'),
    "a backup into nowhere": ("/v1/backup", b'{"path": "relative"}'),
    "a shutdown in words": ("/v1/shutdown", b'{"runners": "please"}'),
    "a hello of nothing": ("/v1/runner/hello", b"{}"),
    "a poll of a stranger": ("/v1/runner/poll", b'{"node": "stranger", "session": 1, "version": 0, "wait": 0}'),
    "a report of a stranger": ("/v1/runner/report", b'{"node": "stranger", "session": 1}'),
    "a report with a lease beyond all columns": ("/v1/runner/report", b'{"node": "here", "session": 1, "records": [{"lease": 1e30}]}'),
}  # fmt: skip


@pytest.mark.parametrize("case", BODIES)
@pytest.mark.sampled(2)
def test_bodies(live: Live, case: str) -> None:
    path, body = BODIES[case]
    if "/17/" in path:
        path = path.replace("17", str(live.jobs.submit("held", "true", hold=True)))
    before = live.stays()
    status, answer = live.raw("POST", path, body, {"Content-Type": "application/json"})
    assert 400 <= status < 500, (status, answer)
    error = json.loads(answer)["error"]
    assert error["message"] and "\n" not in error["message"] and len(error["message"]) < 500
    assert live.stays() == before


def test_a_huge_body_is_refused_before_it_is_held(live: Live) -> None:
    status, answer = live.raw("POST", "/v1/jobs", b"[" + b" " * (65 << 20))
    assert status == 422 and b"larger than 64 MiB" in answer


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/"), ("GET", "/v1"), ("GET", "/v1/nothing"), ("GET", "/v2/jobs"), ("PUT", "/v1/jobs"), ("DELETE", "/v1/jobs/1"),
        ("PATCH", "/v1/policy"),
        ("GET", "/v1/sql"), ("POST", "/v1/jobs/1/delete"), ("GET", "/v1/jobs/../../etc/passwd"), ("GET", "/../../../etc/passwd"),
        ("GET", "//etc/passwd"),
        ("GET", "/v1/jobs/%2e%2e/%2e%2e/etc/passwd"), ("GET", "/v1/jobs/..%2f..%2fetc%2fpasswd"), ("GET", "/v1/jobs/%00"), ("GET",
        "/v1/jobs/\u00ff\u0100"),
        ("GET", "/v1/jobs/%ff"), ("POST", "/v1/runners/..%2f/drain"), ("POST", "/v1/runners/nobody/drain"), ("POST",
        "/v1/schedules/-1/remove"),
        ("POST", "/v1/schedules/99999999999999999999/remove"), ("POST", "/v1/tokens/1e3/revoke"), ("POST", "/v1/tokens/٣/revoke"),
    ],
)  # fmt: skip
def test_unknown_endpoints_and_path_tricks(live: Live, method: str, target: str) -> None:
    status, answer = live.raw(method, target)
    assert status in (400, 404), (status, answer)
    assert b"root:" not in answer and (answer == b"Invalid HTTP request received." or json.loads(answer)["error"]["message"])


@pytest.mark.parametrize(
    "query",
    [
        "limit=many", "limit=-1", "limit=nan", "limit=inf", "limit=1e400", "limit=0x10", "state=runing", "limit=" + "9" * 40,
    ],
)  # fmt: skip
def test_hostile_filters_of_the_list(live: Live, query: str) -> None:
    status, answer = live.raw("GET", f"/v1/jobs?{query}")
    assert status == 400 and json.loads(answer)["error"]["message"]


@pytest.mark.parametrize(
    "query", ["offset=nan", "offset=-5", "offset=1e30", "lease=nan", "lease=1e30", "wait=nan", "wait=inf", "wait=-1", "lease=x"]
)
def test_hostile_places_of_a_log(live: Live, query: str) -> None:
    job = live.jobs.submit("waiting", "true", hold=True)
    status, answer = live.raw("GET", f"/v1/jobs/{job}/logs?{query}")
    assert status in (400, 404) and json.loads(answer)["error"]["message"]


def test_a_request_that_is_broken_off_harms_nobody(live: Live) -> None:
    for text in (
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\r\n" * 9,
    ):
        with socket.create_connection(("127.0.0.1", live.port)) as peer:
            peer.sendall(text)
    assert live.raw("GET", "/healthz") == (200, b'{"ok":true}')


# -- Roles -----------------------------------------------------------------------------------------------------------------


def _over_tcp(live: Live, token: str | None) -> Client:
    return Client(live.home, url=f"http://127.0.0.1:{live.port}", token=token)


@pytest.mark.parametrize("token", [None, "", "stk_wrong", "Bearer x", "é", "' OR 1=1 --", "x" * 10_000])
def test_wrong_tokens(live: Live, token: str | None) -> None:
    status, answer = live.raw("GET", "/v1/jobs", headers={"Authorization": f"Bearer {token}".encode() if token is not None else ""})  # type: ignore[dict-item]
    assert status == 403 and "no valid token" in json.loads(answer)["error"]["message"]
    assert live.raw("GET", "/healthz", headers={"Authorization": ""})[0] == 200


def test_each_role_may_do_its_part_only(live: Live, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    job = str(live.jobs.submit("theirs", "true", hold=True))
    needs = {
        "read": ["show", job],
        "submit": ["submit", "--hold", "--name", "by-token", "--", "true"],
        "admin": ["drain", "nobody"],
    }
    allowed = {"read": {"read"}, "submit": {"read", "submit"}, "runner": {"read"}, "admin": {"read", "submit", "admin"}}
    for role, may in allowed.items():
        monkeypatch.setenv("STOKER_TOKEN", live.make_token(role))
        for needed, arguments in needs.items():
            capsys.readouterr()
            code = run(["--url", f"http://127.0.0.1:{live.port}", *arguments])
            said = Said(code, *capsys.readouterr())
            if needed in may:
                assert code in (0, 3), (role, arguments, said)  # 3: there is no runner of this name
            else:
                assert code == 5 and f"this needs role {needed}: token 'a-{role}' has role {role}" in said.line


def test_a_revoked_token_is_refused_at_once(live: Live) -> None:
    made = live.client.post("/v1/tokens", {"name": "short-lived", "role": "read"})
    client = _over_tcp(live, made["token"])
    assert client.get("/v1/jobs")
    live.client.post(f"/v1/tokens/{made['id']}/revoke")
    with pytest.raises(StokerError) as refused:
        client.get("/v1/jobs")
    assert refused.value.exit_code == 5
    client.close()


# -- Runners ---------------------------------------------------------------------------------------------------------------


def test_a_runner_of_another_version_is_turned_away(live: Live) -> None:
    code = "import sys, stoker.runners.host.agent as agent; agent.VERSION = 99; sys.exit(agent.main(sys.argv[1:]))"
    options = ["--home", str(live.home.path), "--node", "newer", "--slots", "1"]
    done = subprocess.run([sys.executable, "-c", code, *options], capture_output=True, text=True, check=False, timeout=patient(120))
    assert done.returncode == 2
    words = "stoker runner: runner newer speaks protocol 99, the daemon 1: install the same version of stoker\n"
    assert done.stderr == words
    assert [row["id"] for row in live.client.get("/v1/runners")["runners"]] == ["here"]


def test_a_second_runner_of_the_same_name_is_refused(live: Live) -> None:
    done = subprocess.run([*live.runner.command], capture_output=True, text=True, check=False, timeout=patient(120))
    assert done.returncode == 4 and "a runner of node 'here' is running already" in done.stderr and done.stderr.count("\n") == 1


# -- Policies --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def gang(live: Live) -> Iterator[tuple[int, int]]:
    """A job that runs on the first slot, and a gang of two that waits for it."""
    live.client.post("/v1/policy", {"policy": "fifo"})
    holder = live.jobs.shell("holder", "exec sleep 600")
    until(lambda: live.jobs.state(holder) == "running")
    waiting = live.jobs.submit("gang", "true", gpus_min=2, gpus_max=2)
    until(lambda: live.jobs.waits(waiting) == "resources")
    yield holder, waiting
    live.client.post("/v1/policy", {"policy": "fifo"})
    for job in (holder, waiting):
        live.jobs.act("cancel", job)
        live.jobs.ended(job)


PLANS = {
    "Raises": ("error", 'RuntimeError: I am broken (foreign.py, line 26: raise RuntimeError("I am\\nbroken"))'),
    "Leaves": ("error", "SystemExit: bye"),
    "SaysNothing": ("invalid", "plan() answered with a NoneType, not a Plan"),
    "SaysNonsense": ("invalid", "a str is not an Allocation"),
    "UnknownJob": ("invalid", "job 987654: is allocated, but is not in the view"),
    "TwiceForOne": ("invalid", "has a GPU twice in (1, 1)"),
    "TwiceForTwo": ("invalid", "has GPU here/cpu0, which job"),
    "HalfAGang": ("invalid", "has 1 GPUs, it takes 2"),
    "NoSuchGpu": ("invalid", "has GPU row 7, the view has rows 0 to 1"),
    "TextOnly": ("invalid", "a reason needs a code and a text"),
    "NoDefaults": ("", "LookupError: no licence"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [("Raises", "SaysNothing", "TwiceForTwo", "NoDefaults"), pytest.param(tuple(PLANS), marks=pytest.mark.nightly)],
    ids=["one of a kind", "all"],
)
def test_policies_that_misbehave_change_nothing_and_are_on_record(live: Live, gang: tuple[int, int], names: tuple[str, ...]) -> None:
    holder, waiting = gang
    before = live.jobs.sql("SELECT id, job_id, state FROM leases WHERE ended_at IS NULL")
    for name in names:
        outcome, words = PLANS[name]
        said = len(live.daemon.said())
        if not outcome:  # it cannot even be made: refused when it is set
            with pytest.raises(UsageError, match=words):
                live.client.post("/v1/policy", {"policy": f"foreign:{name}"})
            continue
        with pytest.raises(UsageError, match=f"foreign:{name} fails on what pool default holds now: .*--force"):
            live.client.post("/v1/policy", {"policy": f"foreign:{name}"})
        live.client.post("/v1/policy", {"policy": f"foreign:{name}", "interval": 0.2, "force": True})
        query = f"SELECT outcome, error FROM decisions WHERE policy = 'foreign:{name}'"
        ((found, error),) = until(lambda query=query: live.jobs.sql(query))
        assert (found, words in error) == (outcome, True), error
        assert live.jobs.sql("SELECT id, job_id, state FROM leases WHERE ended_at IS NULL") == before
        _told_everywhere(live, name, error, waiting)
        assert live.daemon.said()[said:].count("Traceback") == (outcome == "error"), "said once, however often it happens"
        live.excused += outcome == "error"
    assert live.jobs.state(holder) == "running" and live.jobs.state(waiting) == "pending"
    # What a sound policy decides counts at once again.
    live.client.post("/v1/policy", {"policy": "fifo"})
    until(lambda: live.jobs.waits(waiting) == "resources")
    assert live.client.get("/v1/status")["pools"][0]["error"] is None
    assert 'stoker_policy_failing{pool="default"} 0' in live.metrics()
    live.jobs.act("cancel", holder)
    assert live.jobs.ended(waiting)["state"] == "completed"


def _told_everywhere(live: Live, name: str, error: str, waiting: int) -> None:
    """A policy that fails is told wherever people look: its error, what it means, and what to do."""
    remedy = "repair it and set it again, or use 'stoker policy set fifo --pool default'"
    told = f"policy foreign:{name} of pool default fails, so nothing starts there: {error}; {remedy}"
    until(lambda: (live.client.get(f"/v1/jobs/{waiting}")["waiting"] or {}).get("reason") == told)
    assert live.jobs.waits(waiting) == "policy-error"
    until(lambda: live.client.get(f"/v1/jobs/{waiting}/explain")["summary"] == f"waits: {told}")  # and no place in the queue any more
    (pool,) = until(lambda: [row for row in live.client.get("/v1/status")["pools"] if row["error"] == error])
    assert pool["remedy"] == remedy and pool["failing_since"] <= time.time()
    assert [found for found in trouble(live.client.get("/v1/status")) if found.check == "policy"] == [
        Finding("policy", "fail", f"foreign:{name} of pool default fails, so nothing starts there: {error}", remedy)
    ]
    assert live.jobs.sql(f"SELECT reason FROM events WHERE kind = 'policy.error' AND actor = 'policy:foreign:{name}'") == [(told,)]
    assert 'stoker_policy_failing{pool="default"} 1' in live.metrics()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("foreign:Missing", "has no 'Missing'"), ("foreign:NoPolicy", "is no policy: it lacks Config"), ("nowhere.to.be:Found",
        "cannot import"),
        ("leaving:Policy", "not today"), ("torn:Torn", "SyntaxError"), ("foreign", "no policy is named"), (":", "policy"), ("os:system",
        "is no policy"),
        ("../x:Y", "policy"), ("foreign:Raises knob", "policy"),
    ],
)  # fmt: skip
def test_policies_that_cannot_be_loaded_are_refused(live: Live, stoker: Callable[..., Said], name: str, words: str) -> None:
    said = stoker("policy", "set", name)
    assert said.code == (3 if words == "no policy is named" else 2) and words in said.line

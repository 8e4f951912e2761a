"""The command line on a real daemon with a real runner: `up`, jobs, every listing, what is refused, `down`."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from e2e import until
from reference import commands
from stoker.engine.cli.main import cli, run
from stoker.engine.client import Client
from stoker.engine.errors import NotFound, UsageError
from stoker.engine.home import Home
from stoker.policies.registry import POLICIES
from waiting import patient

pytestmark = pytest.mark.xdist_group("cli-live")

Stoker = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def live() -> Iterator[Path]:
    """A home with a daemon and a runner of two slots, started and ended by the command line itself."""
    home = Path(tempfile.mkdtemp(prefix="stoker-"))
    command = [sys.executable, "-m", "stoker", "--home", str(home)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")} | {"OMP_NUM_THREADS": "1"}
    started = subprocess.run(
        [*command, "up", "--detach", "--slots", "2", "--node", "here"], check=False, capture_output=True, text=True, env=environment
    )
    assert started.returncode == 0, started.stderr
    assert "stoker submit" in started.stdout
    yield home
    ended = subprocess.run([*command, "down", "--workers"], check=False, capture_output=True, text=True, env=environment)
    assert (ended.returncode, ended.stdout) == (0, "the daemon and its workers have stopped\n"), ended.stderr
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def stoker(live: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stoker:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(["--home", str(live), *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture(scope="module")
def jobs(live: Path) -> dict[str, int]:
    """One job that has ended, one that failed, one that waits for ever, and an array of three that is held; numbers by name."""

    def submit(*arguments: str) -> None:
        assert run(["--home", str(live), "submit", *arguments]) == 0

    submit("--name", "good", "--label", "team=vision", "--", "sh", "-c", "echo first; echo last")
    submit("--name", "bad", "--", "sh", "-c", "echo about to fail; exit 3")
    submit("--name", "later", "--hold", "--", "true")
    submit("--name", "sweep", "--hold", "--array", "lr=1,2,3", "--", "echo", "{lr}")
    client = Client(Home(live), url="", token="")
    rows = client.get("/v1/jobs", arrays=1)["jobs"]
    for name in ("good", "bad"):
        until(lambda name=name: client.get(f"/v1/jobs/{name}")["job"]["finished_at"])
    client.close()
    return {row["name"]: row["id"] for row in rows}


LISTINGS = [
    "ps", "ps --arrays --all", "status", "show good", "explain later", "runner list", "pool warm default", "policy list",
    "policy show fifo", "schedule list", "token list", "clean", "wait good",
    "prompt bank stats", "prompt bank search", "schema", "schema jobs_now", "top",
    "doctor", "adapters", "sql SELECT\u00a01",
]  # fmt: skip


#: Others that answer with figures, in the order in which they follow from each other; a file three.csv is there.
STUDIES = [
    "trace import three.csv --name kept", "trace list", "trace show kept", "trace describe kept", "trace synth kept --name made",
    "trace export kept --to again.csv",
    "simulate three.csv -p fifo -p srtf -n 1x2 --no-store", "simulate kept -p fifo -n 1x2 -j 1 --until 15s", "replay -p fifo --no-store",
    "report", "trace drop made", "trace drop kept", "sql SELECT\u00a0'nan'::DOUBLE,'inf'::DOUBLE",
    *(f"policy show {name}" for name in POLICIES),
]  # fmt: skip

#: Most of them acknowledge: numbers and states of jobs, runners and tokens, and paths. What `pipeline` tells is tried with its table.
ELSEWHERE = {
    "pipeline", "down", "ui",
    "ask", "submit", "cancel", "retry", "hold", "release", "move", "priority",
    "schedule remove", "runner forget", "runner resume", "runner stop", "drain",
    "runner slurm up", "runner slurm list", "runner slurm down", "runner ray up", "runner ray list", "runner ray down",
    "policy set", "tune", "swap plan", "token create", "token revoke", "tls", "backup", "compact", "demo",
    "prompt bank build", "prompt bank add", "prompt bank show", "prompt lookup", "prompt tune",
}  # fmt: skip


def _no_json(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


@pytest.mark.parametrize("line", LISTINGS)
@pytest.mark.sampled(2)
def test_json_of_every_listing(stoker: Stoker, jobs: dict[str, int], line: str) -> None:
    words = [word.replace("\u00a0", " ") for word in line.split(" ")]
    code, out, err = stoker(*words, "--json")
    assert (code, err) == (0, "")
    json.loads(out, parse_constant=_no_json)


@pytest.mark.slow
def test_json_of_every_study_is_strict(stoker: Stoker, jobs: dict[str, int], tmp_path: Path) -> None:
    (tmp_path / "three.csv").write_text("job_id,job_key,submit,duration,num_gpu,vc\n0,a,0,100,1,v\n1,b,10,50,2,v\n2,c,20,10,1,v\n")
    for line in STUDIES:
        code, out, err = stoker(*[word.replace("\u00a0", " ") for word in line.split(" ")], "--json")
        assert code == 0, (line, err)
        json.loads(out, parse_constant=_no_json)


def test_every_command_with_json_is_tried() -> None:
    known = {
        path.removeprefix("stoker ")
        for path, command, _ in commands(cli, click.Context(cli))
        if any("--json" in option.opts for option in command.params)
    }
    tried = {name for name in known for line in (*LISTINGS, *STUDIES) if f"{line} ".startswith(f"{name} ")}
    assert known == tried | ELSEWHERE and not tried & ELSEWHERE


@pytest.mark.parametrize("line", LISTINGS)
@pytest.mark.sampled(3)
def test_text_of_every_listing_is_plain(stoker: Stoker, jobs: dict[str, int], line: str) -> None:
    words = [word.replace("\u00a0", " ") for word in line.split(" ")]
    code, out, err = stoker(*words)
    assert (code, err) == (0, "")
    assert "\x1b" not in out and "None" not in out and out.strip()


def test_an_array_is_one_row(stoker: Stoker, jobs: dict[str, int]) -> None:
    _, collapsed, _ = stoker("ps")
    (row,) = [line for line in collapsed.splitlines() if "sweep" in line]
    assert "sweep[3 tasks]" in row and "0/3 ended" in row
    _, every, _ = stoker("ps", "--arrays")
    assert sum("sweep[" in line for line in every.splitlines()) == 3


def test_an_array_is_summed_up_by_task(stoker: Stoker, jobs: dict[str, int]) -> None:
    first = jobs["sweep[0]"]
    code, out, err = stoker("show", "sweep")
    assert code == 0 and "array sweep: 3 tasks: 3 submitted\n" in out, err
    tasks = [line.split() for line in out[out.index("TASK ") :].splitlines()[1:4]]
    assert [row[:3] for row in tasks] == [[str(place), str(first + place), "submitted"] for place in range(3)]
    code, out, err = stoker("explain", "sweep")
    assert code == 0 and out.startswith("array sweep: 3 tasks: 3 submitted\n") and "'sweep' is an array of 3 tasks" in err
    assert out.splitlines()[2].split()[:4] == ["3", "submitted", "(held)", "0-2"], out
    assert f"job {first} sweep[0] waits: held" in out
    _, out, _ = stoker("explain", "sweep", "--json")
    assert json.loads(out)["array"]["groups"][0]["indices"] == [0, 1, 2]
    assert "array sweep" not in stoker("explain", str(first))[1]


def test_filters_of_ps(stoker: Stoker, jobs: dict[str, int]) -> None:
    _, out, _ = stoker("ps", "--state", "failed", "--json")
    assert [row["name"] for row in json.loads(out)] == ["bad"]
    assert stoker("ps", "--user", "nobody-at-all")[1] == "no such jobs\n"


def test_show_says_what_and_how(stoker: Stoker, jobs: dict[str, int]) -> None:
    _, out, _ = stoker("show", "bad")
    assert "exit code 3" in out and "about to fail" in out and "here/cpu" in out
    _, out, _ = stoker("show", "good")
    assert "team=vision" in out and "completed since" in out


def test_explain_says_why_it_waits(stoker: Stoker, jobs: dict[str, int]) -> None:
    _, out, _ = stoker("explain", "later")
    assert out.startswith(f"job {jobs['later']} later waits: held")


def test_logs(stoker: Stoker, jobs: dict[str, int]) -> None:
    assert stoker("logs", "good") == (0, "first\nlast\n", "")
    assert stoker("logs", "good", "-n", "1") == (0, "last\n", "")
    assert stoker("logs", "-f", str(jobs["good"])) == (0, "first\nlast\n", "")
    code, out, err = stoker("logs", "later")
    assert (code, out) == (0, "") and "nothing yet" in err
    assert stoker("logs", "good", "--lease", "999")[0] == 3


def test_a_job_is_followed_to_its_end(stoker: Stoker, jobs: dict[str, int]) -> None:
    code, out, err = stoker("submit", "--follow", "--name", "talker", "--", "sh", "-c", "for i in 1 2 3; do echo line $i; sleep 0.1; done")
    assert (code, out) == (0, "line 1\nline 2\nline 3\n")
    assert err.startswith("stoker: submitted job ")


def test_waiting_tells_of_failure(stoker: Stoker, jobs: dict[str, int]) -> None:
    code, out, err = stoker("submit", "--wait", "--json", "--name", "doomed", "--", "sh", "-c", "exit 7")
    assert code == 10
    assert [(row["name"], row["state"], row["exit_code"]) for row in json.loads(out)] == [("doomed", "failed", 7)]
    assert "doomed failed" in err.splitlines()[-1]


def test_submission_from_a_file_with_options_over_it(stoker: Stoker, jobs: dict[str, int]) -> None:
    Path("job.yaml").write_text("name: filed\ncommand: 'true'\npriority: 1\nhold: true\n")
    code, out, err = stoker("submit", "job.yaml", "--priority", "7")
    assert (code, err) == (0, "") and out.endswith(" filed\n")
    _, out, _ = stoker("show", "filed", "--json")
    found = json.loads(out)
    assert found["job"]["priority"] == 7 and found["provenance"]["cwd"] == str(Path.cwd())
    Path("job.yaml").write_text("name: filed\ncomand: 'true'\n")
    code, _, err = stoker("submit", "job.yaml")
    assert code == 2 and "job.yaml:2: comand" in err and "command" in err and err.count("\n") == 1


def test_a_dry_run_submits_nothing(stoker: Stoker, jobs: dict[str, int]) -> None:
    code, out, err = stoker("submit", "--dry-run", "--name", "ghost", "--", "true")
    assert code == 0 and "ghost" in out and "nothing was submitted" in err
    assert stoker("show", "ghost")[0] == 3


def test_a_dry_run_looks_for_the_jobs_that_it_names(stoker: Stoker, jobs: dict[str, int]) -> None:
    def ask(*options: str) -> tuple[int, str, str]:
        return stoker("submit", "--dry-run", "--name", "ghost", *options, "--json", "--", "true")

    def row(*options: str) -> dict[str, Any]:
        return dict(json.loads(ask(*options)[1])["jobs"][0])

    assert row("--after", "good", "--after", "bad:any")["state"] == "pending", "both have ended"
    waits = row("--after", "good", "--after", "later")
    assert (waits["state"], waits["reason"]) == ("submitted", "waits for later")
    assert ask("--after", "nosuch")[0] == 3 and ask("--after", "bad")[0] == 2
    assert stoker("submit", "--dry-run", "--recipe", "toy", "--weights", "job:good")[0] == 2, "its checkpoints are its own"
    again = ("--idempotency-key", "once", "--hold")
    number = json.loads(stoker("submit", *again, "--name", "ghost", "--json", "--", "true")[1])["jobs"][0]["id"]
    assert (row(*again)["id"], row(*again)["existing"]) == (number, True)
    assert ask("--idempotency-key", "once", "--priority", "3")[0] == 4


def test_a_snapshot_is_what_runs(stoker: Stoker, jobs: dict[str, int]) -> None:
    Path("say.sh").write_text("echo before\n")
    assert stoker("submit", "--snapshot", "--hold", "--name", "frozen", "--", "sh", "say.sh")[0] == 0
    Path("say.sh").write_text("echo after\n")
    assert stoker("release", "frozen")[0] == 0
    assert stoker("logs", "-f", "frozen")[1] == "before\n"


def test_control(stoker: Stoker, jobs: dict[str, int]) -> None:
    assert stoker("submit", "--hold", "--name", "pet", "--", "true")[0] == 0
    _, out, _ = stoker("priority", "-5", "pet", "--json")
    assert json.loads(out)[0]["message"] == "priority 0 -> -5"
    _, out, _ = stoker("cancel", "pet")
    assert "cancelled" in out
    code, out, err = stoker("cancel", "pet", "no-such-job", "sweep[0]", "--json")
    assert code == 3 and [row["name"] for row in json.loads(out)] == ["pet", "sweep[0]"]
    assert err.count("\n") == 1 and "no-such-job" in err


def test_names_are_resolved_by_the_daemon(stoker: Stoker, jobs: dict[str, int]) -> None:
    assert "good" in stoker("show", "goo")[1]
    assert (
        stoker("submit", "--hold", "--name", "twin-a", "--", "true")[0]
        == stoker("submit", "--hold", "--name", "twin-b", "--", "true")[0]
        == 0
    )
    code, _, err = stoker("show", "twin")
    assert code == 2 and "twin-a" in err and "twin-b" in err
    code, _, err = stoker("show", "godo")
    assert code == 3 and "good" in err


def test_logs_of_a_silent_retry_are_those_of_the_attempt_before(stoker: Stoker, jobs: dict[str, int]) -> None:
    script = "if [ -e tried ]; then exec sleep 600; else touch tried; echo the first; exit 3; fi"
    Path("again.yaml").write_text(
        f"name: again\ncommand: [sh, -c, '{script}']\nworkdir: {Path.cwd()}\nretries: {{limit: 1, backoff: 0.1}}\ndeadline: 2h\n"
    )
    assert stoker("submit", "again.yaml")[0] == 0
    until(
        lambda: (
            [(row["state"], row["attempts"]) for row in json.loads(stoker("ps", "--json")[1]) if row["name"] == "again"] == [("running", 2)]
        )
    )
    code, out, err = stoker("logs", "again")
    assert (code, out) == (0, "the first\n") and "has written nothing yet; this is lease" in err
    assert re.search(r"again .*(safe|unknown), in [12]h", stoker("ps")[1]), "when a deadline is, not only how it stands"
    assert stoker("cancel", "again")[0] == 0


def test_recurring_jobs(stoker: Stoker, jobs: dict[str, int]) -> None:
    assert stoker("submit", "--name", "nightly", "--cron", "0 3 * * *", "--", "true")[1] == "schedule 1\n"
    assert "nightly" in stoker("schedule", "list")[1]
    assert stoker("schedule", "remove", "1")[0] == 0
    assert stoker("schedule", "remove", "99")[0] == 3
    assert json.loads(stoker("schedule", "list", "--json")[1]) == []


def test_sql(stoker: Stoker, jobs: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    query = "SELECT name, exit_code FROM jobs WHERE name IN ('good', 'bad') ORDER BY name"
    assert stoker("sql", query)[1] == "name  exit_code\nbad   3\ngood  0\n"
    assert stoker("sql", "-o", "csv", query)[1] == "name,exit_code\nbad,3\ngood,0\n"
    assert json.loads(stoker("sql", "--json", query)[1]) == [{"name": "bad", "exit_code": 3}, {"name": "good", "exit_code": 0}]
    code, _, err = stoker("sql", "-o", "parquet", "--to", "out.parquet", query)
    assert code == 0 and Path("out.parquet").read_bytes()[:4] == b"PAR1" and "out.parquet" in err
    Path("query.sql").write_text(query)
    assert "good" in stoker("sql", "-f", "query.sql")[1]
    code, out, err = stoker("sql", "--limit", "1", query)
    assert out == "name  exit_code\nbad   3\n" and "only the first 1 rows" in err
    for where in ([], ["--to", "all.csv"]):  # what goes to a program has all rows, or is refused
        code, out, err = stoker("sql", "-o", "csv", *where, "SELECT range AS i FROM range(20000)")
        assert code == 0 and (Path("all.csv").read_text() if where else out).count("\n") == 20001
    code, out, err = stoker("sql", "-o", "csv", "--to", "more.csv", "SELECT range AS i FROM range(1000001)")
    assert (code, out, Path("more.csv").exists()) == (7, "", False) and "more than 1000000 rows" in err
    assert len(json.loads(stoker("sql", "--json", "SELECT range AS i FROM range(20000)")[1])) == 20000
    code, out, err = stoker("sql", "-o", "csv", "--limit", "2", "SELECT range AS i FROM range(9)")
    assert (code, out) == (0, "i\n0\n1\n") and "only the first 2 rows, as --limit says" in err
    assert stoker("sql", "SELECT 1 AS one WHERE false")[1] == "one\n(no rows)\n"
    for bad in ("DROP TABLE jobs", "SELECT * FROM job", "SELEC 1", "SELECT 1; SELECT 2", "FROM read_csv('/etc/passwd')"):
        code, out, err = stoker("sql", bad)
        assert (code, out, err.count("\n")) == (2, "", 1), bad
    assert stoker("sql", "SELECT 1", "--to", "x")[0] == 2
    assert stoker("sql", "-o", "csv", "--to", "no/such/dir", "SELECT 1")[0] == 2


def test_sql_from_a_pipe(live: Path) -> None:
    command = [sys.executable, "-m", "stoker", "--home", str(live), "sql"]
    done = subprocess.run(command, input="SELECT 42 AS answer", capture_output=True, text=True, check=True)
    assert done.stdout == "answer\n42\n"


def test_watch_repeats_until_interrupted(live: Path) -> None:
    command = [sys.executable, "-m", "stoker", "--home", str(live), "sql", "--watch", "0.1", "SELECT 42 AS answer"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        seen = 0
        while seen < 2:
            seen += process.stdout.readline() == "42\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(patient(60)) == 130
        assert process.stderr.read().strip() == ""


def test_policies(stoker: Stoker, jobs: dict[str, int]) -> None:
    assert "every   2s" in stoker("policy", "set", "fifo", "--interval", "2")[1]
    assert "hysteresis=3" in stoker("policy", "set", "srtf", "hysteresis=3")[1]
    code, _, err = stoker("policy", "set", "srtf", "hysteresi=3")
    assert code == 2 and "hysteresis" in err
    assert stoker("policy", "set", "srft")[0] == 3
    assert stoker("policy", "show", "srft")[0] == 3
    assert "hysteresis=3" in stoker("policy", "show", "srtf")[1]
    assert stoker("policy", "set", "priority")[0] == 0


def test_a_policy_is_set_as_it_will_be_read(stoker: Stoker, jobs: dict[str, int]) -> None:
    code, out, err = stoker("policy", "set", "unisched", "slo_leases=1e1", "be_lease=10", "objective=TRUE", "--json")
    row = json.loads(out)
    assert code == 0 and row["config"] == {"slo_leases": 10, "be_lease": 10.0, "objective": True}
    assert isinstance(row["config"]["slo_leases"], int)
    assert err == "stoker: be_lease: guards.min_run_time is 30 s: no lease is taken back sooner\n"
    assert stoker("policy", "set", "priority")[2] == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["slo_leases=1.5"], "slo_leases: 1.5 is not a whole number"),
        (["slo_leases=NaN"], "slo_leases: 'NaN' is not a whole number"),
        (["be_lease=NaN"], "be_lease: nan is outside its range 1.0 to 86400.0"),
        (["be_lease=1e999"], "be_lease: inf is outside its range"),
        (["--interval", "nan"], "'--interval': 'nan' is not a finite number"),
        (["--interval", "inf"], "'--interval': 'inf' is not a finite number"),
        (["--pool", ""], "pool: must be the name of a pool, not ''"),
        (["--pool", "a b"], "pool: must be the name of a pool, not 'a b'"),
    ],
)
def test_what_no_policy_is_set_to(stoker: Stoker, jobs: dict[str, int], arguments: list[str], says: str) -> None:
    before = json.loads(stoker("policy", "list", "--json")[1])["history"]
    code, _, err = stoker("policy", "set", "unisched", *arguments)
    assert code == 2 and says in err and err.count("\n") == 1
    assert json.loads(stoker("policy", "list", "--json")[1])["history"] == before


def test_a_pool_that_nobody_knows_is_not_made_by_a_slip(stoker: Stoker, jobs: dict[str, int]) -> None:
    def pools() -> set[str]:
        return {row["pool"] for row in json.loads(stoker("policy", "list", "--json")[1])["history"]}

    before = pools()
    code, out, err = stoker("policy", "set", "fifo", "--pool", "defualt")
    assert (code, out) == (3, "") and pools() == before
    assert err.startswith("stoker: error: pool: there is no pool 'defualt' (did you mean 'default'?); there are: default; --create ")
    code, _, err = stoker("policy", "set", "fifo", "--pool", "train", "--create")
    assert (code, err) == (0, "stoker: pool 'train' has no GPUs yet; runners offer it with 'stoker runner start --pool train'\n")
    assert pools() == before | {"train"}
    assert stoker("policy", "set", "srtf", "--pool", "train")[0] == 0  # it is known now


def test_tokens(stoker: Stoker, jobs: dict[str, int]) -> None:
    code, out, err = stoker("token", "create", "laptop", "--role", "read")
    assert code == 0 and out.strip() and "not shown again" in err
    _, listed, _ = stoker("token", "list")
    assert "laptop" in listed and out.strip() not in listed
    number = json.loads(stoker("token", "list", "--json")[1])[-1]["id"]
    assert stoker("token", "revoke", str(number))[0] == 0


def test_backup_and_compact(stoker: Stoker, jobs: dict[str, int]) -> None:
    assert stoker("backup", "copy.duckdb")[0] == 0
    assert Path("copy.duckdb").stat().st_size > 0
    code, _, err = stoker("backup", "copy.duckdb")
    assert code == 2 and "exists" in err
    assert stoker("compact")[0] == 0


def test_a_pool_that_is_not_there_keeps_nothing_warm(stoker: Stoker) -> None:
    """A slip of the pen was taken, and nothing came of it."""
    for backbones in ([], ["minilm"]):
        code, _, err = stoker("pool", "warm", "defualt", *backbones)
        assert code == 3 and "there is no pool 'defualt' (did you mean 'default'?)" in err
    assert stoker("pool", "warm", "defualt", "--none")[0] == 3


def test_runners(stoker: Stoker, jobs: dict[str, int]) -> None:
    assert stoker("drain", "here", "--wait", "--timeout", f"{patient(20):g}")[0] == 0
    assert json.loads(stoker("runner", "list", "--json")[1])[0]["state"] in ("draining", "drained")
    assert stoker("runner", "resume", "here")[0] == 0
    code, _, err = stoker("runner", "forget", "here")
    assert code == 4 and err.startswith("stoker: error: runner here was heard less than ") and err.count("\n") == 1
    assert err.endswith("ago, or the daemon has just started: stop it with 'stoker runner stop here', or wait until it is silent\n")
    assert stoker("drain", "nowhere")[0] == 3


def test_reports_are_read_by_name_with_numbers_alone(live: Path, jobs: dict[str, int]) -> None:
    client = Client(Home(live), url="", token="")
    try:
        of = {"since": 0.0, "jobs": [jobs["good"], jobs["bad"]], "now": 2e9, "unknown": None}
        assert client.post("/v1/report", {"query": "extent", "values": of})["rows"][0][:2] == [2, 0]
        found = client.post("/v1/report", {"query": "jobs", "values": {**of, "most": 1}})
        assert [row[found["columns"].index("name")] for row in found["rows"]] == ["bad"] and not found["truncated"]
        for query, values, kind, says in [
            ("job", of, NotFound, "did you mean 'jobs'?"),
            ("../api/tokens", of, NotFound, "no query of a report is named"),
            ("jobs", of, UsageError, "values: most must be given"),
            ("extent", {**of, "jobs": "1); SELECT 2"}, UsageError, "the request is not as it should be"),
            ("extent", {**of, "jobs": ["1"]}, UsageError, "the request is not as it should be"),
            ("jobs", {**of, "most": -1}, UsageError, "values: "),
            ("jobs", {**of, "most": [1]}, UsageError, "values: "),
        ]:
            with pytest.raises(kind, match=re.escape(says)):
                client.post("/v1/report", {"query": query, "values": values})
        assert client.post("/v1/report", {"query": "extent", "values": of})["rows"][0][0] == 2
    finally:
        client.close()


def test_report(stoker: Stoker, jobs: dict[str, int]) -> None:
    code, out, err = stoker("report", "--out", "pages", "--since", "1h")
    assert (code, err) == (0, "") and "pages/index.html" in out and "JCT" in out
    assert Path("pages/index.html").stat().st_size > 1000


def test_completion_knows_the_jobs(live: Path, jobs: dict[str, int]) -> None:
    environment = {"_STOKER_COMPLETE": "bash_complete", "COMP_WORDS": "stoker show go", "COMP_CWORD": "2", "STOKER_HOME": str(live)}

    def answer() -> str:
        """Empty when the daemon is busy for longer than a key press may take."""
        done = subprocess.run([sys.executable, "-m", "stoker"], capture_output=True, text=True, check=False, env=environment)
        assert done.stderr == ""
        return done.stdout

    assert until(answer) == "plain,good\n"


def test_a_second_up_is_refused(stoker: Stoker, jobs: dict[str, int]) -> None:
    for arguments in (["up"], ["up", "--detach"]):
        code, out, err = stoker(*arguments)
        assert (code, out, err.count("\n")) == (4, "", 1) and "already runs" in err


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_top_fills_a_terminal_and_leaves_it_as_it_was(live: Path, jobs: dict[str, int], key: bytes) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(slave)
    # A session's leader that opens a terminal is controlled by it: Ctrl-C becomes a signal.
    command = ["sh", "-c", 'exec "$@" <"$0"', os.ttyname(slave), sys.executable, "-m", "stoker", "top", "--home", str(live)]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")} | {"TERM": "xterm"}
    with subprocess.Popen(command, stdout=slave, stderr=slave, env=environment, start_new_session=True) as process:
        text = b""
        while b"q quit" not in text:
            text += os.read(master, 65536)
        os.write(master, key)
        assert process.wait(patient(60)) == (0 if key == b"q" else 130)
    assert termios.tcgetattr(slave) == before
    os.close(slave)
    os.close(master)
    assert b"\x1b[?1049h" in text  # the alternate screen: what was there comes back
    assert b"CPU slots" in text and b"Queue" in text


def test_top_ends_when_its_terminal_has_gone(live: Path, jobs: dict[str, int]) -> None:
    """Also when signals do not end it: started with nohup, or in the background of a shell without job control."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = ["sh", "-c", 'trap "" HUP INT; exec "$@"', "sh", sys.executable, "-m", "stoker", "top", "--home", str(live)]
    environment = os.environ | {"TERM": "xterm"}
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True) as process:
        os.close(slave)
        text = b""
        while b"q quit" not in text:
            text += os.read(master, 65536)
        os.close(master)
        try:
            process.wait(patient(60))
        finally:
            process.kill()


def test_global_options_stand_anywhere(live: Path, jobs: dict[str, int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ps", "--home", str(live), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)

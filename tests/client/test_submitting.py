"""`stoker.client` on a real daemon: what is submitted, what a job tells of itself, what a notebook shows."""

from __future__ import annotations

import asyncio
import datetime
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from e2e import DaemonProcess
from stoker import client
from stoker.client.job_handle import newest

pytestmark = pytest.mark.xdist_group("client-submitting")


def script(text: str) -> str:
    return textwrap.dedent(text)


@pytest.fixture(autouse=True)
def at_home(connected: Path) -> Path:
    """Where jobs are submitted from."""
    return connected


def test_an_array_of_commands_is_submitted_waited_for_and_read() -> None:
    job = client.submit(command="echo rate {lr}", array={"lr": [0.1, 0.01]}, gpus=1, name="rates", labels={"team": "nlp"})
    assert job.name == "rates" and len(job.ids) == 2 and job.wait(timeout=60) is job
    assert (job.state, job.done, job.exit_code, job.progress) == ("completed", True, 0, 1.0)
    assert [list(task.logs()) for task in job.tasks] == [["rate 0.1"], ["rate 0.01"]]
    assert client.job("rates") == job and client.job(job.ids[1]).name == "rates[1]"
    assert [one.id for one in client.jobs(name="rates", labels={"team": "nlp"})] == job.ids[::-1]


def test_a_command_has_the_directory_and_the_programs_of_who_submits(at_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (at_home / "bin").mkdir()
    (at_home / "bin" / "greet").write_text("#!/bin/sh\necho from $PWD\n")
    (at_home / "bin" / "greet").chmod(0o755)
    monkeypatch.setenv("PATH", f"{at_home}/bin:{os.environ['PATH']}")
    job = client.submit(command=["greet"]).wait(60)
    assert list(job.logs(follow=True)) == [f"from {at_home}"] and job.name == "greet"


def test_a_spec_and_a_file_are_submitted_with_fields_laid_over_them(at_home: Path) -> None:
    spec = {"name": "spec", "command": ["true"], "hold": True, "deadline": "2h", "labels": {"a": "1"}}
    row = client.submit(spec=spec, priority=7, labels={"b": "2"}).row
    assert (row["name"], row["priority"], row["held"], row["demand"]) == ("spec", 7, True, "strict")
    assert [one.id for one in client.jobs(labels={"a": "1", "b": "2"})] == [row["id"]]
    (at_home / "two.yaml").write_text(
        'defaults: {hold: true}\njobs:\n- {name: one, command: ["true"]}\n- {name: two, command: echo $HOME}\n'
    )
    both = client.submit(file="two.yaml", pool="default")
    assert len(both.tasks) == 2 and both.name == "one, two" and both.state == "submitted"
    (at_home / "bad.yaml").write_text('name: x\ncommand: "true"\ngpuz: 2\n')
    with pytest.raises(client.UsageError, match=r"bad.yaml:3: gpuz: unknown field \(did you mean 'gpus'"):
        client.submit(file="bad.yaml")


def test_dates_durations_and_paths_are_as_a_file_would_have_them(at_home: Path) -> None:
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=3)
    one = client.submit(command="true", deadline=datetime.timedelta(hours=2), hold=True, workdir=at_home)
    two = client.submit(command="true", deadline=soon, hold=True)
    assert abs(one.row["deadline"] - time.time() - 7200) < 60 and abs(two.row["deadline"] - soon.timestamp()) < 2


CIRCLE: dict[str, Any] = {}
CIRCLE["again"] = CIRCLE


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "nothing to run"),
        ({"command": "true", "recipe": "toy"}, "command and recipe: a job has one of them"),
        ({"recipe": "digits-cn"}, "recipe: no recipe 'digits-cn' (did you mean 'digits-cnn'"),
        ({"recipe": "digits-cnn", "params": {"lrr": 1}}, "params.lrr: "),
        ({"command": "true", "gpus": 0}, "gpus: must be at least 1, not 0"),
        ({"command": "true", "gpus": float("nan")}, "gpus: nan is no number in JSON"),
        ({"command": "true", "params": {"a": {1, 2}}}, "params.a: a set is no JSON"),
        ({"command": "true", "params": {"a": b"x"}}, "params.a: a bytes is no JSON"),
        ({"command": "python nowhere.py"}, "nowhere.py"),
        ({"command": "true", "workdir": "/nowhere"}, "workdir: '/nowhere' is not a directory"),
        ({"command": "true", "args": (1,)}, "args, kwargs: are for a function"),
        ({"command": "true", "array": [0.1, 0.2]}, "array: must be a mapping of names to values, not a list"),
        ({"command": "true", "params": CIRCLE}, "or one of them holds itself"),
        ({"spec": "name: x"}, "spec: must be a mapping of names to values, not a str"),
        ({"file": "a\0b"}, "cannot be read"),
        ({"file": __file__, "idempotency_key": ""}, "idempotency_key: of several jobs it must be text of 1 to 80 characters"),
        ({"command": "true", "args": "ab"}, "args: "),
        ({"command": "true", "idempotency_key": "k" * 201}, "idempotency_key: must be 1 to 200"),
    ],
)  # fmt: skip
def test_bad_input_is_one_exception_and_nothing_is_submitted(options: dict[str, Any], words: str) -> None:
    before = client.sql("SELECT max(id) AS last FROM jobs")["last"]
    with pytest.raises(client.UsageError) as raised:
        client.submit(**options)
    assert words in str(raised.value) and "\n" not in str(raised.value)
    assert client.sql("SELECT max(id) AS last FROM jobs")["last"] == before


def test_the_same_key_submits_once_and_no_key_each_time() -> None:
    one, two = (client.submit(command="true", hold=True, name="keyed", idempotency_key="mine") for _ in range(2))
    assert one == two and two.existing and not one.existing
    later = client.submit(command="true", name="later", hold=True, after=["mine"])
    assert later.reason.startswith("held")  # and how to let it go, once the policy has looked
    assert client.submit(command="true", hold=True) != client.submit(command="true", hold=True)
    with pytest.raises(client.Conflict, match="differs from it in priority"):
        client.submit(command="true", hold=True, name="keyed", priority=3, idempotency_key="mine")


def test_a_dry_run_tells_and_submits_nothing() -> None:
    before = client.sql("SELECT count(*) AS n FROM jobs")["n"]
    rows = client.dry_run(command="true", name="maybe")
    assert rows["name"] == ["maybe"] and rows["state"] == ["pending"] and rows["est_start"][0].tzinfo is datetime.UTC
    assert client.sql("SELECT count(*) AS n FROM jobs")["n"] == before


def test_a_job_that_fails_or_is_cancelled_while_one_waits_is_one_exception() -> None:
    bad = client.submit(command="exit 3", name="bad")
    words = rf"job {bad.id} bad failed: exit code 3, without a word; see 'stoker logs {bad.id}'$"
    with pytest.raises(client.JobFailed, match=words) as raised:
        bad.wait(60)
    assert raised.value.exit_code == 10 and bad.exit_code == 3 and bad.wait(check=False).state == "failed"
    held = client.submit(command="true", hold=True, name="never")
    with pytest.raises(client.LimitExceeded, match=r"is submitted after 0[.]2 s: it goes on"):
        held.wait(timeout=0.2)
    held.cancel()
    with pytest.raises(client.JobFailed, match=r"never cancelled: cancelled by [^;]*$"):
        held.wait(10)
    again = held.retry()
    assert again.id != held.id and again.wait(60).state == "completed"  # it is not held a second time


def test_a_recurring_job_says_what_it_is() -> None:
    job = client.submit(command="true", name="nightly", cron="0 3 * * *")
    assert repr(job) == f"<schedule {job.schedule} nightly>" and job._repr_html_()
    with pytest.raises(client.UsageError, match="is a recurring job: its runs are"):
        job.wait(1)


def test_a_file_with_a_recurring_job_that_is_refused_submits_none_of_it(at_home: Path) -> None:
    mixed = 'jobs:\n- {name: now, command: "true", hold: true}\n- {name: each-night, command: "true", cron: "%s"}\n'
    (at_home / "mixed.yaml").write_text(mixed % "0 3 * * *")
    assert client.dry_run(file="mixed.yaml")["name"] == ["now", "each-night"]
    assert client.submit(file="mixed.yaml").schedule and len(client.jobs(name="now")) == 1
    (at_home / "mixed.yaml").write_text(mixed % "0 4 * * *")
    with pytest.raises(client.Conflict, match="each-night is schedule"):
        client.submit(file="mixed.yaml")
    assert len(client.jobs(name="now")) == 1


def test_metrics_are_of_the_last_attempt_to_train_a_step() -> None:
    body = "import stoker\nfor s in range(5): stoker.report(step=s, total=5, loss=1 / (s + 1), accuracy=s / 10)"
    job = client.submit(command=[sys.executable, "-c", body], name="measured").wait(90)
    frame = job.metrics("loss")
    assert [round(value, 3) for value in frame["loss"]] == [1, 0.5, 0.333, 0.25, 0.2] and list(frame["step"]) == [0, 1, 2, 3, 4]
    assert len(job.metrics()) == 10 and len(job.metrics("accuracy", "loss")) == 10 and len(job.metrics("none")) == 0
    rows = [[1, n, n, "loss", 9.0, 0.0] for n in range(6)] + [[2, n, n, "loss", 1.0, 0.0] for n in range(3, 5)]
    assert [(row[0], row[2]) for row in newest(rows)] == [(1, 0), (1, 1), (1, 2), (2, 3), (2, 4)]


def test_what_is_shown_holds_no_markup_of_others() -> None:
    job = client.submit(command="true", hold=True, name="shown", labels={"x": "<b>"})
    assert repr(job).startswith(f"<job {job.id} shown, submitted") and "<td>shown</td>" in job._repr_html_()
    table = client.sql("SELECT '<script>' AS a, 1.5 AS a, NULL AS b")
    assert table.columns == ["a", "a_2", "b"] and "&lt;script&gt;" in table._repr_html_() and "<script>" not in table._repr_html_()
    assert table[0] == {"a": "<script>", "a_2": 1.5, "b": None} and table["a_2"] == [1.5] and repr(table).splitlines()[1] == "<script>  1.5"
    assert "<table>" in client.top()._repr_html_() and "queue" in repr(client.top()) and repr(client.jobs()).startswith("id ")
    with pytest.raises(client.UsageError, match="table 'nonesuch': not known"):
        client.sql("FROM nonesuch")


def test_an_extension_gives_a_notebook_its_magic(capsys: pytest.CaptureFixture[str]) -> None:
    found = {}

    class Shell:
        def register_magic_function(self, function: Any, magic_kind: str, magic_name: str) -> None:
            found[magic_name] = (function, magic_kind)

    client.load_ipython_extension(Shell())
    stoker, kind = found["stoker"]
    assert kind == "line_cell" and stoker("sql", "SELECT 1 AS one\n") == [{"one": 1}] and stoker("ps") is not None
    assert stoker("sql", "SELEC 1") is None and capsys.readouterr().err.startswith("stoker: error: ")
    assert stoker("bogus") is None and "there are 'sql QUERY'" in capsys.readouterr().err


def test_the_same_for_asyncio() -> None:
    async def run() -> list[str]:
        first, second = await asyncio.gather(*(client.aio.submit(command=f"echo {n}", name=f"async-{n}") for n in (1, 2)))
        await asyncio.gather(first.wait(60), second.wait(60))
        assert await first.state() == "completed" and (await client.aio.sql("SELECT 1 AS n")) == [{"n": 1}]
        held = await client.aio.submit(command="true", hold=True)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(held.wait(), 0.2)
        return [line async for line in second.logs(follow=True)]

    assert asyncio.run(run()) == ["2"]


def test_no_daemon_and_a_stale_token_are_said_as_on_the_command_line(live: DaemonProcess, tmp_path: Path) -> None:
    with client.Client(home=tmp_path) as nobody, pytest.raises(client.Unreachable, match="start it with 'stoker up --detach'"):
        nobody.submit(command="true")
    with pytest.raises(client.UsageError, match="url: 'gpu1' is not http://HOST:PORT"):
        client.Client(url="gpu1")
    with client.Client(url="http://127.0.0.1:1", token="stk_a\n") as read, pytest.raises(client.UsageError, match="such as a line break"):
        read.top()
    with pytest.raises(client.UsageError, match="labels: must be a mapping"):
        client.jobs(labels=["team"])  # type: ignore[arg-type]
    tcp = client.Client(url="http://127.0.0.1:1", token="stk_ü")  # a notebook shows a job whatever is wrong
    assert "such as a line break" in repr(client.Job(tcp, [1], "x")) and client.Job(tcp, [1], "x")._repr_html_()
    with client.Client(home=live.home.path) as named:
        assert named.status()["home"] == str(live.home.path) and str(live.home.socket) in repr(named)


LIGHT = "{'torch', 'duckdb', 'ortools', 'numpy', 'msgspec', 'yaml', 'click', 'rich', 'asyncio', 'pandas', 'polars'}"


def test_importing_it_is_quick_and_loads_nothing_heavy() -> None:
    program = (
        "import sys, time\nbegan = time.process_time()\nimport stoker.client\ntook = time.process_time() - began\n"
        f"print(sorted({LIGHT} & set(sys.modules)), took)"
    )
    runs = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout for _ in range(5)]
    assert all(said.startswith("[] ") for said in runs), runs
    assert min(float(said.split()[1]) for said in runs) <= 0.06


def test_submitting_needs_nothing_but_the_package_itself(at_home: Path) -> None:
    """As after `pip install --no-deps`: modules of others cannot be imported."""
    program = script("""
        import sys
        class Missing:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ("pandas", "polars", "msgspec", "yaml", "duckdb", "torch", "numpy", "click", "rich"):
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        sys.meta_path.insert(0, Missing())
        from stoker import client
        job = client.submit(command="echo light").wait(60)
        print(list(job.logs()), job.metrics("loss"), job.state)
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("['light'] job  step  time  loss\n(no rows) completed"), done.stderr

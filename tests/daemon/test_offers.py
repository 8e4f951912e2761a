"""What runners may call themselves, offer and report, on a real daemon; and what their agents say when they may not."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e import DaemonProcess, daemon_apart, until
from stoker.engine.cli.main import run
from stoker.engine.client import Client
from stoker.engine.errors import Conflict, StokerError, UsageError
from stoker.engine.home import Home
from stoker.engine.protocol import LONGEST_NAME, MOST_VALUES, MOST_WORDS, VERSION
from stoker.runners.host.report_tail import read
from stoker.runners.lease.rundir import RunDir
from waiting import patient

pytestmark = pytest.mark.xdist_group("offers")


@pytest.fixture(scope="module")
def daemon(template: Path) -> Iterator[DaemonProcess]:
    with daemon_apart(template) as running:
        yield running
        running.end()
        assert "Traceback" not in running.said()


@pytest.fixture(scope="module")
def client(daemon: DaemonProcess) -> Client:
    return daemon.client()


def gpu(uuid: str, **fields: Any) -> dict[str, Any]:
    return {"id": uuid, "index": 0, "kind": "cuda", "name": "A100", "memory": 80 << 30, **fields}


def hello(node: str, *gpus: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "protocol": VERSION, "version": "t", "node": node, "host": f"host-{node}", "boot_id": "b", "pid": 1, "pid_started": 1.0,
        "home": "/h", "address": "localhost", "pool": "default", "gpus": list(gpus), "leases": [], **fields,
    }  # fmt: skip


def greet(client: Client, node: str, *gpus: dict[str, Any], **fields: Any) -> int:
    return int(client.post("/v1/runner/hello", hello(node, *gpus, **fields))["session"])


def owners(client: Client, gpu: str) -> list[list[Any]]:
    rows: list[list[Any]] = client.post("/v1/sql", {"query": f"SELECT node_id, health FROM gpus WHERE id = '{gpu}'"})["rows"]
    return rows


HOSTILE = ["", "../x", "<script>alert(1)</script>", "\x1b[2J", "a\nb", "\0", "x" * 10_000, ".", "-x", "a b", "é", "\u202ea"]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_names_that_are_none_are_refused(client: Client, name: str) -> None:
    refusals = {
        "node": hello(name),
        "pool": hello("fine", pool=name),
        "gpus.id": hello("fine", gpu(name)),
    }
    for field, message in refusals.items():
        with pytest.raises(UsageError) as refused:
            client.post("/v1/runner/hello", message)
        assert str(refused.value).startswith(f"{field}: ") and str(refused.value).isprintable() and len(str(refused.value)) < 300
    assert client.get("/v1/runners")["runners"] == []


OFFERS: dict[str, tuple[dict[str, Any], str]] = {
    "twice the same": (hello("fine", gpu("GPU-1"), gpu("GPU-1", index=1)), "gpus: GPU-1 is offered 2 times"),
    "another's slot": (hello("fine", gpu("other/cpu0", kind="cpu")), "gpus.id: 'other/cpu0' is no slot of runner fine"),
    "a climb": (hello("fine", gpu("GPU-1/../../x")), "gpus.id: 'GPU-1/../../x' is no id of a GPU"),
    "too many": (hello("fine", *(gpu(f"GPU-{i}") for i in range(4097))), "gpus: runner fine offers 4097 GPUs or slots"),
    "memory": (hello("fine", gpu("GPU-1", memory=1 << 60)), "gpus.memory: "),
    "less than none": (hello("fine", gpu("GPU-1", memory=-1)), "gpus.memory: -1 bytes"),
    "a place": (hello("fine", gpu("GPU-1", index=-1)), "gpus.index: -1 of GPU-1"),
    "a product": (hello("fine", gpu("GPU-1", name="\x1b[31mA100")), "gpus.name: "),
    "a host": (hello("fine", host="\x1b[2J"), "host: "),
    "a home": (hello("fine", home="/h\n"), "home: "),
    "an address": (hello("fine", address="x" * 300), "address: "),
    "a health": (hello("fine", gpu("GPU-1", health="splendid")), "$.gpus[0].health"),
    "a process": (hello("fine", pid=-1), "$.pid"),
    "leases": (hello("fine", leases=[2**70]), "$.leases[0]"),
}  # fmt: skip


@pytest.mark.parametrize("case", OFFERS)
def test_offers_that_are_none_are_refused(client: Client, case: str) -> None:
    message, words = OFFERS[case]
    with pytest.raises(UsageError) as refused:
        client.post("/v1/runner/hello", message)
    assert words in str(refused.value) and str(refused.value).isprintable()


# -- A GPU belongs to one runner ---------------------------------------------------------------------------------------------


def test_a_gpu_belongs_to_one_runner_until_that_one_is_no_more(client: Client) -> None:
    session = greet(client, "old", gpu("GPU-moves"))
    with pytest.raises(Conflict) as refused:
        greet(client, "new", gpu("GPU-moves"), gpu("GPU-other", index=1))
    words = "gpus: GPU GPU-moves belongs to runner old on host-old, which is up: 'stoker runner stop old' first"
    assert str(refused.value).startswith(words) and "'stoker runner forget old'" in str(refused.value)
    assert owners(client, "GPU-moves") == [["old", "ok"]] and owners(client, "GPU-other") == [], "nothing of that offer is taken"
    # A renamed host: the agent of the old name leaves, and the new one has its GPUs.
    client.post("/v1/runner/report", {"node": "old", "session": session, "left": True})
    greet(client, "new", gpu("GPU-moves"))
    assert owners(client, "GPU-moves") == [["new", "ok"]]
    with pytest.raises(Conflict, match="belongs to runner new"):
        greet(client, "old", gpu("GPU-moves"))
    greet(client, "old", gpu("GPU-of-old"))  # without it it may come back


def test_a_card_that_its_runner_no_longer_finds_may_be_put_into_another_host(client: Client) -> None:
    greet(client, "first", gpu("GPU-card"), gpu("GPU-stays", index=1))
    greet(client, "first", gpu("GPU-stays", index=1))
    assert owners(client, "GPU-card") == [["first", "missing"]]
    greet(client, "second", gpu("GPU-card"))
    assert owners(client, "GPU-card") == [["second", "ok"]]


def test_a_runner_declared_dead_gives_its_gpus_free(template: Path, home: Home) -> None:
    shutil.copyfile(template, home.database)
    home.config.write_text("[runners]\nsilent_after = 1.0\n")
    own = DaemonProcess(home)
    try:
        client = own.start()
        greet(client, "dead", gpu("GPU-orphan"))

        def forgotten() -> bool:
            try:
                client.post("/v1/runners/dead/forget")
            except Conflict:  # it was heard a moment ago
                return False
            return True

        until(forgotten, 60)
        greet(client, "heir", gpu("GPU-orphan"))
        assert owners(client, "GPU-orphan") == [["heir", "ok"]]
    finally:
        own.end()


def test_two_agents_that_offer_one_gpu_in_the_same_moment(client: Client, daemon: DaemonProcess) -> None:
    """Their greetings may come into one transaction."""
    import threading

    results: list[str] = []

    def offer(node: str) -> None:
        with_own = daemon.client()
        try:
            greet(with_own, node, gpu("GPU-raced"))
            results.append(node)
        except Conflict:
            pass

    threads = [threading.Thread(target=offer, args=(f"racer{i}",)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patient(60))
    assert len(results) == 1 and owners(client, "GPU-raced") == [[results[0], "ok"]]


def test_a_runner_has_nothing_to_tell_of_anothers_gpu(client: Client) -> None:
    greet(client, "victim", gpu("GPU-victim"))
    session = greet(client, "liar", gpu("GPU-liar"))
    told = [gpu(name, health="quarantined", note="could not be killed") for name in ("GPU-victim", "GPU-liar", "GPU-nowhere")]
    samples = [{"ts": time.time(), "gpu": name, "utilisation": 1.0} for name in ("GPU-victim", "GPU-liar", "GPU-nowhere")]
    client.post("/v1/runner/report", {"node": "liar", "session": session, "gpus": told, "samples": samples})
    assert owners(client, "GPU-victim") == [["victim", "ok"]] and owners(client, "GPU-liar") == [["liar", "quarantined"]]
    assert client.post("/v1/sql", {"query": "SELECT DISTINCT gpu_id FROM telemetry WHERE node_id = 'liar'"})["rows"] == [["GPU-liar"]]


# -- Agents ------------------------------------------------------------------------------------------------------------------

#: an agent that lacks our own look at the names, and may offer one GPU by any id
UNCHECKED = """
import sys, re
import stoker.runners.host.agent as agent, stoker.runners.host.gpus as devices
from stoker.engine.protocol import GpuInfo
agent._require_names = lambda *_: None
class One(devices.CpuSlots):
    def __init__(self, node, count, memory=None):
        self.gpus = {GPU: GpuInfo(id=GPU, index=0, kind="cuda", name="A100")}
GPU = sys.argv.pop(1)
if GPU:
    devices.CpuSlots = One
sys.exit(agent.main(sys.argv[1:]))
"""


def started(home: Home, node: str | bytes, *options: str, gpu: str | None = None) -> subprocess.CompletedProcess[bytes]:
    program = ["-m", "stoker.runners.host.agent"] if gpu is None else ["-c", UNCHECKED, gpu]
    command = [sys.executable, *program, "--home", str(home.path), "--node", node, "--slots", "1", *options]
    return subprocess.run(command, capture_output=True, check=False, timeout=patient(120))


@pytest.mark.parametrize("name", ["", "../x", "\x1b[2J", "x" * 10_000, b"\xff\xfe"], ids=range(5))
def test_an_agent_of_no_name_leaves_with_one_line(daemon: DaemonProcess, name: str | bytes) -> None:
    done = started(daemon.home, name)
    assert done.returncode == 2 and done.stderr.startswith(b"stoker runner: --node: ") and done.stderr.count(b"\n") == 1
    assert len(done.stderr) < 300 and done.stderr.rstrip(b"\n").decode().isprintable()
    assert not list((daemon.home.path / "runners").glob("*x*")), "no file is made by such a name"


def test_what_the_daemon_refuses_the_agent_says_in_one_line_and_leaves(daemon: DaemonProcess, client: Client) -> None:
    greet(client, "here-first", gpu("GPU-taken"))
    done = started(daemon.home, "late", gpu="GPU-taken")
    assert done.returncode == 4 and b"GPU GPU-taken belongs to runner here-first" in done.stderr and done.stderr.count(b"\n") == 1
    done = started(daemon.home, "odd", gpu="\x1b[2J")
    assert done.returncode == 2 and done.stderr.startswith(b"stoker runner: gpus.id: ") and done.stderr.count(b"\n") == 1
    assert b"\x1b" not in done.stderr
    done = started(daemon.home, "odd name", gpu="")
    assert done.returncode == 2 and done.stderr.startswith(b"stoker runner: node: 'odd name' is no name for a runner")
    done = started(daemon.home, "many", "--slots", "1000000000")
    assert done.returncode == 2 and b"--slots 1000000000: at most 4096" in done.stderr and done.stderr.count(b"\n") == 1


# -- Reports -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lease(client: Client) -> tuple[int, int]:
    """The session of a runner, and a lease that it has."""
    session = greet(client, "worker", gpu("worker/cpu0", kind="cpu"), pool="reports")
    client.post("/v1/jobs", {"jobs": [{"name": "told", "recipe": "toy", "pool": "reports"}], "provenance": {"argv": [], "cwd": "/"}})
    poll = {"node": "worker", "session": session, "version": -1, "wait": 0.0}
    (found,) = until(lambda: client.post("/v1/runner/poll", poll)["leases"])
    return session, found["lease"]


REPORTS: dict[str, dict[str, Any]] = {
    "a metric of no name": {"values": {"": 1.0}},
    "a metric of a long name": {"values": {"x" * (LONGEST_NAME + 1): 1.0}},
    "too many metrics": {"values": {str(i): 1.0 for i in range(MOST_VALUES + 1)}},
    "a value beyond all": {"values": {"loss": 1e305}},
    "a step beyond all": {"step": 10**30},
    "a step of less than none": {"step": -1},
    "a time that is none": {"ts": 1e12},
}


@pytest.mark.parametrize("case", REPORTS)
def test_reports_that_are_none_are_refused(client: Client, lease: tuple[int, int], case: str) -> None:
    session, number = lease
    record = {"seq": 1, "ts": time.time(), "step": 1, **REPORTS[case]}
    with pytest.raises(UsageError) as refused:
        client.post(
            "/v1/runner/report", {"node": "worker", "session": session, "records": [{"lease": number, "rank": 0, "records": [record]}]}
        )
    assert f".{next(iter(REPORTS[case]))}" in str(refused.value)
    assert client.post("/v1/sql", {"query": "SELECT count(*) FROM metrics"})["rows"] == [[0]]


def test_words_of_a_runner_are_cut_and_steer_no_terminal(
    client: Client, daemon: DaemonProcess, lease: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    session, number = lease
    words = "\x1b[2J\x9b31m\u202e it broke " + "x" * 100_000
    update = {"lease": number, "state": "exited", "ts": time.time(), "outcome": "failed", "exit_code": 1, "message": words}
    health = gpu("worker/cpu0", kind="cpu", health="dirty", note=words)
    client.post("/v1/runner/report", {"node": "worker", "session": session, "workers": [update], "gpus": [health]})
    until(lambda: client.get("/v1/jobs/told")["job"]["state"] == "failed")
    ((note,),) = client.post("/v1/sql", {"query": "SELECT note FROM gpus WHERE id = 'worker/cpu0'"})["rows"]
    assert len(note) == MOST_WORDS
    for arguments in (
        ["show", "told"], ["show", "told", "--json"], ["explain", "told"], ["ps", "--all"], ["ps", "--all", "--json"], ["status"],
        ["runner", "list"], ["top", "--once"], ["sql", "SELECT message, chr(27) || '[2J' AS x FROM leases"],
        ["sql", "SELECT note AS \"a\x1b[2Jb\" FROM gpus"], ["sql", "-o", "json", "SELECT note FROM gpus"], ["show", "\x1b[2J\u202e"],
    ):  # fmt: skip
        capsys.readouterr()
        run(["--home", str(daemon.home.path), *arguments])
        out, err = capsys.readouterr()
        assert out or err
        assert all(char.isprintable() or char in "\n\t" for char in out + err), arguments


def test_what_a_script_reports_beyond_all_bounds_is_left_out_and_its_step_is_kept(tmp_path: Path) -> None:
    """A value that the daemon would refuse must neither cost the record nor keep the runner from reporting for ever."""
    directory = RunDir(tmp_path, 1, 1)
    directory.path.mkdir(parents=True)
    values = {"loss": 0.5, "x" * 300: 1.0, "": 2.0, "huge": 1e305, "bad": math.nan}
    many = {str(i): 1.0 for i in range(MOST_VALUES * 2)}
    lines = [{"seq": 1, "ts": 1.8e9, "step": 3, "values": values}, {"seq": 2, "ts": 1.8e9, "step": 4, "values": many}]
    directory.reports(0).write_text("".join(json.dumps(line) + "\n" for line in lines))
    first, second = read(directory, 0, 0).records
    assert (first.step, first.values) == (3, {"loss": 0.5})
    assert second.step == 4 and len(second.values) == MOST_VALUES


def test_a_script_is_told_of_a_name_that_is_too_long(tmp_path: Path) -> None:
    script = "import stoker; stoker.report(step=7, loss=0.5, **{'x' * 300: 1.0}); stoker.report(step=8, **{'x' * 300: 1.0})"
    environment = {**os.environ, "STOKER_RUN_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, timeout=patient(60))
    assert done.stderr.count("a value's name has 1 to 200 characters, all of them Unicode; it is left out") == 1
    records = [json.loads(line) for line in (tmp_path / "reports-0.jsonl").read_text().splitlines()]
    assert [(record["step"], record["values"]) for record in records] == [(7, {"loss": 0.5}), (8, {})]


def test_an_error_of_the_daemon_is_no_longer_than_a_screen(client: Client) -> None:
    with pytest.raises(StokerError) as refused:
        client.post("/v1/runners/" + "x" * 5000 + "/drain")
    assert len(str(refused.value)) <= 1000

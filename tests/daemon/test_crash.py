"""kill -9 of daemon, agent, supervisor and worker at any moment: nothing acknowledged is lost, nothing runs twice, nothing is left.

The long run of the same: benchmarks/chaos.py.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from chaos_checks import CHECKS, examine, lost_keys
from chaos_load import SCRIPT
from chaos_support import Chaos
from e2e import DaemonProcess, Jobs, RunnerProcess, until
from stoker.engine.errors import Unreachable
from stoker.engine.home import Home
from stoker.engine.identity import Process, alive, boot_id
from stoker.engine.protocol import Assignment
from stoker.runners.host.runs import Run
from stoker.runners.lease import processes
from stoker.runners.lease.rundir import RunDir
from stoker.runners.lease.supervisor import write_exit
from waiting import patient

BODY = {"provenance": {"argv": ["test"], "cwd": "/"}}
#: one of each kind of damage
TAMPER = """
UPDATE jobs SET idempotency_key = 'another' WHERE id = 1;
INSERT INTO events SELECT max(seq) + 1, any_value(ts), 'job.state', 2, NULL, NULL, 'running', 'completed', 'nobody', NULL, NULL FROM events;
UPDATE jobs SET state = 'pending', finished_at = NULL WHERE id = 3;
INSERT INTO metrics FROM metrics LIMIT 1;
UPDATE leases SET state = 'running', ended_at = NULL WHERE id = 1;
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    """For a whole Chaos; its home has a path short enough for a Unix socket."""
    path = Path(tempfile.mkdtemp(prefix="chaos-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def diary(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    """What jobs of `chaos` have written."""
    (tmp_path / "locks").mkdir()

    def read() -> list[dict[str, Any]]:
        """Whole lines: one that crosses a page of the file is seen in halves while it is written."""
        path = tmp_path / "diary.jsonl"
        whole, _, _ = path.read_text().rpartition("\n") if path.exists() else ("", "", "")
        return [json.loads(line) for line in whole.splitlines()]

    return read


def script(tmp_path: Path, seconds: float, *options: str) -> list[str]:
    return [sys.executable, str(SCRIPT), str(tmp_path), str(seconds), *options]


def registered(home: Home, lease: int) -> Process | None:
    """The supervisor of a lease."""
    for run in RunDir.find(home.path):
        if run.lease == lease and (found := run.read("supervisor.json")):
            return Process(found["pid"], found["started"])
    return None


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [2, pytest.param(30, marks=pytest.mark.nightly)])
def test_rounds_under_load(directory: Path, rounds: int) -> None:
    with Chaos(directory, 11, trainings=0.0, calm=1.0) as chaos:
        for _ in range(rounds):
            chaos.round()
        until(lambda: len(chaos.ledger.accepted) >= 5)
        chaos.settle()
        assert chaos.examine() == []


@pytest.mark.nightly
def test_rounds_under_load_with_warm_starts(directory: Path) -> None:
    """Processes that jobs are forked from are among the victims."""
    with Chaos(directory, 13, trainings=1.0, calm=4.0, warm=True) as chaos:
        for _ in range(40):
            chaos.round()
        chaos.settle()
        assert chaos.examine() == []
        with duckdb.connect(str(chaos.home.database), read_only=True) as con:
            assert con.execute("SELECT count(*) FROM leases WHERE warm").fetchone() > (0,)


@pytest.mark.nightly  # a test of what tests look with
def test_the_examination_sees_each_kind_of_wrong(directory: Path) -> None:
    with Chaos(directory, 12, trainings=0.0) as chaos:
        until(lambda: len(chaos.ledger.accepted) >= 8 and chaos.counts().get("completed", 0) >= 2)
        chaos.settle()
        assert chaos.examine() == []
        tamper(chaos)
        left = subprocess.Popen(["sleep", "60"], env={"STOKER_TAG": f"{chaos.home.path}:1"})
        until(lambda: processes.tagged(f"{chaos.home.path}:1"))  # it shows its environment a moment after it has come
        wrong = examine(chaos.home, chaos.diary, chaos.ledger)
        left.kill()
        left.wait()
    seen = {words.partition(":")[0] for words in wrong}
    assert seen == {check.__name__.replace("_", " ") for check in CHECKS} - {"nothing is lost from an index"}


def tamper(chaos: Chaos) -> None:
    """Damage of each kind: in the database, in what the jobs say, in what the client knows, in a log."""
    with duckdb.connect(str(chaos.home.database)) as con:
        con.execute(TAMPER)
    first = json.loads(chaos.diary.read_text().splitlines()[0])
    last = max(chaos.ledger.accepted.values(), key=lambda accepted: accepted.job)
    last.needs = ((first["job"], "any"),)
    said = [
        {**first, "pid": 1, "wall": first["wall"] + 0.01},  # a second process of the same lease
        {**first, "pid": 1, "wall": first["wall"] + 9.0, "what": "clash", "lock": "job-1"},
        {**first, "job": last.job, "wall": 0.0},  # before what it needs had ended
    ]
    with chaos.diary.open("a") as diary:
        diary.writelines(json.dumps(line) + "\n" for line in said)
    with chaos.daemon.log.open("a") as log:
        log.write("Traceback (most recent call last):\n")


@pytest.mark.slow
def test_workers_outlive_the_daemon_and_are_adopted(start_daemon, start_runner, tmp_path, diary) -> None:
    daemon: DaemonProcess = start_daemon()
    start_runner()
    jobs = Jobs(daemon.client())
    two = [jobs.submit(f"job{i}", *script(tmp_path, 6.0)) for i in range(2)]
    until(lambda: sum(line["what"] == "step" for line in diary()) > 4)
    supervisors = until(lambda: all((found := {lease: registered(daemon.home, lease) for lease in (1, 2)}).values()) and found)
    daemon.kill()
    seen = len(diary())
    until(lambda: len(diary()) > seen + 4)  # they train on while there is no daemon
    assert all(alive(process) for process in supervisors.values())
    jobs = Jobs(daemon.start())
    assert [jobs.ended(job)["state"] for job in two] == ["completed"] * 2
    assert [line["what"] for line in diary()].count("begin") == 2
    assert jobs.sql("SELECT id, attempts, preemptions, failures FROM jobs ORDER BY id") == [(two[0], 1, 0, 0), (two[1], 1, 0, 0)]
    assert dict(jobs.sql("SELECT lease_id, pid FROM workers")) == {lease: process.pid for lease, process in supervisors.items()}
    assert jobs.sql("SELECT lease_id, count(*), max(step) FROM metrics WHERE name = 'loss' GROUP BY 1 ORDER BY 1") == [
        (1, 60, 60),
        (2, 60, 60),
    ]


@pytest.mark.slow
@pytest.mark.nightly  # so does one in test_agent.py
def test_a_killed_agent_leaves_its_jobs_to_the_next_one(start_daemon, start_runner, tmp_path, diary) -> None:
    daemon: DaemonProcess = start_daemon()
    runner: RunnerProcess = start_runner()
    jobs = Jobs(daemon.client())
    job = jobs.submit("job", *script(tmp_path, 5.0))
    until(lambda: sum(line["what"] == "step" for line in diary()) > 2)
    supervisor = registered(daemon.home, 1)
    runner.kill()
    seen = len(diary())
    until(lambda: len(diary()) > seen + 4)
    runner.start()
    assert jobs.ended(job)["attempts"] == 1 and jobs.state(job) == "completed"
    assert jobs.sql("SELECT pid FROM workers") == [(supervisor.pid,)] and [line["what"] for line in diary()].count("begin") == 1
    assert jobs.sql("SELECT count(*), count(DISTINCT step), max(step) FROM metrics WHERE name = 'loss'") == [(50, 50, 50)]


def test_every_acknowledged_submission_survives_once(start_daemon) -> None:
    daemon: DaemonProcess = start_daemon()
    acknowledged: dict[str, int] = {}
    begun = threading.Event()

    def submit(client: int) -> None:
        connection = daemon.client()
        for number in range(10_000):
            key = f"{client}-{number}"
            job = {"name": f"j{key}", "idempotency_key": key, "command": ["true"]}
            try:
                acknowledged[key] = connection.post("/v1/jobs", {"jobs": [job], **BODY})["jobs"][0]["id"]
            except Unreachable:
                return
            if number == 10:
                begun.set()

    clients = [threading.Thread(target=submit, args=(client,)) for client in range(4)]
    for client in clients:
        client.start()
    assert begun.wait(patient(60))
    time.sleep(0.2)
    daemon.kill()
    for client in clients:
        client.join(patient(30))
    jobs = Jobs(daemon.start())
    there = dict(jobs.sql("SELECT idempotency_key, id FROM jobs"))
    assert acknowledged.items() <= there.items() and len(there) <= len(acknowledged) + len(clients)
    again = [{"name": f"j{key}", "idempotency_key": key, "command": ["true"]} for key in acknowledged]
    answers = jobs.client.post("/v1/jobs", {"jobs": again, **BODY})["jobs"]
    assert [row["id"] for row in answers] == list(acknowledged.values()) and all(row["existing"] for row in answers)
    assert jobs.sql("SELECT count(*), count(DISTINCT idempotency_key) FROM jobs") == [(len(there), len(there))]


@pytest.mark.slow
@pytest.mark.nightly  # of a store: test_store.py; of a copied file: test_pains.py
def test_reopen_close_reopen_look_up_and_write(start_daemon) -> None:
    """The sequence with which DuckDB before 2.0 lost index entries (duckdb#23645), twice over."""
    daemon: DaemonProcess = start_daemon()
    reopen = [sys.executable, str(SCRIPT.with_name("chaos_reopen.py")), str(daemon.home.database)]
    for turn in range(2):
        jobs = Jobs(daemon.client())
        first = jobs.submit_all(*({"name": f"j{turn}-{i}", "command": ["true"]} for i in range(50)))[0]
        for number in range(10):
            jobs.act("priority", first + number, priority=number)
            jobs.act("cancel", first + 20 + number)
        daemon.kill()
        reopened = subprocess.run(reopen, capture_output=True, text=True, check=False)
        assert (reopened.returncode, reopened.stdout) == (0, ""), reopened.stderr
        daemon.start()
    assert daemon.stop() == 0
    with duckdb.connect(str(daemon.home.database), read_only=True) as con:
        assert lost_keys(con) == []
        assert con.execute("SELECT state, count(*) FROM jobs GROUP BY 1 ORDER BY 1").fetchall() == [("cancelled", 20), ("pending", 80)]


def test_a_daemon_killed_while_it_creates_its_database_comes_up_later(home: Home) -> None:
    daemon = DaemonProcess(home)
    try:
        for pause in (0.0, 0.005, 0.05, 0.2):
            daemon.launch()
            until(home.database.exists)
            time.sleep(pause)
            daemon.kill()
        client = daemon.start()
        assert Jobs(client).submit("job", "true") == 1
        client.close()
        assert daemon.stop() == 0
    finally:
        daemon.end()


@pytest.mark.slow
def test_training_resumes_to_the_same_result_after_kill_of_supervisor_and_worker(start_daemon, start_runner) -> None:
    daemon: DaemonProcess = start_daemon()
    start_runner()
    jobs = Jobs(daemon.client())

    def training(name: str, step_ms: float) -> int:
        params = {"step_ms": step_ms, "checkpoint_every": 5, "seed": 5}
        return jobs.submit(name, recipe="toy", params=params, stop={"iterations": 30})

    undisturbed, struck = training("undisturbed", 50.0), training("struck", 200.0)  # which is struck long before its end
    until(lambda: jobs.sql(f"SELECT 1 FROM progress WHERE job_id = {struck} AND checkpoint_step >= 5 AND step > 6"))
    (lease,) = jobs.sql(f"SELECT lease_id FROM jobs WHERE id = {struck}")[0]
    supervisor = registered(daemon.home, lease)
    (worker,) = processes.descendants(supervisor.pid, processes.table())
    assert processes.send(supervisor, signal.SIGKILL) and processes.send(worker.process, signal.SIGKILL)
    assert [jobs.ended(job)["state"] for job in (undisturbed, struck)] == ["completed"] * 2
    ((outcome, message),) = jobs.sql(f"SELECT outcome, message FROM leases WHERE id = {lease}")
    assert outcome == "lost" and "goes on from its last checkpoint" in message
    assert jobs.sql(f"SELECT attempts, failures FROM jobs WHERE id = {struck}") == [(2, 0)]
    ((resumed,),) = jobs.sql(f"SELECT min(step) FROM metrics WHERE job_id = {struck} AND lease_id > {lease}")
    assert resumed > 5  # from the checkpoint, not from the start
    losses = "SELECT name, step, max_by(value, lease_id) FROM metrics WHERE job_id = {} AND step > 5 GROUP BY ALL ORDER BY ALL"
    assert jobs.sql(losses.format(undisturbed)) == jobs.sql(losses.format(struck))


def test_a_cancellation_that_overtakes_the_start_ends_the_job_and_leaves_the_runner_at_work(start_daemon, start_runner) -> None:
    """The lease is told to stop before any runner has taken it up: what the runner then reports of it is old news."""
    daemon: DaemonProcess = start_daemon()
    runner: RunnerProcess = start_runner(slots=1)
    jobs = Jobs(daemon.client())
    runner.kill()
    job = jobs.submit("overtaken", "sleep", "60")
    until(lambda: jobs.state(job) == "assigned")
    jobs.act("cancel", job)
    assert jobs.state(job) == "suspending"
    runner.start()
    assert jobs.ended(job)["state"] == "cancelled"
    assert jobs.ended(jobs.submit("next", "true"))["state"] == "completed"


def test_a_supervisor_killed_before_it_has_started_anything_costs_the_job_no_attempt(home: Home) -> None:
    spec = {"name": "job", "command": ["true"]}
    assignment = Assignment(lease=1, job=1, attempt=1, spec=spec, gpus=["here/cpu0"], world_size=1)
    run = Run.take_up(RunDir(home.path, 1, 1), assignment, "here")
    run.supervisor = subprocess.Popen(["sleep", "60"])
    run.supervisor.kill()
    run.supervisor.wait()
    run.look()
    assert run.exit["outcome"] == "lost" and "killed before it had started anything" in run.exit["message"]


def test_a_job_that_comes_and_goes_between_two_looks_at_its_directory_has_run(home: Home) -> None:
    assignment = Assignment(lease=1, job=1, attempt=1, spec={"name": "job", "command": ["true"]}, gpus=["here/cpu0"], world_size=1)
    run = Run.take_up(RunDir(home.path, 1, 1), assignment, "here")
    own = processes.myself()

    class Supervisor(subprocess.Popen[bytes]):
        def __init__(self) -> None:
            """Nothing is started."""

        def __del__(self) -> None:
            """So nothing is to be waited for."""

        def poll(self) -> int | None:
            registered = {"pid": own.pid, "started": own.started, "boot_id": boot_id()}
            (run.dir.path / "supervisor.json").write_text(json.dumps(registered))
            write_exit(run.dir.path, outcome="completed", message="", survivors=[])
            return 0

    run.supervisor = Supervisor()
    run.look()
    assert run.exit["outcome"] == "completed" and run.identity == own


def test_a_supervisor_carries_the_tag_of_its_lease(start_daemon, start_runner, tmp_path, diary) -> None:
    """A worker that is forked, and not yet itself, has its supervisor's environment: without the tag a kill in between would miss it."""
    daemon: DaemonProcess = start_daemon()
    start_runner()
    jobs = Jobs(daemon.client())
    job = jobs.submit("job", *script(tmp_path, 30.0))
    until(diary)
    supervisor = registered(daemon.home, 1)
    assert supervisor in processes.tagged(RunDir(daemon.home.path, job, 1).tag)


@pytest.mark.slow
def test_what_the_nodes_of_a_gang_report_is_not_taken_for_one(start_daemon, start_runner, tmp_path, diary) -> None:
    """A command that brings no launcher of its own runs once a node, with no rank to tell the two apart."""
    daemon: DaemonProcess = start_daemon()
    for node in ("a", "b"):
        start_runner(node, 1)
    jobs = Jobs(daemon.client())
    job = jobs.submit("wide", *script(tmp_path, 0.5), gpus_min=2, gpus_max=2)
    assert jobs.ended(job)["state"] == "completed"
    assert jobs.sql("SELECT rank, count(*), max(step) FROM metrics GROUP BY 1 ORDER BY 1") == [(0, 5, 5), (1, 5, 5)]


def test_a_second_daemon_is_refused_and_the_first_goes_on(start_daemon, home: Home) -> None:
    first: DaemonProcess = start_daemon()
    second = subprocess.run(first.command, capture_output=True, text=True, check=False, timeout=patient(60))
    assert second.returncode == 4
    assert second.stderr == f"stoker: error: {home.path}: a daemon is already running here (pid {first.pid})\n"
    assert first.client().get("/v1/status")["pid"] == first.pid


@pytest.mark.slow
def test_a_clean_stop_checkpoints_and_its_jobs_go_on(start_daemon, start_runner, tmp_path, diary) -> None:
    daemon: DaemonProcess = start_daemon()
    start_runner()
    jobs = Jobs(daemon.client())
    job = jobs.submit("job", *script(tmp_path, 3.0))
    until(lambda: sum(line["what"] == "step" for line in diary()) > 2)
    assert daemon.stop() == 0
    assert not home_wal(daemon.home).exists() and not daemon.home.socket.exists()
    assert "Traceback" not in daemon.said()
    jobs = Jobs(daemon.start())
    row = jobs.ended(job)
    assert (row["state"], row["attempts"]) == ("completed", 1) and [line["what"] for line in diary()].count("begin") == 1


def home_wal(home: Home) -> Path:
    return home.database.with_name(home.database.name + ".wal")

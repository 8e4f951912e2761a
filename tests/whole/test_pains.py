"""The fifteen pains that people have with schedulers and queues, one test each at least, on real processes.

The lessons are quoted from reports against other tools; where a pain has its thorough test elsewhere, the docstring says where.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from apscheduler.events import EVENT_JOB_MAX_INSTANCES
from e2e import DaemonProcess, Jobs, RunnerProcess, command, end_workers, until
from stoker.engine import tasks
from stoker.engine.client import Client
from stoker.engine.errors import StoreError
from stoker.engine.home import Home
from stoker.engine.identity import Process, alive, stat
from stoker.engine.store.store import Store, self_check
from stoker.runners.host import agent as agents
from stoker.runners.host.gpus import NvmlGpus
from stoker.runners.lease import processes
from test_devices import GIB, FakeNvml
from waiting import patient

pytestmark = pytest.mark.xdist_group("pains")

CONFIG = """
[policy]
interval = 0.2
[guards]
min_run_time = 0
max_preemptions = 2
cooldown = 0.5
[runners]
silent_after = 6
telemetry_interval = 0.4
"""


class Fleet:
    """A daemon, a runner of two slots in pool `default`, and one of two made-up GPUs in pool `gpus`, whose jobs run for real."""

    def __init__(self, home: Home) -> None:
        self.home = home
        home.config.write_text(CONFIG)
        self.daemon = DaemonProcess(home)
        self.client = self.daemon.start()
        self.jobs = Jobs(self.client)
        self.runner = RunnerProcess(home)
        self.runner.start()
        self.nvml = FakeNvml()
        options = agents.Options(home=home.path, node="gpu-host", pool="gpus")
        self.connections: list[Client] = []
        self.agent = agents.Agent(options, self.connect, NvmlGpus(self.nvml))
        self.thread = threading.Thread(target=self.agent.run, name="agent")
        self.thread.start()
        until(lambda: self.states().get("gpu-host") == "up")

    def connect(self) -> Client:
        self.connections.append(self.daemon.client())
        return self.connections[-1]

    def states(self) -> dict[str, str]:
        return {row["id"]: row["state"] for row in self.client.get("/v1/runners")["runners"]}

    def clear(self) -> None:
        """Cancel what has not ended, and wait until every slot is free."""
        unfinished = "SELECT id FROM jobs WHERE state NOT IN ('completed', 'failed', 'cancelled')"
        for (job,) in self.jobs.sql(unfinished):
            self.jobs.act("cancel", job)
        until(lambda: not self.jobs.sql(unfinished))

    def end(self) -> None:
        self.clear()
        self.client.close()
        self.agent.leave()
        self.thread.join(patient(20))
        for connection in self.connections:
            connection.close()
        self.runner.end()
        end_workers(self.home)
        self.daemon.end()


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    os.environ["OMP_NUM_THREADS"] = "1"
    path = Path(tempfile.mkdtemp(prefix="stoker-"))
    settle, agents._SETTLE = agents._SETTLE, 0.3  # seconds that a GPU gets to give its memory back
    running = Fleet(Home(path))
    yield running
    running.end()
    agents._SETTLE = settle
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def jobs(fleet: Fleet) -> Iterator[Jobs]:
    """Jobs of the fleet; what a test leaves unfinished is cancelled, so that the next one finds every slot free."""
    yield fleet.jobs
    fleet.clear()


def busy(jobs: Jobs) -> int:
    return sum(row["busy"] for row in jobs.client.get("/v1/runners")["runners"])


def worker_of(jobs: Jobs, job: int, program: str = "sleep") -> tuple[Process, Process]:
    """Supervisor and main process of a running job, once that is the program: while it becomes it, it shows no tag to end it by."""
    run = until(lambda: jobs.state(job) == "running" and jobs.run_dir(job))
    directory = agents.RunDir(run.parents[2], job, int(run.name[4:]))
    registered = until(lambda: directory.read("supervisor.json"))
    supervisor = Process(registered["pid"], registered["started"])
    children = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children")
    child = stat(int(until(lambda: children.read_text().split())[0]))
    assert child is not None
    until(lambda: processes.command(child.pid) == program)
    until(lambda: child.process in processes.tagged(directory.tag))
    return supervisor, child.process


def processes_die(*found: Process) -> None:
    until(lambda: not any(alive(process) for process in found))


# -- 1 ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_pain_01_a_silent_but_living_runner_is_suspect_and_its_job_does_not_run_twice(fleet: Fleet, jobs: Jobs) -> None:
    """'Rescue by elapsed time alone re-ran live jobs nightly' (hexpm PR#1825): silence is shown, nothing is started elsewhere."""
    job = jobs.shell("patient", "while [ ! -e go ]; do sleep 0.05; done; echo ran >> ran", workdir=tempfile.mkdtemp(dir=fleet.home.path))
    _, worker = worker_of(jobs, job, "sh")
    os.kill(fleet.runner.pid, signal.SIGSTOP)
    try:
        until(lambda: fleet.states()["here"] == "suspect")
        waiting = jobs.shell("elsewhere", "true")
        until(lambda: jobs.waits(waiting))  # a tick has passed: it is not given the silent runner's free slot
        assert alive(worker) and jobs.state(job) == "running" and jobs.show(job)["attempts"] == 1
        assert jobs.show(waiting)["attempts"] == 0
        # Nor can a person declare it dead by mistake: its process is seen to live.
        said = command(fleet.home, "runner", "forget", "here")
        assert said.code == 4 and said.line.endswith(
            f"runner here: its process {fleet.runner.pid} is alive on this host, and no job may run twice; "
            f"'stoker runner stop here --now' ends it, if not 'kill {fleet.runner.pid}'"
        )
    finally:
        os.kill(fleet.runner.pid, signal.SIGCONT)
    until(lambda: fleet.states()["here"] == "up")
    workdir = Path(jobs.show(job)["spec"]["workdir"])
    (workdir / "go").touch()
    assert jobs.ended(job)["attempts"] == 1 and jobs.ended(waiting)["state"] == "completed"
    assert (workdir / "ran").read_text() == "ran\n"
    changes = [(event["after"], event["reason"]) for event in jobs.events("node.state") if event["node_id"] == "here"]
    assert [state for state, _ in changes[-2:]] == ["suspect", "up"] and "may be running" in changes[-2][1]


def test_pain_01_a_dead_worker_frees_its_slot_and_its_job_goes_on(jobs: Jobs) -> None:
    """'Jobs stay running after their worker died; slots leak' (Prefect #7239, Oban #603, River #682)."""
    job = jobs.shell("phoenix", "[ $STOKER_RESUME_COUNT -gt 0 ] || exec sleep 600", gpus_min=2, gpus_max=2)
    supervisor, worker = worker_of(jobs, job)
    os.kill(supervisor.pid, signal.SIGKILL)
    ended = jobs.ended(job)
    assert (ended["state"], ended["attempts"], ended["failures"]) == ("completed", 2, 0)
    processes_die(worker)  # the worker whose supervisor died did not live on beside the new one
    assert jobs.sql(f"SELECT outcome FROM leases WHERE job_id = {job} ORDER BY id") == [("lost",), ("completed",)]
    until(lambda: busy(jobs) == 0)


# -- 2 ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.nightly  # many who write and read at once: test_api_load.py, test_adhoc.py
def test_pain_02_sixteen_clients_at_once_see_no_lock(fleet: Fleet, jobs: Jobs) -> None:
    """'database is locked' (Prefect #10188, SkyPilot #1441, Huey #445): one writer, and readers that never wait for it."""

    def work(client_number: int) -> list[int]:
        with closing(fleet.daemon.client()) as client:
            mine = Jobs(client)
            acknowledged = []
            for number in range(3):
                acknowledged.append(mine.submit(f"c{client_number}-{number}", "true", hold=True))
                mine.act("priority", acknowledged[-1], priority=number)
                client.get("/v1/jobs", limit=5)
                assert mine.sql(f"SELECT priority FROM jobs WHERE id = {acknowledged[-1]}") == [(number,)], "what is acknowledged is seen"
            for job in acknowledged:
                mine.act("cancel", job)
            return acknowledged

    with ThreadPoolExecutor(16) as pool:
        numbers = sorted(number for found in pool.map(work, range(16)) for number in found)
    assert len(set(numbers)) == 48
    assert sorted(row[0] for row in jobs.sql("SELECT id FROM jobs WHERE regexp_matches(name, '^c\\d+-\\d$')")) == numbers


# -- 3 ---------------------------------------------------------------------------------------------------------------------


class Forgetful:
    """A connection whose index has lost its entries, as after duckdb#23645: scans see the rows, lookups do not."""

    def __init__(self, con: Any) -> None:
        self.con = con

    def execute(self, statement: str, *parameters: Any) -> Any:
        return self.con.execute(statement + (" AND false" if "WHERE" in statement else ""), *parameters)


def test_pain_03_a_lost_index_entry_is_seen_at_the_start(store: Store) -> None:
    """'Index corruption: lookups by an indexed column silently returned 0 rows' (duckdb#23645): compare a scan with a lookup."""
    store.write(_remember, "something")
    with store.read() as con:
        self_check(con)
        with pytest.raises(StoreError, match="the index of table events has lost entries: restore the newest backup"):
            self_check(Forgetful(con))  # type: ignore[arg-type]


def _remember(tx: Any, batch: Any) -> list[None]:
    for words in batch:
        tx.event("test.said", "test", reason=words)
    return [None] * len(batch)


@pytest.mark.slow
def test_pain_03_scans_and_lookups_agree_after_kill_reopen_close_reopen(fleet: Fleet, jobs: Jobs) -> None:
    """The same from outside, for every key of a file that was in use when it was copied, as kill -9 leaves it.

    Many rounds of it are in the crash test; the writes after it in test_store.py (kill, reopen, close, reopen, look up, write).
    """
    for job in [jobs.shell(f"used-{n}", "true") for n in range(4)]:
        jobs.ended(job)
    with tempfile.TemporaryDirectory(prefix="stoker-") as folder:
        copy = Path(folder) / "copy.duckdb"
        for suffix in (".wal", ""):  # the log first: what is checkpointed between the two is in the file
            source = Path(f"{fleet.home.database}{suffix}")
            if source.exists():
                shutil.copy(source, f"{copy}{suffix}")
        Store.open(copy).close()
        reopened = Store.open(copy)
        with reopened.read() as con:
            keys = con.execute(
                "SELECT table_name, constraint_column_names FROM duckdb_constraints() WHERE constraint_type = 'PRIMARY KEY'"
            ).fetchall()
            assert len(keys) > 8
            for table, columns in keys:
                match = " AND ".join(f'"{column}" = ?' for column in columns)
                names = ", ".join(f'"{column}"' for column in columns)
                for key in con.execute(f'SELECT {names} FROM "{table}"').fetchall():
                    found = con.execute(f'SELECT count(*) FROM "{table}" WHERE {match}', list(key)).fetchall()
                    assert found == [(1,)], (table, key)
        reopened.close()


# -- 4 ---------------------------------------------------------------------------------------------------------------------


def test_pain_04_a_grandchild_that_hides_is_ended_with_its_job(jobs: Jobs) -> None:
    """'126 survivors, reparented to init, held 7 of 8 GPUs' (EgoVerse PR#682): a new session is no hiding place."""
    hide = "import os, subprocess; p = subprocess.Popen(['sleep', '600'], start_new_session=True, env={}); print(p.pid)"
    job = jobs.python("leaky", hide)
    assert jobs.ended(job)["state"] == "completed"
    grandchild = int(jobs.client.get(f"/v1/jobs/{job}/logs")["text"])
    until(lambda: (found := stat(grandchild)) is None or found.dead)
    until(lambda: busy(jobs) == 0)


def test_pain_04_a_gpu_is_dirty_until_its_memory_is_back(fleet: Fleet, jobs: Jobs) -> None:
    """'blox #5 starts the next job before the last freed its GPU': free is what NVML shows, and who holds it stands in a table."""
    gate = Path(tempfile.mkdtemp(dir=fleet.home.path)) / "go"
    first = jobs.shell("leaves-memory", f"while [ ! -e {gate} ]; do sleep 0.05; done", pool="gpus", gpus_min=2, gpus_max=2)
    until(lambda: jobs.state(first) == "running")
    for gpu in fleet.nvml.gpus:
        gpu.used, gpu.pids = 9 * GIB, [os.getpid()]
    gate.touch()
    jobs.ended(first)
    query = "SELECT health, note FROM gpus WHERE pool = 'gpus'"
    rows = until(lambda: (found := jobs.sql(query)) and all(health == "dirty" for health, _ in found) and found)
    assert len(rows) == 2 and all("9.0 GiB of its memory are in use" in note for _, note in rows)
    second = jobs.shell("waits-for-memory", "echo $CUDA_VISIBLE_DEVICES", pool="gpus")
    until(lambda: jobs.waits(second) == "resources")
    assert jobs.show(second)["attempts"] == 0
    for gpu in fleet.nvml.gpus:
        gpu.used, gpu.pids = GIB // 2, []
    assert jobs.ended(second)["state"] == "completed"
    health = [event["after"] for event in jobs.events("gpu.health")]
    assert health[-4:] == ["dirty", "dirty", "ok", "ok"]


# -- 5 ---------------------------------------------------------------------------------------------------------------------


def test_pain_05_out_of_memory_is_recognised_and_never_retried_for_ever(jobs: Jobs) -> None:
    """'Job died 45 minutes in' again and again (gflow PR#208): outcome oom with its remedy, one retry at most."""
    script = "import sys; sys.exit('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB')"
    job = jobs.python("greedy", script, retries={"limit": 5, "backoff": 0.05})
    ended = jobs.ended(job)
    assert (ended["state"], ended["outcome"], ended["attempts"]) == ("failed", "oom", 2)
    assert "smaller batch" in ended["state_reason"] and "gpu_memory" in ended["state_reason"]


# -- 6 ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.nightly  # the budget of each policy: test_plan_guards.py, test_policies.py
def test_pain_06_preemptions_of_a_job_are_bounded_and_everything_ends(fleet: Fleet, jobs: Jobs) -> None:
    """'Two 1-GPU jobs killed eleven, 79.7 node-hours' (ROCm/spur #888): a budget of preemptions that no policy can override."""
    gate = Path(tempfile.mkdtemp(dir=fleet.home.path)) / "go"
    victim = jobs.shell("victim", f"while [ ! -e {gate} ]; do sleep 0.05; done", gpus_min=2, gpus_max=2)
    urgent = []
    for number in range(4):
        until(lambda: jobs.state(victim) == "running")
        urgent.append(jobs.shell(f"urgent-{number}", "true", priority=10))
        if number < 2:
            jobs.ended(urgent[-1])
    # The budget of two is spent: the others wait, however urgent, until the victim has ended by itself.
    for job in urgent[2:]:
        until(lambda job=job: jobs.waits(job))
    assert [jobs.state(job) for job in urgent[2:]] == ["pending", "pending"] and jobs.state(victim) == "running"
    gate.touch()
    ended = jobs.ended(victim)
    assert (ended["state"], ended["preemptions"], ended["attempts"]) == ("completed", 2, 3)
    assert [jobs.ended(job)["state"] for job in urgent] == ["completed"] * 4
    stops = jobs.sql(f"SELECT stop_reason, stop_for, outcome FROM leases WHERE job_id = {victim} AND stop_reason IS NOT NULL ORDER BY id")
    assert stops == [("preempted", job, "preempted") for job in urgent[:2]], "evicted only for one who then started"


# -- 7 ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.nightly  # a training that is stopped in each of its phases: test_training.py; a job held and released: test_loading_live.py
def test_pain_07_a_preempted_job_ends_as_if_it_had_never_been_stopped(jobs: Jobs) -> None:
    """'SIGTERM save fired 0 of 6' (spd #741): through the daemon, a job that was stopped has the losses of its undisturbed twin.

    That the signal is obeyed in warm-up, step, evaluation and loader wait, and leads to exit code 75 and bit-identical
    weights, is tested phase by phase in test_training.py.
    """
    recipe: dict[str, Any] = {
        "recipe": "toy",
        "stop": {"iterations": 60},
        "params": {"step_ms": 100.0, "load_ms": 5.0, "eval_ms": 50.0, "eval_every": 20, "checkpoint_every": 40, "seed": 7},
    }
    slower = recipe | {"params": recipe["params"] | {"step_ms": 250.0}}  # so that it is stopped long before its end
    stopped, twin = jobs.submit("stopped", **slower), jobs.submit("twin", **recipe)
    steps = f"SELECT coalesce(max(step), 0) FROM metrics WHERE job_id = {stopped} AND name = 'loss'"
    until(lambda: jobs.sql(steps)[0][0] >= 3)
    jobs.act("hold", stopped)
    until(lambda: jobs.state(stopped) == "submitted")
    at = jobs.sql(steps)[0][0]
    assert 3 <= at < 60
    jobs.act("release", stopped)
    assert jobs.ended(twin)["state"] == jobs.ended(stopped)["state"] == "completed"
    leases = jobs.sql(f"SELECT outcome, exit_code FROM leases WHERE job_id = {stopped} ORDER BY id")
    assert leases == [("preempted", 75), ("completed", 0)]
    trace = "SELECT name, step, value FROM metrics WHERE job_id = {} AND name IN ('loss', 'eval_loss') ORDER BY name, step"
    found, expected = jobs.sql(trace.format(stopped)), jobs.sql(trace.format(twin))
    assert len(expected) == 60 + 3 and found == expected, "each step once, each value to the last bit"


# -- 8 ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_pain_08_every_waiting_job_has_a_reason_and_every_reason_appears(fleet: Fleet, jobs: Jobs, request: pytest.FixtureRequest) -> None:
    """'Why is it waiting?' (kueue #168, snakepit #155): a row for each waiting job, in a word and in a sentence."""
    fleet.client.post("/v1/policy", {"policy": "fifo"})  # the priority policy has nobody wait behind one that does not fit
    lab, attic = (RunnerProcess(fleet.home, pool, 1, "--pool", pool, "--slot-memory", str(1 << 46)) for pool in ("lab", "attic"))
    try:
        lab.start(), attic.start()
        expected = {jobs.shell("orphan", "true", pool="lab", hold=True): "no-gpus"}
        giant = jobs.shell("giant", "true", pool="attic", gpu_memory=1 << 45, hold=True)
        for pool in ("lab", "attic"):
            fleet.client.post(f"/v1/runners/{pool}/stop")
            until(lambda pool=pool: fleet.states()[pool] == "stopped")
    finally:
        lab.end(), attic.end()
    smaller = RunnerProcess(fleet.home, "attic", 1, "--pool", "attic", "--slot-memory", str(1 << 30))
    request.addfinalizer(smaller.end)
    smaller.start()
    for job in (giant, *expected):
        jobs.act("release", job)
    failing = jobs.shell("failing", "exit 1", retries={"limit": 3, "backoff": 3600.0, "max_backoff": 3600.0})
    until(lambda: jobs.show(failing)["failures"] == 1)
    holder = jobs.shell("holder", "exec sleep 600", gpus_min=2, gpus_max=2, priority=9)
    until(lambda: jobs.state(holder) == "running")
    wide = jobs.shell("wide", "true", gpus_min=2, gpus_max=2)
    sweep = [{"name": f"sweep[{n}]", "command": ["true"], "array_index": n, "array_size": 2, "array_cap": 1} for n in range(2)]
    first, second = jobs.submit_all(*sweep)
    expected |= {
        giant: "impossible",
        failing: "backoff",
        wide: "resources",
        jobs.shell("narrow", "true"): "behind",
        jobs.shell("held", "true", hold=True): "held",
        jobs.shell("later", "true", after=[{"job": "holder"}]): "dependency",
        first: "behind",
        second: "cap",
    }
    for job, code in expected.items():
        until(lambda job=job, code=code: jobs.waits(job) == code, says=lambda job=job: jobs.waits(job))
        explained = fleet.client.get(f"/v1/jobs/{job}/explain")
        assert explained["waiting"]["reason"] in explained["summary"]
    # None is without: in the table and in the view that people read.
    query = (
        "SELECT count(*) FROM jobs WHERE state IN ('submitted', 'pending') AND id NOT IN (SELECT job_id FROM waiting WHERE reason <> '')"
    )
    assert jobs.sql(query) == [(0,)]
    assert jobs.sql("SELECT count(*) FROM queue WHERE reason IS NULL") == [(0,)]
    fleet.client.post("/v1/policy", {"policy": "priority"})


# -- 9 ---------------------------------------------------------------------------------------------------------------------


def test_pain_09_an_array_is_one_row(fleet: Fleet, jobs: Jobs) -> None:
    """'Arrays flood the list' (SkyPilot #9461): collapsed by default, every task on request."""
    said = command(
        fleet.home, "submit", "--hold", "--name", "flood", "--array", "lr=" + ",".join(map(str, range(40))), "--", "echo", "{lr}"
    )
    assert said.code == 0, said.err
    rows = [row for row in fleet.client.get("/v1/jobs")["jobs"] if row["name"].startswith("flood")]
    assert len(rows) == 1
    assert len([row for row in fleet.client.get("/v1/jobs", arrays=1)["jobs"] if row["name"].startswith("flood")]) == 40
    fleet.client.post(f"/v1/jobs/{rows[0]['id']}/cancel", {"array": True})


# -- 10 --------------------------------------------------------------------------------------------------------------------


def test_pain_10_what_runs_is_what_was_submitted(fleet: Fleet, jobs: Jobs, tmp_path: Path) -> None:
    """'Code changed between submit and start' (submitit PR#1598): the copied tree runs, commit and changes are stored."""

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    script = tmp_path / "train.py"
    script.write_text("print('committed')\n")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    script.write_text("print('as submitted')\n")
    said = command(fleet.home, "submit", "--snapshot", "--hold", "--name", "frozen", "--", sys.executable, "train.py", cwd=tmp_path)
    assert said.code == 0, said.err
    script.write_text("print('changed since')\n")
    jobs.act("release", "frozen")
    jobs.ended("frozen")
    assert fleet.client.get("/v1/jobs/frozen/logs")["text"] == "as submitted\n"
    provenance = fleet.client.get("/v1/jobs/frozen")["provenance"]
    assert provenance["git_commit"] == git("rev-parse", "HEAD")
    assert "-print('committed')\n+print('as submitted')" in provenance["git_diff"]
    assert "--snapshot" in str(provenance["argv"])


# -- 11 --------------------------------------------------------------------------------------------------------------------


def test_pain_11_gpus_are_named_by_uuid_everywhere(fleet: Fleet, jobs: Jobs) -> None:
    """'GPU numbering' (gpustack#1633, task-spooler's misspelt PCI_BUS_I): UUIDs in the tables and in CUDA_VISIBLE_DEVICES."""
    job = jobs.shell("which", "echo $CUDA_VISIBLE_DEVICES", pool="gpus", gpus_min=2, gpus_max=2)
    jobs.ended(job)
    seen = fleet.client.get(f"/v1/jobs/{job}/logs")["text"].strip().split(",")
    leased = [gpu for (gpu,) in jobs.sql(f"SELECT gpu_id FROM lease_gpus JOIN leases l ON l.id = lease_id WHERE l.job_id = {job}")]
    assert seen == sorted(leased) == [gpu.uuid for gpu in fleet.nvml.gpus]
    job = jobs.shell("none", "echo [$CUDA_VISIBLE_DEVICES]")  # on a slot: no GPU of the host is to be seen
    jobs.ended(job)
    assert fleet.client.get(f"/v1/jobs/{job}/logs")["text"] == "[]\n"


# -- 12 --------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.nightly  # whatever is killed, in rounds under load: test_crash.py
def test_pain_12_after_everything_was_killed_all_slots_are_free_again(
    home: Home, start_daemon: Callable[..., DaemonProcess], start_runner: Callable[..., RunnerProcess]
) -> None:
    """'State that lies' (dstack #1551, gpustack #3046): who holds a slot is derived from live leases, never counted."""
    daemon, runner = start_daemon(), start_runner()
    with closing(daemon.client()) as client:
        jobs = Jobs(client)
        script = "[ $STOKER_RESUME_COUNT -gt 0 ] || exec sleep 600"
        both = [jobs.shell(f"job-{n}", script) for n in range(2)]
        found = [process for job in both for process in worker_of(jobs, job)]
        assert busy(jobs) == 2
    runner.kill()
    daemon.kill()
    for process in found:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    processes_die(*found)
    daemon.end()
    runner.end()
    daemon, _ = start_daemon(), start_runner()
    with closing(daemon.client()) as client:
        jobs = Jobs(client)
        assert [(jobs.ended(job)["state"], jobs.show(job)["attempts"]) for job in both] == [("completed", 2)] * 2
        until(lambda: busy(jobs) == 0)
        assert jobs.sql("SELECT count(*) FROM gpus_now WHERE job_id IS NOT NULL") == [(0,)]
        assert jobs.sql("SELECT count(*) FROM leases WHERE ended_at IS NULL") == [(0,)]
        assert jobs.ended(jobs.shell("wide", "true", gpus_min=2, gpus_max=2))["state"] == "completed"


# -- 13 --------------------------------------------------------------------------------------------------------------------


def test_pain_13_who_makes_no_progress_and_is_quiet_is_ended(jobs: Jobs) -> None:
    """'Idle or hung holders' (dstack #2374): utilisation and progress together; power too, in test_devices.py.

    Who progresses slowly, or computes and says nothing, goes on: test_agent.py.
    """
    hung = jobs.python("hung", "import stoker, time; stoker.report(step=0); time.sleep(600)", hang_after=1.0, grace=1.0)
    ended = jobs.ended(hung)
    assert (ended["state"], ended["outcome"]) == ("failed", "hang")
    assert "made no progress" in ended["state_reason"] and "the end of its log may show where" in ended["state_reason"]


# -- 14 --------------------------------------------------------------------------------------------------------------------


def test_pain_14_a_task_that_hangs_or_raises_is_on_record_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """'Skipped for ever with only a log line' (APScheduler #423, #474): each hang and each new error is told, once."""
    monkeypatch.setattr(tasks, "STUCK_AFTER", 1.0)
    told: list[tuple[str, str, str]] = []
    watched = tasks.Tasks(lambda kind, task, words: told.append((kind, task, words)))
    release = threading.Event()
    ran = {"fine": 0, "raises": 0}

    def fine() -> None:
        ran["fine"] += 1

    def raises() -> None:
        ran["raises"] += 1
        raise RuntimeError("out of\nluck" if ran["raises"] > 3 else "no luck")

    watched.start()
    watched.every("hangs", 0.05, release.wait, soon=True)
    watched.every("hangs and is due in an hour", 3600, release.wait, soon=True)
    watched.every("raises", 0.05, raises, soon=True)
    watched.every("fine", 0.05, fine, soon=True)
    until(lambda: len([kind for kind, _, _ in told if kind == "task.stuck"]) == 2)
    until(lambda: ran["fine"] > 10 and ran["raises"] > 10)
    assert {task for kind, task, _ in told if kind == "task.stuck"} == {"hangs", "hangs and is due in an hour"}
    assert [words for kind, _, words in told if kind == "task.error"] == ["RuntimeError: no luck", "RuntimeError: out of luck"]
    assert len(told) == 4, "told once, not at each run"
    assert {state.name for state in watched.states() if state.stuck} == {"hangs", "hangs and is due in an hour"}
    release.set()
    until(lambda: not any(state.stuck for state in watched.states()))
    assert watched.stop() == []


def test_pain_14_no_wake_up_is_lost_between_two_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """APScheduler skips a run while it counts the one before as running, which it does a moment longer than we do."""
    from apscheduler.executors.pool import ThreadPoolExecutor as Pool

    go, counted, runs = threading.Event(), threading.Event(), 0
    ended = Pool._run_job_success

    def late(pool: Any, *arguments: Any) -> None:
        counted.wait(60)
        ended(pool, *arguments)

    def work() -> None:
        nonlocal runs
        runs += 1
        go.wait(60)

    monkeypatch.setattr(Pool, "_run_job_success", late)
    watched = tasks.Tasks(lambda *_: None)
    watched.start()
    watched.every("hourly", 3600, work, soon=True)
    (state,) = (state for state in watched.states() if state.name == "hourly")
    until(lambda: (due := watched.next_run("hourly")) and due > time.time() + 60)  # the scheduler has done with the first run
    go.set()
    until(lambda: state.last_run and state.running_since is None)
    skipped = threading.Event()
    watched._scheduler.add_listener(lambda _: skipped.set(), EVENT_JOB_MAX_INSTANCES)
    watched.wake("hourly")
    assert skipped.wait(patient(60))
    counted.set()
    until(lambda: runs == 2)
    watched.stop()


@pytest.mark.slow
def test_pain_14_a_policy_that_hangs_stops_neither_the_others_nor_the_end(
    home: Home, start_daemon: Callable[..., DaemonProcess], start_runner: Callable[..., RunnerProcess], tmp_path: Path
) -> None:
    """The same through the daemon: another pool is served, and a clean stop ends although a thread never will."""
    (tmp_path / "hanging.py").write_text(
        "import threading\nfrom stoker.policies.fifo import Fifo\n"
        "class Hangs(Fifo):\n    def plan(self, view):\n        threading.Event().wait()\n"
    )
    daemon = start_daemon(env={"PYTHONPATH": str(tmp_path)})
    start_runner("there", 1, "--pool", "other")
    with closing(daemon.client()) as client:
        jobs = Jobs(client)
        client.post("/v1/policy", {"policy": "hanging:Hangs", "interval": 0.05, "force": True})
        waiting = jobs.shell("waits", "true")
        assert jobs.ended(jobs.shell("goes-on", "true", pool="other"))["state"] == "completed"
        assert jobs.state(waiting) == "pending"
    assert daemon.stop() == 0
    assert "left hanging: policy default" in daemon.said()


# -- 15 --------------------------------------------------------------------------------------------------------------------


def test_pain_15_the_command_line_imports_nothing_heavy() -> None:
    """'Slow CLI because torch is imported' (dbt-core#9814): not even by a command that has asked the daemon; see also test_cli.py."""
    code = (
        "import sys; from stoker.engine.cli.main import run; code = run(['--home', '/nonexistent', 'ps']);"
        "heavy = {'torch', 'duckdb', 'matplotlib', 'numpy', 'sqlglot', 'starlette', 'apscheduler', 'ortools'};"
        "print(code, sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "6 []\n"

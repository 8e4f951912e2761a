"""The clock is set: what has not ended goes on, schedules and deadlines go by the new time, and people hear of it once."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from e2e import DaemonProcess, Jobs, command, end_workers, until
from stoker.engine.client import Client
from stoker.engine.config import Config, PolicyDefault
from stoker.engine.fleet import registration as runners
from stoker.engine.home import Home
from stoker.engine.identity import boot_clock, boot_id
from stoker.engine.jobs.submission import SubmitRequest, submit
from stoker.engine.protocol import VERSION, GpuInfo, Hello, Record, Records, Report, Sample, WorkerUpdate
from stoker.engine.services import Services
from stoker.engine.spec.model import Demand, JobSpec, Provenance, Retries, Submission, Tier
from stoker.engine.store.clock import CLOCK_JUMP_SECONDS, Clock, set_since
from stoker.engine.tasks import Tasks
from stoker.runners.host.link import _by_steady_time

HELLO = Hello(
    protocol=VERSION, version="t", node="n1", host="h", boot_id="b", pid=1, pid_started=1.0, home="/h", address="localhost",
    pool="default", gpus=[GpuInfo(id=f"n1/cpu{i}", index=i, kind="cpu", name="cpu") for i in range(2)], leases=[],
)  # fmt: skip
PROVENANCE: dict[str, Any] = {"argv": [], "cwd": "/"}
BACK, FORWARD = -7200.0, 18000.0
DEADLINE = 40_000.0  #: seconds from the start


class Host:
    """What lives in a daemon's process, on a clock that the test turns; nothing of it runs by itself."""

    def __init__(self, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self.boot = home, 1000.0
        self.start = time.time()
        self.ahead = self.start - self.boot
        monkeypatch.setattr("stoker.engine.services.Clock", lambda: Clock(lambda: self.ahead, lambda: self.boot))
        self.begin()

    def begin(self) -> None:
        self.services = Services(self.home, Config(policy=PolicyDefault("fifo")))
        self.store = self.services.store
        self.store.listen(self.services._committed)
        self.services.scheduling.reload()

    def again(self) -> None:
        """Another daemon on the same tables; nothing was written at the end of this one."""
        self.store.close()
        self.begin()

    def look(self) -> None:
        self.services._look_at_clock()

    def tick(self) -> None:
        self.services.scheduling.tick("default")

    def submit(self, *specs: JobSpec) -> list[int]:
        request = SubmitRequest(Submission(jobs=list(specs), provenance=Provenance(**PROVENANCE)), "ann")
        return [row["id"] for row in self.store.write(submit, request)]

    def report(self, *workers: WorkerUpdate, **more: Any) -> None:
        self.store.write(runners.report, Report(node="n1", session=1, workers=list(workers), **more))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.store.read() as con:
            return con.execute(query).fetchall()

    def told(self) -> list[str]:
        return [row[0] for row in self.rows("SELECT reason FROM events WHERE kind = 'clock.set' ORDER BY seq")]

    def ages(self) -> list[tuple[float | None, ...]]:
        """How long ago, by the daemon's clock, each time was that has to do with what has not ended."""
        now, found = self.services.clock(), []
        for table, columns in (
            ("jobs", ("submitted_at", "state_since", "eligible_at", "first_start_at", "not_before")),
            ("leases", ("granted_at", "started_at", "expires_at", "ended_at")),
            ("workers", ("started_at", "ended_at")),
            ("progress", ("updated_at",)),
            ("nodes", ("joined_at", "last_seen")),
        ):
            for row in self.rows(f"SELECT {', '.join(f'epoch({c})' for c in columns)} FROM {table} ORDER BY 1"):
                found.append(tuple(None if at is None else round(now - at, 3) for at in row))
        return found


@pytest.fixture
def host(home: Home, database: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    made = Host(home, monkeypatch)
    yield made
    made.store.close()


@pytest.fixture
def busy(host: Host) -> Host:
    """A job of half an hour at most runs, one waits for its second try, and one for GPUs, with a deadline."""
    host.store.write(runners.hello, HELLO)
    due = Demand("strict", (Tier(host.start + DEADLINE),))
    host.submit(
        JobSpec(name="long", command=("sleep",), timeout=1800.0),
        JobSpec(name="broken", command=("false",), retries=Retries(1)),
        JobSpec(name="due", command=("true",), gpus_min=2, gpus_max=2, demand=due, estimate=60.0),
    )
    host.tick()
    host.report(*(WorkerUpdate(lease=lease, state="running", ts=host.services.clock(), pid=1, pid_started=1.0) for lease in (1, 2)))
    host.report(
        WorkerUpdate(lease=2, state="exited", ts=host.services.clock(), outcome="failed", exit_code=1),
        records=[Records(lease=1, rank=0, records=[Record(seq=1, ts=host.services.clock(), step=3)])],
    )
    host.tick()
    host.boot += 5.0
    return host


def set_by(host: Host, seconds: float) -> None:
    host.ahead += seconds


def set_while_down(host: Host, seconds: float) -> None:
    """And the daemon was killed: nothing was written."""
    host.ahead += seconds
    host.again()


@pytest.mark.parametrize("turn", [set_by, set_while_down])
@pytest.mark.parametrize("seconds", [BACK, FORWARD])
@pytest.mark.sampled(2)
def test_what_has_not_ended_goes_on_as_if_nothing_had_happened(busy: Host, seconds: float, turn: Callable[[Host, float], None]) -> None:
    before = busy.ages()
    assert any(age is not None and age < 0 for row in before for age in row), "a pause before a retry"
    turn(busy, seconds)
    busy.look()
    assert busy.services.clock() == pytest.approx(busy.ahead + busy.boot)
    assert busy.ages() == before
    assert busy.rows("SELECT epoch(deadline) FROM jobs WHERE name = 'due'") == [(pytest.approx(busy.start + DEADLINE),)]
    busy.look()
    how = "back by 2h" if seconds < 0 else "forward by 5h"
    assert busy.told() == [f"the clock was set {how}: what has not ended moves with it, deadlines and schedules stay"]
    assert busy.rows("SELECT detail ->> '$.seconds' FROM events WHERE kind = 'clock.set'") == [(str(seconds),)]
    # From here on by the boot clock alone: the retry comes after its 10 s, the end of the half hour after half an hour.
    state = "SELECT j.state, stop_reason FROM jobs j LEFT JOIN leases l ON l.id = j.lease_id WHERE name = "
    busy.boot += 4.0
    busy.look()
    busy.tick()
    assert busy.rows(f"{state} 'broken'") == [("pending", None)]
    busy.boot += 2.0
    busy.tick()
    assert busy.rows(f"{state} 'broken'") == [("assigned", None)]
    busy.boot += 1800.0 - 12.0
    busy.look()
    assert busy.rows(f"{state} 'long'") == [("running", None)]
    busy.boot += 2.0
    busy.look()
    assert busy.rows(f"{state} 'long'") == [("suspending", "timeout")]


def test_a_clock_that_is_set_right_by_less_than_a_jump_moves_nothing(busy: Host) -> None:
    before = busy.ages()
    busy.ahead -= CLOCK_JUMP_SECONDS - 0.1
    busy.look()
    assert busy.ages() == before and busy.told() == []
    busy.ahead -= 0.2
    busy.look()
    assert busy.ages() == before and len(busy.told()) == 1, "but small ones add up to one"


def test_the_machine_sleeps_and_that_is_no_jump_but_time_that_passes(busy: Host) -> None:
    busy.boot += 3600.0
    busy.look()
    assert busy.told() == []
    assert busy.rows("SELECT stop_reason FROM leases WHERE id = 1") == [("timeout",)]


@pytest.mark.parametrize("seconds", [BACK, FORWARD])
def test_what_has_ended_stays_as_it_was_recorded_and_nothing_lies_in_the_future(busy: Host, seconds: float) -> None:
    old = "SELECT epoch(submitted_at), epoch(finished_at) FROM jobs WHERE name = 'long'"
    busy.report(WorkerUpdate(lease=1, state="exited", ts=busy.services.clock(), outcome="completed", exit_code=0))
    busy.report(samples=[Sample(ts=busy.services.clock(), gpu="n1/cpu0", utilisation=0.5)])
    ((_, ended),) = busy.rows(old)
    if seconds < 0:
        busy.boot += 7210.0
        busy.look()
        (recorded,) = busy.rows(old)
        busy.submit(JobSpec(name="last", command=("true",)))
    else:
        (recorded,) = busy.rows(old)
    busy.ahead += seconds
    busy.look()
    assert busy.rows(old) == [recorded] and recorded[1] == ended
    assert busy.rows(f"SELECT count(*) FROM telemetry WHERE epoch(ts) > {busy.services.clock()}") == [(0,)]


def test_a_job_that_ended_just_before_the_clock_was_set_back_has_not_ended_in_the_future(busy: Host) -> None:
    busy.report(WorkerUpdate(lease=1, state="exited", ts=busy.services.clock(), outcome="completed", exit_code=0))
    busy.report(samples=[Sample(ts=busy.services.clock(), gpu="n1/cpu0", utilisation=0.5)])
    busy.boot += 60.0
    busy.ahead += BACK
    busy.look()
    ran = "epoch(finished_at) - epoch(first_start_at)"
    assert busy.rows(f"SELECT round({busy.services.clock()} - epoch(finished_at)), {ran} FROM jobs WHERE name = 'long'") == [(60.0, 5.0)]
    assert busy.rows(f"SELECT round({busy.services.clock()} - epoch(ts)) FROM telemetry") == [(60.0,)]


def test_how_long_a_job_waited_does_not_depend_on_how_the_clock_was_set(busy: Host) -> None:
    waited = "SELECT round(sum(seconds)) FROM job_waits WHERE name = 'broken' AND waiting"
    busy.ahead += BACK
    busy.look()
    busy.boot += 10.0
    busy.tick()
    assert busy.rows(waited) == [(15.0,)]


@pytest.mark.parametrize(
    ("known", "since_commit", "expected"),
    [
        (("here", 500.0), 10.0, 0.0),
        (("here", 7700.0), -7190.0, -7200.0),
        (("here", -17500.0), 18010.0, 18000.0),
        (("before a boot", 500.0), 3600.0, 0.0),  # nobody knows how long the machine was off
        (("before a boot", 500.0), -60.0, -60.0),  # but no commit lies in the future
        (None, 100.0, 0.0),
        (None, -100.0, -100.0),
    ],
)
def test_a_start_finds_that_the_clock_was_set_while_no_daemon_ran(known: Any, since_commit: float, expected: float) -> None:
    clock = Clock(lambda: 500.0, lambda: 1000.0)
    assert set_since(known, 1500.0 - since_commit, "here", clock) == expected


class TestTasks:
    """APScheduler goes by the time of day; here the boot clock is turned in its place, in the other direction."""

    def test_what_would_have_waited_until_the_clock_is_where_it_was_runs_on(self, turned: tuple[Tasks, list[float]]) -> None:
        tasks, ahead = turned
        ran: list[float] = []
        tasks.every("hourly", 3600.0, lambda: ran.append(1.0))
        tasks.start()
        ahead[0] -= 3600.0
        until(lambda: ran)

    @pytest.fixture
    def turned(self) -> Iterator[tuple[Tasks, list[float]]]:
        ahead = [0.0]
        tasks = Tasks(lambda *_: None, time.time, lambda: ahead[0])
        yield tasks, ahead
        tasks.stop()

    def test_what_is_due_moves(self, turned: tuple[Tasks, list[float]]) -> None:
        tasks, ahead = turned
        tasks.every("hourly", 3600.0, lambda: None)
        tasks.cron("nightly", "30 3 * * *", lambda: None)
        tasks.start()
        due = tasks.next_run("hourly") or 0.0
        nightly = until(lambda: tasks.next_run("nightly"))
        ahead[0] += FORWARD
        until(lambda: tasks.next_run("hourly") != due)
        assert tasks.next_run("hourly") == pytest.approx(due + FORWARD)
        assert tasks.next_run("nightly") == nightly and datetime.fromtimestamp(nightly, UTC).strftime("%H:%M") == "03:30"

    @pytest.mark.parametrize(
        ("expression", "ago", "left_out"),
        [
            ("* * * * *", 40.0, 0),
            ("* * * * *", 1e9, 0),
            ("0 * * * *", 300.0, 1),  # of this hour it has run
            ("0 * * * *", 3600.0, 0),
            ("0 9,10 * * *", 3000.0, 0),  # close together as they are
            ("30 3 * * *", 3600.0, None),
            ("30 3 * * *", 86000.0, 0),
        ],
    )
    def test_a_schedule_does_not_run_twice_at_one_time(self, expression: str, ago: float, left_out: int | None) -> None:
        """``ago``: seconds before its next due time at which it last ran."""
        tasks = Tasks(lambda *_: None, time.time)
        tasks.start()
        tasks.cron("plain", expression, lambda: None)
        due = tasks.next_run("plain") or 0.0
        tasks.cron("ran", expression, lambda: None, last=due - ago)
        gap = {"*": 60.0, "0": 3600.0, "3": 86400.0}[expression[0]]
        left_out = 1 if left_out is None else left_out
        assert tasks.next_run("ran") == (pytest.approx(due + left_out * gap))
        tasks.stop()


@pytest.mark.parametrize("behind", [BACK, FORWARD, 0.2])
def test_the_clock_of_another_host_does_not_matter(host: Host, behind: float) -> None:
    host.store.write(runners.hello, HELLO)
    host.submit(JobSpec(name="long", command=("sleep",), timeout=1800.0))
    host.tick()
    host.boot += 30.0
    before = host.services.clock()
    theirs = before - behind  # 20 s ago by their clock it began, and a sample was taken
    host.report(
        WorkerUpdate(lease=1, state="running", ts=theirs - 20.0, pid=1, pid_started=1.0),
        records=[Records(lease=1, rank=0, records=[Record(seq=1, ts=theirs - 1.0, step=3)])],
        samples=[Sample(ts=theirs - 2.0, gpu="n1/cpu0")],
        now=theirs,
    )
    now = host.services.clock()
    found = host.rows(
        f"SELECT {now} - epoch(l.started_at), {now} - epoch(p.updated_at), {now} - epoch(t.ts) FROM leases l, progress p, telemetry t"
    )
    near = 0.3 + now - before  # a difference of clocks up to the tolerance stays
    assert found == [(pytest.approx(20.0, abs=near), pytest.approx(1.0, abs=near), pytest.approx(2.0, abs=near))]
    host.report(WorkerUpdate(lease=1, state="exited", ts=0.0, outcome="completed", exit_code=0, message="of another age"))
    assert host.rows("SELECT w.ended_at >= l.granted_at FROM leases l JOIN workers w ON lease_id = id") == [(True,)]


def test_a_runner_tells_when_its_jobs_reported_by_the_boot_clock() -> None:
    """Not by the time of day, which was another one when this was written."""
    record = Record(seq=1, ts=time.time() + 7200.0, at=boot_clock() - 3.0, step=1)
    here, before, old = Mock(boot_id=boot_id()), Mock(boot_id="before a boot"), Record(seq=1, ts=time.time() - 3.0, step=1)
    told = [_by_steady_time(run, [one])[0] for run, one in ((here, record), (before, record), (here, old))]
    assert [one.at for one in told] == [None] * 3
    assert [one.ts - time.time() for one in told] == [pytest.approx(ago, abs=1.0) for ago in (-3.0, 7200.0, -3.0)]


def test_a_daemon_that_was_killed_and_came_back_is_an_event(start_daemon: Callable[..., DaemonProcess], home: Home) -> None:
    daemon = start_daemon()
    pid, back = daemon.pid, Jobs(daemon.client())
    daemon.kill()
    daemon.start()
    (event,) = back.events("daemon.back")
    assert event["reason"].startswith(f"the daemon (pid {pid}) was killed, or failed, and came back ")
    assert f"pid {pid}" in command(home, "status").out and "after its last commit" in command(home, "top", "--once").out
    home.config.write_text("[guards]\nmin_run_time = 'no'\n")
    assert daemon.stop() == 0
    starts = [sys.executable, "-m", "stoker.engine.daemon", "--home", str(home.path)]
    refused = subprocess.run(starts, capture_output=True, check=False)
    home.config.unlink()
    assert refused.returncode == 2
    with socket.create_server(("127.0.0.1", 0)) as other:
        refused = subprocess.run([*starts, "--tcp", f"127.0.0.1:{other.getsockname()[1]}"], capture_output=True, check=False)
    assert refused.returncode == 4
    daemon.start()
    assert len(back.events("daemon.back")) == 1, "one that is told to end, or cannot start, is none"


SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static int (*real)(clockid_t, struct timespec *);
static void now(clockid_t clock, struct timespec *found) {
    char text[32] = "";
    int file = open(getenv("CLOCK_FILE"), O_RDONLY | O_CLOEXEC);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    real(clock, found);
    if (file >= 0) { if (read(file, text, 31) < 0) text[0] = 0; close(file); }
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) found->tv_sec += atol(text);
}
int clock_gettime(clockid_t clock, struct timespec *found) { now(clock, found); return 0; }
time_t time(time_t *place) { struct timespec found; now(CLOCK_REALTIME, &found); if (place) *place = found.tv_sec; return found.tv_sec; }
int gettimeofday(struct timeval *place, void *zone) {
    struct timespec found; now(CLOCK_REALTIME, &found); place->tv_sec = found.tv_sec; place->tv_usec = found.tv_nsec / 1000; return 0;
}
"""  #: adds the seconds of a file to the time of day of a process, and to no other clock


@pytest.mark.slow
@pytest.mark.xdist_group("clock")
@pytest.mark.nightly  # real processes; what each of them makes of it is above
def test_a_daemon_and_a_runner_whose_clock_is_set_back_and_forward(home: Home, database: Path, tmp_path: Path) -> None:
    if (compiler := shutil.which("cc") or shutil.which("gcc")) is None:
        pytest.skip("the time of day of a process is turned by a library that takes a C compiler to make")
    (tmp_path / "shim.c").write_text(SHIM)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(tmp_path / "shim.so"), str(tmp_path / "shim.c"), "-ldl"], check=True)
    turn = Turned(home, tmp_path)
    try:
        turn.to_second(10, 0.0)
        turn.start()
        jobs = Jobs(turn.client)
        long = jobs.python("long", REPORTS, timeout=1800.0)
        short = jobs.submit("short", "sleep", "600", timeout=6.0)
        jobs.client.post("/v1/jobs", {"jobs": [{"name": "each", "command": ["true"], "cron": "* * * * *"}], "provenance": PROVENANCE})
        until(lambda: jobs.state(long) == jobs.state(short) == "running" and reported(jobs, long))
        turn.to_second(58, BACK)
        until(lambda: jobs.sql("SELECT count(*) FROM jobs WHERE name = 'each'") == [(1,)], 20)
        row = jobs.ended(short, 20)
        assert "timeout" in str(jobs.sql(f"SELECT stop_reason FROM leases WHERE job_id = {short}")), row
        turn.daemon.send_signal(signal.SIGKILL)
        turn.daemon.wait()
        turn.to_second(10, FORWARD)  # and the daemon was killed before it could see it
        turn.start_daemon()
        step = reported(jobs, long)["step"]
        until(lambda: reported(jobs, long)["step"] > step)
        assert jobs.state(long) == "running" and 0.1 < reported(jobs, long)["seconds_per_step"] < 2.0
        ((age, silent),) = jobs.sql(f"SELECT age, epoch(now()) - epoch(reported_at) FROM jobs_now WHERE id = {long}")
        assert 0 < age < 60 and -1 < silent < 10, "in the copy of the tables that SQL reads, too"
        (each,) = jobs.client.get("/v1/schedules")["schedules"]
        status = jobs.client.get("/v1/status")
        assert 0 < each["next_at"] - status["now"] <= 120 and each["last_at"] < status["now"]
        assert 0 <= status["now"] - status["started_at"] < 60
        how = [" ".join(event["reason"].split()[:5]) for event in jobs.events("clock.set")]
        assert how == ["the clock was set back", "the clock was set forward"], "each once"
        assert jobs.sql("SELECT count(*) FROM jobs WHERE name = 'each'") == [(1,)], "what was due in the hours left out is not made up"
    finally:
        turn.end()


REPORTS = "import stoker, time\nfor step in range(9999): stoker.report(step=step, total=9999); time.sleep(0.2)"


def reported(jobs: Jobs, job: int) -> Any:
    return jobs.client.get(f"/v1/jobs/{job}")["progress"]


class Turned:
    """A daemon and a runner under the library, with processes of their own."""

    def __init__(self, home: Home, folder: Path) -> None:
        self.home, self.file = home, folder / "offset"
        self.env = {**os.environ, "LD_PRELOAD": str(folder / "shim.so"), "CLOCK_FILE": str(self.file)}
        self.processes: list[subprocess.Popen[bytes]] = []
        self.client = Client(home, url="", token="")

    def to_second(self, second: int, offset: float) -> None:
        """The time of day is so far from the real one, and as much further as it takes to that second of a minute."""
        self.file.write_text(str(int(offset + (second - time.time()) % 60)))

    def start(self) -> None:
        self.start_daemon()
        self._launch("stoker.runners.host.agent", "--node", "here", "--slots", "3", "--warm", "off")
        until(lambda: self.client.get("/v1/runners")["runners"], alive=self.processes)

    def start_daemon(self) -> None:
        self.daemon = self._launch("stoker.engine.daemon")
        until(lambda: self.client.get("/v1/status"), alive=[self.daemon])

    def _launch(self, module: str, *options: str) -> subprocess.Popen[bytes]:
        with (self.home.path / f"{module}.log").open("ab") as log:
            command = [sys.executable, "-m", module, "--home", str(self.home.path), *options]
            self.processes.append(subprocess.Popen(command, env=self.env, stdout=log, stderr=log))
        return self.processes[-1]

    def end(self) -> None:
        self.client.close()
        for process in self.processes:
            process.kill()
            process.wait()
        end_workers(self.home)

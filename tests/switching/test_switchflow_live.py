"""SwitchFlow live: a command that knows nothing beside a recipe of a higher priority, whatever is killed, stopped or asked of them.

By night but for the first. By day the parts are tested by themselves: test_commands.py, test_turn.py; two recipes: test_switched_live.py.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e import DaemonProcess, Jobs, RunnerProcess, command, until
from stoker.engine.home import Home
from stoker.runners.lease import processes
from stoker.runners.share.turn import look, path_of
from waiting import PATIENCE

pytestmark = pytest.mark.slow

CONFIG = "[guards]\nmin_run_time = 0.0\n[runners]\ntelemetry_interval = 0.5\n"
COOPERATIVE = '[share]\nturn = "cooperative"\n'
PARAMS = {"batch_size": 64, "samples": 1024, "width": 64, "step_ms": 2.0, "eval_every": 0, "checkpoint_every": 50}
COMMON: dict[str, Any] = {"share": {"gpu": "switched"}, "grace": 10.0, "retries": {"limit": 9, "backoff": 0.1}}
TOY = {"recipe": "toy", "params": PARAMS, "stop": {"iterations": 1_000_000}, **COMMON}
#: Counts in a file of its own, and says a last word.
COUNTS = """
import os, signal, sys, time
def leave(*_):
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, leave)
file, count = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), 0
while True:
    count += 1
    os.pwrite(file, str(count).encode(), 0)
    time.sleep(0.001)
"""


class World:
    def __init__(self, home: Home, daemon: DaemonProcess, start_runner: Callable[..., RunnerProcess], place: Path) -> None:
        self.home, self.daemon, self.start_runner, self.place = home, daemon, start_runner, place
        self.runner = start_runner(slots=1)
        self.jobs = Jobs(daemon.client())
        self.jobs.client.post("/v1/policy", {"policy": "switchflow", "interval": 1.0, "config": {}})

    def low(self, **more: Any) -> int:
        return self.jobs.python("low", COUNTS.replace("sys.argv[1]", repr(str(self.place / "count"))), **{**COMMON, **more})

    def high(self) -> int:
        job = self.jobs.submit("high", **TOY, priority=10)
        until(lambda: self.step(job) > 5)
        return job

    def count(self) -> int:
        found = self.place / "count"
        return int(found.read_text() or 0) if found.exists() else 0

    def step(self, job: int) -> int:
        return int(self.jobs.sql(f"SELECT coalesce(max(step), 0) FROM metrics WHERE job_id = {job}")[0][0])

    def low_goes_on(self) -> None:
        before = self.count()
        until(lambda: self.count() > before + 50 or 0 < self.count() < before)

    def goes_on(self, job: int) -> None:
        before = self.step(job)
        until(lambda: self.step(job) > before + 5)

    def low_is_held_up(self) -> bool:
        """By the other, which leaves it moments between its steps."""
        before = self.count()
        time.sleep(0.5)
        return self.count() - before < 150

    def supervisor(self, job: int) -> int:
        live = f"l.job_id = {job} AND l.state = 'running'"
        rows = until(lambda: self.jobs.sql(f"SELECT pid FROM workers JOIN leases l ON l.id = lease_id WHERE {live} AND pid IS NOT NULL"))
        return int(rows[0][0])

    def main(self, job: int) -> int:
        return processes.descendants(self.supervisor(job), processes.table())[0].pid


@pytest.fixture
def world(
    home: Home, start_daemon: Callable[..., DaemonProcess], start_runner: Callable[..., RunnerProcess], tmp_path: Path
) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def start(config: str = COOPERATIVE) -> World:
        home.config.write_text(CONFIG + config)
        made.append(World(home, start_daemon(), start_runner, tmp_path))
        return made[-1]

    yield start
    for one in made:
        for (job,) in one.jobs.sql("SELECT id FROM jobs WHERE finished_at IS NULL"):
            one.jobs.act("cancel", job)
        until(lambda one=one: not one.jobs.sql("SELECT 1 FROM jobs WHERE finished_at IS NULL"))


@pytest.mark.nightly  # who has the turn is seen by chance: nobody has it between two steps
def test_top_and_explain_say_who_has_the_turn_and_a_timeout_does_not_count_what_was_waited(world: Any) -> None:
    here = world()
    low = here.low(timeout=20.0)  # of its own: it has a part also while the other one steps
    here.low_goes_on()
    high = here.high()
    until(here.low_is_held_up)
    turn = f"SELECT turns FROM gpus_now WHERE turns LIKE '%{high} high (has the turn, priority 10) + {low} low%'"
    until(lambda: here.jobs.sql(turn))
    until(lambda: "high (has the turn, priority 10) + " in command(here.home, "top", "--once").out)
    until(lambda: "takes turns with job 2 (high) and is paused until its turn comes" in command(here.home, "explain", "low").out)
    waited = f"SELECT waited_for_turns FROM live_shares WHERE job_id = {low}"
    begun = f"SELECT epoch(now()) - epoch(started_at) FROM leases WHERE job_id = {low} AND state = 'running'"
    until(lambda: here.jobs.sql(begun)[0][0] > 22 and here.jobs.sql(waited)[0][0] > 4)  # beyond its timeout, but for what it has waited
    here.jobs.act("cancel", high)
    until(lambda: here.jobs.sql(f"SELECT 1 FROM leases WHERE job_id = {low} AND stop_reason = 'timeout'"))


@pytest.mark.nightly
def test_whatever_is_killed_while_it_has_the_turn(world: Any) -> None:
    here = world()
    low = here.low()
    here.low_goes_on()
    high = here.high()
    for victim in (here.main, here.supervisor):
        os.kill(victim(high), signal.SIGKILL)
        until(lambda: here.jobs.sql(f"SELECT count(*) FROM leases WHERE job_id = {high} AND state = 'running'") == [(1,)])
        here.goes_on(high)
        until(here.low_is_held_up)
        os.kill(victim(low), signal.SIGKILL)
        until(lambda: here.jobs.sql(f"SELECT count(*) FROM leases WHERE job_id = {low} AND state = 'running'") == [(1,)])
        here.goes_on(high)
    here.runner.kill()
    here.start_runner(slots=1)
    here.goes_on(high)
    here.daemon.kill()
    here.daemon.start()
    here.goes_on(high)
    until(here.low_is_held_up)
    here.jobs.act("cancel", high)
    here.low_goes_on()


@pytest.mark.nightly
def test_whatever_is_stopped(world: Any) -> None:
    """SIGSTOP of a holder: it is ended as hanging after its grace. Of a supervisor, agent or daemon: nothing is lost."""
    here = world()
    low = here.low()
    here.low_goes_on()
    high = here.high()
    until(here.low_is_held_up)
    for pid in (here.supervisor(high), here.runner.pid, here.daemon.pid, here.supervisor(low)):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.0)
        os.kill(pid, signal.SIGCONT)
        here.goes_on(high)
    (lease,) = here.jobs.sql(f"SELECT lease_id FROM jobs WHERE id = {high}")[0]
    while True:  # it may be stopped between two steps, where it keeps nothing from anybody
        os.kill(main := here.main(high), signal.SIGSTOP)
        if look(path_of(here.home.path, "here/cpu0")).holder == lease:
            break
        os.kill(main, signal.SIGCONT)
    until(lambda: here.jobs.sql(f"SELECT 1 FROM leases WHERE job_id = {high} AND outcome = 'hang' AND message LIKE '%kept its turn%'"), 90)
    until(lambda: here.jobs.sql(f"SELECT count(*) FROM leases WHERE job_id = {high} AND state = 'running'") == [(1,)])
    here.goes_on(high)
    here.jobs.act("cancel", high)
    here.low_goes_on()


@pytest.mark.nightly
@pytest.mark.parametrize("asked", ["cancel", "hold", "drain"])
def test_a_paused_command_that_is_to_leave_does_so_and_saves(world: Any, asked: str) -> None:
    here = world()
    low = here.low()
    here.low_goes_on()
    high = here.high()
    until(here.low_is_held_up)
    log, began = here.jobs.run_dir(low) / "output.log", time.monotonic()
    if asked == "drain":
        assert command(here.home, "drain", "here", "--now").code == 0
    else:
        here.jobs.act(asked, low)
    until(lambda: not here.jobs.sql(f"SELECT 1 FROM leases WHERE job_id = {low} AND state <> 'ended'"))
    assert "saved" in log.read_text() and time.monotonic() - began < COMMON["grace"] * PATIENCE, "it has heard it, and was not killed"
    if asked != "drain":
        here.goes_on(high)

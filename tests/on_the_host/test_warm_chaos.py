"""Jobs that start by a fork, while everything around them is killed, stopped, full or wrong: nothing lost, nothing twice, nothing left."""

from __future__ import annotations

import bz2
import gzip
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from small_disk import Quota, SmallDisk
from stoker.engine import identity
from stoker.engine.home import Home
from stoker.engine.protocol import Assignment
from stoker.runners.lease import processes
from stoker.runners.warm import fork_server, warm_starts
from stoker.runners.warm.warm_starts import ServerKind, WarmStarts
from test_agent import until
from test_warm_starts import Warm, job, said

ENDS = """
import time
import torch
from stoker.runners.training import Task

def task(how):
    if how == "memory":
        torch.empty(1 << 60)
    if how == "hang":
        time.sleep(3600)
    data = [(torch.rand(4), torch.rand(1)) for _ in range(32)]

    def loss(model, batch):
        time.sleep(0.02)
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

    return Task(model=torch.nn.Linear(4, 1), train=data, loss=loss, batch_size=8)
"""


def mine(lease: int, directory: Path, how: str = "", **spec: Any) -> Assignment:
    stop = {"iterations": 100_000 if how else 3}
    return job(lease, entrypoint="ends:task", workdir=str(directory), params={"how": how}, stop=stop, **spec)


def stopped(assignment: Assignment, reason: str, grace: float = 60.0) -> Assignment:
    return msgspec.structs.replace(assignment, stop=reason, grace=grace)


@pytest.fixture
def warm(home: Home) -> Iterator[Warm]:
    """Its agent is yet to be started."""
    host = Warm(home.path)
    host.daemon.open()
    yield host
    host.close()


@pytest.mark.slow
@pytest.mark.nightly  # by day whatever else is killed, agents too: test_warm_starts; a daemon beside a job: test_agent, test_crash
def test_a_daemon_and_an_agent_that_are_killed_cost_a_forked_job_nothing(warm: Warm) -> None:
    first = warm.start()
    warm.warmed(1)
    (server,) = warm.servers()
    supervisor = warm.runs_warm(2)
    lasts = job(2, stop={"iterations": 100_000})

    warm.daemon.close()
    steps = len(warm.run(2).reports(0).read_text().splitlines())
    until(lambda: len(warm.run(2).reports(0).read_text().splitlines()) > steps + 2)
    warm.daemon.open()
    warm.daemon.want(lasts, job(3))
    assert warm.daemon.update(3).outcome == "completed" and warm.daemon.update(3, "running").warm

    first.kill()
    first.wait()
    warm.start()
    until(lambda: not identity.alive(server))  # it leaves with its agent, and what it has forked goes on
    warm.daemon.want(lasts, job(4))
    assert warm.daemon.update(4).outcome == "completed"
    assert not warm.daemon.update(4, "running").warm and identity.alive(supervisor)
    (other,) = until(lambda: [one for one in warm.servers() if processes.command(one.pid) == fork_server.READY_NAME])
    warm.daemon.want(lasts, job(5))
    assert warm.daemon.update(5).outcome == "completed" and warm.daemon.update(5, "running").warm
    warm.daemon.want(stopped(lasts, "preempted"))
    assert warm.daemon.update(2).outcome == "stopped"
    warm.agents[-1].send_signal(signal.SIGTERM)
    until(lambda: not identity.alive(other))


def test_a_server_that_hangs_while_it_loads_leaves_with_its_agent(tmp_path: Path) -> None:
    """It does not look at its socket then."""
    (tmp_path / "torch.py").write_text(f"import pathlib, time\npathlib.Path({str(tmp_path / 'loads')!r}).touch()\ntime.sleep(3600)")
    agent = subprocess.Popen(
        [sys.executable, "-c", STARTS], env={**os.environ, "PYTHONPATH": str(tmp_path)}, stdout=subprocess.PIPE, text=True
    )
    assert agent.stdout is not None
    with agent.stdout:
        found = identity.stat(int(agent.stdout.readline()))
        assert found is not None
        until((tmp_path / "loads").exists)
        agent.kill()
        agent.wait()
        until(lambda: not identity.alive(found.process))


STARTS = """
import os, time
from stoker.runners.warm.warm_starts import ServerKind, WarmServer
print(WarmServer.start(ServerKind(None), os.environ, "").process.pid, flush=True)
time.sleep(3600)
"""


@pytest.mark.slow
def test_forked_jobs_end_as_those_of_fresh_processes_do(warm: Warm, tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(ENDS)
    warm.daemon.telemetry = 0.2
    warm.start()
    warm.daemon.want(mine(1, tmp_path))
    assert warm.daemon.update(1).outcome == "completed"
    until(lambda: any(processes.command(server.pid) == fork_server.READY_NAME for server in warm.servers()))

    hangs = msgspec.structs.replace(mine(3, tmp_path, "hang", hang_after=0.5), grace=2.0)  # it does not look whether it is to stop
    cancelled, preempted = (msgspec.structs.replace(mine(lease, tmp_path, "long"), gpus=["n1/cpu1"]) for lease in (4, 5))
    warm.daemon.want(mine(2, tmp_path, "memory"))
    end = warm.daemon.update(2)
    assert (end.outcome, end.exit_code) == ("oom", 76), end
    warm.daemon.want(hangs, cancelled)
    assert warm.daemon.update(3).outcome == "hang"
    until(lambda: warm.run(4).reports(0).exists())
    warm.daemon.want(stopped(cancelled, "cancelled", 0.0))
    assert warm.daemon.update(4).outcome in ("stopped", "cancelled")
    warm.daemon.want(preempted)
    until(lambda: warm.run(5).reports(0).exists())
    warm.daemon.want(stopped(preempted, "preempted"))
    end = warm.daemon.update(5)
    assert (end.outcome, end.exit_code) == ("stopped", 75)
    assert [warm.daemon.update(lease, "running").warm for lease in range(2, 6)] == [True] * 4
    assert [found for lease in range(1, 6) for found in processes.tagged(warm.run(lease).tag)] == []
    assert said(warm).count("starts warm") == 4


@pytest.mark.slow
@pytest.mark.nightly  # a runner on a full disk: test_full_disk.py
def test_a_full_disk_costs_no_server(disk: SmallDisk | Quota, warm: Warm) -> None:
    agent = warm.start()
    warm.warmed(1)
    (server,) = warm.servers()
    disk.fill(agent.pid)
    warm.daemon.want(job(2))
    assert warm.daemon.update(2).outcome == "start-failed"
    disk.free(agent.pid)
    warm.daemon.want(job(3))
    assert warm.daemon.update(3).outcome == "completed" and warm.daemon.update(3, "running").warm
    assert warm.servers() == [server]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at_import", "why"),
    [
        pytest.param(
            "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
            "1 threads were started at import",
            marks=pytest.mark.nightly,  # as the one of a computation is
        ),
        ("import torch\ntorch.set_num_threads(2)\ntorch.ones(600, 600) @ torch.ones(600, 600)", "threads were started at import"),
        ("import os\nos._exit(9)", "its server ended while it loaded"),
    ],
    ids=["a thread", "a computation", "an end"],
)
@pytest.mark.sampled(2)
def test_what_no_fork_survives_starts_cold_with_its_reason(at_import: str, why: str, tmp_path: Path) -> None:
    """Before a module that the backbone needs."""
    itself = "import os, sys\nsys.path.remove(os.path.dirname(__file__))\ndel sys.modules[__name__]\nimport tokenizers"
    (tmp_path / "tokenizers.py").write_text(f"{at_import}\n{itself}")
    given = job(1, recipe="text-classifier")
    starts = WarmStarts(True, {**os.environ, "PYTHONPATH": str(tmp_path)})
    launch: Any = {"env": {**os.environ, **warm_starts._THREADS, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(tmp_path), "STOKER_TAG": "x"}}
    assert starts.why_cold(given, launch) == "no process had loaded minilm yet"
    starts.expect(given)

    def failed() -> Any:
        starts.tend()
        return next((told for told in starts.told() if told.state == "failed"), None)

    told = until(failed)
    assert why in str(told.note)
    assert starts.why_cold(given, launch) == told.note


def test_a_server_that_hangs_while_it_loads_is_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Jobs start cold meanwhile; none of them keeps it."""
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(3600)")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    starts = WarmStarts(True, environment)
    launch: Any = {"env": {**environment, **warm_starts._THREADS, "PYTHONUNBUFFERED": "1", "STOKER_TAG": "x"}}
    starts.why_cold(job(1), launch)
    starts.expect(job(1))
    assert starts.why_cold(job(2), launch) == "its server is loading"
    monkeypatch.setattr(warm_starts, "IDLE_SECONDS", 0.0)
    starts.expect(job(2), ended=True)
    (server,) = starts._servers.values()
    starts.tend()
    assert starts.told() == [] and server.gone


def test_a_users_module_that_is_named_as_one_that_is_loaded_starts_cold(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text("")
    (tmp_path / "yaml").mkdir()
    loaded = ["json", "random", "yaml"]
    assert warm_starts._hidden(tmp_path, loaded) == "its directory has a module 'random', and a forked process has another one of that name"
    (tmp_path / "random.py").unlink()
    assert warm_starts._hidden(tmp_path, loaded) is None
    (tmp_path / "yaml" / "__init__.py").write_text("")
    assert "'yaml'" in str(warm_starts._hidden(tmp_path, loaded))
    assert warm_starts._hidden(tmp_path / "gone", loaded) is None
    assert {"random", "sys", "stoker"} <= fork_server.loaded()


@pytest.mark.slow
def test_an_idle_server_takes_no_time(tmp_path: Path) -> None:
    """Clock ticks, which are counted only while it runs."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = warm_starts.WarmServer.start(ServerKind(None), environment, "")
    try:
        until(lambda: server.ready or server.gone)
        assert server.ready, server.why

        def switches() -> int:
            status = Path(f"/proc/{server.process.pid}/status").read_text()
            return sum(int(line.split()[1]) for line in status.splitlines() if "ctxt_switches" in line)

        until(lambda: _asleep(server.process.pid))
        before = switches()
        time.sleep(1.0)
        assert switches() == before, "it was woken"
    finally:
        server.end()


def test_pages_that_several_processes_share_are_divided_among_them() -> None:
    """Else each forked job would be charged for what its server has loaded."""
    held = bytearray(os.urandom(1 << 16)) * 1024  # 64 MiB
    ready, written = os.pipe()
    if (child := os.fork()) == 0:
        os.write(written, b".")
        signal.pause()
        os._exit(0)
    try:
        os.read(ready, 1)
        found = identity.stat(child)
        assert found is not None and found.memory > len(held)
        assert processes.memory(found) < found.memory - len(held) // 4
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(written)


LEAVES = """
import bz2, gzip, sys, weakref
from stoker.runners.worker import worker
plain, text, packed = open("plain", "wb"), gzip.open("text.gz", "wt"), bz2.open("packed.bz2", "wb")
for file, what in ((plain, b"a"), (text, "b"), (packed, b"c")):
    file.write(what)
weakref.finalize(sys, print, "finalized")
worker.leave(7)
"""


def test_who_leaves_writes_what_its_files_still_hold(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LEAVES], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, "finalized\n"), done.stderr
    assert (tmp_path / "plain").read_bytes() == b"a"
    assert gzip.decompress((tmp_path / "text.gz").read_bytes()) == b"b"
    assert bz2.decompress((tmp_path / "packed.bz2").read_bytes()) == b"c"


def _asleep(pid: int) -> bool:
    found = identity.stat(pid)
    return found is not None and found.state == "S"

"""A run of the tests that is killed takes its daemons with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import leftovers
import pytest
from e2e import until

RUN = """
import sys, time
from pathlib import Path
import leftovers
leftovers.begin(Path(sys.argv[1]))
from e2e import daemon_apart
with daemon_apart() as daemon:
    print(daemon.pid, flush=True)
    time.sleep(600)
"""


def test_a_daemon_of_a_run_that_was_killed_ends(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != leftovers.MARK}  # it is a run of its own
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    with subprocess.Popen([sys.executable, "-c", RUN, str(tmp_path)], stdout=subprocess.PIPE, env=environment) as run:
        assert run.stdout is not None
        daemon = int(run.stdout.readline())
        try:
            os.kill(daemon, 0)
        finally:
            run.kill()
    until(lambda: not Path("/proc", str(daemon), "environ").exists() or not Path("/proc", str(daemon), "cmdline").read_bytes())


def test_files_of_a_run_lie_in_memory_only_where_it_runs_programs_and_the_folder_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = SimpleNamespace(f_bavail=1 << 30, f_frsize=4096, f_flag=os.ST_NOSUID)
    monkeypatch.setattr(leftovers, "MEMORY", tmp_path)
    monkeypatch.setattr(leftovers, "LEAST", 1)
    monkeypatch.setattr(os, "statvfs", lambda _: memory)
    disk, ours = tmp_path / "disk", tmp_path / f"stoker-{os.getuid()}"
    assert leftovers.place(disk) == ours and ours.stat().st_mode & 0o777 == 0o700
    memory.f_flag |= os.ST_NOEXEC
    assert leftovers.place(disk) == disk
    memory.f_flag = 0
    monkeypatch.setattr(os, "getuid", lambda: ours.stat().st_uid + 1)
    (tmp_path / f"stoker-{os.getuid()}").mkdir()  # by another user
    assert leftovers.place(disk) == disk

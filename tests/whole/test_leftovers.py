"""A run of the tests that is killed takes its daemons with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import leftovers
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

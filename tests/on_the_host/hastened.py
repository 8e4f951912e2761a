"""Trainings of the runners that tests start, forked from a process that has imported what they import: 1.3 to 2.4 s of a core less each.

That process, one in a process of pytest, is a fork server (`runners.warm.fork_server`) that agents of all homes ask. All else is as where a
job starts cold, which it counts as. Jobs that no fork server takes, such as commands and gangs, do start cold.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from stoker.runners.host import runs
from stoker.runners.host.launch import handed_on
from stoker.runners.lease.rundir import ENV_TAG, RunDir
from stoker.runners.lease.supervisor import Launch, Supervisor
from stoker.runners.warm import fork_server
from stoker.runners.warm.warm_starts import _THREADS, Forked, WarmStarts, _differs


@functools.cache
def place() -> str:
    """The socket of the server of this process of pytest. It imports nothing before it is asked."""
    path = Path(tempfile.mkdtemp(prefix="stoker-")) / "asked"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen(64)
    command = [sys.executable, "-P", __file__, str(listening.fileno())]
    env = {**os.environ, **_THREADS, ENV_TAG: "-" * fork_server.TAG_PLACE}
    with listening:
        server = subprocess.Popen(command, pass_fds=[listening.fileno()], env=env, stdin=subprocess.PIPE, start_new_session=True)
    atexit.register(_end, server)
    return str(path)


def _end(server: subprocess.Popen[bytes]) -> None:
    """What it has forked goes on. Where pytest is killed it leaves by itself, as its standard input is closed."""
    server.kill()
    server.communicate()


# In an agent


def hasten(path: str) -> None:
    """Let the agent that this process becomes start its trainings by the server at ``path``."""
    fits = WarmStarts(enabled=True, environment=handed_on(os.environ))
    begin = runs.Run.start

    def start(run: runs.Run, launch: Launch, forked: Forked | None = None) -> None:
        if forked is None and run._cold is None and fits._unsuited(run.assignment, launch) is None:
            forked = _asked(path, run.dir, launch)
        begin(run, launch, forked)

    runs.Run.start = start  # type: ignore[method-assign]


def _asked(path: str, run: RunDir, launch: Launch) -> Forked:
    content = json.dumps([str(run.path), launch]).encode()
    ours = socket.socket(socket.AF_UNIX)
    ours.connect(path)
    ours.sendall(fork_server.LENGTH_PREFIX.pack(len(content)) + content)
    forked = Forked(ours)
    forked.late_at = math.inf  # the first one waits for what is imported
    return forked


# The server


class _Fresh(fork_server.ForkingSupervisor):
    warm = False
    fits = WarmStarts(enabled=True, environment=handed_on(os.environ))

    def _spawn(self, output: int) -> Any:
        """A fork, unless the job has another environment than this process had when it imported; the agent has compared its own."""
        if _differs(self.fits._servers_environment(), self.launch["env"]):
            return Supervisor._spawn(self, output)
        return super()._spawn(output)


def _serve(listening: socket.socket) -> None:
    while 0 not in select.select([0, listening], [], [])[0]:
        if "torch" not in sys.modules:
            with fork_server._reading:
                fork_server.load([])
            assert len([*Path("/proc/self/task").iterdir()]) == 1
            gc.collect()
            gc.freeze()
        request, _ = listening.accept()
        with request:
            if os.fork() == 0:
                listening.close()
                fork_server._begin(request, request.fileno())


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    fork_server.ForkingSupervisor = _Fresh  # type: ignore[misc]
    _serve(socket.socket(fileno=int(sys.argv[1])))

"""One agent per node and home: two would both read the same files."""

from __future__ import annotations

import fcntl
import logging
import os
from typing import IO

from ..engine.errors import Conflict
from ..engine.home import Home

log = logging.getLogger("stoker.runner")


def held_lock(home: Home, node: str) -> IO[str]:
    """The lock of a runner, held while the file is open; Conflict if another agent has it."""
    path = home.runner_lock(node)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = open(path, "a+")  # noqa: SIM115 - held as long as the agent lives
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip()
        file.close()
        raise Conflict(f"a runner of node {node!r} is running already (pid {holder}); choose another --node") from None
    try:  # not through the file object, which would try again when it is closed
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), str(os.getpid()).encode())
    except OSError as error:
        log.warning("cannot note our pid in %s: %s; the lock itself holds", file.name, error.strerror)
    return file

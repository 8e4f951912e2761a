"""Where a fork server waits for the next agent when its own was killed: an abstract Unix socket, which leaves no file behind.

Its name says whose it is and what it has loaded: stoker-warm/PLACE/KEY/PID/RECIPE/BACKBONE. In place of a backbone
whose path would be too long its digest stands; the path is then what the process was started with.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import struct
from pathlib import Path
from typing import NamedTuple

_FIRST = "stoker-warm"
_LONGEST = 107  #: bytes of a name: sun_path of unix(7), without the zero that makes it abstract
_SHORT = "#"  #: begins a digest in place of a backbone
_BACKLOG = 16
_CREDENTIALS = struct.Struct("3i")  #: pid, uid and gid of SO_PEERCRED


class ServerName(NamedTuple):
    place: str  #: which node of which home: `place_of`
    key: str  #: changes with the code and the environment that it has loaded
    pid: int
    recipe: str  #: empty: none
    backbone: str  #: empty: none

    @property
    def address(self) -> bytes:
        whole = b"\0" + "/".join((_FIRST, *map(str, self))).encode()
        if len(whole) <= _LONGEST + 1 or self.backbone.startswith(_SHORT):  # or the rest alone is too long, and none can be had
            return whole
        return self._replace(backbone=_SHORT + digest(self.backbone)).address


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def place_of(home: Path, node: str) -> str:
    return digest(str(home), node)


def listen(name: ServerName) -> socket.socket | None:
    """Wait there for the next agent. None: it cannot be had."""
    if len(name.address) > _LONGEST + 1:
        return None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(name.address)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        return None
    return listener


def find(place: str) -> list[ServerName]:
    """Servers of a place that wait, or would."""
    found = set()
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/unix").read_text(errors="replace").splitlines():
            first, *parts = line.partition("@")[2].split("/", len(ServerName._fields))  # the last may be a path
            if first == _FIRST and len(parts) == len(ServerName._fields) and parts[0] == place and parts[2].isdecimal():
                backbone = _started_with(int(parts[2]), parts[4]) if parts[4].startswith(_SHORT) else parts[4]
                found |= {ServerName(parts[0], parts[1], int(parts[2]), parts[3], backbone)} if backbone is not None else set()
    return sorted(found)


def _started_with(pid: int, short: str) -> str | None:
    """The last argument of a process, if that is what ``short`` stands for."""
    with contextlib.suppress(OSError):
        last = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").rpartition(b"\0")[2].decode(errors="replace")
        return last if short == _SHORT + digest(last) else None
    return None


def connect(name: ServerName) -> tuple[socket.socket, int] | None:
    """A connection to a server of ours, and its pid. None: it has gone, it hangs, or it is another user's."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        connection.connect(name.address)
        pid = peer(connection)
    except OSError:
        pid = None
    if pid is None:
        connection.close()
        return None
    return connection, pid


def peer(connection: socket.socket) -> int | None:
    """The process at the other end; None: it is another user's. Abstract sockets have no permissions."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid if uid == os.getuid() else None

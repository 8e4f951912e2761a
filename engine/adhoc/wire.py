"""Messages between the daemon and the process of ad-hoc SQL.

Two sockets join them. The *feed* is a stream from the daemon: a `Load`, then the changes of each commit. The *desk*
carries single messages both ways, and with each `Ask` the end of a third socket, on which the statement's own
process answers: a `Head`, then as many bytes as it says. A process that ends without them has died.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import msgspec

from ..errors import KINDS, StokerError

_FRAME = struct.Struct("<QQ")  #: number of the commit, length of what follows
_HEAD = struct.Struct("<I")
LARGEST_MESSAGE = 1 << 18  #: bytes of a message of the desk


class Load(msgspec.Struct, frozen=True, tag=True):
    """Begin with a copy of this file and its log, if its head is still this one."""

    database: str
    head: bytes  #: `head_of` the file; empty: it is a copy already, to be used as it is
    logged: int  #: bytes of its log at that moment
    folder: str  #: for the copy and for what statements spill
    memory: int  #: bytes that the copy may take in memory


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Answer one statement on a state that includes commit ``after``."""

    id: int
    after: int
    text: str
    format: str  #: json, csv, parquet; ``copy``: a new database file, whose path is the answer
    rows: int
    seconds: float  #: that it may take
    until: float  #: its deadline, by the monotonic clock, which all processes of a host share
    memory: int


class Drop(msgspec.Struct, frozen=True, tag=True):
    """This answer is no longer wanted."""

    id: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The copy is loaded."""


class StatementEnded(msgspec.Struct, frozen=True, tag="Ended"):  # its tag for a running daemon whose package was replaced
    """The process of a statement has ended, by this signal (0: by itself)."""

    id: int
    signal: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The copy can't be kept, and the process ends."""

    why: str
    moved: bool = False  #: the file changed while it was copied, which is no fault


class Head(msgspec.Struct, frozen=True):
    """The kind of answer that follows, or the error in its place."""

    size: int
    media: str = ""
    truncated: bool = False
    error: str = ""  #: its code
    message: str = ""


ToServer = Ask | Drop
ToDaemon = Ready | StatementEnded | Failed
decode_for_server = msgspec.msgpack.Decoder(ToServer).decode
decode_for_daemon = msgspec.msgpack.Decoder(ToDaemon).decode


def frame(number: int, body: bytes) -> bytes:
    return _FRAME.pack(number, len(body)) + body


def frames(buffer: bytearray) -> Iterator[tuple[int, bytes]]:
    """The whole frames at the front of ``buffer``; they are removed from it."""
    begin = 0
    while len(buffer) >= begin + _FRAME.size:
        number, size = _FRAME.unpack_from(buffer, begin)
        end = begin + _FRAME.size + size
        if len(buffer) < end:
            break
        yield number, bytes(buffer[begin + _FRAME.size : end])
        begin = end
    del buffer[:begin]


def pack_answer(head: Head, body: bytes = b"") -> bytes:
    packed = msgspec.msgpack.encode(head)
    return _HEAD.pack(len(packed)) + packed + body


def unpack_answer(received: bytes) -> tuple[Head, bytes] | None:
    """The answer; None: it is not whole. Raises the error of the answer."""
    if len(received) < _HEAD.size:
        return None
    begin = _HEAD.size + _HEAD.unpack_from(received)[0]
    if len(received) < begin:
        return None
    head = msgspec.msgpack.decode(received[_HEAD.size : begin], type=Head)
    if head.error:
        raise KINDS.get(head.error, StokerError)(head.message)
    return (head, received[begin:]) if len(received) == begin + head.size else None


def pair(kind: socket.SocketKind) -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, kind)

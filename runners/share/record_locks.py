"""Locks of single bytes of a file (POSIX record locks): by process, not inherited by a fork, and freed by the kernel at death."""

from __future__ import annotations

import errno
import fcntl
import os
import struct

_RECORD = "hhqqi4x"  #: struct flock


def lock(file: int, byte: int) -> bool:
    """Lock a byte of an open file. False: another process has it."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        return True
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise


def unlock(file: int, byte: int) -> None:
    fcntl.lockf(file, fcntl.LOCK_UN, 1, byte)


def holder(file: int, byte: int) -> int | None:
    """The other process that has locked a byte; None: there is none."""
    asked = struct.pack(_RECORD, fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    kind, _, _, _, pid = struct.unpack(_RECORD, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else int(pid)

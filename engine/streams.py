"""Output that cannot end a process: lines to a full disk, or to a closed terminal, are lost, and the work goes on."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any


class _Unfailing(io.FileIO):
    """A file whose writes never raise."""

    def write(self, data: Any) -> int:
        with contextlib.suppress(OSError):
            super().write(data)
        return len(data)


def steady_stderr() -> None:
    """From now on no line on stderr raises, and a lost line does not change the exit code.

    By Python's default, a line that cannot be written ends the process; and a logged line is tried again at the end, where its failure
    turns the exit code into 120.
    """
    try:
        os.fstat(2)
    except OSError:  # it was closed before this process began: the next file opened would receive these lines
        opened = os.open(os.devnull, os.O_WRONLY)
        if opened != 2:
            os.dup2(opened, 2)
            os.close(opened)
    stderr = _Unfailing(2, "w", closefd=False)
    sys.stderr = io.TextIOWrapper(stderr, encoding="utf-8", errors="backslashreplace", write_through=True)

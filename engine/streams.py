"""Output that cannot end a process: what is said to a full disk, or to a terminal that has gone, is lost, and the work goes on."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any


class _Unfailing(io.FileIO):
    """A descriptor whose writes always succeed, as far as the writer can tell."""

    def write(self, data: Any) -> int:
        with contextlib.suppress(OSError):
            super().write(data)
        return len(data)


def steady_stderr() -> None:
    """From now on no line on stderr raises, and none that was lost changes the exit code.

    As Python makes it, a line that cannot be written ends the process that writes it; and one that was logged is tried once more at the
    end, when its failure turns the exit code into 120.
    """
    try:
        os.fstat(2)
    except OSError:  # closed by whoever started us: else the next file that is opened would get what we say
        opened = os.open(os.devnull, os.O_WRONLY)
        if opened != 2:
            os.dup2(opened, 2)
            os.close(opened)
    stderr = _Unfailing(2, "w", closefd=False)
    sys.stderr = io.TextIOWrapper(stderr, encoding="utf-8", errors="backslashreplace", write_through=True)

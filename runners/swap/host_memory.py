"""Keeps a process that swaps from taking more of the host's memory than weights, gradients, optimizer and the emulated device hold."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_M_MMAP_THRESHOLD = -3  #: mallopt(3)
_LARGE_BLOCK = 1 << 20  #: bytes


def give_back_large_blocks() -> None:
    """Blocks of a MiB or more go back to the system when they are freed.

    Without this, glibc keeps freed blocks of up to 32 MiB, and uses them again only where alignment allows. A step with parts of 6 MiB
    took 100 MB more than it held.
    """
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)

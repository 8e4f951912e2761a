"""The loop of a worker process: one call after another, until the socket closes. Imported by the fork server, so it is light."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import random
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass
from typing import Any

from ..readings.meters import Stopwatch
from . import ipc
from .chains import Chain, ChainCall, Step, Where, Whereabouts

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    result: Any
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Raised:
    error: BaseException
    where: Where
    unsent: bool = False  #: no error, but the return value cannot be sent


def main(parent: socket.socket, whereabouts: Whereabouts) -> None:
    """Take the functions, then items. The parent ends it by closing the socket, or by a signal."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the consumer handles it
    with contextlib.suppress(ipc.Closed):
        chain = _first(parent, whereabouts)
        stopwatch = Stopwatch(time.process_time)
        while chain is not None:
            _serve(parent, chain, stopwatch, whereabouts)


def _first(parent: socket.socket, whereabouts: Whereabouts) -> Chain | None:
    try:
        chain: Chain = ipc.receive(parent)
        _seed()
    except ipc.Closed:
        raise
    except BaseException as error:
        _answer(parent, Raised(_portable(error), whereabouts.read()), whereabouts)
        return None
    _answer(parent, WorkerAnswer(None, ()), whereabouts)
    return chain


def _serve(parent: socket.socket, chain: Chain, stopwatch: Stopwatch, whereabouts: Whereabouts) -> None:
    try:
        call: ChainCall = ipc.receive(parent)
        whereabouts.begin(chain.begins(call))
        result, steps = chain.run(call, watch=stopwatch, at=whereabouts.note)
        answer: WorkerAnswer | Raised = WorkerAnswer(result, steps)
        del call, result
    except ipc.Closed:
        raise
    except BaseException as error:
        answer = Raised(_portable(error), whereabouts.read())
    _answer(parent, answer, whereabouts)


def _answer(parent: socket.socket, answer: WorkerAnswer | Raised, whereabouts: Whereabouts) -> None:
    try:
        data, views = ipc.dumps(answer)
    except Exception as error:
        refused = TypeError(f"the function's return value cannot be sent from a worker process: {error}")
        data, views = ipc.dumps(Raised(refused, whereabouts.read(), unsent=True))
    ipc.send(parent, data, views)


def _portable(error: BaseException) -> BaseException:
    """The error with the traceback of this process as a note, if it survives pickling, else its words."""
    remote = "in a worker process:\n" + "".join(traceback.format_exception(error)).rstrip()
    error.add_note(remote)
    error.__traceback__ = None
    with contextlib.suppress(Exception):
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    stand_in = RuntimeError(f"{type(error).__name__}: {error}")
    stand_in.add_note(remote)
    return stand_in


def _die_with_parent() -> None:
    """The fork server ends with the process that uses the pipeline, whatever ends that; then the kernel kills this one."""
    server = os.getppid()
    with contextlib.suppress(OSError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server or server == 1:
        os._exit(1)


def _seed() -> None:
    """Forks of one server would all draw the same random numbers. And one thread each: the workers are the parallelism."""
    random.seed()
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed()
    if torch is not None:
        torch.seed()
        torch.set_num_threads(1)
    gc.freeze()  # what the server imported stays shared with it

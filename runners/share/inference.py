"""A job of ``kind: infer``: it answers requests until it is asked to stop.

Requests wait in a bounded queue, are prepared on a thread of their own (`Task.prepare`: decoding, tokenising), and are computed in batches
by the main thread, under the turn of its GPU like a training: with the job's priority, pausing in place for a higher one, and giving way
to equals after each batch; it keeps the turn for requests that wait already. It reports latencies, one row per minute, and more often
while it is busy.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...engine.errors import StokerError, UsageError
from ...engine.protocol import LONGEST_REQUEST
from ...engine.spec.model import Serve
from ..train.batches import Interrupted
from ..train.checkpoint import weights_of
from ..train.task import Task
from ..worker import script
from ..worker.ranks import Ranks
from .replayed_step import free, tell_kept
from .request_socket import MOST_CLIENTS, Caller, RequestSocket
from .yielding import Yielding

log = logging.getLogger(__name__)

STOP_INTERVAL = 0.1  #: seconds between looks at the request to stop
SIGN_OF_LIFE_INTERVAL = 20.0  #: seconds, without requests: a server without a sign for 10 minutes, or the job's `hang_after`, hangs
FIRST, NEXT = 1.0, 10.0  #: seconds until the requests of a minute are reported for the first time, and again
LAST_WORDS = 1.0  #: seconds for which clients may take their answers when it leaves
MOST_LOGGED = 20  #: tracebacks of requests that failed
_MOST_KEPT = 20_000  #: latencies of a minute
_STOPS = "this server is being stopped; ask again when it serves again"


@dataclass(slots=True)
class _Message:
    """A line of a client: requests that are answered together."""

    caller: Caller
    answers: list[dict[str, Any]]
    left: int
    came: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class _Waiting:
    """One request."""

    message: _Message
    place: int
    request: Any


class _Minute:
    """The latencies within a minute of the clock."""

    def __init__(self) -> None:
        self.number = int(time.time() // 60)
        self.latencies: list[float] = []
        self.requests = self.errors = self.refused = self.queue = 0

    def values(self) -> dict[str, float]:
        """The names are those of the view latency_now."""
        ordered = sorted(self.latencies)
        found = {f"p{share}": ordered[-(-len(ordered) * share // 100) - 1] for share in (50, 95, 99)} if ordered else {}
        counts = {name: float(getattr(self, name)) for name in ("requests", "errors", "refused", "queue")}
        return {"minute": float(self.number), **found, **counts}


class ModelServer:
    """The model of a task, at a socket in ``run_dir``.

    ``weights``: a file, or a directory of checkpoints; None: as the task builds it. ``hang``: the job's limit of seconds without a sign of
    life, if it has one. ``frees``: between its batches it keeps only its weights, and it pauses within none.
    """

    def __init__(
        self, task: Task, serve: Serve, weights: Path | None, ranks: Ranks, run_dir: Path, hang: float | None = None, *, frees: bool = False
    ) -> None:
        if task.answer is None:
            raise UsageError("kind: infer: the task has no answer(model, requests), so it cannot serve; see docs/sharing.md")
        self.task, self.serve, self.answer, self.device = task, serve, task.answer, ranks.device
        if weights is not None:
            given, where = weights_of(weights, ranks)
            taken = task.fitting(given, where, whole=True)
            task.model.load_state_dict(taken, strict=False)
            log.info("serves with %d tensors of %s", len(taken), where)
        self.model = task.model.to(self.device).eval()
        self.sharing = Yielding((), self.device)
        if frees:
            tell_kept(self.device)
            self.sharing.free_by(partial(free, self.device))
        self.sign = min(SIGN_OF_LIFE_INTERVAL, hang / 4) if hang is not None else SIGN_OF_LIFE_INTERVAL
        self.answered = 0
        self._lock = threading.Condition()
        self._ready: deque[_Waiting] = deque()  #: prepared
        self._raw: queue.SimpleQueue[_Waiting] = queue.SimpleQueue()
        self._count = 0  #: requests that wait, prepared or not
        self._minute, self._untold, self._tell_at, self._logged = _Minute(), False, 0.0, 0
        self._heard_at = time.monotonic()
        self._threads = [threading.Thread(target=self._prepare, name="prepare", daemon=True)] if task.prepare is not None else []
        too_long = f"a request is larger than {LONGEST_REQUEST >> 20} MiB; send less at once"
        too_many = f"{MOST_CLIENTS} clients are connected already; ask again later"
        self._socket = RequestSocket(run_dir, self._take, _line({"error": too_long}), _line({"error": too_many, "busy": True}))
        for thread in self._threads:
            thread.start()
        self._threads.append(self._socket.thread)

    def run(self) -> None:
        """Serve until it is asked to stop."""
        script.report(step=0)
        log.info("serves")
        try:
            while not script.should_stop():
                if not all(thread.is_alive() for thread in self._threads):
                    raise StokerError("a thread of the server has ended; its log has the traceback")
                if batch := self._batch():
                    with self.sharing:
                        self._compute(batch)
                        while self._goes_on():  # else it would wait for a pause of the turn's next holder at each batch
                            self._tell()
                            if batch := self._batch():
                                self._compute(batch)
                self._tell()
        finally:
            self._leave()
        log.info("asked to stop: %d requests were answered", self.answered)

    def _goes_on(self) -> bool:
        """Whether it has requests to compute at once, and keeps the turn for them."""
        return bool(self._ready) and not self.serve.delay and self.sharing.may_go_on and not script.should_stop()

    # ---- requests ----

    def _take(self, caller: Caller, line: bytes) -> None:
        """Queue the requests of a client's line, or answer why not. On the thread of the socket."""
        try:
            requests = json.loads(line)["requests"]
            wrong = None if isinstance(requests, list) and requests else "requests is no list with one or more of them"
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            wrong = f"it is no JSON: {error}" if isinstance(error, ValueError) else "it is no object with a list 'requests'"
        if wrong is not None:
            self._socket.send(caller, _line({"error": f'a request is a line such as {{"requests": ["a text"]}}, but {wrong}'}))
            return
        if len(requests) > self.serve.queue:
            words = f"{len(requests)} requests at once are more than may wait here, {self.serve.queue}; send fewer at once"
            self._socket.send(caller, _line({"error": words}))
            return
        with self._lock:
            full = self._count + len(requests) > self.serve.queue
            if full:
                self._minute.refused += len(requests)
                self._untold = True
            else:
                self._count += len(requests)
                self._minute.queue = max(self._minute.queue, self._count)
        if full:
            words = f"{self.serve.queue} requests may wait here, and with these there would be more; ask again later"
            self._socket.send(caller, _line({"error": words, "busy": True}))
            return
        message = _Message(caller, [{} for _ in requests], len(requests))
        waiting = [_Waiting(message, place, request) for place, request in enumerate(requests)]
        if self.task.prepare is not None:
            for one in waiting:
                self._raw.put(one)
        else:
            with self._lock:
                self._ready += waiting
                self._lock.notify()

    def _prepare(self) -> None:
        """A request's work on the CPU, ahead of the turn."""
        assert self.task.prepare is not None
        while True:
            one = self._raw.get()
            if not one.message.caller.gone:
                try:
                    one.request = self.task.prepare(one.request)
                except BaseException as error:  # also errors that would silently end the thread, and so the server
                    self._failed(error)
                    self._finish(one, {"error": _words(error)})
                    continue
            with self._lock:
                self._ready.append(one)
                self._lock.notify()

    # ---- computing ----

    def _batch(self) -> list[_Waiting]:
        """Requests to compute at once; empty: none came for a while. Those of clients that have left are dropped."""
        with self._lock:
            if not self._ready:
                self._lock.wait(STOP_INTERVAL)
            if self.serve.delay and self._ready:
                until = self._ready[0].message.came + self.serve.delay
                while len(self._ready) < self.serve.batch and (left := until - time.monotonic()) > 0 and not script.should_stop():
                    self._lock.wait(min(left, STOP_INTERVAL))
            batch: list[_Waiting] = []
            while self._ready and len(batch) < self.serve.batch:
                one = self._ready.popleft()
                if one.message.caller.gone:
                    self._count -= 1
                else:
                    batch.append(one)
            return batch

    def _compute(self, batch: Sequence[_Waiting]) -> None:
        try:
            with torch.no_grad():
                answers = self._answers([one.request for one in batch])
        except Interrupted:
            answers = [{"error": _STOPS}] * len(batch)
        except BaseException as error:  # the process ends: no client is left waiting
            for one in batch:
                self._finish(one, {"error": f"the server has failed: {_words(error)}"})
            raise
        for one, answer in zip(batch, answers, strict=True):
            self._finish(one, answer)

    def _answers(self, requests: list[Any]) -> list[dict[str, Any]]:
        """One for each; if the model raises, they are computed one by one, so that each has its own answer or error."""
        try:
            found = self.answer(self.model, list(requests))  # a list of its own: it may change it
            if not isinstance(found, Sequence) or isinstance(found, str) or len(found) != len(requests):
                what = f"{len(found)}" if isinstance(found, Sequence) and not isinstance(found, str) else type(found).__name__
                raise UsageError(f"the task's answer() must return a list of {len(requests)} answers, not {what}")
            return [{"answer": answer} for answer in found]
        except Interrupted:
            raise
        except Exception as error:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # raises if the device has failed, as only a new process can use it again
            if len(requests) > 1:
                return [self._answers([request])[0] for request in requests]
            self._failed(error)
            return [{"error": _words(error)}]

    def _failed(self, error: BaseException) -> None:
        self._logged += 1
        if self._logged <= MOST_LOGGED:
            told = "".join(traceback.format_exception(error)).rstrip()
            rest = "; no more of them are logged" if self._logged == MOST_LOGGED else ""
            log.warning("%s\na request failed with this error, which is its answer%s", told, rest)

    def _finish(self, one: _Waiting, answer: dict[str, Any]) -> None:
        """A request has its answer; the last one of a message sends it."""
        message = one.message
        try:
            json.dumps(answer, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            answer = {"error": f"the task's answer() returned a value that JSON cannot hold: {error}"}
        message.answers[one.place] = answer
        with self._lock:
            self._count -= 1
            self._untold = True
            minute = self._minute
            minute.requests += 1
            minute.errors += "error" in answer
            if len(minute.latencies) < _MOST_KEPT:
                minute.latencies.append(time.monotonic() - message.came)
            self.answered += 1
            message.left -= 1
            whole = message.left == 0
        if whole:
            self._socket.send(message.caller, _line({"answers": message.answers}))

    # ---- reports ----

    def _tell(self) -> None:
        """Report the minute's latencies, at its end and meanwhile; and a sign of life."""
        now = time.monotonic()
        with self._lock:
            over = int(time.time() // 60) != self._minute.number
            due = self._untold and (over or now >= self._tell_at)
            values = self._minute.values() if due else {}
            if over:
                self._minute, self._tell_at = _Minute(), now + FIRST
            elif due:
                self._tell_at = now + NEXT
            self._untold = self._untold and not due
        if due or now - self._heard_at >= self.sign:
            self._heard_at = now
            script.report(step=self.answered, total=None, checkpoint=None, memory=None, **values)

    def _leave(self) -> None:
        """Answer all waiting clients that the server stops."""
        with self._lock:
            waiting, self._ready = list(self._ready), deque()
        with contextlib.suppress(queue.Empty):  # the other thread may take the last one
            while True:
                waiting.append(self._raw.get_nowait())
        for one in waiting:
            self._finish(one, {"error": _STOPS})
        self._tell_at = 0.0
        self._tell()
        self._socket.close(LAST_WORDS)
        self.sharing.close()


def _line(content: Any) -> bytes:
    return json.dumps(content).encode() + b"\n"


def _words(error: BaseException) -> str:
    """One line."""
    words = " ".join(str(error).split())[:500]
    return words if isinstance(error, StokerError) else f"{type(error).__name__}: {words}" if words else type(error).__name__

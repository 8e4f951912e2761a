"""Uploads of traces, slice by slice: a trace is written only once its last slice is here."""

from __future__ import annotations

import secrets
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from ...errors import Conflict, LimitExceeded, NotFound, UsageError
from ...studies.stored_traces import NewTrace
from ...traces.trace import Trace, TraceJob
from ...traces.trace_check import LONGEST_SECONDS, check_jobs, check_name

MAX_UPLOADS = 8  #: at once
MAX_BYTES = 1 << 30  #: bytes of all uploads together, packed
MOST_JOBS = 2_000_000  #: jobs of one trace: they are written in one transaction, some ten thousand a second
JOBS_PER_WRITE = 5_000  #: jobs that are unpacked and written at once
FORGET_AFTER = 600.0  #: seconds without another slice
_decoder = msgspec.json.Decoder(list[TraceJob])
_encoder = msgspec.json.Encoder()


@dataclass
class Upload:
    """The upload of one trace: its first message without the jobs, and the jobs, checked and packed."""

    trace: Trace
    user: str
    total: int | None = None  #: jobs in all; None: all came with the first message
    jobs: int = 0
    packed: list[bytes] = field(default_factory=list)
    last: float = 0.0  #: time of the last job's submission
    seen: float = 0.0

    def take(self, jobs: Sequence[TraceJob]) -> None:
        try:
            last = check_jobs(jobs, self.last)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if self.total is not None and self.jobs + len(jobs) > self.total:
            raise UsageError(f"jobs: {self.jobs + len(jobs)} were sent of {self.total} that were announced")
        if self.jobs + len(jobs) > MOST_JOBS:
            raise LimitExceeded(f"jobs: a trace may have {MOST_JOBS}: cut this one into parts")
        for start in range(0, len(jobs), JOBS_PER_WRITE):
            self.packed.append(zlib.compress(_encoder.encode(jobs[start : start + JOBS_PER_WRITE]), 1))
        self.jobs += len(jobs)
        self.last = last

    def request(self) -> NewTrace:
        return NewTrace(self.trace, self.total or self.jobs, self.user, self._slices)

    def _slices(self) -> Iterator[list[dict[str, Any]]]:
        for packed in self.packed:
            yield [job_row(job) for job in _decoder.decode(zlib.decompress(packed))]


def job_row(job: TraceJob) -> dict[str, Any]:
    """A job as a row of `trace_jobs`."""
    row = msgspec.structs.asdict(job)
    row["gpus_max"] = max(job.gpus_max, job.gpus_min)
    row["raw"] = None if job.raw is None else _encoder.encode(job.raw).decode()
    return row


def begin(trace: Trace, user: str) -> Upload:
    """Check the first message of a trace, and take the jobs in it."""
    try:
        check_name(trace.name)
        if trace.starts_at is not None and not abs(trace.starts_at) <= LONGEST_SECONDS:
            raise ValueError("starts_at: is out of range")
    except ValueError as error:
        raise UsageError(str(error)) from None
    upload = Upload(msgspec.structs.replace(trace, jobs=[]), user)
    upload.take(trace.jobs)
    return upload


class _Waits(Protocol):
    user: str
    seen: float  #: monotonic time of its last slice


W = TypeVar("W", bound=_Waits)


class Waiting(Generic[W]):
    """Unfinished uploads by token. They are only in memory: after a restart of the daemon they begin again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, W] = {}

    def _keep(self, upload: W, most: int, full: str) -> str:
        """Keep an upload; the token to send the rest with. LimitExceeded with the text ``full`` where ``most`` are kept already."""
        with self._lock:
            self._forget_old()
            if len(self._waiting) >= most:
                raise LimitExceeded(full)
            token = secrets.token_hex(8)
            upload.seen = time.monotonic()
            self._waiting[token] = upload
            return token

    def _find(self, token: str, user: str) -> W:
        """With the lock."""
        self._forget_old()
        upload = self._waiting.get(token)
        if upload is None or upload.user != user:
            raise NotFound(f"there is no upload {token[:40]!r}: it was finished, or no slice came for {FORGET_AFTER:g} s; send all again")
        return upload

    def _forget_old(self) -> None:
        now = time.monotonic()
        for token in [token for token, upload in self._waiting.items() if now - upload.seen > FORGET_AFTER]:
            del self._waiting[token]


class Uploads(Waiting[Upload]):
    """Those of traces."""

    def keep(self, upload: Upload) -> str:
        """Keep a trace until the rest of it comes; the token to send that with."""
        return self._keep(upload, MAX_UPLOADS, f"{MAX_UPLOADS} traces are being imported already: try again when one of them has ended")

    def add(self, token: str, user: str, offset: int, jobs: Sequence[TraceJob]) -> Upload:
        """Append a slice that begins at job ``offset``; a slice sent twice is added once."""
        with self._lock:
            upload = self._find(token, user)
            if offset + len(jobs) != upload.jobs or not jobs:
                if offset != upload.jobs:
                    raise Conflict(f"offset: job {upload.jobs} is next, not {offset}")
                upload.take(jobs)
            if sum(len(part) for one in self._waiting.values() for part in one.packed) > MAX_BYTES:
                del self._waiting[token]
                raise LimitExceeded(f"the traces that are being imported are larger than {MAX_BYTES >> 20} MiB together")
            upload.seen = time.monotonic()
            return upload

    def end(self, token: str) -> None:
        with self._lock:
            self._waiting.pop(token, None)

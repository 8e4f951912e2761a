"""Sends a trace to the daemon, in slices that fit into a request."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...client import Client
    from ...traces.trace import Trace, TraceJob

SLICE = 10_000  #: jobs of one request: 3 to 6 MB of JSON, of the 64 MiB that a request may have
COMMIT_TIMEOUT = 600.0  #: seconds for the last slice: the daemon writes some ten thousand jobs a second, all in one transaction

Progress = Callable[[int, int], None]  #: gets the number done, and of all


def send_trace(client: Client, trace: Trace, progress: Progress | None = None) -> dict[str, Any]:
    """Store a trace, whole or not at all; returns the daemon's answer ``{id, name, jobs, existing}``.

    ``progress`` gets the jobs sent, and of all. Raises Conflict if the daemon has another trace of this name.
    """
    import msgspec

    if len(trace.jobs) <= SLICE:
        return _post(client, "/v1/traces", trace)
    total = len(trace.jobs)
    answer = begun = _post(client, f"/v1/traces?total={total}", msgspec.structs.replace(trace, jobs=[]))
    if "upload" not in begun:  # it is there already
        return begun
    for start in range(0, total, SLICE):
        part = trace.jobs[start : start + SLICE]
        answer = _post(client, f"/v1/traces/uploads/{begun['upload']}?offset={start}", part)
        if progress is not None:
            progress(start + len(part), total)
    return answer


def _post(client: Client, path: str, message: Trace | Sequence[TraceJob]) -> dict[str, Any]:
    import msgspec

    body = msgspec.json.encode(message)
    if client.url:  # over a network packing pays, over the socket it costs more than it saves
        body = gzip.compress(body, 1)
    answer: dict[str, Any] = msgspec.json.decode(client.post_raw(path, body, timeout=COMMIT_TIMEOUT))
    return answer


@contextmanager
def progress_bar(title: str) -> Iterator[Progress | None]:
    """A bar on stderr during the block, on terminals only."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(title, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=max(total, done))

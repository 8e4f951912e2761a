"""A trace by its name in commands: a file, or one that the daemon keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ...errors import Conflict, NotFound, UsageError, nearest

if TYPE_CHECKING:
    from ....policies.contract import Profile
    from ...client import Client
    from ...sim.workload import Workload
    from ...traces.trace import Trace


def load_trace(text: str, client_factory: Callable[[], Client], **options: Any) -> Trace:
    """The trace that ``text`` names: a file (read here, without a daemon), else the daemon's trace of that name.

    ``client_factory`` is called only when the daemon is needed: commands hand in ``lambda: app.client``. ``options`` are those
    of `engine.traces.read.read` and hold for files only. Raises UsageError for a file that cannot be read, NotFound with the
    nearest name if it is neither.
    """
    return find_trace(text, client_factory, **options)[0]


def find_trace(text: str, client_factory: Callable[[], Client], **options: Any) -> tuple[Trace, int | None]:
    """The same with the number of the daemon's trace; a file has none."""
    path = Path(text).expanduser()
    if is_file(path) or _looks_like_a_file(text):  # a folder shadows no trace: `describe philly --out philly/` makes one
        return read_file(path, **options), None
    client = client_factory()
    about = _about(client, text)
    return _fetched(client, about), int(about["id"])


def is_file(path: Path) -> bool:
    """Whether there is such a file; a name that the system refuses, as it is too long, is none."""
    try:
        return path.is_file()
    except OSError:
        return False


def check_stored(name: str) -> str:
    """A possible name of the daemon's trace; NotFound says why it is none, without asking the daemon."""
    from ...traces.trace_check import check_name

    try:
        return check_name(name)
    except ValueError:
        if name and (is_file(Path(name)) or _looks_like_a_file(name)):
            raise NotFound(f"{name!r} names a file and no imported trace: 'stoker trace describe' takes files, too") from None
        raise NotFound(f"no trace can be called {name!r}; 'stoker trace list' shows the traces") from None


def as_options(message: str, options: Iterable[str]) -> str:
    """The message, with its first fields in their command-line form."""
    fields, colon, rest = message.partition(":")
    named = fields.split(", ")
    return ", ".join(f"--{field.replace('_', '-')}" for field in named) + colon + rest if set(named) <= set(options) else message


def read_file(path: Path, **options: Any) -> Trace:
    """The trace in a file; UsageError names the mistake, and its place."""
    from ...traces.read import read

    try:
        if not path.exists():
            raise NotFound(f"{path}: there is no such file{_near_files(path)}")
        return read(path, **options)
    except ValueError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"{error.filename or path}: cannot be read: {error.strerror or error}") from None


def workload_of(trace: Trace, profiles: Sequence[Profile]) -> Workload:
    """Its jobs for the simulator; UsageError if the trace's further data make no sense."""
    from ...traces.trace import to_workload

    try:
        return to_workload(trace, profiles)
    except ValueError as error:
        raise UsageError(f"{trace.name}: {error}") from None


def _fetched(client: Client, about: dict[str, Any]) -> Trace:
    """A trace of the daemon's, slice by slice."""
    import msgspec

    from ...traces.formats.rows import Repeated
    from ...traces.trace import Trace, TraceJob

    jobs: list[TraceJob] = []
    repeated = Repeated()
    while len(jobs) < about["jobs"]:
        path = f"/v1/traces/{quote(about['name'], safe='')}/jobs"
        body = client.fetch("GET", path, query={"offset": len(jobs), "id": about["id"]})
        some = msgspec.json.decode(body, type=dict[str, list[TraceJob]])["jobs"]
        if not some:
            raise Conflict(f"trace {about['name']!r} was dropped while it was read")
        for job in some:
            job.raw = None if job.raw is None else repeated.shared(job.raw.items())
        jobs += some
    fields = ("name", "format", "source", "sha256", "starts_at", "dropped", "repaired", "recipe")
    return Trace(**{field: about[field] for field in fields}, jobs=jobs)


def _about(client: Client, name: str) -> dict[str, Any]:
    """The daemon's row of a trace; NotFound names the nearest trace, or file."""
    known = {row["name"]: row for row in client.get("/v1/traces")["traces"]}
    if name not in known:
        near = nearest(name, known) or _near_files(Path(name))
        raise NotFound(f"there is neither a file nor a trace {name!r}{near}; 'stoker trace list' shows the traces")
    row: dict[str, Any] = known[name]
    return row


def _looks_like_a_file(text: str) -> bool:
    return "/" in text or text.endswith((".csv", ".gz", ".json", ".trace"))


def _near_files(path: Path) -> str:
    """' (did you mean X?)' for a file of the same folder with a name like it."""
    try:
        names = [one.name for one in path.parent.iterdir() if one.name != path.name]  # its own is there where it is a folder
    except OSError:
        return ""
    return nearest(path.name, names)

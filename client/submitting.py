"""The daemon as an object: a thin layer over the requests that the command line makes."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path, PurePath
from typing import Any

from .. import __version__
from ..engine.errors import NotFound, UsageError
from ..engine.home import ENV_IMPORTING
from . import following
from .connection import Connection
from .job_handle import Job, listed
from .row_tables import Table, moment

ALL_ROWS = 1_000_000  #: most rows of an answer
LONGEST_KEY = 80  #: characters of a key for several jobs, to which each job's name is added
DEEPEST = 100  #: levels of nested lists and mappings
HANDED_ON = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX")


class Client(Connection):
    """One daemon: at ``url`` with a ``token``, or on the socket of ``home``; by default where STOKER_URL or STOKER_HOME say.

    May be used by several threads at once.
    """

    def submit(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        command: str | Sequence[str] | None = None,
        recipe: str | None = None,
        entrypoint: str | None = None,
        spec: Mapping[str, Any] | None = None,
        file: str | os.PathLike[str] | None = None,
        name: str | None = None,
        gpus: int | str | Mapping[str, int] | None = None,
        params: Mapping[str, Any] | None = None,
        array: Mapping[str, Any] | None = None,
        deadline: str | datetime | timedelta | None = None,
        priority: int | None = None,
        pool: str | None = None,
        labels: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> Job:
        """Submit a job: a command, a recipe, an entrypoint, a spec, a file of jobs, or a function with its arguments.

        All other arguments are fields of a job file (docs/job-spec.md), which replace those of a spec or a file. A call repeated with the
        same ``idempotency_key`` submits nothing; without one each call makes its own, so that it submits only once even if it
        has to be sent again. The names in an array may be used in the command, as ``{lr}``.
        """
        given = {"name": name, "gpus": gpus, "params": params, "array": array, "deadline": deadline, "priority": priority, "pool": pool,
                 "labels": labels, "env": env, **fields}  # fmt: skip
        work = {"command": command, "recipe": recipe, "entrypoint": entrypoint}
        answer = self._post(function, args, kwargs, work, spec, file, given, idempotency_key, dry_run=False)
        rows = answer["jobs"]
        names = list(dict.fromkeys(row["name"].partition("[")[0] for row in rows))
        existing = bool(rows) and all(row["existing"] for row in rows)
        return Job(self, [row["id"] for row in rows], ", ".join(names) or str(name or ""), existing, answer["schedule"])

    def dry_run(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        command: str | Sequence[str] | None = None,
        recipe: str | None = None,
        entrypoint: str | None = None,
        spec: Mapping[str, Any] | None = None,
        file: str | os.PathLike[str] | None = None,
        **fields: Any,
    ) -> Table:
        """The plan for the jobs that `submit` would submit with the same arguments; nothing is submitted."""
        work = {"command": command, "recipe": recipe, "entrypoint": entrypoint}
        answer = self._post(function, args, kwargs, work, spec, file, fields, None, dry_run=True)
        rows = [{**row, "est_start": moment(row["est_start"])} for row in answer["jobs"]]
        return Table.of(rows, ("name", "state", "reason", "est_start", "forecast"))

    def _post(
        self,
        function: Callable[..., Any] | None,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        work: dict[str, Any],
        spec: Mapping[str, Any] | None,
        file: str | os.PathLike[str] | None,
        fields: dict[str, Any],
        key: str | None,
        *,
        dry_run: bool,
    ) -> Any:
        if importing := os.environ.get(ENV_IMPORTING):
            raise UsageError(
                f"job {importing} imports this file to run what is in it, and that submits nothing: put what submits below "
                "'if __name__ == \"__main__\":'"
            )
        over = {name: value for name, value in {**work, **fields}.items() if value is not None}
        chosen = [word for word, one in {"a function": function, "spec": spec, "file": file, **work}.items() if one is not None]
        if not chosen:
            raise UsageError("nothing to run: give a function, or one of command, recipe, entrypoint, spec and file")
        if len(chosen) > 1:
            raise UsageError(f"{' and '.join(chosen)}: a job has one of them; keep one")
        if function is None and (args or kwargs):
            raise UsageError("args, kwargs: are for a function; of other jobs these are params")
        _require_mappings(spec=spec, kwargs=kwargs, **{word: over.get(word) for word in ("params", "array", "labels", "env")})
        if isinstance(args, str | bytes) or not isinstance(args, Sequence):
            raise UsageError(f"args: must be a list of the arguments, not a {type(args).__name__}")
        if array := over.get("array"):
            over["array"] = array if isinstance(array.get("params"), Mapping) else {"params": array}
        if function is not None:
            from .sent_functions import sent

            over = {**over, **sent(function, args, kwargs or {}, over, local=self.is_local)}
        body: dict[str, Any] = {"spec": dict(spec) if spec is not None else over, "provenance": self._provenance(), "dry_run": dry_run,
                                "here": self.is_local}  # fmt: skip
        body["environment"] = {word: os.environ[word] for word in HANDED_ON if word in os.environ}
        if file is not None:
            body |= {"spec": _text(file), "source": str(file)}
        if (spec is not None or file is not None) and over:
            body["over"] = over
        if key is not None and file is None and "jobs" not in (spec or {}):
            body |= {"over": {**body.get("over", {}), "idempotency_key": key}}  # the job's own key, by which `after` may name it
        elif not dry_run:
            body["key"] = self.new_key() if key is None else _of_several(key)
        return self.post_once("/v1/jobs", _plain(body))

    def _provenance(self) -> dict[str, Any]:
        try:
            cwd = Path.cwd()
        except FileNotFoundError:
            raise NotFound("the current directory no longer exists; change to another one") from None
        known: dict[str, Any] = {"argv": sys.argv or ["python"], "cwd": str(cwd), "client": f"python {__version__}"}
        try:
            from ..engine.spec.provenance import capture
        except ImportError:  # only the client's own dependencies are installed
            return known
        found = capture(sys.argv, cwd)
        return known | {"argv": list(found.argv), "git_commit": found.git_commit, "git_diff": found.git_diff}

    def job(self, ref: int | str) -> Job:
        """A job by its number or name, or the unambiguous beginning of one; an array by its name."""
        answer = self.get(following.job_path(ref))
        row, tasks = answer["job"], answer["tasks"]
        return Job(self, tasks or [row["id"]], row["name"].partition("[")[0] if tasks else row["name"])

    def jobs(
        self,
        state: str | Sequence[str] | None = None,
        user: str | None = None,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        since: datetime | timedelta | float | None = None,
        *,
        all: bool = False,
        limit: int = 1000,
    ) -> Jobs:
        """Jobs that have not ended, and those that ended within the last hour or after ``since``; with ``all`` all jobs. Newest first.

        In ``name`` the characters ``*`` and ``?`` stand for any others. A timedelta is counted back from now.
        """
        _require_mappings(labels=labels)
        begin = datetime.now().astimezone() - since if isinstance(since, timedelta) else since
        query = {
            "state": state if isinstance(state, str) or state is None else ",".join(state), "user": user, "name": name,
            "label": [f"{key}={value}" for key, value in (labels or {}).items()] or None, "all": int(all), "arrays": 1, "limit": limit,
            "since": begin.timestamp() if isinstance(begin, datetime) else begin,
        }  # fmt: skip
        rows = self.get("/v1/jobs", **query)["jobs"]
        return Jobs(self, rows)

    def sql(self, query: str, *, limit: int = ALL_ROWS, timeout: float | None = None) -> Table:
        """Query the database with one reading statement in DuckDB's SQL; its times are UTC."""
        body = {"query": query, "limit": limit, "timeout": timeout, "format": "json"}
        answer = self.post("/v1/sql", body, timeout=(timeout or 60.0) + 30.0)
        return Table(answer["columns"], answer["rows"], answer["truncated"])

    def top(self) -> Top:
        """GPUs, running jobs and the queue, in one request."""
        return Top(self.get("/v1/top"))

    def status(self) -> dict[str, Any]:
        """The daemon, its runners and pools: the answer of `GET /v1/status`."""
        found: dict[str, Any] = self.get("/v1/status")
        return found


class Jobs(list[Job]):
    """Jobs as a list of `Job`; ``rows`` has the row of the view jobs_now for each, ``table`` the important columns."""

    def __init__(self, client: Client, rows: list[dict[str, Any]]) -> None:
        super().__init__(Job(client, [row["id"]], row["name"]) for row in rows)
        self.rows = rows

    @property
    def table(self) -> Table:
        return listed(self.rows)

    def __repr__(self) -> str:
        return repr(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


class Top(dict[str, Any]):
    """The answer of `GET /v1/top`: now, gpus, running, queue, counts."""

    _SHOWN = {
        "gpus": ("id", "state", "utilisation", "memory_used", "job_id", "job"),
        "running": ("id", "name", "state", "gpus", "progress", "loss", "owner"),
        "queue": ("position", "id", "name", "gpus_min", "reason"),
    }

    def _tables(self) -> dict[str, Table]:
        return {part: Table.of(self[part], [name for name in names if not self[part] or name in self[part][0]])
                for part, names in self._SHOWN.items()}  # fmt: skip

    def __repr__(self) -> str:
        return "\n\n".join(f"{part}\n{table!r}" for part, table in self._tables().items())

    def _repr_html_(self) -> str:
        return "".join(f"<h4>{part}</h4>{table._repr_html_()}" for part, table in self._tables().items())


def _text(file: str | os.PathLike[str]) -> str:
    try:
        return Path(file).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise NotFound(f"{os.fspath(file)}: no such file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{os.fspath(file)}: cannot be read: not UTF-8 text; save the file as UTF-8") from None
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"file: {str(file)!r} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _of_several(key: Any) -> str:
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY:
        raise UsageError(f"idempotency_key: of several jobs it must be text of 1 to {LONGEST_KEY} characters")
    return key


def _require_mappings(**given: Any) -> None:
    for word, value in given.items():
        if value is not None and not isinstance(value, Mapping):
            raise UsageError(f"{word}: must be a mapping of names to values, not a {type(value).__name__}")


def _plain(value: Any, place: str = "", depth: int = 0) -> Any:
    """The value as JSON: paths as texts, dates and durations as in a job file. UsageError names a value that is no JSON."""
    if depth > DEEPEST:
        raise UsageError(f"{place[:80]}…: lists and mappings are nested deeper than {DEEPEST}, or one of them holds itself")
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UsageError(f"{place}: {value} is no number in JSON")
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{place}.{key}".removeprefix("spec.").lstrip("."), depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{place}[{index}]", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, datetime):
        return value.astimezone().isoformat(timespec="seconds")
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}s"
    raise UsageError(f"{place}: a {type(value).__name__} is no JSON: give numbers, texts, lists and mappings of them")

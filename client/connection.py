"""The connection to a daemon: requests from any thread."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from ..engine.client import Client as Requests
from ..engine.errors import UsageError
from ..engine.home import Home
from . import following

#: variables that decide where the daemon is, and how it is recognised
_DECIDE_WHERE = ("STOKER_URL", "STOKER_TOKEN", "STOKER_CA", "STOKER_HOME", "XDG_STATE_HOME", "HOME")


class Connection:
    """One daemon: at ``url`` with a ``token``, or on the socket of ``home``; by default where STOKER_URL or STOKER_HOME say.

    May be used by several threads at once.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        home: str | os.PathLike[str] | None = None,
        timeout: float = 30.0,
        patience: float = following.PATIENCE,
    ) -> None:
        if url:
            _check_url(url)
        self._url, self._token, self._home, self.timeout = url, token, home, timeout
        self.patience = patience  #: seconds that the daemon may be away during a wait
        self._free: list[tuple[object, Requests]] = []  #: idle open connections, with the address of each
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections; the next request opens another one."""
        with self._lock:
            free, self._free = self._free, []
        for _, requests in free:
            requests.close()

    def _new(self) -> Requests:
        home = None if self._home is None else Home(Path(self._home).expanduser().absolute())
        requests = Requests(home, "" if self._url is None and home is not None else self._url, self._token, self.timeout)
        if requests.url:
            _check_url(requests.url)
        return requests

    @contextlib.contextmanager
    def _using(self) -> Iterator[Requests]:
        """An unused connection to the daemon's present address, which a notebook may change at any time. None of a parent process."""
        where = (os.getpid(), *map(os.environ.get, _DECIDE_WHERE))
        with self._lock:
            free = self._free.pop() if self._free else None
        if free is not None and free[0] != where:
            self.close()
            free[1].close()
            free = None
        requests = self._new() if free is None else free[1]
        try:
            yield requests
        except BaseException:
            requests.close()  # an interrupted request has left its answer half read
            raise
        with self._lock:
            self._free.append((where, requests))

    @contextlib.contextmanager
    def apart(self) -> Iterator[Requests]:
        """A separate connection for a long request."""
        with contextlib.closing(self._new()) as requests:
            yield requests

    def get(self, path: str, **query: Any) -> Any:
        """The answer to ``GET path`` (docs/api.md)."""
        with self._using() as requests:
            return requests.get(path, **query)

    def post(self, path: str, body: Any = None, timeout: float | None = None) -> Any:
        """The answer to ``POST path`` (docs/api.md)."""
        with self._using() as requests:
            return requests.post(path, body, timeout)

    def post_once(self, path: str, body: Any) -> Any:
        """`post` for a request with a key, which is sent again when it is unknown whether it was taken."""
        with self._using() as requests:
            return following.post_once(requests, path, body, self.patience)

    @staticmethod
    def new_key() -> str:
        return os.urandom(16).hex()

    @property
    def is_local(self) -> bool:
        """Whether the daemon is on this host."""
        with self._using() as requests:
            return not requests.url

    def metrics(self, ref: int | str, names: Sequence[str] = (), after: str | None = None) -> list[list[Any]]:
        """Reported rows (lease, seq, step, name, value, moment) of a job after a place ``lease.seq``, oldest first."""
        rows: list[list[Any]] = []
        while True:
            answer = self.get(following.job_path(ref, "metrics"), name=list(names) or None, after=after)
            rows += answer["rows"]
            if not answer["more"]:
                return rows
            after = answer["after"]

    def __repr__(self) -> str:
        with self._using() as requests:
            return f"<stoker.client.Client at {requests.url or requests.home.socket}>"


def _check_url(url: str) -> None:
    try:
        where = urlsplit(url)
        fits = where.scheme in ("http", "https") and bool(where.hostname) and where.port is not None and where.path in ("", "/")
    except (ValueError, AttributeError):  # AttributeError: it is no text
        fits = False
    if not fits:
        raise UsageError(f"url: {url!r} is not http://HOST:PORT or https://HOST:PORT")

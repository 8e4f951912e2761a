"""Fetches checkpoints and code of jobs from the daemon, if this node lacks them."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ...engine.client import Client
from ...engine.errors import NotFound, Stale, StokerError, Unauthorized
from ...engine.hosts.bundles import Damaged, fetch, needs, unpack
from ...engine.protocol import BUNDLE, BundleWanted
from .sent_checkpoints import RETRY_SECONDS, TIMEOUT, TRIES

log = logging.getLogger("stoker.runner")

FORGET_AFTER = 10.0  #: seconds without a call of `look` after which a fetch is given up
PARTS = "fetched"  #: directory of the home, for tars on their way


@dataclass(frozen=True, slots=True)
class WantedDirectory:
    """A directory to be filled from a tar."""

    digest: str
    target: Path
    mark: str  #: content of the file `.fetched` beside it once it is filled
    size: int = 0  #: bytes, 0: not known
    comes: bool = True  #: the daemon may still get it, or get it again


def marked(target: Path) -> Path:
    """The file beside a directory that names its fetched content."""
    return target.with_name(f".{target.name}.fetched")


class _Unwanted(Exception):
    """The fetch is no longer wanted."""


class Fetcher(threading.Thread):
    """Fetches one after the other, as all come from the daemon. Callers poll `look`."""

    def __init__(self, client: Client, home: Path, node: str, session: int, wake: Callable[[], None]) -> None:
        super().__init__(name="fetch", daemon=True)
        self._client, self._home, self._node, self._session, self._wake = client, home, node, session, wake
        self._queue: queue.SimpleQueue[WantedDirectory] = queue.SimpleQueue()
        self._asked: dict[WantedDirectory, float] = {}  #: time of the last `look` (monotonic)
        self._done: dict[WantedDirectory, str] = {}
        self._fills: Path | None = None  #: directory that is worked on

    def look(self, wanted: WantedDirectory) -> str | None:
        """None: it is on its way; empty: it is there; else why it cannot be fetched, which is returned once before a new try."""
        if wanted in self._done:
            self._asked.pop(wanted, None)
            return self._done.pop(wanted)
        if wanted not in self._asked:
            self._queue.put(wanted)
        self._asked[wanted] = time.monotonic()
        return None

    def leave(self, target: Path) -> bool:
        """Write nothing there any more, as a job begins with the files it finds; returns whether no write is under way."""
        for wanted in [one for one in list(self._asked) if one.target == target]:
            self._asked.pop(wanted, None)
        return self._fills != target

    def run(self) -> None:
        while True:
            wanted = self._queue.get()
            self._fills = wanted.target
            try:
                told = self._fetch(wanted)
            except _Unwanted:
                told = None
            except Exception as error:  # the waiting job must learn of it
                log.exception("%s is not fetched", wanted.target)
                told = f"{type(error).__name__}: {error}"
            if told is None:
                self._asked.pop(wanted, None)
            else:
                self._done[wanted] = told
            self._fills = None
            self._wake()

    def _fetch(self, wanted: WantedDirectory) -> str:
        """The answer for `look`; _Unwanted if the fetch is no longer wanted."""
        part = self._home / PARTS / f"{wanted.digest}.part"
        damaged = 0
        try:
            wanted.target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with marked(wanted.target).open("a+") as mark:
                with contextlib.suppress(OSError):  # a file system without locks
                    fcntl.flock(mark, fcntl.LOCK_EX)
                mark.seek(0)
                if mark.read() == wanted.mark and wanted.target.is_dir():
                    return ""  # by another runner of this home, or before
                if not part.exists() and (words := needs(wanted.size, self._home)):
                    return f"there is no room for it on the disk of this host: {words}; free some space"
                while damaged < TRIES:
                    try:
                        fetch(lambda at: self._piece(wanted, at), wanted.digest, part)
                        self._require_wanted(wanted)
                        unpack(part, wanted.target)
                    except Damaged:
                        damaged += 1
                        part.unlink(missing_ok=True)
                        continue
                    except (Stale, Unauthorized) as error:
                        return str(error)
                    except NotFound as error:
                        if not wanted.comes:
                            return str(error)
                        time.sleep(RETRY_SECONDS / 4)
                        continue
                    except StokerError as error:
                        log.warning("%s; fetches wait", error, extra={"action": "unreachable"})
                        time.sleep(RETRY_SECONDS)
                        continue
                    mark.truncate(0)
                    mark.write(wanted.mark)
                    part.unlink()
                    log.info("%s is fetched", wanted.target, extra={"action": "fetch"})
                    return ""
        except OSError as error:
            part.unlink(missing_ok=True)
            return f"it cannot be written on this host, {error.filename or self._home}: {error.strerror}; free some space"
        return "it arrived damaged, more than once"

    def _require_wanted(self, wanted: WantedDirectory) -> None:
        if time.monotonic() - self._asked.get(wanted, -FORGET_AFTER) > FORGET_AFTER:
            raise _Unwanted

    def _piece(self, wanted: WantedDirectory, at: int) -> bytes:
        self._require_wanted(wanted)
        asked = BundleWanted(node=self._node, session=self._session, digest=wanted.digest, offset=at)
        return self._client.post_raw(BUNDLE, msgspec.json.encode(asked), timeout=TIMEOUT)


def clean_parts(home: Path, age: float = 3600.0) -> None:
    """Remove old parts of unfinished fetches."""
    for part in (home / PARTS).glob("*.part"):
        with contextlib.suppress(OSError):
            if time.time() - part.stat().st_mtime > age:
                part.unlink()

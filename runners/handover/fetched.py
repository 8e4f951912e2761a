"""Fetches from the daemon what a job begins with and this node has not: its checkpoints, its code."""

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

FORGET_AFTER = 10.0  #: seconds after which nobody waits for it any more
PARTS = "fetched"  #: directory of the home, for tars on their way


@dataclass(frozen=True, slots=True)
class Wanted:
    """A directory that is to have what a tar holds."""

    digest: str
    target: Path
    mark: str  #: what stands in the file `.fetched` beside it once it has it
    size: int = 0  #: bytes, 0: not known
    comes: bool = True  #: the daemon may not have it yet, or has it sent again


def marked(target: Path) -> Path:
    """The file beside a directory that says what was fetched into it."""
    return target.with_name(f".{target.name}.fetched")


class _Unwanted(Exception):
    """Nobody waits for it any more."""


class Fetcher(threading.Thread):
    """One after the other, as all go through the daemon. Asked again and again, it says how far it is."""

    def __init__(self, client: Client, home: Path, node: str, session: int, wake: Callable[[], None]) -> None:
        super().__init__(name="fetch", daemon=True)
        self._client, self._home, self._node, self._session, self._wake = client, home, node, session, wake
        self._queue: queue.SimpleQueue[Wanted] = queue.SimpleQueue()
        self._asked: dict[Wanted, float] = {}  #: when somebody asked last (monotonic)
        self._done: dict[Wanted, str] = {}
        self._fills: Path | None = None  #: directory that is worked on

    def look(self, wanted: Wanted) -> str | None:
        """None: it is on its way; empty: it is there; else why it cannot be had here. That is said once, and then it is tried again."""
        if wanted in self._done:
            self._asked.pop(wanted, None)
            return self._done.pop(wanted)
        if wanted not in self._asked:
            self._queue.put(wanted)
        self._asked[wanted] = time.monotonic()
        return None

    def leave(self, target: Path) -> bool:
        """Put nothing there any more: a job begins with what it finds. Whether that is so by now."""
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
            except Exception as error:  # who waits must be told
                log.exception("%s is not fetched", wanted.target)
                told = f"{type(error).__name__}: {error}"
            if told is None:
                self._asked.pop(wanted, None)
            else:
                self._done[wanted] = told
            self._fills = None
            self._wake()

    def _fetch(self, wanted: Wanted) -> str:
        """What is to be said of it; _Unwanted where nobody waits any more."""
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
                        log.warning("%s; what is fetched waits", error, extra={"action": "unreachable"})
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
        return "it has come damaged, more than once"

    def _require_wanted(self, wanted: Wanted) -> None:
        if time.monotonic() - self._asked.get(wanted, -FORGET_AFTER) > FORGET_AFTER:
            raise _Unwanted

    def _piece(self, wanted: Wanted, at: int) -> bytes:
        self._require_wanted(wanted)
        asked = BundleWanted(node=self._node, session=self._session, digest=wanted.digest, offset=at)
        return self._client.post_raw(BUNDLE, msgspec.json.encode(asked), timeout=TIMEOUT)


def clean_parts(home: Path, age: float = 3600.0) -> None:
    """Remove what nobody has gone on with."""
    for part in (home / PARTS).glob("*.part"):
        with contextlib.suppress(OSError):
            if time.time() - part.stat().st_mtime > age:
                part.unlink()

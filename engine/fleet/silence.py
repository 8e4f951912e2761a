"""Runners' signs of life, and the daemon's conclusions from silence."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping

from ..errors import Conflict, NotFound, Stale
from ..identity import Process, alive, boot_id
from ..store.store import Store
from .registration import NodeChange, change_node, look_again, seen

#: seconds after the last grace until a silent runner's stopped jobs begin elsewhere: its supervisors kill for 30 s
MARGIN = 45.0
GRACE = 30.0  #: seconds, for specs that give none
DRIFT = 2e-4  #: seconds a second by which two clocks part at most
SILENT_AFTER = 60.0  #: seconds without a word after which a runner is suspect


class Fleet:
    """Sessions and last words of runners, in memory; written to `nodes` from time to time. Sleep of this machine is no silence.

    Silence is not death: a silent runner's jobs may well be running, so none of them is started elsewhere until
    its processes are proved dead (another boot, or it says so itself) or a person declares it dead.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic, *, silent_after: float = SILENT_AFTER) -> None:
        self._store = store
        self._silent_after = silent_after
        self.heartbeat = min(20.0, silent_after / 3)  #: longest wait of a poll: three missed ones make a runner suspect
        self._clock = clock
        self._lock = threading.Lock()
        rows = store.rows("api/fleet")
        self._sessions: dict[str, int] = {node: session for node, session, _, _ in rows}
        self._states: dict[str, str] = {node: state for node, _, state, _ in rows}
        self._leaving: dict[str, bool] = {node: leaving for node, _, _, leaving in rows}
        self._drained_silent = {row[0] for row in store.rows("api/fleet_silent")}
        self._began = clock()  # a fresh daemon gives all runners the full time
        self._heard: dict[str, float] = {}
        self._unanswered: set[str] = set()  #: runners that have registered, and may not know it yet
        self._behind: dict[str, tuple[int, float, float]] = {}  #: session, seconds by which its clock is behind ours, and when

    def registered(self, node: str, session: int) -> None:
        with self._lock:
            self._sessions[node] = session
            self._heard[node] = self._clock()
            self._unanswered.add(node)

    def current(self, node: str, session: int) -> bool:
        return self._sessions.get(node) == session

    def hear(self, node: str, session: int) -> None:
        """A word of a runner. Stale: it must register (again)."""
        if not self.current(node, session):
            raise Stale(f"runner {node}: this session is not the current one; register again, unless another agent has taken the name")
        self._heard[node] = self._clock()
        self._unanswered.discard(node)

    def behind(self, node: str, session: int, told: float, now: float) -> float:
        """Seconds by which a runner's clock is behind ours, from a message that was sent at ``told`` by it, and came at ``now`` by ours.

        A cut link may hold a message back for long, and none comes early: the least difference of the session counts.
        """
        known, least, at = self._behind.get(node, (session, math.inf, now))
        found = min(now - told, least + DRIFT * (now - at) if known == session else math.inf)
        self._behind[node] = session, found, now
        return found

    def clock_set(self, by: float) -> None:
        """Our clock was set by so many seconds."""
        self._behind = {node: (session, behind + by, at + by) for node, (session, behind, at) in self._behind.items()}

    def silence(self, node: str) -> float:
        """Seconds since a runner was heard, or since the daemon began to listen."""
        return self._clock() - self._heard.get(node, self._began)

    def reload(self) -> None:
        """Read sessions and states again after a commit."""
        with self._lock:
            rows = self._store.rows("api/fleet")
            self._sessions = {node: session for node, session, _, _ in rows}
            self._states = {node: state for node, _, state, _ in rows}
            self._leaving = {node: leaving for node, _, _, leaving in rows}

    def watch(self) -> None:
        """Store the last words; mark runners that have gone silent or come back; settle drains. A periodic task."""
        now = self._clock()
        with self._lock:
            heard, states, unanswered, sessions = dict(self._heard), dict(self._states), set(self._unanswered), dict(self._sessions)
        self._store.write(seen, {node: max(now - at, 0.0) for node, at in heard.items() if node not in unanswered})
        self._begin_elsewhere(now, heard, sessions)
        busy = {row[0] for row in self._store.rows("api/busy_nodes")}
        for node, state in states.items():
            silent = now - heard.get(node, self._began)
            if state == "up" and silent > self._silent_after:
                self._mark(node, "suspect", f"silent for {silent:.0f} s; its jobs are not started elsewhere while they may be running")
            elif state == "suspect" and node in heard and silent < self._silent_after:
                self._mark(node, "up", "it is heard again")
            elif state == "draining" and node not in busy:
                self._mark(node, "drained", "its last job has left")
        silent_now = {row[0] for row in self._store.rows("api/fleet_silent")}
        if silent_now != self._drained_silent:  # no state changes, but what lies there can be fetched no longer, or again
            self._store.write(look_again, None)
            self._drained_silent = silent_now

    def _begin_elsewhere(self, now: float, heard: Mapping[str, float], sessions: Mapping[str, int]) -> None:
        """Silent runners have stopped their jobs by themselves, if they do so: these jobs need not wait for a person."""
        for node, limit in self._store.rows("api/fenced_nodes", GRACE):
            silent = now - heard.get(node, self._began)
            if silent > limit + MARGIN and self._alive_here(node, "api/worker_processes") is None:
                why = f"silent for {silent:.0f} s: by now it has stopped its jobs by itself (runners.fence_after)"
                with contextlib.suppress(Conflict, Stale):  # it is heard again by now, or was changed already
                    self._store.write(change_node, NodeChange(node, "gone", "daemon", why, session=sessions.get(node)), urgent=True)

    def _mark(self, node: str, state: str, reason: str) -> None:
        """Mark it, unless it has stopped or was changed since the look; then the next look decides."""
        with contextlib.suppress(Conflict):
            self.change(node, state, "daemon", reason)

    def change(self, node: str, state: str, actor: str, reason: str, *, leaving: bool | None = None) -> None:
        """Set a runner's state; ``leaving`` None: unchanged, unless it is to serve again. Conflict: the change is not allowed."""
        self._require(node)
        if leaving is None:
            leaving = state in ("draining", "drained") and self._leaving.get(node, False)
        self._store.write(change_node, NodeChange(node, state, actor, reason, leaving), urgent=True)

    def forget(self, node: str, actor: str) -> None:
        """Declare a runner dead: its jobs are requeued. Refused while its agent or a worker of it is seen alive on this host."""
        self._require(node)
        if self._states[node] not in ("stopped", "gone") and self.silence(node) < self._silent_after:
            last = f"was heard less than {self._silent_after:.0f} s ago, or the daemon has just started"
            raise Conflict(f"runner {node} {last}: stop it with 'stoker runner stop {node}', or wait until it is silent")
        if (pid := self._alive_here(node)) is not None:
            end = f"'stoker runner stop {node} --now' ends it, if not 'kill {pid}'"
            raise Conflict(f"runner {node}: its process {pid} is alive on this host, and no job may run twice; {end}")
        self.change(node, "gone", actor, f"declared dead by {actor}")

    def ended(self, node: str, session: int, why: str) -> None:
        """An engine has proved that no process of a runner lives. Conflict if one is seen here, Stale if it has come back since."""
        if (pid := self._alive_here(node)) is not None:
            raise Conflict(f"its process {pid} is alive on this host")
        self._store.write(change_node, NodeChange(node, "gone", "daemon", why, session=session), urgent=True)

    def _alive_here(self, node: str, processes: str = "api/node_processes") -> int | None:
        """A process of a runner that lives on this host."""
        rows = self._store.rows(processes, node)
        return next((int(pid) for pid, started, boot in rows if boot == boot_id() and alive(Process(pid, started))), None)

    def _require(self, node: str) -> None:
        if node not in self._sessions:
            self.reload()  # the tables have it a moment earlier
        if node not in self._sessions:
            raise NotFound(f"runner {node!r}: there is none; 'stoker runner list' shows them")

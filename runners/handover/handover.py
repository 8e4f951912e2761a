"""Files that a runner sends to other hosts, and fetches from them before a job begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ...engine.client import Client
from ...engine.protocol import SendCheckpoint
from ..host.runs import Run
from ..lease.rundir import BY_DIGEST, checkpoints_of, snapshot_of
from .fetched import Fetcher, WantedDirectory
from .sent_checkpoints import CheckpointSender


class Handover:
    """Both ways, with a connection each."""

    def __init__(self, client: Callable[[], Client], home: Path, node: str, session: int, wake: Callable[[], None]) -> None:
        self._home = home
        self._sender = CheckpointSender(client(), home, node, session)
        self._fetcher = Fetcher(client(), home, node, session, wake)

    def start(self) -> None:
        self._sender.start()
        self._fetcher.start()

    def send(self, wanted: Sequence[SendCheckpoint]) -> None:
        """All that the daemon wants now."""
        self._sender.want(wanted)

    @property
    def taken_at(self) -> float:
        """See `CheckpointSender`."""
        return self._sender.taken_at

    def has_come(self, run: Run) -> bool:
        """Whether all files that a lease begins with are here. If they cannot be fetched, the lease fails."""
        return self._has_code(run) and self._has_checkpoints(run)

    def _has_code(self, run: Run) -> bool:
        target = snapshot_of(self._home, run.assignment)
        if target is None or not (run.assignment.snapshot or "").startswith(BY_DIGEST):
            return True
        told = self._fetcher.look(WantedDirectory(target.name, target, target.name, comes=False))
        if told:
            run.fail("start-failed", f"snapshot: {told}", host_at_fault=True)
        return told == ""

    def _has_checkpoints(self, run: Run) -> bool:
        wanted = run.assignment.fetch
        target = checkpoints_of(run.dir, run.assignment)
        if wanted is None:  # an earlier lease of the job may have waited for files, and been stopped
            return self._fetcher.leave(target)
        if wanted.refused:
            run.fail("lost", f"not started: {wanted.lies}, from where it cannot be fetched: {wanted.refused}")
        elif wanted.digest:
            told = self._fetcher.look(WantedDirectory(wanted.digest, target, f"{wanted.digest} {run.lease}", wanted.size))
            if told:
                run.fail("lost", f"not started: {wanted.lies}: {told}", host_at_fault=True)
            return told == ""
        return False

"""Runners with an ended batch job: the daemon asks the cluster, so that no person has to declare them dead."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import Conflict, Stale
from ..fleet.silence import Fleet
from ..jobs.notes import Note, note
from ..store.store import Store
from ..store.transaction import Transaction
from . import slurm_runners

QUESTION_INTERVAL = 60.0  #: seconds between two questions
log = logging.getLogger(__name__)


class EndedPilots:
    """The end of a batch job of Slurm proves that its runner and all jobs of that are dead, if all of this holds:

    - the daemon has seen that batch job in the queue, and now it has ended there, or is gone (Slurm forgets it after minutes);
    - Slurm follows processes by cgroup, which none of them leaves;
    - its host answers Slurm: jobs that Slurm gives up on an unreachable host may well be running.
    """

    def __init__(self, store: Store, fleet: Fleet) -> None:
        self._store = store
        self._fleet = fleet
        self._told: dict[str, str] = {}  #: the last words on a runner, or with "" on the cluster

    def look(self) -> None:
        """A periodic task. Without serving pilots the cluster is not asked."""
        rows = self._store.rows("api/pilots", slurm_runners.ENGINE)
        if not rows:
            return
        try:
            self._look(rows)
            self._told.pop("", None)
        except Conflict as error:
            self._tell("", f"which pilots have ended is not known: {error}")

    def _look(self, rows: Sequence[tuple[Any, ...]]) -> None:
        known = {(pilot.cluster, str(pilot.job)): pilot for pilot in slurm_runners.queue()}
        if fresh := [node for node, _, cluster, job, _, seen in rows if not seen and (cluster, job) in known]:
            self._store.write(pilots_seen, fresh)
        ended: dict[str, tuple[int, str, str]] = {}
        for node, session, cluster, job, host, seen in rows:
            pilot = known.get((cluster, job))
            if pilot is None and not seen:
                self._tell(node, f"its pilot, job {job} of cluster {cluster}, is not in the queue that this host sees")
            elif pilot is None or pilot.ended:
                ended[node] = session, host, f"its pilot, job {job} of Slurm, has ended"
        if not ended:
            return
        remedy = "once nothing of it runs: 'stoker runner forget {}'"
        if (tracking := slurm_runners.tracking()) != slurm_runners.CGROUP_TRACKING:
            for node, (_, _, why) in ended.items():
                self._tell(node, f"{why}; that proves nothing with {tracking}, which some processes escape; {remedy.format(node)}")
            return
        answering = slurm_runners.answering({host for _, host, _ in ended.values()})
        for node, (session, host, why) in ended.items():
            if host not in answering:
                self._tell(node, f"{why}, but its host {host} does not answer Slurm, so jobs may be running there; {remedy.format(node)}")
                continue
            try:
                self._fleet.ended(node, session, why)
            except Stale:
                pass  # it serves in another pilot
            except Conflict as error:
                self._tell(node, f"{why}; {error}")

    def _tell(self, node: str, words: str) -> None:
        """Once, in the history."""
        if self._told.get(node) != words:
            self._told[node] = words
            log.warning("%s%s", f"runner {node}: " if node else "", words, extra={"action": "pilots"})
            self._store.write(note, Note("pilots.unproved", "daemon", words, node=node or None))


def pilots_seen(tx: Transaction, batch: Sequence[Sequence[str]]) -> Sequence[None]:
    """The batch jobs of these runners are in the queue."""
    rows: list[Mapping[str, Any]] = [{"node_id": node, "seen": True} for nodes in batch for node in nodes]
    tx.update("pilots", ["node_id"], rows)
    return [None] * len(batch)

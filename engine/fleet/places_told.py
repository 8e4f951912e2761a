"""Places of checkpoints, as reported by runners, and the place of each job's."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ..errors import Stale, StokerError
from ..protocol import CheckpointSent, PlaceTold
from ..store.transaction import Transaction


def name_place(tx: Transaction, batch: Sequence[str]) -> Sequence[str]:
    """Give shared directories names; each keeps its first one."""
    names: list[str] = []
    for path in batch:
        known = [name for name, _ in tx.execute("shared_name", path)]
        names.append(known[0] if known else secrets.token_hex(8))
        if not known:
            tx.insert("shared_places", [{"path": path, "name": names[-1]}])
    return names


def take_place(tx: Transaction, node: str, told: PlaceTold) -> None:
    """From now on checkpoints of a runner's jobs lie in this place."""
    tx.update("nodes", ["id"], [{"id": node, "shared_place": told.name, "checkpoints": told.path}])
    tx.touch("nodes", "leases", "queue")


def saved_on(tx: Transaction, jobs: Mapping[int, tuple[str, str]], sizes: Mapping[int, int] = MappingProxyType({})) -> None:
    """Jobs have saved on runners: their newest checkpoints lie in these runners' places, or in a given one ('': in none).

    The daemon's copies of earlier ones are useless from now on. ``sizes``: bytes of the checkpoints.
    """
    nodes, told = ([where[i] for where in jobs.values()] for i in (0, 1))
    rows = tx.execute("places_of_saved", list(jobs), nodes, told) if jobs else []
    tx.update("jobs", ["id"], [
        {"id": job, "place": place, "bundle": None, "not_sent": None, "saved_bytes": sizes.get(job)}
        for job, before, place, more in rows if before != place or more or job in sizes])  # fmt: skip


def take_sent(tx: Transaction, batch: Sequence[CheckpointSent]) -> Sequence[StokerError | None]:
    """Checkpoints were sent to the daemon, so other hosts may begin with them; or could not be, so their jobs wait for their hosts."""
    sessions, answers = dict(tx.execute("sessions")), list[StokerError | None]()
    for sent in batch:
        if sessions.get(sent.node) != sent.session:
            answers.append(Stale(f"runner {sent.node}: another agent has registered under this name since"))
            continue
        answers.append(None)
        if not tx.execute("still_wanted", sent.job, sent.node, sent.after):
            continue  # it has saved anew since, or was told before
        changes = {"bundle": sent.digest, "not_sent": None if sent.digest else sent.refused or "its runner does not say why"}
        tx.update("jobs", ["id"], [{"id": sent.job, **changes}])
        tx.touch("leases", "queue")
    return answers


def drop_bundle(tx: Transaction, batch: Sequence[str]) -> Sequence[None]:
    """The daemon has lost these bundles of runners."""
    jobs = [job for (job,) in tx.execute("jobs_of_bundles", list(batch))]
    tx.update("jobs", ["id"], [{"id": job, "bundle": None} for job in jobs])
    if jobs:
        tx.touch("leases", "queue")
    return [None] * len(batch)


def fetch_at_most(tx: Transaction, batch: Sequence[int]) -> Sequence[None]:
    """The configuration's bound of size, for all runners that fetch."""
    nodes = [node for (node,) in tx.execute("fetching_nodes")]
    tx.update("nodes", ["id"], [{"id": node, "fetch_at_most": bound} for bound in batch[-1:] for node in nodes])
    return [None] * len(batch)

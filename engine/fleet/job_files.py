"""Disk space of jobs on runners, as these report it; a row for each change, so that the view `costs` knows for how long."""

from __future__ import annotations

from collections.abc import Sequence

from ..protocol import JobFiles
from ..store.transaction import Transaction


def take_files(tx: Transaction, node: str, files: Sequence[JobFiles]) -> None:
    """All that lies in the home of a runner: what is not named any more has gone. Runners that share a home tell the same."""
    place, known = _known(tx, node)
    told = {one.job: one.bytes for one in files}
    rows = [(job, told.get(job, 0)) for job in sorted(told.keys() | known.keys()) if told.get(job, 0) != known.get(job, 0)]
    tx.insert("job_files", [{"place": place, "job_id": job, "since": tx.now, "bytes": size} for job, size in rows])


def drop_files(tx: Transaction, node: str) -> None:
    """A runner has gone for good. Where no other one has its home, nobody knows of its files any more: they cost nothing from now on."""
    if not tx.execute("shares_home", node):
        take_files(tx, node, [])


def _known(tx: Transaction, node: str) -> tuple[str, dict[int, int]]:
    """Where a runner's home is, and what was told of it last, by job."""
    ((place,),) = tx.execute("place_of", node)
    return place, dict(tx.execute("job_files_at", place))

"""Disk space of jobs on runners, by their reports; a row for each change, so that the view `costs` knows the duration."""

from __future__ import annotations

from collections.abc import Sequence

from ..protocol import JobFiles
from ..store.transaction import Transaction


def take_files(tx: Transaction, node: str, files: Sequence[JobFiles]) -> None:
    """Take a runner's list of all files in its home: files no longer listed are gone. Runners that share a home send the same list."""
    place, known = _known(tx, node)
    told = {one.job: one.bytes for one in files}
    rows = [(job, told.get(job, 0)) for job in sorted(told.keys() | known.keys()) if told.get(job, 0) != known.get(job, 0)]
    tx.insert("job_files", [{"place": place, "job_id": job, "since": tx.now, "bytes": size} for job, size in rows])


def drop_files(tx: Transaction, node: str) -> None:
    """A runner has gone for good. If no other one has its home, its files are no longer known, and cost nothing from now on."""
    if not tx.execute("shares_home", node):
        take_files(tx, node, [])


def _known(tx: Transaction, node: str) -> tuple[str, dict[int, int]]:
    """A runner's home, and its last report, by job."""
    ((place,),) = tx.execute("place_of", node)
    return place, dict(tx.execute("job_files_at", place))

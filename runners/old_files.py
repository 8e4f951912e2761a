"""Removes files of a runner's home that are no longer needed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from ..engine.protocol import Assignment
from .handover.fetched import clean_parts, marked
from .host.report_tail import Acked, ranks
from .lease.rundir import RunDir, snapshot_of

KEEP_REPORTS = 86400.0  #: seconds after the end of a lease
KEEP_LOGS = 30 * 86400.0
KEEP_SNAPSHOTS = 7 * 86400.0  #: seconds after their last use


def clean(home: Path, in_hand: Collection[int], *, keep_reports: float = KEEP_REPORTS, keep_logs: float = KEEP_LOGS) -> None:
    """Removes raw reports of leases whose end has been acknowledged, much later their logs; and parts of abandoned fetches."""
    clean_parts(home)
    _clean_snapshots(home)
    for directory in RunDir.find(home):
        if directory.lease in in_hand:
            continue
        try:
            age = time.time() - (directory.path / "acked.json").stat().st_mtime
            if age < min(keep_reports, keep_logs) or not Acked.load(directory).closed:
                continue
            for rank in ranks(directory):
                directory.reports(rank).unlink(missing_ok=True)
            if age >= keep_logs:
                shutil.rmtree(directory.path)
                _remove_empty(directory)
        except OSError:
            continue


def keep_snapshots(home: Path, used: Iterable[Assignment]) -> None:
    """Jobs run in these copies of code, so no runner of this home may remove them."""
    for assignment in used:
        target = snapshot_of(home, assignment)
        if target is not None and (mark := marked(target)).exists():
            mark.touch()


def _clean_snapshots(home: Path) -> None:
    """Removes fetched copies of code without recent use; the daemon keeps them as long as jobs may run in them."""
    for mark in (home / "snapshots").glob(".*.fetched"):
        try:
            if time.time() - mark.stat().st_mtime > KEEP_SNAPSHOTS:
                shutil.rmtree(mark.with_name(mark.name[1:].removesuffix(".fetched")), ignore_errors=True)
                mark.unlink()
        except OSError:
            continue


def _remove_empty(directory: RunDir) -> None:
    """Removes the directory of a job that has neither checkpoints nor other leases left."""
    job = directory.path.parent
    mark = marked(directory.checkpoints)
    if {path.name for path in job.iterdir()} <= {directory.checkpoints.name, mark.name}:
        if directory.checkpoints.exists():
            directory.checkpoints.rmdir()
        mark.unlink(missing_ok=True)
        job.rmdir()

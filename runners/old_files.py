"""Removes what nobody needs any more of the home of a runner."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection
from pathlib import Path

from .handover.fetched import clean_parts
from .host.report_tail import Acked, ranks
from .host.rundir import RunDir

KEEP_REPORTS = 86400.0  #: seconds after the end of a lease
KEEP_LOGS = 30 * 86400.0


def clean(home: Path, in_hand: Collection[int], *, keep_reports: float = KEEP_REPORTS, keep_logs: float = KEEP_LOGS) -> None:
    """Of leases whose end has been acknowledged first their raw reports, much later their logs; of what is fetched what was given up."""
    clean_parts(home)
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


def _remove_empty(directory: RunDir) -> None:
    """The directory of a job of which nothing is left, neither checkpoints nor other leases."""
    job = directory.path.parent
    mark = job / f".{directory.checkpoints.name}.fetched"
    if {path.name for path in job.iterdir()} <= {directory.checkpoints.name, mark.name}:
        if directory.checkpoints.exists():
            directory.checkpoints.rmdir()
        mark.unlink(missing_ok=True)
        job.rmdir()

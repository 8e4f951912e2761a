"""Stored data with size and age limit: rows that are thinned, files of the home, and files of jobs on other hosts."""

from __future__ import annotations

import socket
from typing import Any

from ...disk_room import takes
from ...fleet.kept_logs import KEPT_FOR
from ...format import counted
from ...json_rows import objects
from ...store.maintenance import KEEP_BACKUPS
from ..call import Call, endpoint
from ..thread_pools import Kind

DAY = 86_400.0


async def kept(call: Call) -> dict[str, Any]:
    return {"kept": await call.run(Kind.REPORT, _kept, call)}


def _kept(call: Call) -> list[dict[str, Any]]:
    daemon = call.daemon
    home, days = daemon.home, daemon.config.retention
    rows = {row["what"]: row for row in objects(daemon.store, "api/kept_rows")}

    def table(name: str, last: float | None, how: str) -> dict[str, Any]:
        return {"what": name, "where": "database", "rows": rows[name]["rows"], "bytes": None, "oldest": rows[name]["oldest"],
                "seconds": None if last is None else last * DAY, "how": how}  # fmt: skip

    def files(name: str, path: str, seconds: float | None, how: str) -> dict[str, Any]:
        return {"what": name, "where": str(home.path / path), "rows": None, "bytes": takes(home.path / path), "oldest": None,
                "seconds": seconds, "how": how}  # fmt: skip

    thinned = "then one a minute" if days.telemetry > days.telemetry_full else "then removed"
    elsewhere = [
        {"what": f"files of {counted(row['jobs'], 'job')}", "where": row["place"], "rows": None, "bytes": row["bytes"], "oldest": None,
         "seconds": None, "how": "checkpoints are kept until you remove them, logs for 30 days after the end"}
        for row in objects(daemon.store, "api/kept_files")
    ]  # fmt: skip
    return [
        {"what": "database", "where": str(daemon.store.path), "rows": None, "bytes": daemon.store.size, "oldest": None, "seconds": None,
         "how": "jobs, leases and final results are kept for ever; 'stoker compact' gives back what was removed"},
        table("telemetry", days.telemetry, f"every sample for {days.telemetry_full:g} days, {thinned} (retention.telemetry_full)"),
        table("metrics", None, f"every record for {days.metrics_full:g} days, then every tenth step (retention.metrics_full)"),
        table("pipelines", None, f"every step for {days.pipelines_full:g} days, then what was set (retention.pipelines_full)"),
        table("decisions", days.decisions, "then removed (retention.decisions)"),
        table("events", days.events, "then moved to the archive (retention.events)"),
        files("archive", "archive", None, "events of before, until you remove it"),
        files("backups", "backups", None, f"of the nightly ones the newest {KEEP_BACKUPS}; others until you remove them"),
        files("snapshots", "snapshots", None, "copies of 'submit --snapshot': unused ones go after a week, larger ones than 64 MiB never"),
        files("bundles", "bundles", None, "checkpoints and code on their way to other hosts: removed an hour after nothing needs them"),
        files("kept logs", "kept-logs", KEPT_FOR, "ends of logs of other hosts"),
        files("jobs", "jobs", None, "logs for 30 days after the end; checkpoints are results: kept until you remove them"),
        *(row for row in elsewhere if row["where"] != f"{socket.gethostname()}:{home.path}"),
    ]  # fmt: skip


ENDPOINTS = [endpoint("/v1/kept", "read", kept)]

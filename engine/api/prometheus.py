"""`GET /metrics` in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..daemon import Daemon

Sample = tuple[Mapping[str, object], float]


def exposition(daemon: Daemon) -> str:
    """All metrics: jobs, GPUs, runners, leases, decisions, the store and the periodic tasks."""
    store = daemon.store
    lines: list[str] = []

    def family(name: str, kind: str, meaning: str, samples: Iterable[Sample]) -> None:
        lines.append(f"# HELP stoker_{name} {meaning}")
        lines.append(f"# TYPE stoker_{name} {kind}")
        lines.extend(f"stoker_{name}{_labels(labels)} {value}" for labels, value in samples)

    pools, gpus, tasks = store.rows("api/pool_use"), store.rows("api/gpu_samples"), daemon.tasks.states()
    busy = [({"gpu": gpu, "node": node}, use) for gpu, node, use, _ in gpus if use is not None]
    memory = [({"gpu": gpu, "node": node}, used) for gpu, node, _, used in gpus if used is not None]
    up = [({"runner": row[0]}, float(row[2] == "up")) for row in store.rows("api/runners")]
    family("jobs", "gauge", "Jobs by state", [({"state": state}, n) for state, n in store.rows("api/job_counts")])
    family("gpus", "gauge", "GPUs offered, by pool", [({"pool": pool}, total) for pool, total, _ in pools])
    family("gpus_held", "gauge", "GPUs held by live leases, by pool", [({"pool": pool}, held) for pool, _, held in pools])
    family("gpu_utilisation", "gauge", "Busy share of each GPU, newest sample", busy)
    family("gpu_memory_used_bytes", "gauge", "Memory in use of each GPU, newest sample", memory)
    family("runner_up", "gauge", "1 when the runner is up", up)
    family("leases_ended_total", "counter", "Leases by outcome", [({"outcome": o}, n) for o, n in store.rows("api/lease_outcomes")])
    family("task_errors_total", "counter", "Errors of periodic tasks", [({"task": task.name}, task.errors) for task in tasks])
    family("task_seconds", "gauge", "Length of the last run of periodic tasks", [({"task": t.name}, t.last_seconds or 0.0) for t in tasks])
    family("commits_total", "counter", "Transactions committed since the daemon started", [({}, store.commits)])
    family("database_bytes", "gauge", "Size of the database with its write-ahead log", [({}, store.size)])
    family("start_time_seconds", "gauge", "When the daemon started", [({}, daemon.started_at)])
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, object]) -> str:
    def escaped(value: object) -> str:
        return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return "{" + ",".join(f'{key}="{escaped(value)}"' for key, value in labels.items()) + "}" if labels else ""

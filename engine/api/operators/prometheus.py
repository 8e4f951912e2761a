"""`GET /metrics` in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ...jobs.outcomes import OUTCOMES
from ...jobs.states import State
from ...json_rows import objects

if TYPE_CHECKING:
    from ...services import Services

Sample = tuple[Mapping[str, object], float]
RISKS = ("safe", "at risk", "missed", "unknown")  #: of open deadlines, as in the view `outlook`


def exposition(daemon: Services) -> str:
    """All metrics: jobs, pools, GPUs, runners, leases, the store and the periodic tasks.

    Counts of zero are listed too: a series that vanishes would be a gap in a graph, and would raise no alarm.
    """
    store = daemon.store
    lines: list[str] = []

    def family(name: str, kind: str, meaning: str, samples: Iterable[Sample]) -> None:
        lines.append(f"# HELP stoker_{name} {meaning}")
        lines.append(f"# TYPE stoker_{name} {kind}")
        lines.extend(f"stoker_{name}{_labels(labels)} {value}" for labels, value in samples)

    def by_pool(column: str) -> list[Sample]:
        return [({"pool": row["pool"]}, row[column]) for row in pools]

    pools, gpus, tasks = objects(store, "api/pool_metrics"), store.rows("api/gpu_samples"), daemon.tasks.states()
    busy = [({"gpu": gpu, "node": node}, use) for gpu, node, use, _ in gpus if use is not None]
    memory = [({"gpu": gpu, "node": node}, used) for gpu, node, _, used in gpus if used is not None]
    up = [({"runner": row[0]}, float(row[2] == "up")) for row in store.rows("api/runners")]
    failing = [({"pool": row["pool"]}, int(row["error"] is not None)) for row in daemon.scheduling.in_force()]
    risks = [({"pool": row["pool"], "risk": risk}, row[risk.replace(" ", "_")]) for row in pools for risk in RISKS]
    family("jobs", "gauge", "Jobs by state", _counted("state", State, store.rows("api/job_counts")))
    family("gpus", "gauge", "GPUs offered, by pool", by_pool("gpus"))
    family("gpus_held", "gauge", "GPUs held by live leases, by pool", by_pool("gpus_held"))
    family("gpus_wanted", "gauge", "GPUs that jobs wait for, by pool", by_pool("gpus_wanted"))
    family("jobs_waiting", "gauge", "Jobs that wait, by pool", by_pool("waiting"))
    family("jobs_active", "gauge", "Jobs that hold GPUs, by pool", by_pool("active"))
    family("longest_wait_seconds", "gauge", "How long the job has waited for GPUs that waits longest, by pool", by_pool("longest"))
    family("first_starts_total", "counter", "Jobs that have started, by pool", by_pool("starts"))
    family("first_starts_waited_seconds_total", "counter", "Seconds that these had waited for GPUs before, by pool", by_pool("waited"))
    family("open_deadlines", "gauge", "Jobs with a deadline that have not ended, by pool and risk", risks)
    family("policy_failing", "gauge", "1 while the policy of the pool fails, so that nothing starts there", failing)
    family("gpu_utilisation", "gauge", "Busy share of each GPU, newest sample", busy)
    family("gpu_memory_used_bytes", "gauge", "Memory in use of each GPU, newest sample", memory)
    family("runner_up", "gauge", "1 when the runner is up", up)
    family("leases_ended_total", "counter", "Leases by outcome", _counted("outcome", OUTCOMES, store.rows("api/lease_outcomes")))
    family("task_errors_total", "counter", "Errors of periodic tasks", [({"task": task.name}, task.errors) for task in tasks])
    family("task_seconds", "gauge", "Length of the last run of periodic tasks", [({"task": t.name}, t.last_seconds or 0.0) for t in tasks])
    family("commits_total", "counter", "Transactions committed since the daemon started", [({}, store.commits)])
    family("database_bytes", "gauge", "Size of the database with its write-ahead log", [({}, store.size)])
    family("start_time_seconds", "gauge", "When the daemon started", [({}, daemon.started_at)])
    return "\n".join(lines) + "\n"


def _counted(label: str, known: Iterable[str], rows: Iterable[tuple[str, float]]) -> list[Sample]:
    """Counts of ``rows`` (label, count), with a zero for each ``known`` label that is not among them."""
    counts: dict[str, float] = {**dict.fromkeys(map(str, known), 0), **dict(rows)}
    return [({label: name}, count) for name, count in counts.items()]


def _labels(labels: Mapping[str, object]) -> str:
    def escaped(value: object) -> str:
        return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return "{" + ",".join(f'{key}="{escaped(value)}"' for key, value in labels.items()) + "}" if labels else ""

"""Steps of the tuners of data pipelines, as rows of `pipelines`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..protocol import Pipeline


def rows_of(pipeline: Pipeline, of_report: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One row per stage; ``of_report``: job, lease, rank, number and time of the report. Stages keep the order of the report."""
    whole = of_report | {
        "pipeline": pipeline.name, "controller": pipeline.controller, "throughput": pipeline.throughput, "demand": pipeline.demand,
        "reward": pipeline.reward, "cpus": pipeline.cpus, "cpu_used": pipeline.cpu_used, "memory_used": pipeline.memory_used,
        "memory_total": pipeline.memory_total, "why": pipeline.why or None, "refused": pipeline.refused or None,
    }  # fmt: skip
    places: dict[str, int] = {}
    for stage in pipeline.stages:
        latency = None if stage.cpu is None and stage.wait is None else (stage.cpu or 0.0) + (stage.wait or 0.0)
        yield whole | {
            "stage": stage.name, "position": places.setdefault(stage.name, len(places)), "workers": stage.workers, "unit": stage.unit,
            "value": stage.value, "action": stage.action, "wanted": stage.wanted, "latency": latency, "cpu": stage.cpu, "wait": stage.wait,
            "items": stage.throughput, "starved": stage.starved, "blocked": stage.blocked, "queue": stage.queue,
            "queue_bytes": stage.queue_bytes,
        }  # fmt: skip

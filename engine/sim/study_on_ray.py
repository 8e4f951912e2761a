"""The runs of a study as tasks of a Ray cluster. The caller passes the connected library."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from .study import Run, Study, StudyOutcome, one_run

TRIES = 2  #: further tries of a run whose process or node dies


def run_on_ray(ray: Any, study: Study, at_once: int | None) -> Generator[StudyOutcome, None, None]:
    """Like `run_study`: outcomes as they come, and closing the iterator ends runs under way. ``at_once``: None: one per core."""
    whole = ray.put(study)  # once: the tasks of a node share it
    task = ray.remote(num_cpus=1, max_retries=TRIES)(_task)
    todo, under_way = list(reversed(study.runs)), dict[Any, Run]()
    try:
        while todo or under_way:
            while todo and (at_once is None or len(under_way) < at_once):
                run = todo.pop()
                under_way[task.remote(whole, run)] = run
            done, _ = ray.wait(list(under_way))
            for one in done:
                run = under_way.pop(one)
                try:
                    yield ray.get(one)
                except ray.exceptions.RayError as error:
                    yield StudyOutcome(run, None, f"its task ended: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    finally:
        for one in under_way:
            ray.cancel(one, force=True)


def _task(study: Study, run: Run) -> StudyOutcome:
    return one_run(study, run, lambda done, total: None)

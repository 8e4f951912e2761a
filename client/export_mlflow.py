"""Export of jobs' metrics to MLflow: a run for each job. Needs the extra 'mlflow'."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..engine.errors import StokerError, UsageError
from .connection import Connection
from .reported import reported

JOB, AFTER = "stoker.job", "stoker.after"  #: tags of a run: number of its job, and the place up to which it has been exported
MOST_METRICS = 1000  #: metrics of one request to MLflow
ENDED = {"completed": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}


def _library(uri: str | None) -> Any:
    try:
        from mlflow import MlflowClient
    except ImportError:
        raise UsageError("mlflow is not installed here: pip install '.[mlflow]' in Stoker's source tree, or mlflow itself") from None
    return MlflowClient(tracking_uri=uri)


def export(client: Connection, row: dict[str, Any], uri: str | None, experiment: str, *, follow: bool = False) -> Iterator[int]:
    """Log the metrics of a job to its run, which is made once; each metric is exported once."""
    library = _library(uri)
    from mlflow.exceptions import MlflowException

    try:
        yield from _logged(client, row, library, experiment, follow)
    except MlflowException as error:
        raise StokerError(f"mlflow: {' '.join(str(error).split())}") from None


def _logged(client: Connection, row: dict[str, Any], library: Any, experiment: str, follow: bool) -> Iterator[int]:
    from mlflow.entities import Metric

    known = library.get_experiment_by_name(experiment)
    number = known.experiment_id if known is not None else library.create_experiment(experiment)
    tags = {JOB: str(row["id"]), "stoker.owner": row["owner"], "stoker.pool": row["pool"]}
    found = library.search_runs([number], f"tags.`{JOB}` = '{row['id']}'", max_results=1)
    if found:
        run, after = found[0].info.run_id, found[0].data.tags.get(AFTER)
    else:
        started = row["first_start_at"] or row["submitted_at"]
        run = library.create_run(number, start_time=int(started * 1000), tags=tags, run_name=row["name"]).info.run_id
        after = None
        for name, value in row["spec"].get("params", {}).items():
            library.log_param(run, name, value)
    written = 0
    for batch in reported(client, row["id"], after, follow=follow):
        values = [Metric(value.name, value.value, int(value.moment * 1000), value.step) for value in batch.values]
        for begin in range(0, len(values), MOST_METRICS):
            library.log_batch(run, metrics=values[begin : begin + MOST_METRICS])
        library.set_tag(run, AFTER, batch.after)
        written += len(values)
        yield written
    state = client.get(f"/v1/jobs/{row['id']}")["job"]
    if state["state"] in ENDED:
        library.set_terminated(run, ENDED[state["state"]], int(state["finished_at"] * 1000))

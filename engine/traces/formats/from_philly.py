"""Microsoft Philly: the published JSON, and the tables that others have made from it.

Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", ATC'19.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from ..trace import TraceJob
from .family import Family, Jobs, each_row, plain
from .rows import Context, DroppedRow, Row, TraceSource, parse_moment, shown

LARGEST_JSON = 1 << 30  #: bytes unpacked; the published cluster_job_log has 40 MB


class _Detail(msgspec.Struct):
    gpus: list[Any] = []


class _Attempt(msgspec.Struct):
    start_time: str | None = None
    end_time: str | None = None
    detail: list[_Detail] | None = None


class _Job(msgspec.Struct):
    jobid: str
    submitted_time: str | None = None
    attempts: list[_Attempt] = []
    status: str | None = None
    vc: str | None = None
    user: str | None = None


def _log(source: TraceSource, context: Context) -> Jobs:
    """Read cluster_job_log, an array of jobs. Its 'lines' are positions in that array, from 1."""
    try:
        entries = msgspec.json.decode(source.bytes(LARGEST_JSON), type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"{source.path}: is not the JSON array of cluster_job_log ({error})") from None
    except UnicodeDecodeError:
        raise ValueError(f"{source.path}: is not UTF-8 text, so it is not cluster_job_log") from None
    for line, entry in enumerate(entries, 1):
        try:
            yield line, _of_log(entry, line, context)
        except msgspec.ValidationError as error:
            context.tally.drop(line, "entry is not as published", f"entry {line}: {error}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"{source.path}: entry {line} is not JSON ({error})") from None
        except DroppedRow as drop:
            context.tally.drop(line, drop.reason, drop.detail)


def _of_log(entry: msgspec.Raw, line: int, context: Context) -> TraceJob:
    job = msgspec.json.decode(entry, type=_Job)
    values = msgspec.json.decode(entry, type=dict[str, Any])
    raw = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    row = Row(line, raw, context)
    return TraceJob(
        key=row.key("jobid"),
        submitted=row.moment("submitted_time"),
        duration=_run_time(job),
        gpus_min=row.whole_gpus(_gpus(job), "attempts"),
        user_name=row.text("user"),
        pool=row.text("vc"),
        status=row.text("status"),
        raw=raw,
    )


def _run_time(job: _Job) -> float:
    """Seconds that its attempts ran, retries included: the time that the cluster spent on it."""
    started = [attempt for attempt in job.attempts if attempt.start_time not in (None, "", "None")]
    if not started:
        raise DroppedRow("never started", f"job {shown(job.jobid)}: none of its {len(job.attempts)} attempts started")
    if started[-1].end_time in (None, "", "None"):
        raise DroppedRow("no end", f"job {shown(job.jobid)}: its last attempt has no end")
    total = 0.0
    for attempt in started:
        if attempt.end_time in (None, "", "None"):
            continue  # the end of this attempt was lost, but a later one began
        began, ended = parse_moment("start_time", attempt.start_time)[1], parse_moment("end_time", attempt.end_time)[1]
        if ended < began:
            raise DroppedRow("end before start", f"job {shown(job.jobid)}: an attempt ends before it starts")
        total += ended - began
    return total


def _gpus(job: _Job) -> int:
    """GPUs of the first attempt that was placed; all attempts of a job ask for the same."""
    for attempt in job.attempts:
        if found := sum(len(node.gpus) for node in attempt.detail or []):
            return found
    return 0


_POLLUX = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")
_JOINED = ("rfold_id", "timestamp", "num_gpus", "duration", "vc")
_RFOLD = ("#job id", "arrival time (sec)", "topology", "shape", "size", "duration (sec)")
_OF_POLLUX = plain("timestamp", "num_gpus", key=None, dated=True, pool="cluster")
_OF_RFOLD = plain("timestamp", "num_gpus", key="rfold_id", dated=True, pool="vc")
_FOLDED = plain("arrival time (sec)", "size", key="#job id", dated=True, duration="duration (sec)")
FAMILIES = (
    Family("philly", "Philly as published: cluster_job_log, JSON", ("jobid", "submitted_time", "attempts"), _log),
    Family("philly-csv", "Philly as Pollux joined it", _POLLUX, each_row(_OF_POLLUX)),
    Family("philly-joined", "Philly, RFold's rows with time and VC", _JOINED, each_row(_OF_RFOLD)),
    Family("rfold", "Philly and other traces as RFold has them", _RFOLD, each_row(_FOLDED)),
)

"""The report as one self-contained HTML page with images and style."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import format as fmt
from ..pages.components import Cell, cells, tile
from ..pages.markup import Safe, h
from .data import MOST_CURVES, ONE_BY_ONE, Report
from .html import document, figure
from .style import zone

SECTIONS = {
    "gantt": ("{devices} by time", "One row a {device}, one bar a lease, one colour a job.", "No lease was granted in this time."),
    "jct": ("Job completion time", "Share of completed jobs that were done within a time of their submission.", "No job has completed."),
    "waiting": ("Waiting by reason", "", "There is no job to show."),
    "utilisation": ("Utilisation", "", "No runner has offered a GPU or CPU slot."),
    "queue": ("Queue length", "Jobs that wait and jobs that hold {devices}, over time.", "There is no job to show."),
    "loss": ("Loss", "", "No job has reported a loss."),
    "pipeline": ("Data pipeline", "", "No job has told of a data pipeline that sizes itself."),
    "causes": ("What tuning has learnt", "Keys and workload on the left, what explains, and the objective: causes by simulation.", ""),
}


def render(report: Report, title: str, images: Mapping[str, bytes]) -> str:
    """The page."""
    figures = [_figure(report, name, images.get(name)) for name in SECTIONS]
    part = "Some answers of the daemon were cut off at its row limit: the figures show a part."
    cut = h("p", part, class_="bad") if report.truncated else None
    return document(title, _span(report), cut, h("dl", _tiles(report)), figures, _jobs(report))


def _clock(moment: float | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    return fmt.MISSING if moment is None else fmt.local(moment).strftime(form)


def _span(report: Report) -> str:
    name = zone(report.end)[1]
    return f"{_clock(report.begin)} to {_clock(report.end)}, made {_clock(report.made_at)}; times are {name}."


def _tiles(report: Report) -> list[Safe]:
    of = report.summary
    jobs, jct, waited, deadlines, reward, gpus = (of[key] for key in ("jobs", "jct", "waiting", "deadlines", "reward", "gpus"))
    ended = [f"{jobs[state]} {state}" for state in ("failed", "cancelled", "running", "waiting") if jobs[state]]
    measured = f"{fmt.percent(gpus['measured'])} measured" if gpus["measured"] is not None else "none measured"
    return [
        tile("Jobs completed", f"{jobs['completed']} of {jobs['total']}", ", ".join(ended)),
        tile("JCT, mean", fmt.duration(jct["mean"]), f"median {fmt.duration(jct['median'])}, p99 {fmt.duration(jct['p99'])}"),
        tile("Waited, mean", fmt.duration(waited["mean"]), f"median {fmt.duration(waited['median'])}, p99 {fmt.duration(waited['p99'])}"),
        tile("Deadlines met", f"{deadlines['met']} of {deadlines['due']}", f"{deadlines['promised'] - deadlines['due']} not yet due"),
        tile("Weighted reward", fmt.percent(reward["share"]), f"{reward['earned']:g} of {reward['possible']:g}"),
        tile("Preemptions", str(of["preemptions"]), f"{of['failed_attempts']} failed attempt{'s' * (of['failed_attempts'] != 1)}"),
        tile(f"{report.device}-time", fmt.duration(gpus["seconds"]), f"on {gpus['count']} {report.device}s"),
        tile("Cost", f"{of['cost']['all']:.4g}", _cost(of["cost"])),
        tile("Utilisation", fmt.percent(gpus["leased"]), f"under lease; {measured}"),
        tile("Makespan", fmt.duration(of["makespan"])),
    ]


def _cost(cost: Mapping[str, float]) -> str:
    return f"of it {cost['storage']:.4g} for storage" if cost["storage"] else "of GPU-time; see [prices]"


def _figure(report: Report, name: str, image: bytes | None) -> Safe | None:
    heading, caption, nothing = SECTIONS[name]
    if image is None and not nothing:
        return None  # few pools are tuned
    words = {"device": report.device, "devices": report.device + "s"}
    heading = heading.format(**words)
    caption = caption.format(**words) or _caption(report, name)
    return figure(heading, caption, image, nothing)


def _caption(report: Report, name: str) -> str:
    """The captions that depend on the report."""
    if name == "waiting":
        few = report.summary["jobs"]["total"] <= ONE_BY_ONE
        return (
            "Time without a " + report.device + ", by what each job waited for."
            if few
            else "Mean wait of the jobs of each model, by reason."
        )
    if name == "utilisation":
        cpu = " The slots are CPU slots: measured is the CPU use of their workers." if report.device != "GPU" else ""
        return f"Share of the {report.device}s that leases held, and what was measured on them.{cpu}"
    if name == "pipeline":
        job = report.pipeline[0] if report.pipeline else {"name": "", "job_id": 0}
        return f"Of {job['name']} #{job['job_id']}, whose tuner told last; 'stoker pipeline JOB --plot FILE' draws that of another job."
    curves = report.curves[0]["curves"] if report.curves else 0
    part = f" The {MOST_CURVES} of {curves} jobs that reported last." if curves > MOST_CURVES else ""
    return f"Training loss as rank 0 reported it; a new colour is a new attempt.{part}"


def _deadline(job: Mapping[str, Any], now: float) -> tuple[str, str]:
    """The verdict on the last deadline, and its style class."""
    if job["deadline"] is None or job["outcome"] == "cancelled":
        return fmt.MISSING, ""
    if job["state"] == "completed" and job["finished"] <= job["deadline"]:
        return f"met, {fmt.duration(job['deadline'] - job['finished'])} early", "good"
    if job["finished"] is None and now < job["deadline"]:
        return "by " + _clock(job["deadline"], "%m-%d %H:%M:%S"), ""
    late = (job["finished"] or now) - job["deadline"]
    return (f"missed, {fmt.duration(late)} late" if job["state"] not in ("failed", "cancelled") else "missed"), "bad"


COLUMNS = (
    "#",
    "name",
    "state",
    "user",
    "GPUs",
    "submitted",
    "waited",
    "JCT",
    "GPU-time",
    "cost",
    "stored",
    "attempts",
    "deadline",
    "steps",
    "loss",
    "reached",
)


def _cells(job: Mapping[str, Any], now: float) -> list[Cell]:
    """A job's row."""
    state = job["state"] if job["outcome"] in (None, job["state"]) else f"{job['state']}: {job['outcome']}"
    number = str(job["attempts"]) + (f" ({job['preemptions']} preempted)" if job["preemptions"] else "")
    steps = fmt.MISSING if job["step"] is None else f"{job['step']}" + (f" / {job['total_steps']}" if job["total_steps"] else "")
    reached = f"{job['metric']} {fmt.number(job['value'])}" if job["metric"] else fmt.MISSING
    return [
        Cell(str(job["id"]), "n"),
        Cell(job["name"]),
        Cell(state, {"completed": "good", "failed": "bad"}.get(job["state"], "")),
        Cell(job["owner"]),
        Cell(str(job["gpus"]), "n"),
        Cell(_clock(job["submitted"], "%m-%d %H:%M:%S"), "n"),
        Cell(fmt.duration(job["waited"]), "n"),
        Cell(fmt.duration(job["jct"]), "n"),
        Cell(fmt.duration(job["gpu_seconds"]), "n"),
        Cell(f"{job['cost']:.4g}", "n"),
        Cell(fmt.size(job["stored_bytes"]), "n"),
        Cell(number),
        Cell(*_deadline(job, now)),
        Cell(steps, "n"),
        Cell(fmt.number(job["loss"]), "n"),
        Cell(reached),
    ]


def _note(job: Mapping[str, Any]) -> str:
    return "" if job["state"] == "completed" else job["note"] or ""


def _jobs(report: Report) -> Safe | None:
    if not report.jobs:
        return None
    total = report.summary["jobs"]["total"]
    part = f"The newest {len(report.jobs)} of {total}." if total > len(report.jobs) else ""
    return cells("Jobs", COLUMNS, ((_cells(job, report.end), _note(job)) for job in report.jobs), part)

"""The report as one HTML page that needs nothing else: images and style are inside it."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from datetime import datetime
from html import escape
from typing import Any

from .. import format as fmt
from .data import MOST_CURVES, ONE_BY_ONE, Report
from .style import zone

STYLE = """
:root { color-scheme: light dark; --ink: #1d2129; --soft: #5d6673; --paper: #fff; --card: #f5f6f8; --line: #dfe2e7;
        --good: #00694d; --bad: #a93f00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --soft: #a0a8b4; --paper: #16181c; --card: #22252b; --line: #383d46; --good: #4fc9a4; --bad: #ff9a5c; }
  figure img { filter: brightness(.9); }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 64rem; background: var(--paper); color: var(--ink);
       font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; }
p, figcaption { color: var(--soft); margin: .25rem 0 .75rem; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .6rem; margin: 1.25rem 0; }
dl div { background: var(--card); border-radius: .5rem; padding: .6rem .8rem; break-inside: avoid; }
dt { color: var(--soft); font-size: .8rem; }
dd { margin: 0; font-size: 1.35rem; font-weight: 600; line-height: 1.3; }
dd small { display: block; font-size: .75rem; font-weight: 400; color: var(--soft); }
figure { margin: 0; break-inside: avoid; }
.wide { overflow-x: auto; border-radius: .5rem; }
figure img { display: block; width: 100%; min-width: 40rem; background: #fff; border-radius: .5rem; }
table { border-collapse: collapse; font-size: .85rem; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; vertical-align: top; }
th { color: var(--soft); font-weight: 600; }
td.n, th.n { text-align: right; }
td.note { white-space: normal; min-width: 12rem; overflow-wrap: anywhere; }
.good { color: var(--good); } .bad { color: var(--bad); }
@media print {
  :root { color-scheme: light; --ink: #000; --soft: #444; --paper: #fff; --card: #fff; --line: #bbb; --good: #000; --bad: #000; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  dl div { border: 1px solid var(--line); }
  .wide { overflow: visible; } figure img { min-width: 0; filter: none; } table { font-size: 6.5pt; } th, td { padding: .15rem .25rem; }
  td.note { min-width: 0; }
}
"""

SECTIONS = {
    "gantt": ("{devices} by time", "One row a {device}, one bar a lease, one colour a job.", "No lease was granted in this time."),
    "jct": ("Job completion time", "Share of completed jobs that were done within a time of their submission.", "No job has completed."),
    "waiting": ("Waiting by reason", "", "There is no job to show."),
    "utilisation": ("Utilisation", "", "No runner has offered a GPU or CPU slot."),
    "queue": ("Queue length", "Jobs that wait and jobs that hold {devices}, over time.", "There is no job to show."),
    "loss": ("Loss", "", "No job has reported a loss."),
}


def render(report: Report, title: str, images: Mapping[str, bytes], made_at: float) -> str:
    """The page. Every text from the database is escaped."""
    figures = "".join(_figure(report, name, images.get(name)) for name in SECTIONS)
    cut = "<p class=bad>Some answers of the daemon were cut off at its row limit: the figures show a part.</p>" if report.truncated else ""
    return (
        "<!DOCTYPE html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n"
        '<meta name=viewport content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n<p>{escape(_span(report, made_at))}</p>\n{cut}"
        f"<dl>\n{_tiles(report)}</dl>\n{figures}{_jobs(report)}</body>\n</html>\n"
    )


def _clock(moment: float | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    return fmt.MISSING if moment is None else datetime.fromtimestamp(moment).astimezone().strftime(form)


def _span(report: Report, made_at: float) -> str:
    name = zone(report.end)[1]
    return f"{_clock(report.begin)} to {_clock(report.end)}, made {_clock(made_at)}; times are {name}."


def _tile(name: str, value: str, more: str = "") -> str:
    return f"<div><dt>{escape(name)}</dt><dd>{escape(value)}{f'<small>{escape(more)}</small>' if more else ''}</dd></div>\n"


def _tiles(report: Report) -> str:
    of = report.summary
    jobs, jct, waited, deadlines, reward, gpus = (of[key] for key in ("jobs", "jct", "waiting", "deadlines", "reward", "gpus"))
    ended = [f"{jobs[state]} {state}" for state in ("failed", "cancelled", "running", "waiting") if jobs[state]]
    measured = f"{fmt.percent(gpus['measured'])} measured" if gpus["measured"] is not None else "none measured"
    return "".join(
        (
            _tile("Jobs completed", f"{jobs['completed']} of {jobs['total']}", ", ".join(ended)),
            _tile("JCT, mean", fmt.duration(jct["mean"]), f"median {fmt.duration(jct['median'])}, p99 {fmt.duration(jct['p99'])}"),
            _tile(
                "Waited, mean", fmt.duration(waited["mean"]), f"median {fmt.duration(waited['median'])}, p99 {fmt.duration(waited['p99'])}"
            ),
            _tile("Deadlines met", f"{deadlines['met']} of {deadlines['due']}", f"{deadlines['promised'] - deadlines['due']} not yet due"),
            _tile("Weighted reward", fmt.percent(reward["share"]), f"{reward['earned']:g} of {reward['possible']:g}"),
            _tile("Preemptions", str(of["preemptions"]), f"{of['failed_attempts']} attempts failed"),
            _tile(f"{report.device}-time", fmt.duration(gpus["seconds"]), f"on {gpus['count']} {report.device}s"),
            _tile("Utilisation", fmt.percent(gpus["leased"]), f"under lease; {measured}"),
            _tile("Makespan", fmt.duration(of["makespan"])),
        )
    )


def _figure(report: Report, name: str, image: bytes | None) -> str:
    heading, caption, nothing = SECTIONS[name]
    words = {"device": report.device, "devices": report.device + "s"}
    heading = heading.format(**words)
    caption = caption.format(**words) or _caption(report, name)
    if image is None:
        return f"<h2>{escape(heading)}</h2>\n<p>{escape(nothing)}</p>\n"
    data = base64.b64encode(image).decode()
    return (
        f"<h2>{escape(heading)}</h2>\n<figure><div class=wide tabindex=0>"
        f'<img src="data:image/png;base64,{data}" alt="{escape(heading)}"></div>\n<figcaption>{escape(caption)}</figcaption></figure>\n'
    )


def _caption(report: Report, name: str) -> str:
    """Captions that depend on what there is."""
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
    curves = report.curves[0]["curves"] if report.curves else 0
    part = f" The {MOST_CURVES} of {curves} jobs that reported last." if curves > MOST_CURVES else ""
    return f"Training loss as rank 0 reported it; a new colour is a new attempt.{part}"


def _deadline(job: Mapping[str, Any], now: float) -> tuple[str, str]:
    """Verdict on the last deadline and its class of style."""
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
    "attempts",
    "deadline",
    "steps",
    "loss",
    "reached",
    "note",
)
_NUMBERS = frozenset({"#", "GPUs", "waited", "JCT", "GPU-time", "attempts", "steps", "loss"})


def _cells(job: Mapping[str, Any], now: float) -> Iterable[tuple[str, str]]:
    """Text and class of every cell of a job's row."""
    state = job["state"] if job["outcome"] in (None, job["state"]) else f"{job['state']}: {job['outcome']}"
    number = str(job["attempts"]) + (f" ({job['preemptions']} preempted)" if job["preemptions"] else "")
    steps = fmt.MISSING if job["step"] is None else f"{job['step']}" + (f" / {job['total_steps']}" if job["total_steps"] else "")
    reached = f"{job['metric']} {fmt.number(job['value'])}" if job["metric"] else fmt.MISSING
    note = "" if job["state"] == "completed" else job["note"] or ""
    yield str(job["id"]), "n"
    yield job["name"], ""
    yield state, {"completed": "good", "failed": "bad"}.get(job["state"], "")
    yield job["owner"], ""
    yield str(job["gpus"]), "n"
    yield _clock(job["submitted"], "%m-%d %H:%M:%S"), ""
    yield fmt.duration(job["waited"]), "n"
    yield fmt.duration(job["jct"]), "n"
    yield fmt.duration(job["gpu_seconds"]), "n"
    yield number, "n"
    yield _deadline(job, now)
    yield steps, "n"
    yield fmt.number(job["loss"]), "n"
    yield reached, ""
    yield note, "note"


def _jobs(report: Report) -> str:
    if not report.jobs:
        return ""
    head = "".join(f"<th{' class=n' if name in _NUMBERS else ''}>{name}" for name in COLUMNS)
    rows = "".join(
        "<tr>" + "".join(f"<td{f' class={kind}' if kind else ''}>{escape(text)}" for text, kind in _cells(job, report.end)) + "\n"
        for job in report.jobs
    )
    total = report.summary["jobs"]["total"]
    part = f"<p>The newest {len(report.jobs)} of {total}.</p>\n" if total > len(report.jobs) else ""
    return f"<h2>Jobs</h2>\n{part}<div class=wide tabindex=0><table>\n<tr>{head}\n{rows}</table></div>\n"

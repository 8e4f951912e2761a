"""The report of a simulation study as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .html import document, figure, table
from .sim_plots import MOST_CHARTS, Comparison, draw

SECTIONS = {
    "bars": ("Side by side", "Means over the seeds; lines are one standard deviation between them.", "No run was completed."),
    "jct": ("Job completion time", "Share of the finished jobs that were done within a time of their submission.", "No job finished."),
    "wait": ("Queueing delay", "Share of the finished jobs that held no GPU for at most so long.", "No job finished."),
    "utilisation": ("Utilisation", "Share of the GPUs that jobs held, averaged over slices of time.", ""),
    "queue": ("Queue length", "Jobs that wait, averaged over slices of time.", ""),
    "gantt": (
        "GPUs by time",
        f"One row a GPU, one bar a stay of a job, drawn from the lowest of its GPUs on; at most {MOST_CHARTS} policies.",
        "No job started.",
    ),
}


def write(study: Comparison, out: Path, *, title: str, lead: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Path:
    """Write the figures as PNG and ``index.html`` into ``out``; the path of the page. ``rows`` are the table of figures."""
    out.mkdir(parents=True, exist_ok=True)
    index = out / "index.html"
    index.write_text(render(draw(study, out), title, lead, header, rows), encoding="utf-8")
    return index


def render(images: Mapping[str, bytes], title: str, lead: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The page. Every text is escaped."""
    figures = "".join(figure(heading, caption, images.get(name), nothing) for name, (heading, caption, nothing) in SECTIONS.items())
    return document(title, lead, table("Figures", header, rows) + figures)

"""The report of a simulation study as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..pages.components import table
from ..pages.markup import h
from .html import document, figure
from .sim_plots import FIGURES, MOST_CHARTS, Comparison
from .style import write_figures

SECTIONS = {
    "bars": ("Side by side", "Means over the seeds; lines are one standard deviation between them.", "No run was completed."),
    "jct": ("Job completion time", "Share of the finished jobs that were done within a time of their submission.", "No job finished."),
    "wait": ("Queueing delay", "Share of the finished jobs that held no GPU for at most so long.", "No job finished."),
    "utilisation": ("Utilisation", "Share of the GPUs that jobs held, averaged over slices of time.", ""),
    "queue": ("Queue length", "Jobs that wait, averaged over slices of time.", ""),
    "gantt": (
        "GPUs by time",
        f"One row a GPU, one colour a job, and a bar for each stay on neighbouring GPUs; at most {MOST_CHARTS} policies.",
        "No job started.",
    ),
}


@dataclass(frozen=True, slots=True)
class Words:
    """The texts of the page beside its figures."""

    title: str
    lead: str
    about: Sequence[str]  #: sentences about the simulated workload
    wrong: Sequence[str]  #: sentences about failures
    header: Sequence[str]  #: header of the table of figures
    rows: Sequence[Sequence[str]]


def write(study: Comparison, out: Path, words: Words) -> Path:
    """Write the figures as PNG and ``index.html`` into ``out``; the path of the page."""
    out.mkdir(parents=True, exist_ok=True)
    index = out / "index.html"
    index.write_text(render(write_figures(FIGURES, study, out), words), encoding="utf-8")
    return index


def render(images: Mapping[str, bytes], words: Words) -> str:
    """The page."""
    wrong = [h("p", sentence, class_="bad") for sentence in words.wrong]
    about = [h("h2", "What was simulated"), *(h("p", sentence) for sentence in words.about)]
    figures = [figure(heading, caption, images.get(name), nothing) for name, (heading, caption, nothing) in SECTIONS.items()]
    return document(words.title, words.lead, wrong, table("Figures", words.header, words.rows), about, figures)

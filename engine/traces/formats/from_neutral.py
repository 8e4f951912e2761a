"""Plain tables of no particular system: submission, duration, GPUs."""

from __future__ import annotations

from .family import Family, each_row, plain

FAMILIES = (
    Family(
        "side-by-side",
        "Neutral table for comparing simulators",
        ("job_id", "job_key", "submit", "duration", "num_gpu", "vc"),
        each_row(plain("submit", "num_gpu", key="job_key", dated=True, pool="vc")),
    ),
)

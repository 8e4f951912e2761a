"""Jobs before their submission, put into a View to forecast them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from ...policies.contract import Demand, Phase, View
from ..spec.model import JobSpec

_DEMANDS = {"best-effort": Demand.BEST_EFFORT, "soft": Demand.SOFT, "strict": Demand.STRICT}
#: Values for a job that has never run, in the optional columns of a View.
_OPTIONAL = {
    "protected": False, "protected_until": -math.inf, "profile": -1, "progress": math.nan, "lease_end": math.inf,
    "remaining_most": math.nan, "uncertainty": math.nan, "overhead": math.nan,
}  # fmt: skip


def with_job(view: View, spec: JobSpec, *, remaining: float = math.nan, profile_gpus: int = 0) -> View:
    """The view with one more, pending job, in the last row. ``remaining``: its seconds, unless its spec gives them."""
    jobs = view.jobs
    new: dict[str, Any] = {
        "id": max(jobs.id.tolist(), default=0) + 1, "submitted_at": view.now, "phase": Phase.PENDING, "gpus_min": spec.gpus_min,
        "gpus_max": spec.gpus_max, "priority": spec.priority, "demand": _DEMANDS[spec.demand.kind],
        "deadline": spec.deadline or math.inf, "attained": 0.0, "run_time": 0.0, "lease_time": 0.0, "preemptions": 0,
        "remaining": remaining if spec.estimate is None else spec.estimate, "gpu_memory": spec.memory_of_a_gpu, "user": -1,
        "model": -1, "alloc_start": len(jobs.alloc_gpus), "tier_start": len(jobs.tier_deadline) + len(spec.demand.tiers),
    }  # fmt: skip
    whole = spec.memory_of_a_gpu
    of_spec = {"profile_gpus": profile_gpus, "need": whole, "kept": whole, "begins": spec.begin == "auto"}
    new |= {name: value for name, value in (_OPTIONAL | of_spec).items() if getattr(jobs, name) is not None}
    columns = {name: np.append(getattr(jobs, name), value).astype(getattr(jobs, name).dtype) for name, value in new.items()}
    said = {"kind": spec.kind, "backbone": spec.starts_from or "", "share": spec.share.gpu if spec.share else ""}
    for name, value in said.items():
        if value or getattr(jobs, name) is not None:
            of_others = [""] * len(jobs) if getattr(jobs, name) is None else getattr(jobs, name)
            columns[name] = np.array([*of_others, value], dtype=object)
    columns["tier_deadline"] = np.append(jobs.tier_deadline, [tier.deadline for tier in spec.demand.tiers])
    columns["tier_reward"] = np.append(jobs.tier_reward, [tier.reward for tier in spec.demand.tiers])
    return replace(view, jobs=replace(jobs, **columns))

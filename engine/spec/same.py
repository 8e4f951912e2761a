"""Whether a repeated submission with the same idempotency key is the same: the fields in which two specs differ."""

from __future__ import annotations

import msgspec

from .model import Demand, JobSpec

SLACK = 60.0  #: seconds by which a repetition may take longer from its writing to its arrival than the first submission
#: attributes with another name in files
_WRITTEN = {"gpus_min": "gpus", "gpus_max": "gpus", "array_index": "array", "array_cap": "array.max_running"}
#: fields of the key itself do not count, nor does an array's number of tasks, which may grow
_PASSED_OVER = {"idempotency_key", "user", "array_size"}


def differences(first: JobSpec, again: JobSpec, later: float) -> list[str]:
    """Fields, by their written names, in which a submission differs from the one ``later`` seconds ago; [] if it is the same."""
    fields = []
    for name in msgspec.structs.fields(JobSpec):
        before, now = getattr(first, name.name), getattr(again, name.name)
        if name.name in _PASSED_OVER or before == now:
            continue
        if name.name == "demand":
            if not _same_demand(before, now, later):
                fields.append({"strict": "deadline", "soft": "soft"}.get(again.demand.kind, "demand"))
        else:
            fields.append(_WRITTEN.get(name.name, name.name))
    return list(dict.fromkeys(fields))


def _same_demand(first: Demand, again: Demand, later: float) -> bool:
    """The same deadlines, or the same time until each: ``deadline: 2h`` is another moment at each submission."""
    if first.kind != again.kind or len(first.tiers) != len(again.tiers):
        return False
    return all(
        one.reward == other.reward and (one.deadline == other.deadline or abs(other.deadline - one.deadline - later) <= SLACK)
        for one, other in zip(first.tiers, again.tiers, strict=True)
    )

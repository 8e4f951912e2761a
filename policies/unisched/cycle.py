"""The decisions of a cycle, kept from one plan to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..contract import Memory


@dataclass(frozen=True, slots=True)
class Cycle:
    """Decisions at the begin of a cycle, by job id, as rows of the view change."""

    ends: float  #: when the next cycle begins
    chosen: Mapping[int, bool] = field(default_factory=dict)  #: jobs that run, and whether on more nodes than they need
    planned: frozenset[int] = frozenset()  #: jobs that are to run later and still meet a deadline
    refused: frozenset[int] = frozenset()  #: jobs whose deadlines cannot be met beside the others'
    hurried: frozenset[int] = frozenset()  #: jobs for which the cycle was decided again early
    quiet: bool = False  #: by the last plan the policy need not be asked at the next cycle
    status: str = "ok"  #: status of the plan that began it
    gap: float | None = None  #: certified gap of that plan


def kept(cycle: Cycle) -> dict[str, Any]:
    """The cycle as the policy's memory."""
    chosen = [[job, apart] for job, apart in cycle.chosen.items()]
    planned, refused, hurried = (sorted(some) for some in (cycle.planned, cycle.refused, cycle.hurried))
    return {"ends": cycle.ends, "chosen": chosen, "planned": planned, "refused": refused, "hurried": hurried, "quiet": cycle.quiet}


def last_cycle(memory: Memory) -> Cycle | None:
    """The cycle that `kept` stored; None: there is none."""
    if memory is None:
        return None
    planned, refused, hurried = (frozenset(memory[name]) for name in ("planned", "refused", "hurried"))
    return Cycle(memory["ends"], dict(memory["chosen"]), planned, refused, hurried, memory["quiet"])

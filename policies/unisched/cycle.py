"""What a cycle has decided, from one plan of it to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..contract import Memory


@dataclass(frozen=True, slots=True)
class Cycle:
    """What was decided at the beginning of a cycle, by job (id); it does not change when rows do."""

    ends: float  #: when the next cycle begins
    chosen: Mapping[int, bool] = field(default_factory=dict)  #: jobs that are to run, and whether on more nodes than they need
    planned: frozenset[int] = frozenset()  #: jobs that are to run later and still meet a deadline
    refused: frozenset[int] = frozenset()  #: jobs whose deadlines cannot be met beside the others'
    hurried: frozenset[int] = frozenset()  #: jobs for which everything was decided anew within the cycle
    quiet: bool = False  #: by the last plan nobody need be asked when the next cycle begins
    status: str = "ok"  #: of the plan with which it began
    gap: float | None = None  #: the same


def kept(cycle: Cycle) -> dict[str, Any]:
    """For the memory of the policy."""
    chosen = [[job, apart] for job, apart in cycle.chosen.items()]
    planned, refused, hurried = (sorted(some) for some in (cycle.planned, cycle.refused, cycle.hurried))
    return {"ends": cycle.ends, "chosen": chosen, "planned": planned, "refused": refused, "hurried": hurried, "quiet": cycle.quiet}


def last_cycle(memory: Memory) -> Cycle | None:
    """What `kept` has put there; None: nothing."""
    if memory is None:
        return None
    planned, refused, hurried = (frozenset(memory[name]) for name in ("planned", "refused", "hurried"))
    return Cycle(memory["ends"], dict(memory["chosen"]), planned, refused, hurried, memory["quiet"])

"""What a policy says: of its plans, and in one of them."""

from __future__ import annotations

from collections.abc import Mapping

from ...policies.contract import Allocation, Policy


def says_of_its_plan(policy: Policy, name: str) -> bool:
    """Whether the class that has this plan(), or one made from it, declares ``name``: what a class says of its own is true of no other."""
    if "plan" in getattr(policy, "__dict__", ()):
        return False
    for kind in type(policy).__mro__:
        if name in vars(kind):
            return bool(vars(kind)[name])
        if "plan" in vars(kind):
            return False
    return False


def in_a_line(plan: object) -> str:
    """A plan in a line: what it gives, as far as that can be read."""
    allocations = getattr(plan, "allocations", None)
    if not isinstance(allocations, Mapping):
        return repr(plan)[:200]
    given = [f"{job}: {allocation.gpus if isinstance(allocation, Allocation) else allocation}" for job, allocation in allocations.items()]
    return "{" + ", ".join(given[:10]) + (", …" if len(given) > 10 else "") + "}"

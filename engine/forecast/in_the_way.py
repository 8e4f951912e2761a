"""Obstacles of a waiting job besides taken GPUs: a job before it that it may not pass, and why it is not packed with another.

A separate instance of the policy is asked for a plan of the present pool, and once more with another setting.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

from ...policies.contract import Plan, Policy, View
from ...policies.placement.packing import Unpacked
from ..scheduling.guards import protect
from ..scheduling.plan_check import check, check_enacted
from ..scheduling.policy_errors import ask
from ..scheduling.ticks import Rules

BEHIND, RESOURCES = "behind", "resources"  #: codes of reasons
KEY = "backfill"  #: of policies whose first job in line blocks the others


@dataclass(frozen=True, slots=True)
class Before:
    """A job that blocks another one."""

    job: int
    passes: bool  #: whether the other would start at once if the policy let jobs pass


@dataclass(frozen=True, slots=True)
class InTheWay:
    """The obstacle of one waiting job."""

    before: Before | None = None
    remedy: str | None = None  #: a command that would let it pass
    unpacked: Unpacked | None = None


def in_the_way(job: int, code: str, rules: Rules, view: View, auto: Mapping[str, Any] | None) -> InTheWay:
    """``code``: the reason of its wait, which chooses the question. ``rules``: of its pool; ``auto``: its tuning, if any."""
    view = protect(view, rules.limits)
    try:
        if code == RESOURCES:
            return InTheWay(unpacked=unpacked(job, rules.policy(), view))
        held = before(job, rules.policy(), view)
        return InTheWay(held, command(rules.name, rules.config, view.pool, auto) if held is not None and held.passes else None)
    except BaseException:  # a policy may be any code; its failure is reported elsewhere
        return InTheWay()


def before(job: int, policy: Policy, view: View) -> Before | None:
    """The job that blocks one that only waits for its turn; None: there is none."""
    plan = _asked(policy, view)
    order = [int(one) for one in plan.order]
    codes = {int(one): group.reason.code for group in plan.waiting for one in group.jobs}
    if codes.get(job) != BEHIND or job not in order:
        return None
    ahead = [one for one in order[: order.index(job)] if codes.get(one) == RESOURCES]
    if not ahead:
        return None
    config: Any = getattr(policy, "config", None)
    passes = False
    if is_dataclass(config) and getattr(config, KEY, None) is False:
        other = type(policy)(replace(config, **{KEY: True}))  # type: ignore[type-var]
        passes = job in _asked(other, view).allocations
    return Before(ahead[-1], passes)


def unpacked(job: int, policy: Policy, view: View) -> Unpacked | None:
    """Why a job is not packed under a policy that packs; None: it is, or the policy does not say."""
    tells = getattr(policy, "unpacked", None)
    found = tells(view, job) if tells is not None else None
    return found if isinstance(found, Unpacked) else None


def command(policy: str, config: Mapping[str, Any], pool: str, auto: Mapping[str, Any] | None) -> str:
    """The command that sets the key and keeps all other settings."""
    settings = " ".join(f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in {**config, KEY: True}.items())
    where = "" if pool == "default" else f" --pool {pool}"
    tunes = f" --auto --every {auto['period']:.0f}s --objective {auto['objective']}" if auto else ""
    return f"stoker policy set {policy} {settings}{where}{tunes}"


def _asked(policy: Policy, view: View) -> Plan:
    return check_enacted(check(ask(policy, view), view))

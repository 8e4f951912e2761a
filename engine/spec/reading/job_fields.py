"""The fields of a job as written, each with its reader: from a node to a value of the JobSpec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_args

from ..check import MAX_AFTER, MAX_JOBS
from ..cron import normalise
from ..expand import Array
from ..model import Demand, Dependency, Kind, Retries, Stop, Tier
from . import blocks, fields, loading, units
from .fields import Reader
from .params import SHELL
from .tree import Node, shown


def _gpus(node: Node, field: str) -> tuple[int, int]:
    if not isinstance(node.value, dict):
        count = fields.whole(node, field) if not isinstance(node.value, (str, list)) else None
        if count is None:
            raise node.wrong(field, "a whole number, or {min: 1, max: 4}")
        return count, count
    bounds = fields.struct(node, field, {"min": fields.whole, "max": fields.whole}, "a mapping")
    if "max" not in bounds:
        raise node.mark.error(field, "max is missing; write {min: 1, max: 4}, or one number for both")
    return bounds.get("min", 1), bounds["max"]


def _command(node: Node, field: str) -> tuple[str, ...]:
    if isinstance(node.value, list):
        return tuple(fields.listed(node.value, f"{field}[{{}}]", fields.word))
    if not isinstance(node.value, str):
        raise node.wrong(field, "text for the shell, or a list of arguments")
    # The shell would run an empty text with success, which is never meant.
    return (*SHELL, node.value) if node.value.strip() else ()


def _params(node: Node, field: str) -> dict[str, Any]:
    return {name: item.plain() for name, item in fields.entries(node, field, "a mapping of names to values").items()}


def _stop(node: Node, field: str) -> Stop:
    values = fields.struct(node, field, _STOP, "a mapping such as {iterations: 500}")
    if "iterations" in values and ("metric" in values or "max_iterations" in values):
        raise node.mark.error(field, "iterations is for a stop by count; with a metric, write max_iterations")
    if "max_iterations" in values:
        if "metric" not in values:
            raise node.mark.error(field, "max_iterations needs a metric and its target; write iterations for a stop by count")
        values["iterations"] = values.pop("max_iterations")
    if not values:
        raise node.mark.error(field, "empty; write {iterations: 500} or {metric: accuracy, target: 0.9, max_iterations: 500}")
    return Stop(**values)


def _retries(node: Node, field: str) -> Retries:
    if isinstance(node.value, dict):
        return Retries(**fields.struct(node, field, _RETRIES, "a mapping"))
    if isinstance(node.value, bool) or not isinstance(node.value, int):
        raise node.wrong(field, "a whole number, or a mapping such as {limit: 3, backoff: 30s}")
    return Retries(limit=node.value)


def _exit_codes(node: Node, field: str) -> tuple[int, ...]:
    return tuple(fields.listed(fields.items(node, field, "a list of exit codes"), field, fields.whole))


def _after(node: Node, field: str) -> tuple[Dependency, ...]:
    listed = node.value if isinstance(node.value, list) else [node]
    if len(listed) > MAX_AFTER:
        raise node.mark.error(field, f"names more than {MAX_AFTER} jobs")
    return tuple(fields.listed(listed, field, _dependency))


def _dependency(node: Node, field: str) -> Dependency:
    if not isinstance(node.value, dict):
        return Dependency(_reference(node, field))
    values = fields.struct(node, field, {"job": _reference, "mode": fields.choice(("ok", "any"))}, "a mapping")
    if "job" not in values:
        raise node.mark.error(field, "job is missing; write {job: NAME, mode: any}")
    return Dependency(**values)


def _reference(node: Node, field: str) -> str:
    if isinstance(node.value, bool) or not isinstance(node.value, (str, int)):
        raise node.wrong(field, "the name or number of a job, or {job: NAME, mode: any}")
    return node.text


def _array(node: Node, field: str) -> Array:
    values = fields.struct(node, field, {"params": _grid, "max_running": fields.whole}, "a mapping such as {params: {lr: [0.1, 0.01]}}")
    if "params" not in values:
        raise node.mark.error(field, "params is missing; write params: {lr: [0.1, 0.01]}")
    array = Array(values["params"], values.get("max_running"))
    if array.size > MAX_JOBS:
        raise node.mark.error(f"{field}.params", f"{array.size} combinations; at most {MAX_JOBS} tasks fit into one array")
    return array


def _grid(node: Node, field: str) -> dict[str, list[Any]]:
    grid = fields.mapped(fields.entries(node, field, "a mapping of names to lists of values"), field, _axis)
    if not grid:
        raise node.mark.error(field, "empty, so the array would have no task; write params: {lr: [0.1, 0.01]}")
    return grid


def _axis(node: Node, field: str) -> list[Any]:
    values = fields.items(node, field, "a list of values")
    if not values:
        raise node.mark.error(field, "empty, so the array would have no task; give at least one value, or remove it")
    return [value.plain() for value in values]


def _cron(node: Node, field: str) -> str:
    try:
        return normalise(fields.text(node, field))
    except ValueError as error:
        raise node.mark.error(field, str(error)) from None


def _best_effort(node: Node, field: str, now: float) -> Demand:
    if node.value != "best-effort":
        raise node.mark.error(field, f"must be best-effort, not {node.shown()}; for a deadline write deadline: or soft: in its place")
    return Demand()


def demand(given: Mapping[str, Node], now: float) -> Demand:
    """The wanted completion time, by ``demand``, ``deadline`` or ``soft``, whichever is given."""
    named = [name for name in DEMANDS if name in given]
    if len(named) > 1:
        raise given[named[1]].mark.error(named[1], f"given beside {named[0]}; a job has one of demand: best-effort, deadline and soft")
    if not named:
        return Demand()
    return DEMANDS[named[0]](given[named[0]], named[0], now)


def _strict(node: Node, field: str, now: float) -> Demand:
    return Demand("strict", (Tier(_future(node, field, now)),))


def _soft(node: Node, field: str, now: float) -> Demand:
    readers: dict[str, Reader[Any]] = {"deadline": lambda item, path: _future(item, path, now), "reward": fields.number}

    def step(item: Node, path: str) -> Tier:
        values = fields.struct(item, path, readers, "a mapping such as {deadline: 2h, reward: 80}")
        if "deadline" not in values:
            raise item.mark.error(path, "deadline is missing; write {deadline: 2h, reward: 80}")
        return Tier(**values)

    items = fields.items(node, field, "a list of steps such as [{deadline: 2h, reward: 80}]")
    steps = fields.listed(items, f"{field}[{{}}]", step)
    return Demand("soft", tuple(sorted(steps, key=lambda tier: tier.deadline)))


def _future(node: Node, field: str, now: float) -> float:
    deadline = fields.moment(now)(node, field)
    if deadline <= round(now, 3):  # as `moment` rounds
        when = "leaves no time" if units.is_relative(node.text) else "is in the past"
        raise node.mark.error(field, f"{shown(node.text)} {when}; give a later time, or a duration such as 2h from now on")
    return deadline


_STOP: dict[str, Reader[Any]] = {
    "iterations": fields.whole,
    "metric": fields.text,
    "target": fields.number,
    "mode": fields.choice(("max", "min")),
    "max_iterations": fields.whole,
}
_RETRIES: dict[str, Reader[Any]] = {
    "limit": fields.whole,
    "backoff": fields.duration,
    "factor": fields.number,
    "max_backoff": fields.duration,
    "never_on": _exit_codes,
}
#: the wanted completion time: a job has at most one of these
DEMANDS: dict[str, Callable[[Node, str, float], Demand]] = {"demand": _best_effort, "deadline": _strict, "soft": _soft}


#: the other fields of a job
FIELDS: dict[str, Reader[Any]] = {
    "name": fields.text,
    "recipe": fields.text,
    "command": _command,
    "entrypoint": fields.text,
    "params": _params,
    "kind": fields.choice(get_args(Kind)),
    "backbone": fields.text,
    "pool": fields.text,
    "user": fields.text,
    "priority": fields.whole,
    "gpus": _gpus,
    "gpu_memory": fields.size,
    "stop": _stop,
    "env": fields.words,
    "env_file": fields.text,
    "workdir": fields.text,
    "reuse": loading.reuse,
    "pipeline": loading.pipeline,
    "retries": _retries,
    "timeout": fields.duration,
    "grace": fields.duration,
    "hang_after": fields.duration,
    "estimate": fields.duration,
    "idempotency_key": fields.text,
    "labels": fields.words,
    "after": _after,
    "hold": fields.flag,
    "array": _array,
    "cron": _cron,
    "warm": fields.choice(("auto", "off")),
    "weights": fields.text,
    "begin": fields.text,
    "merge": fields.text,
    **{name: partial(blocks.struct, kind) for name, kind in blocks.BLOCKS.items()},
}
NAMES = (*FIELDS, *DEMANDS)

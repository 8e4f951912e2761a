"""From the tree of a job to its JobSpecs: fields read, rules checked with the line of each field, arrays expanded."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..errors import NotFound, UsageError, nearest
from . import fields, scripts
from .check import CYCLE, MAX_EDGES, MAX_JOBS, NAME_FORM, problems
from .expand import Array, base_name, resolve_arrays, tasks
from .graph import find_cycle
from .job import DEMANDS, FIELDS, NAMES, demand
from .model import JobSpec
from .names import clean, default_name
from .tree import Node, shown
from .units import is_relative


class Recipe(Protocol):
    """What is known here of a recipe: it can judge parameters, with errors such as ``params.lr: …``."""

    def resolve(self, given: Mapping[str, Any], /) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the reading of a job file depends on, besides the file."""

    now: float
    cwd: Path
    recipes: Mapping[str, Recipe] | None = None  #: known recipes by name; None: not judged
    files: bool = True  #: whether scripts, directories and environment files must be there

    @classmethod
    def here(cls, recipes: Mapping[str, Recipe] | None = None) -> Context:
        try:
            return cls(now=time.time(), cwd=Path.cwd(), recipes=recipes)
        except FileNotFoundError:
            raise NotFound("the current directory no longer exists; change to another one") from None


def build(nodes: Sequence[Node], context: Context, fallback_name: str = "") -> list[JobSpec]:
    """The jobs of mappings that are already trees: those of a file, or one made of options."""
    drafts = [_draft(node, context, fallback_name) for node in nodes]
    if sum(draft.size for draft in drafts) > MAX_JOBS:
        raise nodes[0].mark.error("array", f"more than {MAX_JOBS} jobs in one submission; split it")
    _check_names(drafts)
    _check_cycles(drafts)
    _check_edges(drafts)
    specs = [spec for draft in drafts for spec in _final(draft, context)]
    return resolve_arrays(specs, {draft.spec.name: draft.array.size for draft in drafts if draft.array})


@dataclass(frozen=True, slots=True)
class _Draft:
    """A job as read, before its array is expanded."""

    spec: JobSpec
    array: Array | None
    node: Node

    @property
    def size(self) -> int:
        return self.array.size if self.array else 1

    def error(self, field: str, problem: str) -> UsageError:
        """An error at the place where ``field`` was given, or at the nearest field that holds it."""
        node = self.node
        for name in field.split("."):
            if not isinstance(node.value, dict) or name not in node.value:
                break
            node = node.value[name]
        return node.mark.error(field, problem)


def _draft(node: Node, context: Context, fallback_name: str) -> _Draft:
    given = fields.known(node, "", NAMES, "a mapping of fields")
    values = {name: FIELDS[name](child, name) for name, child in given.items() if name not in DEMANDS}
    values["gpus_min"], values["gpus_max"] = values.pop("gpus", (1, 1))
    values["demand"] = demand(given, context.now)
    array: Array | None = values.pop("array", None)
    values["workdir"] = _absolute(context.cwd, values.get("workdir", ""))
    if "env_file" in values:
        values["env_file"] = _absolute(Path(values["workdir"]), values["env_file"])
    values.setdefault("name", default_name(values) or clean(fallback_name))
    draft = _Draft(JobSpec(**values), array, node)
    if not draft.spec.name:
        raise draft.error("name", f"missing; give the job a name: {NAME_FORM}")
    _check(draft, draft.spec)
    _check_context(draft, given, context)
    return draft


def _final(draft: _Draft, context: Context) -> Iterator[JobSpec]:
    """The jobs of a draft, each checked as it will be stored."""
    for spec in tasks(draft.spec, draft.array) if draft.array else [draft.spec]:
        if draft.array:
            _check(draft, spec)
        if spec.recipe is not None and context.recipes is not None:
            _check_recipe(draft, spec, context.recipes)
        if context.files and (missing := scripts.missing(spec)):
            raise draft.error("command", missing)
        yield spec


def _absolute(base: Path, path: str) -> str:
    try:
        return str(base / Path(path).expanduser())
    except RuntimeError:  # ~nobody: no such user
        return str(base / path)


# What must hold between fields, jobs and files


def _check(draft: _Draft, spec: JobSpec) -> None:
    for field, problem in problems(spec):
        raise draft.error(field, problem)


def _check_context(draft: _Draft, given: Mapping[str, Node], context: Context) -> None:
    spec = draft.spec
    if draft.array:
        if twice := next((name for name in draft.array.grid if name in spec.params), None):
            raise draft.error(f"array.params.{twice}", "is given in params as well; keep one of them")
        if spec.cron is not None:
            raise draft.error("cron", "an array cannot recur; let a recurring job submit it")
    if spec.cron is not None and any(not is_relative(node.text) for node in _deadlines(given)):
        raise draft.error("deadline" if "deadline" in given else "soft", "a recurring job needs a duration, such as 2h from each start on")
    if context.files:
        _check_files(draft)


def _check_recipe(draft: _Draft, spec: JobSpec, recipes: Mapping[str, Recipe]) -> None:
    assert spec.recipe is not None
    if spec.recipe not in recipes:
        near = nearest(spec.recipe, recipes) or f"; known: {', '.join(recipes) or 'none'}"
        raise draft.error("recipe", f"no recipe {shown(spec.recipe)}{near}")
    try:
        recipes[spec.recipe].resolve(spec.params)
    except UsageError as error:
        field, _, problem = str(error).partition(": ")
        name = field.removeprefix("params.")
        raise draft.error(f"array.params.{name}" if draft.array and name in draft.array.grid else field, problem) from None


def _deadlines(given: Mapping[str, Node]) -> Iterator[Node]:
    if "deadline" in given:
        yield given["deadline"]
    steps = given["soft"].value if "soft" in given else []
    for step in steps if isinstance(steps, list) else []:
        if isinstance(step.value, dict):
            yield step.value["deadline"]


def _check_files(draft: _Draft) -> None:
    spec = draft.spec
    if not Path(spec.workdir).is_dir():
        near = scripts.neighbour(Path(spec.workdir))
        raise draft.error("workdir", f"{spec.workdir!r} is not a directory{near}; create it, or correct the path")
    if spec.env_file is not None and not Path(spec.env_file).is_file():
        there = Path(spec.env_file).exists()
        wrong = "is not a file" if there else f"does not exist{scripts.neighbour(Path(spec.env_file))}"
        raise draft.error("env_file", f"{spec.env_file!r} {wrong}")


def _place(draft: _Draft) -> str:
    line = draft.node.mark.line
    return f"the job at line {line}" if line else "another job"


def _check_names(drafts: Sequence[_Draft]) -> None:
    first: dict[str, _Draft] = {}
    keys: dict[str, _Draft] = {}
    for draft in drafts:
        name, key = draft.spec.name, draft.spec.idempotency_key
        if name in first:
            raise draft.error("name", f"{shown(name)} is also the name of {_place(first[name])}; names must differ")
        if key is not None and key in keys:
            raise draft.error("idempotency_key", f"{shown(key)} is also the key of {keys[key].spec.name}; the second would never run")
        first[name] = draft
        if key is not None:
            keys[key] = draft
    for draft in drafts:
        for dependency in draft.spec.after:
            target = first.get(dependency.job)
            if target is not None and target.spec.cron is not None:
                raise draft.error(
                    "after", f"{shown(dependency.job)} is a recurring job, which never ends; wait for one of its runs by number"
                )


def _check_cycles(drafts: Sequence[_Draft]) -> None:
    by_name = {draft.spec.name: draft for draft in drafts}
    if cycle := find_cycle({name: [base_name(item.job) for item in draft.spec.after] for name, draft in by_name.items()}):
        raise by_name[cycle[-2]].error("after", CYCLE.format(" → ".join(cycle)))


def _check_edges(drafts: Sequence[_Draft]) -> None:
    """Bound what waiting arrays on each other multiply to."""
    sizes = {draft.spec.name: draft.size for draft in drafts}
    total = 0
    for draft in drafts:
        total += draft.size * sum(sizes.get(item.job, 1) for item in draft.spec.after)
        if total > MAX_EDGES:
            raise draft.error("after", f"more than {MAX_EDGES} dependencies between single jobs; put a small job between the arrays")

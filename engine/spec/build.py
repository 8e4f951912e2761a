"""From the tree of a job to its JobSpecs: reads fields, checks rules with the line of each field, expands arrays."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ..errors import Gathered, NotFound, Several, UsageError, nearest
from . import hints
from .check import CYCLE, MAX_EDGES, MAX_JOBS, NAME_FORM, problems
from .expand import Array, resolve_arrays, tasks
from .graph import find_cycle
from .model import BACKBONES, FROM_JOB, SERVES, JobSpec, Kind, base_name
from .names import clean, default_name
from .reading import fields, scripts
from .reading.job_fields import DEMANDS, FIELDS, NAMES, demand
from .reading.tree import Node, shown
from .reading.units import is_relative


class Recipe(Protocol):
    """A recipe, as far as it is known here: it can check parameters, with errors such as ``params.lr: …``."""

    @property
    def needs(self) -> Sequence[str]: ...  # modules that not every installation has

    @property
    def kind(self) -> Kind: ...  # of its jobs, unless a job states another

    @property
    def answers(self) -> bool: ...  # its jobs may serve

    @property
    def leaves(self) -> bool: ...  # its jobs leave an adapter, with which others may begin

    def resolve(self, given: Mapping[str, Any], backbone: str | None, /) -> object: ...

    def unusable(self, given: Mapping[str, Any], backbone: str | None, /) -> str | None:
        """The problem with the files of the job's backbone, which must be on this host; None: no problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The surroundings of a job file on which its reading depends."""

    now: float
    cwd: Path
    recipes: Mapping[str, Recipe] | None = None  #: known recipes by name; None: recipes are not checked
    files: bool = True  #: whether scripts, directories and environment files must be there
    environment: Mapping[str, str] | None = None  #: of this process, if jobs run on this host; None: the host is not known
    hint: Callable[[str], None] | None = None  #: called with possible mistakes

    @classmethod
    def here(
        cls,
        recipes: Mapping[str, Recipe] | None = None,
        environment: Mapping[str, str] | None = None,
        hint: Callable[[str], None] | None = None,
    ) -> Context:
        try:
            return cls(now=time.time(), cwd=Path.cwd(), recipes=recipes, environment=environment, hint=hint)
        except FileNotFoundError:
            raise NotFound("the current directory no longer exists; change to another one") from None


def build(nodes: Sequence[Node], context: Context, fallback_name: str = "", places: Sequence[str] = ()) -> list[JobSpec]:
    """The jobs of mappings that are already trees: those of a file, or one made of options. Several has all mistakes.

    ``places``: the name of each in errors about its fields, such as ``jobs[3]``.
    """
    errors = Gathered()
    drafts: list[_Draft] = []
    for node, place in zip(nodes, places or [""] * len(nodes), strict=True):
        with errors.part():
            drafts.append(_draft(node, context, fallback_name, place))
    if sum(draft.size for draft in drafts) > MAX_JOBS:
        raise nodes[0].mark.error("array", f"more than {MAX_JOBS} jobs in one submission; split it")
    for check in (_check_names, _check_cycles, _check_edges):
        with errors.part():
            check(drafts)
    specs: list[JobSpec] = []
    for draft in drafts:
        with errors.part():
            specs += _final(draft, context)
    errors.tell()
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


def _draft(node: Node, context: Context, fallback_name: str, place: str) -> _Draft:
    errors = Gathered()
    given = fields.known(node, place, NAMES, "a mapping of fields", errors)
    values: dict[str, Any] = {}
    for name in (name for name in given if name not in DEMANDS):
        with errors.part():
            values[name] = FIELDS[name](given[name], name)
    with errors.part():
        values["demand"] = demand(given, context.now)
    if (recipe := (context.recipes or {}).get(values.get("recipe", ""))) is not None:
        values.setdefault("kind", recipe.kind)
    read = values.keys() | (DEMANDS.keys() if "demand" in values else set())
    draft = _drafted(values, node, context, fallback_name)
    if errors:  # a field that was not understood is not missing
        for field, problem in itertools.chain(problems(draft.spec), _surroundings(draft, draft.spec, context)):
            if field.partition(".")[0] in read & given.keys():
                errors.add(draft.error(field, problem))
        errors.tell()
    for field, problem in itertools.chain(problems(draft.spec), _recurring(draft, given), _array_problems(draft)):
        missing = field == "name" and not draft.spec.name
        errors.add(draft.error(field, f"missing; give the job a name: {NAME_FORM}" if missing else problem))
    errors.tell()
    if context.hint is not None:
        for field, hint in _hints(draft, context):
            context.hint(str(draft.error(field, hint)))
    return draft


def _hints(draft: _Draft, context: Context) -> Iterator[tuple[str, str]]:
    spec = draft.spec
    yield from hints.unfilled(spec, draft.array.grid if draft.array else ())
    if context.environment is not None:
        known = (context.recipes or {}).get(spec.recipe or "")
        yield from hints.missing_modules(spec, known.needs if known else (), context.environment)


def _drafted(values: dict[str, Any], node: Node, context: Context, fallback_name: str) -> _Draft:
    values["gpus_min"], values["gpus_max"] = values.pop("gpus", (1, 1))
    array: Array | None = values.pop("array", None)
    if array is not None and values.get("replicas") is not None:
        raise node.mark.error("array", "cannot go with replicas, which are an array by themselves; submit a job for each combination")
    if values.get("replicas") is not None:
        array = Array({}, copies=values["replicas"].max)
    values["workdir"] = _absolute(context.cwd, values.get("workdir", ""))
    if "env_file" in values:
        values["env_file"] = _absolute(Path(values["workdir"]), values["env_file"])
    if values.get("weights") and not values["weights"].startswith(FROM_JOB):
        values["weights"] = _absolute(Path(values["workdir"]), values["weights"])
    values.setdefault("name", default_name(values) or clean(fallback_name))
    return _Draft(JobSpec(**values), array, node)


def _final(draft: _Draft, context: Context) -> Iterator[JobSpec]:
    """The jobs of a draft, each checked as it will be stored."""
    for task in tasks(draft.spec, draft.array) if draft.array else [draft.spec]:
        spec = _with_whole_backbone(task)
        errors = Gathered()
        for field, problem in itertools.chain(problems(spec) if draft.array else (), _surroundings(draft, spec, context)):
            errors.add(draft.error(field, problem))
        errors.tell()
        yield spec


def _with_whole_backbone(spec: JobSpec) -> JobSpec:
    """A backbone that is a directory gets its absolute path, which means the same to every process; others are names."""
    if spec.recipe is None:
        return spec
    whole = {name: _whole_backbone(spec.workdir, value) for name in BACKBONES if isinstance(value := spec.params.get(name), str)}
    backbone = spec.backbone and _whole_backbone(spec.workdir, spec.backbone)
    return msgspec.structs.replace(spec, backbone=backbone, params={**spec.params, **whole})


def _whole_backbone(workdir: str, name: str) -> str:
    is_path = name.startswith(("/", "./", "../", "~")) or name in (".", "..") or ("/" in name and Path(workdir, name).is_dir())
    return os.path.normpath(_absolute(Path(workdir), name)) if is_path else name


def _absolute(base: Path, path: str) -> str:
    try:
        return str(base / Path(path).expanduser())
    except RuntimeError:  # ~nobody: no such user
        return str(base / path)


# Rules between fields, jobs and files


def _array_problems(draft: _Draft) -> Iterator[tuple[str, str]]:
    if draft.array is None:
        return
    for twice in (name for name in draft.array.grid if name in draft.spec.params):
        yield f"array.params.{twice}", "is given in params as well; keep one of them"
    if draft.spec.cron is not None and draft.spec.replicas is None:
        yield "cron", "an array cannot recur; let a recurring job submit it"


def _recurring(draft: _Draft, given: Mapping[str, Node]) -> Iterator[tuple[str, str]]:
    if draft.spec.cron is not None and any(not is_relative(node.text) for node in _deadlines(given)):
        yield "deadline" if "deadline" in given else "soft", "a recurring job needs a duration, such as 2h from each start on"


def _surroundings(draft: _Draft, spec: JobSpec, context: Context) -> Iterator[tuple[str, str]]:
    """Problems of the recipe and of the files that it names."""
    if spec.recipe is not None and context.recipes is not None:
        yield from _recipe_problems(draft, spec, spec.recipe, context.recipes, context.files)
    if context.files:
        wrong = list(_file_problems(spec))
        yield from wrong
        if not wrong and (missing := scripts.missing(spec)):
            yield "command", missing


def _recipe_problems(draft: _Draft, spec: JobSpec, name: str, recipes: Mapping[str, Recipe], files: bool) -> Iterator[tuple[str, str]]:
    if name not in recipes:
        near = nearest(name, recipes) or f"; known: {', '.join(recipes) or 'none'}"
        yield "recipe", f"no recipe {shown(name)}{near}"
        return
    if spec.kind == SERVES and not recipes[name].answers:
        known = ", ".join(each for each, recipe in recipes.items() if recipe.answers)
        yield "kind", f"recipe {name} trains a model that answers nothing; those that do: {known}"
    if spec.begin not in (None, "never") and not recipes[name].leaves:
        known = ", ".join(each for each, recipe in recipes.items() if recipe.leaves)
        yield "begin", f"recipe {name} leaves nothing with which others could begin; those that do: {known}"
    if spec.merge not in (None, "never") and not recipes[name].leaves:
        known = ", ".join(each for each, recipe in recipes.items() if recipe.leaves)
        yield "merge", f"recipe {name} trains nothing that others could share; those that do: {known}"
    try:
        recipes[name].resolve(spec.params, spec.backbone)
        if files and (wrong := recipes[name].unusable(spec.params, spec.backbone)):
            yield "backbone" if spec.backbone is not None else "params.backbone", wrong
    except UsageError as error:
        for each in error.errors if isinstance(error, Several) else [error]:
            field, _, problem = str(each).partition(": ")
            param = field.removeprefix("params.")
            if param == "backbone" and param not in spec.params:  # the job's own field
                field = param
            yield f"array.params.{param}" if draft.array and param in draft.array.grid else field, problem


def _deadlines(given: Mapping[str, Node]) -> Iterator[Node]:
    if "deadline" in given:
        yield given["deadline"]
    steps = given["soft"].value if "soft" in given else []
    for step in steps if isinstance(steps, list) else []:
        if isinstance(step.value, dict):
            yield step.value["deadline"]


def _file_problems(spec: JobSpec) -> Iterator[tuple[str, str]]:
    if not Path(spec.workdir).is_dir():
        near = scripts.neighbour(Path(spec.workdir))
        yield "workdir", f"{spec.workdir!r} is not a directory{near}; create it, or correct the path"
    for field, path in (("env_file", spec.env_file), ("weights", spec.weights_file)):
        if path is not None and not Path(path).is_file():
            wrong = "is not a file" if Path(path).exists() else f"does not exist{scripts.neighbour(Path(path))}"
            yield field, f"{path!r} {wrong}"


def _place(draft: _Draft) -> str:
    line = draft.node.mark.line
    return f"the job at line {line}" if line else "another job"


def _check_names(drafts: Sequence[_Draft]) -> None:
    errors = Gathered()
    first: dict[str, _Draft] = {}
    keys: dict[str, _Draft] = {}
    for draft in drafts:
        name, key = draft.spec.name, draft.spec.idempotency_key
        if name in first:
            errors.add(draft.error("name", f"{shown(name)} is also the name of {_place(first[name])}; names must differ"))
        if key is not None and key in keys:
            errors.add(draft.error("idempotency_key", f"{shown(key)} is also the key of {keys[key].spec.name}; the second would never run"))
        first.setdefault(name, draft)
        if key is not None:
            keys[key] = draft
    for draft in drafts:
        for dependency in draft.spec.after:
            target = first.get(dependency.job)
            if target is not None and target.spec.cron is not None:
                problem = f"{shown(dependency.job)} is a recurring job, which never ends; wait for one of its runs by number"
                errors.add(draft.error("after", problem))
    errors.tell()


def _check_cycles(drafts: Sequence[_Draft]) -> None:
    by_name = {draft.spec.name: draft for draft in drafts}
    if cycle := find_cycle({name: [base_name(job) for job in draft.spec.waits_for] for name, draft in by_name.items()}):
        field = (last := by_name[cycle[-2]]).spec.waits_by(cycle[-1])
        raise last.error(field, CYCLE.format(" → ".join(cycle), field))


def _check_edges(drafts: Sequence[_Draft]) -> None:
    """Bound the number of edges, as arrays that wait for arrays multiply them."""
    sizes = {draft.spec.name: draft.size for draft in drafts}
    total = 0
    for draft in drafts:
        total += draft.size * sum(sizes.get(item.job, 1) for item in draft.spec.after)
        if total > MAX_EDGES:
            raise draft.error("after", f"more than {MAX_EDGES} dependencies between single jobs; put a small job between the arrays")

"""Rules that a JobSpec must fulfil, wherever it came from: on values, without files, clock or database.

`load` runs them with the line of each field; the daemon runs `require_all` on a client's submission.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ..errors import Gathered, UsageError
from . import cron
from .graph import find_cycle
from .model import BACKBONES, FROM_JOB, SERVES, JobSpec, Provenance, Stop
from .reading import blocks, secrets
from .reading.loading import pipeline_problems, reuse_problems
from .reading.params import variable
from .reading.tree import one_line, shown
from .reading.units import LARGEST_SIZE, LATEST, LONGEST_DURATION, format_duration

MAX_GPUS = 65_536
MAX_PRIORITY = 1_000_000
MAX_ITERATIONS = 10**12
MAX_REWARD = 100.0  #: that of a strict deadline (002 ch. 5.3.3.2), so that users' jobs are comparable
MAX_RETRIES = 1_000
MAX_ARGUMENTS = 1 << 17  #: bytes of all arguments, and of one variable: Linux' own bound for one (MAX_ARG_STRLEN)
MAX_PARAMS = 1 << 16  #: bytes as JSON
MAX_DIFF = 4 << 20  #: characters of a diff: the command line cuts its own at a MiB
MAX_AFTER = 10_000
MAX_LABELS = 64
MAX_JOBS = 10_000  #: of one submission
MAX_RUNNING = 1_000_000  #: tasks of an array at once; a value above their number is no cap
MAX_NAME = 200  #: characters of a recipe's or an entrypoint's name
MAX_EDGES = 100_000  #: dependencies between the jobs of one submission
CYCLE = "{} is a cycle, so none of them could start; remove one '{}'"

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
SNAPSHOT = re.compile(r"/[^\0]*|sha256:[0-9a-f]{64}")
TASK = re.compile(NAME.pattern + r"\[\d+\]", re.ASCII)
NAME_FORM = "up to 100 letters of A to Z, digits, '.', '_' and '-', a letter or digit first, and not digits alone (those are job numbers)"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_ENTRYPOINT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


class SpecProblem(NamedTuple):
    field: str  #: its name in YAML
    problem: str


Rule = Callable[[JobSpec], Iterator[SpecProblem]]


def problems(spec: JobSpec) -> Iterator[SpecProblem]:
    for rule in _RULES:
        yield from rule(spec)


def require(spec: JobSpec) -> None:
    """Raise all problems as UsageErrors that name the job and the field."""
    errors = Gathered()
    for field, problem in problems(spec):
        errors.add(UsageError(one_line(f"{spec.name[:120]}: {field}: {problem}")))
    errors.tell()


def require_all(specs: Sequence[JobSpec]) -> None:
    """`require` for each job of one submission, and the rules between them."""
    if len(specs) > MAX_JOBS or sum(len(spec.after) for spec in specs) > MAX_EDGES:
        raise UsageError(f"jobs: at most {MAX_JOBS} jobs with {MAX_EDGES} dependencies fit into one submission; split it")
    errors = Gathered()
    for spec in specs:
        with errors.part():
            require(spec)
    errors.tell()
    name, count = Counter(spec.name for spec in specs).most_common(1)[0] if specs else ("", 0)
    if count > 1:
        raise UsageError(f"jobs: {count} are called {name!r}; names of one submission must differ")
    keys: dict[str, str] = {}
    for spec in specs:
        if spec.idempotency_key is not None and (first := keys.setdefault(spec.idempotency_key, spec.name)) != spec.name:
            raise UsageError(
                one_line(f"{spec.name}: idempotency_key: {shown(spec.idempotency_key)} is also the key of {first}; give each its own")
            )
    if len(specs) > 1 and any(spec.cron is not None for spec in specs):
        raise UsageError("jobs: a recurring job is submitted alone")
    if cycle := find_cycle({spec.name: spec.waits_for for spec in specs}):
        field = next(spec.waits_by(cycle[-1]) for spec in specs if spec.name == cycle[-2])
        raise UsageError(f"{field}: {CYCLE.format(' → '.join(cycle), field)}")


def require_provenance(provenance: Provenance) -> None:
    """Raise the first problem of a submission's provenance as a UsageError."""
    given = provenance
    texts = {
        "argv": "\0".join(given.argv),
        "cwd": given.cwd,
        "git_commit": given.git_commit,
        "snapshot": given.snapshot,
        "client": given.client,
    }
    for field, text in texts.items():
        if text is not None and len(text) > MAX_ARGUMENTS:
            raise UsageError(f"provenance.{field}: longer than {MAX_ARGUMENTS >> 10} Ki characters")
    if given.git_diff is not None and len(given.git_diff) > MAX_DIFF:
        raise UsageError(f"provenance.git_diff: longer than {MAX_DIFF >> 20} Mi characters; cut it")
    if given.snapshot is not None and not SNAPSHOT.fullmatch(given.snapshot):
        raise UsageError(f"provenance.snapshot: must be an absolute path, or sha256: and a digest, not {shown(given.snapshot)}")


def require_time(spec: JobSpec, now: float) -> None:
    """Raise a UsageError if a deadline has passed. Apart from `require`, as a submission may be repeated after its deadline."""
    for tier in spec.demand.tiers:
        if tier.deadline <= now:
            field = "deadline" if spec.demand.kind == "strict" else "soft"
            raise UsageError(one_line(f"{spec.name}: {field}: a deadline is in the past; give a later time"))


def _names(spec: JobSpec) -> Iterator[SpecProblem]:
    form = TASK if spec.array_index is not None else NAME
    if not form.fullmatch(spec.name) or spec.name.isdecimal():
        yield SpecProblem("name", f"must be {NAME_FORM}, not {shown(spec.name)}")
    if not NAME.fullmatch(spec.pool):
        yield SpecProblem("pool", f"must be the name of a pool, not {shown(spec.pool)}")
    if spec.user and not NAME.fullmatch(spec.user):
        yield SpecProblem("user", f"must be the name of a user, not {shown(spec.user)}")
    if spec.idempotency_key is not None and not (0 < len(spec.idempotency_key) <= 200 and spec.idempotency_key.isprintable()):
        yield SpecProblem("idempotency_key", "must be 1 to 200 printable characters")
    if abs(spec.priority) > MAX_PRIORITY:
        yield SpecProblem("priority", f"must be between -{MAX_PRIORITY} and {MAX_PRIORITY}, not {spec.priority}")


def _resources(spec: JobSpec) -> Iterator[SpecProblem]:
    if spec.gpus_min < 1:
        yield SpecProblem("gpus", f"must be at least 1, not {spec.gpus_min}; on a host without GPUs it counts CPU slots")
    elif spec.gpus_min > spec.gpus_max:
        yield SpecProblem("gpus", f"min {spec.gpus_min} is larger than max {spec.gpus_max}")
    elif spec.gpus_max > MAX_GPUS:
        yield SpecProblem("gpus", f"must be at most {MAX_GPUS}, not {spec.gpus_max}")
    if not 0 <= spec.gpu_memory <= LARGEST_SIZE:
        yield SpecProblem("gpu_memory", "must be between 0 and 1 PiB")


def _demand(spec: JobSpec) -> Iterator[SpecProblem]:
    kind, tiers = spec.demand.kind, spec.demand.tiers
    field = {"strict": "deadline", "soft": "soft"}.get(kind, "demand")
    if kind == "best-effort" and tiers:
        yield SpecProblem(field, "a best-effort job has no deadline; use deadline (strict) or soft")
    elif kind == "strict" and len(tiers) != 1:
        yield SpecProblem(field, "a strict job has one deadline; use soft for several")
    elif kind == "soft" and not tiers:
        yield SpecProblem(field, "empty; give at least one step such as {deadline: 2h, reward: 80}")
    for tier in tiers:
        if not 0 < tier.deadline < LATEST:  # NaN is not either
            yield SpecProblem(field, f"{tier.deadline:g} is no time for a deadline; give seconds since 1970, of the years to 9998")
        if not 0 < tier.reward <= MAX_REWARD:
            yield SpecProblem(field, f"a reward must be larger than 0 and at most {MAX_REWARD:g}, not {tier.reward:g}")
    for earlier, later in itertools.pairwise(tiers):
        if later.deadline <= earlier.deadline:
            yield SpecProblem(field, "two steps with the same deadline; the deadlines must rise from step to step")
        elif later.reward > earlier.reward:
            yield SpecProblem(field, f"a later step must not be worth more than an earlier one ({later.reward:g} after {earlier.reward:g})")


def _stop(spec: JobSpec) -> Iterator[SpecProblem]:
    stop = spec.stop
    if stop.iterations is not None and not 1 <= stop.iterations <= MAX_ITERATIONS:
        yield SpecProblem("stop.iterations" if stop.metric is None else "stop.max_iterations", f"must be at least 1, not {stop.iterations}")
    if stop.metric is None and (stop.target is not None or stop.mode != Stop().mode):
        yield SpecProblem("stop", "target and mode need a metric, such as metric: accuracy")
    if stop.metric is not None:
        if not stop.metric or len(stop.metric) > 100 or not stop.metric.isprintable():
            yield SpecProblem("stop.metric", "must be the name of a reported value, such as accuracy")
        if stop.target is None or not math.isfinite(stop.target):
            yield SpecProblem("stop", "a metric needs a target, such as target: 0.9")
        if stop.iterations is None:
            yield SpecProblem("stop", "a metric needs max_iterations, so that the job ends even if the target is never met")


def _work(spec: JobSpec) -> Iterator[SpecProblem]:
    given = [name for name in ("recipe", "command", "entrypoint") if getattr(spec, name) is not None]
    if len(given) > 1:
        yield SpecProblem(given[1], f"given beside {given[0]}; a job has exactly one of recipe, command and entrypoint")
    if not given:
        yield SpecProblem("command", "nothing to run; give one of recipe, command and entrypoint")
    if spec.command is not None and (not spec.command or not spec.command[0].strip()):
        yield SpecProblem("command", "empty; give a program and its arguments")
    elif spec.command is not None and len("\0".join(spec.command).encode(errors="replace")) > MAX_ARGUMENTS:
        yield SpecProblem("command", f"longer than {MAX_ARGUMENTS >> 10} KiB; put it into a script")
    elif spec.command is not None and (name := secrets.secret_argument(spec.command)) is not None:
        yield SpecProblem("command", f"the value of {name} {secrets.ADVICE}")
    if spec.entrypoint is not None and not (len(spec.entrypoint) <= MAX_NAME and _ENTRYPOINT.fullmatch(spec.entrypoint)):
        yield SpecProblem("entrypoint", f"must be module:function, such as mypackage.train:build, not {shown(spec.entrypoint)}")
    if spec.recipe is not None and not spec.recipe.strip():
        yield SpecProblem("recipe", "empty; give the name of a recipe")
    elif spec.recipe is not None and not (len(spec.recipe) <= MAX_NAME and spec.recipe.isprintable()):
        yield SpecProblem("recipe", f"must be the name of a recipe, not {shown(spec.recipe)}")


def _serving(spec: JobSpec) -> Iterator[SpecProblem]:
    """A server has no end, so fields that need one are refused."""
    if spec.kind != SERVES:
        return
    if spec.command is not None:
        yield SpecProblem("kind", "infer is for a recipe or an entrypoint whose task answers; give a command that serves the kind train")
    if (spec.gpus_min, spec.gpus_max) != (1, 1):
        yield SpecProblem("gpus", "a server has one GPU; leave it out, and for several servers submit an array")
    ends = {
        "stop": spec.stop != Stop(), "demand": spec.demand.kind == "best-effort" and bool(spec.demand.tiers),
        "deadline": spec.demand.kind == "strict", "soft": spec.demand.kind == "soft", "estimate": spec.estimate is not None,
    }  # fmt: skip
    for field in (field for field, given in ends.items() if given):
        yield SpecProblem(field, "a server has no end: it lives until it is cancelled; remove it")
    trains = {"reuse": spec.reuse, "pipeline": spec.pipeline, "memory": spec.memory}
    for field in (field for field, block in trains.items() if block is not None):
        yield SpecProblem(field, "is for a training; a server of kind infer has none, so remove it")
    if spec.cron is not None:
        yield SpecProblem("cron", "a server that never ends cannot recur; submit it once")
    if spec.array_cap is not None:
        yield SpecProblem("array.max_running", "servers do not end, so those beyond it would never start; remove it")


def is_backbone(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME and name.isprintable() and name.strip() == name


def _backbone(spec: JobSpec) -> Iterator[SpecProblem]:
    if spec.backbone is None:
        return
    if not is_backbone(spec.backbone):
        yield SpecProblem("backbone", f"must be the name of a pre-trained model, or its directory, not {shown(spec.backbone)}")
    for name in BACKBONES if spec.recipe else ():
        if spec.params.get(name) not in (None, "", spec.backbone):
            yield SpecProblem(
                "backbone", f"{shown(spec.backbone)} is another than params.{name}, {shown(spec.params[name])}; keep one of them"
            )


def _weights(spec: JobSpec) -> Iterator[SpecProblem]:
    if spec.weights is None:
        return
    job, file = spec.weights_job, spec.weights_file
    if spec.command is not None:
        yield SpecProblem("weights", "is for a recipe or an entrypoint; a command loads its weights itself")
    elif job is not None and not (0 < len(job) <= MAX_NAME and job.isprintable() and job.strip() == job):
        yield SpecProblem("weights", f"must name a job, such as {FROM_JOB}encoder, not {shown(spec.weights)}")
    elif file is not None and not (file.startswith("/") and file.isprintable() and len(file) <= 4096):
        yield SpecProblem("weights", f"must be {FROM_JOB}NAME or an absolute path, not {shown(spec.weights)}")


def _begin(spec: JobSpec) -> Iterator[SpecProblem]:
    if spec.begin is None:
        return
    job = spec.begin_job
    if job is None and spec.begin not in ("auto", "never"):
        yield SpecProblem("begin", f"must be auto, never or {FROM_JOB}NAME, not {shown(spec.begin)}")
    elif job is not None and not (0 < len(job) <= MAX_NAME and job.isprintable() and job.strip() == job):
        yield SpecProblem("begin", f"must name a job, such as {FROM_JOB}amazon, not {shown(spec.begin)}")
    if spec.begin == "never":
        return
    if spec.recipe is None or spec.kind == SERVES:
        yield SpecProblem("begin", "is for a job that fine-tunes a backbone by a recipe, such as text-classifier; remove it")
    if spec.replicas is not None:
        yield SpecProblem("begin", "does not work with replicas; name a file or a job in weights, or remove it")
    if spec.params.get("layers") == "head" and spec.params.get("petl") in (None, "full"):
        yield SpecProblem("begin", "with layers: head only the head is trained, and each job has its own; train more, or remove it")
    for field, given in (("weights", spec.weights), ("params.adapter", spec.params.get("adapter"))):
        if given:
            yield SpecProblem("begin", f"and {field} both set the initial weights; keep one of them")


def _merge(spec: JobSpec) -> Iterator[SpecProblem]:
    if spec.merge in (None, "never"):
        return
    job = spec.merge_job
    if spec.merge == "compute":
        yield SpecProblem(
            "merge", "for compute write share: {gpu: packed}; with warm starts its jobs on one GPU have their backbone there once"
        )
    elif job is None and spec.merge != "transfer":
        yield SpecProblem("merge", f"must be transfer, never or {FROM_JOB}NAME, not {shown(spec.merge)}")
    elif job is not None and not (0 < len(job) <= MAX_NAME and job.isprintable() and job.strip() == job):
        yield SpecProblem("merge", f"must name a job, such as {FROM_JOB}amazon, not {shown(spec.merge)}")
    if spec.recipe is None or spec.kind == SERVES:
        yield SpecProblem("merge", "is for a job that fine-tunes a backbone by a recipe, such as text-classifier; remove it")
    if spec.params.get("layers") == "head" and spec.params.get("petl") in (None, "full"):
        yield SpecProblem("merge", "with layers: head only the head is trained, and each job has its own; train more, or remove it")
    if spec.gpus_max > 1:
        yield SpecProblem("merge", f"is for jobs on one GPU, and this one takes up to {spec.gpus_max}; give gpus: 1, or remove it")
    taken = {"replicas": spec.replicas, "reuse": spec.reuse, "memory": spec.memory, "weights": spec.weights}
    taken |= {"begin": spec.begin_job if job is None else spec.begin if spec.begin != "never" else None}
    for field, given in (*taken.items(), ("params.adapter", spec.params.get("adapter"))):
        if given:
            yield SpecProblem("merge", f"does not work with {field}; remove one of them")


def _loading(spec: JobSpec) -> Iterator[SpecProblem]:
    given: list[tuple[str, Iterator[tuple[str, str]]]] = []
    if spec.reuse is not None:
        given.append(("reuse", reuse_problems(spec.reuse)))
    if spec.pipeline is not None:
        given.append(("pipeline", pipeline_problems(spec.pipeline)))
    for block, found in given:
        if spec.command is not None:
            yield SpecProblem(block, "is for a recipe or an entrypoint; a script uses stoker.loaders (docs/loaders.md)")
        yield from (SpecProblem(*each) for each in found)


def _blocks(spec: JobSpec) -> Iterator[SpecProblem]:
    yield from (SpecProblem(*each) for each in blocks.problems(spec))


def _surroundings(spec: JobSpec) -> Iterator[SpecProblem]:
    for name, value in spec.env.items():
        field = f"env.{name}"
        if not _VARIABLE.fullmatch(name):
            yield SpecProblem("env", f"{shown(name)} is not a variable's name; use letters, digits and '_'")
        elif (name.startswith("STOKER_") and name != "STOKER_THREADS") or name == "CUDA_VISIBLE_DEVICES":
            yield SpecProblem(field, "is set by Stoker when the job starts; remove it")
        elif len(value.encode(errors="replace")) > MAX_ARGUMENTS:
            yield SpecProblem(field, f"longer than {MAX_ARGUMENTS >> 10} KiB; put it into a file")
        elif (value and secrets.looks_secret(name)) or secrets.has_credentials(value):
            yield SpecProblem(field, secrets.ADVICE)
    for field, path in (("env_file", spec.env_file), ("workdir", spec.workdir or None)):
        if path is not None and not path.startswith("/"):
            yield SpecProblem(field, f"must be an absolute path, not {shown(path)}")
    for part in (*(spec.command or ()), *spec.env.values(), spec.workdir, spec.env_file or ""):
        if "\0" in part:
            yield SpecProblem("command" if part in (spec.command or ()) else "env", "holds a NUL character, which no program accepts")


def _params(spec: JobSpec) -> Iterator[SpecProblem]:
    seen: dict[str, str] = {}
    for name, value in spec.params.items():
        field = f"params.{name}"
        if not name or not name.isprintable() or len(name) > 100:
            yield SpecProblem("params", f"{shown(name)} is not a parameter's name")
        elif problem := _json_problem(value):
            yield SpecProblem(field, problem)
        elif isinstance(value, str) and value and (secrets.looks_secret_parameter(name) or secrets.has_credentials(value)):
            yield SpecProblem(field, secrets.ADVICE)
        if spec.command is not None and (first := seen.setdefault(variable(name), name)) != name:
            yield SpecProblem(field, f"becomes the variable {variable(name)}, and so does params.{first}; rename one")
    if not any(_json_problem(value) for value in spec.params.values()) and len(json.dumps(spec.params)) > MAX_PARAMS:
        yield SpecProblem("params", f"larger than {MAX_PARAMS >> 10} KiB as JSON; put the data into a file and pass its path")


def _json_problem(value: Any, depth: int = 0) -> str | None:
    if depth > 32:
        return "nested more than 32 deep"
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    if isinstance(value, str) and "\0" in value:
        return "holds a NUL character, which no program accepts"
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return "must fit into 64 bits; put it in quotes to pass it as text"
    children = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return next((problem for child in children if (problem := _json_problem(child, depth + 1))), None)


def _times(spec: JobSpec) -> Iterator[SpecProblem]:
    positive = {"timeout": spec.timeout, "hang_after": spec.hang_after, "estimate": spec.estimate, "grace": spec.grace}
    for field, seconds in positive.items():
        if seconds is not None and not 0 < seconds <= LONGEST_DURATION:
            yield SpecProblem(field, "must be longer than 0 and shorter than 100 years")
    if 86_400 < spec.grace <= LONGEST_DURATION:
        yield SpecProblem("grace", f"must be at most 1d, not {format_duration(spec.grace)}: a preempted job holds its GPUs so long")
    if spec.timeout is not None and spec.estimate is not None and spec.estimate > spec.timeout > 0:
        yield SpecProblem(
            "timeout",
            f"{format_duration(spec.timeout)} is shorter than the estimate, {format_duration(spec.estimate)}: it would never end",
        )


def _retries(spec: JobSpec) -> Iterator[SpecProblem]:
    retries = spec.retries
    if not 0 <= retries.limit <= MAX_RETRIES:
        yield SpecProblem("retries.limit", f"must be between 0 and {MAX_RETRIES}, not {retries.limit}")
    if not (math.isfinite(retries.factor) and 1 <= retries.factor <= 1_000):
        yield SpecProblem("retries.factor", f"must be between 1 and 1000, not {retries.factor:g}")
    if not 0 <= retries.backoff <= LONGEST_DURATION:
        yield SpecProblem("retries.backoff", "must be between 0 and 100 years")
    elif not retries.backoff <= retries.max_backoff <= LONGEST_DURATION:
        yield SpecProblem("retries.max_backoff", f"must not be shorter than backoff ({format_duration(retries.backoff)})")
    for code in retries.never_on:
        if not -64 <= code <= 255 or code == 0:
            yield SpecProblem("retries.never_on", f"{code} is no exit code of a failure; use 1 to 255, or minus the number of a signal")


def _relations(spec: JobSpec) -> Iterator[SpecProblem]:
    targets = [dependency.job for dependency in spec.after]
    if spec.name in targets:
        yield SpecProblem("after", "a job cannot wait for itself")
    elif len(targets) != len(set(targets)):
        twice, _ = Counter(targets).most_common(1)[0]
        yield SpecProblem("after", f"{shown(twice)} is named twice")
    elif not all(targets):
        yield SpecProblem("after", "holds an empty name")
    if len(targets) > MAX_AFTER:
        yield SpecProblem("after", f"names more than {MAX_AFTER} jobs")
    if len(spec.labels) > MAX_LABELS:
        yield SpecProblem("labels", f"more than {MAX_LABELS} labels")
    for name, value in spec.labels.items():
        if not 0 < len(name) <= 100 or not name.isprintable() or len(value) > 500 or "\0" in value:
            yield SpecProblem("labels", f"{shown(name)}: a label's name has 1 to 100 printable characters, its value up to 500")


def _array(spec: JobSpec) -> Iterator[SpecProblem]:
    index, size, cap = spec.array_index, spec.array_size, spec.array_cap
    if (index is None) != (size is None):
        yield SpecProblem("array", "array_index and array_size belong together")
    elif index is not None and size is not None and not 0 <= index < size:
        yield SpecProblem("array", f"task {index} of {size} tasks: tasks count from 0")
    elif size is not None and size > MAX_JOBS:
        yield SpecProblem("array", f"{size} tasks; an array has at most {MAX_JOBS}")
    if cap is not None and not 1 <= cap <= MAX_RUNNING:
        yield SpecProblem("array.max_running", f"must be between 1 and {MAX_RUNNING}, not {cap}")


def _recurring(spec: JobSpec) -> Iterator[SpecProblem]:
    if spec.cron is None:
        return
    if spec.array_index is not None:
        yield SpecProblem("cron", "an array cannot recur; let a recurring job submit it")
    if spec.idempotency_key is not None:
        yield SpecProblem(
            "idempotency_key", "a recurring job is submitted again and again, and the key would refuse all except the first; remove it"
        )
    try:
        cron.normalise(spec.cron)
    except ValueError as error:
        yield SpecProblem("cron", str(error))


_RULES: tuple[Rule, ...] = (
    _work, _names, _resources, _demand, _stop, _serving, _backbone, _weights, _begin, _merge,
    _loading, _blocks, _surroundings, _params, _times, _retries, _relations, _array, _recurring,
)  # fmt: skip

"""A JobSpec as the YAML that a person would write for it; `load` reads it back as the same JobSpec."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import yaml

from .check import TASK
from .model import Demand, Dependency, JobSpec, PipelineOptions, Retries, Reuse, Stop, base_name
from .reading import blocks, loading, tree
from .reading.params import SHELL
from .reading.units import format_clock, format_duration, format_size


def dump(specs: Sequence[JobSpec]) -> str:
    """One YAML document a job. A task of an array becomes a job of its own, named ``sweep-3``; the first replica stands for its group."""
    first = [spec for spec in specs if spec.replicas is None or not spec.array_index]
    return yaml.dump_all([mapping(spec) for spec in first], Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)


def mapping(spec: JobSpec) -> dict[str, Any]:
    """Fields that differ from their defaults, in the order of the documentation."""
    default = JobSpec(name="")
    fields = {name: write(spec) for name, (attribute, write) in _WRITERS.items() if getattr(spec, attribute) != getattr(default, attribute)}
    if spec.gpus_min != spec.gpus_max:
        fields["gpus"] = {"min": spec.gpus_min, "max": spec.gpus_max}
    elif spec.gpus_min != 1:
        fields["gpus"] = spec.gpus_min
    return fields | _demand(spec.demand)


def _name(spec: JobSpec) -> str:
    if spec.replicas is not None:
        return base_name(spec.name)
    return spec.name[:-1].replace("[", "-") if TASK.fullmatch(spec.name) else spec.name


def _command(spec: JobSpec) -> str | list[str]:
    command = spec.command or ()
    return command[2] if len(command) == 3 and command[:2] == SHELL and command[2].strip() else list(command)


def _demand(demand: Demand) -> dict[str, Any]:
    if demand.kind == "strict":
        return {"deadline": format_clock(demand.tiers[0].deadline)}
    if demand.kind == "soft":
        return {"soft": [{"deadline": format_clock(tier.deadline), "reward": tier.reward} for tier in demand.tiers]}
    return {}


def _stop(stop: Stop) -> dict[str, Any]:
    if stop.metric is None:
        return {"iterations": stop.iterations}
    return {"metric": stop.metric, "target": stop.target, "mode": stop.mode, "max_iterations": stop.iterations}


def _retries(retries: Retries) -> int | dict[str, Any]:
    if retries == Retries(retries.limit):
        return retries.limit
    return {
        "limit": retries.limit,
        "backoff": format_duration(retries.backoff),
        "factor": retries.factor,
        "max_backoff": format_duration(retries.max_backoff),
        "never_on": list(retries.never_on),
    }


def _dependency(dependency: Dependency) -> str | dict[str, str]:
    return dependency.job if dependency.mode == "ok" else {"job": dependency.job, "mode": dependency.mode}


def _block(name: str, spec: JobSpec) -> dict[str, Any]:
    return blocks.write(getattr(spec, name))


#: field of the YAML: the attribute it stands for, and how that is written
_WRITERS: dict[str, tuple[str, Callable[[JobSpec], Any]]] = {
    "name": ("name", _name),
    "recipe": ("recipe", lambda spec: spec.recipe),
    "command": ("command", _command),
    "entrypoint": ("entrypoint", lambda spec: spec.entrypoint),
    "params": ("params", lambda spec: spec.params),
    "kind": ("kind", lambda spec: spec.kind),
    "backbone": ("backbone", lambda spec: spec.backbone),
    "pool": ("pool", lambda spec: spec.pool),
    "user": ("user", lambda spec: spec.user),
    "priority": ("priority", lambda spec: spec.priority),
    "gpu_memory": ("gpu_memory", lambda spec: format_size(spec.gpu_memory)),
    "stop": ("stop", lambda spec: _stop(spec.stop)),
    "env": ("env", lambda spec: spec.env),
    "env_file": ("env_file", lambda spec: spec.env_file),
    "workdir": ("workdir", lambda spec: spec.workdir),
    "reuse": ("reuse", lambda spec: loading.write_reuse(spec.reuse or Reuse())),
    "pipeline": ("pipeline", lambda spec: loading.write_pipeline(spec.pipeline or PipelineOptions())),
    "retries": ("retries", lambda spec: _retries(spec.retries)),
    "timeout": ("timeout", lambda spec: format_duration(spec.timeout or 0)),
    "grace": ("grace", lambda spec: format_duration(spec.grace)),
    "hang_after": ("hang_after", lambda spec: format_duration(spec.hang_after or 0)),
    "estimate": ("estimate", lambda spec: format_duration(spec.estimate or 0)),
    "idempotency_key": ("idempotency_key", lambda spec: spec.idempotency_key),
    "labels": ("labels", lambda spec: spec.labels),
    "after": ("after", lambda spec: [_dependency(item) for item in spec.after]),
    "hold": ("hold", lambda spec: spec.hold),
    "cron": ("cron", lambda spec: spec.cron),
    "warm": ("warm", lambda spec: spec.warm),
    "weights": ("weights", lambda spec: spec.weights),
    "begin": ("begin", lambda spec: spec.begin),
    "merge": ("merge", lambda spec: spec.merge),
    **{name: (name, partial(_block, name)) for name in blocks.BLOCKS},
}


class _Dumper(yaml.SafeDumper):
    """Quotes what `tree` would read as something else than text, which is more than PyYAML's own YAML 1.1 does (``1e-3``)."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        # YAML 1.1 takes these for line breaks, which only an escape survives unchanged.
        style = '"' if any(char in "\x85\u2028\u2029" for char in text) else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _Dumper.represent_text)


for _tag, _pattern in (("null", tree.NULLS), ("bool", tree.BOOLS), ("int", tree.INTS), ("float", tree.FLOATS)):
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern.pattern})\Z"), None)

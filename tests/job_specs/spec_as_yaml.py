"""A JobSpec as the YAML that a person would write for it: what the reading of job files is tried with."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import yaml
from stoker.engine.spec.check import TASK
from stoker.engine.spec.model import Demand, Dependency, Duration, JobSpec, PipelineOptions, Retries, Reuse, Size, Stop, Switch, base_name
from stoker.engine.spec.reading import tree
from stoker.engine.spec.reading.blocks import BLOCKS, _kinds
from stoker.engine.spec.reading.job_fields import NAMES
from stoker.engine.spec.reading.loading import PLATEAU
from stoker.engine.spec.reading.params import SHELL
from stoker.engine.spec.reading.units import EARLIEST, LATEST, format_duration, format_size


def dump(specs: Sequence[JobSpec]) -> str:
    """One YAML document a job. A task of an array becomes a job of its own, named ``sweep-3``; the first replica stands for its group."""
    first = [spec for spec in specs if spec.replicas is None or not spec.array_index]
    return yaml.dump_all([mapping(spec) for spec in first], Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)


def mapping(spec: JobSpec) -> dict[str, Any]:
    """Fields that differ from their defaults, in the order of the documentation."""
    default = JobSpec(name="")
    given = {name: getattr(spec, name) for name in NAMES if name in JobSpec.__struct_fields__ and name != "demand"}
    fields = {name: _WRITERS.get(name, lambda value: value)(value) for name, value in given.items() if value != getattr(default, name)}
    fields["name"] = _name(spec)
    if spec.gpus_min != spec.gpus_max:
        fields["gpus"] = {"min": spec.gpus_min, "max": spec.gpus_max}
    elif spec.gpus_min != 1:
        fields["gpus"] = spec.gpus_min
    return fields | _demand(spec.demand)


def _name(spec: JobSpec) -> str:
    if spec.replicas is not None:
        return base_name(spec.name)
    return spec.name[:-1].replace("[", "-") if TASK.fullmatch(spec.name) else spec.name


def format_clock(ts: float) -> str:
    """ISO time in UTC to the millisecond, which `clock` reads as the same number; of what is no date the nearest one."""
    return datetime.fromtimestamp(min(max(ts, EARLIEST), LATEST), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


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


def _after(after: tuple[Dependency, ...]) -> list[str | dict[str, str]]:
    return [one.job if one.mode == "ok" else {"job": one.job, "mode": one.mode} for one in after]


def _command(command: tuple[str, ...]) -> str | list[str]:
    return command[2] if len(command) == 3 and command[:2] == SHELL and command[2].strip() else list(command)


def _reuse(given: Reuse) -> int | dict[str, Any]:
    if given == Reuse(repeat=given.repeat):
        return given.repeat
    buffer = {"batches": given.shuffle_batches} if given.shuffle_buffer is None else given.shuffle_buffer
    return {
        "repeat": given.repeat,
        "shuffle_buffer": buffer,
        "memory": format_size(given.memory),
        "augment": given.augment,
        "switch": _write_switch(given.switch),
        "schedule": given.schedule,
        "peak": given.peak,
    }


def _write_switch(given: Switch) -> str | dict[str, Any]:
    if given == Switch():
        return "plateau"
    if given.on != "plateau":
        return {given.on: getattr(given, given.on)}
    values = {name: getattr(given, name) for name in PLATEAU}
    return {"plateau": {name: value for name, value in values.items() if value is not None}}


def _pipeline(given: PipelineOptions) -> str | dict[str, Any]:
    if given == PipelineOptions(tune=given.tune):
        return given.tune
    values: dict[str, Any] = {"tune": given.tune, "processes": given.processes, "interval": format_duration(given.interval)}
    if given.workers:
        values["workers"] = dict(given.workers)
    if given.memory is not None:
        values["memory"] = format_size(given.memory)
    return values


def written_block(block: msgspec.Struct) -> dict[str, Any]:
    """The fields that differ from their defaults, as a person would write them."""
    found = msgspec.structs.fields(type(block))
    given = [(field, getattr(block, field.name)) for field in found]
    return {field.name: _written(field.type, value) for field, value in given if field.required or value != _default(field)}


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default


def _written(kind: Any, value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return written_block(value)
    kinds = _kinds(kind)
    if isinstance(value, int) and Size in kinds:
        return format_size(value)
    if value is not None and Duration in kinds:
        return format_duration(value)
    return msgspec.json.decode(msgspec.json.encode(value))  # lists in place of tuples


_WRITERS: dict[str, Callable[[Any], Any]] = {
    "command": _command, "gpu_memory": format_size, "stop": _stop, "reuse": _reuse, "pipeline": _pipeline, "retries": _retries,
    "timeout": format_duration, "grace": format_duration, "hang_after": format_duration, "estimate": format_duration, "after": _after,
    **dict.fromkeys(BLOCKS, written_block),
}  # fmt: skip


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

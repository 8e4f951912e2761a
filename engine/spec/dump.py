"""A JobSpec as the YAML that a person would write for it; `load` reads it back as the same JobSpec."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

from .check import TASK
from .model import Demand, JobSpec, base_name
from .reading import tree
from .reading.job_fields import FIELDS
from .reading.units import format_clock


def dump(specs: Sequence[JobSpec]) -> str:
    """One YAML document a job. A task of an array becomes a job of its own, named ``sweep-3``; the first replica stands for its group."""
    first = [spec for spec in specs if spec.replicas is None or not spec.array_index]
    return yaml.dump_all([mapping(spec) for spec in first], Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)


def mapping(spec: JobSpec) -> dict[str, Any]:
    """Fields that differ from their defaults, in the order of the documentation."""
    default = JobSpec(name="")
    given = {name: getattr(spec, name) for name in FIELDS if name in JobSpec.__struct_fields__}
    fields = {name: FIELDS[name].write(value) for name, value in given.items() if value != getattr(default, name)}
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


def _demand(demand: Demand) -> dict[str, Any]:
    if demand.kind == "strict":
        return {"deadline": format_clock(demand.tiers[0].deadline)}
    if demand.kind == "soft":
        return {"soft": [{"deadline": format_clock(tier.deadline), "reward": tier.reward} for tier in demand.tiers]}
    return {}


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

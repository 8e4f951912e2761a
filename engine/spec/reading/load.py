"""Job files: YAML into JobSpecs. Each mistake is a line: ``file.yaml:12: stop.iteratons: unknown field (did you mean …?)``."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import Gathered, NotFound, UsageError
from ..build import Context, build
from ..model import JobSpec
from . import fields, tree
from .blocks import BLOCKS
from .job_fields import NAMES
from .scripts import neighbour
from .tree import Mark, Node

#: a job has one of each group; in a merge, the job's own choice drops the default's
EXCLUSIVE = (("recipe", "command", "entrypoint"), ("demand", "deadline", "soft"))
#: merged name by name with the default's
MERGED = ("params", "env", "labels", *BLOCKS)


def load_file(path: str | os.PathLike[str], context: Context, overrides: Node | None = None) -> list[JobSpec]:
    """All jobs of a file. ``overrides`` (from command-line options) win over the fields of each job."""
    source = os.fspath(path)
    try:
        with open(source, "rb") as file:
            data = file.read(tree.MAX_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(tree.one_line(f"{source}: no such file{neighbour(Path(source))}")) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(tree.one_line(f"{source}: cannot be read: {reason}")) from None
    return load_text(tree.decode(data, source), source, context, overrides)


def load_text(text: str, source: str, context: Context, overrides: Node | None = None) -> list[JobSpec]:
    """All jobs of a text; Several has all mistakes."""
    return _load(lambda errors: tree.parse(text, source, errors), source, context, overrides)


def load_value(value: Any, context: Context, overrides: Node | None = None) -> list[JobSpec]:
    """The same from JSON's values in place of a text: errors name the field alone."""
    node = tree.of_value(value)
    if node.size > tree.MAX_NODES:
        raise UsageError(f"spec: more than {tree.MAX_NODES} values; split it, or use an array")
    return _load(lambda _: [node], "<spec>", context, overrides)


def _load(documents: Callable[[Gathered], list[Node]], source: str, context: Context, overrides: Node | None) -> list[JobSpec]:
    errors = Gathered()
    found: list[_Found] = []
    specs: list[JobSpec] = []
    with errors.part():
        for document in documents(errors):
            with errors.part():
                found += _jobs(document, errors)
        if not found and not errors:
            raise Mark(source, 1 if source != "<spec>" else None).error("", "no job in the file; see docs/job-spec.md for an example")
        nodes = [job.node if overrides is None else merged(job.node, overrides) for job in found]
        stem = Path(source).stem if len(nodes) == 1 and not source.startswith("<") else ""
        specs = build(nodes, context, stem, [job.place for job in found])
    errors.sort()
    errors.tell()
    return specs


def merged(base: Node, over: Node) -> Node:
    """``base`` with the fields of ``over`` in place of its own."""
    if not isinstance(base.value, dict) or not isinstance(over.value, dict):
        return base if over.value is None else over
    dropped = {name for group in EXCLUSIVE if not over.value.keys().isdisjoint(group) for name in group}
    entries = {name: node for name, node in base.value.items() if name not in dropped}
    for name, node in over.value.items():
        entries[name] = merged(entries[name], node) if name in MERGED and name in entries else node
    return dataclasses.replace(over, value=entries)


class _Found(NamedTuple):
    """A job of a file, and the name of its place in errors about unknown fields."""

    node: Node
    place: str


def _jobs(document: Node, errors: Gathered) -> Iterator[_Found]:
    """Jobs of one YAML document: the document itself, or the list under ``jobs:`` with ``defaults:`` for each."""
    if document.value is None:
        return
    if isinstance(document.value, list):
        raise document.mark.error("", "a list; put the jobs under 'jobs:'")
    found = fields.entries(document, "", "a mapping of fields, such as name: and command:")
    if "jobs" not in found and "defaults" not in found:
        yield _Found(document, "")
        return
    found = fields.known(document, "", ("jobs", "defaults"), "a mapping", errors)
    if "jobs" not in found:
        raise document.mark.error("defaults", "there are no 'jobs:' beside it")
    defaults = found.get("defaults")
    if defaults is not None:
        defaults = dataclasses.replace(defaults, value=fields.known(defaults, "defaults", NAMES, "a mapping of fields", errors))
    for index, job in enumerate(fields.items(found["jobs"], "jobs", "a list of jobs")):
        with errors.part():
            fields.entries(job, f"jobs[{index}]", "a mapping of fields")
            yield _Found(dataclasses.replace(merged(defaults, job), mark=job.mark) if defaults else job, f"jobs[{index}]")

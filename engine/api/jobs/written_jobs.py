"""Submissions that the daemon reads: the fields of a YAML file as JSON, or the file's text."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ....runners import recipes
from ...errors import UsageError
from ...spec.build import Context
from ...spec.model import JobSpec, Provenance, Submission
from ...spec.reading.load import load_text, load_value
from ...spec.reading.secrets import mask_argv
from ...spec.reading.tree import of_value

Key = Annotated[str, msgspec.Meta(min_length=1, max_length=80)]
#: variables of the submitter's environment with which a command runs, so that it finds the same programs
HANDED_ON = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX")


class Submitted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/jobs`: jobs as they are stored, or a spec as in a YAML file."""

    jobs: list[JobSpec] = []
    spec: dict[str, Any] | str | None = None  #: in place of jobs: fields as in docs/job-spec.md, or the text of such a file
    over: dict[str, Any] = {}  #: fields that replace those of each job of the spec
    source: str = "<spec>"  #: name of the text in error messages
    #: idempotency key of all jobs of the spec that have none: a request repeated with it submits nothing more
    key: Key | None = None
    here: bool = False  #: the client is on the daemon's host: scripts and directories must exist there
    environment: dict[str, str] = {}  #: the client's PATH, VIRTUAL_ENV and CONDA_PREFIX, with which commands run
    provenance: Provenance | None = None  #: may be left out with a spec; relative paths start at its ``cwd``
    dry_run: bool = False


def submission_of(asked: Submitted) -> list[Submission]:
    """The submissions, in order: ordinary jobs together, each recurring one alone."""
    from ...spec.expand import submissions

    if asked.spec is None:
        if asked.provenance is None:
            raise UsageError("the request is not as it should be: Object missing required field `provenance`")
        return [Submission(jobs=asked.jobs, provenance=asked.provenance, dry_run=asked.dry_run)]
    if asked.jobs:
        raise UsageError("spec: given beside jobs; keep one of them")
    origin = asked.provenance or Provenance(argv=[], cwd="/")
    context = Context(now=time.time(), cwd=Path(origin.cwd), recipes=recipes.RECIPES, files=asked.here)
    over = of_value(asked.over) if asked.over else None
    found = load_text(asked.spec, asked.source, context, over) if isinstance(asked.spec, str) else load_value(asked.spec, context, over)
    provenance = msgspec.structs.replace(origin, argv=mask_argv(origin.argv))
    jobs = [_completed(job, asked) for job in found]
    return [Submission(jobs=group, provenance=provenance, dry_run=asked.dry_run) for group in submissions(jobs)]


def _completed(job: JobSpec, asked: Submitted) -> JobSpec:
    if asked.key is not None and job.cron is None and job.idempotency_key is None:
        job = msgspec.structs.replace(job, idempotency_key=f"{asked.key}/{job.name}")
    if job.command is None:
        return job
    here = {name: value for name, value in asked.environment.items() if name in HANDED_ON}
    return msgspec.structs.replace(job, env={**here, **job.env})

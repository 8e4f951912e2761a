"""`stoker submit`: jobs from files, from options, or from both."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from .... import __version__
from ... import format as fmt
from ...errors import Gathered, NotFound, StokerError, UsageError
from ...spec.click_options import spec_options
from ..command import App, Command, examples, pass_app
from ..foreign_words import as_submission, begin_of_command, is_program
from ..output import Answer, Column, json_option, note, print_table, state_style, write
from .forecasting import Forecast, forecasts, lines, require
from .logs import print_log
from .plan_by_worker import with_batches_chosen

YAML = (".yaml", ".yml")


class SubmitCommand(Command):
    """Keeps the words after ``--`` apart: they are the job's command, with its own options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        cut = args.index("--") if "--" in args else len(args)
        ctx.meta["stoker.command"] = tuple(args[cut + 1 :])
        if cut < len(args) and not args[cut + 1 :]:
            ctx.fail("nothing follows '--': write the command there")
        try:
            return super().parse_args(ctx, args[:cut])
        except click.NoSuchOption as error:
            begin = begin_of_command(args[:cut])
            if cut < len(args) or begin is None or error.option_name not in [word.partition("=")[0] for word in args[begin:]]:
                raise
            ctx.fail(f"no such option {error.option_name!r}; a command and its options stand after '--': {as_submission(args[begin:])}")

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


_OPTIONS = (
    click.option("--dry-run", is_flag=True, help="Check everything, say what would happen and when it would start; submit nothing."),
    click.option("--snapshot", is_flag=True, help="Copy the working directory now, and run in the copy."),
    click.option("--require-deadline", "required", is_flag=True, help="Submit only what keeps its deadline in 9 of 10 simulated runs."),
    click.option("--follow", "-f", "following", is_flag=True, help="Print the job's output, and return when it has ended."),
)


def submit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of the submission, not of the jobs."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command(cls=SubmitCommand)
@click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path(path_type=Path))
@spec_options
@submit_options
@click.option("--wait", is_flag=True, help="Return when the jobs have ended; the exit code says how.")
@json_option
@pass_app
@click.pass_context
@examples(
    "stoker submit job.yaml",
    "stoker submit --gpus 1 --name hello -- python train.py --lr 0.1",
    "stoker submit --array lr=0.1,0.01 --max-running 1 --name sweep -- python train.py --lr '{lr}'",
    "stoker submit --recipe digits-cnn --param lr=0.001 --deadline 2h --follow",
    "stoker submit job.yaml --deadline 18:30 --estimate 2h --require-deadline",
    "stoker submit job.yaml --priority 10 --dry-run",
    "stoker submit - < job.yaml",
)
def submit(
    context: click.Context,
    app: App,
    files: tuple[Path, ...],
    dry_run: bool,
    snapshot: bool,
    required: bool,
    wait: bool,
    following: bool,
    **options: Any,
) -> Answer:
    """Submit jobs from YAML files, from options and a command after '--', or from files with options laid over them.

    docs/job-spec.md describes the fields of a file; each option here is one of them. For jobs with deadlines it prints the probability
    of keeping them.
    """
    jobs = read_jobs(app, files, options, context.meta["stoker.command"])
    if following and context.params.get("as_json"):
        raise UsageError("--follow prints the job's output, --json would mix with it; use --wait --json")
    if following and len(jobs) != 1:
        raise UsageError(f"--follow shows one job, these are {len(jobs)}; use --wait")
    if (following or wait) and any(job.cron for job in jobs):
        raise UsageError("a recurring job never ends: leave out --wait and --follow")
    if wait and (server := next((job for job in jobs if job.kind == "infer"), None)) is not None:
        raise UsageError(f"{server.name} serves until it is cancelled: leave out --wait")
    jobs, answer = send(app, jobs, dry_run, snapshot, required)
    if dry_run:
        return trial(answer, len(jobs))
    if not (wait or following):
        timed = _timed(jobs, answer)
        if context.params.get("as_json"):
            _add_forecasts(app, answer, timed)
        return Answer(answer, lambda: _show(app, answer, timed), done=_submitted(answer))
    ended, failures = until_ended(app, jobs, answer, following)
    return Answer(ended, lambda: None if following else print_table(ended, ENDED, "no jobs"), failures)


def read_jobs(app: App, files: Sequence[Path], options: dict[str, Any], command: Sequence[str]) -> list[Any]:
    """The jobs of files, of options, or of files with options laid over them."""
    from ....runners import recipes
    from ...spec.build import Context
    from ...spec.check import require_all
    from ...spec.click_options import from_options, overrides
    from ...spec.reading.load import load_file, load_text
    from ...spec.reading.tree import MAX_BYTES, decode

    # If the daemon is on another host, so are its runners: packages installed here say nothing about them.
    context = Context.here(recipes.RECIPES, None if app.client.url else os.environ, note)
    if not files:
        if not command and not options["recipe"] and not options["entrypoint"]:
            raise UsageError("nothing to run: name a YAML file, write a command after '--', or give --recipe or --entrypoint")
        return [_with_path(job) for job in from_options(options, command, context)]
    over = overrides(options, command)
    jobs: list[Any] = []
    errors = Gathered()
    for file in files:
        if file.suffix not in YAML and str(file) != "-":
            remedy = f"to run a command, write it after '--': {as_submission([str(word) for word in files])}"
            if not file.exists():
                raise NotFound(f"{file}: no such file; {remedy}")
            if is_program(file):
                raise UsageError(f"{file}: is a program, not a file of jobs; {remedy}")
        with errors.part():
            if str(file) == "-":
                jobs += load_text(decode(sys.stdin.buffer.read(MAX_BYTES + 1), "<stdin>"), "<stdin>", context, over)
            else:
                jobs += load_file(file, context, over)
    errors.tell()
    jobs = [_with_path(job) for job in jobs]
    require_all(jobs)
    return jobs


def _with_path(job: Any) -> Any:
    """A command runs with the submitter's PATH, not the runner's: an activated environment counts."""
    import msgspec

    if job.command is None:
        return job
    here = {name: os.environ[name] for name in ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX") if name in os.environ}
    if shutil.which(job.command[0], path=job.env.get("PATH", here.get("PATH"))) is None and "/" not in job.command[0]:
        note(f"{job.name}: no program {job.command[0]!r} on this host's PATH; on the runner's host it may be there")
    return msgspec.structs.replace(job, env={**here, **job.env})


def send(app: App, jobs: list[Any], dry_run: bool, snapshot: bool, required: bool) -> tuple[list[Any], dict[str, Any]]:
    """Submit jobs; returns the jobs with chosen values, and the daemon's answer."""
    jobs = with_batches_chosen(app, jobs, dry_run, post_jobs)
    if required:
        _require_deadlines(app, jobs)
    return jobs, post_jobs(app, jobs, dry_run, snapshot)


def post_jobs(app: App, jobs: list[Any], dry_run: bool, with_snapshot: bool) -> dict[str, Any]:
    """Submit jobs; returns the daemon's answer."""
    import msgspec

    from ...spec.expand import submissions
    from ...spec.model import Submission
    from ...spec.provenance import capture

    copied = None
    if with_snapshot and not dry_run:
        copied = _snapshot(app, _one_workdir(jobs))
    origin = capture(sys.argv, Path.cwd(), client=__version__, snapshot=copied)
    whole: dict[str, Any] = {"jobs": [], "schedules": [], "dry_run": dry_run}
    for group in submissions(jobs):
        body = msgspec.json.encode(Submission(jobs=group, provenance=origin, dry_run=dry_run))
        answer = msgspec.json.decode(app.client.post_raw("/v1/jobs", body))
        whole["jobs"] += answer["jobs"]
        whole["schedules"] += [answer["schedule"]] if answer["schedule"] is not None else []
    return whole


def _snapshot(app: App, tree: Path) -> str:
    """Copy a tree; returns the copy's place: with the daemon, by its digest, or, if it is too large, in the home, for this host alone."""
    from ...hosts.bundles import digest_of, send
    from ...hosts.bundles import tree as whole
    from ...spec.provenance import SENT_BYTES, SNAPSHOT_BYTES, snapshot

    folder = app.home.create().snapshots / uuid.uuid4().hex
    copied = snapshot(tree, folder, max_bytes=SENT_BYTES if app.client.url else SNAPSHOT_BYTES)
    note(f"copied {copied.files} files, {fmt.size(copied.bytes)}")
    if copied.bytes > SENT_BYTES:
        note(f"that is more than {fmt.size(SENT_BYTES)}: only runners of this host can start the job")
        return str(folder)
    try:
        add = whole(folder, hidden=True)
        digest, size = digest_of(add)
        kept = _send_piece(app, digest)
        if not kept["whole"]:
            send(add, kept["bytes"], lambda at, data: _send_piece(app, digest, at, data))
            _send_piece(app, digest, size, last=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return f"sha256:{digest}"


def _send_piece(app: App, digest: str, offset: int = 0, data: bytes = b"", *, last: bool = False) -> Any:
    piece = {"digest": digest, "offset": offset, "data": base64.b64encode(data).decode(), "last": last}
    return app.client.post("/v1/snapshots", piece, timeout=60.0)


def _one_workdir(jobs: list[Any]) -> Path:
    found = sorted({job.workdir for job in jobs})
    if len(found) > 1:
        raise UsageError(f"--snapshot copies one directory, these jobs run in {len(found)}: {', '.join(found)}; submit them one by one")
    return Path(found[0])


def _submitted(answer: dict[str, Any]) -> str:
    told = [ids_in_words([row["id"] for row in answer["jobs"]])] if answer["jobs"] else []
    return f"submitted {', '.join(told + [f'schedule {schedule}' for schedule in answer['schedules']])}"


def ids_in_words(ids: list[int]) -> str:
    if len(ids) == 1:
        return f"job {ids[0]}"
    if ids == list(range(ids[0], ids[0] + len(ids))):
        return f"jobs {ids[0]} to {ids[-1]}"
    return "jobs " + ", ".join(map(str, ids))


def _timed(jobs: list[Any], answer: dict[str, Any]) -> list[int]:
    """Numbers of the new jobs whose deadlines need a forecast."""
    from ...spec.expand import with_deadlines

    names = {jobs[row].name for row in with_deadlines(jobs)}
    return [row["id"] for row in answer["jobs"] if row["name"] in names and not row["existing"]]


def _require_deadlines(app: App, jobs: list[Any]) -> None:
    """Refuse jobs whose deadlines will probably not be kept, before anything is submitted."""
    if all(job.deadline is None for job in jobs):
        raise UsageError("--require-deadline: none of these jobs has a deadline; give one with --deadline or --soft")
    trial = post_jobs(app, jobs, dry_run=True, with_snapshot=False)
    require([(row["name"], row["forecast"]) for row in trial["jobs"] if row["forecast"] is not None], time.time())


def _add_forecasts(app: App, answer: dict[str, Any], timed: list[int]) -> None:
    """For programs: add forecasts to the rows of the jobs. An interruption does not undo the submission."""
    found: dict[int, Any] = {}
    with contextlib.suppress(KeyboardInterrupt):
        found.update(forecasts(app.client, timed))
    for row in answer["jobs"]:
        row["forecast"] = found.get(row["id"])


def _tell(found: Iterable[tuple[Any, Forecast]], several: bool) -> None:
    """A few lines for people, beside the output for programs on stdout."""
    for job, forecast in found:
        for line in lines(forecast, time.time()):
            note(f"{f'job {job} ' if several else ''}{line}")


def trial(answer: dict[str, Any], count: int) -> Answer:
    """The outcome that jobs of a dry run would have."""
    return Answer(answer, lambda: _show_trial(answer, count))


def _show_trial(answer: dict[str, Any], count: int) -> None:
    now = time.time()
    columns = [
        Column("NAME", "name", flexible=True),
        Column("STATE", "state", style=state_style),
        Column("STARTS", lambda row: fmt.expected(row["est_start"], now)),
        Column("REASON", lambda row: row["reason"] or "", flexible=True),
    ]
    note(f"nothing was submitted; {'this is' if count == 1 else 'these are'} what would be:")
    print_table(answer["jobs"], columns, "a recurring job")
    told = [(row["name"], row["forecast"]) for row in answer["jobs"] if row["forecast"] is not None]
    _tell(told, len(told) > 1)


def _show(app: App, answer: dict[str, Any], timed: list[int]) -> None:
    known = [row["id"] for row in answer["jobs"] if row["existing"]]
    fresh = [row for row in answer["jobs"] if not row["existing"]]
    if fresh:
        write(f"{ids_in_words([row['id'] for row in fresh])}{'' if len(fresh) > 1 else ' ' + fresh[0]['name']}\n")
    if known:
        write(f"{ids_in_words(known)} {'was' if len(known) == 1 else 'were'} submitted before with the same idempotency key\n")
    for schedule in answer["schedules"]:
        write(f"schedule {schedule}\n")
    _tell(forecasts(app.client, timed), len(timed) > 1)


ENDED = [
    Column("ID", "id", right=True),
    Column("NAME", "name", flexible=True),
    Column("STATE", "state", style=state_style),
    Column("EXIT", lambda row: "" if row["exit_code"] is None else str(row["exit_code"]), right=True),
    Column("RAN", lambda row: fmt.duration(row["run_time"]), right=True),
    Column("REASON", lambda row: row["state_reason"] or "", flexible=True),
]


def until_ended(app: App, jobs: list[Any], answer: dict[str, Any], shown: bool) -> tuple[list[dict[str, Any]], list[StokerError]]:
    """Wait for submitted jobs, with their output if ``shown``; returns the ended jobs, and the failures."""
    from ....client import following

    ids = [row["id"] for row in answer["jobs"]]
    note("submitted " + ids_in_words(ids))
    timed = _timed(jobs, answer)
    _tell(forecasts(app.client, timed), len(timed) > 1)
    try:
        if shown:
            print_log(app.client, str(ids[0]))
        ended = list(following.until_ended(app.client, ids))
    except KeyboardInterrupt:
        note(f"{ids_in_words(ids)} will go on; 'stoker cancel' ends {'it' if len(ids) == 1 else 'them'}")
        raise
    failed = following.failure(ended)
    return ended, [failed] if failed else []

"""`stoker prompt`: initial prompts from the bank, and prompt tuning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ... import format as fmt
from ...errors import StokerError, UsageError
from ...spec.click_options import spec_options
from ..command import App, Command, Group, examples, pass_app, unless_ended
from ..jobref import job_path
from ..jobs.submit import read_jobs, send, submit_options, trial, until_ended
from ..output import Answer, Column, json_option, print_facts, print_table, write
from .prompt_bank import LLM, bank, one_text, progress, ranked
from .prompt_checks import RECIPE, require_bank, require_llm, require_samples, require_tuning
from .prompt_work import answers, has_daemon, here_option
from .tuned_prompts import tuned_folder, what_was_tuned


@click.group(cls=Group)
@examples("stoker prompt bank build --from prompts.jsonl", "stoker prompt lookup --data sms-spam", "stoker prompt tune prompt.yaml")
def prompt() -> None:
    """Prompt tuning: a bank of initial prompts, lookups in it, and tuning jobs."""


prompt.add_command(bank)


@prompt.command(cls=Command)
@click.option("--llm", default=LLM, show_default=True, metavar="NAME", help="LLM that is to be tuned.")
@click.option("--data", required=True, metavar="SET", help="A packaged set, or FILE.csv, FILE.jsonl or FILE.parquet with text and label.")
@click.option("--text", "texts", multiple=True, metavar="TEXT", help="A prompt of your own, scored beside the bank's; may be repeated.")
@click.option("--samples", type=click.IntRange(1, 1024), default=16, show_default=True, help="Samples that each candidate is scored on.")
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="Of the choice of samples.")
@click.option("--limit", "-n", type=click.IntRange(1), default=10, show_default=True, help="Candidates to show.")
@here_option
@json_option
@pass_app
@examples(
    "stoker prompt lookup --data sms-spam",
    "stoker prompt lookup --llm smollm2-135m --data sms-spam --text 'Is this message spam?'",
    "stoker prompt lookup --data mails.csv --samples 32 --json",
)
def lookup(app: App, llm: str, data: str, texts: tuple[str, ...], samples: int, seed: int, limit: int, here: bool) -> Answer:
    """Find good initial prompts for a data set in the bank, without tuning.

    All representatives are scored by the LLM's loss on the samples, then the other prompts of the best one's cluster.
    """
    if app.client.url:
        raise UsageError("--url: a lookup reads the file of the bank, which is on the daemon's host: run it there")
    llm, called = require_llm(llm)
    try:
        there = str(Path(data).expanduser().absolute()) if require_samples(data) else data
    except UsageError as error:
        raise UsageError(str(error).replace("params.data", "--data", 1)) from None  # as jobs name it
    require_bank(app.home, called)
    request = {"work": "lookup", "llm": llm, "texts": [one_text(text) for text in texts], "data": there, "samples": samples, "seed": seed}
    last: Mapping[str, Any] = {}
    bank: Mapping[str, str] = {}
    scored = todo = 0
    with unless_ended("nothing was changed"), answers(app, request, job=not here and has_daemon(app)) as found:
        for answer in found:
            if "bank" in answer:
                bank, todo = answer["bank"], answer["todo"]
            elif "scored" in answer:
                scored = answer["scored"]
                progress(scored, max(todo, scored), "candidates", 1)
            else:
                last = answer
    if not last:
        raise StokerError("the lookup has ended without an answer; see the log of its job")
    rows = ranked(last["candidates"])
    value = {"bank": bank, "candidates": rows, "scored": scored, "prompts": last["prompts"], "seconds": last["seconds"]}
    return Answer(value, lambda: _show(value, limit))


def _show(value: Mapping[str, Any], limit: int) -> None:
    print_table(value["candidates"][:limit], _CANDIDATES, "no candidates")
    write("\n")
    print_facts([
        ("bank", f"{value['bank']['llm']}@{value['bank']['revision']}, {value['prompts']} prompts"),
        ("scored", f"{value['scored']} candidates in {fmt.duration(value['seconds'])}"),
    ])  # fmt: skip


_LAYER = {0: "yours", 1: "representative", 2: "of its cluster"}
_CANDIDATES = [
    Column("PLACE", "place", right=True),
    Column("SCORE", lambda row: f"{row['score']:.4f}", right=True),
    Column("WHAT", lambda row: _LAYER[row["layer"]], rank=1),
    Column("ID", lambda row: str(row.get("id", "")), right=True, rank=2),
    Column("TEXT", "text", flexible=True, least=30),
]


@prompt.command(cls=Command)
@click.argument("file", required=False, metavar="[FILE]", type=click.Path(path_type=Path))
@spec_options
@submit_options
@json_option
@pass_app
@click.pass_context
@examples(
    "stoker prompt tune prompt.yaml",
    "stoker prompt tune prompt.yaml --param lr=0.01 --deadline 30m --json",
    "stoker prompt tune --param data=mails.csv --param init=bank --iterations 50 --follow",
)
def tune(
    context: click.Context, app: App, file: Path | None, dry_run: bool, snapshot: bool, required: bool, following: bool, **options: Any
) -> Answer:
    """Submit a prompt-tuning job, wait for it, and show what it has reached and where its prompt is.

    It takes the options of 'stoker submit', which does the same without waiting. With a file, they are laid over it.
    """
    if following and context.params.get("as_json"):
        raise UsageError("--follow prints the job's output, --json would mix with it; leave one of them out")
    if file is None:
        options = {**options, "recipe": options["recipe"] or RECIPE}
    jobs = read_jobs(app, [] if file is None else [file], options, ())
    if len(jobs) != 1 or jobs[0].recipe != RECIPE or jobs[0].cron is not None:
        raise UsageError(f"recipe: 'stoker prompt tune' takes one job of recipe {RECIPE} that does not recur; 'stoker submit' takes any")
    if not app.client.url:  # else this host cannot tell
        require_tuning(app.home, jobs[0].params, jobs[0].backbone, jobs[0].workdir)
    jobs, answer = send(app, jobs, dry_run, snapshot, required)
    if dry_run:
        return trial(answer, len(jobs))
    (ended,), failures = until_ended(app, jobs, answer, following)
    value = _tuned(app, ended)
    return Answer(value, lambda: _show_tuned(value), failures)


def _tuned(app: App, job: Mapping[str, Any]) -> dict[str, Any]:
    """The job, its metrics, and what it says of its prompt where that is on this host."""
    folder = tuned_folder(app.home, job["id"])
    about = what_was_tuned(folder)
    progress = app.client.get(job_path(str(job["id"])))["progress"] or {}
    return {
        "job": {name: job[name] for name in ("id", "name", "state", "state_reason", "run_time")},
        "progress": {name: progress.get(name) for name in ("step", "loss", "metric")},
        "prompt": about,
        "path": None if about is None else str(folder),
    }


def _show_tuned(value: Mapping[str, Any]) -> None:
    job, reached, about = value["job"], value["progress"], value["prompt"] or {}
    started = about.get("started_from", {})
    elsewhere = f"not on this host: 'stoker logs {job['id']}' says where it is"
    ended = fmt.clean(str(job["state_reason"] or job["state"])) if job["state"] == "completed" else job["state"]
    print_facts([
        ("job", f"{job['id']} {fmt.clean(job['name'])}: {ended}, after {fmt.duration(job['run_time'])}"),
        ("steps", fmt.number(reached["step"])),
        ("loss", fmt.number(reached["loss"])),
        ("metric", fmt.number(reached["metric"])),
        ("began with", fmt.clean(str(started.get("text") or started.get("init", "")))),
        ("bank", fmt.clean(str(started.get("bank", "")))),
        ("nearest tokens", fmt.clean(str(about.get("nearest_tokens", "")))),
        ("prompt", value["path"] or (elsewhere if job["state"] == "completed" else "")),
    ])  # fmt: skip

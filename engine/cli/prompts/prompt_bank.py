"""`stoker prompt bank`: build a bank of prompts, add to it, show it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from ... import format as fmt
from ...errors import Conflict, NotFound, StokerError, UsageError
from ..command import App, Command, Group, examples, pass_app, unless_ended
from ..output import Answer, Column, Row, json_option, note, print_facts, print_table, section, write
from .prompt_checks import require_llm
from .prompt_work import answers, here_option, put
from .tuned_prompts import store_tuned

if TYPE_CHECKING:
    from ...prompts.prompt_lines import PromptText

LLM = "smollm2-135m"
AT_ONCE = 16  #: prompts of one request
FILE = click.Path(path_type=Path, dir_okay=False)
llm_option = click.option("--llm", default=LLM, show_default=True, metavar="NAME", help="LLM whose bank is meant, by name or directory.")


@click.group(cls=Group)
@examples("stoker prompt bank build --from prompts.jsonl", "stoker prompt bank stats", "stoker prompt bank search spam")
def bank() -> None:
    """The prompt bank: texts from which prompt tuning may start, with the LLM's features of each."""


@bank.command(cls=Command)
@llm_option
@click.option("--from", "file", type=FILE, metavar="FILE.jsonl", help='Prompts of this file, {"text": …, "task": …} a line.')
@click.option("--limit", type=click.IntRange(1), metavar="N", help="So many prompts at most, of each task in turn.")
@click.option("--clusters", type=click.IntRange(1), metavar="K", help="Clusters (default: the square root of the prompts, at most 50).")
@here_option
@json_option
@pass_app
@examples("stoker prompt bank build --from prompts.jsonl", "stoker prompt bank build --from prompts.jsonl --limit 500")
def build(app: App, llm: str, file: Path | None, limit: int | None, clusters: int | None, here: bool) -> Answer:
    """Add the prompts of a file to the bank, if one is given, and cluster the whole bank.

    The LLM reads each prompt once, in a short job. Stored prompts stay: after an interruption the same command goes on.
    """
    from ...prompts.prompt_lines import from_file, spread
    from ...prompts.stored_prompts import CAPACITY

    llm, called = require_llm(llm)
    known = _known(app, called)  # first, as without a daemon there is no bank
    prompts = from_file(file) if file is not None else []
    if not prompts and not any(bank_texts for _, _, bank_texts in known):
        raise NotFound(f"the bank of {llm} is empty: give prompts with --from FILE.jsonl; examples/packaged_prompts.py writes such a file")
    chosen = spread(prompts, min(limit or CAPACITY, CAPACITY))
    if len(chosen) < len(prompts):
        note(f"{len(chosen)} of {len(prompts)} prompts are taken, of each task in turn; a bank has {CAPACITY} at most")
    with unless_ended("what was stored stays in the bank; the same command goes on from there"):
        which, told = _store(app, llm, chosen, known, here, builds=True)
        value = {"bank": which, **told, **_cluster(app, which, clusters)}
    return Answer(value, lambda: print_facts([
        ("bank", _name(which)), ("added", str(told["added"])), ("known before", str(len(chosen) - told["added"])),
        ("prompts", str(value["prompts"])), ("clusters", str(value["clusters"])),
        ("scores of a lookup", f"{value['scores']:.0f} in the mean, in place of {value['prompts']}"),
    ]))  # fmt: skip


@bank.command(cls=Command)
@llm_option
@click.option("--text", "texts", multiple=True, metavar="TEXT", help="A prompt; may be repeated.")
@click.option("--task", metavar="NAME", help="Data set or task that these are written for.")
@click.option("--from", "file", type=FILE, metavar="FILE.jsonl", help='Prompts of this file, {"text": …, "task": …} a line.')
@click.option("--job", "jobs", multiple=True, metavar="JOB", help="The tuned prompt of this job, for the bank of its LLM; may be repeated.")
@here_option
@json_option
@pass_app
@examples(
    "stoker prompt bank add --text 'Is this message spam?' --task sms-spam",
    "stoker prompt bank add --from more.jsonl",
    "stoker prompt bank add --job spam-prompt",
)
def add(app: App, llm: str, texts: tuple[str, ...], task: str | None, file: Path | None, jobs: tuple[str, ...], here: bool) -> Answer:
    """Add prompts to the bank, each to the cluster whose representative is nearest.

    In a full bank each replaces the prompt of its cluster that is nearest to the representative.
    """
    from ...prompts.prompt_lines import PromptText, from_file

    if jobs:
        if texts or file is not None:
            raise UsageError("--job: adds what jobs have tuned, and stands without --text and --from")
        with unless_ended("what was stored stays in the bank"):
            which, told = store_tuned(app, jobs, task, here)
        return Answer({"bank": which, **told}, lambda: write(_added(which, told, len(jobs))))
    llm, called = require_llm(llm)
    known = _known(app, called)
    chosen = [PromptText(one_text(text), "command line", task) for text in texts] + (from_file(file) if file is not None else [])
    if not chosen:
        raise UsageError("nothing to add: give --text, --from or --job")
    with unless_ended("what was stored stays in the bank"):
        which, told = _store(app, llm, chosen, known, here)
    return Answer({"bank": which, **told}, lambda: write(_added(which, told, len(chosen))))


def _added(which: Mapping[str, str], told: Mapping[str, Any], count: int) -> str:
    known = count - told["added"]
    parts = [f"{fmt.counted(told['added'], 'prompt')} added"]
    parts += [f"{known} known before"] if known else []
    parts += [f"{len(told['replaced'])} replaced, as the bank is full"] if told["replaced"] else []
    return f"{_name(which)}: {', '.join(parts)}\n"


def one_text(text: str) -> str:
    """A prompt of an option."""
    from ...prompts.stored_prompts import LONGEST_TEXT

    if not 0 < len(text.strip()) <= LONGEST_TEXT:
        raise UsageError(f"--text: must have 1 to {LONGEST_TEXT} characters, not {len(text.strip())}")
    return text.strip()


def _known(app: App, llm: str) -> list[Any]:
    """Texts in the banks of this LLM, by revision and tokenizer."""
    found = app.client.get(f"/v1/prompts/texts/{quote(llm)}")["banks"]
    return [[row["revision"], row["tokenizer"], row["texts"]] for row in found]


def _store(
    app: App, llm: str, chosen: Sequence[PromptText], known: list[Any], here: bool, builds: bool = False
) -> tuple[Mapping[str, str], dict[str, Any]]:
    """Have the features computed, and store them; returns the bank, and the added and replaced prompts.

    ``builds``: a bank that is full before it has clusters gets them now, as they determine the replaced prompts.
    """
    by_text = {prompt.text: prompt for prompt in chosen}
    request = {"work": "features", "llm": llm, "texts": list(by_text), "known": known}
    told: dict[str, Any] = {"added": 0, "replaced": []}
    which: Mapping[str, str] | None = None
    done = todo = 0
    with answers(app, request, job=not here) as found:
        for answer in found:
            if "bank" in answer:
                which, todo = answer["bank"], done + answer["todo"]
                if len(by_text) > todo:
                    note(f"{len(by_text) - todo} of {len(by_text)} prompts are in the bank already")
                continue
            for start in range(0, len(answer["texts"]), AT_ONCE):
                some = slice(start, start + AT_ONCE)
                rows = [
                    {"text": text, "features": features, "source": by_text[text].source, "task": by_text[text].task}
                    for text, features in zip(answer["texts"][some], answer["features"][some], strict=True)
                ]
                try:
                    put(app, which, rows, told)
                except Conflict:
                    if not builds or which is None:
                        raise
                    _cluster(app, which, None)
                    put(app, which, rows, told)
            done += len(answer["texts"])
            progress(done, todo, "prompts", len(answer["texts"]))
    if which is None:
        raise StokerError("the work on the bank has ended without an answer; see the log of its job")
    return which, told


def progress(done: int, total: int, what: str, step: int) -> None:
    """On a terminal one line that is rewritten; else a line for each tenth. ``step``: the number since the last call."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{done} of {total} {what}\x1b[K" + ("\r\x1b[K" if done == total else ""))
        sys.stderr.flush()
    elif done == total or done * 10 // total > max(0, done - step) * 10 // total:
        note(f"{done} of {total} {what}")


def _cluster(app: App, which: Mapping[str, str], k: int | None) -> dict[str, Any]:
    """Group all prompts of the bank, and store their representatives; returns the numbers of prompts, clusters and scores of a lookup."""
    import msgspec
    import numpy as np

    from ...prompts.clusters import cosine_distances, count_for, k_medoids

    path = "/".join(quote(which[name]) for name in ("llm", "revision", "tokenizer"))
    numbers, features = msgspec.msgpack.decode(app.client.fetch("GET", f"/v1/prompts/features/{path}"))
    ids = np.frombuffer(numbers, dtype="<i8")
    rows = np.frombuffer(features, dtype="<f4").reshape(len(ids), -1)
    found = k_medoids(cosine_distances(rows), min(k or count_for(len(ids)), len(ids)))
    medoids = [[int(one), int(of)] for one, of in zip(ids, ids[found.member], strict=True)]
    told = app.client.post("/v1/prompts/clusters", {"bank": which, "medoids": medoids})
    return {**told, "scores": found.scores, "distance": found.distance}


def _name(which: Mapping[str, str]) -> str:
    return f"{which['llm']}@{which['revision']} ({which['tokenizer']})"


_FOUND = [
    Column("ID", "id", right=True),
    Column("TASK", lambda row: row["task"] or "", rank=1),
    Column("DISTANCE", lambda row: "" if row["distance"] is None else f"{row['distance']:.4f}", right=True, rank=2),
    Column("SOURCE", "source", rank=3),
    Column("TEXT", "text", flexible=True, least=30),
]


@bank.command(cls=Command)
@click.argument("words", nargs=-1, metavar="[WORD]...")
@click.option("--near", type=click.IntRange(1), metavar="ID", help="Prompts of the same bank, by distance from this one.")
@click.option("--llm", metavar="NAME", help="Of this LLM's banks only.")
@click.option("--limit", "-n", type=click.IntRange(1), default=20, show_default=True, help="Rows at most.")
@json_option
@pass_app
@examples("stoker prompt bank search spam message", "stoker prompt bank search --near 17", "stoker prompt bank search news --json")
def search(app: App, words: tuple[str, ...], near: int | None, llm: str | None, limit: int) -> Answer:
    """Find prompts whose text or task holds all these words, or those near to one by the LLM's features."""
    query: dict[str, Any] = {
        name: value for name, value in (("words", " ".join(words)), ("near", near), ("llm", llm), ("limit", limit)) if value
    }
    rows = app.client.get("/v1/prompts", **query)["prompts"]
    return Answer(rows, lambda: print_table(rows, _FOUND, "no such prompts"))


@bank.command(cls=Command)
@click.argument("number", type=click.IntRange(1), metavar="ID")
@json_option
@pass_app
@examples("stoker prompt bank show 17")
def show(app: App, number: int) -> Answer:
    """Show a prompt, its cluster, and those nearest to it."""
    answer = app.client.get(f"/v1/prompts/{number}")

    def tell() -> None:
        row = answer["prompt"]
        print_facts(_facts(row))
        section("Nearest")
        print_table(answer["nearest"], _FOUND, "none")

    return Answer(answer, tell)


def _facts(row: Row) -> list[tuple[str, str]]:
    representative = f"{row['cluster_size']} prompts, represented by {row['medoid']}: {fmt.clean(row['representative'] or '')}"
    return [
        ("prompt", str(row["id"])),
        ("text", fmt.clean(row["text"])),
        ("task", fmt.clean(row["task"] or "")),
        ("source", fmt.clean(row["source"])),
        ("tuned", "" if row["tokens"] is None else f"{row['tokens']} tokens, with which a tuning begins"),
        ("bank", _name(row)),
        ("added", f"{fmt.relative(row['ts'], time.time())} by {fmt.clean(row['added_by'])}"),
        ("cluster", "none yet" if row["medoid"] is None else representative),
        ("distance", "" if row["distance"] is None else f"{row['distance']:.4f} from the representative"),
    ]


@bank.command(cls=Command)
@click.option("--llm", metavar="NAME", help="Of this LLM only.")
@json_option
@pass_app
@examples("stoker prompt bank stats", "stoker prompt bank stats --json")
def stats(app: App, llm: str | None) -> Answer:
    """Show the banks: their sizes, their clusters, and the cost of a lookup compared with scoring each prompt."""
    query: dict[str, Any] = {"llm": llm} if llm else {}
    rows = app.client.get("/v1/prompts/banks", **query)["banks"]
    return Answer(rows, lambda: print_table(rows, _STATS, "no bank yet; 'stoker prompt bank build --from FILE.jsonl' makes one"))


def _fewer(row: Row) -> str:
    return "" if row["scores"] is None else f"{row['prompts'] / row['scores']:.1f} ×"


_STATS = [
    Column("LLM", lambda row: f"{row['llm']}@{row['revision']}"),
    Column("TOKENIZER", "tokenizer", rank=4),
    Column("PROMPTS", "prompts", right=True),
    Column("TASKS", "tasks", right=True, rank=3),
    Column("FEATURES", "features", right=True, rank=5),
    Column("CLUSTERS", "clusters", right=True),
    Column("LARGEST", lambda row: fmt.plain(row["largest"]), right=True, rank=2),
    Column("DISTANCE", lambda row: "" if row["distance"] is None else f"{row['distance']:.4f}", right=True, rank=1),
    Column("SCORES", lambda row: "" if row["scores"] is None else f"{row['scores']:.0f}", right=True),
    Column("FEWER", _fewer, right=True),
]


def ranked(candidates: Iterable[Row]) -> list[Row]:
    """Candidates of a lookup, each with its place."""
    return [{**row, "place": place} for place, row in enumerate(candidates, 1)]

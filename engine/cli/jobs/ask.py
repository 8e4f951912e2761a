"""`stoker ask`: requests to a job that serves a model."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import click

from ...errors import LimitExceeded, NotFound, StokerError, UsageError
from ..command import App, Command, examples, pass_app
from ..jobref import JOB, job_path
from ..output import Answer, json_option, write

AT_ONCE = 64  #: requests of a file in one message
LARGEST_MESSAGE = 512 << 10  #: characters of one message
PATIENCE = 60.0  #: seconds
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  #: seconds until a busy server is asked again
Ask = Callable[[Sequence[Any]], list[dict[str, Any]]]


@click.command(cls=Command)
@click.argument("job", type=JOB)
@click.argument("text", required=False)
@click.option("--file", "file", metavar="FILE", help="Send each line of a file as a request; of a .jsonl file each is JSON. '-' is stdin.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True, max=600), default=PATIENCE, show_default=True,
              help="Seconds until an answer.")  # fmt: skip
@json_option
@pass_app
@examples('stoker ask tagger "how far is it"', "stoker ask tagger --file questions.txt --json")
def ask(app: App, job: str, text: str | None, file: str | None, timeout: float) -> Answer:
    """Ask a job that serves a model (kind: infer).

    TEXT is sent as it is, or as JSON if it is a list or an object. For an array one of its servers is asked.
    """
    if (text is None) == (file is None):
        raise UsageError("give a text, or --file FILE with a request a line" + (", not both" if text is not None else ""))
    with ExitStack() as stack:
        asking, at_once = _asking(app, job, timeout, stack)
        if text is not None:
            (answer,) = _patiently(asking, [_request(text)], timeout)
            if "error" in answer:
                raise StokerError(answer["error"])
            return Answer(answer["answer"], lambda: write(f"{_words(answer['answer'])}\n"))
        assert file is not None
        return _whole(asking, at_once, file, timeout, stack)


def _asking(app: App, job: str, timeout: float, stack: ExitStack) -> tuple[Ask, int]:
    """The function to ask the server, at its socket if that is on this host, else through the daemon; and the requests at once."""
    from ....runners.share.inference_client import InferenceClient

    found = app.client.get(job_path(job, "server"))
    at_once = min(AT_ONCE, found["serve"]["queue"])
    if app.client.url is None and found["here"]:
        client = InferenceClient(Path(found["run_dir"]), found["name"], timeout)
        stack.callback(client.close)
        return client.ask, at_once
    path = f"{job_path(str(found['job']), 'ask')}?timeout={timeout:g}"

    def through_daemon(requests: Sequence[Any]) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = app.client.post(path, {"requests": list(requests)}, timeout=timeout + 10)["answers"]
        return answers

    return through_daemon, at_once


def _patiently(asking: Ask, requests: Sequence[Any], timeout: float) -> list[dict[str, Any]]:
    """Ask again a little later if the server has no room now."""
    until, pause = time.monotonic() + timeout, _FIRST_PAUSE
    while True:
        try:
            return asking(requests)
        except LimitExceeded:
            if time.monotonic() + pause > until:
                raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _request(text: str) -> Any:
    if text.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except ValueError:  # a text that begins so
            pass
    return text


def _whole(asking: Ask, at_once: int, file: str, timeout: float, stack: ExitStack) -> Answer:
    """Ask all lines of a file. Answers are shown even if the rest could not be asked."""
    answers: list[dict[str, Any]] = []
    errors: list[StokerError] = []
    lines, advance = _opened(file, stack)
    for chunk in _chunks(lines, at_once, as_json=Path(file).suffix in (".jsonl", ".json")):
        try:
            found = _patiently(asking, [request for _, request, _ in chunk], timeout)
        except StokerError as error:
            errors.append(type(error)(f"line {chunk[0][0]} and those after it were not answered: {error}"))
            break
        answers += [{"line": number, **answer} for (number, _, _), answer in zip(chunk, found, strict=True)]
        advance(sum(size for *_, size in chunk))
    errors[:0] = [StokerError(f"line {answer['line']}: {answer['error']}") for answer in answers if "error" in answer]
    return Answer(answers, lambda: write("".join(f"{_words(answer.get('answer', ''))}\n" for answer in answers)), errors)


def _chunks(lines: Iterator[tuple[int, str]], at_once: int, as_json: bool) -> Iterator[list[tuple[int, Any, int]]]:
    """(number of the line, request, bytes) of so many lines; empty ones are left out."""
    chunk: list[tuple[int, Any, int]] = []
    length = 0
    for number, line in lines:
        if not line.strip():
            continue
        if chunk and (len(chunk) == at_once or length + len(line) > LARGEST_MESSAGE):
            yield chunk
            chunk, length = [], 0
        try:
            request = json.loads(line) if as_json else line.rstrip("\r\n")
        except ValueError as error:
            raise UsageError(f"--file: line {number} is no JSON: {error}") from None
        chunk.append((number, request, len(line.encode())))
        length += len(line)
    if chunk:
        yield chunk


def _opened(file: str, stack: ExitStack) -> tuple[Iterator[tuple[int, str]], Callable[[int], None]]:
    """The numbered lines of a file, and a function that moves the progress bar on a terminal by so many bytes."""
    try:
        source: IO[str] = sys.stdin if file == "-" else stack.enter_context(open(file, encoding="utf-8-sig"))  # noqa: SIM115
    except OSError as error:
        raise NotFound(f"--file: {file}: {error.strerror}") from None
    advance: Callable[[int], None] = lambda size: None  # noqa: E731
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = (TextColumn("asked"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        bar = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
        task = bar.add_task("", total=Path(file).stat().st_size if file != "-" else None)
        advance = lambda size: bar.advance(task, size)  # noqa: E731
    return _numbered(file, source), advance


def _numbered(file: str, source: IO[str]) -> Iterator[tuple[int, str]]:
    try:
        yield from enumerate(source, 1)
    except UnicodeDecodeError as error:
        raise UsageError(f"--file: {file} is not text in UTF-8: {error.reason}") from None
    except OSError as error:
        raise NotFound(f"--file: {file}: {error.strerror}") from None


def _words(answer: Any) -> str:
    """For people: a text as it is, an object as its fields."""
    if isinstance(answer, str):
        return answer
    if isinstance(answer, dict) and all(isinstance(value, (str, int, float)) for value in answer.values()):
        return ", ".join(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in answer.items())
    return json.dumps(answer, ensure_ascii=False)

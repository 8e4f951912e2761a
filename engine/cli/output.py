"""The output of commands: tables and facts for people, plain columns for pipes, JSON for programs."""

from __future__ import annotations

import errno
import functools
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from .. import format as fmt
from ..errors import StokerError
from ..streams import steady_stderr

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Row = Mapping[str, Any]

PIPE_CLOSED_EXIT = 141  #: 128 + SIGPIPE, as a shell shows it
_GAP = 2
BAR = 8  #: characters of a bar

STATE_STYLE = {
    "running": "green", "completed": "green", "up": "green", "ok": "green",
    "failed": "red", "fail": "red", "gone": "red", "missing": "red", "quarantined": "red",
    "suspending": "yellow", "cancelled": "yellow", "draining": "yellow", "suspect": "yellow", "dirty": "yellow", "warn": "yellow",
    "pending": "cyan", "submitted": "dim", "assigned": "blue", "starting": "blue", "profiling": "blue",
    "stopped": "dim", "drained": "dim",
}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """One column: the function from a row to its cell, and its changes on a narrow terminal."""

    header: str
    cell: Callable[[Row], str] | str  #: a function, or the key of the row
    right: bool = False
    flexible: bool = False  #: may be cut with an ellipsis
    least: int = 14  #: least width of a flexible column
    rank: int = 0  #: the highest rank is left out first; 0: always shown
    style: Callable[[Row], str] | str = ""
    share: Callable[[Row], float | None] | None = None  #: drawn as a bar before the text, on terminals

    def text(self, row: Row) -> str:
        return fmt.plain(row.get(self.cell)) if isinstance(self.cell, str) else fmt.clean(self.cell(row))

    def drawn(self, row: Row) -> str:
        """The text for a terminal."""
        text = self.text(row)
        share = self.share(row) if self.share else None
        return text if share is None else f"{fmt.bar(share, BAR)} {text:>4}"

    def style_of(self, row: Row) -> str:
        return self.style if isinstance(self.style, str) else self.style(row)


def state_style(row: Row) -> str:
    return STATE_STYLE.get(str(row.get("state")), "")


#: Errors of a descriptor that takes no more. An error of an opened file has its name, so without one it is most likely our output.
_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


def is_of_output(error: OSError) -> bool:
    """Whether it means that our output cannot be written."""
    return error.filename is None and error.errno in _UNWRITABLE


def open_streams() -> None:
    """Replace a stdout that the caller has closed: Python has None there, and the next opened file would take its descriptor.

    Writing to it fails as on a full disk; for a closed stderr there is no place to report it.
    """
    if sys.stdout is None:
        opened = os.open(os.devnull, os.O_RDONLY)
        if opened != 1:
            os.dup2(opened, 1)
            os.close(opened)
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"), encoding="utf-8", errors="backslashreplace", write_through=True)
    steady_stderr()


def silence_stdout() -> None:
    """The reader is gone: buffered output must not raise again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def console(**options: Any) -> Console:
    """A console on stdout. Colours only on a terminal and without NO_COLOR, which rich checks itself."""
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            silence_stdout()
            raise click.exceptions.Exit(PIPE_CLOSED_EXIT)

    return Quiet(highlight=False, markup=False, emoji=False, **options)


def write(text: str) -> None:
    """Text to stdout, without control characters: names, reasons and messages come from many people."""
    write_raw(fmt.harmless(text))


def write_raw(text: str) -> None:
    """Text to stdout as it is; a closed pipe ends the command quietly."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()
        raise click.exceptions.Exit(PIPE_CLOSED_EXIT) from None
    except UnicodeEncodeError:
        sys.stdout.write(text.encode("ascii", "replace").decode())


def clear_screen() -> None:
    """Start again at the top of a terminal; nothing happens in a pipe."""
    if sys.stdout.isatty():
        write_raw("\x1b[H\x1b[2J\x1b[3J")


def note(text: str) -> None:
    """A remark for people, on stderr so that it never mixes with data."""
    click.echo(f"stoker: {fmt.harmless(text)}", err=True)


def error_line(message: str) -> None:
    """An error, in one line on stderr."""
    click.echo(f"stoker: error: {fmt.clean(' '.join(message.split()))}", err=True)


def write_json(value: Any) -> None:
    """JSON to stdout. NaN and Infinity are refused, as other readers do not accept them."""
    write_raw(fmt.harmless_json(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)) + "\n")


@dataclass(frozen=True)
class Answer:
    """A command's answer: ``value`` for programs, ``show`` prints it for people."""

    value: Any
    show: Callable[[], None]
    errors: Sequence[StokerError] = ()  #: of the failed parts; the last one ends the command
    done: str = ""  #: printed if the answer cannot be written though the command has succeeded


def json_option(command: Callable[..., Answer]) -> Callable[..., None]:
    """Give a command ``--json``, and print the Answer that it returns."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @functools.wraps(command)
    def run(*args: Any, as_json: bool, **kwargs: Any) -> None:
        answer = command(*args, **kwargs)
        try:
            if as_json:
                write_json(answer.value)
            elif answer.value or not answer.errors:
                answer.show()
            sys.stdout.flush()
        except OSError as unwritten:
            if not answer.done or not is_of_output(unwritten):
                raise
            silence_stdout()
            note(f"{answer.done}; that could not be written to the output: {unwritten.strerror}")
        for error in answer.errors[:-1]:
            error_line(str(error))
        if answer.errors:
            raise answer.errors[-1]

    return run


def print_table(rows: Sequence[Row], columns: Sequence[Column], empty: str) -> None:
    """Rows as a table: coloured and fitted on a terminal, whole and aligned in a pipe. ``empty`` is printed if there are none."""
    if not rows:
        write(empty + "\n")
    elif sys.stdout.isatty():
        screen = console()
        for line in table(rows, columns, screen.width):
            screen.print(line, soft_wrap=True)
    else:
        write(plain_table([column.header for column in columns], [[column.text(row) for column in columns] for row in rows]))


def plain_table(headers: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """Aligned columns, two blanks apart, not cut."""
    lines = [list(headers), *map(list, cells)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headers))]
    return "".join("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines)


def table(rows: Sequence[Row], columns: Sequence[Column], width: int) -> list[Text]:
    """A header and a line per row, each within ``width``: the highest ranks are left out, then flexible columns are cut."""
    from rich.text import Text

    cells = [[column.drawn(row) for row in rows] for column in columns]
    shown = fit(columns, cells, width)
    lines = [Text(no_wrap=True) for _ in range(len(rows) + 1)]
    for index, wide in shown:
        column = columns[index]
        texts = [Text(fmt.clean(column.header), style="bold"), *map(Text, cells[index], map(column.style_of, rows))]
        for line, text in zip(lines, texts, strict=True):
            text.truncate(wide, overflow="ellipsis", pad=not column.right)
            if column.right:
                text.align("right", wide)
            line.append_text(text).append(" " * _GAP)
    for line in lines:
        line.rstrip()
        line.truncate(width)
    return lines


def fit(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int) -> list[tuple[int, int]]:
    """The columns that have room, and their widths."""
    from rich.cells import cell_len

    natural = [max([cell_len(column.header), *map(cell_len, texts)]) for column, texts in zip(columns, cells, strict=True)]
    least = [min(wide, column.least) if column.flexible else wide for column, wide in zip(columns, natural, strict=True)]
    shown = [i for i, column in enumerate(columns) if not column.rank or any(cells[i])]

    def needed(widths: Sequence[int]) -> int:
        return sum(widths[i] for i in shown) + _GAP * (len(shown) - 1)

    while needed(least) > width and (droppable := [i for i in shown if columns[i].rank]):
        shown.remove(max(droppable, key=lambda i: columns[i].rank))
    while needed(natural) > width and (wide := [i for i in shown if natural[i] > least[i]]):
        natural[max(wide, key=lambda i: natural[i])] -= 1
    return [(i, natural[i]) for i in shown]


def print_facts(facts: Iterable[tuple[str, str]], indent: int = 0) -> None:
    """Names and values, one per line, aligned; empty values are left out."""
    kept = [(name, value) for name, value in facts if value not in ("", fmt.MISSING)]
    wide = max((len(name) for name, _ in kept), default=0)
    write("".join(f"{' ' * indent}{name:<{wide}}  {value}\n" for name, value in kept))


def section(title: str) -> None:
    """A title between the parts of an answer."""
    title = fmt.clean(title)
    write_raw("\n" + (click.style(title, bold=True) if colours() else title) + "\n")


def colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

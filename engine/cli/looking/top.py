"""`stoker top`: GPUs, running jobs and the queue, full screen, until q."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from ...errors import Unreachable
from ..command import App, Command, examples, pass_app
from ..numbers import FiniteRange
from ..output import console, write, write_json
from .top_view import frame

if TYPE_CHECKING:
    from rich.console import Group

SLICE = 0.1  #: seconds between looks at the keyboard and the size of the terminal
PLAIN_SIZE = (120, 50)  #: of a frame that goes into a pipe


@contextmanager
def _keys() -> Iterator[int | None]:
    """The keyboard without line editing and echo, always restored afterwards."""
    if not sys.stdin.isatty():
        yield None
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield descriptor
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _quit_pressed(keys: int | None, seconds: float) -> bool:
    if keys is None:
        time.sleep(seconds)
        return False
    ready, _, _ = select.select([keys], [], [], seconds)
    if not ready:
        return False
    try:
        pressed = os.read(keys, 64)
    except OSError:  # the terminal is gone, and its signal was set to be ignored
        pressed = b""
    return pressed[:1] in (b"", b"q", b"Q")


def _picture(snapshot: dict[str, Any], width: int, height: int, trouble: str | None) -> Group:
    from rich.console import Group

    return Group(*frame(snapshot, width, height, trouble))


def _run(app: App, interval: float) -> None:
    from rich.live import Live

    screen = console()
    snapshot, trouble = app.client.get("/v1/top"), None
    with _keys() as keys, Live(console=screen, screen=True, auto_refresh=False) as live:
        asked = time.monotonic()
        while True:
            size = screen.size
            live.update(_picture(snapshot, size.width, size.height, trouble), refresh=True)
            while screen.size == size and time.monotonic() - asked < interval:
                if _quit_pressed(keys, SLICE):
                    return
            if time.monotonic() - asked >= interval:
                asked = time.monotonic()
                try:
                    snapshot, trouble = app.client.get("/v1/top"), None
                except Unreachable:
                    trouble = "the daemon does not answer; this is what it last said"


def _print_frame(app: App) -> None:
    screen = console()
    width, height = screen.size if screen.is_terminal else PLAIN_SIZE
    lines = frame(app.client.get("/v1/top"), width, height)[:-1]
    while lines and not lines[-1].plain.strip():
        lines.pop()
    if screen.is_terminal:
        for line in lines:
            screen.print(line, soft_wrap=True)
    else:
        write("".join(line.plain.rstrip() + "\n" for line in lines))


@click.command(cls=Command)
@click.option("--interval", "-i", type=FiniteRange(min=0.2), default=1.0, show_default=True, help="Seconds between looks.")
@click.option("--once", is_flag=True, help="Print one frame; so it is in a pipe.")
@click.option("--json", "as_json", is_flag=True, help="Print what one frame is made of as JSON.")
@pass_app
@examples("stoker top", "stoker top --interval 0.5", "stoker top --once")
def top(app: App, interval: float, once: bool, as_json: bool) -> None:
    """Watch GPUs, running jobs with their progress, and the queue with its reasons, full screen; q quits."""
    if as_json:
        write_json(app.client.get("/v1/top"))
    elif once or not sys.stdout.isatty():
        _print_frame(app)
    else:
        _run(app, interval)

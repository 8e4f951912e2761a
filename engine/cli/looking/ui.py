"""`stoker ui`: open the live page in a browser."""

from __future__ import annotations

import os

import click

from ..command import App, Command, examples, pass_app
from ..output import Answer, json_option, note, write


@click.command(cls=Command)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Port of 127.0.0.1 on which the daemon answers it (default: 7466, or a free one).",
)
@click.option("--no-open", is_flag=True, help="Only print the link.")
@json_option
@pass_app
@examples("stoker ui", "stoker ui --no-open", "stoker ui --port 7500")
def ui(app: App, port: int | None, no_open: bool) -> Answer:
    """Open the live page in a browser: running jobs, waiting jobs with reasons, each job, and SQL.

    The link works once, within five minutes, and gives your rights to its user: do not pass it on. The page itself stays open for
    a week, also after a restart of the daemon. It is served on this host only; from another one, use 'ssh -L'.
    """
    answer = app.client.post("/v1/ui", {"port": port})

    def show() -> None:
        write(answer["url"] + "\n")
        if app.client.url or os.environ.get("SSH_CONNECTION"):
            where = f"{answer['port']}:127.0.0.1:{answer['port']}"
            note(f"from another host, first: ssh -L {where} HOST; then open the link there, within five minutes")
        elif not no_open and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):  # a browser for the terminal is not started
            import webbrowser

            webbrowser.open(answer["url"])

    return Answer(answer, show, done=answer["url"])

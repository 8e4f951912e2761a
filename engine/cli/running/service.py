"""A systemd user unit for this installation and home."""

from __future__ import annotations

import sys

import click

from ..command import App, Command, examples, pass_app
from ..output import write

# KillMode=process: systemd ends `up`, which ends the daemon and the agent in order; workers live on and are adopted.
# OOMPolicy=continue: the default of a user's units is 'stop', so one job without memory would end the daemon and the runner.
# TasksMax, LimitNOFILE: jobs are tasks of this unit. The defaults are made for services, not for hundreds of loader workers and
# their shared-memory files; if the user's own hard limit is lower, systemd takes that.
# Exit codes 4 and 8 (another daemon, an unusable file) do not mend themselves by a restart.
UNIT = """\
[Unit]
Description=Stoker, scheduler of training jobs ({home})
After=network-online.target

[Service]
Type=exec
ExecStart={command}
ExecStop={stop}
Restart=on-failure
RestartSec=5
RestartPreventExitStatus=2 4 8
KillMode=process
OOMPolicy=continue
TasksMax=infinity
LimitNOFILE=524288
TimeoutStopSec=150

[Install]
WantedBy=default.target
"""


def _quoted(words: list[str]) -> str:
    """A command line for systemd: quoted, with its % and $ doubled."""
    escaped = (word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$") for word in words)
    return " ".join(f'"{word}"' for word in escaped)


@click.command(cls=Command, context_settings={"ignore_unknown_options": True})
@click.argument("options", nargs=-1, metavar="[UP-OPTIONS]...", type=click.UNPROCESSED)
@pass_app
@examples(
    "stoker service > ~/.config/systemd/user/stoker.service",
    "stoker service --slots 4 --pool cpu",
    "systemctl --user enable --now stoker",
)
def service(app: App, options: tuple[str, ...]) -> None:
    """Print a systemd user unit that keeps 'stoker up' running with this home; options are passed on to it.

    'loginctl enable-linger' keeps it running while you are logged out.
    """
    from .up import up

    up.make_context("up", list(options), parent=click.get_current_context().parent)  # a wrong option is refused here
    base = [sys.executable, "-m", "stoker", "--home", str(app.home.path)]
    write(UNIT.format(home=app.home.path, command=_quoted([*base, "up", *options]), stop=_quoted([*base, "down"])))

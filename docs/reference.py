"""Writes docs/cli.md and docs/policies.md from the commands and the policies themselves; tests compare the files with them.

.venv/bin/python docs/reference.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
from stoker.engine.cli.command import Command, Group
from stoker.engine.cli.main import EXIT_CODES, cli
from stoker.engine.cli.running.policy import range_of
from stoker.policies import registry

INTRODUCTION = """\
# Command line

*Written by `docs/reference.py`; change the commands, not this file.*

`stoker [--home DIR] [--url URL] COMMAND …`: `--home` and `--url` may also stand after the command.

- Jobs are named by number, by name (the newest of that name), or by an unambiguous beginning of the name. The name of an array
  means all its tasks; commands that show one job show its first.
- `--json` prints the answer for programs. Tables are coloured and fitted on a terminal (`NO_COLOR` turns colours
  off), and whole and plain in a pipe. Remarks and errors go to stderr.
- Each mistake gets one line, `stoker: error: …`, and the command an exit code of the table below. `STOKER_DEBUG=1` adds the traceback.
- Environment: `STOKER_HOME` (state directory), `STOKER_URL` and `STOKER_TOKEN` (a daemon on TCP), `STOKER_CA` (the authority, or the
  certificate's fingerprint, to trust over TLS), `NO_COLOR`, `STOKER_DEBUG`.
"""

POLICIES = """\
# Policies

*Written by `docs/reference.py` from the policies themselves.*

`stoker policy set NAME KEY=VALUE …` puts one in force for a pool, `stoker simulate TRACE --policy NAME,KEY=VALUE` tries it on a
trace. "002" is the thesis whose systems Stoker implements; where it or a paper leaves a point open, the policy states our decision here.

Live, a policy sees what the daemon has measured of jobs alike (tables `speeds` and `slowdowns`). Until such a job has run, the elastic
policies (Optimus, Pollux, ElasticFlow, INFless, GENIE) give one its least number of GPUs, and Lucid profiles it and packs it with none. In
the simulator they see the profiles of the trace's models.
"""


def commands(group: click.Group, context: click.Context, path: str = "stoker") -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every shown command, groups before their commands."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None:
            raise AssertionError(f"{path} lists {name} and does not have it")
        inner = click.Context(command, parent=context, info_name=name)
        yield f"{path} {name}", command, inner
        if isinstance(command, click.Group):
            yield from commands(command, inner, f"{path} {name}")


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    options = [parameter for parameter in command.get_params(context) if isinstance(parameter, click.Option)]
    rows = [record for option in options if (record := option.get_help_record(context))]
    shown = [(option, text) for option, text in rows if "--help" not in option]
    if shown:
        yield "| option | meaning |\n| --- | --- |\n" + "".join(
            f"| `{option.replace('|', chr(92) + '|')}` | {text.replace('|', chr(92) + '|')} |\n" for option, text in shown
        )


def _page(path: str, command: click.Command, context: click.Context) -> Iterator[str]:
    depth = "##" if path.count(" ") == 1 else "###"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"{depth} {path}\n"
    yield "\n\n".join(" ".join(paragraph.split()) for paragraph in (command.help or "").split("\n\n")).replace("\b ", "") + "\n"
    if not isinstance(command, Group):
        yield f"```\n{path} {usage}\n```\n"
        yield from _options(command, context)
    if isinstance(command, Command | Group) and command.examples and not isinstance(command, Group):
        yield "```sh\n" + "\n".join(command.examples) + "\n```\n"


def reference(root: click.Group) -> str:
    """The whole page."""
    context = click.Context(root, info_name="stoker")
    parts = [INTRODUCTION]
    parts.append("| exit code | meaning |\n| --- | --- |\n" + "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items()))
    for path, command, inner in commands(root, context):
        parts += _page(path, command, inner)
    return "\n".join(parts)


def policies() -> str:
    """The page of all policies, from their docstrings and their configurations."""
    parts = [POLICIES]
    for policy in registry.describe():
        parts.append(f"## {policy['name']}\n\n{policy['doc']}\n")
        rows = [
            f"| `{field['name']}` | {json.dumps(field['default'])} | {range_of(field)} | {field['doc'].replace('|', chr(92) + '|')} |\n"
            for field in policy["config"]
        ]
        if rows:
            parts.append("| key | default | range | meaning |\n| --- | --- | --- | --- |\n" + "".join(rows))
    return "\n".join(parts)


if __name__ == "__main__":
    here = Path(__file__).parent
    (here / "cli.md").write_text(reference(cli))
    (here / "policies.md").write_text(policies())

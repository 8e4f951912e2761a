"""`stoker doctor`."""

from __future__ import annotations

import dataclasses

import click

from ... import format as fmt
from ..command import App, Command, examples, pass_app
from ..output import colours, write, write_json
from .checks import Finding, everything

_COLOUR = {"ok": "green", "warn": "yellow", "fail": "red"}


def _line(finding: Finding) -> str:
    mark = click.style(f"{finding.status:<4}", fg=_COLOUR[finding.status]) if colours() else f"{finding.status:<4}"
    text = f"{mark}  {finding.check:<13}  {fmt.clean(finding.found)}\n"
    return text + (f"      {'':<13}  mend: {finding.remedy}\n" if finding.remedy else "")


@click.command(cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_app
@examples("stoker doctor", "stoker doctor --json")
def doctor(app: App, as_json: bool) -> None:
    """Check the installation: Python, packages, torch, CUDA, NVML, disk, permissions, socket, daemon, versions.

    Each problem has its remedy. The exit code is 1 if a check fails; warnings do not count.
    """
    findings = []
    for finding in everything(app):
        findings.append(finding)
        if not as_json:
            write(_line(finding))
    if as_json:
        write_json([dataclasses.asdict(finding) for finding in findings])
    if any(finding.status == "fail" for finding in findings):
        raise click.exceptions.Exit(1)

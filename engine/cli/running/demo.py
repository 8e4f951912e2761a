"""`stoker demo`: a daemon, a runner and a dozen real jobs, shown live, with a summary and a report at the end."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ... import format as fmt
from ...client import Client
from ...errors import StokerError
from ...home import Home
from ..command import App, Command, examples, pass_app
from ..output import Answer, Column, console, json_option, note, print_facts, print_table

HERE = Path(__file__).parent
SCRIPTS = HERE.parents[2] / "examples"
TIME_LIMIT = 600.0  #: seconds after which the demo gives up
FINAL = ("completed", "failed", "cancelled")

#: The guards of a production host protect a job for 30 s after its start, which is the whole length of the demo's jobs.
CONFIG = """[guards]
min_run_time = 3.0
"""


@click.command(cls=Command)
@click.option("--slots", type=click.IntRange(min=1), help="CPU slots to offer, and no GPU (default: the GPUs; without any, 2 slots).")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default=Path("report"), show_default=True, help="Directory of the report."
)
@click.option("--keep", is_flag=True, help="Leave daemon and database in place, to look around.")
@json_option
@pass_app
@examples("stoker demo", "stoker demo --slots 2 --out report/", "stoker demo --keep")
def demo(app: App, slots: int | None, out: Path, keep: bool) -> Answer:
    """Run a dozen real training jobs on this machine and report on them.

    Fine-tunes a pre-trained text encoder on six data sets, trains small CNNs (one of them data-parallel on two slots) and runs a
    script that knows nothing of Stoker. One job is preempted for a more urgent one and resumes; an undisturbed twin shows that it
    reached the same result. The data are fetched once, as Python packages. It uses a home of its own.
    """
    _run([sys.executable, "-m", "stoker.runners.packages"], "the data could not be fetched; see above")
    home = Home(Path(tempfile.mkdtemp(prefix="stoker-demo-")))
    home.config.write_text(CONFIG)
    began = time.monotonic()
    client = Client(home, url="", token="")
    stoker = [sys.executable, "-m", "stoker", "--home", str(home.path)]
    if slots is None and not Path("/dev/nvidiactl").exists():
        slots = 2
    up = [*stoker, "up", "--detach", *(["--slots", str(slots)] if slots else [])]
    _run(up, "the daemon did not start; see above")
    try:
        # The demo's script runs `python`: this must be the one with torch, even if its environment is not activated.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        submit = [*stoker, "submit", str(HERE / "demo.yaml")]
        _run(submit, "the jobs were not taken; see above", cwd=SCRIPTS, env={**os.environ, "PATH": path})
        jobs = _watch(client, stoker)
        seconds = time.monotonic() - began
        _run([*stoker, "report", "--out", str(out), "--title", "Stoker demo"], "the report was not written; see above", quiet=True)
        summary = _summary(client, jobs, seconds, out)
    finally:
        if keep:
            note(f"daemon and database stay: export STOKER_HOME={home.path}; end it with 'stoker down'")
        else:
            with contextlib.suppress(subprocess.SubprocessError, OSError):
                subprocess.run([*stoker, "down", "--workers"], capture_output=True, timeout=60, check=False)
            shutil.rmtree(home.path, ignore_errors=True)
    failed = [job["name"] for job in jobs if job["state"] != "completed"]
    if failed:
        raise StokerError(f"not completed: {', '.join(failed)}")
    return Answer(summary, lambda: _show(summary))


def _run(
    command: Sequence[str], trouble: str, *, cwd: Path | None = None, quiet: bool = False, env: Mapping[str, str] | None = None
) -> None:
    """Run one of our own commands like a person."""
    done = subprocess.run(command, cwd=cwd, env=env, stdout=subprocess.DEVNULL if quiet else sys.stderr, check=False)
    if done.returncode != 0:
        raise StokerError(trouble)


def _watch(client: Client, stoker: Sequence[str]) -> list[dict[str, Any]]:
    """Show the jobs until all have ended; the urgent one comes when the first has trained for a while."""
    end = time.monotonic() + TIME_LIMIT
    urgent = False
    with _display() as show:
        while time.monotonic() < end:
            jobs = client.get("/v1/jobs", all=1)["jobs"]
            show(client.get("/v1/top"), jobs)
            first = next(job for job in jobs if job["name"] == "questions")
            if not urgent and (first["step"] or 0) >= 30:
                urgent = True
                subprocess.run([*stoker, "submit", str(HERE / "demo_urgent.yaml")], stdout=subprocess.DEVNULL, check=True)
            elif all(job["state"] in FINAL for job in jobs):
                return sorted(jobs, key=lambda job: int(job["id"]))
            time.sleep(0.5)
    raise StokerError(f"the demo's jobs had not ended after {TIME_LIMIT:.0f} s; is the machine busy?")


@contextlib.contextmanager
def _display() -> Iterator[Any]:
    """The screen of `stoker top` on a terminal; elsewhere a line for each change of a job's state."""
    if not sys.stdout.isatty():
        yield _Lines()
        return
    from rich.console import Group
    from rich.live import Live

    from ..looking.top_view import frame

    screen = console()
    with Live(console=screen, screen=True, auto_refresh=False) as live:

        def show(snapshot: dict[str, Any], _jobs: list[dict[str, Any]]) -> None:
            live.update(Group(*frame(snapshot, screen.width, screen.height)), refresh=True)

        yield show


class _Lines:
    def __init__(self) -> None:
        self._began = time.monotonic()
        self._states: dict[int, str] = {}

    def __call__(self, _snapshot: dict[str, Any], jobs: list[dict[str, Any]]) -> None:
        for job in reversed(jobs):
            if self._states.get(job["id"]) != job["state"]:
                self._states[job["id"]] = job["state"]
                progress = "" if job["progress"] is None else f" {fmt.percent(job['progress'] / 100)}"
                note(f"{time.monotonic() - self._began:6.1f} s  {job['name']:22} {job['state']}{progress}  {job['reason'] or ''}")


def _query(client: Client, statement: str) -> list[list[Any]]:
    rows: list[list[Any]] = client.post("/v1/sql", {"query": statement})["rows"]
    return rows


def _summary(client: Client, jobs: list[dict[str, Any]], seconds: float, out: Path) -> dict[str, Any]:
    accuracy = dict(_query(client, sql_text("demo_accuracy")))
    jct = {row[0]: row for row in _query(client, "SELECT id, jct, waiting, gpu_seconds FROM jct")}
    rows = []
    for job in jobs:
        _, total, waiting, gpu = jct[job["id"]]
        met = None if job["deadline"] is None else job["finished_at"] <= job["deadline"]
        rows.append({"job": job["name"], "state": job["state"], "slots": job["gpus_max"], "jct": total, "waiting": waiting,
                     "gpu_seconds": gpu, "preemptions": job["preemptions"], "deadline_met": met,
                     "accuracy": accuracy.get(job["id"])})  # fmt: skip
    ((compared, equal),) = _query(client, sql_text("demo_twins"))
    deadlines = [row["deadline_met"] for row in rows if row["deadline_met"] is not None]
    return {
        "seconds": seconds,
        "jobs": rows,
        "average_jct": sum(row["jct"] for row in rows) / len(rows),
        "average_waiting": sum(row["waiting"] for row in rows) / len(rows),
        "gpu_seconds": sum(row["gpu_seconds"] for row in rows),
        "preemptions": sum(row["preemptions"] for row in rows),
        "deadlines_met": sum(deadlines),
        "deadlines": len(deadlines),
        "resumed_losses_compared": compared,
        "resumed_losses_equal": equal,
        "report": str(out / "index.html"),
    }


def sql_text(name: str) -> str:
    from ...store.sqlfiles import sql

    return sql(f"report/{name}")


def _show(summary: dict[str, Any]) -> None:
    print_table(
        summary["jobs"],
        [
            Column("JOB", "job"),
            Column("STATE", "state"),
            Column("SLOTS", "slots"),
            Column("JCT", lambda row: fmt.duration(row["jct"])),
            Column("WAITED", lambda row: fmt.duration(row["waiting"])),
            Column("GPU-TIME", lambda row: fmt.duration(row["gpu_seconds"])),
            Column("PREEMPTED", "preemptions"),
            Column("DEADLINE", lambda row: {None: "", True: "met", False: "missed"}[row["deadline_met"]]),
            Column("ACCURACY", lambda row: fmt.number(row["accuracy"], 3)),
        ],
        "no jobs",
    )
    equal, compared = summary["resumed_losses_equal"], summary["resumed_losses_compared"]
    print_facts(
        [
            ("took", fmt.duration(summary["seconds"])),
            ("average JCT", f"{fmt.duration(summary['average_jct'])}, of it waiting {fmt.duration(summary['average_waiting'])}"),
            ("deadlines", f"{summary['deadlines_met']} of {summary['deadlines']} met"),
            ("preemptions", str(summary["preemptions"])),
            ("GPU-time", fmt.duration(summary["gpu_seconds"])),
            ("resumption", f"{equal} of {compared} losses of the preempted job equal those of its undisturbed twin, bit for bit"),
            ("report", summary["report"]),
        ]
    )

"""Entry of the command line. Commands are loaded when they are called, so that help and completion are quick."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from ... import __version__
from ..errors import NotFound, StokerError
from .command import App, Lazy, LazyGroup, Terminated, examples
from .output import error_line, is_of_output, open_streams, silence_stdout

SECTIONS: dict[str, dict[str, Lazy]] = {
    "Jobs": {
        "submit": Lazy("jobs.submit:submit", "Submit jobs: from YAML files, or from options."),
        "ps": Lazy("looking.listing:ps", "List jobs."),
        "show": Lazy("jobs.job:show", "Show everything about a job."),
        "explain": Lazy("jobs.job:explain", "Say why a job waits, or how it came to where it is."),
        "ask": Lazy("jobs.ask:ask", "Ask a job that serves a model."),
        "pipeline": Lazy("jobs.pipeline_command:pipeline", "Show how a job's data pipeline is sized, and why."),
        "logs": Lazy("jobs.logs:logs", "Print what a job has written."),
        "cancel": Lazy("jobs.hold_cancel:cancel", "Cancel jobs."),
        "retry": Lazy("jobs.again:retry", "Submit jobs that failed or were cancelled once more."),
        "wait": Lazy("jobs.again:wait", "Return when jobs have ended."),
        "hold": Lazy("jobs.hold_cancel:hold", "Keep jobs from being scheduled."),
        "release": Lazy("jobs.hold_cancel:release", "Let held jobs be scheduled again."),
        "move": Lazy("jobs.hold_cancel:move", "Let jobs begin anew on any runner."),
        "priority": Lazy("jobs.hold_cancel:priority", "Change the priority of jobs."),
        "schedule": Lazy("jobs.schedule:schedule", "Recurring jobs."),
        "adapters": Lazy("jobs.adapters:adapters", "List what ended fine-tunings left for others to begin with."),
        "swap": Lazy("jobs.swap:swap", "Train in less device memory than the model needs."),
    },
    "Looking": {
        "status": Lazy("looking.listing:status", "Show the daemon, its runners and pools."),
        "top": Lazy("looking.top:top", "Watch GPUs, running jobs and the queue, full screen."),
        "ui": Lazy("looking.ui:ui", "Open the live page in a browser."),
        "sql": Lazy("looking.sql:sql", "Ask the database anything."),
        "schema": Lazy("looking.sql:schema", "Describe the tables and views."),
        "export": Lazy("looking.export:export", "Export what jobs have reported, for other tools."),
        "report": Lazy("looking.report:report", "Write plots and a page about what ran."),
    },
    "Studying": {
        "trace": Lazy("tracing.trace_commands:trace", "Workload traces: import, look at, make, export."),
        "simulate": Lazy("simulation.simulate:simulate", "Simulate policies on a trace."),
        "tune": Lazy("simulation.tune:tune", "Search for the configuration that fits what is coming."),
        "prompt": Lazy("prompts.prompt:prompt", "Prompt tuning and the bank of initial prompts."),
        "replay": Lazy("simulation.replay:replay", "Ask what another policy would have made of history."),
    },
    "Running Stoker": {
        "up": Lazy("running.up:up", "Start the daemon and a runner on this host."),
        "down": Lazy("running.up:down", "Stop the daemon."),
        "runner": Lazy("runners.runner:runner", "Runners: the agents that run jobs."),
        "drain": Lazy("runners.runner:drain", "Let a runner finish its jobs and start no more."),
        "policy": Lazy("running.policy:policy", "Scheduling policies of the pools."),
        "pool": Lazy("running.pool:pool", "Pools: which backbones are kept warm."),
        "token": Lazy("running.token:token", "Access tokens for TCP."),
        "tls": Lazy("running.tls:tls", "The certificate of the daemon's TCP port."),
        "backup": Lazy("running.upkeep:backup", "Write a verified copy of the database."),
        "clean": Lazy("running.clean:clean", "Show what is kept, how large it is, and until when."),
        "compact": Lazy("running.upkeep:compact", "Rewrite the database file without its gaps."),
        "serve-sql": Lazy("running.serve_sql:serve_sql", "Serve a read-only copy to DuckDB clients."),
        "doctor": Lazy("running.doctor:doctor", "Check the installation and say how to mend it."),
        "service": Lazy("running.service:service", "Print a systemd user unit."),
        "completion": Lazy("completion:completion", "Print a shell's completion script."),
        "demo": Lazy("running.demo:demo", "Run a dozen real jobs and report on them."),
    },
}

EXIT_CODES: dict[int, str] = {
    0: "done",
    1: "it failed; the message says why",
    2: "the request is wrong: a bad option, job spec or statement",
    3: "no such job, runner, policy or file",
    4: "not possible in the present state",
    5: "no token, a wrong token, or a role that may not do this",
    6: "no daemon answers",
    7: "cut off by a limit of time, rows, memory or size",
    8: "the database file cannot be used",
    9: "an outdated runner or lease",
    10: "a job that was waited for failed or was cancelled",
    130: "interrupted",
    141: "the reader of the output has gone",
    143: "terminated",
}

EPILOG = "Exit codes:\n" + "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())


@click.group(
    cls=LazyGroup, sections=SECTIONS, epilog=EPILOG, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="stoker", message="%(prog)s %(version)s")
@click.pass_context
@examples(
    "stoker up --detach",
    "stoker submit --gpus 1 --name hello -- python train.py --lr 0.1",
    "stoker ps",
    'stoker sql "SELECT * FROM queue"',
)
def cli(context: click.Context) -> None:
    """Keep the GPUs of a host busy: submit training jobs, see why they wait, ask everything in SQL.

    Most commands need the daemon: start it with 'stoker up'. STOKER_DEBUG=1 shows tracebacks.
    """
    context.ensure_object(App)
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code. A mistake of the user gets one line, never a traceback."""
    if sys.stdin is None:  # closed by the shell
        sys.stdin = open(os.devnull)  # noqa: SIM115 - as long as the process lives
    try:
        code = cli.main(args=list(arguments) if arguments is not None else None, prog_name="stoker", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except StokerError as error:
        return fail(error.lines, error.exit_code)
    except click.exceptions.Abort as error:
        return 1 if isinstance(error.__cause__, EOFError) else 130
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "stoker"
        return fail(f"{_told(error)}; see '{path} --help'", 2)
    except click.ClickException as error:
        return fail(_sentence(error.format_message()), 1)
    except Terminated:
        return 143
    except BrokenPipeError:
        return 141
    except OSError as error:
        if _is_nowhere():
            return fail("the current directory no longer exists; change to another one", NotFound.exit_code)
        return unwritten(error) if is_of_output(error) else fail_unexpectedly(error)
    except UnicodeEncodeError as error:  # bytes of the command line that are not UTF-8 are surrogates in Python
        return fail(f"{error.object[:60]!r} is not UTF-8 text: write it in UTF-8", 2)
    except Exception as error:
        return fail_unexpectedly(error)


def _is_nowhere() -> bool:
    """Whether the current directory was removed, so that relative paths have no meaning."""
    try:
        Path.cwd()
        return False
    except FileNotFoundError:
        return True


def _told(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption):
        from .foreign_words import option_hint

        if hint := option_hint(error):
            return f"no such option {error.option_name!r}; {hint}"
    return _sentence(error.format_message())


def _sentence(message: str) -> str:
    """click's messages in our style: one line, no full stop at the end."""
    line = " ".join(message.split()).rstrip(".").removesuffix(" range")  # 'x' is not a valid integer, not an 'integer range'
    return line[:1].lower() + line[1:]


def fail(message: str | Sequence[str], code: int) -> int:
    """Print each error in one line; with STOKER_DEBUG also its place."""
    if os.environ.get("STOKER_DEBUG"):
        import traceback

        traceback.print_exc()
    for line in [message] if isinstance(message, str) else message:
        error_line(line)
    return code


def fail_unexpectedly(error: Exception) -> int:
    return fail(f"unexpected {type(error).__name__}: {error}; STOKER_DEBUG=1 shows where; please report it", 1)


def unwritten(error: OSError) -> int:
    """The disk behind our output is full, or the output is closed."""
    silence_stdout()
    return fail(f"cannot write the output: {error.strerror}", 1)


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends a command like Ctrl-C, so that it removes its temporary files; if it is set to be ignored, it stays so."""
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, lambda *_: None)  # timeout(1) sends it to the command and then to its group: twice
        raise Terminated

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is end:  # else the second may still come
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def main() -> NoReturn:
    open_streams()
    with _ended_by_sigterm():
        code = run()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()
    except OSError as error:
        code = unwritten(error)
    sys.exit(code)

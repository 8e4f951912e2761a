"""Our kinds of click command: with examples in the help, global options anywhere, and lazily loaded groups."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from ..errors import StokerError, UsageError
from ..home import Home

if TYPE_CHECKING:
    from ..client import Client


_WHOLE = 1000  #: characters, more than in any first sentence
TIMEOUT = 30.0  #: seconds until an answer, unless a command sets another


class Terminated(BaseException):
    """SIGTERM came. Like Ctrl-C's, it is no Exception, so that code that survives faults does not catch it."""


class CommandEnded(StokerError):
    """Ctrl-C or SIGTERM ended a command that reports the state of its work."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]


@contextlib.contextmanager
def unless_ended(outcome: str) -> Iterator[None]:
    """Answer Ctrl-C and SIGTERM in the block (or the function, as a decorator) with the state of the work."""
    try:
        yield
    except KeyboardInterrupt:
        raise CommandEnded(f"interrupted: {outcome}", 130) from None
    except Terminated:
        raise CommandEnded(f"terminated: {outcome}", 143) from None


@dataclass
class App:
    """The Stoker that a command is for: the input of every command."""

    home: Home = field(default_factory=Home.default)
    url: str | None = None

    @cached_property
    def client(self) -> Client:
        return self.client_within(TIMEOUT)

    def client_within(self, seconds: float) -> Client:
        """A client with a connection of its own that gives up sooner (or later) than usual; closed when the command ends."""
        from ..client import Client

        client = Client(self.home, self.url, timeout=seconds)
        if client.url:
            _check_url(client.url)
        if context := click.get_current_context(silent=True):  # none during shell completion
            context.call_on_close(client.close)
        return client


def _check_url(url: str) -> None:
    """The client speaks HTTP to a host and port, in clear or over TLS; UsageError for anything else."""
    from urllib.parse import urlsplit

    try:
        where = urlsplit(url)
        fits = where.scheme in ("http", "https") and bool(where.hostname) and where.port is not None and where.path in ("", "/")
    except ValueError:  # a port beyond 65535, a broken IPv6 address
        fits = False
    if not fits:
        raise UsageError(f"--url: {url!r} is not http://HOST:PORT or https://HOST:PORT (given by --url or STOKER_URL)")


pass_app = click.make_pass_decorator(App)


def _set_home(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value:
        context.ensure_object(App).home = Home(Path(value).expanduser().absolute())


def _set_url(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value:
        context.ensure_object(App).url = value


def global_options(hidden: bool) -> list[click.Option]:
    """``--home`` and ``--url``: shown at the top, understood after any command."""
    return [
        click.Option(
            ["--home"],
            metavar="DIR",
            help="State directory (default: $STOKER_HOME or ~/.local/state/stoker).",
            callback=_set_home,
            expose_value=False,
            hidden=hidden,
            is_eager=True,
        ),
        click.Option(
            ["--url"],
            metavar="URL",
            help="Daemon at http(s)://HOST:PORT in place of the socket, with $STOKER_TOKEN (default: $STOKER_URL).",
            callback=_set_url,
            expose_value=False,
            hidden=hidden,
            is_eager=True,
        ),
    ]


def _examples_of(callback: Callable[..., Any] | None) -> list[str]:
    return list(getattr(callback, "__examples__", ()))


def examples(*lines: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Examples of a command, shown in its help and in the reference; tests parse each of them."""

    def mark(callback: Callable[..., Any]) -> Callable[..., Any]:
        callback.__examples__ = lines  # type: ignore[attr-defined]
        return callback

    return mark


def write_examples(formatter: click.HelpFormatter, lines: Sequence[str]) -> None:
    with formatter.section("Examples"):
        for line in lines:
            formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class Command(click.Command):
    """A command with examples, which also takes the global options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(global_options(hidden=True))
        self.examples = _examples_of(self.callback)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Extra arguments are answered with the probably meant command."""
        strict, ctx.allow_extra_args = not ctx.allow_extra_args, True
        rest = super().parse_args(ctx, args)
        if rest and strict and not ctx.resilient_parsing:
            from .foreign_words import job_hint

            hint = job_hint(ctx.command_path.removeprefix("stoker "), rest)
            ctx.fail(f"unexpected extra argument {' '.join(rest)!r}{hint and f'; {hint}'}")
        return rest

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, self.examples)
        super().format_epilog(ctx, formatter)


class Group(click.Group):
    """A group of our commands."""

    command_class = Command

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "no_args_is_help": False})
        self.examples = _examples_of(self.callback)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """An unknown command is answered with the nearest one."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            from ..errors import nearest

            known = self.list_commands(ctx)
            hint = self.meant(args) or nearest(args[0], known) or f"; one of: {', '.join(known)}"
            ctx.fail(f"no such command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)

    def meant(self, args: Sequence[str]) -> str:
        """The command to type in place of an unknown one; "" if there is no guess."""
        return ""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each command's short help, wrapped: click would cut it to a line."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(_WHOLE)) for name, command in commands if command])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            write_examples(formatter, self.examples)
        super().format_epilog(ctx, formatter)


class DefaultGroup(Group):
    """A group with a default command, used if none is named and the first word is an option."""

    def __init__(self, *args: Any, default: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._whole(ctx, args))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        return super().resolve_command(ctx, self._whole(ctx, args))

    def _whole(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = bool(args) and (not args[0].startswith("-") or args[0] in ctx.help_option_names)
        return args if named else [self.default, *args]


@dataclass(frozen=True)
class Lazy:
    """A command by the place of its code, with its line in the list of commands, so that listing imports nothing."""

    target: str  #: module:attribute, relative to this package
    help: str


class LazyGroup(Group):
    """A group whose commands are imported when they are called."""

    def __init__(self, *args: Any, sections: dict[str, dict[str, Lazy]], epilog: str, **kwargs: Any) -> None:
        super().__init__(*args, epilog=epilog, **kwargs)
        self.sections = sections
        self.lazy = {name: lazy for section in sections.values() for name, lazy in section.items()}
        self.params.extend(global_options(hidden=False))

    def meant(self, args: Sequence[str]) -> str:
        from .foreign_words import command_hint

        hint = command_hint(args[0], args[1:])
        return hint and f"; {hint}"

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = self.lazy.get(cmd_name)
        if lazy is None:
            return None
        module, attribute = lazy.target.split(":")
        return cast(click.Command, getattr(importlib.import_module(f".{module}", __package__), attribute))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, lazy.help) for name, lazy in section.items()], col_max=14)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            write_examples(formatter, self.examples)
        for paragraph in (self.epilog or "").split("\n\n"):
            formatter.write_paragraph()
            formatter.write(paragraph + "\n")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Names and options only: completing must not import every command."""
        from click.shell_completion import CompletionItem

        shown = [(name, lazy.help) for name, lazy in self.lazy.items() if name.startswith(incomplete)]
        return [CompletionItem(name, help=text) for name, text in shown] + click.Command.shell_complete(self, ctx, incomplete)

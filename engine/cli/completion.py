"""Shell completion scripts; click answers their questions, the daemon those for job names."""

from __future__ import annotations

import click

from .command import Command, examples
from .output import write_raw

VARIABLE = "_STOKER_COMPLETE"


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
@examples(
    "stoker completion bash > ~/.local/share/bash-completion/completions/stoker",
    "stoker completion zsh > ~/.zfunc/_stoker",
    "stoker completion fish > ~/.config/fish/completions/stoker.fish",
)
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of SHELL: commands, options, and the names of jobs, runners and policies."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise AssertionError(f"click does not know {shell}")
    script = kind(context.find_root().command, {}, "stoker", VARIABLE)
    # Not source(): for bash it starts a bash to check its version, which may differ from that of the shell that reads this.
    write_raw(script.source_template % script.source_vars() + "\n")

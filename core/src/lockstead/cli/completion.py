"""The command `lockstead completion`: print click's completion script for a shell."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from lockstead.cli.exits import Exit
from lockstead.cli.output import out

EPILOG: Final = """\b
Examples:
  eval "$(lockstead completion bash)"
  lockstead completion zsh > _lockstead
  lockstead completion fish > lockstead.fish
"""


@click.command(epilog=EPILOG)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Print the script that completes `lockstead` in a shell.

    For bash: put the first example into ~/.bashrc. For zsh: write it as _lockstead into a folder of $fpath. For fish:
    write it as lockstead.fish into ~/.config/fish/completions.
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    out(kind(context.find_root().command, {}, "lockstead", "_LOCKSTEAD_COMPLETE").source())
    return Exit.OK

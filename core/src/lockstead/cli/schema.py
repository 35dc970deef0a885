"""The command `lockstead schema`: print the JSON Schema of a command's `--json`."""

from __future__ import annotations

from typing import Final

import click

from lockstead.cli.exits import Exit
from lockstead.cli.output import out_json_lines
from lockstead.cli.schemas import OTHERS, OUTPUTS, document

EPILOG: Final = """\b
Examples:
  lockstead schema list > list.schema.json
  lockstead schema error

\b
Exit codes: 0 printed, or
  64 wrong usage
"""


@click.command(epilog=EPILOG)
@click.argument("command", required=False, type=click.Choice([*OUTPUTS, *OTHERS]))
def schema(command: str | None) -> int:
    """Print the JSON Schema (draft 2020-12) of each line that COMMAND prints with --json.

    COMMAND may be `error`, the line that a failing command prints on standard error, or `alert`, what `reap` sends.
    Without it, all are printed.
    """
    out_json_lines(map(document, [*OUTPUTS, *OTHERS] if command is None else [command]))
    return Exit.OK

"""Decides what the command `lockstead` is made of, and turns whatever happens into one line and an exit code.

A subcommand is a `click.Command` in a file of its own, which returns its exit code or raises.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

import lockstead
from lockstead.cli.exits import Exit, judged, say
from lockstead.cli.run import run


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(lockstead.__version__, prog_name="lockstead")
def cli() -> None:
    """Distributed locks for work that runs in many places at once."""


cli.add_command(run)


def call(arguments: Sequence[str]) -> int:
    """Carry out one command line; give its exit code. No failure leaves as a traceback."""
    try:
        code = cli.main(list(arguments), prog_name="lockstead", standalone_mode=False)
    except BaseException as error:  # noqa: BLE001 - the last place that can put a failure into one line
        code, line = judged(error)
        if line:
            say(line)
    return code if isinstance(code, int) else Exit.OK


def main() -> None:
    """Run the command `lockstead`."""
    sys.exit(call(sys.argv[1:]))


if __name__ == "__main__":
    main()

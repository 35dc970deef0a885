"""The command `lockstead`: its subcommands, and the message and exit code of each failure.

A subcommand is a `click.Command` in a file of its own, which returns its exit code or raises. It is imported when it is
called, so its line of `lockstead --help` is here.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from itertools import dropwhile, pairwise, takewhile
from typing import Final

import click

import lockstead
from lockstead.cli.exits import Exit, judged, say, say_error

COMMANDS: Final = {
    "acquire": ("acquire:acquire", "Acquire a lock for several steps; print its ticket."),
    "bench": ("bench.command:bench", "Measure what a lock costs on a store."),
    "break": ("breaking:break_lease", "Revoke the lease on a lock, or remove it at once."),
    "completion": ("completion:completion", "Print the script that completes `lockstead` in a shell."),
    "dashboard": ("dashboard:dashboard", "Serve a page that shows every lock of some stores."),
    "doctor": ("doctor.command:doctor", "Examine a store; report each problem."),
    "elect": ("elect:elect", "Run a command on one machine of many: while it leads."),
    "history": ("history:history", "Show who broke which lease, when and why."),
    "inspect": ("inspect:inspect", "Show who holds a lock, since when, why, until when."),
    "leader": ("leader:leader", "Show which process leads, and what it advertises."),
    "list": ("listing:list_locks", "Show every lock of a store, overdue ones first."),
    "permits": ("permits:permits", "Show a semaphore, change its limit, or remove it."),
    "prune": ("prune:prune", "Remove what dead processes left in a store, and old history."),
    "reap": ("reap:reap", "Alert on overdue locks; revoke those whose holders asked for it."),
    "release": ("release:release", "Release the lease that a ticket names."),
    "renew": ("renew:renew", "Extend the lease that a ticket names by its ttl."),
    "run": ("run:run", "Hold a lock while a command runs."),
    "schema": ("schema:schema", "Print the JSON Schema of what a command prints with --json."),
    "top": ("top.command:top", "Show the locks of stores as a live table."),
    "wait": ("wait:wait", "Wait until a lock is free, without acquiring it."),
}
"""The subcommands: place below `lockstead.cli` (module:name), and description in the help."""


EPILOG: Final = """\b
URL names a store and a lock in it:
  sqlite:///locks.db#apt  postgresql://host/database#apt  redis://host/0#apt
  etcd://host#apt  zk://host/locks#apt  gs://bucket/locks#apt

\b
Examples:
  lockstead run sqlite:///locks.db#apt -- make publish
  lockstead inspect sqlite:///locks.db#apt
"""


class LazyCommand(click.Command):
    """A subcommand that is imported when it is called."""

    def __init__(self, name: str, place: str, line: str) -> None:
        super().__init__(name, help=line)
        self.place = place

    def load(self) -> click.Command:
        """Import the command. Logs of client libraries are shown with --debug only."""
        if not logging.root.handlers:
            logging.root.addHandler(logging.NullHandler())
        module, _, name = self.place.partition(":")
        command: click.Command = getattr(import_module(f"lockstead.cli.{module}"), name)
        return command


class Commands(click.Group):
    """The group of subcommands; imports only the one that is called."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the subcommand that is called, imported."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found.load() if isinstance(found, LazyCommand) else found, rest


@click.group(
    cls=Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(lockstead.__version__, prog_name="lockstead")
@click.option(
    "--debug",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda _context, _option, is_asked: logging.basicConfig(level=logging.DEBUG) if is_asked else None,
    help="Show tracebacks, and the logs of client libraries, which may contain secrets.",
)
def cli() -> None:
    """Distributed locks for work that runs in many places at once."""


for _name, (_place, _line) in COMMANDS.items():
    cli.add_command(LazyCommand(_name, _place, _line))


def call(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Tracebacks are printed with --debug only."""
    words = list(arguments) or ["--help"]
    try:
        # click's no_args_is_help raises an error, whose text would be put into one line
        code = cli.main(words, prog_name="lockstead", standalone_mode=False)
    except SystemExit as ended:  # raised by shell completion
        code = ended.code
    except BaseException as error:  # noqa: BLE001 - every failure becomes a one-line message
        code, line = judged(error)
        if "--debug" in takewhile(_is_option, words):
            traceback.print_exception(error)
        if line and wants_json(words):
            say_error(code, line, error)
        elif line:
            say(line)
    return code if isinstance(code, int) else Exit.OK


def _is_option(word: str) -> bool:
    return word.startswith("-")


def wants_json(words: Sequence[str]) -> bool:
    """Whether a command line asks for JSON; after `run` and `elect` the option may belong to another program."""
    command = next(dropwhile(_is_option, words), "")
    if command not in COMMANDS or command in ("run", "elect", "completion"):
        return False
    return "--json" in words or "--format=json" in words or ("--format", "json") in pairwise(words)


def _open_standard_streams() -> None:
    """Open /dev/null in place of each closed standard descriptor, so that nothing opened later gets its number.

    Only for reading: to write to a closed standard output still fails, so that no result is lost unnoticed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)  # it gets the lowest free number, this one
    if getattr(sys, "stdin", None) is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115, PTH123 - open to the end
    if getattr(sys, "stderr", None) is None:  # writing a message must not fail
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - open to the end


def main() -> None:
    """Run the command `lockstead`."""
    _open_standard_streams()
    if "LOCKSTEAD_TELEMETRY" in os.environ:
        from lockstead.telemetry import install_from_environment

        install_from_environment(warn=say)
    sys.exit(call(sys.argv[1:]))


if __name__ == "__main__":
    main()

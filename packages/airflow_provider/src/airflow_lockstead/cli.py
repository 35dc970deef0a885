"""The commands `airflow lockstead list|inspect|break`: those of `lockstead`, on the store of a connection.

The core defines the options and the output. Must be imported only by Airflow's command line.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from airflow_lockstead.spec import DEFAULT_CONN_ID


def get_lockstead_cli_commands() -> list[Any]:
    """Return the command group for Airflow's command line."""
    from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

    conn_id = Arg(("--conn-id",), help="Connection that names the store", default=DEFAULT_CONN_ID)
    url = Arg(("--url",), help="The store's URL, in place of a connection", default=None)
    json = Arg(("--json",), help="Print JSON and nothing else", action="store_true")
    key = Arg(("key",), help="The lock's name inside its store")
    reason = Arg(("--reason",), help="The reason, for the holder and the history", required=True)
    by = Arg(("--by",), help="Who breaks it; by default user@host", default=None)
    now = Arg(("--now",), help="Remove it at once, even if its holder still works under it", action="store_true")
    reader = Arg(("--reader",), help="Break the lease of this reader of a shared lock alone", default=None)
    yes = Arg(("-y", "--yes"), help="Do not ask", action="store_true")
    return [
        GroupCommand(
            name="lockstead",
            help="Look at locks, and break them",
            subcommands=(
                ActionCommand(
                    "list", "Show every lock of a store, overdue ones first", list_locks, (conn_id, url, json)
                ),
                ActionCommand("inspect", "Show who holds a lock, since when, why", inspect, (key, conn_id, url, json)),
                ActionCommand(
                    "break",
                    "Revoke the lease of a lock; adds an audit entry",
                    break_lease,
                    (key, conn_id, url, reason, by, now, reader, yes, json),
                ),
            ),
        )
    ]


def list_locks(args: Any) -> None:
    """Print every lock of the store."""
    _call(args, "list", None, json=args.json)


def inspect(args: Any) -> None:
    """Print one lock."""
    _call(args, "inspect", args.key, json=args.json)


def break_lease(args: Any) -> None:
    """Break one lease."""
    words = ["--reason", args.reason]
    words += ["--by", args.by] if args.by else []
    words += ["--now"] if args.now else []
    words += ["--reader", args.reader] if args.reader else []
    words += ["--yes"] if args.yes else []
    _call(args, "break", args.key, *words, json=args.json)


def _call(args: Any, verb: str, key: str | None, *words: str, json: bool) -> None:
    """Call a command of the core with the URL of the store or lock, and exit with its code."""
    from airflow_lockstead import connection
    from lockstead.cli.main import call

    try:
        place = connection.Place(args.url) if args.url else connection.PLACES.place(args.conn_id)
    except (ValueError, TypeError) as error:
        _refuse(str(error), json=json)
    if place.client is not None:
        _refuse(
            "this connection takes its credentials from another one, which a URL cannot carry; "
            "give --url, with credentials as the store's library finds them",
            json=json,
        )
    target = place.url if key is None else place.lock_url(key)
    sys.exit(call([verb, target, *words, *(["--json"] if json else [])]))


def _refuse(why: str, *, json: bool) -> NoReturn:
    """Print an error in the format of the core's commands, and exit with code `Exit.USAGE`."""
    from lockstead.cli.exits import Exit, say_error

    if json:
        say_error(Exit.USAGE, why)
    else:
        sys.stderr.write(f"airflow lockstead: {why}\n")
    sys.exit(Exit.USAGE)

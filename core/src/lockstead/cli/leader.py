"""The command `lockstead leader`: show which process leads, once or after each change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from lockstead.cli.exits import Exit, plain, say
from lockstead.cli.options import as_json, opened, parse_lock_url, warn_of_place
from lockstead.cli.output import instant, out, out_json
from lockstead.cli.signals import interruptible

if TYPE_CHECKING:
    from lockstead.views import Leader

EPILOG: Final = """\b
Examples:
  lockstead leader sqlite:///locks.db#cron || echo "there is none"
  lockstead leader --json gs://my-bucket/locks#cron || true

\b
Exit codes: 0 shown, or
  64 wrong usage      69 the store failed, or the record cannot be read
  75 there is no leader (without --watch)
  128 + n signal n ended --watch
"""


@click.command(epilog=EPILOG)
@click.argument("url")
@click.option("--watch", is_flag=True, help="Show each change that is seen, until a signal ends this.")
@as_json("one JSON object a leader")
def leader(url: str, watch: bool, json: bool) -> int:
    """Show which process leads the election at URL: owner, value, token.

    It may have changed since: act on it only if the resource checks the token.
    """
    from lockstead.election import Election

    named = parse_lock_url(url)
    with interruptible(f"watching {named.key!r}"), opened(named.store) as client:
        settings: Any = named.settings
        election = Election._at(client._engine, named.key, settings, value=None, fenced=False)
        if watch:
            warn_of_place(client)
            for seen in election.observe():
                _show(named.key, seen, json=json)
            return Exit.OK
        seen = election.leader()
        warn_of_place(client)
    if seen is not None or json:
        _show(named.key, seen, json=json)
    else:
        say(f"{named.key!r} has no leader")
    return Exit.NOT_ACQUIRED if seen is None else Exit.OK


def _show(key: str, seen: Leader | None, *, json: bool) -> None:
    if json:
        out_json(
            {
                "key": key,
                "owner": seen and seen.owner,
                "value": seen and seen.value,
                "token": seen and seen.token,
                "since": None if seen is None else instant(seen.since_epoch),
            }
        )
    elif seen is None:
        out("no leader")
    else:
        token = "" if seen.token is None else f"  token {seen.token}"
        out(f"{plain(seen.owner)}  {plain(seen.value)}{token}")

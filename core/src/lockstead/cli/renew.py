"""The command `lockstead renew`: extend the lease that a ticket names, once."""

from __future__ import annotations

import time
from typing import Final

import click

from lockstead.cli.exits import Exit
from lockstead.cli.options import as_json, opened, ticket_and_store, ticket_at
from lockstead.cli.output import instant, out, out_json
from lockstead.reading import date_text

EPILOG: Final = """\b
Examples:
  lockstead renew --store gs://my-bucket/locks#apt "$ticket"
  lockstead renew --store sqlite:///locks.db#apt --progress half - < ticket
  LOCKSTEAD_TICKET=$ticket lockstead renew --store sqlite:///locks.db#apt

\b
Exit codes: 0 renewed, or
  64 wrong usage      69 the store failed; try again
  76 the lease is lost: taken, removed, revoked, or being released
"""


@click.command(epilog=EPILOG)
@ticket_and_store
@click.option("--progress", metavar="TEXT", help="Progress of the work, shown by inspect and list.")
@as_json()
def renew(ticket: str | None, store: str | None, progress: str | None, json: bool) -> int:
    """Extend the lease that a ticket names by its ttl.

    TICKET is what 'lockstead acquire' printed; '-' reads it from standard input. Default: LOCKSTEAD_TICKET.
    An expired lease is extended if the lock has not been acquired since.
    """
    parsed, place = ticket_at(ticket, store)
    with opened(place) as client:
        time_left = client.renew(parsed, progress=progress)
    renew_before = time.time() + time_left
    if json:
        fields = {
            "key": parsed.key,
            "holder": parsed.holder,
            "ttl": parsed.ttl,
            "time_left": round(time_left, 3),
            "renew_before": instant(renew_before),
        }
        out_json(fields)
    else:
        out(f"{parsed.key} is renewed; renew it again before {date_text(renew_before)}")
    return Exit.OK

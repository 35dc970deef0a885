"""The command `lockstead release`: release the lease that a ticket names, or report that it was lost."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import click

from lockstead.cli.exits import Exit, Failed
from lockstead.cli.options import as_json, opened, ticket_and_store, ticket_at, time_option
from lockstead.cli.output import out, out_json
from lockstead.values import SHARED

if TYPE_CHECKING:
    from lockstead.lock import Client
    from lockstead.values import LeaseTicket

EPILOG: Final = """\b
Examples:
  lockstead release --store sqlite:///locks.db#apt "$ticket"
  lockstead release --store sqlite:///locks.db#apt --drain 5m - < ticket
  LOCKSTEAD_TICKET=$ticket lockstead release --store sqlite:///locks.db#apt

\b
Exit codes: 0 released by this call, or
  64 wrong usage
  69 the store failed; try again, or the lock is free after the ttl
  75 still held: attached members work under the lease; it ends with its ttl
  76 the lease had ended before: its work may have overlapped with others'
"""


@click.command(epilog=EPILOG)
@ticket_and_store
@time_option("--drain", "How long to wait for attached members. Default: about its ttl.")
@as_json()
def release(ticket: str | None, store: str | None, drain: float | None, json: bool) -> int:
    """Release the lease that a ticket names.

    TICKET is what 'lockstead acquire' printed; '-' reads it from standard input. Default: LOCKSTEAD_TICKET.
    Waits for the processes that are attached to the lease, unless it is a reader's: they stay readers.
    """
    parsed, place = ticket_at(ticket, store)
    # `run` exports both, and its own process works under the lease until the command has ended
    if ticket == os.environ.get("LOCKSTEAD_TICKET") and os.environ.get("LOCKSTEAD_KEY") == parsed.key:
        raise Failed(
            Exit.USAGE,
            f"'lockstead run' releases {parsed.key!r} when its command ends; do not release it yourself",
        )
    with opened(place) as client:
        if not client.release(parsed, drain=drain):
            _raise_not_released(client, parsed)
    if json:
        out_json({"key": parsed.key, "holder": parsed.holder, "released": True})
    else:
        out(f"{parsed.key} is released")
    return Exit.OK


def _raise_not_released(client: Client, parsed: LeaseTicket) -> None:
    """Raise Failed if members still work under the lease, or LeaseLost if it had ended before.

    A reader has no members: those that it introduced are readers themselves.
    """
    from lockstead.lease import converse
    from lockstead.operations import PLAIN, LockOperations

    held = client.lock(parsed.key).inspect()
    if parsed.mode != SHARED and held is not None and held.incarnation == parsed.incarnation:
        raise Failed(
            Exit.NOT_ACQUIRED,
            f"{parsed.key!r} is still held: a member still works under it; it ends with its ttl of {parsed.ttl:g} s",
        )
    lock = LockOperations(client._engine, parsed.key, PLAIN)
    raise converse(lock.engine, lock.settings, lock.why_over(parsed))

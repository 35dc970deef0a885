"""The command `lockstead acquire`: acquire a lock, print its ticket, and stop renewing the lease.

Exit code 0 means that the lock is held and its ticket was printed; otherwise the lock is released.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from lockstead.cli.exits import Exit, Failed, say
from lockstead.cli.options import (
    as_json,
    check_permits,
    lock_or_semaphore,
    metadata_options,
    parse_lock_url,
    permit_options,
    settings_of,
    shared_option,
    timeout_option,
    ttl_option,
    verbose_option,
    warn_of_place,
)
from lockstead.cli.output import instant, out, out_json
from lockstead.cli.signals import ENDING, Signals, interruptible
from lockstead.reading import date_text
from lockstead.settings import Settings
from lockstead.stores import url as urls

if TYPE_CHECKING:
    from lockstead.lease import Lease
    from lockstead.lock import Client

TTL: Final = "30m"

EPILOG: Final = """\b
Examples:
  ticket=$(lockstead acquire gs://my-bucket/locks/apt --ttl 30m --timeout 1h)
  lockstead acquire sqlite:///locks.db#nightly --owner "ci:$USER" > ticket
  lockstead acquire --json --timeout 0 sqlite:///locks.db#nightly
  lockstead acquire --shared sqlite:///locks.db#index
  lockstead acquire -n 3 sqlite:///locks.db#api

\b
The lease is not renewed automatically: run 'lockstead renew' within the ttl,
and 'lockstead release' at the end.

\b
Exit codes: 0 the lock is held and its ticket was printed, or
  64 wrong usage      69 the store failed     74 the ticket was not printed
  75 not acquired     76 the lease was lost   128 + n signal n ended the wait
"""


@click.command(epilog=EPILOG)
@click.argument("url")
@ttl_option(TTL)
@timeout_option
@shared_option
@metadata_options()
@permit_options
@verbose_option
@as_json()
def acquire(
    url: str,
    ttl: float | None,
    timeout: float | None,
    mode: str | None,
    purpose: str | None,
    owner: str | None,
    labels: Sequence[str],
    permits: int | None,
    on_mismatch: str | None,
    verbose: bool,
    json: bool,
) -> int:
    """Acquire the lock at URL for several steps; print the ticket that names the lease."""
    named = parse_lock_url(url)
    wanted = settings_of(named, {"ttl": ttl, "mode": mode, "purpose": purpose, "owner": owner}, labels)
    wanted.setdefault("ttl", TTL)
    check_permits(permits, on_mismatch, Settings.make(**wanted).mode)
    from lockstead.cli.progress import ProgressListener, warn_of_unclean
    from lockstead.lock import Client

    began = time.monotonic()
    with interruptible(f"the wait for {named.key!r}") as signals:
        listener = ProgressListener(verbose=verbose, on_granted=signals.granted)
        with Client(urls.open_store(named.store), listener=listener) as client:
            lock = lock_or_semaphore(client, named.key, wanted, permits, on_mismatch)
            lease = lock._acquire(timeout, began=began)
            _print_ticket(client, lease, signals, json=json)
            warn_of_unclean(lease.key, lease.previous_lease)
            warn_of_place(client)
    return Exit.OK


def _print_ticket(client: Client, lease: Lease, signals: Signals, *, json: bool) -> None:
    from lockstead.cli.progress import give_back
    from lockstead.protocol.commands import TokenSource

    try:
        # drawn now, so that `inspect` shows it and the next steps have it
        sequencer = lease.sequencer() if client._engine.traits.tokens is not TokenSource.NONE else None
        time_left = lease.time_left
        renew_before = time.time() + time_left
        ticket = lease._ticket()
        fields: dict[str, Any] = {
            "ticket": str(ticket),
            "key": ticket.key,
            "store": ticket.store,
            "holder": ticket.holder,
            "ttl": ticket.ttl,
            "time_left": round(time_left, 3),
            "renew_before": instant(renew_before),
            "token": None if sequencer is None else sequencer.token,
            "sequencer": None if sequencer is None else str(sequencer),
            "incarnation": ticket.incarnation,
            "slot": ticket.slot,
        }
        lease.check()
        _unless_ended(signals)
        if json:
            out_json(fields)
        else:
            out(fields["ticket"])
            say(f"{ticket.key!r} is held; renew it before {date_text(renew_before)}, or release it")
        # a caller that sees the exit code of a signal assumes that the lock is not held, ticket or not
        _unless_ended(signals)
        signals.ignore()
        lease.detach()
    except BaseException:
        give_back(lease, unused=True)
        raise


def _unless_ended(signals: Signals) -> None:
    for number in signals.taken():
        if number in ENDING:
            raise Failed(Exit.SIGNALLED + number, "interrupted by a signal; the lock is released")

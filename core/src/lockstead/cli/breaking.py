"""The command `lockstead break`: show the holder of a lock, ask, and break that lease and no later one."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from lockstead import registry
from lockstead.cli.exits import Exit, Failed, plain, say
from lockstead.cli.inspect import in_full
from lockstead.cli.options import as_json, opened, parse_lock_url, warn_of_place
from lockstead.cli.output import instant, out, out_json, wants_colours
from lockstead.errors import StoreRefused
from lockstead.protocol.record import KeyIsSemaphore, permits_text
from lockstead.reading import date_text
from lockstead.values import checked_slot

if TYPE_CHECKING:
    from lockstead.lock import Client, Lock
    from lockstead.semaphore import Semaphore
    from lockstead.views import BreakResult, LockInfo

SHOWN_MAX: Final = 10
"""Maximum number of permits that are named in a message."""

EPILOG: Final = """\b
Examples:
  lockstead break gs://my-bucket/locks/apt --reason "stuck since noon" --yes
  lockstead break sqlite:///locks.db#apt --reason "host is gone" --now --yes
  lockstead break sqlite:///locks.db#nightly --reason "stuck" --yes --json

\b
Exit codes: 0 broken, or free already, or
  64 wrong usage   69 the store failed, or refuses to break a foreign record
  75 still held: not confirmed, or another holder has acquired it
"""


@click.command("break", epilog=EPILOG)
@click.argument("url")
@click.option("--reason", metavar="TEXT", required=True, help="Reason, for the holder and the history.")
@click.option("--by", metavar="TEXT", help="Who breaks it. Default: user@host.")
@click.option(
    "--now", is_flag=True, help="Remove it at once; its holder may still consider itself the holder for a while."
)
@click.option("--slot", type=int, metavar="N", help="Break the lease of this permit: URL names a semaphore.")
@click.option("--reader", metavar="HOLDER", help="Break the lease of this reader of a shared lock alone.")
@click.option("--yes", is_flag=True, help="Do not ask. Needed where standard input is not a terminal.")
@as_json()
def break_lease(
    url: str,
    reason: str,
    by: str | None,
    now: bool,
    slot: int | None,
    reader: str | None,
    yes: bool,
    json: bool,
) -> int:
    """Break the lease on the lock at URL: revoke it, or remove it at once. Writes an audit entry.

    The holder finds out at its next renewal, and stops. An expired lease is removed. With --now the lock is free at
    once; the output says until when the old holder may still consider itself the holder. A shared lock is broken for
    all readers, or for one with --reader.
    """
    named = parse_lock_url(url)
    if not reason.strip():
        raise click.UsageError("breaking a lease needs a reason, for the holder and the history")
    if slot is not None and reader is not None:
        raise click.UsageError("--slot is for a semaphore, --reader for a shared lock: leave one")
    if not yes and not sys.stdin.isatty():
        raise click.UsageError("standard input is not a terminal, so there is no one to confirm: add --yes")
    with opened(named.store) as client:
        lock: Lock | Permit = client.lock(named.key, **named.settings)
        if slot is not None:
            lock = Permit(client.semaphore(named.key, **named.settings), checked_slot(slot))
        held = _holder(client, lock, named.settings, now=now)
        held = held if held is None or reader is None else _reader(held, reader)
        warn_of_place(client)
        if held is not None and not (yes and json):
            click.echo(in_full(lock.key, held, time.time(), colours=wants_colours(sys.stderr)), err=True)
        if held is not None and not yes:
            _confirm(now=now)
        by = by or registry.person()
        broken = None if held is None else _broken(lock, held, reason, by, now=now)
    if json:
        out_json(_fields(lock.key, broken, reason, by))
    elif held is None or broken is None:
        gone = "is free" if held is None or reader is None else f"has no reader {reader!r} any more"
        say(f"{lock.key!r} {gone}: nothing to break")
    else:
        out(plain(_message(lock.key, broken, held)))
    return Exit.OK


@dataclass(frozen=True, slots=True)
class Permit:
    """One permit of a semaphore, which is inspected and broken like a lock."""

    semaphore: Semaphore
    slot: int

    @property
    def key(self) -> str:
        """The key of the semaphore."""
        return self.semaphore.key

    def inspect(self) -> LockInfo | None:
        """Return the holder of the permit; None if it is free."""
        shown = self.semaphore.inspect()
        return None if shown is None else next((one for one in shown.held if one.slot == self.slot), None)

    def break_lease(self, *, reason: str, by: str | None, now: bool, incarnation: str) -> BreakResult | None:
        """Break the lease of the permit."""
        return self.semaphore.break_lease(slot=self.slot, reason=reason, by=by, now=now, incarnation=incarnation)


def _holder(client: Client, lock: Lock | Permit, settings: Mapping[str, Any], *, now: bool) -> LockInfo | None:
    """Return the holder. With `now`, a damaged record is returned, too: it can be removed."""
    try:
        return lock.inspect()
    except KeyIsSemaphore:
        _refuse_semaphore(client.semaphore(lock.key, **settings))
    except StoreRefused:
        if not now:
            raise
        found = next((held for held in client.scan() if held.key == lock.key), None)
        if found is None:
            raise
        return found


def _refuse_semaphore(semaphore: Semaphore) -> NoReturn:
    """Refuse to break a semaphore as a whole; show its permits, one of which was meant."""
    shown = semaphore.inspect()
    held = () if shown is None else shown.held
    slots = ", ".join(f"--slot {one.slot} (of {one.owner!r})" for one in held[:SHOWN_MAX])
    more = f" and {len(held) - SHOWN_MAX} more, see 'lockstead permits'" if len(held) > SHOWN_MAX else ""
    which = f"name the one to break: {slots}{more}" if held else "none is held"
    limit = permits_text(0 if shown is None else shown.limit)
    raise KeyIsSemaphore(f"{semaphore.key!r} is a semaphore with {limit}; {which}")


def _reader(held: LockInfo, holder: str) -> LockInfo:
    """Return the reader of this name; holder: as `inspect` shows it."""
    for reader in held.readers:
        if reader.holder == holder:
            return reader
    shown = "'lockstead inspect' shows its readers" if held.readers else f"it is held by {held.owner!r}"
    raise Failed(Exit.NOT_ACQUIRED, f"{held.key!r} has no reader {holder!r}, nothing was broken; {shown}")


def _confirm(*, now: bool) -> None:
    question = "Remove this lease at once?" if now else "Revoke this lease?"
    if not click.confirm(question, err=True):
        raise Failed(Exit.NOT_ACQUIRED, "nothing was broken")


def _broken(lock: Lock | Permit, shown: LockInfo, reason: str, by: str, *, now: bool) -> BreakResult | None:
    """Break the lease that was shown; None if it has ended. Failed if another lease holds the key: it was not shown."""
    if shown.registration is not None and not isinstance(lock, Permit):
        return lock.break_lease(reason=reason, by=by, now=now, reader=shown)
    broken = lock.break_lease(reason=reason, by=by, now=now, incarnation=shown.incarnation)
    if broken is None and (held := lock.inspect()) is not None:
        raise Failed(Exit.NOT_ACQUIRED, f"{lock.key!r} has passed to {held.owner!r} meanwhile; nothing was broken")
    return broken


def _was_revoked(broken: BreakResult) -> bool:
    """Whether the lease had been revoked before, so that nothing was changed."""
    return not broken.removed and broken.was.revoked_by is not None


def _fields(key: str, broken: BreakResult | None, reason: str, by: str) -> dict[str, Any]:
    from lockstead.cli.format import facts

    fields: dict[str, Any] = {"key": key, "broken": False, "removed": False, "by": by, "reason": reason}
    fields |= {"max_overlap": None, "overlap_until": None, "was": None}
    if broken is None:
        return fields
    if _was_revoked(broken):
        fields |= {"by": broken.was.revoked_by, "reason": broken.was.revoke_reason}
    return fields | {
        "broken": True,
        "removed": broken.removed,
        "max_overlap": broken.max_overlap,
        "overlap_until": instant(broken.overlap_until_epoch),
        "was": facts(key, broken.was, time.time()),
    }


def _message(key: str, broken: BreakResult, held: LockInfo) -> str:
    """Return what was done. held: the lease as it was shown."""
    what, free = key, "the lock is free"
    if held.registration is not None:
        what, free = f"reader {held.holder} of {key}", "no writer waits for it"
    if _was_revoked(broken):
        from lockstead.states import expires_epoch

        until = date_text(expires_epoch(held, time.time()) if held.revoked_by is not None else None)
        over = "one ttl after that" if until is None else f"soon after {until}"
        text = f"{what} is revoked already, by {broken.was.revoked_by}: {broken.was.revoke_reason}. Nothing was changed"
        return f"{text}. If its holder is dead, {free} {over}; --now frees it at once"
    if broken.max_overlap == 0:
        return f"{what} is removed: its lease had expired, and {free}"
    # rounded up: the holder may consider itself the holder until that instant
    until = None if broken.overlap_until_epoch is None else date_text(math.ceil(broken.overlap_until_epoch))
    how_long = "for an unknown time (its record names no ttl)" if until is None else f"until {until} at the latest"
    may = f"may consider itself the holder {how_long}"
    who = "each reader" if held.readers else "its holder"
    if broken.removed:
        return f"{what} is removed. If {who} is alive, it {may}: make sure that it has stopped"
    text = f"{what} is revoked. {who.capitalize()} finds out at its next renewal; it {may}"
    dead = f"If it is dead, {free} soon after that; --now frees it at once"
    return text if until is None else f"{text}. {dead}"

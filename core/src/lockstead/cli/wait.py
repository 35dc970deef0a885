"""The command `lockstead wait`: wait until a lock is free, without acquiring it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from lockstead.cli.exits import Exit, Failed
from lockstead.cli.options import (
    as_json,
    opened,
    parse_lock_url,
    shared_option,
    timeout_option,
    verbose_option,
    warn_of_place,
)
from lockstead.cli.output import out_json
from lockstead.cli.signals import interruptible
from lockstead.settings import Settings
from lockstead.values import EXCLUSIVE, SHARED, Name

if TYPE_CHECKING:
    from lockstead.protocol.waiting import Found
    from lockstead.runtime.engine import Engine
    from lockstead.views import Permits

EPILOG: Final = """\b
Examples:
  lockstead wait --timeout 10m gs://my-bucket/locks/apt
  lockstead wait --timeout 0 sqlite:///locks.db#nightly && echo "it is free"

\b
Exit codes: 0 it is free, or was a moment ago, or
  64 wrong usage      69 the store failed   75 still held after the timeout
  128 + n signal n ended the wait
"""


@click.command(epilog=EPILOG)
@click.argument("url")
@timeout_option
@shared_option
@verbose_option
@as_json()
def wait(url: str, timeout: float | None, mode: str | None, verbose: bool, json: bool) -> int:
    """Wait until the lock at URL is free, without acquiring it.

    Only a hint: to use the lock, acquire it ('acquire', 'run'); another process may be faster. With --shared: until it
    is free for a reader, so not while another process holds it exclusively or waits to. Of a semaphore: until a permit
    is free.
    """
    named = parse_lock_url(url)
    settings = Settings.make(**named.settings).in_mode(mode)
    with interruptible(f"the wait for {named.key!r}"), opened(named.store, verbose=verbose) as client:
        engine = client._engine
        began_at = engine.clock.now()
        found, permits = _until_free(engine, named.key, settings, timeout)
        waited = engine.clock.now() - began_at
        warn_of_place(client)
    if json:
        out_json({**_seen(engine, named.key, settings, found, permits), "waited": round(waited, 3)})
    if found.is_free:
        return Exit.OK
    if json:
        return Exit.NOT_ACQUIRED
    if permits is not None:
        what = f"all {permits.limit} permits are held" if permits.limit else "it is a closed semaphore: its limit is 0"
        raise Failed(Exit.NOT_ACQUIRED, f"{named.key!r}: {what}")
    from lockstead.protocol.acquire import Contended

    seen = Contended(found.status.record if found.status else None)
    raise engine.not_acquired(Name(named.key), seen, waited, has_waited=timeout != 0)


def _until_free(engine: Engine, key: str, settings: Settings, timeout: float | None) -> tuple[Found, Permits | None]:
    """Wait for the lock, or for a permit of the semaphore that is under its key."""
    from lockstead.lease import converse
    from lockstead.operations import LockOperations
    from lockstead.permit_operations import SemaphoreOperations
    from lockstead.protocol.record import KeyIsSemaphore

    began_at = engine.clock.now()
    try:
        script, limits = LockOperations(engine, key, settings).freed(timeout)
        return converse(engine, settings, script, limits), None
    except KeyIsSemaphore:
        left = None if timeout is None else max(0.0, timeout - (engine.clock.now() - began_at))
        semaphore = SemaphoreOperations(engine, key, settings)
        script, limits = semaphore.freed(left)
        found = converse(engine, settings, script, limits)
        return found, converse(engine, settings, semaphore.inspected())


def _seen(engine: Engine, key: str, settings: Settings, found: Found, permits: Permits | None) -> dict[str, object]:
    from lockstead.cli.format import facts
    from lockstead.views import holding, semaphore_info

    if permits is not None:
        return facts(key, semaphore_info(permits), time.time())
    held = None if found.status is None else holding(key, found.status, engine.context(settings))
    if held is not None and held.mode == SHARED and found.is_free and settings.mode == EXCLUSIVE:
        held = None  # a group without a reader
    said = facts(key, held, time.time())
    if found.is_free and held is not None and held.mode == EXCLUSIVE:
        said["state"] = "expired"
    return said

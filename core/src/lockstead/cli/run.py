"""The command `lockstead run`: hold a lock while a command runs, and release it when all its processes have ended.

Parses the options, finds the command, acquires the lock and reports the end. `section` runs the command.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from errno import ENOENT
from pathlib import Path
from typing import Final

import click

from lockstead.cli.exits import Exit, Failed, of_status, say
from lockstead.cli.options import (
    check_permits,
    lock_or_semaphore,
    metadata_options,
    parse_lock_url,
    permit_options,
    settings_of,
    shared_option,
    time_option,
    timeout_option,
    ttl_option,
    verbose_option,
    warn_of_place,
)
from lockstead.cli.progress import ProgressListener, give_back, warn_of_unclean
from lockstead.cli.section import Ended, Section, StopTimes
from lockstead.cli.signals import ENDING, interruptible
from lockstead.cli.terminal import Terminal
from lockstead.errors import LocksteadError, NotAcquired
from lockstead.lease import Lease
from lockstead.lock import Client, Lock
from lockstead.protocol.commands import TokenSource
from lockstead.renewal import time_for_failures
from lockstead.semaphore import Semaphore
from lockstead.settings import MARGINS_PER_TTL, Settings
from lockstead.stores import url as urls
from lockstead.stores.port import StoreUrl
from lockstead.supervise.messages import now
from lockstead.urls import handed_on
from lockstead.values import SHARED

GRACE: Final = 10.0
GRACE_SHARE: Final = 0.625
"""The part of abort_margin that the grace may take; the rest is for SIGKILL to take effect before the deadline."""
RESERVE_SHARE: Final = 0.25
RESERVE_MAX: Final = 5.0
EXPORTED: Final = (
    "LOCKSTEAD_KEY",
    "LOCKSTEAD_STORE",
    "LOCKSTEAD_MODE",
    "LOCKSTEAD_TOKEN",
    "LOCKSTEAD_SEQUENCER",
    "LOCKSTEAD_TICKET",
    "LOCKSTEAD_SLOT",
)

EPILOG: Final = """\b
Examples:
  lockstead run --timeout 10m gs://my-bucket/locks/apt -- ./publish.sh
  lockstead run --timeout 0 -E 0 sqlite:///locks.db#nightly -- make nightly
  lockstead run sqlite:///locks.db#x -- sh -c './reindex "$LOCKSTEAD_TOKEN"'

\b
Exit codes: the command's own (128 + n if signal n ended it), or
  64 wrong usage    69 the store failed      70 not guarded to its end
  75 not acquired   76 the lease was lost    126, 127 cannot be run, not found
  128 + n signal n ended the wait for the lock
"""


class Run(click.Command):
    """Reports a missing URL, which is parsed as a missing command, and a missing `--` or command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments."""
        given = list(args)
        failure: click.UsageError | None = None
        rest: list[str] = []
        try:
            rest = super().parse_args(ctx, args)
        except (click.NoSuchOption, click.MissingParameter) as error:
            failure = error
        command = ctx.params.get("command") or ()
        usage = f"lockstead {self.name} URL -- CMD"
        is_unknown = isinstance(failure, click.NoSuchOption)
        if "--" in given:
            if not is_unknown and len(command) < len(given) - given.index("--") - 1:
                raise click.UsageError(f"the lock's URL is missing: {usage}", ctx) from None
        else:
            behind = given[given.index(command[0]) :] if command and command[0] in given else ()
            if is_unknown or any(word.startswith("-") for word in behind):
                raise click.UsageError(
                    f"put '--' before the command, or its options are parsed as ours: {usage}", ctx
                ) from None
        if failure is not None:
            is_url_alone = ctx.params.get("url") is not None
            raise click.UsageError(f"the command is missing: {usage}", ctx) if is_url_alone else failure
        return rest


@click.command(cls=Run, epilog=EPILOG)
@click.argument("url")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD [ARGS]...")
@timeout_option
@ttl_option("5m")
@shared_option
@metadata_options("Reason shown to waiters. Default: the command's name.")
@permit_options
@time_option("--grace", "Time from SIGTERM to SIGKILL when the command is stopped. Default: 10s or less.")
@click.option(
    "-E",
    "--conflict-exit-code",
    "conflict",
    type=click.IntRange(0, 255),
    default=int(Exit.NOT_ACQUIRED),
    metavar="N",
    show_default=True,
    help="Exit code if the lock was not acquired.",
)
@click.option("--no-ticket", is_flag=True, help="Export no LOCKSTEAD_TICKET; saves the store some requests.")
@verbose_option
def run(
    url: str,
    command: Sequence[str],
    timeout: float | None,
    ttl: float | None,
    mode: str | None,
    purpose: str | None,
    owner: str | None,
    labels: Sequence[str],
    permits: int | None,
    on_mismatch: str | None,
    grace: float | None,
    conflict: int,
    no_ticket: bool,
    verbose: bool,
) -> int:
    """Hold the lock at URL while CMD runs; stop CMD before the deadline if the lease is lost.

    CMD gets LOCKSTEAD_KEY, _STORE, _MODE, _TOKEN, _SEQUENCER and _TICKET, and with -n
    LOCKSTEAD_SLOT, from 0 to N - 1: no two holders have the same one.
    """
    target = parse_lock_url(url)
    wanted = settings_of(target, {"ttl": ttl, "mode": mode, "purpose": purpose, "owner": owner}, labels)
    # the arguments may hold a secret, so only the name of the command is shown to others
    wanted.setdefault("purpose", f"run {Path(command[0]).name}")
    settings = Settings.make(**wanted)
    check_permits(permits, on_mismatch, settings.mode)
    stop_times = stop_times_of(settings, grace)
    if permits is None and timeout is None:
        _warn_of_nesting(target.key, urls.parse_lock(url), settings.mode)
    path = found(command[0])
    with interruptible(f"the wait for {target.key!r}") as signals:
        section = Section(path, list(command), signals, Terminal())
        section.open()
        try:
            began = time.monotonic()
            listener = ProgressListener(verbose=verbose, on_granted=signals.granted, on_renewed=section.renewed)
            with Client(urls.open_store(target.store), listener=listener) as client:
                client._engine.warn_once(target.key, settings)
                lock = lock_or_semaphore(client, target.key, wanted, permits, on_mismatch)
                lease = _acquired(lock, timeout, conflict, began)
                warn_of_unclean(lease.key, lease.previous_lease)
                warn_of_place(client)
                return hold(lease, urls.parse_lock(url), section, stop_times, ticket=not no_ticket)
        finally:
            section.close()


def _warn_of_nesting(key: str, store: StoreUrl, mode: str) -> None:
    """Warn if an outer `lockstead run` holds this lock: this one would wait for itself."""
    if os.environ.get("LOCKSTEAD_KEY") == key and os.environ.get("LOCKSTEAD_STORE") == handed_on(store):
        is_reader = mode == SHARED == os.environ.get("LOCKSTEAD_MODE")
        when = "as soon as a writer waits" if is_reader else "while it holds it"
        say(
            f"the 'lockstead run' around this command took {key!r}: {when}, this one waits for itself "
            "indefinitely; add --timeout, or remove one of the two"
        )


def _acquired(lock: Lock | Semaphore, limit: float | None, conflict: int, began: float) -> Lease:
    try:
        return lock._acquire(limit, began=began)
    except NotAcquired as error:
        raise Failed(conflict, str(error)) from error


def hold(
    lease: Lease, store: StoreUrl, section: Section, stop_times: StopTimes, *, ticket: bool, is_last: bool = True
) -> int:
    """Run the command under a lease, release it, and return the exit code. is_last: ignore signals from then on."""
    name = section.arguments[0]
    lease.on_lost(lambda: section.stop(f"{lease.lost_error()}; {name} is stopped"))
    try:
        exports = _exports(lease, store, ticket=ticket)
    except LocksteadError:
        give_back(lease, unused=True)
        raise
    ending = [number for number in section.signals.taken() if number in ENDING]
    if ending:
        give_back(lease, unused=True)
        return Exit.SIGNALLED + ending[0]
    # the clock is read first: a pause in between makes the deadline earlier, never later
    at = now()
    ended = section.run(at + lease.time_left, stop_times, exports)
    if is_last:
        section.signals.ignore()
    if not ended.is_sure:
        say(f"{name} or what it started cannot be killed; {lease.key!r} is left to expire")
        return Exit.UNSURE
    if ended.was_lost or not lease.is_held:
        section.stop(f"{lease.lost_error()}; {name} has ended")
    give_back(lease, unused=ended.failure is not None)
    return _code(ended, name)


def _code(ended: Ended, name: str) -> int:
    if ended.was_lost:
        return Exit.LOST
    if ended.is_unguarded:
        return Exit.UNSURE
    if ended.failure is not None:
        missing = ended.failure == ENOENT
        raise Failed(Exit.NOT_FOUND if missing else Exit.NOT_EXECUTABLE, f"{name}: {os.strerror(ended.failure)}")
    return of_status(ended.status or 0)


def _exports(lease: Lease, store: StoreUrl, *, ticket: bool) -> dict[str, str]:
    """Return the command's environment variables; an empty one is unset, so that nested runs do not inherit it."""
    exports = dict.fromkeys(EXPORTED, "")
    exports["LOCKSTEAD_KEY"] = lease.key
    if lease.slot is not None:
        exports["LOCKSTEAD_SLOT"] = str(lease.slot)
    exports["LOCKSTEAD_STORE"] = handed_on(store)
    exports["LOCKSTEAD_MODE"] = lease.mode
    if lease._engine.traits.tokens is not TokenSource.NONE:
        sequencer = lease.sequencer()
        exports["LOCKSTEAD_TOKEN"] = str(sequencer.token)
        exports["LOCKSTEAD_SEQUENCER"] = str(sequencer)
    if ticket:
        exports["LOCKSTEAD_TICKET"] = str(lease.share())
    return exports


def found(command: str) -> str:
    """Return the path of a command. Failed if it does not exist or is not executable."""
    path = command if os.sep in command else shutil.which(command)
    if path is None and any(_is_file(Path(part or ".") / command) for part in os.get_exec_path()):
        raise Failed(Exit.NOT_EXECUTABLE, f"{command}: not executable")
    if path is None or not Path(path).exists():
        raise Failed(Exit.NOT_FOUND, f"{command}: command not found")
    if Path(path).is_dir() or not os.access(path, os.X_OK):
        raise Failed(Exit.NOT_EXECUTABLE, f"{command}: {'a directory' if Path(path).is_dir() else 'not executable'}")
    return path


def _is_file(path: Path) -> bool:
    with suppress(OSError):
        return path.is_file()
    return False


def stop_times_of(settings: Settings, grace: float | None) -> StopTimes:
    """Return the times of a stop, which fit between loss and deadline; ValueError if the grace is too long."""
    longest = settings.abort_margin * GRACE_SHARE
    reserve = min(settings.abort_margin * RESERVE_SHARE, RESERVE_MAX)
    wanted = min(GRACE, longest) if grace is None else grace
    if wanted > longest * (1 + 1e-9):
        margin = math.ceil(wanted / GRACE_SHARE * 100) / 100
        room = settings.ttl * (1 - settings.drift) - time_for_failures(settings.renew_every, settings.max_failures)
        advice = (
            f"add ?abort_margin={margin:g} to the URL"
            if margin <= room
            else f"take a ttl of at least {math.ceil(margin * MARGINS_PER_TTL)} s, without an abort_margin in the URL"
        )
        raise ValueError(
            f"grace is {wanted:g} s; with a ttl of {settings.ttl:g} s and an abort_margin of "
            f"{settings.abort_margin:g} s it may be at most {longest:g} s: {advice}"
        )
    return StopTimes(wanted, reserve)

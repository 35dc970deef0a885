"""The command `lockstead elect`: campaign, run a command while leading, and campaign again when it was deposed."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from lockstead.cli.exits import say
from lockstead.cli.options import (
    metadata_options,
    parse_lock_url,
    settings_of,
    time_option,
    ttl_option,
    verbose_option,
    warn_of_place,
)
from lockstead.cli.progress import ProgressListener, warn_of_unclean
from lockstead.cli.run import Run, found, hold, stop_times_of
from lockstead.cli.section import Section
from lockstead.cli.signals import Signals, interruptible
from lockstead.cli.terminal import Terminal
from lockstead.election import Election
from lockstead.errors import LeaseLost, StoreError
from lockstead.lock import Client
from lockstead.stores import url as urls

if TYPE_CHECKING:
    from lockstead.views import Leader

HOOK_TAKES: Final = 60.0
"""Maximum seconds of one call of the hook."""

EPILOG: Final = """\b
Examples:
  lockstead elect --value "$USER" sqlite:///locks.db#cron -- ./publish.sh
  lockstead elect --max-term 6h gs://my-bucket/locks#cron -- ./publish.sh

\b
Exit codes: the command's own (128 + n if signal n ended it), or
  64 wrong usage    69 the store failed      70 not guarded to its end
  76 deposed, with --once                    126, 127 cannot be run, not found
  128 + n signal n ended the campaign
"""


@click.command(cls=Run, epilog=EPILOG)
@click.argument("url")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD [ARGS]...")
@click.option("--value", metavar="TEXT", help="What the leader advertises, as its address. Default: the owner.")
@time_option("--max-term", "Stop CMD after so long, and let another candidate lead.")
@click.option("--once", is_flag=True, help="Exit when deposed, instead of campaigning again.")
@click.option("--on-leader", metavar="HOOK", help="Shell command to run for each leader that is seen.")
@click.option("--reclaim", is_flag=True, help="Take the term of an earlier process of --owner, known to be dead.")
@click.option("--unfenced", is_flag=True, help="Accept a store without fencing tokens (redlock:).")
@ttl_option("15s")
@metadata_options()
@time_option("--grace", "Time from SIGTERM to SIGKILL when the command is stopped. Default: 10s or less.")
@verbose_option
def elect(
    url: str,
    command: Sequence[str],
    value: str | None,
    max_term: float | None,
    once: bool,
    on_leader: str | None,
    reclaim: bool,
    unfenced: bool,
    ttl: float | None,
    purpose: str | None,
    owner: str | None,
    labels: Sequence[str],
    grace: float | None,
    verbose: bool,
) -> int:
    """Run CMD while this process leads the election at URL; when CMD ends, resign and exit with its code.

    If the term is lost, CMD is stopped before the deadline, and this campaigns again. SIGTERM is passed on to CMD; the
    key is free once CMD has ended. CMD gets LOCKSTEAD_KEY, LOCKSTEAD_STORE, LOCKSTEAD_TOKEN, LOCKSTEAD_SEQUENCER and
    LOCKSTEAD_TICKET; HOOK gets LOCKSTEAD_KEY, LOCKSTEAD_LEADER, LOCKSTEAD_VALUE and LOCKSTEAD_TOKEN, empty if there is
    no leader.
    """
    target = parse_lock_url(url)
    wanted: Any = settings_of(target, {"ttl": ttl, "purpose": purpose, "owner": owner}, labels)
    path = found(command[0])
    with interruptible(f"the campaign for {target.key!r}") as signals:
        listener = _Listener(signals, verbose=verbose)
        with Client(urls.open_store(target.store), listener=listener) as client:
            election = Election._at(client._engine, target.key, wanted, value=value, fenced=not unfenced)
            election._on_campaign = signals.wait_again
            stop_times = stop_times_of(election.settings, grace)
            if on_leader is not None:
                threading.Thread(target=_call_hook, args=(election, on_leader), name="hook", daemon=True).start()
            is_first = True
            while True:
                section = Section(path, list(command), signals, Terminal())
                section.open()
                try:
                    listener.section = section
                    term = election._campaign(None, max_term, reclaim=reclaim)
                    warn_of_unclean(term.key, term.previous_lease)
                    if is_first:
                        warn_of_place(client)
                    is_first = False
                    code = hold(term, urls.parse_lock(url), section, stop_times, ticket=True, is_last=False)
                except LeaseLost:
                    # the term ended before the command was started; a signal ends the next campaign
                    if once:
                        raise
                    continue
                finally:
                    section.close()
                if term.lost_reason is None or not section.ended.is_sure or once or signals.is_ending:
                    signals.ignore()
                    return code


class _Listener(ProgressListener):
    """Prints progress, and passes the deadlines on to the section that runs."""

    def __init__(self, signals: Signals, *, verbose: bool) -> None:
        self.section: Section | None = None
        super().__init__(verbose=verbose, on_granted=signals.granted, on_renewed=self._renewed)

    def _renewed(self, deadline: float) -> None:
        if self.section is not None:
            self.section.renewed(deadline)


def _call_hook(election: Election, hook: str) -> None:
    try:
        for leader in election.observe():
            _call(hook, election.key, leader)
    except StoreError as error:
        say(f"--on-leader: the leader of {election.key!r} is no longer observed: {error}")


def _call(hook: str, key: str, leader: Leader | None) -> None:
    told = {"LOCKSTEAD_KEY": key, "LOCKSTEAD_LEADER": "", "LOCKSTEAD_VALUE": "", "LOCKSTEAD_TOKEN": ""}
    if leader is not None:
        token = "" if leader.token is None else str(leader.token)
        told |= {"LOCKSTEAD_LEADER": leader.owner, "LOCKSTEAD_VALUE": leader.value, "LOCKSTEAD_TOKEN": token}
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", hook],
            env={**os.environ, **told},
            stdin=subprocess.DEVNULL,
            timeout=HOOK_TAKES,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        say(f"--on-leader failed: {type(error).__name__}")
    else:
        if done.returncode:
            say(f"--on-leader failed: exit code {done.returncode}")

"""Whether a member of a lease that worked on this very machine is dead, so that nobody has to wait for it.

Who is killed cannot withdraw, and counts as alive until its registration expires: minutes in which its retry and the
release would stand still. A process of this machine can be looked at instead. It is dead if its number is free, or
belongs to another process by now; and only if nothing that it started is alive, which is ended first. Wherever that
cannot be seen (another machine, container or user) nothing is said, and the registration has to expire.

A registration comes from the store, and whoever may write there may write anything. So nothing of it is believed, and
nobody ended, unless its words are signed by a secret of the user that it names, which has never left this machine.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import psutil

from airflow_lockstead import vouching
from lockstead import LeaseTicket
from lockstead.supervise import processes, tags

if TYPE_CHECKING:
    import logging

    from lockstead import Lock

LABEL: Final = "process"
"""Label of a registration that says which process works."""

MARK: Final = tags.TAG_VARIABLE
"""An environment variable that whatever a body starts inherits; it names the bodies around it, by ':'."""

_WORDS: Final = re.compile(
    r"([0-9a-f-]{1,64})/([0-9]{1,20})/([0-9]{1,10})/([0-9]{1,7})/([0-9]{1,20})/([0-9a-f]{32})/([0-9a-f]{64})"
)

LOOK: Final = 5.0
"""Seconds between two looks at who has died meanwhile."""

SWEEP: Final = 5.0
"""Seconds that what a dead body started has to end after SIGKILL; else it is not called dead."""

MEMBER_WAIT_EXTRA: Final = 60.0
"""Seconds, beside two lives of a lease, for which members are waited for: the dead have expired by then."""

EXEC: Final = 1.0
"""Seconds that a process may take to show its environment; it takes microseconds, unless the machine is busy."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process for good: boot and process namespace of its machine, its user, number and start, and its body's id.

    start is in ticks since the boot, as the kernel counts. `label` is how it is written for others to read.
    """

    boot: str
    namespace: str
    user: int
    pid: int
    start: str
    body: str

    @classmethod
    def here(cls, body: str) -> Self | None:
        """Name this process, in which a body of that id runs; None on a system that does not tell."""
        boot, namespace = _machine()
        start = _start_of(os.getpid())
        if not (boot and namespace and start):
            return None
        return cls(boot, namespace, os.getuid(), os.getpid(), start, body)

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Read a label; None if it is anything else, of another machine, or not signed by the user that it names."""
        found = _WORDS.fullmatch(text)
        if found is None or found.group(1, 2) != _machine():
            return None
        boot, namespace, user, pid, start, body, signature = found.groups()
        if not vouching.is_signed(text.rpartition("/")[0], signature, int(user)):
            return None
        return cls(boot, namespace, int(user), int(pid), start, body)

    @property
    def label(self) -> str | None:
        """Write it, signed as this user; None where there is no secret to sign with: nobody could believe it."""
        words = "/".join(map(str, (self.boot, self.namespace, self.user, self.pid, self.start, self.body)))
        signature = vouching.signature(words)
        return None if signature is None else f"{words}/{signature}"

    def is_dead(self) -> bool:
        """Return whether it is certain that this process does not run any more, and ends what it left; else False."""
        if (self.boot, self.namespace) != _machine() or os.getuid() not in (0, self.user) or not self._has_ended():
            return False
        # whoever signed it may end no others: root reads what any user has signed
        tags.end_all(self._left, 0.0, SWEEP)
        left, is_sure = self._left()
        return is_sure and not left

    def _left(self) -> tuple[tags.Found, bool]:
        """Return the living processes of its user that its body started, and whether all others are known not to be."""
        found, is_sure = tags.tagged(frozenset({self.body}))
        own = {name: one for name, one in found.items() if _user_of(one.pid) in (self.user, -1)}
        return own, is_sure and len(own) == len(found)

    def _has_ended(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        # a number may have been given anew; and who only waits to be reaped does nothing any more
        start = _start_of(self.pid)
        return bool(start) and (start != self.start or _state_of(self.pid) in ("Z", "X"))


def started_by(body: str) -> set[psutil.Process]:
    """Return the living processes, this one left out, that carry the mark of a body."""
    found = set()
    for one in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if one.pid != os.getpid() and body in (marks_of(one) or ()) and is_alive(one):
                found.add(one)
    return found


def marks_of(one: psutil.Process) -> list[str] | None:
    """Return the bodies that a process was started in; None if it could not be seen within `EXEC` seconds.

    Amid an exec a process shows no environment, though it will have one: taken for a stranger's, it would outlive its
    body. psutil.Error or OSError if the process is gone or another user's.
    """
    if not _machine()[0]:  # a system that does not tell
        return str(one.environ().get(MARK, "")).split(":")
    ends_at = time.monotonic() + EXEC
    while not (environ := Path(f"/proc/{one.pid}/environ").read_bytes()):
        if tags.has_no_environment(one.pid):
            return []
        if time.monotonic() > ends_at:
            return None
        time.sleep(0.001)
    wanted = f"{MARK}=".encode()
    found = [piece.removeprefix(wanted) for piece in environ.split(b"\0") if piece.startswith(wanted)]
    return os.fsdecode(found[-1]).split(":") if found else []


def is_alive(one: psutil.Process) -> bool:
    """Return whether a process runs; one that only waits to be reaped does not."""
    try:
        return bool(one.is_running() and one.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def member_wait_limit(ticket: str) -> float:
    """Return for how long (seconds) members of a ticket's lease are waited for, where nobody said how long.

    A mark outruns the end of the body, which renews until Airflow kills it, seconds later; from then on it expires.
    """
    return 2 * LeaseTicket.parse(ticket).ttl + MEMBER_WAIT_EXTRA


def wait_for_members(
    lock: Lock, ticket: str, *, owner_filter: Callable[[str], bool], limit: float, log: logging.Logger
) -> bool:
    """Wait until no member whose owner is chosen is alive; False if one still is after `limit` seconds."""
    ends_at = time.monotonic() + limit
    while True:
        for one in lock.members(ticket):
            named = Process.read(one.labels.get(LABEL, ""))
            if owner_filter(one.owner) and named is not None and named.is_dead() and lock.remove_member(ticket, one):
                log.info("%r is dead: process %d of this machine has ended", one.owner, named.pid)
        left = max(0.0, ends_at - time.monotonic())
        if lock.wait_for_members(ticket, owner_filter=owner_filter, timeout=min(LOOK, left)):
            return True
        if not left:
            return False


@cache
def _machine() -> tuple[str, str]:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(Path("/proc/self/ns/pid").readlink()).removeprefix("pid:[").removesuffix("]")
    except OSError:
        return "", ""
    return boot, namespace


def _user_of(pid: int) -> int:
    """Return the real user of a process; -1 if it is gone."""
    try:
        return int(psutil.Process(pid).uids().real)
    except psutil.Error:
        return -1


def _fields_of(pid: int) -> list[str]:
    try:
        return [os.fsdecode(field) for field in processes.stat_of(pid)]
    except OSError:
        return []


def _start_of(pid: int) -> str:
    fields = _fields_of(pid)
    return fields[19] if len(fields) > 19 else ""


def _state_of(pid: int) -> str:
    fields = _fields_of(pid)
    return fields[0] if fields else ""

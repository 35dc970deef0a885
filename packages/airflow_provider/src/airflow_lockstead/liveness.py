"""Whether a member of a lease that ran on this machine is dead, so that it need not be waited for.

A killed process cannot withdraw, and counts as alive until its registration expires: its retry and the release would
wait for minutes. But a process of this machine can be checked. It is dead if its process id is free or was reused, and
no process that it started is alive; those are ended first. If that cannot be determined (another machine, container or
user), the registration has to expire.

A registration comes from the store, and every client with write access can write anything there. So it is trusted, and
processes are ended because of it, only if it is signed with a secret of the user that it names; that secret never
leaves this machine.
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
"""The label of a registration that identifies the member's process."""

MARK: Final = tags.TAG_VARIABLE
"""An environment variable that every process started by a body inherits: the ids of the enclosing bodies, with ':'."""

_WORDS: Final = re.compile(
    r"([0-9a-f-]{1,64})/([0-9]{1,20})/([0-9]{1,10})/([0-9]{1,7})/([0-9]{1,20})/([0-9a-f]{32})/([0-9a-f]{64})"
)

LOOK: Final = 5.0
"""Seconds between two checks for members that died meanwhile."""

SWEEP: Final = 5.0
"""Seconds that the processes started by a dead body have to end after SIGKILL; otherwise it does not count as dead."""

MEMBER_WAIT_EXTRA: Final = 60.0
"""Seconds, in addition to two ttls of the lease, for which members are waited for: dead ones have expired by then."""

EXEC: Final = 1.0
"""Seconds to wait for the environment of a process during an exec; it takes microseconds unless the machine is busy."""


@dataclass(frozen=True, slots=True)
class Process:
    """A unique process: the machine's boot and pid namespace, the user, process id and start time, and the body's id.

    start is in the kernel's clock ticks since the boot. `label` is its text form in a registration.
    """

    boot: str
    namespace: str
    user: int
    pid: int
    start: str
    body: str

    @classmethod
    def here(cls, body: str) -> Self | None:
        """Return this process, in which the body with that id runs; None on a system without the needed /proc files."""
        boot, namespace = _machine()
        start = _start_of(os.getpid())
        if not (boot and namespace and start):
            return None
        return cls(boot, namespace, os.getuid(), os.getpid(), start, body)

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Parse a label; None if it is malformed, of another machine, or not signed by the user that it names."""
        found = _WORDS.fullmatch(text)
        if found is None or found.group(1, 2) != _machine():
            return None
        boot, namespace, user, pid, start, body, signature = found.groups()
        if not vouching.is_signed(text.rpartition("/")[0], signature, int(user)):
            return None
        return cls(boot, namespace, int(user), int(pid), start, body)

    @property
    def label(self) -> str | None:
        """Return the label, signed as this user; None if there is no secret, since an unsigned label is not trusted."""
        words = "/".join(map(str, (self.boot, self.namespace, self.user, self.pid, self.start, self.body)))
        signature = vouching.signature(words)
        return None if signature is None else f"{words}/{signature}"

    def is_dead(self) -> bool:
        """Return True only if this process has certainly ended. Ends the processes that it started and left behind."""
        if (self.boot, self.namespace) != _machine() or os.getuid() not in (0, self.user) or not self._has_ended():
            return False
        # only the signer's own processes may be ended: root also trusts labels signed by other users
        tags.end_all(self._left, 0.0, SWEEP)
        left, is_sure = self._left()
        return is_sure and not left

    def _left(self) -> tuple[tags.Found, bool]:
        """Return the living processes of its user that its body started, and whether the list is certainly complete."""
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
        # the process id may have been reused; a zombie counts as ended
        start = _start_of(self.pid)
        return bool(start) and (start != self.start or _state_of(self.pid) in ("Z", "X"))


def started_by(body: str) -> set[psutil.Process]:
    """Return the living processes, except this one, whose environment has the mark of a body."""
    found = set()
    for one in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if one.pid != os.getpid() and body in (marks_of(one) or ()) and is_alive(one):
                found.add(one)
    return found


def marks_of(one: psutil.Process) -> list[str] | None:
    """Return the ids of the bodies in which a process was started; None if it is unknown after `EXEC` seconds.

    During an exec a process has no environment yet; if it were taken for an unrelated process, it would outlive its
    body. Raises psutil.Error or OSError if the process is gone or belongs to another user.
    """
    if not _machine()[0]:  # a system without /proc
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
    """Return whether a process runs; a zombie does not."""
    try:
        return bool(one.is_running() and one.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def member_wait_limit(ticket: str) -> float:
    """Return the default time, in seconds, to wait for the members of a ticket's lease.

    The body of a task that a user marks success or failed renews until Airflow kills it, seconds later; only then does
    its registration begin to expire.
    """
    return 2 * LeaseTicket.parse(ticket).ttl + MEMBER_WAIT_EXTRA


def wait_for_members(
    lock: Lock, ticket: str, *, owner_filter: Callable[[str], bool], limit: float, log: logging.Logger
) -> bool:
    """Wait until no member that owner_filter selects is alive; return False if one still is after `limit` seconds."""
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
    """Return the real user id of a process; -1 if it is gone."""
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

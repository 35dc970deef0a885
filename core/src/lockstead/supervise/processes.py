"""Process trees: listing the descendants of a process, signalling them, and waiting for descriptors.

Imports nothing from lockstead: the watchdog and the reaper read this file in a bare interpreter.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

HAS_PROC = os.path.exists("/proc/self/stat")  # noqa: PTH110 - pathlib costs as much as the interpreter


def adopt_orphans(*, adopts: bool = True) -> bool:
    """Adopt every orphan below this process from now on, or stop doing so; True if the system supports it."""
    return _subreaper(36, int(adopts)) is not None  # PR_SET_CHILD_SUBREAPER


def adopts_orphans() -> bool:
    """Return whether this process adopts orphans."""
    return bool(_subreaper(37))  # PR_GET_CHILD_SUBREAPER


def _subreaper(option: int, value: int | None = None) -> int | None:
    """Call prctl with a value, or else return the value that it reports; None if the system does not support it."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        import ctypes

        found = ctypes.c_int()
        argument = ctypes.byref(found) if value is None else ctypes.c_ulong(value)
        failed = ctypes.CDLL(None).prctl(option, argument, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return None
    return None if failed else int(found.value)


def born_below(root: int) -> set[tuple[int, int]]:
    """Return the identities of root's descendants from the kernel's child lists; ten times faster than a scan.

    Scans if the kernel has no such lists. A process that ends meanwhile may hide its children.
    """
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):  # noqa: PTH110
        return {one.identity for one in below(root, all_processes())}
    found: set[tuple[int, int]] = set()
    waiting = [root]
    while waiting:
        for pid in children_of(waiting.pop()):
            with suppress(OSError, IndexError, ValueError):
                one = pid, int(stat_of(pid)[19])
                if one not in found:
                    found.add(one)
                    waiting.append(pid)
    return found


def children_of(pid: int) -> list[int]:
    """Return the pids of a process's children, zombies too; much cheaper than a full scan. Empty without support."""
    children: list[int] = []
    with suppress(OSError, ValueError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123
                children += map(int, file.read().split())
    return children


def ticks() -> int:
    """Return the time since boot in the ticks of `Process.start`; 0 except on Linux."""
    if not sys.platform.startswith("linux"):
        return 0
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK") // 1_000_000_000


class Process:
    """One process, as of one scan. start is in ticks since boot; identity is pid and start, which are not reused."""

    __slots__ = ("group", "is_alive", "parent", "pid", "start")

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        self.pid = pid
        self.parent, self.group = int(fields[1]), int(fields[2])
        # a process whose main thread has ended looks like a zombie while other threads still run
        self.is_alive = fields[0] not in (b"Z", b"X") or int(fields[17]) > 1
        self.start = int(fields[19])

    @property
    def identity(self) -> tuple[int, int]:
        """Return pid and start."""
        return self.pid, self.start


def stat_of(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state on; OSError if the process is gone or there is no /proc."""
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib costs as much as the interpreter
        return file.read().rpartition(b")")[2].split()


def all_processes() -> list[Process]:
    """Return every process of the machine, zombies too; none without /proc. Misses those started meanwhile."""
    seen = []
    for pid in _processes():
        with suppress(OSError, IndexError, ValueError):
            seen.append(Process(pid, stat_of(pid)))
    return seen


def below(root: int, seen: list[Process], apart: Collection[tuple[int, int]] = ()) -> list[Process]:
    """Return the descendants of root among the processes of a scan.

    apart: the identities of processes that are left out, with their descendants.
    """
    by_parent: dict[int, list[Process]] = {}
    for one in seen:
        by_parent.setdefault(one.parent, []).append(one)
    found: list[Process] = []
    waiting = [root]
    while waiting:
        children = [one for one in by_parent.pop(waiting.pop(), []) if one.identity not in apart]
        found += children
        waiting += [one.pid for one in children]
    return found


def descendants(root: int, beside: int = 0) -> list[Process]:
    """Return every live process below root except the pid `beside`, as of one scan."""
    return [one for one in below(root, all_processes()) if one.is_alive and one.pid != beside]


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    except OSError:
        return []


def send_all(root: int, group: int, number: int, beside: int = 0, *, leads: bool = False) -> None:
    """Signal every process below root, except the pid `beside`.

    The process group is signalled in one call, which a forking process cannot escape; but only while a member of it was
    seen (or leads: its leader is known to be unreaped), since the group's number may be reused afterwards.
    """
    found = descendants(root, beside)
    if leads or any(one.group == group for one in found) or (not HAS_PROC and group_lives(group)):
        send(os.killpg, group, number)
    for one in found:
        if one.group != group:
            send_to(one, number)


def send_to(one: Process, number: int) -> None:
    """Signal a process, unless its pid has been reused."""
    try:
        descriptor = os.pidfd_open(one.pid) if sys.platform == "linux" else -1
    except ProcessLookupError:
        return
    except OSError:
        descriptor = -1  # an old kernel
    try:
        with suppress(OSError, IndexError):
            if int(stat_of(one.pid)[19]) != one.start:
                return
            if descriptor < 0:
                os.kill(one.pid, number)
            elif sys.platform == "linux":
                signal.pidfd_send_signal(descriptor, number)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def send(by: Callable[[int, int], None], target: int, number: int) -> None:
    """Send a signal by os.kill or os.killpg; skip processes that are gone or belong to another user."""
    with suppress(ProcessLookupError, PermissionError):
        by(target, number)


def waits_for_a_stopped_child(pid: int) -> bool:
    """Return whether ^Z hit a process within vfork: it waits for a child that was stopped before its exec.

    Such a process cannot be stopped itself, so its parent is not notified and both hang. Returns False without /proc.
    """
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123
            status = dict(line.split(b":", 1) for line in file.read().splitlines() if b":" in line)
        pending = int(status[b"SigPnd"], 16) | int(status[b"ShdPnd"], 16)
        return status[b"State"].split()[0] == b"D" and bool(pending >> signal.SIGTSTP - 1 & 1)
    except (OSError, KeyError, ValueError, IndexError):
        return False


def readable(patience: float | None, *descriptors: int) -> set[int]:
    """Return the descriptors that are readable or closed, after at most `patience` seconds (None: no limit).

    Negative descriptors are left out.
    """
    watched = select.poll()
    for descriptor in descriptors:
        if descriptor >= 0:
            watched.register(descriptor, select.POLLIN)
    timeout = None if patience is None else max(0.0, patience) * 1000
    return {descriptor for descriptor, _event in watched.poll(timeout)}


def group_lives(group: int) -> bool:
    """Return whether a process group has a member."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

"""Which processes are below another one, and signals them all.

Imports nothing of lockstead: a watchdog and the process beside a worker read this file in a bare interpreter.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

HAS_PROC = os.path.exists("/proc/self/stat")  # noqa: PTH110 - pathlib costs as much as the interpreter


def adopt_orphans(*, adopts: bool = True) -> bool:
    """Make every orphan below this process its child from now on, or no longer; True if the system can."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        import ctypes

        prctl = ctypes.CDLL(None, use_errno=True).prctl
        return bool(prctl(36, ctypes.c_ulong(adopts), 0, 0, 0) == 0)  # PR_SET_CHILD_SUBREAPER
    except (ImportError, OSError, AttributeError):
        return False


def adopts_orphans() -> bool:
    """Return whether every orphan below this process becomes its child."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        import ctypes

        adopts = ctypes.c_int()
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        return bool(prctl(37, ctypes.byref(adopts), 0, 0, 0) == 0) and bool(adopts.value)  # PR_GET_CHILD_SUBREAPER
    except (ImportError, OSError, AttributeError):
        return False


def children() -> list[int]:
    """Return the children of this very process (of one thread), zombies too; much cheaper than a look at everybody."""
    own = os.getpid()
    try:
        with open(f"/proc/{own}/task/{own}/children", "rb") as file:  # noqa: PTH123
            return [int(pid) for pid in file.read().split()]
    except (OSError, ValueError):
        return []


def born_below(root: int) -> set[tuple[int, int]]:
    """Return those below root by number and start: by their parents' own lists, at a tenth of what a look costs.

    Where the kernel keeps no such lists: by a look. One that ends meanwhile may hide another one.
    """
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):  # noqa: PTH110
        return {(one.pid, one.start) for one in below(root, look())}
    found: set[tuple[int, int]] = set()
    waiting = [root]
    while waiting:
        for pid in _children_of(waiting.pop()):
            with suppress(OSError, IndexError, ValueError):
                one = pid, int(stat_of(pid)[19])
                if one not in found:
                    found.add(one)
                    waiting.append(pid)
    return found


def _children_of(pid: int) -> list[int]:
    """Return the children of all threads of a process."""
    heirs: list[int] = []
    with suppress(OSError, ValueError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123
                heirs += map(int, file.read().split())
    return heirs


def ticks() -> int:
    """Return the time since the boot in the ticks of `Process.start`; 0 where nobody counts them."""
    if not sys.platform.startswith("linux"):
        return 0
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK") // 1_000_000_000


class Process:
    """One process as one look saw it. start is in ticks since the boot: with the number it names a process for good."""

    __slots__ = ("group", "is_alive", "parent", "pid", "start")

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        self.pid = pid
        self.parent, self.group = int(fields[1]), int(fields[2])
        # A process whose first thread has ended looks like a zombie and runs on: its threads tell.
        self.is_alive = fields[0] not in (b"Z", b"X") or int(fields[17]) > 1
        self.start = int(fields[19])


def stat_of(pid: int) -> list[bytes]:
    """Return what the kernel says of a process from its state on; OSError if it is gone or there is no /proc."""
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib costs as much as the interpreter
        return file.read().rpartition(b")")[2].split()


def look() -> list[Process]:
    """Return every process of the machine, zombies too; nothing where there is no /proc.

    One look: what is born meanwhile is not in it.
    """
    seen = []
    for pid in _processes():
        with suppress(OSError, IndexError, ValueError):
            seen.append(Process(pid, stat_of(pid)))
    return seen


def below(root: int, seen: list[Process], apart: Collection[tuple[int, int]] = ()) -> list[Process]:
    """Return those of a look that are below root, children and theirs.

    apart: those, by number and start, that are left out with all that is below them.
    """
    children_of: dict[int, list[Process]] = {}
    for one in seen:
        children_of.setdefault(one.parent, []).append(one)
    found: list[Process] = []
    waiting = [root]
    while waiting:
        heirs = [one for one in children_of.pop(waiting.pop(), []) if (one.pid, one.start) not in apart]
        found += heirs
        waiting += [one.pid for one in heirs]
    return found


def descendants(root: int, beside: int = 0) -> list[Process]:
    """Return every living process below root, but for `beside`; as of one look."""
    return [one for one in below(root, look()) if one.is_alive and one.pid != beside]


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    except OSError:
        return []


def send_all(root: int, group: int, number: int, beside: int = 0, *, leads: bool = False) -> None:
    """Signal every process below root.

    The group gets it in one call, which no fork outruns; it is called upon only while a member was seen (or leads:
    its leader is known to be unreaped), since its number may go to somebody else afterwards.
    """
    found = descendants(root, beside)
    if leads or any(one.group == group for one in found) or (not HAS_PROC and group_lives(group)):
        send(os.killpg, group, number)
    for one in found:
        if one.group != group:
            send_to(one, number)


def send_to(one: Process, number: int) -> None:
    """Signal a process, and nobody who was given its number since."""
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
    """Send a signal by os.kill or os.killpg. Whoever is gone, or another user's, is seen by who asks who is left."""
    with suppress(ProcessLookupError, PermissionError):
        by(target, number)


def waits_for_a_stopped_child(pid: int) -> bool:
    """Return whether ^Z hit a process within vfork: it waits for a child that was stopped before it could exec.

    It cannot be stopped then, so nobody is told of it, and both stand still. False where there is no /proc.
    """
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123
            said = dict(line.split(b":", 1) for line in file.read().splitlines() if b":" in line)
        pending = int(said[b"SigPnd"], 16) | int(said[b"ShdPnd"], 16)
        return said[b"State"].split()[0] == b"D" and bool(pending >> signal.SIGTSTP - 1 & 1)
    except (OSError, KeyError, ValueError, IndexError):
        return False


def group_lives(group: int) -> bool:
    """Return whether a process group has a member."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

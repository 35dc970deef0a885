"""Decides which processes are below another one, and signals them all.

Imports nothing of lockstead: the watchdog reads this file in a bare interpreter.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

HAS_PROC = os.path.exists("/proc/self/stat")  # noqa: PTH110 - pathlib costs as much as the interpreter


def adopt_orphans() -> bool:
    """Make every orphan below this process its child, where the system can; True if it can."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        import ctypes

        prctl = ctypes.CDLL(None, use_errno=True).prctl
        return bool(prctl(36, ctypes.c_ulong(1), 0, 0, 0) == 0)  # PR_SET_CHILD_SUBREAPER
    except (ImportError, OSError, AttributeError):
        return False


def children() -> list[int]:
    """Give the children of this very process (of one thread), zombies too; much cheaper than a look at everybody."""
    own = os.getpid()
    try:
        with open(f"/proc/{own}/task/{own}/children", "rb") as file:  # noqa: PTH123
            return [int(pid) for pid in file.read().split()]
    except (OSError, ValueError):
        return []


def descendants(root: int, beside: int = 0) -> dict[int, int]:
    """Give every living process below root with its process group, but for `beside`; nothing where there is no /proc.

    One look: what is born meanwhile is not in it.
    """
    below: dict[int, list[int]] = {}
    groups: dict[int, int] = {}
    living: set[int] = set()
    for pid in _processes():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib costs as much as the interpreter
                fields = file.read().rpartition(b")")[2].split()
            parent, groups[pid] = int(fields[1]), int(fields[2])
            # A process whose first thread has ended looks like a zombie and runs on: its threads tell.
            if fields[0] not in (b"Z", b"X") or int(fields[17]) > 1:
                living.add(pid)
        except (OSError, IndexError, ValueError):
            continue
        below.setdefault(parent, []).append(pid)
    found: dict[int, int] = {}
    waiting = [root]
    while waiting:
        for pid in below.get(waiting.pop(), ()):
            waiting.append(pid)
            if pid in living and pid != beside:
                found[pid] = groups[pid]
    return found


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
    if leads or group in found.values() or (not HAS_PROC and group_lives(group)):
        send(os.killpg, group, number)
    for pid, its_group in found.items():
        if its_group != group:
            send(os.kill, pid, number)


def send(by: Callable[[int, int], None], target: int, number: int) -> None:
    """Send a signal by os.kill or os.killpg. Whoever is gone, or another user's, is seen by who asks who is left."""
    with suppress(ProcessLookupError, PermissionError):
        by(target, number)


def waits_for_a_stopped_child(pid: int) -> bool:
    """Tell whether ^Z hit a process within vfork: it waits for a child that was stopped before it could exec.

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
    """Tell whether a process group has a member."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

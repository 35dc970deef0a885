"""Which processes a body started, by the mark that they carry, and ends them.

Whatever a body executes inherits an environment variable that names the bodies around it; whatever it forks and does
not execute inherits an open file of no content that is named alike. Both outlive the parent. Who clears its
environment and closes what it inherited is found by parentage alone, and by nobody once the worker is gone.
Imports nothing of lockstead but its neighbour: the process beside a worker reads this file in a bare interpreter.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING or __package__:
    from lockstead.supervise.processes import Process, look, send_to, stat_of
else:
    from processes import Process, look, send_to, stat_of

if TYPE_CHECKING:
    from collections.abc import Callable

MARK = "LOCKSTEAD_BODY"
"""The environment variable; it names the bodies around a process by ':', the innermost last."""

PASS_EVERY = 0.02
"""Seconds between two looks at who is left: what was born between a look and its signal is met by the next one."""

END_WITHIN = 10.0
"""Seconds after the first SIGKILL for which those who are left are killed again and again."""

Found = dict[tuple[int, int], Process]
"""Processes by number and start, which name one for good."""


def new_mark() -> str:
    """Return an id that no other body has."""
    return os.urandom(16).hex()


def file_of(body: str) -> int:
    """Open the file whose name marks those that are forked; -1 where the system has no such files."""
    if not hasattr(os, "memfd_create"):
        return -1
    try:
        return os.memfd_create(f"{MARK}={body}", os.MFD_CLOEXEC)
    except OSError:
        return -1


def named(one: Process) -> tuple[int, int]:
    """Return what names a process for good."""
    return one.pid, one.start


def marked(bodies: frozenset[str]) -> tuple[Found, bool]:
    """Return the living processes that carry a mark, this one left out, and whether all others are known not to.

    Left out are also those that end by themselves with the last that uses them: see `is_spared`.
    """
    found: Found = {}
    is_sure = True
    own = os.getpid()
    for one in look():
        if one.pid == own or not one.is_alive:
            continue
        said = carried(one.pid)
        if said is None:
            # amid an exec a process shows no environment, though it will have one
            is_sure = False
            continue
        is_one = not bodies.isdisjoint(said) or not bodies.isdisjoint(_files(one.pid))
        if is_one and not is_spared(one.pid):
            found[named(one)] = one
    return found, is_sure


def carried(pid: int) -> list[str] | None:
    """Return the bodies that a process's environment names; None if it cannot be seen at this instant."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            environ = file.read()
        if not environ and not has_no_environment(pid):
            return None
    except OSError:  # gone, or another user's
        return []
    wanted = f"{MARK}=".encode()
    said = [piece[len(wanted) :] for piece in environ.split(b"\0") if piece.startswith(wanted)]
    return os.fsdecode(said[-1]).split(":") if said else []


def has_no_environment(pid: int) -> bool:
    """Whether a process that shows no environment has none: it has no memory any more, or was given an empty one.

    Amid an exec it has memory, in which the kernel puts the environment and after that says where its program begins.
    """
    said = stat_of(pid)
    if len(said) < 49 or said[20] == b"0":
        return True
    program, began, ended = said[23], said[47], said[48]
    return program != b"0" and began == ended != b"0"


def _files(pid: int) -> list[str]:
    """Return the bodies that a process's open files name, if it may be one that was forked of a worker.

    Who was not executed runs the worker's program, which is this one's too.
    """
    found: list[str] = []
    if _program(pid) != _program(os.getpid()):
        return found
    wanted = f"/memfd:{MARK}="
    folder = f"/proc/{pid}/fd"
    try:
        for name in os.listdir(folder):  # noqa: PTH208
            with suppress(OSError):
                target = os.readlink(f"{folder}/{name}")  # noqa: PTH115
                if target.startswith(wanted):
                    found.append(target[len(wanted) :].partition(" ")[0])
    except OSError:
        pass
    return found


def _program(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115
    except OSError:
        return ""


def is_spared(pid: int) -> bool:
    """Return whether a process only serves others and ends with the last of them: it has to clean up after them.

    These are the process beside a worker, and multiprocessing's, which removes the semaphores of those that died.
    """
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
            words = file.read().split(b"\0")
    except OSError:
        return False
    begins, ends = b"from multiprocessing.resource_tracker import main", b"/lockstead/supervise/reaper.py"
    return any(word.startswith(begins) or word.endswith(ends) for word in words[:12])


def end_all(seen: Callable[[], tuple[Found, bool]], grace: float, within: float = END_WITHIN) -> Found:
    """End whoever is seen, and whoever is seen then: SIGTERM, SIGKILL after `grace` seconds, until none is left.

    seen: gives those who have to end, and whether it is sure that these are all. Gives those who live on `within`
    seconds after the first SIGKILL.
    """
    kill_at = time.monotonic() + grace
    give_up_at = kill_at + within
    told: set[tuple[int, int]] = set()
    none_left = 0
    while True:
        found, is_sure = seen()
        # one look could miss who was started while it was taken, by one that has ended since
        none_left = none_left + 1 if is_sure and not found else 0
        at = time.monotonic()
        if none_left == 2 or at >= give_up_at:
            return found
        for name, one in found.items():
            if at >= kill_at:
                send_to(one, signal.SIGKILL)
            elif name not in told:
                send_to(one, signal.SIGTERM)
                # a stopped process would meet SIGTERM only when it is continued
                send_to(one, signal.SIGCONT)
        told.update(found)
        if not none_left:
            time.sleep(PASS_EVERY)

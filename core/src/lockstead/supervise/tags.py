"""Finding and ending the processes that supervised task code started, by a tag that they inherit.

A program that the task executes inherits an environment variable with the tags of all tasks around it; a process that
the task only forks inherits an empty open file with the tag in its name. Both outlive the parent process. A process
that clears its environment and closes inherited files is found only by its parent, and not at all once the worker is
gone.
Imports only its neighbour from lockstead: the reaper reads this file in a bare interpreter.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING or __package__:
    from lockstead.supervise.processes import Process, all_processes, send_to, stat_of
else:
    from processes import Process, all_processes, send_to, stat_of

if TYPE_CHECKING:
    from collections.abc import Callable

TAG_VARIABLE = "LOCKSTEAD_TASK"
"""The environment variable: the tags of the tasks around a process, separated by ':', the innermost last."""

PASS_EVERY = 0.02
"""Seconds between two scans: a process that starts between a scan and its signals is found by the next scan."""

END_WITHIN = 10.0
"""Seconds after the first SIGKILL during which remaining processes are killed repeatedly."""

Found = dict[tuple[int, int], Process]
"""Processes by identity."""


def new_tag() -> str:
    """Return a unique tag."""
    return os.urandom(16).hex()


def file_of(tag: str) -> int:
    """Open the file that tags forked processes by its name; -1 if the system has no such files."""
    if not hasattr(os, "memfd_create"):
        return -1
    try:
        return os.memfd_create(f"{TAG_VARIABLE}={tag}", os.MFD_CLOEXEC)
    except OSError:
        return -1


def tagged(wanted: frozenset[str]) -> tuple[Found, bool]:
    """Return the live tagged processes except this one, and whether all others are known to be untagged.

    Exempt processes are left out: see `is_exempt`.
    """
    found: Found = {}
    is_sure = True
    own = os.getpid()
    for one in all_processes():
        if one.pid == own or not one.is_alive:
            continue
        tags = tags_of(one.pid)
        if tags is None:
            # during an exec a process shows no environment, though it will have one
            is_sure = False
            continue
        is_one = not wanted.isdisjoint(tags) or not wanted.isdisjoint(_files(one.pid))
        if is_one and not is_exempt(one.pid):
            found[one.identity] = one
    return found, is_sure


def tags_of(pid: int) -> list[str] | None:
    """Return the tags in a process's environment; None if it cannot be read at this instant."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            environ = file.read()
        if not environ and not has_no_environment(pid):
            return None
    except OSError:  # gone, or another user's
        return []
    wanted = f"{TAG_VARIABLE}=".encode()
    tags = [piece[len(wanted) :] for piece in environ.split(b"\0") if piece.startswith(wanted)]
    return os.fsdecode(tags[-1]).split(":") if tags else []


def has_no_environment(pid: int) -> bool:
    """Return whether a process that shows no environment has none: its memory is gone, or it was started with none.

    During an exec it has memory: the kernel writes the environment first and then sets the start of the program.
    """
    fields = stat_of(pid)
    if len(fields) < 49 or fields[20] == b"0":
        return True
    program, began, ended = fields[23], fields[47], fields[48]
    return program != b"0" and began == ended != b"0"


def _files(pid: int) -> list[str]:
    """Return the tags in the names of a process's open files, if it may have been forked by a worker.

    A process that was forked and has executed nothing runs the worker's program, which is also this process's.
    """
    found: list[str] = []
    if _program(pid) != _program(os.getpid()):
        return found
    wanted = f"/memfd:{TAG_VARIABLE}="
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


def is_exempt(pid: int) -> bool:
    """Return whether a process only serves others, ends with the last of them, and must clean up after them.

    These are the reaper, and multiprocessing's resource tracker, which removes the semaphores of dead processes.
    """
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
            words = file.read().split(b"\0")
    except OSError:
        return False
    begins, ends = b"from multiprocessing.resource_tracker import main", b"/lockstead/supervise/reaper.py"
    return any(word.startswith(begins) or word.endswith(ends) for word in words[:12])


def end_all(seen: Callable[[], tuple[Found, bool]], grace: float, within: float = END_WITHIN) -> Found:
    """End the processes that `seen` returns, repeatedly, until none is left: SIGTERM, SIGKILL after `grace` seconds.

    seen: returns the processes to end, and whether these are certainly all. Returns the processes that are still alive
    `within` seconds after the first SIGKILL.
    """
    kill_at = time.monotonic() + grace
    give_up_at = kill_at + within
    terminated: set[tuple[int, int]] = set()
    none_left = 0
    while True:
        found, is_sure = seen()
        # one scan can miss a process that was started during it, by a process that has ended since
        none_left = none_left + 1 if is_sure and not found else 0
        at = time.monotonic()
        if none_left == 2 or at >= give_up_at:
            return found
        for name, one in found.items():
            if at >= kill_at:
                send_to(one, signal.SIGKILL)
            elif name not in terminated:
                send_to(one, signal.SIGTERM)
                # a stopped process handles SIGTERM only when it is continued
                send_to(one, signal.SIGCONT)
        terminated.update(found)
        if not none_left:
            time.sleep(PASS_EVERY)

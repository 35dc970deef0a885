"""When a worker was killed, and ends what its bodies had started: a process of its own, beside the worker.

It reads from a pipe which bodies run, and waits for the worker's end: bodies that were said to run and not to have
ended were left in the middle then, and what carries their mark is ended. Where none runs there is nothing to do. It
looks at nobody while the worker lives. Imports nothing but its neighbours: one waits beside each worker.
"""

from __future__ import annotations

import os
import select
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING or __name__ != "__main__":
    from lockstead.supervise.marks import end_all, marked
    from lockstead.supervise.processes import Process, look, send_to, stat_of
else:
    from marks import end_all, marked
    from processes import Process, look, send_to, stat_of

GRACE = 1.0
"""Seconds from SIGTERM to SIGKILL. The lease runs out meanwhile, and nobody keeps it."""

END_WITHIN = 60.0
"""Seconds for which those that do not end are killed again."""

LOOK_EVERY = 0.2
"""Seconds between two looks at the worker, on a kernel that cannot tell of its end."""

REPLACES = "replaces"
"""Said to one that is started in the place of another one of the same worker."""

IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Bodies:
    """Which bodies of the worker run, as it says on a pipe, by lines: + for one that began, - for one that ended."""

    def __init__(self, channel: int) -> None:
        self.channel = channel
        self.running: set[str] = set()
        self._rest = b""
        os.set_blocking(channel, False)

    def hear(self) -> bool:
        """Take in what was said; False if nothing will be said any more."""
        try:
            heard = os.read(self.channel, 65536)
        except BlockingIOError:
            return True
        *lines, self._rest = (self._rest + heard).split(b"\n")
        for line in lines:
            body = os.fsdecode(line[1:])
            if line[:1] == b"+":
                self.running.add(body)
            else:
                self.running.discard(body)
        return bool(heard)


def wait_for_the_end(bodies: Bodies, worker: int, start: int) -> None:
    """Wait until the worker's process has ended, hearing what it says.

    The pipe's end proves nothing: a body may have closed all files that it found, or somebody may still have it open.
    """
    try:
        lifeline = os.pidfd_open(worker) if sys.platform == "linux" else -1
    except ProcessLookupError:
        return
    except OSError:
        lifeline = -1  # an old kernel
    is_open = True
    while _lives(worker, start):
        watched = select.poll()
        for descriptor in (lifeline, bodies.channel if is_open else -1):
            if descriptor >= 0:
                watched.register(descriptor, select.POLLIN)
        # with a lifeline there is nothing to look at in between
        patience = None if lifeline >= 0 else LOOK_EVERY * 1000
        if any(descriptor == bodies.channel for descriptor, _ in watched.poll(patience)):
            is_open = bodies.hear()
    while is_open and bodies.hear() and _is_readable(bodies.channel):
        pass


def _lives(pid: int, start: int) -> bool:
    try:
        one = Process(pid, stat_of(pid))
    except (OSError, IndexError, ValueError):
        return False
    return one.is_alive and one.start == start


def _is_readable(descriptor: int) -> bool:
    watched = select.poll()
    watched.register(descriptor, select.POLLIN)
    return bool(watched.poll(0))


def end_others(worker: int, start: int) -> None:
    """End those that stand beside the same worker, and hear no more from it."""
    wanted = [os.fsencode(os.path.abspath(__file__)), b"%d" % worker, b"%d" % start]  # noqa: PTH100
    for one in look():
        try:
            with open(f"/proc/{one.pid}/cmdline", "rb") as file:  # noqa: PTH123
                is_one = file.read().split(b"\0")[4:7] == wanted
        except OSError:
            continue
        if is_one and one.pid != os.getpid():
            send_to(one, signal.SIGKILL)


def main(worker: int, start: int, *, replaces: bool = False) -> None:
    """Wait beside the worker of that number and start, whose pipe is the standard input."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    # whoever started us waits for our parent alone, and has no child for as long as it lives
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    bodies = Bodies(0)
    if replaces:
        # not before it is known here what runs: it is said at once
        while not bodies.running and bodies.hear() and _lives(worker, start):
            select.select([0], [], [], LOOK_EVERY)
        end_others(worker, start)
    wait_for_the_end(bodies, worker, start)
    if bodies.running:
        running = frozenset(bodies.running)
        end_all(lambda: marked(running), GRACE, END_WITHIN)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), replaces=REPLACES in sys.argv[3:])

"""The reaper: a separate process that ends what a worker's tasks had started, if the worker is killed.

It reads from a pipe which tasks run, and waits for the worker's end. Tasks that have not ended by then were killed with
the worker, so all processes with their tags are ended. It scans no processes while the worker is alive. Imports only
its neighbours, since one runs for each worker.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING or __name__ != "__main__":
    from lockstead.supervise.processes import Process, all_processes, readable, send_to, stat_of
    from lockstead.supervise.tags import end_all, tagged
else:
    from processes import Process, all_processes, readable, send_to, stat_of
    from tags import end_all, tagged

GRACE = 1.0
"""Seconds from SIGTERM to SIGKILL. The lease is not renewed meanwhile."""

END_WITHIN = 60.0
"""Seconds for which remaining processes are killed repeatedly."""

LOOK_EVERY = 0.2
"""Seconds between two checks of the worker, on a kernel without pidfds."""

REPLACES = "replaces"
"""Argument of a reaper that replaces an earlier one of the same worker."""

IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class RunningTasks:
    """The tags of the worker's running tasks, from lines on a pipe: + for a task that began, - for one that ended."""

    def __init__(self, channel: int) -> None:
        self.channel = channel
        self.running: set[str] = set()
        self._rest = b""
        os.set_blocking(channel, False)

    def receive(self) -> bool:
        """Read what the worker sent; False at the end of the pipe."""
        try:
            received = os.read(self.channel, 65536)
        except BlockingIOError:
            return True
        *lines, self._rest = (self._rest + received).split(b"\n")
        for line in lines:
            tag = os.fsdecode(line[1:])
            if line[:1] == b"+":
                self.running.add(tag)
            else:
                self.running.discard(tag)
        return bool(received)


def wait_for_the_end(tasks: RunningTasks, worker: int, start: int) -> None:
    """Wait until the worker's process has ended, and read its messages.

    The end of the pipe proves nothing: a task may have closed it, or another process may hold it open.
    """
    try:
        pidfd = os.pidfd_open(worker) if sys.platform == "linux" else -1
    except ProcessLookupError:
        return
    except OSError:
        pidfd = -1  # an old kernel
    is_open = True
    while _lives(worker, start):
        # a pidfd reports the worker's end, so there is nothing to check in between
        patience = None if pidfd >= 0 else LOOK_EVERY
        if tasks.channel in readable(patience, pidfd, tasks.channel if is_open else -1):
            is_open = tasks.receive()
    while is_open and tasks.receive() and readable(0.0, tasks.channel):
        pass


def _lives(pid: int, start: int) -> bool:
    try:
        one = Process(pid, stat_of(pid))
    except (OSError, IndexError, ValueError):
        return False
    return one.is_alive and one.start == start


def end_other_reapers(worker: int, start: int) -> None:
    """Kill earlier reapers of the same worker, which no longer receive its messages."""
    wanted = [os.fsencode(os.path.abspath(__file__)), b"%d" % worker, b"%d" % start]  # noqa: PTH100
    for one in all_processes():
        try:
            with open(f"/proc/{one.pid}/cmdline", "rb") as file:  # noqa: PTH123
                is_one = file.read().split(b"\0")[4:7] == wanted
        except OSError:
            continue
        if is_one and one.pid != os.getpid():
            send_to(one, signal.SIGKILL)


def main(worker: int, start: int, *, replaces: bool = False) -> None:
    """Reap for the worker with this pid and start time, whose pipe is the standard input."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    # the worker waits for the intermediate process only, so the reaper is not its child
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    tasks = RunningTasks(0)
    if replaces:
        # wait until the running tasks are known; the worker sends them at once
        while not tasks.running and tasks.receive() and _lives(worker, start):
            readable(LOOK_EVERY, 0)
        end_other_reapers(worker, start)
    wait_for_the_end(tasks, worker, start)
    if tasks.running:
        running = frozenset(tasks.running)
        end_all(lambda: tagged(running), GRACE, END_WITHIN)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), replaces=REPLACES in sys.argv[3:])

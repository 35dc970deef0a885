"""The watchdog of `lockstead run`: a separate process that ends the command and its descendants before the deadline.

`lockstead run` starts this file as a script in a bare interpreter, before it asks for the lock. The watchdog starts the
command, so every process of the section is below it, and on Linux it adopts those whose parent dies. It receives each
deadline over a socket and acts on it alone, even if `run` is killed, stopped or starved. Imports little besides its
neighbours, since one runs for each section.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING or __name__ != "__main__":
    from lockstead.supervise.messages import kill_time, latest_stop, now, packed, unpacked
    from lockstead.supervise.processes import (
        adopt_orphans,
        children_of,
        descendants,
        group_lives,
        readable,
        send,
        send_all,
        waits_for_a_stopped_child,
    )
else:
    from messages import kill_time, latest_stop, now, packed, unpacked
    from processes import (
        adopt_orphans,
        children_of,
        descendants,
        group_lives,
        readable,
        send,
        send_all,
        waits_for_a_stopped_child,
    )

SLEEP_MAX = 0.5
"""Seconds. A poll's timer does not run in suspend, but the lease expires, so no poll is longer."""
LINGER = 0.2
"""Seconds that processes left behind by the command have to exit on their own, before they are stopped."""
PASS_EVERY = 0.02
"""Seconds between two rounds of SIGKILL. A process that starts between a scan and its signals is in the next round."""
QUICK_PASSES = 500
STUCK_AFTER = 3.0
"""Seconds after the first SIGKILL until surviving processes are reported."""

IGNORED = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2),
    *(signal.SIGALRM, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
)
BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that the interpreter ignores at its start; the command must not inherit that."""
NEVER = float("inf")


class Watchdog:
    """The watchdog of one command: starts it, and ends all processes below itself in time.

    channel is the socket to `lockstead run`.
    """

    def __init__(self, channel: int, path: str, arguments: list[str]) -> None:
        self.channel = channel
        self.path = path
        self.arguments = arguments
        self.buffer = b""
        self.orphaned = False
        self.pid = 0
        self.failure = -1
        self.ended_at = NEVER
        self.alone = False
        self.deadline = NEVER
        self.grace = 0.0
        self.reserve = 0.0
        self.terminal = False
        self.hangs_since = NEVER
        self.stopping_at = NEVER
        self.killed_at = NEVER
        self.stuck = False
        self.adopts = adopt_orphans()
        self.changed = [number for number in IGNORED if signal.getsignal(number) is not signal.SIG_IGN]
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)
        self.wakes, self.awake = os.pipe()
        for descriptor in (self.wakes, self.awake, channel):
            os.set_blocking(descriptor, False)
        os.set_inheritable(channel, False)
        signal.set_wakeup_fd(self.awake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        """Supervise until the section is over, or until `run` is gone before the start."""
        self.report("ready", int(self.adopts))
        while not self.is_over():
            ready = readable(self.patience(), self.wakes, self.failure, -1 if self.orphaned else self.channel)
            if self.wakes in ready:
                os.read(self.wakes, 4096)
            if self.failure in ready:
                self.read_failure()
            if self.channel in ready:
                self.receive()
            if self.pid:
                self.reap()
                self.check_vfork_pause(now())
                self.act(now())

    def is_over(self) -> bool:
        """Return whether no process of the section is left; if so, report it to `run`."""
        if not self.pid:
            return self.orphaned
        if self.ended_at == NEVER or not self.alone:
            return False
        if not self.adopts and group_lives(self.pid):
            return False
        self.report("gone")
        return True

    def patience(self) -> float | None:
        """Return the seconds until something is due; None before the command was started."""
        if not self.pid:
            return None
        if self.killed_at != NEVER:
            return SLEEP_MAX if self.stuck else PASS_EVERY
        due = min(self.due_at(), self.ended_at + LINGER)
        if self.stopping_at != NEVER:
            due = kill_time(self.stopping_at, self.deadline, self.grace, self.reserve)
        longest = PASS_EVERY if self.ended_at != NEVER and not self.adopts else SLEEP_MAX
        return min(due - now(), longest)

    def due_at(self) -> float:
        """Return the instant at which stopping starts without a request."""
        return latest_stop(self.deadline, self.grace, self.reserve)

    # --- messages ----------------------------------------------------------------------------------------------------

    def report(self, *fields: object) -> None:
        """Send a message to `run`, if it is still there."""
        if self.orphaned:
            return
        with suppress(OSError):  # closed, or full because `run` is stopped: then `run` notices on its own
            os.write(self.channel, packed(*fields))

    def receive(self) -> None:
        """Read messages from `run`; stop the command if the connection is closed."""
        try:
            received = os.read(self.channel, 65536)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self.orphaned = True
            if self.pid:
                self.stop("lockstead run is gone")
            return
        *lines, self.buffer = (self.buffer + received).split(b"\n")
        for line in lines:
            word, *fields = unpacked(line)
            if word == "start":
                self.start(*map(float, fields[:3]), terminal=fields[3] == "1", exports=fields[4:])
            elif word == "deadline":
                self.deadline = max(self.deadline, float(fields[0]))
            elif word == "signal" and self.pid and self.ended_at == NEVER:
                send(os.killpg, self.pid, int(fields[0]))
            elif word == "stop" and self.pid:
                self.stop("lost")

    # --- the command -------------------------------------------------------------------------------------------------

    def start(self, deadline: float, grace: float, reserve: float, *, terminal: bool, exports: list[str]) -> None:
        """Start the command in its own process group. exports: names and values; an empty value unsets."""
        self.deadline, self.grace, self.reserve = deadline, grace, reserve
        if now() >= self.due_at():
            self.report("late")
            return
        environment = dict(os.environ)
        for name, value in zip(exports[::2], exports[1::2], strict=True):
            environment.pop(name, None)
            if value:
                environment[name] = value
        self.terminal = terminal
        self.failure, failed = os.pipe()
        # a signal that `run` passes on while the child still ignores it would be lost; a blocked one is not
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, self.changed)
        self.pid = os.fork()
        if self.pid == 0:
            self.exec_command(failed, environment, mask, terminal=terminal)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(failed)
        with suppress(OSError):  # the child has done so itself and already called exec
            os.setpgid(self.pid, self.pid)
        self.report("started", self.pid)
        self.close_inherited()

    def close_inherited(self) -> None:
        """Close inherited files: a pipe or lock file that the command closes must not stay open here."""
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        below = 2
        for descriptor in sorted((self.channel, self.wakes, self.awake, self.failure)):
            os.closerange(below + 1, descriptor)
            below = descriptor
        os.closerange(below + 1, os.sysconf("SC_OPEN_MAX"))

    def exec_command(self, failed: int, environment: dict[str, str], mask: set[int], *, terminal: bool) -> None:
        """Execute the command in the forked child; never returns."""
        try:
            os.setpgid(0, 0)
            if terminal:
                os.tcsetpgrp(0, os.getpid())
            signal.set_wakeup_fd(-1)
            for number in (*self.changed, *BY_PYTHON, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.execve(self.path, self.arguments, environment)  # noqa: S606 - no shell is wanted
        except OSError as error:
            os.write(failed, str(error.errno).encode())
        finally:
            os._exit(127)

    def read_failure(self) -> None:
        """Read whether the command could be executed."""
        failed = os.read(self.failure, 64)
        os.close(self.failure)
        self.failure = -1
        if failed:
            self.report("failed", int(failed))

    def reap(self) -> None:
        """Note which child processes have ended, stopped or continued; alone: no child is left."""
        self.alone = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                self.alone = True
                return
            if pid == 0:
                return
            if pid != self.pid:
                continue
            if os.WIFSTOPPED(status):
                self.report("paused", os.WSTOPSIG(status))
            elif os.WIFCONTINUED(status):
                self.report("resumed")
            else:
                if self.failure >= 0:
                    self.read_failure()
                self.ended_at = now()
                self.report("ended", status)

    def check_vfork_pause(self, at: float) -> None:
        """Report a ^Z during vfork, which waitpid does not; one observation may be a stop that is still under way."""
        if not self.terminal or self.ended_at != NEVER or not waits_for_a_stopped_child(self.pid):
            self.hangs_since = NEVER
        elif self.hangs_since == NEVER:
            self.hangs_since = at
        elif at >= self.hangs_since + SLEEP_MAX / 2:
            self.hangs_since = NEVER
            self.report("paused", int(signal.SIGTSTP))

    # --- stopping ----------------------------------------------------------------------------------------------------

    def act(self, at: float) -> None:
        """Carry out the actions that are due at this instant."""
        if self.stopping_at == NEVER:
            if at >= self.due_at():
                self.stop("due")
            elif at >= self.ended_at + LINGER and not self.alone:
                self.report("left", max(1, len(descendants(os.getpid()))))
                self.stop("left")
        if self.stopping_at == NEVER:
            return
        if self.killed_at == NEVER:
            if at < kill_time(self.stopping_at, self.deadline, self.grace, self.reserve):
                return
            self.killed_at = at
        self.send_all(signal.SIGKILL)
        self.kill_children()
        if not self.stuck and at >= self.killed_at + STUCK_AFTER:
            self.stuck = True
            self.report("stuck")

    def kill_children(self) -> None:
        """Kill this process's children repeatedly.

        A process that forks and exits all the time escapes every scan. But this process adopts each orphan at once, so
        the signal reaches it here.
        """
        for _ in range(QUICK_PASSES):
            found = children_of(os.getpid())
            if not found:
                return
            for pid in found:
                send(os.kill, pid, signal.SIGKILL)
            self.reap()

    def stop(self, why: str) -> None:
        """Send SIGTERM to all processes below; SIGKILL follows when the grace is over."""
        if self.stopping_at != NEVER:
            return
        self.stopping_at = now()
        self.report("stopping", why)
        # after a pause of this process there may be no time for a grace; then processes stopped with it stay stopped
        if self.stopping_at < kill_time(self.stopping_at, self.deadline, self.grace, self.reserve):
            self.send_all(signal.SIGTERM)
            # a stopped process handles SIGTERM only when it is continued
            self.send_all(signal.SIGCONT)
        if self.orphaned:
            _complain(f"lockstead: {why}; stopping its command, the lock is left to expire\n")

    def send_all(self, number: int) -> None:
        """Signal all processes below this one."""
        send_all(os.getpid(), self.pid, number, leads=self.ended_at == NEVER)


def _complain(line: str) -> None:
    # a blocked terminal, or a pipe without a reader, must not block the watchdog
    writable = select.poll()
    writable.register(2, select.POLLOUT)
    with suppress(OSError):
        if any(event & select.POLLOUT for _, event in writable.poll(0)):
            os.write(2, line.encode())


if __name__ == "__main__":
    Watchdog(int(sys.argv[1]), sys.argv[2], sys.argv[3:]).run()

"""When the processes of a section must be dead, and sees to it: a process of its own, the command's parent.

`lockstead run` starts this file as a script in a bare interpreter, before it asks for the lock. The watchdog starts the
command, so that every process of the section is below it and, on Linux, comes back to it when its own parent dies. It
is told each deadline over a socket and needs nobody to act on it: a `run` that is killed, stopped or starved changes
nothing. Imports nothing but its neighbours, and little else: one waits beside every section.
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
        children,
        descendants,
        group_lives,
        send,
        send_all,
        waits_for_a_stopped_child,
    )
else:
    from messages import kill_time, latest_stop, now, packed, unpacked
    from processes import (
        adopt_orphans,
        children,
        descendants,
        group_lives,
        send,
        send_all,
        waits_for_a_stopped_child,
    )

SLEEP_MAX = 0.5
"""Seconds. A poll's timer stands still in suspend while the lease runs out, so it is never trusted for long."""
LINGER = 0.2
"""Seconds that processes left behind by the command have to end by themselves, before they are stopped."""
PASS_EVERY = 0.02
"""Seconds between two rounds of SIGKILL: what was born between a look and its signal is met by the next one."""
QUICK_PASSES = 500
STUCK_AFTER = 3.0
"""Seconds after the first SIGKILL from which on a process that still lives is reported."""

IGNORED = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2),
    *(signal.SIGALRM, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
)
BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""What the interpreter itself ignores at its start, which must not reach the command."""
NEVER = float("inf")


class Watchdog:
    """Starts one command, and ends everything below itself in time. channel is the socket to `lockstead run`."""

    def __init__(self, channel: int, path: str, arguments: list[str]) -> None:
        self.channel = channel
        self.path = path
        self.arguments = arguments
        self.heard = b""
        self.orphaned = False
        self.pid = 0
        self.failure = -1
        self.ended_at = NEVER
        self.alone = False
        self.deadline = NEVER
        self.grace = 0.0
        self.reserve = 0.0
        self.terminal = False
        self.stands_still_since = NEVER
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
        """Guard until the section is over, or until `run` is gone before it began."""
        self.tell("ready", int(self.adopts))
        while not self.is_over():
            watched = select.poll()
            for descriptor in (self.wakes, self.failure, -1 if self.orphaned else self.channel):
                if descriptor >= 0:
                    watched.register(descriptor, select.POLLIN)
            ready = {descriptor for descriptor, _ in watched.poll(self.patience())}
            if self.wakes in ready:
                os.read(self.wakes, 4096)
            if self.failure in ready:
                self.hear_failure()
            if self.channel in ready:
                self.hear()
            if self.pid:
                self.reap()
                self.look_at_pauses(now())
                self.act(now())

    def is_over(self) -> bool:
        """Return whether nothing of the section is left; said to `run` as the last word."""
        if not self.pid:
            return self.orphaned
        if self.ended_at == NEVER or not self.alone:
            return False
        if not self.adopts and group_lives(self.pid):
            return False
        self.tell("gone")
        return True

    def patience(self) -> float | None:
        """Return the milliseconds until something is due; None for as long as there is nothing to guard."""
        if not self.pid:
            return None
        if self.killed_at != NEVER:
            return (SLEEP_MAX if self.stuck else PASS_EVERY) * 1000
        due = min(self.due_at(), self.ended_at + LINGER)
        if self.stopping_at != NEVER:
            due = kill_time(self.stopping_at, self.deadline, self.grace, self.reserve)
        longest = PASS_EVERY if self.ended_at != NEVER and not self.adopts else SLEEP_MAX
        return max(0.0, min(due - now(), longest)) * 1000

    def due_at(self) -> float:
        """Return the instant at which the stopping starts although nobody asked for it."""
        return latest_stop(self.deadline, self.grace, self.reserve)

    # --- what is heard and told --------------------------------------------------------------------------------------

    def tell(self, *fields: object) -> None:
        """Tell `run`, if it is still there."""
        if self.orphaned:
            return
        with suppress(OSError):  # broken, or full because `run` is stopped: it finds out by itself
            os.write(self.channel, packed(*fields))

    def hear(self) -> None:
        """Take in what `run` says; its silence for good (it died, or let go) is a reason to stop."""
        try:
            heard = os.read(self.channel, 65536)
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        if not heard:
            self.orphaned = True
            if self.pid:
                self.stop("lockstead run is gone")
            return
        *lines, self.heard = (self.heard + heard).split(b"\n")
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
        """Start the command in a process group of its own. exports: names and values, an empty value unsets."""
        self.deadline, self.grace, self.reserve = deadline, grace, reserve
        if now() >= self.due_at():
            self.tell("late")
            return
        environment = dict(os.environ)
        for name, value in zip(exports[::2], exports[1::2], strict=True):
            environment.pop(name, None)
            if value:
                environment[name] = value
        self.terminal = terminal
        self.failure, failed = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self.become(failed, environment, terminal=terminal)
        os.close(failed)
        with suppress(OSError):  # it has done so itself, and is further already
            os.setpgid(self.pid, self.pid)
        self.tell("started", self.pid)
        self.let_go()

    def let_go(self) -> None:
        """Close what the command inherited through us: a pipe or a lock file that it closes must not stay open here."""
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        below = 2
        for descriptor in sorted((self.channel, self.wakes, self.awake, self.failure)):
            os.closerange(below + 1, descriptor)
            below = descriptor
        os.closerange(below + 1, os.sysconf("SC_OPEN_MAX"))

    def become(self, failed: int, environment: dict[str, str], *, terminal: bool) -> None:
        """Be the command: in the forked child, never returns."""
        try:
            os.setpgid(0, 0)
            if terminal:
                os.tcsetpgrp(0, os.getpid())
            signal.set_wakeup_fd(-1)
            for number in (*self.changed, *BY_PYTHON, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            os.execve(self.path, self.arguments, environment)  # noqa: S606 - no shell is wanted
        except OSError as error:
            os.write(failed, str(error.errno).encode())
        finally:
            os._exit(127)

    def hear_failure(self) -> None:
        """Learn whether the command could be executed at all."""
        failed = os.read(self.failure, 64)
        os.close(self.failure)
        self.failure = -1
        if failed:
            self.tell("failed", int(failed))

    def reap(self) -> None:
        """Take note of whoever below us has ended, stopped or gone on; alone: nobody is left."""
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
                self.tell("paused", os.WSTOPSIG(status))
            elif os.WIFCONTINUED(status):
                self.tell("resumed")
            else:
                if self.failure >= 0:
                    self.hear_failure()
                self.ended_at = now()
                self.tell("ended", status)

    def look_at_pauses(self, at: float) -> None:
        """Tell of a ^Z that nobody else tells of; what is seen once may be a stop that is on its way."""
        if not self.terminal or self.ended_at != NEVER or not waits_for_a_stopped_child(self.pid):
            self.stands_still_since = NEVER
        elif self.stands_still_since == NEVER:
            self.stands_still_since = at
        elif at >= self.stands_still_since + SLEEP_MAX / 2:
            self.stands_still_since = NEVER
            self.tell("paused", int(signal.SIGTSTP))

    # --- the stopping ------------------------------------------------------------------------------------------------

    def act(self, at: float) -> None:
        """Do what is due at this instant."""
        if self.stopping_at == NEVER:
            if at >= self.due_at():
                self.stop("due")
            elif at >= self.ended_at + LINGER and not self.alone:
                self.tell("left", max(1, len(descendants(os.getpid()))))
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
            self.tell("stuck")

    def kill_children(self) -> None:
        """Kill whoever has come to be our child, again and again.

        A process that forks and exits all the time is never where a look at everybody saw it. But every heir of a
        dead parent is ours at once, so those who flee meet the signal here.
        """
        for _ in range(QUICK_PASSES):
            found = children()
            if not found:
                return
            for pid in found:
                send(os.kill, pid, signal.SIGKILL)
            self.reap()

    def stop(self, why: str) -> None:
        """Ask everything below to end; SIGKILL follows when the grace is over."""
        if self.stopping_at != NEVER:
            return
        self.stopping_at = now()
        self.tell("stopping", why)
        # After a pause of ours it may be too late for a grace: then nobody is continued who was stopped with us.
        if self.stopping_at < kill_time(self.stopping_at, self.deadline, self.grace, self.reserve):
            self.send_all(signal.SIGTERM)
            # a stopped process would meet SIGTERM only when it is continued
            self.send_all(signal.SIGCONT)
        if self.orphaned:
            _complain(f"lockstead: {why}; stopping its command, the lock is left to expire\n")

    def send_all(self, number: int) -> None:
        """Signal everything below."""
        send_all(os.getpid(), self.pid, number, leads=self.ended_at == NEVER)


def _complain(line: str) -> None:
    # a terminal that blocks, or a pipe that nobody reads, must not keep the section alive
    writable = select.poll()
    writable.register(2, select.POLLOUT)
    with suppress(OSError):
        if any(event & select.POLLOUT for _, event in writable.poll(0)):
            os.write(2, line.encode())


if __name__ == "__main__":
    Watchdog(int(sys.argv[1]), sys.argv[2], sys.argv[3:]).run()

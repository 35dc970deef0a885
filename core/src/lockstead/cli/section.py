"""The critical section of `lockstead run`: runs the command through the watchdog, and replaces a failed watchdog.

A section ends when none of its processes is left; the lock is released only then. Must not know how a lease is renewed:
it is given each deadline, and a stop when the lease is lost.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lockstead.cli.exits import Exit, Failed, say
from lockstead.cli.signals import Signals
from lockstead.cli.terminal import Terminal
from lockstead.supervise import watchdog
from lockstead.supervise.messages import kill_time, now, packed, unpacked
from lockstead.supervise.processes import adopt_orphans, descendants, readable, send_all

READY_WITHIN: Final = 10.0
TAKES_OVER_FOR: Final = 10.0
"""Seconds to wait for processes after SIGKILL when the watchdog is gone."""
DIES_WITHIN: Final = 1.0
"""Seconds to wait for a killed watchdog to exit."""
LOOK_EVERY: Final = 0.2
"""Seconds between two checks whether we have the terminal, while the command is stopped waiting for it."""


@dataclass(frozen=True, slots=True)
class StopTimes:
    """Times of a stop, in seconds: grace from SIGTERM to SIGKILL, reserve from SIGKILL to the deadline."""

    grace: float
    reserve: float


@dataclass(slots=True)
class Ended:
    """How a section ended. status: the command's status from waitpid.

    was_lost: it was stopped because the lease was lost or about to be. is_sure: none of its processes is left.
    failure: the errno if the command could not be executed. is_unguarded: the watchdog died first.
    """

    status: int | None = None
    was_lost: bool = False
    is_sure: bool = False
    failure: int | None = None
    is_unguarded: bool = False


@dataclass(slots=True)
class Section:
    """One command with its watchdog and child processes. Opened before the lock is acquired."""

    path: str
    arguments: list[str]
    signals: Signals
    terminal: Terminal
    ended: Ended = field(default_factory=Ended)
    deadline: float = 0.0
    stop_times: StopTimes = StopTimes(0.0, 0.0)
    started: bool = False
    group: int = 0
    _heard: bytes = b""
    _over: bool = False
    _reported: bool = False
    _wants_terminal: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _channel: socket.socket = field(init=False)
    _watchdog: subprocess.Popen[bytes] = field(init=False)

    def open(self) -> None:
        """Start the watchdog, which waits without guarding anything yet."""
        # if the watchdog is killed, its child processes become ours
        adopt_orphans()
        self._channel, theirs = socket.socketpair()
        with theirs:
            theirs.set_inheritable(True)
            self._watchdog = subprocess.Popen(
                [*_interpreter(), str(theirs.fileno()), self.path, *self.arguments],
                close_fds=False,  # the command gets the descriptors that we inherited
                process_group=0,  # not in the terminal's foreground: ^C and a killed job are not for the watchdog
            )
        self._channel.setblocking(False)

    def close(self) -> None:
        """Close the channel, which ends the watchdog once no process is left to guard."""
        self._channel.close()
        with suppress(subprocess.TimeoutExpired):
            self._watchdog.wait(READY_WITHIN if self.ended.is_sure or not self.started else 0)

    # --- called from any thread --------------------------------------------------------------------------------------

    def renewed(self, deadline: float) -> None:
        """Record a new deadline."""
        with self._lock:
            if self.started:
                self.deadline = max(self.deadline, deadline)
                self._send("deadline", self.deadline)

    def stop(self, why: str) -> None:
        """Stop the command because the lease is lost. The reason is printed once."""
        with self._lock:
            is_first, self._reported = not self._reported, True
            self.ended.was_lost = True
            self._send("stop")
        if is_first:
            say(why)

    def _send(self, *words: object) -> None:
        with suppress(OSError):  # a watchdog that is gone is detected by the closed channel or the deadline
            self._channel.send(packed(*words))

    # --- called in the main thread -----------------------------------------------------------------------------------

    def run(self, deadline: float, stop_times: StopTimes, exports: dict[str, str]) -> Ended:
        """Start the command; return when none of its processes is left, or when they cannot be killed."""
        self.stop_times = stop_times
        self._await_ready()
        terminal = self.terminal.is_offered
        with self._lock:
            self.deadline, self.started = deadline, True
            named = [part for pair in exports.items() for part in pair]
            self._send("start", deadline, stop_times.grace, stop_times.reserve, int(terminal), *named)
        while not self._over:
            for number in self.signals.taken():
                self._pass_on(number)
            self._look_at_terminal()
            patience = self._last_resort_at() - now()
            self._listen(max(0.0, min(patience, LOOK_EVERY if self._wants_terminal else 1.0)))
            # after the messages: if this process was paused, the watchdog's last message is there already
            if patience <= 0 and not self._over:
                say("the watchdog does not answer; killing the command")
                self.ended.was_lost = True
                self._take_over()
        killed = self.ended.status is not None and os.WIFSIGNALED(self.ended.status)
        had_terminal = self.terminal.take_back(self.group, restore=killed)
        if had_terminal and killed and os.WTERMSIG(self.ended.status or 0) == signal.SIGINT:
            # ^C is meant for the whole job, and the terminal told the command alone
            self.signals.ignore()
            os.killpg(0, signal.SIGINT)
        return self.ended

    def _last_resort_at(self) -> float:
        """Return when to replace a silent watchdog: in the middle of the reserve."""
        return self.deadline - self.stop_times.reserve / 2

    def _await_ready(self) -> None:
        until = now() + READY_WITHIN
        while not self._heard:
            if not readable(until - now(), self._channel.fileno()):
                raise Failed(Exit.UNSURE, "the watchdog did not start in time; the command was not started")
            self._heard = self._channel.recv(65536)
            if not self._heard:
                raise Failed(Exit.UNSURE, "the watchdog did not start; the command was not started")
        if unpacked(self._heard.partition(b"\n")[0]) == ["ready", "0"]:
            say("no child-subreaper support: a process that leaves the command's group is not supervised")
        self._heard = self._heard.partition(b"\n")[2]

    def _listen(self, patience: float) -> None:
        if self._channel.fileno() not in readable(patience, self._channel.fileno(), self.signals.awake):
            return
        try:
            heard = self._channel.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        *lines, self._heard = (self._heard + heard).split(b"\n")
        for line in lines:
            self._take(*unpacked(line))
        if not heard and not self._over:
            say("the watchdog was killed; stopping the command")
            self.ended.is_unguarded = True
            self._take_over()

    def _take(self, word: str, first: str = "") -> None:
        """Handle one message of the watchdog."""
        ended = self.ended
        if word == "started":
            self.group = int(first)
        elif word == "failed":
            ended.failure = int(first)
        elif word == "ended":
            ended.status = int(first)
        elif word == "late":
            ended.was_lost = ended.is_sure = self._over = True
        elif word == "gone":
            ended.is_sure = self._over = True
        elif word == "left":
            say(f"the command has ended and left {first} of its processes behind; stopping them")
        elif word == "stopping":
            ended.was_lost = ended.was_lost or first == "due"
        elif word == "stuck":
            self._over = True
        elif word == "paused":
            self._paused(int(first))

    def _pass_on(self, number: int) -> None:
        with self._lock:
            self._send("signal", number)

    def _paused(self, number: int) -> None:
        """Handle a stopped command; the lease is still renewed."""
        if number == signal.SIGTSTP and self.terminal.foreground == self.group:
            say("cannot suspend: the command would keep the lock while stopped; continuing")
            self._pass_on(signal.SIGCONT)
        elif number in (signal.SIGTTIN, signal.SIGTTOU):
            self._wants_terminal = True
            if not self.terminal.is_ours:
                say("the command is stopped and waits for the terminal; the lock stays held (use fg)")
        else:
            say(f"the command is stopped ({signal.Signals(number).name}); the lock stays held, SIGCONT continues it")

    def _look_at_terminal(self) -> None:
        if self._wants_terminal and self.terminal.is_ours:
            self._wants_terminal = False
            self.terminal.give(self.group)
            self._pass_on(signal.SIGCONT)

    # --- without the watchdog ----------------------------------------------------------------------------------------

    def _take_over(self) -> None:
        """Stop the command in place of the watchdog, which was killed or is itself stopped."""
        self._over = True
        stopping_at = now()
        kill_at = kill_time(stopping_at, self.deadline, self.stop_times.grace, self.stop_times.reserve)
        if self.ended.is_unguarded:
            # its channel closes shortly before it can be reaped and its children become ours
            with suppress(subprocess.TimeoutExpired):
                self._watchdog.wait(max(0.0, min(DIES_WITHIN, kill_at - stopping_at)))
        except_pid = self._watchdog.pid if self._watchdog.poll() is None else 0
        if stopping_at < kill_at:
            self._signal_all(signal.SIGTERM, except_pid)
            self._signal_all(signal.SIGCONT, except_pid)
        while now() < kill_at and not self._none_left(except_pid):
            time.sleep(watchdog.PASS_EVERY)
        until = now() + TAKES_OVER_FOR
        while now() < until and not self._none_left(except_pid):
            self._signal_all(signal.SIGKILL, except_pid)
            time.sleep(watchdog.PASS_EVERY)
        self.ended.is_sure = self._none_left(except_pid)
        self._watchdog.kill()

    def _signal_all(self, number: int, except_pid: int) -> None:
        send_all(os.getpid(), self.group, number, except_pid)

    def _none_left(self, except_pid: int) -> bool:
        if except_pid:
            return not descendants(os.getpid(), except_pid)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self.group:
                self.ended.status = status


def _interpreter() -> list[str]:
    # -s -E -S: no user site, environment variables or site module, for a start in a few milliseconds
    return [sys.executable, "-s", "-E", "-S", str(Path(watchdog.__file__))]

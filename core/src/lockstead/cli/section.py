"""Decides, in `lockstead run`, what follows from what the watchdog says, and steps in where the watchdog cannot.

A section is over when no process of it is left, and not before: the lock is given back only then. Must not know how a
lease is kept; it is told each deadline, and told to stop when the lease is lost.
"""

from __future__ import annotations

import os
import select
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
from lockstead.supervise.processes import adopt_orphans, descendants, send_all

READY_WITHIN: Final = 10.0
TAKES_OVER_FOR: Final = 10.0
"""Seconds, from the last SIGKILL on, that processes are waited for once the watchdog is gone."""
DIES_WITHIN: Final = 1.0
"""Seconds that a watchdog which was killed has to be gone."""
LOOK_EVERY: Final = 0.2
"""Seconds between two looks at whether the terminal is ours to give, while the command is stopped for want of it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How a stop goes, in seconds: grace from SIGTERM to SIGKILL, and reserve from SIGKILL to the deadline."""

    grace: float
    reserve: float


@dataclass(slots=True)
class Ended:
    """How a section ended. status is what waitpid said of the command.

    was_lost: it was stopped because the lease was lost or about to be. is_sure: no process of it is left.
    failure: the errno, where the command could not be executed. is_unguarded: the watchdog died first.
    """

    status: int | None = None
    was_lost: bool = False
    is_sure: bool = False
    failure: int | None = None
    is_unguarded: bool = False


@dataclass(slots=True)
class Section:
    """One command, its watchdog and everything below. Opened before the lock is asked for."""

    path: str
    arguments: list[str]
    signals: Signals
    terminal: Terminal
    ended: Ended = field(default_factory=Ended)
    deadline: float = 0.0
    limits: Limits = Limits(0.0, 0.0)
    started: bool = False
    group: int = 0
    _heard: bytes = b""
    _over: bool = False
    _told: bool = False
    _wants_terminal: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _channel: socket.socket = field(init=False)
    _watchdog: subprocess.Popen[bytes] = field(init=False)

    def open(self) -> None:
        """Start the watchdog, which waits without guarding anything yet."""
        # should the watchdog be killed, everything below it becomes ours to stop
        adopt_orphans()
        self._channel, theirs = socket.socketpair()
        with theirs:
            theirs.set_inheritable(True)
            self._watchdog = subprocess.Popen(
                [*_interpreter(), str(theirs.fileno()), self.path, *self.arguments],
                close_fds=False,  # what we inherited is the command's to use
                process_group=0,  # not in the terminal's foreground: ^C and a killed job are not for the watchdog
            )
        self._channel.setblocking(False)

    def close(self) -> None:
        """Let the watchdog end; it has nothing to guard any more, or guards on alone."""
        self._channel.close()
        with suppress(subprocess.TimeoutExpired):
            self._watchdog.wait(READY_WITHIN if self.ended.is_sure or not self.started else 0)

    # --- called from any thread --------------------------------------------------------------------------------------

    def renewed(self, deadline: float) -> None:
        """Take note of a new deadline."""
        with self._lock:
            if self.started:
                self.deadline = max(self.deadline, deadline)
                self._send("deadline", self.deadline)

    def stop(self, why: str) -> None:
        """Stop the command: the lease is lost. The line that says why is said once."""
        with self._lock:
            is_news, self._told = not self._told, True
            self.ended.was_lost = True
            self._send("stop")
        if is_news:
            say(why)

    def _send(self, *words: object) -> None:
        with suppress(OSError):  # dead or deaf: the descriptor's silence tells, or the clock
            self._channel.send(packed(*words))

    # --- called in the main thread -----------------------------------------------------------------------------------

    def run(self, deadline: float, limits: Limits, exports: dict[str, str]) -> Ended:
        """Start the command and return when no process of it is left, or when that cannot be brought about."""
        self.limits = limits
        self._await_ready()
        terminal = self.terminal.is_offered
        with self._lock:
            self.deadline, self.started = deadline, True
            named = [part for pair in exports.items() for part in pair]
            self._send("start", deadline, limits.grace, limits.reserve, int(terminal), *named)
        while not self._over:
            for number in self.signals.taken():
                self._pass_on(number)
            self._look_at_terminal()
            patience = self._last_resort_at() - now()
            self._listen(max(0.0, min(patience, LOOK_EVERY if self._wants_terminal else 1.0)))
            # judged by what was listened to first: after a pause of our own the watchdog's last word is there already
            if patience <= 0 and not self._over:
                say("the watchdog does not answer; killing the command")
                self.ended.was_lost = True
                self._take_over()
        killed = self.ended.status is not None and os.WIFSIGNALED(self.ended.status)
        had_terminal = self.terminal.take_back(self.group, restore=killed)
        if had_terminal and killed and os.WTERMSIG(self.ended.status or 0) == signal.SIGINT:
            # ^C is meant for the whole job, and the terminal told the command alone
            self.signals.deaf()
            os.killpg(0, signal.SIGINT)
        return self.ended

    def _last_resort_at(self) -> float:
        """Return the instant from which on we do not trust the watchdog any more: in the middle of the reserve."""
        return self.deadline - self.limits.reserve / 2

    def _await_ready(self) -> None:
        until = now() + READY_WITHIN
        while not self._heard:
            if not _readable(until - now(), self._channel.fileno()):
                raise Failed(Exit.UNSURE, "the watchdog did not start in time; the command was not started")
            self._heard = self._channel.recv(65536)
            if not self._heard:
                raise Failed(Exit.UNSURE, "the watchdog did not start; the command was not started")
        if unpacked(self._heard.partition(b"\n")[0]) == ["ready", "0"]:
            say("no child-subreaper support: a process that leaves the command's group is not supervised")
        self._heard = self._heard.partition(b"\n")[2]

    def _listen(self, patience: float) -> None:
        if self._channel.fileno() not in _readable(patience, self._channel.fileno(), self.signals.awake):
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
        """Act on one word of the watchdog."""
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
        """The command was stopped, which stops neither the clock nor the keeping."""
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
        """Do the watchdog's work: it was killed, so that its children are ours now, or it is stopped itself."""
        self._over = True
        stopping_at = now()
        kill_at = kill_time(stopping_at, self.deadline, self.limits.grace, self.limits.reserve)
        if self.ended.is_unguarded:
            # its channel closes a moment before it can be reaped and its children are ours
            with suppress(subprocess.TimeoutExpired):
                self._watchdog.wait(max(0.0, min(DIES_WITHIN, kill_at - stopping_at)))
        beside = self._watchdog.pid if self._watchdog.poll() is None else 0
        if stopping_at < kill_at:
            self._signal_all(signal.SIGTERM, beside)
            self._signal_all(signal.SIGCONT, beside)
        while now() < kill_at and not self._nobody_left(beside):
            time.sleep(watchdog.PASS_EVERY)
        until = now() + TAKES_OVER_FOR
        while now() < until and not self._nobody_left(beside):
            self._signal_all(signal.SIGKILL, beside)
            time.sleep(watchdog.PASS_EVERY)
        self.ended.is_sure = self._nobody_left(beside)
        self._watchdog.kill()

    def _signal_all(self, number: int, beside: int) -> None:
        send_all(os.getpid(), self.group, number, beside)

    def _nobody_left(self, beside: int) -> bool:
        if beside:
            return not descendants(os.getpid(), beside)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self.group:
                self.ended.status = status


def _readable(patience: float, *descriptors: int) -> set[int]:
    watched = select.poll()
    for descriptor in descriptors:
        watched.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in watched.poll(max(0.0, patience) * 1000)}


def _interpreter() -> list[str]:
    # -s -E -S: nothing of the user's or of the environment, and no site: it starts in a few milliseconds
    return [sys.executable, "-s", "-E", "-S", str(Path(watchdog.__file__))]

"""A crowd of processes that count under one lock, as a program: `python -m tests.servers.contenders URL FOLDER ...`.

Each reads a number from a file, adds one and writes it back; only the lock prevents two of them from reading the same
number. Each holder records its token, so that the order of tokens is the order of holders. Each reports its count.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import lockstead
from lockstead.events import LockEvent
from lockstead.protocol.commands import TokenSource

SETTINGS = {"ttl": 60, "backoff_min": 0.02, "backoff_max": 0.5}


def count_under_the_lock(url: str, folder: Path, seconds: float, begin: Begin) -> int:
    """Acquire the lock repeatedly, for some seconds from the common start; return how often."""
    came_in, counter = 0, folder / "counter"
    with lockstead.connect(url, listener=_quiet) as client:
        client.lock("counter").inspect()
        begin.ready()
        ends_at = time.monotonic() + seconds
        lock = client.lock("counter", **SETTINGS)
        has_tokens = client._engine.traits.tokens is not TokenSource.NONE
        while time.monotonic() < ends_at:
            with lock.hold(timeout=120) as lease:
                value = int(counter.read_text() or 0)
                token = lease.sequencer().token if has_tokens else 0
                with (folder / "tokens").open("a") as tokens:
                    tokens.write(f"{token} {os.getpid()}\n")
                lease.check()
                counter.write_text(str(value + 1))
            came_in += 1
    return came_in


def program(*words: str) -> list[str]:
    """Return the command line of this program."""
    return [sys.executable, "-m", "tests.servers.contenders", *words]


class Begin:
    """A barrier for many processes: all start when all are ready."""

    def __init__(self) -> None:
        self._readies, self._go = os.pipe(), os.pipe()

    def ready(self) -> None:
        """In a child: report that it is ready, and wait for all others."""
        os.write(self._readies[1], b".")
        os.close(self._go[1])
        os.read(self._go[0], 1)

    def wait_for(self, processes: int) -> None:
        """In the parent: wait until that many are ready or have died, and start them."""
        os.close(self._readies[1])
        while processes > 0 and (said := os.read(self._readies[0], processes)):
            processes -= len(said)
        os.close(self._go[1])


def hold_until_killed(url: str, ttl: float, mode: str) -> None:
    """Acquire the lock `held`, report that, and hold it."""
    with lockstead.connect(url, listener=_quiet) as client:
        client.lock("held", ttl=ttl).acquire(60, mode=mode)
        sys.stdout.write("held\n")
        sys.stdout.flush()
        time.sleep(600)


def _quiet(_event: LockEvent) -> None:
    """Ignore an event."""


def _crowd(url: str, folder: Path, processes: int, seconds: float) -> int:
    with lockstead.connect(url, listener=_quiet) as client:
        client.lock("counter").inspect()  # modules imported before the fork need not be imported in each child
    begin, running = Begin(), list[int]()
    for number in range(processes):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                (folder / f"came-in-{number}").write_text(str(count_under_the_lock(url, folder, seconds, begin)))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        running.append(pid)
    begin.wait_for(processes)
    return sum(os.waitpid(pid, 0)[1] != 0 for pid in running)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--hold", type=float, help="only hold the lock `held` with this ttl until killed")
    parser.add_argument("--mode", default="exclusive", help="how it is held")
    asked = parser.parse_args(arguments)
    if asked.hold:
        hold_until_killed(asked.url, asked.hold, asked.mode)
        return 0
    (asked.folder / "counter").write_text("0")
    return _crowd(asked.url, asked.folder, asked.processes, asked.seconds)


if __name__ == "__main__":
    sys.exit(main())

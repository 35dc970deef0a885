"""Base class of servers for tests: start on a free loopback port, kill, pause, restart, stop.

Must not know any server. A missing program skips the test with a reason, and fails it with CI=true.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, Self

READY_WITHIN = 120.0
"""Seconds until a start fails: long enough for a slow machine."""


def needed(program: str, *places: str) -> str:
    """Return the path of a program; if the machine does not have it, skip the test, or fail it with CI=true."""
    path = ":".join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", *places])
    found = shutil.which(program, path=path)
    return found or absent(f"there is no {program} on this machine")


def absent(why: str) -> NoReturn:
    """Skip the test with a reason, or fail it with CI=true."""
    # imported here: processes that a test starts import this module too, without pytest
    import pytest

    if os.environ.get("CI") == "true":
        pytest.fail(f"{why}, and CI has to have it", pytrace=False)
    pytest.skip(why)


def dies_with_us() -> list[str]:
    """Return a command prefix that kills the command when this process ends, even by SIGKILL.

    The signal is sent when the *thread* that started the command ends, so it is used only in the main thread.
    """
    is_main = threading.current_thread() is threading.main_thread()
    return ["setpriv", "--pdeathsig", "KILL"] if is_main and shutil.which("setpriv") else []


SHARES: Final = 8
"""Number of shares of the port range, so that concurrent test workers use different ports."""

_GIVEN: Final[set[int]] = set()


def free_port() -> int:
    """Return a loopback port that is free now, and that was not returned before.

    It is not in the range of ports for outgoing connections.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    share = int(worker) % (SHARES - 1) if worker.isdigit() else SHARES - 1
    while True:
        port = 10_000 + int.from_bytes(os.urandom(2), "big") % (20_000 // SHARES) * SHARES + share
        if len(_GIVEN) > 10_000 // SHARES:
            _GIVEN.clear()  # the first ports have not been in use for long
        if port in _GIVEN:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _GIVEN.add(port)
        return port


def answers(port: int) -> bool:
    """Return whether a process accepts connections on a loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(
    condition: Callable[[], Any],
    seconds: float,
    otherwise: Callable[[], str],
    *,
    pause: float = 0.02,
    pause_max: float = 0.25,
) -> Any:
    """Wait until a condition is true and return its result; AssertionError with the text of `otherwise`.

    It is checked at intervals that grow from `pause` to `pause_max` seconds: a check may be a request to a server.
    """
    ends_at = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > ends_at:
            raise AssertionError(otherwise())
        time.sleep(pause)
        pause = min(pause_max, pause * 1.3)
    return found


def _stands_still(pid: int) -> bool:
    """Return whether all threads of a process and its children are stopped."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        states = [(one / "stat").read_text().rpartition(")")[2].split()[0] for one in threads]
        children = [int(child) for one in threads for child in (one / "children").read_text().split()]
    except OSError:
        return False  # a thread has just ended: check again
    return all(state in "TtZX" for state in states) and all(map(_stands_still, children))


class Server:
    """One server process. After `start`, a test may `kill`, `pause`, `resume` and `start` it again; at the end `stop`.

    Subclasses define `command()`, and `is_ready()` if an open port is not enough. The output is in DIRECTORY/log.
    """

    def __init__(self, directory: Path, port: int | None = None) -> None:
        self.directory = directory
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port = port or free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str]:
        """Return the command line."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """Return environment variables in addition to those of this process."""
        return {}

    def is_ready(self) -> bool:
        """Return whether the server serves requests."""
        return answers(self.port)

    @property
    def address(self) -> str:
        """Return `127.0.0.1:port`."""
        return f"127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        """Return whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> Self:
        """Start it and wait until it serves requests; it keeps its data if it ran before."""
        self.launch()
        self.until(self.is_ready, "it did not come up")
        return self

    def launch(self) -> None:
        """Start it without waiting: it may need other servers before it serves requests."""
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*dies_with_us(), *self.command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env={**os.environ, **self.environment()},
                start_new_session=True,
            )

    def until(self, condition: Callable[[], bool], otherwise: str, seconds: float = READY_WITHIN) -> None:
        """Wait until a condition is true while the server runs; AssertionError with the end of its log."""
        ends_at = time.monotonic() + seconds
        while not condition():
            if not self.is_running or time.monotonic() > ends_at:
                raise AssertionError(f"{type(self).__name__}: {otherwise}\n{self.log()}")
            time.sleep(0.02)

    def log(self) -> str:
        """Return the end of the server's output."""
        return (self.directory / "log").read_text("utf-8", errors="replace")[-3000:]

    def _signal(self, number: signal.Signals) -> None:
        if self.is_running and self.process is not None:
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """Kill it and its process group (SIGKILL), and wait until it is gone."""
        self._signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def pause(self) -> None:
        """Stop it with SIGSTOP: connections stay open, and no request is answered from now on."""
        self._signal(signal.SIGSTOP)
        # the signal takes effect later: a thread that runs on another core may answer once more
        process = self.process
        if process is not None:
            self.until(lambda: _stands_still(process.pid), "it does not stand still")

    def resume(self) -> None:
        """Continue it (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it with SIGTERM, or kill it if it does not end within 10 s. Idempotent."""
        self.resume()
        self._signal(signal.SIGTERM)
        if self.process is not None:
            try:
                self.process.wait(10.0)
            except subprocess.TimeoutExpired:
                self.kill()

    def __enter__(self) -> Self:
        """Start it."""
        return self.start()

    def __exit__(self, *_error: object) -> None:
        """Stop it."""
        self.stop()

"""How a server is run for a test: started on a free loopback port, killed, paused, restarted, taken away.

Must not know any server. What a machine has not is a skip with its reason, and a loud failure with CI=true.
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
"""Seconds; for a broken server, not for a slow machine."""


def needed(program: str, *places: str) -> str:
    """Return the path of a program; a skip where the machine has none, a failure with CI=true."""
    path = ":".join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", *places])
    found = shutil.which(program, path=path)
    return found or absent(f"there is no {program} on this machine")


def absent(why: str) -> NoReturn:
    """Skip with a reason, or fail with it where everything has to be there."""
    # processes that a test starts import this module too, and need no pytest
    import pytest

    if os.environ.get("CI") == "true":
        pytest.fail(f"{why}, and CI has to have it", pytrace=False)
    pytest.skip(why)


def dies_with_us() -> list[str]:
    """Return the words before a command that end it with this process, also after SIGKILL.

    The signal comes when the *thread* ends that started it, so only what the main thread starts has them.
    """
    is_main = threading.current_thread() is threading.main_thread()
    return ["setpriv", "--pdeathsig", "KILL"] if is_main and shutil.which("setpriv") else []


SHARES: Final = 8
"""Into so many shares the ports are dealt, so that tests side by side draw from different ones."""

_GIVEN: Final[set[int]] = set()


def free_port() -> int:
    """Return a loopback port that nobody listens on now, and that was not given before.

    Not taken from the range that outgoing connections get.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    share = int(worker) % (SHARES - 1) if worker.isdigit() else SHARES - 1
    while True:
        port = 10_000 + int.from_bytes(os.urandom(2), "big") % (20_000 // SHARES) * SHARES + share
        if len(_GIVEN) > 10_000 // SHARES:
            _GIVEN.clear()  # what was given first has long been given back
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
    """Return whether somebody accepts connections on a loopback port."""
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
    """Wait until a condition holds and give what it gave; AssertionError with what `otherwise` says.

    It is looked at after `pause` seconds, and more and more seldom, up to every `pause_max`: a look may cost a server
    something.
    """
    ends_at = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > ends_at:
            raise AssertionError(otherwise())
        time.sleep(pause)
        pause = min(pause_max, pause * 1.3)
    return found


def _stands_still(pid: int) -> bool:
    """Return whether no thread of a process and of its children runs any more."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        states = [(one / "stat").read_text().rpartition(")")[2].split()[0] for one in threads]
        children = [int(child) for one in threads for child in (one / "children").read_text().split()]
    except OSError:
        return False  # a thread has just ended: look again
    return all(state in "TtZX" for state in states) and all(map(_stands_still, children))


class Server:
    """One server process. `start` it, then `kill`, `pause`, `resume` and `start` again as the test wants; `stop` it.

    Subclasses give `command()`, and `is_ready()` where an open port is not enough. Output goes to DIRECTORY/log.
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
        """Return what stands in the environment besides this process's own."""
        return {}

    def is_ready(self) -> bool:
        """Return whether the server serves."""
        return answers(self.port)

    @property
    def address(self) -> str:
        """`127.0.0.1:port`."""
        return f"127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> Self:
        """Start it and wait until it serves; on the data that it had, if it ran before."""
        self.launch()
        self.until(self.is_ready, "it did not come up")
        return self

    def launch(self) -> None:
        """Start it and wait for nothing: it may need others to serve."""
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
        """Wait for a condition of a server that runs; AssertionError with the end of its log."""
        ends_at = time.monotonic() + seconds
        while not condition():
            if not self.is_running or time.monotonic() > ends_at:
                raise AssertionError(f"{type(self).__name__}: {otherwise}\n{self.log()}")
            time.sleep(0.02)

    def log(self) -> str:
        """Return the end of what the server said."""
        return (self.directory / "log").read_text("utf-8", errors="replace")[-3000:]

    def _signal(self, number: signal.Signals) -> None:
        if self.is_running and self.process is not None:
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """End it at once, with everything it started (SIGKILL), and wait until it is gone."""
        self._signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def pause(self) -> None:
        """Let it stand still (SIGSTOP): connections stay open, and nothing is answered from here on."""
        self._signal(signal.SIGSTOP)
        # the signal is only sent: a thread that runs on another core may answer once more
        process = self.process
        if process is not None:
            self.until(lambda: _stands_still(process.pid), "it does not stand still")

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it in good order, or at once if it does not end within 10 s. Idempotent."""
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

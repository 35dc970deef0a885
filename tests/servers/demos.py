"""Running a demo to its end or interrupting it, and checking that it leaves no process, file or folder behind.

Must not know what the demo does. Every wait has a limit; a process that is left after that is killed, and fails the
test.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from examples.publishing.clients import missing
from tests.servers.marked import carriers, kill

ROOT: Final = Path(__file__).parents[2]
NAME: Final = "LOCKSTEAD_DEMO"
"""An environment variable that all processes of one demo inherit."""

COMES_WITHIN: Final = 300.0
"""Maximum seconds until a demo reaches the point where it is interrupted."""


def by_real_clients(packages: str = "") -> list[str]:
    """Return the final lines of real package-manager clients, without those that are missing, except with CI=true."""
    told = {
        "apt": f"apt-get verified the index and installed {packages}",
        "yum": f"dnf verified index and packages and installed {packages}",
    }
    return [text for kind, text in told.items() if os.environ.get("CI") == "true" or not missing(kind)]


def shown(command: Sequence[str], folder: Path, homes: Path, claims: Iterable[str], *, within: float) -> str:
    """Run a demo to its end, check that it prints each claim and leaves nothing behind, and return its output.

    folder: its TMPDIR, empty. homes: where it creates its own folder. within: maximum seconds.
    """
    mark, before = f"{NAME}={uuid.uuid4().hex}", set(homes.glob("*"))
    done = subprocess.run(
        command,
        env=_inherited(mark, folder),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for claim in claims:
        assert claim in done.stdout, done.stdout
    assert not done.stderr.strip()
    assert not carriers(mark)
    assert not list(folder.iterdir())
    assert set(homes.glob("*")) <= before
    return done.stdout


def interrupt(
    command: Sequence[str],
    number: signal.Signals,
    folder: Path,
    homes: Path,
    *,
    line: str,
    processes: int,
    ends_within: float = 90.0,
) -> None:
    """Start a demo, interrupt it by a signal, and check that it leaves nothing behind.

    It is interrupted after it printed the line, as soon as that many processes exist at once. folder: its TMPDIR,
    empty. homes: where it creates its own folder.
    """
    said_of_us, before = f"{NAME}={uuid.uuid4().hex}", set(homes.glob("*"))
    process = subprocess.Popen(
        # a process that a shell starts in the background ignores SIGINT, and its children inherit that
        ["env", "--default-signal=INT", *command],
        env=_inherited(said_of_us, folder) | {"PYTHONUNBUFFERED": "1"},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    said: list[str] = []
    listening = threading.Thread(target=_listen, args=(process, said), daemon=True)
    listening.start()
    try:
        assert _until(lambda: any(line in one for one in said) or process.poll() is not None), "".join(said)
        assert process.poll() is None, "".join(said)
        # some end soon: it is enough that so many existed at one moment
        assert _until(lambda: len(carriers(said_of_us)) >= processes), f"{len(carriers(said_of_us))}\n{''.join(said)}"
        process.send_signal(number)
        assert process.wait(ends_within) != 0, "".join(said)
        listening.join(ends_within)
        assert not listening.is_alive(), "somebody still has its output open"
        assert not carriers(said_of_us)
        assert not list(folder.iterdir())
        assert set(homes.glob("*")) <= before
    finally:
        while left := carriers(said_of_us):
            for pid in left:
                with suppress(ProcessLookupError):
                    kill(pid)
            time.sleep(0.1)
        process.wait(10)
        listening.join(10)
        if process.stdout is not None:
            process.stdout.close()


def _inherited(mark: str, folder: Path) -> dict[str, str]:
    others = {name: value for name, value in os.environ.items() if name != "STORAGE_EMULATOR_HOST"}
    return others | dict([mark.split("=")], TMPDIR=str(folder))


def _listen(process: subprocess.Popen[str], said: list[str]) -> None:
    assert process.stdout is not None
    said.extend(iter(process.stdout.readline, ""))


def _until(condition: Callable[[], object]) -> bool:
    ends_at = time.monotonic() + COMES_WITHIN
    while not condition():
        if time.monotonic() > ends_at:
            return False
        time.sleep(0.1)
    return True

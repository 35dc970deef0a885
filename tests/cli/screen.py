"""A terminal of one's own, and a shell script at it."""

from __future__ import annotations

import fcntl
import os
import pty
import subprocess
import termios
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.cli.conftest import at_default, until


def _at_the_terminal() -> None:
    at_default()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _terminal() -> tuple[int, int]:
    try:
        return pty.openpty()
    except OSError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no terminals to be had here: {error}")


class Screen:
    """A shell script in a terminal of its own."""

    def __init__(self, where: Path, script: str) -> None:
        self.master, slave = _terminal()
        os.set_blocking(self.master, False)
        self.seen = ""
        self.process = subprocess.Popen(
            ["sh", "-c", script],
            cwd=where,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_at_the_terminal,  # noqa: PLW1509 - no thread runs here
        )
        os.close(slave)

    def shows(self, text: str) -> None:
        """Wait until the screen shows this."""
        try:
            until(lambda: text in self.read())
        except AssertionError:
            raise AssertionError(f"{text!r} is not shown, but {self.seen!r}") from None

    def read(self) -> str:
        """Return all that was shown so far."""
        with suppress(OSError):
            self.seen += os.read(self.master, 65536).decode()
        return self.seen

    def type(self, keys: bytes) -> None:
        """Press some keys."""
        os.write(self.master, keys)

    def close(self) -> None:
        """Hang up."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

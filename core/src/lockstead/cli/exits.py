"""Exit codes of the command, and the message for each failure.

The numbers are those of sysexits.h, so that a script can tell a busy lock (75, try again) from a lost one (76).
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import click

from lockstead.errors import LeaseLost, NotAcquired, StoreError, StoreRefused, StoreUnavailable


class Exit(IntEnum):
    """The exit codes of lockstead; `run` passes on those of its command."""

    OK = 0
    USAGE = 64
    STORE = 69
    UNSURE = 70
    OUTPUT = 74
    NOT_ACQUIRED = 75
    LOST = 76
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127
    SIGNALLED = 128
    """Plus the signal's number."""


_KINDS: Final = (
    (NotAcquired, "not_acquired"),
    (LeaseLost, "lease_lost"),
    (StoreUnavailable, "store_unavailable"),
    (StoreRefused, "store_refused"),
    (StoreError, "outcome_unknown"),
)
_KIND_OF_CODE: Final[Mapping[int, str]] = {
    Exit.USAGE: "usage",
    Exit.STORE: "store_refused",
    Exit.UNSURE: "internal",
    Exit.OUTPUT: "output",
    Exit.NOT_ACQUIRED: "not_acquired",
    Exit.LOST: "lease_lost",
}
"""The kinds of errors without a class of their own; all others are `interrupted`."""


class Failed(Exception):  # noqa: N818
    """Ends the command with a message and a code. An empty message prints nothing."""

    def __init__(self, code: int, line: str = "") -> None:
        super().__init__(line)
        self.code = code


def of_status(status: int) -> int:
    """Return the exit code for a status from waitpid: the command's own, or 128 + n for signal n."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else Exit.SIGNALLED - code


def judged(error: BaseException) -> tuple[int, str]:
    """Return exit code and message for an exception. The text of an unknown one is left out: it may hold a secret."""
    match error:
        case Failed():
            return error.code, str(error)
        case click.UsageError():
            hint = f" (see '{error.ctx.command_path} --help')" if error.ctx else ""
            return Exit.USAGE, error.format_message().rstrip(".") + hint
        case NotAcquired():
            return Exit.NOT_ACQUIRED, str(error)
        case LeaseLost():
            return Exit.LOST, str(error)
        case StoreError():
            return Exit.STORE, str(error)
        case click.Abort() | KeyboardInterrupt():
            return Exit.SIGNALLED + 2, "interrupted"
        case ValueError() | TypeError() if _is_ours(error):
            return Exit.USAGE, str(error)
        case _:
            return Exit.UNSURE, f"internal error: {type(error).__name__} at {_place(error)}"


def _is_ours(error: BaseException) -> bool:
    """Whether lockstead's own code raised the error, so that its message is meant for users."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and f"{os.sep}lockstead{os.sep}" in frames[-1].filename


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else "an unknown place"  # noqa: PTH119


def say(line: str) -> None:
    """Write one line to standard error; ignore a closed pipe."""
    _write(f"lockstead: {plain(line)}")


def say_error(code: int, line: str, error: BaseException | None = None) -> None:
    """Write a failure to standard error as JSON, on one line in ASCII; `schemas.ERROR` describes it."""
    kind = next((kind for of, kind in _KINDS if isinstance(error, of)), None) or _KIND_OF_CODE.get(code, "interrupted")
    facts: dict[str, object] = {"code": int(code), "kind": kind, "message": line}
    facts["key"] = getattr(error, "key", None) or None
    facts["owner"] = error.holder if isinstance(error, NotAcquired) else None
    held_for = error.held_for if isinstance(error, NotAcquired) else None
    facts["held_for"] = None if held_for is None else round(held_for, 3)
    facts["lost_reason"] = error.reason.value if isinstance(error, LeaseLost) else None
    _write(json.dumps({"error": facts}))


def _write(line: str) -> None:
    try:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        return


def plain(text: str) -> str:
    """Return a text in one line and without control characters."""
    return "".join(character if character.isprintable() else " " for character in text)

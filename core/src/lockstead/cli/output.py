"""Writing to standard output: complete, or with an exit code; colours on terminals only.

`exits.say` writes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from lockstead.cli.exits import Exit, Failed
from lockstead.reading import on_calendar


def out(text: str) -> None:
    """Write a text and a newline, and flush; Failed if that is not possible.

    A closed pipe, as with `head`, ends the command without a message.
    """
    _write(text + "\n", flush=True)


def out_json(value: object) -> None:
    """Write a value as JSON on one line, in ASCII, so that no text of a record can control a terminal.

    Empty texts and objects are written as null.
    """
    out(json.dumps(_null_for_nothing(value)))


def out_json_lines(values: Iterable[object]) -> None:
    """Write each value as `out_json` does, as soon as some are there."""
    try:
        for value in values:
            _write(json.dumps(_null_for_nothing(value)) + "\n", flush=False)
    finally:
        _write("", flush=True)


@contextmanager
def to_file(path: str) -> Iterator[None]:
    """Write standard output to a file that takes the place of `path` at the end; after an error it is removed."""
    target = Path(path)
    # its name does not end as that of the target, for programs that read all files of a folder
    beside = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        with beside.open("x", encoding="utf-8") as file, redirect_stdout(file):
            yield
        beside.replace(target)
    except OSError as error:
        raise Failed(Exit.OUTPUT, f"cannot write {path!r}: {error.strerror}") from None
    finally:
        with suppress(OSError):
            beside.unlink()


def _write(text: str, *, flush: bool) -> None:
    try:
        stream = _open_output()
        stream.write(_writable(text, stream))
        if flush:
            stream.flush()
    except BrokenPipeError:
        _forget_output()
        raise Failed(Exit.SIGNALLED + 13) from None
    except (OSError, ValueError) as error:
        _forget_output()
        why = getattr(error, "strerror", None) or str(error)
        raise Failed(Exit.OUTPUT, f"cannot write to standard output: {why}") from None


def _null_for_nothing(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _null_for_nothing(inner) for name, inner in value.items()} or None
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_null_for_nothing(inner) for inner in value]
    return None if value == "" else value


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream exists and is a terminal."""
    return stream is not None and stream.isatty()


def wants_colours(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal with colours enabled."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def instant(epoch: float | None) -> str | None:
    """Return seconds since the epoch as ISO 8601 in UTC, to the millisecond; None if unknown or out of range.

    For programs; people are shown `reading.date_text`.
    """
    epoch = on_calendar(epoch)
    if epoch is None:
        return None
    return datetime.fromtimestamp(epoch, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _open_output() -> TextIO:
    # the interpreter has none where it was started with none; its type does not say so
    stream: TextIO | None = getattr(sys, "stdout", None)
    if stream is None:
        raise ValueError("it is closed")
    return stream


def _writable(text: str, stream: TextIO) -> str:
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _forget_output() -> None:
    """Redirect standard output to /dev/null: the interpreter's last flush would fail with a traceback."""
    with suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)

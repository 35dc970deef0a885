"""Reading of a store's URL from a file (`file:/path`) or an environment variable (`env:NAME`).

This keeps a password out of command lines, copies of a lock and serialized DAGs. The URL is read when the store is
opened, so a lock can be defined on a machine without the file. No error of this module repeats what was read.
"""

from __future__ import annotations

import os
import stat
from typing import Final

from lockstead.errors import StoreRefused

BYTES_MAX: Final = 16_384
"""Longer than any store URL; a larger file was given by mistake."""

AS_URL: Final = "the URL of a store, as in 'redis://user:password@host:6379/0'"


def text_at(pointer: str) -> tuple[str, bool]:
    """Return the text of the file or variable, and whether every user of this machine can read it.

    Raises StoreRefused if there is none.
    """
    scheme, name = named(pointer)
    if scheme == "file":
        return _in_file(name)
    text = os.environ.get(name, "").strip()
    if not text:
        raise StoreRefused(f"{pointer}: the variable {name} is not set, or empty; set it to {AS_URL}")
    return text, False


def named(pointer: str) -> tuple[str, str]:
    """Return the scheme and the name of the file or variable; raise ValueError for an invalid name."""
    from urllib.parse import unquote

    scheme, _, rest = pointer.partition(":")
    name = unquote(rest.removeprefix("//") if scheme == "file" else rest)
    if scheme == "env" and not name.isidentifier():
        raise ValueError("env: names the variable that holds the URL of the store; write 'env:LOCK_STORE'")
    if scheme == "file" and not (name.startswith("/") and name.isprintable()):
        raise ValueError(
            "file: names the file that holds the URL of the store, from '/' on; write 'file:/run/secrets/lock-store'"
        )
    return scheme, name


def _in_file(path: str) -> tuple[str, bool]:
    try:
        # non-blocking: opening a pipe without a writer would wait indefinitely
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(number, "rb") as file:  # noqa: PTH123
            found = os.fstat(number)
            if not stat.S_ISREG(found.st_mode):
                raise StoreRefused(f"{path} is not a regular file; it has to hold {AS_URL}")
            written = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise StoreRefused(f"{path} cannot be read: {error.strerror}; it has to hold {AS_URL}") from error
    try:
        lines = written.decode().strip().splitlines()
    except UnicodeDecodeError:
        lines = []
    if len(written) > BYTES_MAX or len(lines) != 1:
        raise StoreRefused(f"{path} has to hold {AS_URL}, and nothing else")
    return lines[0], bool(found.st_mode & stat.S_IROTH)

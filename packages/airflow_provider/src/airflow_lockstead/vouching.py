"""Whether a text that came from a store was written by a user of this machine: by that user's local secret.

The secret stands in a folder that its user alone can read. Whoever may write the store does not know it, and so can
neither make such a text up nor change one. Where there is no such folder nothing is signed, and nothing believed.
"""

from __future__ import annotations

import hmac
import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

NAME: Final = "secret"
LENGTH: Final = 32
"""Bytes of a secret."""


def signature(text: str) -> str | None:
    """Sign a text as this user; None where no secret can be kept."""
    secret = _secret(os.getuid(), makes=True)
    return None if secret is None else _sign(secret, text)


def is_signed(text: str, by: str, user: int) -> bool:
    """Return whether `by` is what `signature` gave for a text to a user of this machine."""
    secret = _secret(user, makes=False)
    return secret is not None and hmac.compare_digest(_sign(secret, text), by)


def folder_of(user: int) -> Path:
    """Return folder of a user's secret: in that of temporary files, since it is worth nothing after the next boot."""
    return Path(tempfile.gettempdir()) / f"lockstead-{user}"


def _sign(secret: bytes, text: str) -> str:
    return hmac.new(secret, text.encode(), "sha256").hexdigest()


def _secret(user: int, *, makes: bool) -> bytes | None:
    path = folder_of(user)
    try:
        if makes:
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        # somebody else may have made a folder of that name, and would know what is in it
        if not _is_private(os.fstat(folder), user, stat.S_ISDIR):
            return None
        if makes:
            _make(folder)
        return _read(folder, user)
    except OSError:
        return None
    finally:
        os.close(folder)


def _make(folder: int) -> None:
    """Put a secret there whole, unless one is there: others may read it at this instant."""
    if _is_there(folder):
        return
    passing = f"{NAME}-{os.getpid()}-{os.urandom(4).hex()}"
    file = os.open(passing, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
    try:
        os.write(file, os.urandom(LENGTH))
    finally:
        os.close(file)
    try:
        with suppress(FileExistsError):
            os.link(passing, NAME, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.unlink(passing, dir_fd=folder)


def _is_there(folder: int) -> bool:
    try:
        os.stat(NAME, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _read(folder: int, user: int) -> bytes | None:
    file = os.open(NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        if not _is_private(os.fstat(file), user, stat.S_ISREG):
            return None
        found = os.read(file, LENGTH + 1)
    finally:
        os.close(file)
    return found if len(found) == LENGTH else None


def _is_private(found: os.stat_result, user: int, is_kind: Callable[[int], bool]) -> bool:
    return is_kind(found.st_mode) and found.st_uid == user and not found.st_mode & 0o077

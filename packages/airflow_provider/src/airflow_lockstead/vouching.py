"""Signatures, with a user's local secret, that prove that a text in a store was written by a user of this machine.

The secret is in a folder that only its user can read. A client with write access to the store does not know it, so it
can neither forge nor change such a text. Without such a folder nothing is signed, and no signature is accepted.
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
"""Length of a secret in bytes."""


def signature(text: str) -> str | None:
    """Return the signature of a text as this user; None if no secret can be stored."""
    secret = _secret(os.getuid(), makes=True)
    return None if secret is None else _sign(secret, text)


def is_signed(text: str, by: str, user: int) -> bool:
    """Return whether `by` is the `signature` of a text by a user of this machine."""
    secret = _secret(user, makes=False)
    return secret is not None and hmac.compare_digest(_sign(secret, text), by)


def folder_of(user: int) -> Path:
    """Return the folder of a user's secret: in the temporary directory, since it is not needed after the next boot."""
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
        # another user may have made a folder of that name, and could read the secret
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
    """Create the secret atomically, unless it exists: another process may read it at the same time."""
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

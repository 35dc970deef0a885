"""Parsing of `sqlite:` URLs. The URL gives the file; only a fragment gives a key.

A DAG file defines many locks and opens none, so this module imports more only to open one. Must not know SQLite.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from lockstead.errors import StoreRefused
from lockstead.stores.url import BuiltInOpener

if TYPE_CHECKING:
    from lockstead.stores.sqlite.store import SqliteStore


class _Opener(BuiltInOpener):
    """The opener of `sqlite:///relative.db` and `sqlite:////absolute.db`."""

    def printable(self, store_url: str) -> str:
        """Return the absolute URL; it contains no credentials."""
        return url_of(absolute(path_of(store_url)))

    def open(self, store_url: str, client: object | None) -> SqliteStore:
        """Open the store; the file is created on first use. Raises ValueError for a URL without a file.

        Raises StoreRefused if the file cannot be there, TypeError if a client is passed.
        """
        from pathlib import Path

        from lockstead.stores.sqlite.file import check_place
        from lockstead.stores.sqlite.store import SqliteStore

        if client is not None:
            raise TypeError("a SQLite store accepts no client; name the file in the URL")
        path = path_of(store_url)
        check_place(Path(absolute(path)))
        return SqliteStore(path)


def absolute(path: os.PathLike[str] | str) -> str:
    """Return the absolute path; symbolic links are kept, because their targets may be changed on purpose.

    Raises StoreRefused for a relative path if the working directory was removed.
    """
    try:
        return os.path.abspath(path)  # noqa: PTH100 - not resolve()
    except FileNotFoundError as error:
        raise StoreRefused(
            f"cannot keep locks in {path}: the working directory was removed; give an absolute path"
        ) from error


def url_of(path: os.PathLike[str] | str) -> str:
    """Return the URL of the file at an absolute path."""
    from urllib.parse import quote

    return "sqlite:///" + quote(str(path), safe="/:@!$&*+,;=")


def path_of(store_url: str) -> str:
    """Return the path in a URL, unchanged; raise ValueError if there is none."""
    from urllib.parse import unquote

    path = unquote(store_url.removeprefix("sqlite:///"), errors="strict") if store_url.startswith("sqlite:///") else ""
    if not path or path.endswith("/") or "\0" in path:
        raise ValueError("not the URL of a SQLite store; write 'sqlite:///relative.db' or 'sqlite:////absolute.db'")
    if path == ":memory:":
        raise ValueError("SQLite's ':memory:' is seen by one connection only; use the store 'memory:'")
    return path


OPENER: Final = _Opener()

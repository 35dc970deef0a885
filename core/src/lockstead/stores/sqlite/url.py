"""What a `sqlite:` URL says: which file, and that only a fragment names a key.

A DAG file names many locks and opens none, so this file imports nothing but to open one. Must not know SQLite.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from lockstead.stores.port import Opener

if TYPE_CHECKING:
    from lockstead.protocol.commands import Traits
    from lockstead.stores.sqlite.store import SqliteStore


class _Opener(Opener):
    """Opens `sqlite:///relative.db` and `sqlite:////absolute.db`."""

    @property
    def traits(self) -> Traits:
        from lockstead.stores.sqlite.store import TRAITS

        return TRAITS

    def printable(self, store_url: str) -> str:
        """Return the absolute URL: there are no credentials in it."""
        return url_of(absolute(path_of(store_url)))

    def open(self, store_url: str, client: object | None) -> SqliteStore:
        """Open the file, which is made when first used. ValueError for a URL that names none.

        StoreRefused if there cannot be such a file there, TypeError for a client.
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
    """Return an absolute path, links left as they are: one may be turned on purpose.

    StoreRefused for a relative path where the working directory was removed.
    """
    try:
        return os.path.abspath(path)  # noqa: PTH100 - not resolve()
    except FileNotFoundError as error:
        from lockstead.errors import StoreRefused

        raise StoreRefused(
            f"cannot keep locks in {path}: the working directory was removed; give an absolute path"
        ) from error


def url_of(path: os.PathLike[str] | str) -> str:
    """Return the URL of a file, from its absolute path."""
    from urllib.parse import quote

    return "sqlite:///" + quote(str(path), safe="/:@!$&*+,;=")


def path_of(store_url: str) -> str:
    """Return the path that a URL names, as it stands there; ValueError if it names none."""
    from urllib.parse import unquote

    path = unquote(store_url.removeprefix("sqlite:///"), errors="strict") if store_url.startswith("sqlite:///") else ""
    if not path or path.endswith("/") or "\0" in path:
        raise ValueError("not the URL of a SQLite store; write 'sqlite:///relative.db' or 'sqlite:////absolute.db'")
    if path == ":memory:":
        raise ValueError("SQLite's ':memory:' is seen by one connection only; use the store 'memory:'")
    return path


OPENER: Final = _Opener()

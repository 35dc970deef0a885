"""Follows a growing file: its new complete lines, each returned once."""

from __future__ import annotations

from pathlib import Path


class Tail:
    """The lines of one file from its beginning; a missing file has none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def news(self) -> list[str]:
        """Return the lines that were written since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                content = file.read()
        except FileNotFoundError:
            return []
        # An incomplete line is returned by a later call.
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode("utf-8", "replace").splitlines()

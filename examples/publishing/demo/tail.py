"""Follows a file that others write: its new whole lines, each given once. Must not know what stands in them."""

from __future__ import annotations

from pathlib import Path


class Tail:
    """The lines of one file, from its beginning on; one that is not there yet has none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def news(self) -> list[str]:
        """Return the lines that were written since the last time."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                content = file.read()
        except FileNotFoundError:
            return []
        # A line that is still being written is read the next time.
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode("utf-8", "replace").splitlines()

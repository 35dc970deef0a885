"""The object names of a repository, and the numbers of its versions. Pure.

latest_version.txt         the pointer: the number readers are sent to; the commit point
versions/7/version.txt     who claimed number 7, and upon which version it builds
versions/7/manifest.json   what version 7 consists of; written last, so its presence means "sealed"
versions/7/...             what readers see
incoming/<sha256>          packages, uploaded before anybody held the lock
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from examples.publishing.errors import Refused

CLAIM = "version.txt"
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Layout:
    """The object names of one repository; prefix is empty or ends in a slash."""

    prefix: str

    @property
    def pointer(self) -> str:
        """Return the name of the pointer, the only object that changes."""
        return f"{self.prefix}latest_version.txt"

    @property
    def versions(self) -> str:
        """Return the prefix of the names of all objects in versions."""
        return f"{self.prefix}versions/"

    def version(self, number: int, path: str = "") -> str:
        """Return the name of a file inside a version; without a path, the prefix of all of them."""
        return f"{self.versions}{number}/{path}"

    def incoming(self, sha256: str) -> str:
        """Return the name of a package that waits for publication."""
        return f"{self.prefix}incoming/{sha256}"


def number_of(text: bytes, where: str) -> int:
    """Parse the pointer's text; Refused if it is not a plain number."""
    if not re.fullmatch(rb"0|[1-9][0-9]{0,8}", text.strip()):
        raise Refused(f"{where} says {text[:40]!r}, which is not a version number; put the right number back by hand")
    return int(text)


def numbers_of(folders: Iterable[str]) -> tuple[int, ...]:
    """Return the version numbers among folder names, ascending; other names are ignored."""
    return tuple(sorted(int(folder) for folder in folders if re.fullmatch(r"[1-9][0-9]{0,8}", folder)))


def next_number(pointer: int, seen: Iterable[int]) -> int:
    """Return an unused number: one above all that exist.

    Numbers of incomplete versions are never reused: their publisher may only be paused, and would then write into
    another publisher's version.
    """
    return max((pointer, *seen)) + 1


def prunable(numbers: Iterable[int], pointer: int, chain: Iterable[int], keep: int) -> tuple[int, ...]:
    """Return the versions that may be removed: below the pointer, and not among its last `keep` ancestors.

    A version above the pointer is never removed: its publisher may be about to commit it.
    """
    kept = set(tuple(chain)[:keep])
    return tuple(sorted(number for number in numbers if number < pointer and number not in kept))

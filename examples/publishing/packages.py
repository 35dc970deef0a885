"""The interfaces of packages and repository formats. Pure: the formats are in apt.py and yum.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeAlias

from examples.publishing.signing import Signer, Verifier

Identity: TypeAlias = tuple[str, str, str]
"""Name, version (with epoch and release), architecture: unique in a repository."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package in an index.

    path: its path inside a version. entry: what the format needs to write the index; opaque to others.
    """

    name: str
    version: str
    arch: str
    path: str
    size: int
    sha256: str
    entry: object = field(compare=False, repr=False)

    @property
    def identity(self) -> Identity:
        """Return what identifies the package in a repository."""
        return self.name, self.version, self.arch

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.arch})"


@dataclass(frozen=True, slots=True)
class Index:
    """The content of a version's index: its packages, and when it was signed (to the second)."""

    packages: tuple[Package, ...]
    signed_at: datetime


class Format(Protocol):
    """A repository format."""

    @property
    def name(self) -> str:
        """Return `apt` or `yum`: the format's name, also its folder and its key in the lock store."""
        ...

    @property
    def suffix(self) -> str:
        """Return the suffix of its package files."""
        ...

    @property
    def revalidated(self) -> str | None:
        """Return the file that clients request with If-Modified-Since, whose resolution is a second; None if there is
        none."""
        ...

    def inspect(self, path: Path) -> Package:
        """Parse a package file; Refused if it is not a package, or has a name that cannot be part of a URL."""
        ...

    def read_index(self, read: Callable[[str], bytes], verifier: Verifier) -> Index:
        """Parse a version's index; BadSignature if the verifier's key did not sign it, Refused if it is damaged."""
        ...

    def write_index(self, packages: Iterable[Package], signer: Signer, at: datetime) -> Mapping[str, bytes]:
        """Create and sign the index; return the contents by path inside the version."""
        ...

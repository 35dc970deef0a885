"""What a package and a repository format are to the pipeline. Pure: the formats are in apt.py and yum.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeAlias

from examples.publishing.signing import Signer, Verifier

Identity: TypeAlias = tuple[str, str, str]
"""Name, version (with epoch and release), architecture: at most one package in a repository has it."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package as an index shows it.

    path: where it lies inside a version. entry: what the format itself put there to write the index with; nobody
    else looks into it.
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
        """What makes two packages the same one."""
        return self.name, self.version, self.arch

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.arch})"


@dataclass(frozen=True, slots=True)
class Index:
    """What a version offers: its packages, and when it was signed (to the second)."""

    packages: tuple[Package, ...]
    signed_at: datetime


class Format(Protocol):
    """A kind of repository."""

    @property
    def name(self) -> str:
        """`apt` or `yum`: also its folder, and its key in the lock store."""
        ...

    @property
    def suffix(self) -> str:
        """How its package files end."""
        ...

    @property
    def revalidated(self) -> str | None:
        """The file that clients ask for by "has it changed since?", to the second; None if they do not ask so."""
        ...

    def inspect(self, path: Path) -> Package:
        """Read a package file; Refused if it is none, or has a name that cannot stand in a URL."""
        ...

    def read_index(self, read: Callable[[str], bytes], verifier: Verifier) -> Index:
        """Read a version's index; BadSignature if it is not signed by the verifier's key, Refused if it is damaged."""
        ...

    def write_index(self, packages: Iterable[Package], signer: Signer, at: datetime) -> Mapping[str, bytes]:
        """Write and sign the index: content by path inside the version."""
        ...

"""The list of a version's files, and its comparison with a listing. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from examples.publishing.bucket import Stat
from examples.publishing.errors import Refused
from examples.publishing.layout import MANIFEST

CHAIN_MAX = 100


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Size in bytes and CRC32C: what a listing contains about an object, without its content."""

    size: int
    crc32c: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of a sealed version.

    chain: its ancestors, the nearest first (at most 100). index_ages: for each index file, how many versions ago it was
    current; 0 for this version's own. files: all files except the manifest.
    """

    number: int
    chain: tuple[int, ...]
    index_ages: Mapping[str, int]
    files: Mapping[str, FileFacts]

    def to_bytes(self) -> bytes:
        """Return it as JSON with its own digest: the same bytes for the same content."""
        fields = {
            "version": self.number,
            "chain": list(self.chain[:CHAIN_MAX]),
            "index": dict(sorted(self.index_ages.items())),
            "files": {path: [facts.size, facts.crc32c] for path, facts in sorted(self.files.items())},
        }
        return json.dumps({"manifest": fields, "sha256": _digest(fields)}, indent=1).encode()

    @classmethod
    def from_bytes(cls, content: bytes, where: str) -> Manifest:
        """Parse the output of `to_bytes`; Refused if it is anything else."""
        try:
            document = json.loads(content)
            fields = document["manifest"]
            if document["sha256"] != _digest(fields):
                raise ValueError
            return cls(
                int(fields["version"]),
                tuple(int(number) for number in fields["chain"]),
                {str(path): int(age) for path, age in fields["index"].items()},
                {str(path): FileFacts(int(size), str(crc)) for path, (size, crc) in fields["files"].items()},
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            raise Refused(f"{where} is damaged; publish an older version again with `rollback`") from None


def _digest(fields: object) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def facts_by_path(listing: Iterable[Stat], prefix: str) -> dict[str, FileFacts]:
    """Return the facts from a version's listing about everything but its manifest."""
    return {
        stat.name.removeprefix(prefix): FileFacts(stat.size, stat.crc32c)
        for stat in listing
        if stat.name != prefix + MANIFEST
    }


def differences(meant: Mapping[str, FileFacts], found: Mapping[str, FileFacts]) -> tuple[str, ...]:
    """Describe how two sets of files differ; empty if they are equal."""
    missing = [f"{path} is missing" for path in sorted(meant.keys() - found.keys())]
    extra = [f"{path} does not belong there" for path in sorted(found.keys() - meant.keys())]
    changed = [
        f"{path} has {found[path].size} bytes (crc32c {found[path].crc32c}) instead of {meant[path].size}"
        f" ({meant[path].crc32c})"
        for path in sorted(meant.keys() & found.keys())
        if meant[path] != found[path]
    ]
    return (*missing, *extra, *changed)

"""The mounts that this process sees. Source: proc(5), mountinfo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount: its mount point (a folder or file), its root within its file system, and the file system's type."""

    point: Path
    root: str
    kind: str


def mounts() -> list[Mount]:
    """Return the mounts of this process, later ones on top of earlier ones; an empty list if they cannot be read."""
    try:
        return mounts_in(Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape"))
    except OSError:
        return []


def mounts_in(mountinfo: str) -> list[Mount]:
    """Return the mounts of a mountinfo file; malformed lines are skipped."""
    found = []
    for line in mountinfo.splitlines():
        place, _, source = line.partition(" - ")
        columns = place.split(" ")
        if len(columns) >= 5 and source:
            found.append(Mount(Path(_plain(columns[4])), _plain(columns[3]), source.split(" ")[0]))
    return found


def mount_of(path: Path, mounted: list[Mount]) -> Mount | None:
    """Return the mount that an absolute path is on; None if there is none. Links are not followed."""
    best: Mount | None = None
    for mount in mounted:
        covers = mount.point == path or mount.point in path.parents
        if covers and (best is None or len(mount.point.parts) >= len(best.point.parts)):
            best = mount
    return best


def _plain(escaped: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        escaped = escaped.replace(code, character)
    return escaped

"""What a store on this very machine calls its time: the boot clock, and which boot and namespace it belongs to.

Must not know any store. Readings of two processes compare only within one boot and one time namespace. Containers may
show an identifier of their own in the place of the kernel's (LXC and systemd-nspawn mount one over it, sysbox emulates
the folder): such a one says nothing of the boot, for the kernel and all others on it live on. It counts as not known.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from lockstead.stores.mounts import Mount, mount_of, mounts

# Linux's monotonic clock stops in suspend, while the lease runs out: only the boot clock sees that time go by.
_BOOT: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_now() -> float:
    """Return seconds on the boot clock of this process's time namespace."""
    return time.clock_gettime(_BOOT)


_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str | None:
    """Return the identifier of this boot of this kernel; None where the system has none, or shows another one."""
    try:
        text = _BOOT_ID.read_text("ascii").strip()
        return text if text and is_of_the_kernel(mounts()) else None
    except (OSError, UnicodeDecodeError):
        return None


def is_of_the_kernel(mounted: list[Mount]) -> bool:
    """Return whether the file of the boot's identifier is the kernel's own, and not one that is mounted over it."""
    mount = mount_of(_BOOT_ID, mounted)
    if mount is None or mount.kind != "proc":
        return False
    return Path(mount.root) / _BOOT_ID.relative_to(mount.point) == Path("/sys/kernel/random/boot_id")


def time_namespace() -> str | None:
    """Return a name for the clock that this process reads, among all of one boot; None where it cannot be told.

    Source: time_namespaces(7).
    """
    try:
        ours = os.readlink("/proc/self/ns/time")  # noqa: PTH115 - a magic link, its target is not a path
        children = os.readlink("/proc/self/ns/time_for_children")  # noqa: PTH115
        offsets = Path("/proc/self/timens_offsets").read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return None
    # The file shows the offsets of the namespace that children enter, so it speaks of ours only where both are one.
    if ours != children:
        return None
    # The kernel hands a dead namespace's number to the next one: the offset tells the two apart.
    for line in offsets.splitlines():
        clock, *offset = line.split()
        if clock in ("boottime", "7"):
            return f"{ours}+{'.'.join(offset)}"
    return None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a boot clock was read: which boot of which kernel, and which of its clocks. None where it is not known."""

    boot: str | None
    namespace: str | None

    @classmethod
    def here(cls) -> Self:
        """Return the place of this process. A forked child may be in another one."""
        return cls(boot_id(), time_namespace())

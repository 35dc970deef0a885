"""The clock of a store on the local machine: the boot clock, and the boot and time namespace it belongs to.

Must not know any store. Readings of two processes are comparable only within one boot and one time namespace. A
container may show a boot id of its own instead of the kernel's (LXC and systemd-nspawn mount one over it, sysbox
emulates the folder). Such an id does not identify the boot, because the kernel and other containers keep running when
it changes. It is treated as unknown.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self

from lockstead.stores.mounts import Mount, mount_of, mounts

# Linux's monotonic clock stops during suspend although the lease keeps expiring; only the boot clock counts that time.
_BOOT: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

boot_now: Final = partial(time.clock_gettime, _BOOT)
"""Returns the boot clock of this process's time namespace, in seconds."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str | None:
    """Return the kernel's boot id; None if the system has none, or shows one that is not the kernel's."""
    try:
        text = _BOOT_ID.read_text("ascii").strip()
        return text if text and is_of_the_kernel(mounts()) else None
    except (OSError, UnicodeDecodeError):
        return None


def is_of_the_kernel(mounted: list[Mount]) -> bool:
    """Return whether the boot id file is the kernel's own, and not another file mounted over it."""
    mount = mount_of(_BOOT_ID, mounted)
    if mount is None or mount.kind != "proc":
        return False
    return Path(mount.root) / _BOOT_ID.relative_to(mount.point) == Path("/sys/kernel/random/boot_id")


def time_namespace() -> str | None:
    """Return a name for this process's boot clock that is unique within one boot; None if it cannot be determined.

    Source: time_namespaces(7).
    """
    try:
        ours = os.readlink("/proc/self/ns/time")  # noqa: PTH115 - a magic link, its target is not a path
        children = os.readlink("/proc/self/ns/time_for_children")  # noqa: PTH115
        offsets = Path("/proc/self/timens_offsets").read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return None
    # The file shows the offsets of the namespace that children enter, so it describes ours only if both are the same.
    if ours != children:
        return None
    # The kernel reuses the number of a deleted namespace; the offset distinguishes the two.
    for line in offsets.splitlines():
        clock, *offset = line.split()
        if clock in ("boottime", "7"):
            return f"{ours}+{'.'.join(offset)}"
    return None


@dataclass(frozen=True, slots=True)
class BootIdentity:
    """The boot and the time namespace in which a boot clock was read. None if unknown."""

    boot: str | None
    namespace: str | None

    @classmethod
    def here(cls) -> Self:
        """Return the place of this process. A forked child may be in another one."""
        return cls(boot_id(), time_namespace())

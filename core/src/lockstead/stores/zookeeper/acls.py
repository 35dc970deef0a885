"""The ACL of new nodes, read from a file in the format of ZooKeeper's shell.

Must not know sessions or records.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from kazoo.security import ACL, CREATOR_ALL_ACL, Id, Permissions

from lockstead.errors import StoreRefused

FILE_BYTES_MAX: Final = 65_536

_ENTRY: Final = re.compile(r"(\w+):(.+):([cdrwa]+)")
_RIGHTS: Final = {
    "c": Permissions.CREATE,
    "d": Permissions.DELETE,
    "r": Permissions.READ,
    "w": Permissions.WRITE,
    "a": Permissions.ADMIN,
}


def acl_of(file: str) -> list[Any]:
    """Return the ACL of new nodes from a file of entries SCHEME:ID:RIGHTS, separated by newlines or commas.

    Raises StoreRefused.
    """
    try:
        with Path(file).open("rb") as opened:
            text = opened.read(FILE_BYTES_MAX).decode()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise StoreRefused(f"the file of acl= in the URL of a ZooKeeper store cannot be read: {file}: {why}") from error
    acl: list[Any] = []
    for number, entry in enumerate(re.split(r"[,\s]+", text.strip()), 1):
        found = _ENTRY.fullmatch(entry)
        if found is None:
            # without the entry itself, which may contain the hash of a password
            raise StoreRefused(
                f"entry {number} of {file}, which acl= in the URL of a ZooKeeper store names, is not "
                "SCHEME:ID:RIGHTS, as digest:contender:HASH:cdrw"
            )
        acl.append(ACL(sum({_RIGHTS[right] for right in found[3]}), Id(found[1], found[2])))
    return acl


def is_open(acl: list[Any]) -> bool:
    """Return whether an ACL lets everyone change a node."""
    return any(one.id.scheme == "world" and one.perms & ~Permissions.READ for one in acl)


def acl_of_entry(default: list[Any]) -> list[Any]:
    """Return the ACL of an entry of the history: if the default names users, only the entry's writer may change it."""
    readers = [one.id for one in default if one.perms & Permissions.READ and one.id.scheme not in {"world", "auth"}]
    return [*CREATOR_ALL_ACL, *(ACL(Permissions.READ, one) for one in readers)] if readers else default

"""The three stores, and records in them as another version would have left them.

Records are put there by the store's own commands, below everything that reads or writes them for this version's users.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import lockstead
from lockstead.protocol.commands import Create, Extend, List, Listing, Read, Snapshot
from lockstead.stores.port import Store
from lockstead.values import LeaseTicket, Name, Space

LIMIT = 10.0


@dataclass(frozen=True)
class Place:
    """One store: as its users see it, and from below. elapse lets so much time go by that a ttl of 1 s is over."""

    client: lockstead.Client
    store: Store
    elapse: Callable[[], None]

    def put(self, fields: Mapping[str, str], key: str = "apt", space: Space = Space.LOCK, part: str = "") -> Snapshot:
        """Write a record as it is given."""
        made = self.store.perform(Create(Name(key, space, part), fields), LIMIT)
        assert isinstance(made, Snapshot)
        return made

    def change(self, fields: Mapping[str, str], key: str = "apt") -> None:
        """Write some fields of a record, without renewing anything for anybody."""
        assert isinstance(self.store.perform(Extend(Name(key), fields, None), LIMIT), Snapshot)

    def see(self, key: str = "apt") -> Snapshot:
        """Return the record as it stands."""
        seen = self.store.perform(Read(Name(key)), LIMIT)
        assert isinstance(seen, Snapshot)
        return seen

    def names(self, space: Space) -> list[Name]:
        """Return the names of the records of a space."""
        listed = self.store.perform(List(space), LIMIT)
        assert isinstance(listed, Listing)
        return [name for name, _ in listed.entries]

    def ticket(self, seen: Snapshot, key: str = "apt") -> LeaseTicket:
        """Return the ticket of a lease whose record was put here."""
        ttl = float(seen.fields.get("ttl", "300"))
        return LeaseTicket(self.store.url, key, seen.fields["identity"], seen.incarnation, ttl)

    def moved_on(self, revision: str, key: str = "apt", times: int = 1) -> Snapshot:
        """Wait until a record was renewed so often since `revision`."""
        ends_at = time.monotonic() + 60
        while int((seen := self.see(key)).revision) < int(revision) + times:
            assert time.monotonic() < ends_at
            time.sleep(0.02)
        return seen

"""The contract that readers rely on: registrations under a lock, and listings that show all that were answered."""

from __future__ import annotations

import threading
from typing import Final

from lockstead.lock import Client
from lockstead.protocol.commands import Absent, Conflict, Create, Extend, Read, Remove, Removed, Replace
from lockstead.stores.port import Store
from lockstead.testing.conformance.base import (
    APT,
    Perform,
    Suite,
    created,
    in_threads,
    is_a,
    listed,
    performing,
    require,
    shows,
)
from lockstead.values import SHARED, Name, Space

ROUNDS: Final = 12
TTL_MIN: Final = 30.0


def _member(part: str) -> Name:
    return Name("apt", Space.MEMBER, part)


class ReadersConformance(Suite):
    """Registrations of readers, and a group that a writer waits for."""

    def test_a_registration_is_renewed_and_removed_as_a_lock_is(self, perform: Perform) -> None:
        name = _member("1/a")
        made = shows(perform(Create(name, {"v": "1", "identity": "a"}, 30.0, "", 33.0)))
        is_a(Conflict, perform(Create(name, {"v": "1", "identity": "b"}, 30.0, "", 33.0)))
        renewed = shows(perform(Extend(name, {"n": "1"}, made.incarnation)))
        # one that renewed since it was judged is alive
        is_a(Conflict, perform(Remove(name, made.incarnation, made.revision)))
        is_a(Removed, perform(Remove(name, made.incarnation, renewed.revision)))
        is_a(Absent, perform(Extend(name, {}, made.incarnation)))
        is_a(Absent, perform(Read(name)))

    def test_m01_a_listing_shows_every_registration_answered_before(self, perform: Perform, twin: Store) -> None:
        by_twin = performing(twin, self.limit)
        made = created(perform, APT)
        prefix, names = f"{made.incarnation}/", set()
        for number in range(3):
            name = _member(f"{prefix}{number}")
            registration = created(perform, name)
            names.add(name)
            shows(by_twin(Extend(APT, {"wanted": f"w#{number}"}, made.incarnation)))
            require(
                set(listed(by_twin, Space.MEMBER, "apt", prefix)) == names, "a listing does not show a registration"
            )
        is_a(Removed, by_twin(Remove(name, registration.incarnation)))
        require(set(listed(perform, Space.MEMBER, "apt", prefix)) == names - {name}, "a listing shows what was removed")

    def test_m01_a_reader_and_a_writer_see_each_other(self, perform: Perform, twin: Store) -> None:
        """The reader registers and reads, the writer marks and lists: if neither saw the other, both would work."""
        by_twin = performing(twin, self.limit)
        for number in range(ROUNDS):
            group = created(perform, APT)
            name, started = _member(f"{group.incarnation}/{number}"), threading.Barrier(2)

            def reads(name: Name = name, started: threading.Barrier = started) -> bool:
                started.wait(self.limit)
                created(perform, name)
                return "wanted" in shows(perform(Read(APT))).fields

            def writes(name: Name = name, started: threading.Barrier = started, at: str = group.incarnation) -> bool:
                started.wait(self.limit)
                shows(by_twin(Extend(APT, {"wanted": "w#1"}, at)))
                return name in listed(by_twin, Space.MEMBER, "apt", f"{at}/")

            require(
                any(in_threads([reads, writes])), f"in round {number} neither the reader nor the writer saw the other"
            )
            is_a(Removed, perform(Remove(APT, group.incarnation)))

    def test_m02_a_group_is_replaced_only_as_it_was_marked(self, perform: Perform) -> None:
        group = created(perform, APT, {"v": "2", "identity": "shared/a", "mode": SHARED})
        marked = shows(perform(Extend(APT, {"wanted": "w#1"}, group.incarnation)))
        shows(perform(Extend(APT, {"wanted": ""}, group.incarnation, marked.revision)))
        is_a(Conflict, perform(Replace(APT, {"identity": "w"}, group.incarnation, marked.revision)))
        is_a(Conflict, perform(Extend(APT, {"wanted": ""}, group.incarnation, marked.revision)))

    def test_readers_share_a_lock_and_a_writer_waits_for_all(self, store: Store, twin: Store) -> None:
        ttl = max(TTL_MIN, 2 * store.traits.ttl_recommended)
        with Client(store) as one, Client(twin) as other:
            reading, writer = (
                (client.lock("apt", ttl=ttl, mode=SHARED) for client in (one, other)),
                other.lock("apt", ttl=ttl),
            )
            first, second = (lock.try_acquire() for lock in reading)
            held = writer.inspect()
            if first is None or second is None or held is None or len(held.readers) != 2:
                raise AssertionError(f"two readers were to hold it, but it shows {held}")
            require(first.token == second.token, "two readers of a group have different tokens")
            first.release()
            require(writer.try_acquire() is None, "a writer got in beside a reader")
            second.release()
            written = writer.try_acquire()
            require(written is not None, "the last reader left, and a writer does not get in")
            require(one.lock("apt", ttl=ttl, mode=SHARED).try_acquire() is None, "a reader got in beside a writer")

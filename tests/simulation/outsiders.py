"""Actors that use the store without a lease: operators, administrators, another implementation.

Must not know the properties of a correct protocol, which are in `properties`.
"""

from __future__ import annotations

from typing import Any, Final

from lockstead.errors import StoreError
from lockstead.protocol import expiry
from lockstead.protocol.commands import Create, Extend, Remove, Replace, Reply, Script, Snapshot
from lockstead.protocol.record import Revocation, number
from lockstead.protocol.release import Broken, break_lease
from lockstead.values import Name, Space
from tests.simulation.machine import Machine
from tests.simulation.process import Process
from tests.simulation.store import SimulatedStore

DAMAGED: Final = {"v": "1"}
"""The fields of a damaged record."""


class Operator(Process):
    """An operator who breaks locks, and an administrator who deletes records."""

    __slots__ = ("key", "store")

    key: Name
    store: SimulatedStore

    def breaks(self, *, at_once: bool) -> None:
        """Revoke the lease; or, with at_once, remove it without the holder's knowledge."""
        self.tell("breaks the lock" + (" at once" if at_once else ""))
        revoked = Revocation(self.name, "tidying up")

        def done(broken: Any, _: StoreError | None) -> None:
            if isinstance(broken, Broken) and broken.removed and broken.max_overlap is not None:
                self.watch.forsaken(broken.seen.incarnation, broken.max_overlap)

        script = break_lease(self.key, revoked, self.context, now=at_once, incarnation=None, salt=self.nonce())
        self.converse(self._noting(script), done)

    def _noting(self, script: Script[Any]) -> Script[Any]:
        """Run a script and record which lease each request is about to end, because the reply may be late or lost.

        A request with a revision ends a lease that was found expired, and so does not give up mutual exclusion.
        """
        command = next(script)
        while True:
            match command:
                case Remove() | Replace():
                    self.watch.at_mercy(command.incarnation)
                    self.watch.deleted(command.incarnation)
                case Extend(fields=fields, incarnation=str(incarnation), revision=None) if "ended" in fields:
                    self.watch.at_mercy(incarnation)
                case _:
                    pass
            try:
                reply = yield command
            except StoreError as error:
                raised: StoreError | None = error
            else:
                raised = None
            try:
                command = script.send(reply) if raised is None else script.throw(raised)
            except StopIteration as stop:
                return stop.value

    def deletes(self, space: Space) -> None:
        """Delete records without any process's knowledge, as an administrator of the store can."""
        for name in [name for name in self.store.entries if name.space is space]:
            entry = self.store.entries[name]
            self.store.erase(name)
            self.tell(f"deletes {name}")
            if space is Space.LOCK:
                self.watch.deleted(entry.incarnation)
            if space is Space.LOCK and "ttl" not in entry.fields:
                self.watch.at_mercy(entry.incarnation)
            elif space is Space.LOCK:
                ttl = float(entry.fields["ttl"])
                self.watch.forsaken(
                    entry.incarnation,
                    expiry.overlap_until(0.0, ttl, self.settings.drift, self.context.traits.clock_skew_max),
                )

    def damages(self, _: Any) -> None:
        """Damage the record; later an operator notices and removes it."""
        entry = self.store.entries.get(self.key)
        if entry is not None and "ttl" in entry.fields:
            self.store.spoil(self.key, DAMAGED)
            self.tell("damages the record")
            self.after(self.settings.ttl / 2, self._repairs)

    def _repairs(self, _: Any) -> None:
        if self.is_damaged:
            self.breaks(at_once=True)
            self.after(self.settings.ttl / 2, self._repairs)

    @property
    def is_damaged(self) -> bool:
        """Whether the lock's record is unreadable."""
        entry = self.store.entries.get(self.key)
        return entry is not None and entry.fields.get("v") == "1" and "ttl" not in entry.fields

    def clears(self) -> None:
        """Remove what no process of ours will remove: a damaged record, or one of another implementation."""
        entry = self.store.entries.get(self.key)
        if entry is not None and "ttl" not in entry.fields:
            self.watch.at_mercy(entry.incarnation)
            self.watch.deleted(entry.incarnation)
            self.store.erase(self.key)
            self.tell(f"clears {self.key.key}")


class Stranger(Machine):
    """Another implementation: writes `identity` and `expires_at`, never renews, and removes its own record."""

    __slots__ = ("key", "store")

    key: Name
    store: SimulatedStore

    def visits(self, holds: float) -> None:
        """Take the lock if it is free, and hold it for `holds` seconds. The wall clock is off by at most 30 s."""
        error = 60.0 * self.world.dice.random() - 30.0
        fields = {"identity": self.nonce(), "expires_at": number(self.store.time() + holds + error)}

        def asked(outcome: Any, _: StoreError | None) -> None:
            if isinstance(outcome, Reply) and isinstance(outcome.answer, Snapshot):
                self.tell("holds the lock as another implementation does")
                self.after(holds, self._goes, outcome.answer.incarnation)

        self.converse(_once(Create(self.key, fields)), asked)

    def contends(self, lasts: float) -> None:
        """Contend for `lasts` seconds like the Ruby and Go ports: take a lock that is free or expired by `expires_at`.

        Each step is one request that arrives at once, and its wall clock is 2 to 10 seconds behind. A late deletion by
        metageneration only, or a clock that is ahead, would hit a held lease (then H2 and H7 do not apply).
        """
        entry = self.store.entries.get(self.key)
        until = None if entry is None else entry.fields.get("expires_at")
        if entry is not None and until is not None and float(until) < self.wall() - 2 - 8 * self.world.dice.random():
            self.watch.expired(entry.incarnation)
            self.store.erase(self.key)
            self.tell(f"found {entry.incarnation} expired")
        pause = self.settings.ttl * 0.5 * self.world.dice.random()
        if entry is None or self.key not in self.store.entries:
            self.visits(2 * pause)
        if lasts > pause:
            self.after(pause, self.contends, lasts - pause)

    def _goes(self, incarnation: str) -> None:
        self.converse(_once(Remove(self.key, incarnation)), _ignored)


def _once(command: Create | Remove) -> Script[Reply[Any]]:
    """Send one command."""
    reply: Reply[Any] = yield command
    return reply


def _ignored(_: Any, __: StoreError | None) -> None:
    """Ignore the outcome."""

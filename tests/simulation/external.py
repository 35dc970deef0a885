"""Actors that use the store without a lease: operators, administrators, another implementation, a pruner.

Must not know the properties of a correct protocol, which are in `invariants`.
"""

from __future__ import annotations

from typing import Any, Final

from lockstead.errors import StoreError
from lockstead.protocol import expiry
from lockstead.protocol.commands import Create, Extend, Remove, Replace, Reply, Script, Snapshot
from lockstead.protocol.pruning import PruneRequest, prune
from lockstead.protocol.record import Revocation, number
from lockstead.protocol.release import Broken, break_lease
from lockstead.values import Space
from tests.simulation.machine import Machine
from tests.simulation.plan import KEY
from tests.simulation.process import Process
from tests.simulation.store import Entry

DAMAGED: Final = {"v": "1"}
"""The fields of a damaged record."""


class Operator(Process):
    """An operator who breaks locks, and an administrator who deletes records."""

    def break_lock(self, *, at_once: bool) -> None:
        """Revoke the lease; or, with at_once, remove it without the holder's knowledge."""
        self.log("breaks the lock" + (" at once" if at_once else ""))
        revoked = Revocation(self.name, "tidying up")

        def done(broken: Any) -> None:
            if isinstance(broken, Broken) and broken.removed and broken.max_overlap is not None:
                self.checker.removed_by_force(broken.seen.incarnation, broken.max_overlap)

        script = break_lease(KEY, revoked, self.context, now=at_once, incarnation=None, salt=self.nonce())
        self.run_script(self._recorded(script), done)

    def _recorded(self, script: Script[Any]) -> Script[Any]:
        """Run a script and record which lease each request is about to end, because the reply may be late or lost.

        A request with a revision ends a lease that was found expired, and so does not give up mutual exclusion.
        """
        command = next(script)
        while True:
            match command:
                case Remove() | Replace():
                    self.checker.removal_sent(command.incarnation)
                    self.checker.record_deleted(command.incarnation)
                case Extend(fields=fields, incarnation=str(incarnation), revision=None) if "ended" in fields:
                    self.checker.removal_sent(incarnation)
                case _:
                    pass
            try:
                try:
                    reply = yield command
                except StoreError as error:
                    command = script.throw(error)
                else:
                    command = script.send(reply)
            except StopIteration as stop:
                return stop.value

    def delete(self, space: Space) -> None:
        """Delete records without any process's knowledge, as an administrator of the store can."""
        for name, entry in [(name, entry) for name, entry in self.store.entries.items() if name.space is space]:
            self.store.erase(name)
            self.log(f"deletes {name}")
            if space is not Space.LOCK:
                continue
            self.checker.record_deleted(entry.incarnation)
            if "ttl" in entry.fields:
                overlap = expiry.overlap_until(
                    0.0, float(entry.fields["ttl"]), self.settings.drift, self.context.traits.clock_skew_max
                )
                self.checker.removed_by_force(entry.incarnation, overlap)
            else:
                self.checker.removal_sent(entry.incarnation)

    def damage(self) -> None:
        """Damage the record; later an operator notices and removes it."""
        entry = self.store.entries.get(KEY)
        if entry is not None and "ttl" in entry.fields:
            self.store.damage(KEY, DAMAGED)
            self.log("damages the record")
            self.after(self.settings.ttl / 2, self._repair)

    def _repair(self, _: Any) -> None:
        entry = self._unowned()
        if entry is not None and entry.fields.get("v") == "1":
            self.break_lock(at_once=True)
            self.after(self.settings.ttl / 2, self._repair)

    def _unowned(self) -> Entry | None:
        """Return the lock's record if no process of ours will remove it: a damaged or foreign one."""
        entry = self.store.entries.get(KEY)
        return None if entry is None or "ttl" in entry.fields else entry

    def clear(self) -> None:
        """Remove a record that no process of ours will remove."""
        entry = self._unowned()
        if entry is not None:
            self.checker.removal_sent(entry.incarnation)
            self.checker.record_deleted(entry.incarnation)
            self.store.erase(KEY)
            self.log(f"clears {KEY.key}")


class ForeignClient(Machine):
    """Another implementation: writes `identity` and `expires_at`, never renews, and removes its own record."""

    def take(self, holds: float) -> None:
        """Take the lock if it is free, and hold it for `holds` seconds. The wall clock is off by at most 30 s."""
        error = 60.0 * self.world.rng.random() - 30.0
        fields = {"identity": self.nonce(), "expires_at": number(self.store.time() + holds + error)}

        def taken(outcome: Any) -> None:
            if isinstance(outcome, Reply) and isinstance(outcome.answer, Snapshot):
                self.log("holds the lock as another implementation does")
                self.after(holds, self._release, outcome.answer.incarnation)

        self.run_script(_once(Create(KEY, fields)), taken)

    def _release(self, incarnation: str) -> None:
        self.run_script(_once(Remove(KEY, incarnation)))

    def contend(self, lasts: float) -> None:
        """Contend for `lasts` seconds like the Ruby and Go ports: take a lock that is free or expired by `expires_at`.

        Each step is one request that arrives at once, and its wall clock is 2 to 10 seconds behind. A late deletion by
        metageneration only, or a clock that is ahead, would hit a held lease (then H2 and H7 do not apply).
        """
        entry = self.store.entries.get(KEY)
        until = None if entry is None else entry.fields.get("expires_at")
        if entry is not None and until is not None and float(until) < self.wall() - 2 - 8 * self.world.rng.random():
            self.checker.found_expired(entry.incarnation)
            self.store.erase(KEY)
            self.log(f"found {entry.incarnation} expired")
        pause = self.settings.ttl * 0.5 * self.world.rng.random()
        if entry is None or KEY not in self.store.entries:
            self.take(2 * pause)
        if lasts > pause:
            self.after(pause, self.contend, lasts - pause)


class Pruner(Machine):
    """A process that prunes all the time, with no regard to age, and with a wall clock that is days off.

    is_thorough: it takes no breaks.
    """

    is_thorough = False

    def begin(self, _: Any = None) -> None:
        """Prune once, and then again."""
        rng = self.world.rng
        self.set_wall_clock(1e6 * rng.random() - 5e5)
        request = PruneRequest(
            older_than=0.0 if self.is_thorough else rng.choice((0.0, 0.0, self.settings.ttl)),
            history_older_than=0.0,
            between=rng.choice((0.01, 0.01, self.settings.ttl / 4)),
            wall_now=self.wall(),
            salt=self.nonce(),
            by=self.name,
            forgets=self.plan.forgets,
        )
        if not self.is_thorough and self.chance(0.05):
            self.pause(2 * self.settings.ttl * rng.random() ** 2)
        self.run_script(self._recorded(prune(request, self.context)), self._again)

    def _again(self, _: Any) -> None:
        self.after(2 * self.plan.prunes_every * self.world.rng.random(), self.begin)

    def _recorded(self, script: Script[Any]) -> Script[Any]:
        """Run a script and record which locks the history alone has from now on."""
        command = next(script)
        while True:
            if self.plan.forgets and isinstance(command, Remove) and command.name.space is Space.LOCK:
                self.checker.record_deleted(command.incarnation)
            if isinstance(command, Remove):
                self.log(f"prunes {command.name}")
            try:
                try:
                    reply = yield command
                except StoreError as error:
                    command = script.throw(error)
                else:
                    command = script.send(reply)
            except StopIteration as stop:
                return stop.value


def _once(command: Create | Remove) -> Script[Reply[Any]]:
    """Send one command."""
    reply: Reply[Any] = yield command
    return reply

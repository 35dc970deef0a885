"""The operations on a semaphore other than acquiring, for blocking and awaiting callers alike. Each is a script."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from lockstead import registry
from lockstead.operations import LockOperations
from lockstead.protocol import permits
from lockstead.protocol.commands import List, Script, ask
from lockstead.protocol.record import gate_limit
from lockstead.protocol.waiting import Found
from lockstead.runtime.engine import Engine, fresh_nonce
from lockstead.runtime.run import Limits
from lockstead.settings import Settings
from lockstead.values import Duration, Space, checked_permits, checked_slot, seconds
from lockstead.views import BreakResult, Permits, permits_of


@dataclass(frozen=True, slots=True)
class SemaphoreOperations:
    """The operations on one semaphore of an open client."""

    engine: Engine
    key: str
    settings: Settings

    def inspected(self) -> Script[Permits | None]:
        """Return the limit and the holders; None if there is no semaphore."""
        self.engine.refuse_if_closed()
        context = self.engine.context(self.settings)
        gate = yield from permits.read_gate(self.key, context)
        if gate is None:
            return None
        listed = yield from ask(List(Space.PERMIT, self.key))
        return permits_of(self.key, gate_limit(self.key, gate.fields), listed.answer.entries, context)

    def freed(self, timeout: Duration | None) -> tuple[Script[Found], Limits]:
        """Wait until a permit is free, without acquiring it; as `LockOperations.freed`."""
        slot = LockOperations(self.engine, self.key, self.settings, "0")
        return slot.freed(timeout, partial(permits.found, self.key))

    def resized(self, limit: int, wait: Duration | None) -> Script[bool]:
        """Set the limit; return whether it is in effect."""
        checked_permits(limit, 0)
        self.engine.refuse_if_closed()
        context = self.engine.context(self.settings)
        return permits.resize(self.key, limit, self._by(), context, wait_until=self._until(wait))

    def removed(self, wait: Duration | None) -> Script[bool]:
        """Close and remove the semaphore; False if a permit is held."""
        self.engine.refuse_if_closed()
        return permits.remove(self.key, self._by(), self.engine.context(self.settings), wait_until=self._until(wait))

    def broken(
        self, slot: int, *, reason: str, by: str | None, now: bool, incarnation: str | None
    ) -> Script[BreakResult | None]:
        """Break the lease of one permit."""
        lock = LockOperations(self.engine, self.key, self.settings, str(checked_slot(slot)))
        return lock.broken(reason=reason, by=by, now=now, incarnation=incarnation)

    def _by(self) -> str:
        """Return who changes the limit, in a text that no other change has."""
        return f"{self.settings.owner or registry.person()}/{fresh_nonce()}"

    def _until(self, wait: Duration | None) -> float | None:
        return None if wait is None else self.engine.clock.now() + seconds(wait, "wait")

    @property
    def limits(self) -> Limits:
        """The limits of scripts that wait: they end when the client is closed."""
        return Limits(self.settings.request_timeout, refuse_if_closed=self.engine.refuse_if_closed)

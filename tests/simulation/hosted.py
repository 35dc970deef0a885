"""A real store in a run: it carries out the commands, and this module records them for the invariants.

Must not know which store it is, nor what fields mean. The store must use only the clock that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from lockstead.protocol.commands import Command, Create, Extend, Remove, Removed, Replace, Snapshot
from lockstead.stores.port import Store
from lockstead.values import Name
from tests.simulation.store import Session, SimulatedStore
from tests.simulation.world import BootClock, World

OpenStore: TypeAlias = Callable[[Callable[[], float]], Store]
"""A function that opens an empty store for one run; its argument is a clock with the run's time in seconds."""

LIMIT: Final = 30.0


class HostedStore(SimulatedStore):
    """A real store in virtual time. It cannot be damaged from outside, because no command removes a field."""

    def __init__(self, world: World, clock: BootClock, open_store: OpenStore) -> None:
        self._inner = open_store(lambda: clock.at(world.now))
        super().__init__(world, self._inner.traits, clock)

    def perform(self, command: Command[Any], session: Session | None = None, sent_at: float | None = None) -> Any:
        """Carry out one command on the real store at this true instant, and record the result."""
        del session, sent_at
        reply = self._inner.perform(command, LIMIT)
        match command, reply:
            case ((Create() | Replace()), Snapshot()):
                name, now = command.name, self.time()
                self._record_grant(name, reply.fields, reply.incarnation, now, now, self.entries.get(name))
            case Extend(), Snapshot():
                entry = self.entries[command.name]
                entry.fields = reply.fields
                entry.committed_at = self.touched_at[command.name] = self._world.now
            case Remove(), Removed():
                self.entries.pop(command.name, None)
            case _:
                pass
        return reply

    def damage(self, name: Name, fields: Mapping[str, str]) -> None:
        """Do nothing: a real store cannot be damaged, see the class."""

    def erase(self, name: Name) -> None:
        """Delete a record without any process's knowledge."""
        self._inner.perform(Remove(name, self.entries.pop(name).incarnation), LIMIT)

    def close(self) -> None:
        """Close the store at the end of the run."""
        self._inner.close()

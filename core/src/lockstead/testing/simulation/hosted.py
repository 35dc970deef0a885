"""How a real store takes part in a run: it answers, and the books that properties are checked against are kept.

Must not know which store it is, nor what fields mean. The store must read the clock that it is given, and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from lockstead.protocol.commands import Command, Create, Extend, Remove, Removed, Replace, Snapshot
from lockstead.stores.port import Store
from lockstead.testing.simulation.store import Entry, SimulatedStore
from lockstead.testing.simulation.world import BootClock, World
from lockstead.values import Name

Opened: TypeAlias = Callable[[Callable[[], float]], Store]
"""Opens a store on an empty place, for one run; it is given a clock that reads the run's own time in seconds."""

LIMIT: Final = 30.0


class Hosted(SimulatedStore):
    """A real store in virtual time. It cannot be damaged by hand, since no command takes a field away."""

    __slots__ = ("_inner",)

    def __init__(self, world: World, clock: BootClock, opened: Opened) -> None:
        self._inner = opened(lambda: clock.at(world.now))
        super().__init__(world, self._inner.traits, clock)

    def perform(self, command: Command[Any]) -> Any:
        """Let the store carry out one command at this true instant, and note what became of it."""
        answer = self._inner.perform(command, LIMIT)
        if isinstance(answer, Snapshot):
            self._note(command, answer)
        elif isinstance(answer, Removed) and isinstance(command, Remove):
            self.entries.pop(command.name, None)
        return answer

    def _note(self, command: Command[Any], shown: Snapshot) -> None:
        now = self._world.now
        if isinstance(command, Create | Replace):
            self._grants += 1
            self.order[shown.incarnation] = self._grants
            was = self.entries.get(command.name)
            time = self.time()
            entry = Entry(shown.fields, shown.incarnation, 1, time, int(time * 1000), now, self._grants)
            self.entries[command.name] = entry
            self.touched_at[command.name] = now
            if self.on_grant is not None:
                self.on_grant(command.name, entry, was)
        elif isinstance(command, Extend):
            entry = self.entries[command.name]
            entry.fields = shown.fields
            entry.committed_at = self.touched_at[command.name] = now

    def spoil(self, name: Name, fields: Mapping[str, str]) -> None:
        """Do nothing: see the class."""

    def erase(self, name: Name) -> None:
        """Delete a record behind everybody's back."""
        self._inner.perform(Remove(name, self.entries.pop(name).incarnation), LIMIT)

    def close(self) -> None:
        """Close the store: the run is over."""
        self._inner.close()

"""A real store in a run: it carries out the commands, and this module records them for the checks of properties.

Must not know which store it is, nor what fields mean. The store must use only the clock that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from lockstead.protocol.commands import Command, Create, Extend, Remove, Removed, Replace, Snapshot
from lockstead.stores.port import Store
from lockstead.values import Name
from tests.simulation.store import Entry, SimulatedStore
from tests.simulation.world import BootClock, World

Opened: TypeAlias = Callable[[Callable[[], float]], Store]
"""A function that opens an empty store for one run; its argument is a clock with the run's time in seconds."""

LIMIT: Final = 30.0


class Hosted(SimulatedStore):
    """A real store in virtual time. It cannot be damaged from outside, because no command removes a field."""

    __slots__ = ("_inner",)

    def __init__(self, world: World, clock: BootClock, opened: Opened) -> None:
        self._inner = opened(lambda: clock.at(world.now))
        super().__init__(world, self._inner.traits, clock)

    def perform(self, command: Command[Any]) -> Any:
        """Carry out one command on the real store at this true instant, and record the result."""
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
        """Do nothing: a real store cannot be damaged, see the class."""

    def erase(self, name: Name) -> None:
        """Delete a record without any process's knowledge."""
        self._inner.perform(Remove(name, self.entries.pop(name).incarnation), LIMIT)

    def close(self) -> None:
        """Close the store at the end of the run."""
        self._inner.close()

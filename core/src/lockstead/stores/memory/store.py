"""Records in the memory of one process: the reference implementation of a store, and the fastest.

Must not know what the fields of a record mean. Stores of the same URL share one memory; `MemoryStore()` is private.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lockstead.errors import StoreUnavailable
from lockstead.protocol.commands import (
    Absent,
    Command,
    Conflict,
    Create,
    Extend,
    List,
    Listing,
    Read,
    Remove,
    Removed,
    Replace,
    Snapshot,
    StoreClock,
    TokenSource,
    Traits,
)
from lockstead.reading import whole
from lockstead.stores.bootclock import boot_now
from lockstead.stores.paging import refused_cursor
from lockstead.stores.port import StoreBase
from lockstead.stores.subscriptions import Subscription, Subscriptions
from lockstead.values import Name

if TYPE_CHECKING:
    from lockstead.stores.examination import Finding

TRAITS: Final = Traits(
    scheme="memory",
    guarantee="one process: other processes do not see these locks, and they end with the process",
    clock=StoreClock.ONE_CLOCK,
    tokens=TokenSource.NATIVE,
)

_CHANGES: Final = (Create, Replace, Extend, Remove)


@dataclass(slots=True)
class _Entry:
    """One record. token is also the incarnation: it increases with every grant and is never reused.

    created: the token of its first incarnation, by which `Memory.entries` is ordered.
    """

    fields: dict[str, str]
    token: int
    created: int
    revision: int
    updated_at: float

    def snapshot(self, now: float) -> Snapshot:
        return Snapshot(dict(self.fields), str(self.token), str(self.revision), self.updated_at, now, self.token)

    def is_at(self, incarnation: str | None, revision: str | None) -> bool:
        return (incarnation is None or incarnation == str(self.token)) and (
            revision is None or revision == str(self.revision)
        )


@dataclass(slots=True)
class Memory:
    """The records that several stores of one process may share. Its lock is never held during I/O."""

    entries: dict[Name, _Entry] = field(default_factory=dict)
    grants: int = 0
    subscriptions: Subscriptions[Name] = field(default_factory=Subscriptions)
    lock: threading.Lock = field(default_factory=threading.Lock)


class MemoryStore(StoreBase):
    """Records in the memory of this process. Guarantees nothing to other processes, including forked children.

    clock returns monotonic seconds; a simulator passes its own.
    """

    traits = TRAITS

    def __init__(self, memory: Memory | None = None, *, name: str = "", clock: Callable[[], float] = boot_now) -> None:
        self._memory = Memory() if memory is None else memory
        self.url = f"memory:{name}"
        self._clock = clock
        self._is_open = True

    def perform(self, command: Command[Any], limit: float) -> Any:  # noqa: ARG002 - memory never waits
        """Carry out one command. Raises StoreUnavailable after `close`, and StoreRefused for a cursor of no listing."""
        if not self._is_open:
            raise StoreUnavailable(f"the store {self.url} is closed")
        answer: object
        with self._memory.lock:
            now = self._clock()
            match command:
                case Read():
                    entry = self._memory.entries.get(command.name)
                    answer = Absent(now) if entry is None else entry.snapshot(now)
                case Extend():
                    answer = self._extend(command, now)
                case Create():
                    answer = self._create(command, now)
                case Remove():
                    answer = self._remove(command, now)
                case Replace():
                    answer = self._replace(command, now)
                case List():
                    answer = self._list(command, now)
                case _:
                    raise TypeError(f"not a command for a store: {type(command).__name__}")
        if isinstance(command, _CHANGES) and isinstance(answer, Snapshot | Removed):
            self._memory.subscriptions.changed(command.name.topic)
        return answer

    def _create(self, command: Create, now: float) -> Snapshot | Conflict:
        if command.name in self._memory.entries:
            return Conflict()
        return self._grant(command.name, command.fields, now, now)

    def _replace(self, command: Replace, now: float) -> Snapshot | Conflict | Absent:
        entry = self._memory.entries.get(command.name)
        if entry is None:
            return Absent(now)
        if not entry.is_at(command.incarnation, command.revision):
            return Conflict()
        return self._grant(command.name, command.fields, max(entry.updated_at, now), now)

    def _grant(self, name: Name, fields: Mapping[str, str], updated_at: float, now: float) -> Snapshot:
        memory = self._memory
        memory.grants += 1
        old = memory.entries.get(name)
        created = memory.grants if old is None else old.created
        entry = memory.entries[name] = _Entry(dict(fields), memory.grants, created, 1, updated_at)
        return entry.snapshot(now)

    def _extend(self, command: Extend, now: float) -> Snapshot | Conflict | Absent:
        entry = self._memory.entries.get(command.name)
        if entry is None:
            return Absent(now)
        if not entry.is_at(command.incarnation, command.revision):
            return Conflict()
        entry.fields.update(command.fields)
        entry.revision += 1
        entry.updated_at = max(entry.updated_at, now)
        return entry.snapshot(now)

    def _remove(self, command: Remove, now: float) -> Removed | Conflict | Absent:
        entry = self._memory.entries.get(command.name)
        if entry is None:
            return Absent(now)
        if not entry.is_at(command.incarnation, command.revision):
            return Conflict()
        del self._memory.entries[command.name]
        return Removed(now)

    def _list(self, command: List, now: float) -> Listing:
        after = _last_created(command.cursor)
        shown: list[tuple[Name, Snapshot]] = []
        for name, entry in self._memory.entries.items():
            if entry.created > after and command.shows(name):
                shown.append((name, entry.snapshot(now)))
                if len(shown) == command.page:
                    return Listing(tuple(shown), str(entry.created))
        return Listing(tuple(shown))

    def subscribe(self, name: Name, on_change: Callable[[bool], None]) -> Subscription:
        """Call on_change at every change of the record, in the thread that changes it."""
        memory = self._memory
        subscription, _ = memory.subscriptions.add(name.topic, on_change)
        if name.is_slot or name not in memory.entries:
            on_change(False)
        return subscription

    def examine(self, scratch: Callable[[str], Name], limit: float) -> Iterator[Finding]:  # noqa: ARG002 - as in the port
        """Yield one note: these locks are for one process only."""
        from lockstead.stores.examination import Finding, Severity

        text = "one process only: other processes, such as this command, do not see its locks"
        yield Finding(Severity.NOTE, "processes", text, "use sqlite: for processes of one machine, gs: for machines")

    def after_fork(self) -> None:
        """Make the child's copy usable: another thread may have held the lock at the fork.

        The copy keeps the locks that the parent held, so that a child cannot bypass them.
        """
        self._memory.lock = threading.Lock()
        self._memory.subscriptions = Subscriptions()

    def close(self) -> None:
        """Close this handle; the records stay for other stores of the same URL."""
        self._is_open = False


def _last_created(cursor: str | None) -> int:
    """Return what a cursor says: `_Entry.created` of the last record of its page."""
    created = 0 if cursor is None else whole(cursor)
    if created is None:
        raise refused_cursor()
    return created


_MEMORIES: Final[dict[str, Memory]] = {}
"""The memories of this process by name. They live as long as the process: a detached lease may have no open store."""


def named(name: str) -> MemoryStore:
    """Return a store on the memory of this name, which every store of that name in this process shares."""
    # setdefault is atomic: two threads that open the same name get the same memory
    return MemoryStore(_MEMORIES.setdefault(name, Memory()), name=name)

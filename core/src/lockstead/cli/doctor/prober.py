"""Test requests to a store, sent safely: under unused names, with retries, and with clean-up afterwards.

Must not know the meaning of the requests, nor how replies are judged.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.protocol.commands import Absent, Command, Create, Extend, List, Read, Remove, Removed, Replace, Snapshot
from lockstead.protocol.pruning import ABANDONED_AFTER
from lockstead.runtime.clock import SYSTEM_CLOCK
from lockstead.runtime.run import unknown
from lockstead.stores.port import Store
from lockstead.stores.subscriptions import join
from lockstead.values import SCRATCH_KEY, Name, Space

A = TypeVar("A")
T = TypeVar("T")

PAUSES: Final = (1.1, 2.2)
"""Seconds before a command without a clear reply is repeated; longer than the second that some stores need between
two changes."""

CREW: Final = 8
"""Threads that clean up."""

CLEANING_REQUEST: Final = 5.0
CLEANING_LIMIT: Final = 15.0
"""Seconds for one request of the clean-up, and for each of its steps."""


def attempts() -> Iterator[float]:
    """Sleep before each repetition of a command, since some stores refuse a change too soon after another one.

    Yields the seconds slept: 0 before the first attempt.
    """
    for pause in (0.0, *PAUSES):
        time.sleep(pause)
        yield pause


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """A reply with a record. sent_at and received_at are on the boot clock, wall_… on the wall clock."""

    command: str
    seen: Snapshot
    sent_at: float
    received_at: float
    wall_sent_at: float
    wall_received_at: float


class Prober:
    """A client that sends commands to one store under scratch names, and records the replies in `answers`.

    limit is the seconds for one request; ends_at is the instant of the boot clock after which only clean-up requests
    are sent.
    """

    def __init__(self, store: Store, limit: float, ends_at: float) -> None:
        self.store = store
        self.limit = limit
        self.answers: list[TimedAnswer] = []
        self._ends_at = ends_at
        self._nonce = os.urandom(8).hex()
        self._names: dict[Name, None] = {}
        self._maybe: dict[object, Name] = {}
        self._racers: list[threading.Thread] = []
        self._count = 0

    # --- names ---------------------------------------------------------------------------------------------------

    def scratch(self, part: str) -> Name:
        """Return a name that no other client uses; `clean` removes a record left under it."""
        name = Name(SCRATCH_KEY, Space.MEMBER, f"{self._nonce}/{part}")
        self._names[name] = None
        return name

    def lent(self, part: str) -> Name:
        """Return a scratch name for a check that uses the store directly; a record may be left under it."""
        name = self.scratch(part)
        self._maybe[name] = name
        return name

    def fresh(self) -> Name:
        """Return a new scratch name."""
        self._count += 1
        return self.scratch(str(self._count))

    def listed(self, part: str) -> tuple[tuple[Name, Snapshot], ...]:
        """Return the records whose scratch part begins with `part`."""
        return self.clear(List(Space.MEMBER, SCRATCH_KEY, f"{self._nonce}/{part}")).entries

    # --- requests ------------------------------------------------------------------------------------------------

    def once(self, command: Command[A]) -> A | StoreError:
        """Send a command once; return its result, or the StoreError if there is no clear reply. Raises StoreRefused."""
        if SYSTEM_CLOCK.now() >= self._ends_at:
            raise StoreUnavailable("the diagnosis took too long; the rest was skipped")
        return self._once(command)

    def _once(self, command: Command[A]) -> A | StoreError:
        wall_sent_at, sent_at = SYSTEM_CLOCK.wall(), SYSTEM_CLOCK.now()
        request = object()
        if isinstance(command, Create | Extend | Replace):
            self._maybe[request] = command.name
        try:
            answer = self.store.perform(command, self.limit)
        except StoreRefused:
            self._maybe.pop(request, None)
            raise
        except StoreUnavailable as error:
            self._maybe.pop(request, None)
            return error
        except StoreError as error:
            return error
        except Exception as error:  # noqa: BLE001 - an unexpected error is an unknown outcome, as in the engine
            return unknown(error)
        if isinstance(answer, Snapshot):
            received_at, wall_received_at = SYSTEM_CLOCK.now(), SYSTEM_CLOCK.wall()
            what = type(command).__name__
            self.answers.append(TimedAnswer(what, answer, sent_at, received_at, wall_sent_at, wall_received_at))
        return answer

    def clear(self, command: Command[A]) -> A:
        """Repeat a command that changes nothing or must be refused until the reply is clear; raises the last error."""
        return self._until_clear(command, lambda: None)

    def settled(self, command: Command[A]) -> A:
        """Repeat a change until it is known to be made; after an unknown outcome, the record is read first."""
        return self._until_clear(command, partial(_made, self._once, command))

    def _until_clear(self, command: Command[A], look: Callable[[], Any]) -> A:
        for pause in PAUSES:
            answer = self.once(command)
            if not isinstance(answer, StoreError):
                return answer
            time.sleep(pause)
            made: A | None = look()
            if made is not None:
                return made
        last = self.once(command)
        if isinstance(last, StoreError):
            raise last
        return last

    def standing(self, name: Name) -> Snapshot:
        """Return a record that must exist; raise OutcomeUnknown if it does not."""
        seen = self.clear(Read(name))
        if not isinstance(seen, Snapshot):
            raise OutcomeUnknown("a record that was just written is not there")
        return seen

    def race(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Send all commands at the same instant; return the results or errors, in order."""
        begun = threading.Barrier(len(commands))

        def asked(command: Command[Any]) -> object:
            with suppress(threading.BrokenBarrierError):  # the machine is so busy that not all threads have started
                begun.wait(self.limit)
            try:
                return self.once(command)
            except StoreError as error:
                return error

        return self._in_threads([partial(asked, command) for command in commands], self.limit + 1.0)

    def _in_threads(self, jobs: Sequence[Callable[[], T]], limit: float) -> list[T | StoreError]:
        done: dict[int, T] = {}

        def run(number: int, job: Callable[[], T]) -> None:
            done[number] = job()

        # daemon threads: a store that hangs must not keep the process from exiting
        racers = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(jobs)]
        self._racers += racers
        for racer in racers:
            racer.start()
        _join(racers, limit)
        silent = StoreUnavailable(f"no answer within {limit:.3g} s")
        return [done.get(number, silent) for number in range(len(jobs))]

    # --- clean-up ------------------------------------------------------------------------------------------------

    def clean(self) -> list[Name]:
        """Remove all scratch records of this run and abandoned ones of older runs; return the names that may be left.

        A silent store is given up at once: a user who pressed Ctrl-C because of it must not wait for it again.
        """
        if not self._names:
            return []
        # a request of an interrupted race may still create something
        _join(self._racers, self.limit + 1.0)
        self.limit = min(self.limit, CLEANING_REQUEST)
        found = self._left()
        if found:
            self._remove(found)
            found = self._left()
        if found is not None:
            return list(found)
        maybe = set(self._maybe.values())
        return [name for name in self._names if name in maybe]

    def _left(self) -> dict[Name, Snapshot] | None:
        """Return the scratch records left, by listing and reading, as a listing may be wrong; None without a reply."""
        listing = self._quietly(List(Space.MEMBER, SCRATCH_KEY, ""))
        entries = () if isinstance(listing, StoreError) else listing.entries
        if isinstance(listing, StoreError):
            first = self._quietly(Read(next(iter(self._names))))
            if isinstance(first, StoreError):
                return None
        found = {name: seen for name, seen in entries if name in self._names or _is_abandoned(seen)}
        self._by_crew(list(self._names.keys() - found.keys()), partial(self._look, found))
        return found

    def _quietly(self, command: Command[A]) -> A | StoreError:
        try:
            return self._once(command)
        except StoreError as error:
            return error

    def _look(self, found: dict[Name, Snapshot], name: Name) -> None:
        seen = self._quietly(Read(name))
        if isinstance(seen, Snapshot):
            found[name] = seen

    def _remove(self, found: dict[Name, Snapshot]) -> None:
        def remove(name: Name) -> None:
            for _pause in attempts():
                answer = self._quietly(Remove(name, found[name].incarnation))
                if not isinstance(answer, StoreError) or isinstance(answer, StoreRefused):
                    return

        self._by_crew(list(found), remove)

    def _by_crew(self, names: list[Name], work: Callable[[Name], None]) -> None:
        def run(part: list[Name]) -> None:
            for name in part:
                work(name)

        parts = [names[first::CREW] for first in range(min(CREW, len(names)))]
        self._in_threads([partial(run, part) for part in parts], CLEANING_LIMIT)


def _made(ask: Callable[[Command[Any]], Any], command: Command[Any]) -> Snapshot | Removed | None:
    """Read back whether a change without a clear reply was made; return its result, or None if not or unknown."""
    if not isinstance(command, Create | Extend | Replace | Remove):
        return None
    seen = ask(Read(command.name))
    if isinstance(command, Remove):
        return Removed() if isinstance(seen, Absent) else None
    shows = isinstance(seen, Snapshot) and command.fields.items() <= seen.fields.items()
    return seen if shows else None


def _is_abandoned(seen: Snapshot) -> bool:
    if seen.updated_at is None or seen.store_now is None:
        return seen.dead
    return seen.store_now - seen.updated_at > ABANDONED_AFTER


def _join(threads: Iterable[threading.Thread], limit: float) -> None:
    ends_at = time.monotonic() + limit
    for thread in threads:
        join(thread, max(0.0, ends_at - time.monotonic()))

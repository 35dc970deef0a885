"""Basics of the conformance suite: sending commands to a store, one after the other or many at the same instant.

Must not know the contract, which is in the other modules of this package.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar

import pytest

from lockstead.errors import StoreError
from lockstead.protocol.commands import Command, Create, Extend, List, Read, Snapshot
from lockstead.stores.port import Store
from lockstead.values import Name, Space

A = TypeVar("A")
T = TypeVar("T")


class Ask(Protocol):
    """A function that carries out one command on the store under test; raises the store's errors."""

    def __call__(self, command: Command[A]) -> A:
        """Return the result."""
        ...


class AskAtOnce(Protocol):
    """A function that carries out commands at the same instant; returns results and errors in their order."""

    def __call__(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Return, for each command, its result or the StoreError that was raised."""
        ...


class Suite:
    """The base class of every part of the suite. Override `store` and `twin`.

    limit is the seconds that one command may take; racers is the number of commands at the same instant.
    """

    limit: ClassVar[float] = 20.0
    racers: ClassVar[int] = 16

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        """Return an empty store, and close it after the test."""
        raise NotImplementedError("a conformance class has a fixture `store` that gives an empty store")

    @pytest.fixture
    def twin(self, store: Store) -> Iterator[Store]:
        """Return a second, independently opened store on the same data as `store`, and close it after the test."""
        raise NotImplementedError("a conformance class has a fixture `twin` that opens the place of `store` again")

    @pytest.fixture
    def ask(self, store: Store) -> Ask:
        """Return a function that carries out a command by `perform`."""
        return asking(store, self.limit)

    @pytest.fixture
    def at_once(self, store: Store) -> AskAtOnce:
        """Return a function that carries out commands by `perform`, each in its own thread."""
        return asking_at_once(store, self.limit)


def asking(store: Store, limit: float) -> Ask:
    """Return a function that carries out a command by `perform`, within `limit` seconds."""

    def asks(command: Command[A]) -> A:
        return store.perform(command, limit)

    return asks


def asking_at_once(store: Store, limit: float) -> AskAtOnce:
    """Return a function that carries out commands by `perform`, each in its own thread, started together."""

    def asks(commands: Sequence[Command[Any]]) -> list[Any]:
        begun = threading.Barrier(len(commands))

        def asked(command: Command[Any]) -> object:
            begun.wait(limit)
            try:
                return store.perform(command, limit)
            except StoreError as error:
                return error

        return in_threads([partial(asked, command) for command in commands])

    return asks


def in_threads(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Run each job in its own thread and return the results in order; raises the first error."""
    done: dict[int, T] = {}
    failed: list[BaseException] = []

    def run(number: int, job: Callable[[], T]) -> None:
        try:
            done[number] = job()
        except BaseException as error:  # noqa: BLE001 - raised again below, in the thread of the test
            failed.append(error)

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    if failed:
        raise failed[0]
    if len(done) < len(jobs):
        raise AssertionError(f"{len(jobs) - len(done)} of {len(jobs)} commands did not come back within 60 s")
    return [done[number] for number in range(len(jobs))]


def require(promise: bool, otherwise: str) -> None:
    """Raise AssertionError with a message if promise is false. Unlike `assert`, it works with -O and unrewritten."""
    if not promise:
        raise AssertionError(otherwise)


def shows(answer: object) -> Snapshot:
    """Return a result that must be a Snapshot."""
    return is_a(Snapshot, answer)


def is_a(kind: type[T], answer: object) -> T:
    """Return a result that must be of this type."""
    if not isinstance(answer, kind):
        raise AssertionError(f"expected {kind}, the store answered {answer!r}")  # noqa: TRY004 - the store failed, not the caller
    return answer


def created(ask: Ask, name: Name, fields: dict[str, str] | None = None) -> Snapshot:
    """Create a record that must be absent, and return it."""
    return shows(ask(Create(name, {"v": "1", "identity": "first"} if fields is None else fields)))


def is_stored(ask: Ask, name: Name, expected: Snapshot) -> None:
    """Require that a record is the same as in an earlier result."""
    seen = shows(ask(Read(name)))
    require(
        same_state(seen, expected) and dict(seen.fields) == dict(expected.fields),
        f"the record of {name} changed:\n  was {expected}\n  is  {seen}",
    )


def same_state(one: Snapshot, other: Snapshot) -> bool:
    """Return whether two results show the same incarnation at the same revision."""
    return (one.incarnation, one.revision) == (other.incarnation, other.revision)


def listed(ask: Ask, space: Space, key: str | None = None, part_prefix: str = "") -> dict[Name, Snapshot]:
    """Return a listing by name; fail if a name occurs twice."""
    entries = ask(List(space, key, part_prefix)).entries
    names = [name for name, _ in entries]
    require(len(set(names)) == len(names), f"a listing names a record twice: {names}")
    return dict(entries)


def touched(ask: Ask, name: Name, fields: dict[str, str] | None = None) -> Snapshot:
    """Extend the current incarnation, whichever it is."""
    return shows(ask(Extend(name, fields or {}, None)))

"""Basics of the conformance suite: sending commands to a store, one after the other or many at the same instant.

Must not know the contract, which is in the other modules of this package.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

import pytest

from lockstead.errors import StoreError
from lockstead.protocol.commands import Command, Create, Extend, List, Read, Snapshot
from lockstead.stores.port import Store
from lockstead.values import TURN, Name, Space

T = TypeVar("T")

APT: Final = Name("apt")
SLOT: Final = Name("apt", Space.PERMIT, "0")
OTHER_SLOT: Final = Name("apt", Space.PERMIT, "1")
APT_TURN: Final = Name("apt", Space.PERMIT, TURN)


Perform: TypeAlias = Callable[[Command[Any]], Any]
"""A function that carries out one command on the store under test; raises the store's errors."""

PerformAtOnce: TypeAlias = Callable[[Sequence[Command[Any]]], list[Any]]
"""A function that carries out commands at the same instant; returns results and errors in their order."""


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
    def perform(self, store: Store) -> Perform:
        """Return a function that carries out a command by `perform`."""
        return performing(store, self.limit)

    @pytest.fixture
    def at_once(self, store: Store) -> PerformAtOnce:
        """Return a function that carries out commands by `perform`, each in its own thread."""
        return performing_at_once(store, self.limit)


def performing(store: Store, limit: float) -> Perform:
    """Return a function that carries out a command by `perform`, within `limit` seconds."""
    return lambda command: store.perform(command, limit)


def performing_at_once(store: Store, limit: float) -> PerformAtOnce:
    """Return a function that carries out commands by `perform`, each in its own thread, started together."""

    def perform_all(commands: Sequence[Command[Any]]) -> list[Any]:
        started = threading.Barrier(len(commands))

        def perform(command: Command[Any]) -> object:
            started.wait(limit)
            try:
                return store.perform(command, limit)
            except StoreError as error:
                return error

        return in_threads([partial(perform, command) for command in commands])

    return perform_all


def in_threads(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Run each job in its own thread and return the results in order; raises the first error."""
    futures = [Future[T]() for _ in jobs]

    def run(future: Future[T], job: Callable[[], T]) -> None:
        try:
            future.set_result(job())
        except BaseException as error:  # noqa: BLE001 - raised again below, in the thread of the test
            future.set_exception(error)

    for pair in zip(futures, jobs, strict=True):
        # not by an executor, which would wait forever for a thread that hangs
        threading.Thread(target=run, args=pair, daemon=True).start()
    hanging = wait(futures, timeout=60.0).not_done
    require(not hanging, f"{len(hanging)} of {len(jobs)} commands did not come back within 60 s")
    return [future.result() for future in futures]


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


def created(perform: Perform, name: Name, fields: dict[str, str] | None = None) -> Snapshot:
    """Create a record that must be absent, and return it."""
    return shows(perform(Create(name, {"v": "1", "identity": "first"} if fields is None else fields)))


def is_stored(perform: Perform, name: Name, expected: Snapshot) -> None:
    """Require that a record is the same as in an earlier result."""
    seen = shows(perform(Read(name)))
    require(
        same_state(seen, expected) and dict(seen.fields) == dict(expected.fields),
        f"the record of {name} changed:\n  was {expected}\n  is  {seen}",
    )


def same_state(one: Snapshot, other: Snapshot) -> bool:
    """Return whether two results show the same incarnation at the same revision."""
    return (one.incarnation, one.revision) == (other.incarnation, other.revision)


def listed(perform: Perform, space: Space, key: str | None = None, part_prefix: str = "") -> dict[Name, Snapshot]:
    """Return a listing by name; fail if a name occurs twice."""
    entries = perform(List(space, key, part_prefix)).entries
    names = [name for name, _ in entries]
    require(len(set(names)) == len(names), f"a listing names a record twice: {names}")
    return dict(entries)


def touched(perform: Perform, name: Name, fields: dict[str, str] | None = None) -> Snapshot:
    """Extend the current incarnation, whichever it is."""
    return shows(perform(Extend(name, fields or {}, None)))

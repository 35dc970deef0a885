"""How the conformance suite asks a store: one command after the other, or many at the same instant.

Must not know what is promised: that is what the other files of this package are for.
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
    """Carries out one command on the store under test, and raises what the store raises."""

    def __call__(self, command: Command[A]) -> A:
        """Return the answer."""
        ...


class AskAtOnce(Protocol):
    """Carries out commands at the same instant, and gives answers and errors of the store in the order asked."""

    def __call__(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Return the answers; in the place of one, the StoreError that was raised."""
        ...


class Suite:
    """What every part of the suite stands on. Override `store` and `twin`.

    limit is the seconds that one command may take; racers is how many ask at the same instant.
    """

    limit: ClassVar[float] = 20.0
    racers: ClassVar[int] = 16

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        """Return an empty store, and close it after the test."""
        raise NotImplementedError("a conformance class has a fixture `store` that gives an empty store")

    @pytest.fixture
    def twin(self, store: Store) -> Iterator[Store]:
        """Return a second store on the same place as `store`, opened by itself, and close it after the test."""
        raise NotImplementedError("a conformance class has a fixture `twin` that opens the place of `store` again")

    @pytest.fixture
    def ask(self, store: Store) -> Ask:
        """Ask by `perform`."""
        return asking(store, self.limit)

    @pytest.fixture
    def at_once(self, store: Store) -> AskAtOnce:
        """Ask by `perform`, from a thread for each command."""
        return asking_at_once(store, self.limit)


def asking(store: Store, limit: float) -> Ask:
    """Ask by `perform`, within `limit` seconds."""

    def asks(command: Command[A]) -> A:
        return store.perform(command, limit)

    return asks


def asking_at_once(store: Store, limit: float) -> AskAtOnce:
    """Ask by `perform`, from a thread for each command, all let go together."""

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
    """Run each job in a thread of its own and give what they returned, in order; raises what the first one raised."""
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
    """Fail with a line that says what the store did. Unlike `assert`, it is there under -O and needs no rewriting."""
    if not promise:
        raise AssertionError(otherwise)


def shows(answer: object) -> Snapshot:
    """Return an answer that must be a record."""
    return is_a(Snapshot, answer)


def is_a(kind: type[T], answer: object) -> T:
    """Return an answer that must be of this kind."""
    if not isinstance(answer, kind):
        raise AssertionError(f"expected {kind}, the store answered {answer!r}")  # noqa: TRY004 - the store failed, not the caller
    return answer


def created(ask: Ask, name: Name, fields: dict[str, str] | None = None) -> Snapshot:
    """Create a record that must be absent, and give it."""
    return shows(ask(Create(name, {"v": "1", "identity": "first"} if fields is None else fields)))


def is_stored(ask: Ask, name: Name, expected: Snapshot) -> None:
    """Require that a record is what an earlier answer showed."""
    seen = shows(ask(Read(name)))
    require(
        same_state(seen, expected) and dict(seen.fields) == dict(expected.fields),
        f"the record of {name} changed:\n  was {expected}\n  is  {seen}",
    )


def same_state(one: Snapshot, other: Snapshot) -> bool:
    """Return whether two answers show the same incarnation at the same revision."""
    return (one.incarnation, one.revision) == (other.incarnation, other.revision)


def listed(ask: Ask, space: Space, key: str | None = None, part_prefix: str = "") -> dict[Name, Snapshot]:
    """Return a listing by name; a name that comes twice fails."""
    entries = ask(List(space, key, part_prefix)).entries
    names = [name for name, _ in entries]
    require(len(set(names)) == len(names), f"a listing names a record twice: {names}")
    return dict(entries)


def touched(ask: Ask, name: Name, fields: dict[str, str] | None = None) -> Snapshot:
    """Extend whatever incarnation there is."""
    return shows(ask(Extend(name, fields or {}, None)))

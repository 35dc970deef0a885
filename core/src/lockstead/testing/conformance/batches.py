"""The contract of `perform_many`: each command has the same result as if it were sent alone."""

from __future__ import annotations

from typing import Any

from lockstead.errors import StoreError
from lockstead.protocol.commands import Absent, Command, Conflict, Create, Extend, List, Read, Remove, Removed, Snapshot
from lockstead.stores.port import Store, SupportsBatching
from lockstead.testing.conformance.base import Perform, Suite, created, is_a, is_stored, require, shows
from lockstead.values import Name, Space


class BatchConformance(Suite):
    """The contract of `perform_many`, for stores that have it. Override the fixtures `store` and `twin`."""

    def test_each_command_of_a_batch_gets_the_same_reply_as_alone(self, store: Store, perform: Perform) -> None:
        apt, yum, member = Name("apt"), Name("yum"), Name("apt", Space.MEMBER, "1/a")
        one, two, three = created(perform, apt), created(perform, yum), created(perform, member)
        batch: list[tuple[Command[Any], type]] = [
            (Extend(apt, {"n": "1"}, one.incarnation), Snapshot),
            (Extend(member, {}, three.incarnation), Snapshot),
            (Extend(yum, {"n": "2"}, one.incarnation + "x"), Conflict),
            (Extend(Name("nowhere"), {}, one.incarnation), Absent),
            (Read(yum), Snapshot),
            (Read(Name("nowhere")), Absent),
        ]
        answers = self._all(store, [command for command, _kind in batch])
        for (command, kind), answer in zip(batch, answers, strict=True):
            require(isinstance(answer, kind), f"{command} in a batch was answered {answer!r}")
        require(answers[0].fields["n"] == "1", "the fields of a batched Extend are missing")
        require(answers[0].incarnation == one.incarnation, "a batched Extend changed the incarnation")
        is_stored(perform, yum, two)
        others: list[Command[Any]] = [
            Create(Name("new"), {"v": "1"}),
            Remove(yum, two.incarnation),
            List(Space.MEMBER),
        ]
        made, gone, members = self._all(store, others)
        require(isinstance(made, Snapshot) and isinstance(gone, Removed), f"answered {made!r} and {gone!r}")
        require([name for name, _ in members.entries] == [member], f"a batched List shows {members}")

    def test_many_leases_are_renewed_together(self, store: Store, perform: Perform) -> None:
        names = [Name(f"key-{number}") for number in range(50)]
        names += [Name("apt", Space.PERMIT, str(number)) for number in range(50)]
        made = {name: shows(perform(Create(name, {"v": "1", "identity": f"{name}"}, 60.0, "", 66.0))) for name in names}
        answers = self._all(store, [Extend(name, {}, made[name].incarnation, lifetime=60.0) for name in names])
        for name, answer in zip(names, answers, strict=True):
            seen = shows(answer)
            require(seen.fields["identity"] == f"{name}", f"{name} was answered with another record: {seen}")
            require(seen.incarnation == made[name].incarnation, f"{name} changed its incarnation")

    def test_a_batch_raises_nothing_once_the_store_is_closed(self, store: Store) -> None:
        store.close()
        answers = self._all(store, [Read(Name("apt")), Read(Name("yum"))])
        require(all(isinstance(answer, StoreError) for answer in answers), f"answered {answers!r}")

    def test_an_empty_batch_is_no_error(self, store: Store) -> None:
        require(self._all(store, []) == [], "nothing asked, and something answered")

    def _all(self, store: Store, commands: list[Command[Any]]) -> list[Any]:
        return is_a(SupportsBatching, store).perform_many(commands, self.limit)  # type: ignore[type-abstract]

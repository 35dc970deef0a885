"""The contract for concurrent commands, from threads and from a forked child."""

from __future__ import annotations

import os
import signal
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from lockstead.errors import OutcomeUnknown, StoreError
from lockstead.protocol.commands import (
    Absent,
    Command,
    Create,
    Extend,
    Read,
    Remove,
    Removed,
    Replace,
    Snapshot,
)
from lockstead.stores.port import Store
from lockstead.testing.conformance.base import (
    APT,
    Perform,
    PerformAtOnce,
    Suite,
    created,
    in_threads,
    is_a,
    is_stored,
    require,
    same_state,
    shows,
)
from lockstead.values import Name

CHILD_LIMIT = 30
"""Seconds after which a hanging child is killed by its own alarm."""


class RacesConformance(Suite):
    """Many commands at the same instant."""

    def test_h11_of_many_creates_one_wins(self, perform: Perform, at_once: PerformAtOnce) -> None:
        for turn in range(3):
            name = Name(f"apt-{turn}")
            one_wins(perform, at_once, name, [Create(name, {"identity": str(n)}) for n in range(self.racers)])

    def test_h11_of_many_replaces_of_one_state_one_wins(self, perform: Perform, at_once: PerformAtOnce) -> None:
        for turn in range(3):
            name = Name(f"apt-{turn}")
            dead = created(perform, name, {"identity": "dead"})
            expected = (dead.incarnation, dead.revision)
            replaces = [Replace(name, {"identity": str(n)}, *expected) for n in range(self.racers)]
            one_wins(perform, at_once, name, replaces)

    def test_h11_of_many_extends_of_one_revision_one_wins(self, perform: Perform, at_once: PerformAtOnce) -> None:
        made = created(perform, APT)
        expected = (made.incarnation, made.revision)
        one_wins(perform, at_once, APT, [Extend(APT, {"token": str(n)}, *expected) for n in range(self.racers)])

    def test_h11_a_take_over_and_a_renewal_do_not_both_win(self, perform: Perform, at_once: PerformAtOnce) -> None:
        for turn in range(8):
            name = Name(f"apt-{turn}")
            made = created(perform, name, {"identity": "slow"})
            take_over = Replace(name, {"identity": "next"}, made.incarnation, made.revision)
            one_wins(perform, at_once, name, [take_over, Extend(name, {"renewed": "1"}, made.incarnation)])

    def test_h05_of_many_removes_one_removes(self, perform: Perform, at_once: PerformAtOnce) -> None:
        made = created(perform, APT)
        answers = at_once([Remove(APT, made.incarnation) for _ in range(self.racers)])
        removed = [answer for answer in answers if isinstance(answer, Removed)]
        unclear = [answer for answer in answers if isinstance(answer, OutcomeUnknown)]
        require(len(removed) == 1 or (bool(unclear) and not removed), f"{len(removed)} removed one record: {answers}")
        is_a(Absent, perform(Read(APT)))

    def test_no_extend_is_lost_when_many_extend_at_once(self, perform: Perform, at_once: PerformAtOnce) -> None:
        made = created(perform, APT, {"identity": "me"})
        answers = at_once([Extend(APT, {f"by-{n}": "1"}, made.incarnation) for n in range(self.racers)])
        done = [answer for answer in answers if isinstance(answer, Snapshot)]
        require(all(isinstance(answer, Snapshot | OutcomeUnknown) for answer in answers), f"refused: {answers}")
        revisions = [answer.revision for answer in done]
        require(len(set(revisions)) == len(revisions), f"two writes got one revision: {sorted(revisions)}")
        fields = shows(perform(Read(APT))).fields
        for number, answer in enumerate(answers):
            if isinstance(answer, Snapshot):
                require(answer.fields.get(f"by-{number}") == "1", f"an answer does not show its own write: {answer}")
                require(fields.get(f"by-{number}") == "1", f"the write of {number} is lost: {fields}")

    def test_a_store_is_shared_by_threads(self, store: Store) -> None:
        def cycles(number: int) -> None:
            name = Name(f"key-{number}")
            for turn in range(5):
                made = shows(store.perform(Create(name, {"n": f"{number}-{turn}"}), self.limit))
                seen = shows(store.perform(Read(name), self.limit))
                require(seen.fields["n"] == f"{number}-{turn}", f"{name} got another thread's answer: {seen}")
                shows(store.perform(Extend(name, {}, made.incarnation), self.limit))
                is_a(Removed, store.perform(Remove(name, made.incarnation), self.limit))

        in_threads([partial(cycles, number) for number in range(8)])

    def test_h11_a_counter_guarded_by_the_lock_loses_no_step(self, store: Store) -> None:
        steps, counter = 5, [0]

        def step() -> None:
            while True:
                answer = one(store, Create(APT, {}), self.limit)
                if isinstance(answer, Snapshot):
                    break
            read = counter[0]
            one(store, Read(Name("elsewhere")), self.limit)  # let the other threads interleave
            counter[0] = read + 1
            while isinstance(one(store, Remove(APT, answer.incarnation), self.limit), OutcomeUnknown):
                pass

        def run() -> None:
            for _ in range(steps):
                step()

        in_threads([run] * 4)
        require(counter[0] == 4 * steps, f"two were inside at once: {counter[0]} of {4 * steps} steps counted")

    def test_h13_a_forked_child_makes_its_own_connections(self, store: Store) -> None:
        made = shows(store.perform(Create(APT, {"identity": "parent"}), self.limit))

        def child(number: int) -> None:
            store.after_fork()
            seen = shows(store.perform(Read(APT), self.limit))
            require(same_state(seen, made), f"the child reads {seen}")
            name = Name(f"child-{number}")
            own = shows(store.perform(Create(name, {"identity": "child"}), self.limit))
            is_a(Removed, store.perform(Remove(name, own.incarnation), self.limit))
            store.close()

        children = [in_child(partial(child, number)) for number in range(3)]
        for turn in range(20):
            # the parent continues meanwhile: a shared connection would mix up the replies
            name = Name(f"parent-{turn}")
            own = shows(store.perform(Create(name, {"n": str(turn)}), self.limit))
            require(shows(store.perform(Read(name), self.limit)).fields["n"] == str(turn), "another one's answer")
            is_a(Removed, store.perform(Remove(name, own.incarnation), self.limit))
        for number in children:
            _, status = os.waitpid(number, 0)
            require(status == 0, f"the child ended with status {status}; what it said is above")
        extended = shows(store.perform(Extend(APT, {}, made.incarnation), self.limit))
        require(extended.incarnation == made.incarnation, "the child's end changed the parent's record")


def one_wins(perform: Perform, at_once: PerformAtOnce, name: Name, commands: Sequence[Command[Any]]) -> None:
    """Require that one of several concurrent commands succeeds, or none if some outcomes are unknown."""
    answers = at_once(commands)
    won = [answer for answer in answers if isinstance(answer, Snapshot)]
    unclear = [answer for answer in answers if isinstance(answer, StoreError)]
    require(len(won) == 1 or (bool(unclear) and not won), f"{len(won)} of {len(answers)} won: {answers}")
    if won and not unclear:
        is_stored(perform, name, won[0])


def one(store: Store, command: Command[Any], limit: float) -> object:
    """Carry out one command; return its result, or the OutcomeUnknown."""
    try:
        return store.perform(command, limit)
    except OutcomeUnknown as error:
        return error


def in_child(job: Callable[[], None]) -> int:
    """Run a job in a forked child, which exits without clean-up; return its pid."""
    with warnings.catch_warnings():
        # forking with threads is dangerous, which is what is tested here
        warnings.simplefilter("ignore", DeprecationWarning)
        number = os.fork()
    if number:
        return number
    status = 1
    try:
        signal.alarm(CHILD_LIMIT)
        job()
        status = 0
    except BaseException:  # noqa: BLE001 - a child must not run the rest of the tests
        traceback.print_exc()
    finally:
        os._exit(status)

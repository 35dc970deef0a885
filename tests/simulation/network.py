"""The simulated network: messages are delivered, lost, delayed, duplicated, reordered or refused.

A request may commit long after its sender gave up; a reply after the limit is dropped. Must not know what messages
mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappush
from typing import TYPE_CHECKING, Any, Final

from lockstead.errors import OutcomeUnknown, StoreError, StoreUnavailable
from lockstead.protocol.commands import Command, Create, Extend, List, Read, Remove, Removed, Replace, Snapshot
from lockstead.stores.subscriptions import Subscription, Subscriptions
from lockstead.values import Name
from tests.simulation.enforcing import EnforcedStore
from tests.simulation.places import RENEW_EVERY, Session
from tests.simulation.store import SimulatedStore
from tests.simulation.words import brief
from tests.simulation.world import Actor, Halt, World

if TYPE_CHECKING:
    from tests.simulation.machine import Machine
    from tests.simulation.talk import Talk

_LOST, _LATE, _MUTE, _DOUBLED, _REFUSED, _FAILED_BEFORE, _FAILED_AFTER, _STOPPED, _DEAD = range(9)
KINDS: Final = (
    "request lost",
    "request late, it may commit after its sender gave up",
    "answer lost",
    "request doubled",
    "never sent",
    "error before the commit",
    "error after the commit",
    "sender stands still before the answer",
    "sender dies before the answer",
)
"""The faults of one message."""

SEEN: Final = ("arrived after its sender gave up", "too many changes of one record", "store out of reach")
"""What may be observed when a request arrives."""
_STALE, _TOO_MANY, _DOWN = range(len(KINDS), len(KINDS) + len(SEEN))

ACCIDENTS: Final = {
    "stop": "a process stands still",
    "kill": "a process dies",
    "cut": "a process is cut off",
    "outage": "the store is down",
    "jump": "a wall clock jumps",
    "revoke": "an operator revokes the lease",
    "break": "an operator removes the lease at once",
    "delete": "an administrator deletes the record",
    "forget": "an administrator deletes the companion",
    "damage": "the record is damaged",
    "stranger": "another implementation takes the lock",
    "set": "the store's clock is set",
    "restart": "the store comes back empty",
    "contender": "another implementation asks, and judges by its own clock",
}
"""The accidents of a process, the store or the record: short name, and description in the table of faults."""

UNNOTIFIED: Final = 0.1
"""Fraction of the notifications that are lost while faults are enabled."""

CHANGES: Final = (Create, Replace, Extend, Remove)

FAULTS: Final = (*KINDS, *SEEN, *ACCIDENTS.values())
"""All kinds of faults, in the order of `Network.faults`."""

_ACCIDENT: Final = {name: len(KINDS) + len(SEEN) + number for number, name in enumerate(ACCIDENTS)}


@dataclass(frozen=True, slots=True)
class Faults:
    """The probability of each of `KINDS` for a message, and how long messages take (seconds).

    latest: maximum delay of a late or duplicated request. changes_every: the store may refuse to change a record again
    within this many seconds, like Cloud Storage for one object; 0: never.
    """

    odds: tuple[float, ...] = (0.0,) * len(KINDS)
    latency: float = 0.02
    latest: float = 60.0
    changes_every: float = 0.0

    def ladder(self) -> list[tuple[float, int]]:
        """Return the cumulative probabilities with their kinds, for one random number."""
        steps, total = [], 0.0
        for kind, odds in enumerate(self.odds):
            if odds:
                total += odds
                steps.append((total, kind))
        return steps


class Network:
    """The network: carries requests to the store and replies back. `calm` ends all faults except those in flight.

    delivered: number of requests that the store carried out. halts_at: this number of them ends the current part.
    answered: number of replies that reached their waiting sender. down_until: the true instant until which the store
    does not reply. faults: number of occurrences of each of `FAULTS`.
    """

    __slots__ = (
        "_arrival",
        "_asked",
        "_changes_every",
        "_ladder",
        "_latest",
        "_random",
        "_store",
        "_subscriptions",
        "_top",
        "_turns",
        "_twice",
        "_world",
        "answered",
        "delivered",
        "down_until",
        "faults",
        "halts_at",
    )

    def __init__(self, world: World, store: SimulatedStore, faults: Faults) -> None:
        self._world = world
        self._store = store
        self._asked = store.asked if isinstance(store, EnforcedStore) else None
        self._ladder = faults.ladder()
        self._top = self._ladder[-1][0] if self._ladder else 0.0
        self._twice = 2 * faults.latency
        self._latest = faults.latest
        self._changes_every = faults.changes_every
        self._random = world.dice.random
        self._arrival = self._arrive
        self._subscriptions = Subscriptions[Name]()
        self._turns = Subscriptions[tuple[Name, str]]()
        self.delivered = 0
        self.answered = 0
        self.halts_at = 0
        self.down_until = 0.0
        self.faults = [0] * len(FAULTS)

    def calm(self) -> None:
        """Stop all faults from now on, and shorten the latency."""
        self._ladder, self._top = [], 0.0
        self._twice = min(self._twice, 0.1)
        self._changes_every = self.down_until = 0.0
        self.halts_at = 0

    def befell(self, accident: str) -> None:
        """Count an accident by its short name."""
        self.faults[_ACCIDENT[accident]] += 1

    def subscribe(self, name: Name, notify: Callable[[bool], None]) -> Subscription:
        """Call notify at every change, and once when the subscription takes effect if the record is absent."""
        subscription, _ = self._subscriptions.add(name, notify)
        self._world.at(self._world.now + self._twice * self._random(), None, self._takes_effect, (name, notify))
        return subscription

    def _takes_effect(self, message: tuple[Name, Callable[[bool], None]]) -> None:
        name, notify = message
        if name not in self._store.entries:
            notify(False)

    def enqueue(self, machine: Machine, name: Name, waiter_id: str, on_turn: Callable[[bool], None]) -> Subscription:
        """Add a waiter to the queue, and call on_turn when it is its turn.

        These messages may be lost too, so the request is repeated until the subscription ends.
        """
        subscription, _ = self._turns.add((name, waiter_id), on_turn)
        self._take_place((machine, name, waiter_id))
        return subscription

    def _arrives(self, machine: Machine) -> bool:
        """Return whether a message about a queue reaches the store."""
        is_cut = self._world.now < max(machine.cut_until, self.down_until)
        return not is_cut and (not self._ladder or self._random() >= UNNOTIFIED)

    def _take_place(self, message: tuple[Machine, Name, str]) -> None:
        machine, name, waiter_id = message
        if (name, waiter_id) not in self._turns:
            return
        random, now = self._random, self._world.now
        if self._arrives(machine):
            # squared, so that both short and long delays happen
            late = self._latest * random() ** 2 if self._ladder and random() < UNNOTIFIED else 0.0
            request = (machine, name, waiter_id, machine.epoch)
            self._world.at(now + late + self._twice * random(), None, self._place_taken, request)
        self._world.at(now + RENEW_EVERY, machine, self._take_place, message)

    def _place_taken(self, message: tuple[Machine, Name, str, int]) -> None:
        machine, name, waiter_id, epoch = message
        places, session = self._store.places, (machine.name, epoch)
        if places is None:
            return
        is_new = not places.has(session)
        places.take(name, waiter_id, session)
        if is_new and epoch == machine.epoch:
            self._world.at(self._world.now + RENEW_EVERY, machine, self._renew, (machine, session))
        if places.first(name) == waiter_id:
            self._is_turn(name)

    def _renew(self, message: tuple[Machine, Session]) -> None:
        """Renew a process's session repeatedly while it has a place."""
        machine, session = message
        places = self._store.places
        if places is not None and places.has(session):
            if self._arrives(machine):
                places.renew(session)
            self._world.at(self._world.now + RENEW_EVERY, machine, self._renew, message)

    def leave_queue(self, machine: Machine, name: Name, waiter_id: str) -> None:
        """Leave the queue; repeated until the request arrives, while the process lives."""
        if self._store.places is None:
            return
        now = self._world.now
        if self._arrives(machine):
            self._world.at(now + self._twice * self._random(), None, self._place_left, (name, waiter_id))
            return
        self._world.at(now + RENEW_EVERY, machine, lambda _: self.leave_queue(machine, name, waiter_id))

    def _place_left(self, message: tuple[Name, str]) -> None:
        name, waiter_id = message
        if self._store.places is not None:
            self._store.places.leave(name, waiter_id)
            self._is_turn(name)

    def _changed(self, name: Name, is_free: bool) -> None:
        if self._subscriptions:
            self._subscriptions.changed(name, is_free)
        if self._turns:
            self._is_turn(name)

    def _is_turn(self, name: Name) -> None:
        """Notify the first waiter of a record, which is gone or has changed."""
        first = None if self._store.places is None else self._store.places.first(name)
        if first is not None:
            self._turns.changed((name, first), name not in self._store.entries)

    def notify(self, process: Actor, on_change: Callable[[bool], None], is_free: bool) -> None:
        """Carry one notification; one in ten is lost while faults are enabled."""
        random = self._random
        if not self._ladder or random() >= UNNOTIFIED:
            self._world.at(self._world.now + self._twice * random(), process, on_change, is_free)

    def send(self, talk: Talk, command: Command[Any], limit: float) -> None:
        """Carry one request; its sender gives up after `limit` true seconds."""
        random, twice, now = self._random, self._twice, self._world.now
        there, back = twice * random(), twice * random()
        roll = random()
        if now < talk.process.cut_until:
            self._fault(talk, command, limit, _REFUSED if roll < 0.3 else _LOST, there, back)
        elif roll < self._top:
            kind = next(kind for step, kind in self._ladder if roll < step)
            self._fault(talk, command, limit, kind, there, back)
        elif there + back < limit:
            # inlined `World.at`, because nine requests in ten take this path
            world = self._world
            world.number = number = world.number + 1
            message = (talk, talk.number, command, back)
            heappush(world.events, (now + there, number, None, 0, self._arrival, message))
        else:
            self._carry_in_vain(talk, command, limit, there)

    def _carry_in_vain(self, talk: Talk, command: Command[Any], limit: float, there: float) -> None:
        """Carry a request whose reply would arrive after its sender has given up."""
        self._world.at(self._world.now + there, None, self._arrival, (talk, talk.number, command, None))
        self._give_up(talk, limit)

    def _carry(self, talk: Talk, command: Command[Any], limit: float, there: float, back: float) -> None:
        if there + back < limit:
            self._world.at(self._world.now + there, None, self._arrival, (talk, talk.number, command, back))
        else:
            self._carry_in_vain(talk, command, limit, there)

    def _fault(self, talk: Talk, command: Command[Any], limit: float, kind: int, there: float, back: float) -> None:
        self.faults[kind] += 1
        world, random = self._world, self._random
        if world.is_told:
            world.tell(talk.process.name, f"{brief(command)}: {KINDS[kind]}")
        if kind == _DOUBLED:
            again_at = world.now + there + random() ** 3 * self._latest
            world.at(again_at, None, self._arrival, (talk, talk.number, command, back))
            self._carry(talk, command, limit, there, back)
            return
        if kind in (_STOPPED, _DEAD):
            self._carry(talk, command, limit, there, back)
            # as an event, because the sender is in the middle of a step
            world.at(world.now, talk.process, talk.process.stumble, kind == _DEAD)
            return
        arrives_at = world.now + there
        if kind == _LATE:
            # squared, so that both short and long delays happen
            arrives_at = world.now + limit + random() ** 2 * self._latest
        if kind in (_LATE, _MUTE, _FAILED_AFTER):
            world.at(arrives_at, None, self._arrival, (talk, talk.number, command, None))
        if kind in (_LOST, _LATE, _MUTE) or there + back >= limit:
            self._give_up(talk, limit)
        else:
            error = StoreUnavailable("refused") if kind == _REFUSED else OutcomeUnknown("error 503")
            world.at(world.now + there + back, talk.process, talk.failed, (talk.number, error))

    def _give_up(self, talk: Talk, limit: float) -> None:
        error = OutcomeUnknown("no answer in time")
        self._world.at(self._world.now + limit, talk.process, talk.failed, (talk.number, error))

    def _arrive(self, message: tuple[Talk, int, Command[Any], float | None]) -> None:
        talk, number, command, back = message
        world = self._world
        now = world.now
        process = talk.process
        if now < self.down_until or (self._changes_every and type(command) is not Read):
            error = self._refusal(talk, command, now)
            if error is not None:
                if back is not None:
                    world.at(now + back, process, talk.failed, (number, error))
                return
        self.delivered += 1
        if number != talk.number:
            self.faults[_STALE] += 1
        if self._asked is None:
            answer = self._store.perform(command)
        else:
            answer = self._asked(command, (process.name, talk.epoch), talk.sent_at if number == talk.number else None)
        if type(answer) in (Snapshot, Removed) and type(command) in CHANGES:
            self._changed(command.name, type(answer) is Removed)  # type: ignore[attr-defined]  # it has one
        if world.is_told:
            world.tell("store", f"{process.name}: {brief(command)} -> {brief(answer)}")
        if back is None:
            pass
        elif now >= process.cut_until:
            world.number = count = world.number + 1
            heappush(world.events, (now + back, count, process, process.epoch, talk.answered, (number, answer)))
        else:
            world.at(now + back, process, talk.failed, (number, OutcomeUnknown("cut off")))
        if self.delivered == self.halts_at:
            raise Halt

    def _refusal(self, talk: Talk, command: Command[Any], now: float) -> StoreError | None:
        """Return the error of a store that is down or limits changes of one record; None if it accepts the request."""
        if now < self.down_until:
            self.faults[_DOWN] += 1
            is_reset = self._random() < 0.5
            return OutcomeUnknown("connection reset") if is_reset else StoreUnavailable("connection refused")
        if type(command) is List:
            return None
        changed_at = self._store.touched_at.get(command.name)  # type: ignore[attr-defined]  # every other one has it
        if changed_at is None or now - changed_at >= self._changes_every:
            return None
        if not self._store.traits.pace and self._random() < 0.5:
            return None
        self.faults[_TOO_MANY] += 1
        if self._store.traits.pace:
            talk.was_turned_away(now, self._store.traits.pace)
        if self._world.is_told:
            self._world.tell("store", f"{brief(command)}: {FAULTS[_TOO_MANY]}")
        return OutcomeUnknown("429 too many changes")

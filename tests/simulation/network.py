"""The simulated network: messages are delivered, lost, delayed, duplicated, reordered or refused.

A request may commit long after its sender gave up; a reply after the limit is dropped. Must not know what messages
mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from lockstead.errors import OutcomeUnknown, StoreError, StoreUnavailable
from lockstead.protocol.commands import (
    Absent,
    Command,
    Conflict,
    Create,
    Extend,
    Listing,
    Remove,
    Removed,
    Replace,
    Snapshot,
)
from lockstead.stores.subscriptions import Subscription, Subscriptions
from lockstead.values import Name, Space
from tests.simulation.faults import STALE, TOO_MANY, UNREACHABLE, MessageFault, MessageFaults
from tests.simulation.store import Session, SimulatedStore
from tests.simulation.world import Actor, Halt, World

if TYPE_CHECKING:
    from tests.simulation.machine import Machine
    from tests.simulation.runner import ScriptRunner

UNNOTIFIED: Final = 0.1
"""Fraction of the notifications that are lost while faults are enabled."""

RENEW_EVERY: Final = 1.0
"""Seconds between two renewals of a session while its process has a place in a queue."""

_CHANGES: Final = (Create, Replace, Extend, Remove)

_SHOWN: Final = ("identity", "ttl", "closing", "revoked", "token", "tombstone")


class Network:
    """The network: carries requests to the store and replies back. `calm` ends all faults except those in flight.

    delivered: number of requests that the store carried out. halts_at: this number of them ends the current phase.
    answered: number of replies that reached their waiting sender. down_until: the true instant until which the store
    does not reply. faults: number of occurrences of each of `faults.FAULTS`.
    """

    def __init__(self, world: World, store: SimulatedStore, message_faults: MessageFaults) -> None:
        self._world = world
        self._store = store
        self._cumulative = message_faults.cumulative()
        self._latency_max = 2 * message_faults.latency
        self._latest = message_faults.latest
        self._changes_every = message_faults.changes_every
        self._random = world.rng.random
        self._subscriptions = Subscriptions[Name]()
        self._turns = Subscriptions[tuple[Name, str]]()
        self.delivered = 0
        self.answered = 0
        self.halts_at = 0
        self.down_until = 0.0
        self.faults = Counter[str]()

    def calm(self) -> None:
        """Stop all faults from now on, and shorten the latency."""
        self._cumulative = []
        self._latency_max = min(self._latency_max, 0.1)
        self._changes_every = self.down_until = 0.0
        self.halts_at = 0

    # --- notifications and the queue -----------------------------------------------------------------------------

    def subscribe(self, name: Name, notify: Callable[[bool], None]) -> Subscription:
        """Call notify at every change, and once when the subscription takes effect if the record is absent."""
        subscription, _ = self._subscriptions.add(name, notify)
        takes_effect_at = self._world.now + self._latency_max * self._random()
        self._world.schedule(takes_effect_at, None, self._subscribed, (name, notify))
        return subscription

    def _subscribed(self, message: tuple[Name, Callable[[bool], None]]) -> None:
        name, notify = message
        if name not in self._store.entries:
            notify(False)

    def enqueue(self, machine: Machine, name: Name, waiter_id: str, on_turn: Callable[[bool], None]) -> Subscription:
        """Add a waiter to the queue, and call on_turn when it is its turn.

        These messages may be lost too, so the request is repeated until the subscription ends.
        """
        subscription, _ = self._turns.add((name, waiter_id), on_turn)
        self._join((machine, name, waiter_id))
        return subscription

    def _arrives(self, machine: Machine) -> bool:
        """Return whether a message about a queue reaches the store."""
        is_isolated = self._world.now < max(machine.isolated_until, self.down_until)
        return not is_isolated and (not self._cumulative or self._random() >= UNNOTIFIED)

    def _join(self, message: tuple[Machine, Name, str]) -> None:
        machine, name, waiter_id = message
        if (name, waiter_id) not in self._turns:
            return
        random, now = self._random, self._world.now
        if self._arrives(machine):
            # squared, so that both short and long delays happen
            late = self._latest * random() ** 2 if self._cumulative and random() < UNNOTIFIED else 0.0
            request = (machine, name, waiter_id, machine.epoch)
            self._world.schedule(now + late + self._latency_max * random(), None, self._joined, request)
        self._world.schedule(now + RENEW_EVERY, machine, self._join, message)

    def _joined(self, message: tuple[Machine, Name, str, int]) -> None:
        machine, name, waiter_id, epoch = message
        queue, session = self._store.queue, (machine.name, epoch)
        is_new = not queue.has(session)
        queue.join(name, waiter_id, session)
        if is_new and epoch == machine.epoch:
            self._world.schedule(self._world.now + RENEW_EVERY, machine, self._renew, (machine, session))
        if queue.first(name) == waiter_id:
            self._notify_first(name)

    def _renew(self, message: tuple[Machine, Session]) -> None:
        """Renew a process's session repeatedly while it has a place."""
        machine, session = message
        if self._store.queue.has(session):
            if self._arrives(machine):
                self._store.queue.renew(session)
            self._world.schedule(self._world.now + RENEW_EVERY, machine, self._renew, message)

    def leave_queue(self, machine: Machine, name: Name, waiter_id: str) -> None:
        """Leave the queue; repeated until the request arrives, while the process lives."""
        if not machine.plan.queues:
            return
        now = self._world.now
        if self._arrives(machine):
            self._world.schedule(now + self._latency_max * self._random(), None, self._left, (name, waiter_id))
            return
        self._world.schedule(now + RENEW_EVERY, machine, lambda _: self.leave_queue(machine, name, waiter_id))

    def _left(self, message: tuple[Name, str]) -> None:
        name, waiter_id = message
        self._store.queue.leave(name, waiter_id)
        self._notify_first(name)

    def _changed(self, name: Name, is_free: bool) -> None:
        if self._subscriptions:
            self._subscriptions.changed(name, is_free)
        if self._turns:
            self._notify_first(name)

    def _notify_first(self, name: Name) -> None:
        """Notify the first waiter of a record, which is gone or has changed."""
        first = self._store.queue.first(name)
        if first is not None:
            self._turns.changed((name, first), name not in self._store.entries)

    def notify(self, process: Actor, on_change: Callable[[bool], None], is_free: bool) -> None:
        """Carry one notification; one in ten is lost while faults are enabled."""
        random = self._random
        if not self._cumulative or random() >= UNNOTIFIED:
            self._world.schedule(self._world.now + self._latency_max * random(), process, on_change, is_free)

    # --- requests ------------------------------------------------------------------------------------------------

    def send(self, runner: ScriptRunner, command: Command[Any], limit: float) -> None:
        """Carry one request; its sender gives up after `limit` true seconds."""
        random, latency_max = self._random, self._latency_max
        there, back = latency_max * random(), latency_max * random()
        roll = random()
        if self._world.now < runner.process.isolated_until:
            fault = MessageFault.REFUSED if roll < 0.3 else MessageFault.REQUEST_LOST
            self._fail(runner, command, limit, fault, there, back)
            return
        for step, fault in self._cumulative:
            if roll < step:
                self._fail(runner, command, limit, fault, there, back)
                return
        self._deliver(runner, command, limit, there, back)

    def _deliver(self, runner: ScriptRunner, command: Command[Any], limit: float, there: float, back: float) -> None:
        """Deliver a request, and its reply if it arrives before the sender gives up."""
        is_in_time = there + back < limit
        message = (runner, runner.number, command, back if is_in_time else None)
        self._world.schedule(self._world.now + there, None, self._arrive, message)
        if not is_in_time:
            self._give_up(runner, limit)

    def _fail(
        self, runner: ScriptRunner, command: Command[Any], limit: float, fault: MessageFault, there: float, back: float
    ) -> None:
        self.faults[fault] += 1
        world, random = self._world, self._random
        if world.keeps_history:
            world.log(runner.process.name, f"{described(command)}: {fault}")
        arrives_at = world.now + there
        if fault == MessageFault.DUPLICATED:
            message = (runner, runner.number, command, back)
            world.schedule(arrives_at + random() ** 3 * self._latest, None, self._arrive, message)
            self._deliver(runner, command, limit, there, back)
            return
        if fault in (MessageFault.SENDER_PAUSES, MessageFault.SENDER_DIES):
            self._deliver(runner, command, limit, there, back)
            # as an event, because the sender is in the middle of a step
            world.schedule(world.now, runner.process, runner.process.fail, fault == MessageFault.SENDER_DIES)
            return
        if fault == MessageFault.REQUEST_LATE:
            # squared, so that both short and long delays happen
            arrives_at = world.now + limit + random() ** 2 * self._latest
        if fault in (MessageFault.REQUEST_LATE, MessageFault.REPLY_LOST, MessageFault.FAILED_AFTER):
            world.schedule(arrives_at, None, self._arrive, (runner, runner.number, command, None))
        if (
            fault in (MessageFault.REQUEST_LOST, MessageFault.REQUEST_LATE, MessageFault.REPLY_LOST)
            or there + back >= limit
        ):
            self._give_up(runner, limit)
        else:
            error = StoreUnavailable("refused") if fault == MessageFault.REFUSED else OutcomeUnknown("error 503")
            world.schedule(world.now + there + back, runner.process, runner.failed, (runner.number, error))

    def _give_up(self, runner: ScriptRunner, limit: float) -> None:
        error = OutcomeUnknown("no reply in time")
        self._world.schedule(self._world.now + limit, runner.process, runner.failed, (runner.number, error))

    def _arrive(self, message: tuple[ScriptRunner, int, Command[Any], float | None]) -> None:
        """Let the store carry out a request. back: how long the reply takes; None if none reaches the sender."""
        runner, number, command, back = message
        world, process = self._world, runner.process
        now = world.now
        may_refuse = now < self.down_until or self._changes_every
        if may_refuse and (error := self._refusal(runner, command, now)) is not None:
            if back is not None:
                world.schedule(now + back, process, runner.failed, (number, error))
            return
        self.delivered += 1
        is_awaited = number == runner.number
        if not is_awaited:
            self.faults[STALE] += 1
        session = (process.name, runner.epoch)
        reply = self._store.perform(command, session, runner.sent_at if is_awaited else None)
        if isinstance(reply, (Snapshot, Removed)) and isinstance(command, _CHANGES):
            self._changed(command.name, isinstance(reply, Removed))
        if world.keeps_history:
            world.log("store", f"{process.name}: {described(command)} -> {described(reply)}")
        if back is None:
            pass
        elif now >= process.isolated_until:
            world.schedule(now + back, process, runner.answered, (number, reply))
        else:
            world.schedule(now + back, process, runner.failed, (number, OutcomeUnknown("cut off")))
        if self.delivered == self.halts_at:
            raise Halt

    def _refusal(self, runner: ScriptRunner, command: Command[Any], now: float) -> StoreError | None:
        """Return the error of a store that is down or limits changes of one record; None if it accepts the request."""
        if now < self.down_until:
            self.faults[UNREACHABLE] += 1
            is_reset = self._random() < 0.5
            return OutcomeUnknown("connection reset") if is_reset else StoreUnavailable("connection refused")
        if not self._changes_every or not isinstance(command, _CHANGES):
            return None
        changed_at = self._store.touched_at.get(command.name)
        if changed_at is None or now - changed_at >= self._changes_every:
            return None
        pace = self._store.traits.pace
        if not pace and self._random() < 0.5:
            return None
        self.faults[TOO_MANY] += 1
        if pace:
            runner.was_rejected(now, pace)
        if self._world.keeps_history:
            self._world.log("store", f"{described(command)}: {TOO_MANY}")
        return OutcomeUnknown("429 too many changes")


def described(thing: Any) -> str:
    """Return a short description of a command or a reply, for the history."""
    match thing:
        case Snapshot():
            times = "" if thing.updated_at is None else f" updated={thing.updated_at:.3f} now={thing.store_now:.3f}"
            token = "" if thing.token is None else f" token={thing.token}"
            return f"{thing.incarnation}.{thing.revision} {_shown(thing.fields)}{times}{token}"
        case Absent() | Removed() | Conflict():
            return type(thing).__name__.lower()
        case Listing():
            return f"{len(thing.entries)} listed"
    parts, name = [type(thing).__name__], getattr(thing, "name", None)
    if isinstance(name, Name):
        parts.append(name.key if name.space is Space.LOCK else f"{name.key}:{name.space.value}:{name.part}")
    expected = [str(getattr(thing, word)) for word in ("incarnation", "revision") if getattr(thing, word, None)]
    parts += ["@" + ".".join(expected)] * bool(expected)
    fields = _shown(getattr(thing, "fields", {}))
    return " ".join([*parts, str(fields)] if fields else parts)


def _shown(fields: Any) -> dict[str, str]:
    return {key: fields[key] for key in _SHOWN if key in fields}

"""The contract of a queue: no waiter is overtaken, and a waiter that has left delays no other."""

from __future__ import annotations

import threading
import time

from lockstead.protocol.commands import Conflict, Create, Extend, Read, Remove, Replace, Snapshot
from lockstead.stores.port import ShowsQueue, Store, Subscription, SupportsFifoQueue
from lockstead.testing.conformance.base import APT, APT_TURN, SLOT, Perform, Suite, is_a, require, shows
from lockstead.testing.conformance.waiting import QUIET, Changed
from lockstead.values import Name


class QueueConformance(Suite):
    """The contract of `enqueue` and `leave`, for stores that have them. Override the fixtures `store` and `twin`.

    A store with a queue must also implement `ShowsQueue`.
    """

    def test_waiters_are_granted_in_queue_order(self, store: Store, twin: Store, perform: Perform) -> None:
        held = shows(perform(_create("holder")))
        with QueuePlace(store, "first", self.limit) as first, QueuePlace(twin, "second", self.limit) as second:
            perform(Remove(APT, held.incarnation))
            require(first.is_free(), "the first waiter was not notified of its turn")
            for waiter_id, place in (("second", twin), ("newcomer", store)):
                answer = place.perform(_create(waiter_id), self.limit)
                require(isinstance(answer, Conflict) and answer.is_queued, f"{waiter_id} overtook the first: {answer}")
            require(not second.free.is_set(), "the second waiter was notified out of turn")
            granted = shows(store.perform(_create("first"), self.limit))
            perform(Remove(APT, granted.incarnation))
            require(second.is_free(), "the second waiter was not notified of its turn")
            shows(twin.perform(_create("second"), self.limit))

    def test_the_first_waiter_is_called_at_each_change_of_the_record(
        self, store: Store, twin: Store, perform: Perform
    ) -> None:
        held = shows(perform(_create("holder")))
        with QueuePlace(store, "first", self.limit) as first:
            for number in ("1", "2"):
                first.settle()
                twin.perform(Replace(APT, {"v": "1", "n": number}, held.incarnation, held.revision, 30.0), self.limit)
                require(first.called(self.limit / 2), "the first waiter was not called when the record changed")
                held = shows(perform(Read(APT)))
            require(not first.free.is_set(), "the first waiter was notified that a present record is gone")

    def test_a_waiter_that_enqueues_again_keeps_its_place(self, store: Store, twin: Store, perform: Perform) -> None:
        held = shows(perform(_create("holder")))
        with QueuePlace(store, "first", self.limit) as first, QueuePlace(twin, "second", self.limit) as second:
            first.subscription.close()
            with QueuePlace(store, "first", self.limit) as again:
                require(_queue(twin) == ["first", "second"], f"the queue is {_queue(twin)}")
                perform(Remove(APT, held.incarnation))
                require(again.is_free(), "the first waiter was not notified of its turn")
                require(not second.free.is_set(), "the second waiter was notified out of turn")

    def test_waiters_are_shown_in_the_order_of_the_queue(self, store: Store, twin: Store, perform: Perform) -> None:
        require(_queue(store) == [], "an empty queue shows a waiter")
        began = time.time()
        held = shows(perform(_create("holder")))
        with QueuePlace(store, "me/first", self.limit), QueuePlace(twin, "me/second", self.limit):
            for shown_by in (store, twin):
                seen = is_a(ShowsQueue, shown_by).standing(APT, self.limit)  # type: ignore[type-abstract]
                require([one.who for one in seen] == ["me/first", "me/second"], f"the queue is shown as {seen}")
                require(not any(one.is_stray for one in seen), "a waiter is shown as a stray entry")
                # the times are from two clocks, in whole seconds
                is_plausible = all(one.since is None or abs(one.since - began) < 60 + self.limit for one in seen)
                require(is_plausible, f"the time since a waiter waits is wrong: {seen}")
        require(_queue(store) == [], "waiters that have left are still shown")
        perform(Remove(APT, held.incarnation))

    def test_a_grant_removes_the_waiter_from_the_queue(self, store: Store, perform: Perform) -> None:
        held = shows(perform(_create("holder")))
        with QueuePlace(store, "waiter", self.limit) as place:
            perform(Remove(APT, held.incarnation))
            require(place.is_free(), "the only waiter was not notified of its turn")
            granted = shows(perform(_create("waiter")))
            perform(Remove(APT, granted.incarnation))
            shows(perform(_create("newcomer")))

    def test_h18_a_place_that_was_left_holds_up_nobody(self, store: Store, twin: Store, perform: Perform) -> None:
        held = shows(perform(_create("holder")))
        with QueuePlace(store, "first", self.limit) as first, QueuePlace(twin, "second", self.limit) as second:
            first.close()
            first.close()
            perform(Remove(APT, held.incarnation))
            require(second.is_free(), "the waiter behind one that left was not notified of its turn")
            shows(twin.perform(_create("second"), self.limit))

    def test_h18_a_place_left_at_once_is_not_taken_afterwards(self, store: Store, perform: Perform) -> None:
        held = shows(perform(_create("holder")))
        queues = is_a(SupportsFifoQueue, store)  # type: ignore[type-abstract]
        for number in range(20):
            queues.enqueue(APT, f"hasty-{number}", lambda _is_free: None).close()
            queues.leave(APT, f"hasty-{number}", self.limit)
        time.sleep(QUIET)
        require(_queue(store) == [], f"waiters that left are in the queue: {_queue(store)}")
        perform(Remove(APT, held.incarnation))

    def test_a_place_ends_with_the_store_that_took_it(self, twin: Store, perform: Perform) -> None:
        held = shows(perform(_create("holder")))
        gone = QueuePlace(twin, "gone", self.limit)
        gone.subscription.close()
        twin.close()
        perform(Remove(APT, held.incarnation))
        ends_at = time.monotonic() + self.limit
        while not isinstance(perform(_create("newcomer")), Snapshot):
            require(time.monotonic() < ends_at, "a place of a store that was closed still holds up others")
            time.sleep(0.05)

    def test_a_subscriber_that_only_watches_takes_no_place(self, store: Store, perform: Perform) -> None:
        held = shows(perform(_create("holder")))
        with Changed(store) as changes:
            changes.settle()
            perform(Remove(APT, held.incarnation))
            shows(perform(_create("newcomer")))
            shows(perform(Read(APT)))

    def test_writes_without_a_waiter_pass_the_queue_and_keep_it(self, twin: Store, perform: Perform) -> None:
        """A waiter blocks neither a renewal by the holder nor a break by an operator, and keeps its place."""
        held = shows(perform(_create("holder")))
        with QueuePlace(twin, "first", self.limit):
            renewed = shows(perform(Extend(APT, {"said": "renewed"}, held.incarnation)))
            broken = shows(perform(Replace(APT, {"v": "1"}, held.incarnation, renewed.revision, 30.0)))
            perform(Remove(APT, broken.incarnation))
            answer = perform(_create("newcomer"))
            require(isinstance(answer, Conflict) and answer.is_queued, f"a newcomer overtook a waiter: {answer}")
            shows(twin.perform(_create("first"), self.limit))

    def test_the_turn_of_permits_has_a_queue_apart_from_the_locks(
        self, store: Store, twin: Store, perform: Perform
    ) -> None:
        held = {name: shows(perform(_create("holder", name))) for name in (APT, APT_TURN, SLOT)}
        with (
            QueuePlace(store, "of-lock", self.limit) as of_lock,
            QueuePlace(twin, "first", self.limit, APT_TURN) as first,
            QueuePlace(store, "second", self.limit, APT_TURN) as second,
        ):
            require(_queue(store) == ["of-lock"], f"the lock's queue is {_queue(store)}")
            require(_queue(store, APT_TURN) == ["first", "second"], f"the turn's queue is {_queue(store, APT_TURN)}")
            perform(Remove(SLOT, held[SLOT].incarnation))
            shows(perform(_create("newcomer", SLOT)))
            perform(Remove(APT_TURN, held[APT_TURN].incarnation))
            require(first.is_free(), "the first waiter for the turn was not notified")
            answer = perform(_create("second", APT_TURN))
            require(isinstance(answer, Conflict) and answer.is_queued, f"the second overtook the first: {answer}")
            require(not second.free.is_set() and not of_lock.free.is_set(), "a waiter was notified out of turn")
            shows(twin.perform(_create("first", APT_TURN), self.limit))
            perform(Remove(APT, held[APT].incarnation))
            require(of_lock.is_free(), "the waiter for the lock was not notified")
            shows(perform(_create("of-lock")))


def _create(waiter_id: str, name: Name = APT) -> Create:
    return Create(name, {"v": "1", "identity": waiter_id}, 30.0, waiter_id, 33.0)


def _queue(store: Store, name: Name = APT) -> list[str]:
    return [one.who for one in is_a(ShowsQueue, store).standing(name, 10.0)]  # type: ignore[type-abstract]


class QueuePlace(Changed):
    """A waiter with a place in the queue, and the calls it has received."""

    def __init__(self, store: Store, waiter_id: str, limit: float, name: Name = APT) -> None:
        self.free = threading.Event()
        self._name = name
        self._waiter_id = waiter_id
        self._limit = limit
        super().__init__(store, name)
        ends_at = time.monotonic() + limit
        while waiter_id not in _queue(store, name):
            require(time.monotonic() < ends_at, f"{waiter_id} is not in the queue")
            time.sleep(0.01)

    def _subscribe(self, store: Store, name: Name) -> Subscription:
        self._store = is_a(SupportsFifoQueue, store)  # type: ignore[type-abstract]
        return self._store.enqueue(name, self._waiter_id, self._changed)

    def _changed(self, is_free: bool) -> None:
        (self.free if is_free else self.seen).set()

    def is_free(self) -> bool:
        """Wait for the call with is_free; return whether it came within the limit."""
        return self.free.wait(self._limit)

    def close(self) -> None:
        """Leave the queue."""
        super().close()
        self._store.leave(self._name, self._waiter_id, self._limit)

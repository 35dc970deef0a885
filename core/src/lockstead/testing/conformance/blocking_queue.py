"""What `queue` and `leave` promise of a store that blocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from lockstead.protocol.commands import Conflict, Create, Extend, Read, Remove, Replace, Snapshot
from lockstead.stores.port import BlockingFifoQueue, ShowsQueue, Store
from lockstead.testing.conformance.base import Ask, Suite, is_a, require, shows
from lockstead.values import Name

APT = Name("apt")


class BlockingQueueConformance(Suite):
    """What `queue` and `leave` promise, for stores that have them. Override the fixtures `store` and `twin`."""

    def test_who_queues_is_granted_in_the_order_of_asking_and_nobody_overtakes(
        self, store: Store, twin: Store, ask: Ask
    ) -> None:
        held = shows(ask(_taking("holder")))
        first, second = _InLine(store, "first", self.limit), _InLine(twin, "second", self.limit)
        first.begin()
        second.begin()
        ask(Remove(APT, held.incarnation))
        require(first.turn() is True, "the first in line was not told that its turn has come")
        for waiter_id, place in (("second", twin), ("newcomer", store)):
            answer = place.perform(_taking(waiter_id), self.limit)
            require(isinstance(answer, Conflict) and answer.is_queued, f"{waiter_id} overtook the first: {answer}")
        granted = shows(store.perform(_taking("first"), self.limit))
        ask(Remove(APT, granted.incarnation))
        require(second.turn() is True, "the second in line was not told that its turn has come")
        shows(twin.perform(_taking("second"), self.limit))

    def test_who_waits_is_shown_in_the_order_of_the_queue(self, store: Store, twin: Store, ask: Ask) -> None:
        if not isinstance(store, ShowsQueue):
            return
        require(list(store.standing(APT, self.limit)) == [], "somebody is shown where nobody waits")
        began = time.time()
        held = shows(ask(_taking("holder")))
        first, second = _InLine(store, "me/first", self.limit), _InLine(twin, "me/second", self.limit)
        first.begin()
        second.begin()
        for looks in (store, twin):
            seen = is_a(ShowsQueue, looks).standing(APT, self.limit)  # type: ignore[type-abstract]
            require([one.who for one in seen] == ["me/first", "me/second"], f"who waits is shown as {seen}")
            require(not any(one.is_stray for one in seen), "a waiter is taken for something stray")
            # by two clocks, to the second
            told = all(one.since is None or abs(one.since - began) < 60 + self.limit for one in seen)
            require(told, f"since when it waits is told wrongly: {seen}")
        for line, place in ((first, store), (second, twin)):
            line.stops()
            is_a(BlockingFifoQueue, place).leave(APT, line.waiter_id, self.limit)  # type: ignore[type-abstract]
        require(list(store.standing(APT, self.limit)) == [], "who has left is shown still")
        ask(Remove(APT, held.incarnation))

    def test_who_was_granted_the_lock_stands_in_line_no_more(self, store: Store, ask: Ask) -> None:
        held = shows(ask(_taking("holder")))
        line = _InLine(store, "waiter", self.limit)
        line.begin()
        ask(Remove(APT, held.incarnation))
        require(line.turn() is True, "the only one in line was not told that its turn has come")
        granted = shows(ask(_taking("waiter")))
        ask(Remove(APT, granted.incarnation))
        shows(ask(_taking("newcomer")))

    def test_h18_a_place_that_was_given_up_stops_nobody(self, store: Store, twin: Store, ask: Ask) -> None:
        held = shows(ask(_taking("holder")))
        first, second = _InLine(store, "first", self.limit), _InLine(twin, "second", self.limit)
        first.begin()
        second.begin()
        first.stops()
        queues = is_a(BlockingFifoQueue, store)  # type: ignore[type-abstract]
        queues.leave(APT, "first", self.limit)
        queues.leave(APT, "first", self.limit)
        ask(Remove(APT, held.incarnation))
        require(second.turn() is True, "who stood behind somebody that left was not told")
        shows(twin.perform(_taking("second"), self.limit))

    def test_a_place_ends_with_the_store_that_took_it(self, twin: Store, ask: Ask) -> None:
        held = shows(ask(_taking("holder")))
        gone = _InLine(twin, "gone", self.limit)
        gone.begin()
        gone.stops()
        twin.close()
        ask(Remove(APT, held.incarnation))
        ends_at = time.monotonic() + self.limit
        while not isinstance(ask(_taking("newcomer")), Snapshot):
            require(time.monotonic() < ends_at, "a place of a store that was closed still stops others")
            time.sleep(0.05)

    def test_who_only_looks_takes_no_place(self, store: Store, ask: Ask) -> None:
        held = shows(ask(_taking("holder")))
        is_a(BlockingFifoQueue, store).wait(APT, 0.2, _asleep)  # type: ignore[type-abstract]
        ask(Remove(APT, held.incarnation))
        shows(ask(_taking("newcomer")))
        shows(ask(Read(APT)))

    def test_who_renews_or_replaces_without_an_asker_passes_the_line_and_leaves_it_as_it_is(
        self, twin: Store, ask: Ask
    ) -> None:
        """A holder renews, and an operator breaks, whoever waits; and who waits comes after that all the same."""
        held = shows(ask(_taking("holder")))
        line = _InLine(twin, "first", self.limit)
        line.begin(looks=10)
        # it keeps its place, and cannot take another one meanwhile
        line.stops()
        renewed = shows(ask(Extend(APT, {"said": "renewed"}, held.incarnation)))
        broken = shows(ask(Replace(APT, {"v": "1"}, held.incarnation, renewed.revision, 30.0)))
        ask(Remove(APT, broken.incarnation))
        answer = ask(_taking("newcomer"))
        require(isinstance(answer, Conflict) and answer.is_queued, f"a newcomer overtook who stood in line: {answer}")
        shows(twin.perform(_taking("first"), self.limit))


def _taking(waiter_id: str) -> Create:
    return Create(APT, {"v": "1", "identity": waiter_id}, 30.0, waiter_id, 33.0)


def _asleep(seconds: float) -> bool:
    time.sleep(min(seconds, 0.05))
    return False


class _InLine:
    """Somebody who queues in a thread of its own until told that it is worth asking."""

    def __init__(self, store: Store, waiter_id: str, limit: float) -> None:
        self._queue: Callable[..., bool] = is_a(BlockingFifoQueue, store).queue  # type: ignore[type-abstract]
        self.waiter_id = waiter_id
        self._limit = limit
        self._result: bool | None = None
        self._stop = threading.Event()
        self._looked = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._stand, daemon=True)

    def _stand(self) -> None:
        self._result = self._queue(APT, self.waiter_id, self._limit, self._is_over)

    def _is_over(self, seconds: float) -> bool:
        self._looked.release()
        return self._stop.wait(min(seconds, 0.05))

    def begin(self, looks: int = 2) -> None:
        """Come back when the place is taken: the store has looked some times whether to go on."""
        self._thread.start()
        for _ in range(looks):
            require(self._looked.acquire(timeout=self._limit), "a store that queues must come back to is_over")

    def stops(self) -> None:
        self._stop.set()
        self._thread.join(self._limit)
        require(not self._thread.is_alive(), "who queues cannot stop")

    def turn(self) -> bool | None:
        self._thread.join(self._limit)
        return self._result

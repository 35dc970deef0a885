"""Running a script in virtual time: the simulator's counterpart of the blocking and the asynchronous driver.

It stamps every request and reply by the process's boot clock, applies the limit, and throws errors into the script.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from typing import TYPE_CHECKING, Any, ClassVar, Final

from lockstead.errors import StoreError
from lockstead.protocol.acquire import OutOfTime
from lockstead.protocol.commands import Create, Pause, Paused, Read, Reply, Script
from lockstead.protocol.record import with_timestamps
from lockstead.runtime.watching import Watching
from lockstead.stores.subscriptions import Subscription
from lockstead.values import Name, Space

if TYPE_CHECKING:
    from tests.simulation.machine import Machine

OVERTIME: Final = 0.9
"""Seconds after the end of a wait within which the last attempt must end, as in the real drivers."""

VOLLEY: Final = 5
"""Number of rejected changes of one script within the store's pace that is a violation."""

EVER: Final = float("inf")

Then = Callable[[Any, StoreError | None], None]


class _Notifying:
    """The store's `subscribe`, as seen by one script."""

    __slots__ = ("_talk",)

    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    def subscribe(self, name: Name, on_change: Callable[[bool], None]) -> Subscription:
        return self._talk.process.subscribe(name, self._talk.noting(on_change))


class _Queueing(_Notifying):
    """The same for a store that keeps a queue."""

    __slots__ = ()

    def enqueue(self, name: Name, waiter_id: str, on_turn: Callable[[bool], None]) -> Subscription:
        return self._talk.process.enqueue(name, waiter_id, self._talk.noting(on_turn))

    def leave(self, name: Name, waiter_id: str, limit: float) -> None:
        raise NotImplementedError("the simulated process leaves by a message")


class Talk:
    """One running script of one process. Calls `then` with its result, or with the error that ended it.

    gives_up_at is on the process's boot clock. number identifies the command in flight. epoch: that of the process when
    the script was started.
    """

    is_gone: ClassVar[bool] = False

    __slots__ = (
        "_clock",
        "_script",
        "_then",
        "_watching",
        "_world",
        "epoch",
        "gives_up_at",
        "has_paused",
        "is_over",
        "is_rung",
        "limit",
        "notified",
        "number",
        "process",
        "sent_at",
        "sleeps",
        "slept_since",
        "turned_away",
        "turns",
    )

    def __init__(
        self, process: Machine, script: Script[Any], limit: float, then: Then, gives_up_at: float | None = None
    ) -> None:
        self.process = process
        self.limit = limit
        self.gives_up_at = gives_up_at
        self.number = 0
        self.sent_at = 0.0
        self.turns = 0
        self.turned_away: tuple[float, ...] = ()
        self.has_paused = False
        self.is_over = self.is_rung = False
        self.sleeps: tuple[int, Pause, float] | None = None
        self.slept_since = EVER
        self.epoch = process.epoch
        self._script = script
        self._clock = process.clock
        self._world = process.world
        self._then = then
        self._watching: Watching | None = None
        self.notified: list[bool] = []

    def start(self) -> None:
        """Run the first step."""
        self._advance(None, None)

    def cancel(self) -> None:
        """Stop, like a cancelled task or Ctrl-C; the outcome of the command in flight stays unknown."""
        if not self.is_over:
            self._end()
            self._script.close()

    def ring(self) -> None:
        """Wake the script: the current pause, or the next one, ends at once."""
        self.is_rung = True
        if self.sleeps is not None:
            self._world.at(self._world.now, self.process, self.resumed, self.sleeps)

    def take(self) -> bool:
        """Return whether `ring` was called, and reset that."""
        was, self.is_rung = self.is_rung, False
        return was

    def noting(self, on_change: Callable[[bool], None]) -> Callable[[bool], None]:
        """Return the callback of a subscription, which also checks that no notification is slept through."""

        noted = self.notified = []

        def notified(is_free: bool) -> None:
            on_change(is_free)
            if noted is not self.notified:
                return  # it was in flight when its subscription was closed
            noted.append(is_free)
            if self.sleeps is not None and self.sleeps[1].wake_on_change and not self.is_rung:
                self.process.watch.violated("a waiter is notified of a change and sleeps on")

        return notified

    def answered(self, message: tuple[int, Any]) -> None:
        """Handle a reply; drop it if the script no longer waits for it."""
        number, answer = message
        process = self.process
        # a reply may reach a process that died and was restarted, which did not send the request
        if number == self.number and not self.is_over and self.epoch == process.epoch:
            process.network.answered += 1
            clock = self._clock
            self._advance(Reply(answer, self.sent_at, clock.offset + clock.rate * self._world.now), None)

    def resumed(self, message: tuple[int, Pause, float]) -> None:
        """Handle the end of a pause."""
        number, command, seconds = message
        if number == self.number and not self.is_over and self.epoch == self.process.epoch:
            watching, clock = self._watching, self._clock
            paused = Paused(seconds, self.take()) if watching is None else watching.end(command, seconds)
            self.has_paused = not paused.is_turn
            if paused.is_turn and True not in self.notified:
                self.process.watch.violated("a waiter takes a change for a release")
            self.notified.clear()
            self._advance(Reply(paused, self.sent_at, clock.offset + clock.rate * self._world.now), None)

    def failed(self, message: tuple[int, StoreError]) -> None:
        """Handle a failed request, or one whose limit has passed."""
        number, error = message
        if number == self.number and not self.is_over and self.epoch == self.process.epoch:
            self._advance(None, error)

    def _advance(self, reply: Reply[Any] | None, error: StoreError | None) -> None:
        process, script, clock = self.process, self._script, self._clock
        self.sleeps, self.slept_since = None, EVER
        # all of a step happens at one instant of true time
        self.sent_at = now = clock.offset + clock.rate * self._world.now
        while True:
            try:
                if error is not None:
                    command = script.throw(error)
                else:
                    command = script.send(reply)  # type: ignore[arg-type]  # a script starts with None
            except StopIteration as stop:
                self._end()
                self._then(stop.value, None)
                return
            except StoreError as raised:
                self._end()
                self._then(None, raised)
                return
            self.number += 1
            kind = type(command)
            if kind is Pause:
                self._pause(command, now)  # type: ignore[arg-type]  # the line above says which it is
                return
            if self.has_paused:
                self.has_paused = False
                if kind is Create and command.name.space is Space.LOCK:  # type: ignore[attr-defined]  # a Create has it
                    process.watch.violated("a waiter writes before it reads")
            limit = self.limit
            if self.gives_up_at is not None:
                left = self.gives_up_at + OVERTIME - now
                if left <= 0:
                    self._count_idle_turn()
                    reply, error = None, OutOfTime("the time to wait is over")
                    continue
                limit = min(limit, left)
            self.turns = 0
            if kind is not Read:
                command = with_timestamps(command, process.wall())
            process.network.send(self, command, limit / clock.rate)
            return

    def _pause(self, command: Pause, now: float) -> None:
        process, world = self.process, self._world
        random = world.dice.random
        seconds = command.draw(random)
        if self.gives_up_at is not None:
            seconds = max(0.0, min(seconds, self.gives_up_at - now))
        if seconds == 0.0:
            self._count_idle_turn()
        slept = seconds
        if process.is_watching:
            if self._watching is None:
                self._watching = Watching((_Queueing if process.is_queueing else _Notifying)(self), self)
            if self._watching.begin(command):
                slept = 0.0
            if self.notified and slept and command.wake_on_change:
                process.watch.violated("a waiter sleeps through a change of which it was notified")
            if slept < seconds and not command.wake_on_change:
                process.watch.violated("a change ends the pause after a request without an answer")
            if not command.wake_on_change:
                self.notified = []
        if self.is_rung:
            slept = 0.0
        # inlined `World.at`, because half of all steps end here
        world.number = number = world.number + 1
        ends_at = world.now + slept / self._clock.rate
        message = self.sleeps = (self.number, command, seconds)
        self.slept_since = world.now
        heappush(world.events, (ends_at, number, process, process.epoch, self.resumed, message))

    def _end(self) -> None:
        self.is_over, self.notified = True, []
        if self._watching is not None:
            self._watching.close()

    def was_turned_away(self, at: float, pace: float) -> None:
        """Record that the store rejected a change as too soon; a client that does not slow down starves the others."""
        self.turned_away = (*self.turned_away[-VOLLEY + 1 :], at)
        if len(self.turned_away) == VOLLEY and at - self.turned_away[0] < pace:
            self.process.watch.violated(f"{self.process.name} was turned away {VOLLEY} times in {pace:g} s")

    def _count_idle_turn(self) -> None:
        """Detect a script that spins without waiting or sending, which would keep a real driver's CPU busy."""
        self.turns += 1
        if self.turns > 50:
            self.process.watch.violated("a script spins without waiting or sending")

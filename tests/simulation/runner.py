"""Running a script in virtual time: the simulator's counterpart of the blocking and the asynchronous driver.

It stamps every request and reply by the process's boot clock, applies the limit, and throws errors into the script.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final

from lockstead.errors import StoreError
from lockstead.protocol.commands import Command, Create, OutOfTime, Pause, Paused, Read, Reply, Script
from lockstead.protocol.record import with_timestamps
from lockstead.runtime.watching import Watching
from lockstead.stores.subscriptions import Subscription
from lockstead.values import Name, Space

if TYPE_CHECKING:
    from tests.simulation.machine import Machine

OVERTIME: Final = 0.9
"""Seconds after the end of a wait within which the last attempt must end, as in the real drivers."""

REJECTIONS_MAX: Final = 5
"""Number of rejected changes of one script within the store's pace that is a violation."""

IDLE_STEPS_MAX: Final = 50
"""Number of steps of one script without a pause or a request that is a violation."""

NEVER: Final = float("inf")

Then = Callable[[Any], None]
"""Is called with the result of a script, or the StoreError that ended it."""


class _Watched:
    """The store's `subscribe`, as seen by one script."""

    def __init__(self, runner: ScriptRunner) -> None:
        self._runner = runner

    def subscribe(self, name: Name, on_change: Callable[[bool], None]) -> Subscription:
        return self._runner.process.subscribe(name, self._runner.checked(on_change))


class _Queued(_Watched):
    """The same for a store that keeps a queue."""

    def enqueue(self, name: Name, waiter_id: str, on_turn: Callable[[bool], None]) -> Subscription:
        return self._runner.process.enqueue(name, waiter_id, self._runner.checked(on_turn))

    def leave(self, name: Name, waiter_id: str, limit: float) -> None:
        raise NotImplementedError("the simulated process leaves by a message")


class ScriptRunner:
    """One running script of one process. Calls `then` with its result, or with the error that ended it.

    gives_up_at is on the process's boot clock. number identifies the command in flight. epoch: that of the process when
    the script was started. paused_at: the true instant at which the current pause began.
    """

    is_gone: ClassVar[bool] = False

    def __init__(
        self,
        process: Machine,
        script: Script[Any],
        then: Then | None = None,
        gives_up_at: float = math.inf,
        limit: float | None = None,
    ) -> None:
        self.process = process
        self.gives_up_at = gives_up_at
        self.number = 0
        self.sent_at = 0.0
        self.is_over = self.is_rung = False
        self.paused_at = NEVER
        self.epoch = process.epoch
        self._limit = process.settings.request_timeout if limit is None else limit
        self._script = script
        self._clock = process.clock
        self._world = process.world
        self._then = then
        self._idle_steps = 0
        self._rejected_at: tuple[float, ...] = ()
        self._has_paused = False
        self._pause: tuple[int, Pause, float] | None = None
        self._watching: Watching | None = None
        self._notified: list[bool] = []

    def start(self) -> None:
        """Run the first step."""
        self._advance()

    def cancel(self) -> None:
        """Stop, like a cancelled task or Ctrl-C; the outcome of the command in flight stays unknown."""
        if not self.is_over:
            self._close()
            self._script.close()

    def ring(self) -> None:
        """Wake the script: the current pause, or the next one, ends at once."""
        self.is_rung = True
        if self._pause is not None:
            self._world.schedule(self._world.now, self.process, self._resumed, self._pause)

    def take(self) -> bool:
        """Return whether `ring` was called, and reset that."""
        was, self.is_rung = self.is_rung, False
        return was

    def checked(self, on_change: Callable[[bool], None]) -> Callable[[bool], None]:
        """Return the callback of a subscription, which also checks that no notification is slept through."""
        notified = self._notified = []

        def notify(is_free: bool) -> None:
            on_change(is_free)
            if notified is not self._notified:
                return  # it was in flight when its subscription was closed
            notified.append(is_free)
            if self._pause is not None and self._pause[1].wake_on_change and not self.is_rung:
                self.process.checker.fail("a waiter is notified of a change and sleeps on")

        return notify

    def answered(self, message: tuple[int, Any]) -> None:
        """Handle a reply."""
        number, answer = message
        if self._awaits(number):
            self.process.network.answered += 1
            self._advance(Reply(answer, self.sent_at, self.process.now()))

    def failed(self, message: tuple[int, StoreError]) -> None:
        """Handle a failed request, or one whose limit has passed."""
        number, error = message
        if self._awaits(number):
            self._advance(error=error)

    def _resumed(self, message: tuple[int, Pause, float]) -> None:
        """Handle the end of a pause."""
        number, command, seconds = message
        if not self._awaits(number):
            return
        paused = Paused(seconds, self.take()) if self._watching is None else self._watching.end(command, seconds)
        self._has_paused = not paused.is_turn
        if paused.is_turn and True not in self._notified:
            self.process.checker.fail("a waiter takes a change for a release")
        self._notified.clear()
        self._advance(Reply(paused, self.sent_at, self.process.now()))

    def _awaits(self, number: int) -> bool:
        """Return whether the script waits for the end of this command, in the process that sent it."""
        return number == self.number and not self.is_over and self.epoch == self.process.epoch

    def _advance(self, reply: Reply[Any] | None = None, error: StoreError | None = None) -> None:
        self._pause, self.paused_at = None, NEVER
        # all of a step happens at one instant of true time
        self.sent_at = now = self.process.now()
        while True:
            try:
                if error is not None:
                    command = self._script.throw(error)
                else:
                    command = self._script.send(reply)  # type: ignore[arg-type]  # a script starts with None
            except StopIteration as stop:
                self._end(stop.value)
                return
            except StoreError as raised:
                self._end(raised)
                return
            self.number += 1
            if isinstance(command, Pause):
                self._begin_pause(command, now)
                return
            if self.gives_up_at + OVERTIME > now:
                self._send(command, now)
                return
            self._count_idle_step()
            reply, error = None, OutOfTime("the time to wait is over")

    def _send(self, command: Command[Any], now: float) -> None:
        process, self._idle_steps = self.process, 0
        if self._has_paused and isinstance(command, Create) and command.name.space is Space.LOCK:
            process.checker.fail("a waiter writes before it reads")
        self._has_paused = False
        limit = min(self._limit, self.gives_up_at + OVERTIME - now)
        if not isinstance(command, Read):
            command = with_timestamps(command, process.wall())
        process.network.send(self, command, limit / self._clock.rate)

    def _begin_pause(self, command: Pause, now: float) -> None:
        process, world = self.process, self._world
        seconds = max(0.0, min(command.draw(world.rng.random), self.gives_up_at - now))
        if seconds == 0.0:
            self._count_idle_step()
        slept = seconds
        if process.plan.watches:
            if self._watching is None:
                self._watching = Watching((_Queued if process.plan.queues else _Watched)(self), self)
            if self._watching.begin(command):
                slept = 0.0
            if self._notified and slept and command.wake_on_change:
                process.checker.fail("a waiter sleeps through a change of which it was notified")
            if slept < seconds and not command.wake_on_change:
                process.checker.fail("a change ends the pause after a request without a reply")
            if not command.wake_on_change:
                self._notified = []
        if self.is_rung:
            slept = 0.0
        self.paused_at, self._pause = world.now, (self.number, command, seconds)
        world.schedule(world.now + slept / self._clock.rate, process, self._resumed, self._pause)

    def _end(self, outcome: Any) -> None:
        self._close()
        if self._then is not None:
            self._then(outcome)

    def _close(self) -> None:
        self.is_over, self._notified = True, []
        if self._watching is not None:
            self._watching.close()

    def was_rejected(self, at: float, pace: float) -> None:
        """Record that the store rejected a change as too soon; a client that does not slow down starves the others."""
        self._rejected_at = (*self._rejected_at[-REJECTIONS_MAX + 1 :], at)
        if len(self._rejected_at) == REJECTIONS_MAX and at - self._rejected_at[0] < pace:
            self.process.checker.fail(f"{self.process.name} was rejected {REJECTIONS_MAX} times in {pace:g} s")

    def _count_idle_step(self) -> None:
        """Detect a script that loops without waiting or sending, which would keep a real driver's CPU busy."""
        self._idle_steps += 1
        if self._idle_steps > IDLE_STEPS_MAX:
            self.process.checker.fail("a script loops without waiting or sending")

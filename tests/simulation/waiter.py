"""A simulated waiter: one acquisition in a process's local queue, using the real `runtime.local_queue`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from lockstead.errors import StoreError
from lockstead.protocol.acquire import AcquireRequest, Contended
from lockstead.runtime.local_queue import RECHECK_INTERVAL
from tests.simulation.runner import ScriptRunner, Then

if TYPE_CHECKING:
    from tests.simulation.process import Process


class Waiter:
    """A waiter: queues, sends requests once it is first, leaves the queue, and reports the outcome to `then`.

    gives_up_at is on the process's boot clock. looks_first: it reads before it writes.
    """

    is_gone: ClassVar[bool] = False
    is_stopped: ClassVar[bool] = False

    def __init__(
        self,
        process: Process,
        request: AcquireRequest,
        then: Then,
        gives_up_at: float,
        *,
        looks_first: bool = False,
    ) -> None:
        self.request = request
        self.runner: ScriptRunner | None = None
        self.is_over = self._is_rung = self._has_timed_out = False
        self._epoch = process.epoch
        self._process = process
        self._then = then
        self._gives_up_at = gives_up_at
        self._looks_first = looks_first

    @property
    def key(self) -> str:
        """The key of the lock it waits for."""
        return self.request.name.key

    @property
    def is_active(self) -> bool:
        """Whether it has a request in flight or pauses between two requests, because it is or was first."""
        return self.runner is not None and not self.runner.is_over and not self.is_over

    def start(self) -> None:
        """Join the queue."""
        self.request.on_wait = lambda seen: self._process.queue.note(self.key, seen)
        self._process.waiters.append(self)
        if self._process.queue.enter(self.key, self):
            self._acquire(was_first=True)
        else:
            self._wait()

    def _wait(self, _: Any = None) -> None:
        if self.runner is not None or self.is_over or self._epoch != self._process.epoch:
            return
        process, self._is_rung = self._process, False
        left = self._gives_up_at - process.now()
        if left <= 0:
            self._time_out()
        elif process.queue.is_first(self.key, self):
            self._acquire(was_first=False)
        else:
            process.after(min(left, RECHECK_INTERVAL) / process.clock.rate, self._wait)

    def _time_out(self) -> None:
        """Handle the timeout of a waiter that is not first: report what the first waiter last saw."""
        self._has_timed_out = True
        seen = self._process.queue.noted(self.key)
        if isinstance(seen, Contended | StoreError):
            self._end(seen)
        else:
            self._acquire(was_first=False)

    def _acquire(self, *, was_first: bool) -> None:
        process = self._process
        others = (one for one in process.waiters if one.key == self.key and one.is_active)
        if not self._has_timed_out and any(not other._has_timed_out for other in others):
            process.checker.fail(f"two waiters of {process.name} send requests for {self.key} at once")
        script = process.acquire_script(
            self.request,
            gives_up_at=self._gives_up_at,
            tries_once=self._has_timed_out,
            look_first=self._looks_first or not was_first,
        )
        self.runner = ScriptRunner(process, script, self._end, self._gives_up_at)
        self.runner.start()

    def ring(self) -> None:
        """Wake the waiter: it may be its turn, or the key may have become free."""
        if self.runner is not None:
            self.runner.ring()
        elif not self._is_rung:
            self._is_rung = True
            self._process.after(0.0, self._wait)

    def _end(self, outcome: Any) -> None:
        self._leave()
        self._then(outcome)

    def cancel(self, *, torn: bool = False) -> None:
        """Stop waiting. torn: interrupted before it could leave the queue, so the waiters behind it must poll."""
        if self.runner is not None:
            self.runner.cancel()
        if not torn:
            self._leave()
            return
        process, self.is_over = self._process, True
        process.waiters.remove(self)
        process.polls_until = process.world.now + RECHECK_INTERVAL / process.clock.rate
        process.check_turns_after(self.key, RECHECK_INTERVAL)

    def _leave(self) -> None:
        process, self.is_over = self._process, True
        process.waiters.remove(self)
        process.queue.leave(self.key, self)
        process.check_turns_after(self.key, 0.0)


def check_turns(process: Process, key: str) -> None:
    """Check that, if a key has waiters in this process, one of them is sending requests."""
    waiting = [one for one in process.waiters if one.key == key]
    if process.world.now == process.paused_until:
        process.check_turns_after(key, 0.0)  # what happened during the pause is handled first
        return
    if process.world.now < process.polls_until:
        return  # a waiter was interrupted before it could leave the queue: the waiters behind it poll
    if waiting and not any(one.is_active for one in waiting):
        process.checker.fail(f"{len(waiting)} waiters of {process.name} wait for {key}, and none sends requests")


def check_woken(process: Process, key: str, freed_at: float) -> None:
    """Check that a waiter that was pausing when this process released the key was woken."""
    for one in process.waiters:
        if one.key == key and one.is_active and one.runner is not None and one.runner.paused_at < freed_at:
            process.checker.fail(f"{process.name} released {key}, and its waiter sleeps on")

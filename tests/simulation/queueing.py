"""A simulated waiter: one acquisition in a process's local queue, using the real `protocol.turns`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from lockstead.errors import StoreError
from lockstead.protocol.acquire import AcquireRequest, Contended, acquire
from lockstead.protocol.turns import LOOK_AGAIN
from tests.simulation.talk import Talk

if TYPE_CHECKING:
    from tests.simulation.process import Process

Then = Callable[[Any, StoreError | None], None]


class Waiter:
    """A waiter: queues, sends requests once it is first, leaves the queue, and reports the outcome to `then`.

    gives_up_at is on the process's boot clock. looks_first: it reads before it writes.
    """

    __slots__ = (
        "_gives_up_at",
        "_looks_first",
        "_process",
        "_then",
        "_want",
        "epoch",
        "in_time",
        "is_over",
        "is_rung",
        "talk",
    )

    is_gone: ClassVar[bool] = False
    is_stopped: ClassVar[bool] = False

    def __init__(
        self, process: Process, want: AcquireRequest, then: Then, gives_up_at: float | None, *, looks_first: bool
    ) -> None:
        self.is_over = self.is_rung = False
        self.in_time = True
        self.talk: Talk | None = None
        self.epoch = process.epoch
        self._process = process
        self._want = want
        self._then = then
        self._gives_up_at = gives_up_at
        self._looks_first = looks_first

    @property
    def key(self) -> str:
        """The key of the lock it waits for."""
        return self._want.name.key

    @property
    def asks(self) -> bool:
        """Whether it is first: it has a request in flight or pauses between two requests."""
        return self.talk is not None and not self.talk.is_over and not self.is_over

    def start(self) -> None:
        """Join the queue."""
        self._want.on_wait = lambda seen: self._process.turns.note(self.key, seen)
        self._process.waiters.append(self)
        if self._process.turns.enter(self.key, self):
            self._ask(was_first=True)
        else:
            self._wait()

    def _wait(self, _: Any = None) -> None:
        if self.talk is not None or self.is_over or self.epoch != self._process.epoch:
            return
        process, self.is_rung = self._process, False
        left = LOOK_AGAIN if self._gives_up_at is None else self._gives_up_at - process.now()
        if left <= 0:
            self._run_out()
        elif process.turns.first(self.key) is self:
            self._ask(was_first=False)
        else:
            process.after(min(left, LOOK_AGAIN) / process.clock.rate, self._wait)

    def _run_out(self) -> None:
        """Handle the timeout of a waiter that is not first: report what the first waiter last saw."""
        self.in_time = False
        seen = self._process.turns.noted(self.key)
        if isinstance(seen, Contended):
            self._ended(seen, None)
        elif isinstance(seen, StoreError):
            self._ended(None, seen)
        else:
            self._ask(was_first=False)

    def _ask(self, *, was_first: bool) -> None:
        process = self._process
        if self.in_time and any(other.asks and other.in_time for other in process.waiters if other.key == self.key):
            process.watch.violated(f"two waiters of {process.name} ask for {self.key} at once")
        script = acquire(
            self._want,
            process.context,
            gives_up_at=self._gives_up_at,
            tries_once=not self.in_time,
            look_first=self._looks_first or not was_first,
        )
        self.talk = Talk(process, script, process.settings.request_timeout, self._ended, self._gives_up_at)
        self.talk.start()

    def ring(self) -> None:
        """Wake the waiter: it may be its turn, or the key may have become free."""
        if self.talk is not None:
            self.talk.ring()
        elif not self.is_rung:
            self.is_rung = True
            self._process.after(0.0, self._wait)

    def _ended(self, outcome: Any, error: StoreError | None) -> None:
        self._leave()
        self._then(outcome, error)

    def cancel(self, *, torn: bool = False) -> None:
        """Stop waiting. torn: interrupted before it could leave the queue, so the waiters behind it must poll."""
        if self.talk is not None:
            self.talk.cancel()
        self.is_over = True
        if torn:
            self._process.waiters.remove(self)
            self._process.is_torn_until = self._process.world.now + LOOK_AGAIN / self._process.clock.rate
            self._process.check_turns_after(self.key, LOOK_AGAIN)
        else:
            self._leave()

    def _leave(self) -> None:
        process = self._process
        self.is_over = True
        process.waiters.remove(self)
        following = process.turns.leave(self.key, self)
        if following is not None:
            following.ring()
        process.check_turns_after(self.key, 0.0)


def check_turns(process: Process, key: str) -> None:
    """Check that, if a key has waiters in this process, one of them is sending requests."""
    waiting = [one for one in process.waiters if one.key == key and not one.is_over]
    if process.world.now < process.is_torn_until:
        return  # a waiter was interrupted before it could leave the queue: the waiters behind it poll
    if waiting and not any(one.asks for one in waiting):
        process.watch.violated(f"{len(waiting)} waiters of {process.name} wait for {key}, and none of them asks")


def check_woken(process: Process, key: str, freed_at: float) -> None:
    """Check that a waiter that was pausing when this process released the key was woken."""
    for one in process.waiters:
        if one.key == key and one.asks and one.talk is not None and one.talk.slept_since < freed_at:
            process.watch.violated(f"{process.name} gave {key} back, and its waiter sleeps on")

"""The behaviour of simulated processes: acquire the lock, work, share it, pass it on, release it.

All choices come from the world's dice. Must not know the properties of a correct protocol, which are in `properties`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstead.errors import StoreError
from lockstead.protocol.acquire import AcquireRequest, Grant, acquire
from lockstead.protocol.context import LeaseId
from lockstead.protocol.members import Attached, attach, remove_member
from lockstead.protocol.record import number
from lockstead.protocol.release import release
from lockstead.protocol.renew import Over
from lockstead.values import Name
from tests.simulation.process import KeptLease, Process
from tests.simulation.queueing import Waiter
from tests.simulation.talk import Talk


@dataclass(frozen=True, slots=True)
class Habits:
    """The behaviour of workers: probabilities, and mean durations in seconds.

    rivals: another thread of the process tries to acquire the held lock. threads: another thread becomes a member.
    besides: another thread takes a lock of another key meanwhile. forgets: the lease is garbage-collected, and
    released or not. queues: another thread waits for the lock as well.
    """

    work: float = 30.0
    idle: float = 2.0
    draws: float = 0.5
    shares: float = 0.2
    detaches: float = 0.1
    attaches: float = 0.7
    gives_up: float = 0.3
    cancels: float = 0.1
    reclaims: float = 0.5
    rivals: float = 0.0
    threads: float = 0.0
    besides: float = 0.0
    forgets: float = 0.0
    queues: float = 0.0


QUEUED_MAX = 3
"""Maximum number of further threads of one process that wait for the lock."""


@dataclass(slots=True)
class Mailbox:
    """Tickets passed between processes. detached: not kept by any process, so that one must release them."""

    shared: list[LeaseId] = field(default_factory=list)
    detached: list[LeaseId] = field(default_factory=list)


class Worker(Process):
    """A process that repeatedly works under one lock, until `finish` is called."""

    __slots__ = (
        "_asking",
        "_besides",
        "_has_died",
        "_held",
        "_queued",
        "_want",
        "habits",
        "is_finishing",
        "key",
        "mailbox",
    )

    habits: Habits
    key: Name
    mailbox: Mailbox

    def employ(self, key: Name, habits: Habits, mailbox: Mailbox) -> None:
        """Set the worker's lock, habits and mailbox."""
        self.key = key
        self.habits = habits
        self.mailbox = mailbox
        self._asking: Talk | Waiter | None = None
        self._queued: list[tuple[Waiter, AcquireRequest]] = []
        self._want: AcquireRequest | None = None
        self._held: KeptLease | None = None
        self._besides: list[KeptLease] = []
        self._has_died = False
        self.is_finishing = False

    def _throws(self, odds: float) -> bool:
        return self.world.dice.random() < odds

    def _span(self, mean: float) -> float:
        """Return a random duration between 0 and twice the mean."""
        return 2 * mean * self.world.dice.random()

    # --- acquiring -----------------------------------------------------------------------------------------------

    def begin(self, _: Any = None) -> None:
        """Start working: under another process's ticket, or under a lease of its own."""
        if self.is_finishing or self._held is not None or self._asking is not None:
            return
        mailbox, habits = self.mailbox, self.habits
        if mailbox.shared and self._throws(habits.attaches):
            self._attach(mailbox.shared[-1])
        elif mailbox.detached and self._throws(0.5):
            lease = mailbox.detached.pop()
            if self._throws(0.5):
                mailbox.detached.append(lease)
                self._attach(lease)
            else:
                self._release_by_ticket(lease)
        else:
            self._acquire()

    def _acquire(self) -> None:
        habits, now = self.habits, self.now()
        wait = self._span(self.settings.ttl) if self._throws(habits.gives_up) else None
        tries_once = self._throws(0.1)
        gives_up_at = now if tries_once else (None if wait is None else now + wait)
        want = self._want = self.wish(self.key, reclaim=self._has_died and self._throws(habits.reclaims))
        looks_first = self._throws(0.2)
        if gives_up_at is not None:
            self.world.at(self.clock.when(gives_up_at + 1.0), self, self._check_wait, want)
        if self._throws(habits.cancels):
            self.after(self._span(self.settings.request_timeout), self._cancel, want)
        if tries_once:
            script = acquire(want, self.context, gives_up_at=gives_up_at, tries_once=True, look_first=looks_first)
            self._asking = Talk(self, script, self.settings.request_timeout, self._asked, gives_up_at)
        else:
            self._asking = Waiter(self, want, self._asked, gives_up_at, looks_first=looks_first)
        self._asking.start()
        if habits.queues and self._throws(habits.queues):
            self.after(self._span(self.settings.ttl / 2), self._queue_up)

    def _queue_up(self, _: Any) -> None:
        """Wait for the lock in another thread of this process, behind the existing waiters."""
        if self.is_finishing or len(self._queued) >= QUEUED_MAX:
            return
        want = self.wish(self.key)
        gives_up_at = self.now() + self._span(2 * self.settings.ttl) if self._throws(0.5) else None

        def asked(outcome: Any, _: StoreError | None) -> None:
            self._queued.remove((waiter, want))
            if isinstance(outcome, Grant):
                other = self.granted(outcome, want)
                self._besides.append(other)
                held_for = 0.0 if self.is_finishing else min(self.settings.ttl / 2, self._span(self.habits.work))
                self.after(held_for, lambda _: self.release(other, _nothing))
            else:
                self.clean_up_abandoned(want)

        waiter = Waiter(self, want, asked, gives_up_at, looks_first=False)
        self._queued.append((waiter, want))
        waiter.start()
        if self._throws(self.habits.cancels):
            self.after(self._span(self.settings.ttl), self._give_up, (waiter, want))

    def _give_up(self, queued: tuple[Waiter, AcquireRequest]) -> None:
        if queued in self._queued:
            self._queued.remove(queued)
            waiter, want = queued
            waiter.cancel(torn=not self.is_finishing and self._throws(0.3))
            self.clean_up_abandoned(want)

    def _asked(self, outcome: Any, _: StoreError | None) -> None:
        want, self._want, self._asking = self._want, None, None
        if want is None:
            return
        if not isinstance(outcome, Grant):
            self.clean_up_abandoned(want)
            self.after(self._span(self.habits.idle), self.begin)
            return
        kept = self._held = self.granted(outcome, want)
        if outcome.token is not None:
            self.watch.got_token(kept.lease_state, outcome.token, was_superseded=False)
        self._work(kept)

    def _check_wait(self, want: AcquireRequest) -> None:
        if self._want is want and self.world.now >= self.stopped_until + 1.2:
            self.watch.violated(f"{want.holder} still waits a second after its time was up")

    def _cancel(self, want: AcquireRequest | None) -> None:
        if want is None or self._want is not want or self._asking is None:
            return
        self.tell("cancels its acquisition")
        self._asking.cancel()
        self._want = self._asking = None
        self.clean_up_abandoned(want)
        self.after(self._span(self.habits.idle), self.begin)

    # --- working -------------------------------------------------------------------------------------------------

    def _work(self, kept: KeptLease) -> None:
        habits = self.habits
        length = 0.0 if self.is_finishing else self._span(habits.work)
        if self._throws(habits.draws):
            self.after(self._span(length), self._draw, kept)
        if kept.lease_state.is_owner and self._throws(habits.shares):
            self.after(length * self.world.dice.random() ** 2, self._share, kept)
        if habits.rivals and self._throws(habits.rivals):
            self.after(self._span(length), self._rival)
        if habits.threads and self._throws(habits.threads):
            self.after(length * self.world.dice.random(), self._join_in, kept)
        if habits.besides and self._throws(habits.besides):
            self.after(length * self.world.dice.random(), self._take_besides)
        if habits.forgets and self._throws(habits.forgets):
            self.after(length * self.world.dice.random(), self._lose_sight, kept)
        ends = self._detach if self._throws(habits.detaches) else self._finish_work
        self.after(length, ends, kept)

    def _draw(self, kept: KeptLease) -> None:
        self.draw(kept)

    def _rival(self, _: Any) -> None:
        """Try to acquire the lock that this process holds, like another of its threads with reclaim=True.

        If that succeeds, it releases the lease unused, like a batch of locks if one of them is not available.
        """
        want = self.wish(self.key, reclaim=True)

        def asked(outcome: Any, _: StoreError | None) -> None:
            if isinstance(outcome, Grant):
                self.release(self.granted(outcome, want, unused=True), _nothing)
            else:
                self.clean_up_abandoned(want)

        self.converse(acquire(want, self.context, gives_up_at=self.now(), tries_once=True), asked, self.now())

    def _join_in(self, kept: KeptLease) -> None:
        """Become a member once more, like another thread of a process that works under a shared lease."""
        lease, nonce = kept.lease_state.lease, self.nonce()
        if not kept.lease_state.shared or not kept.lease_state.believes(self.now()):
            return
        settings = self.settings.for_ttl(lease.ttl)

        def joined(outcome: Any, _: StoreError | None) -> None:
            if isinstance(outcome, Attached):
                other = self.attached(outcome, settings)
                held_for = 0.0 if self.is_finishing else self._span(self.habits.work)
                self.after(held_for, lambda _: self.release(other, _nothing))

        self.converse(attach(lease, nonce, self._registration(nonce, lease.ttl), self.context), joined)

    def _take_besides(self, _: Any) -> None:
        """Hold a lock of another key for a while, like another thread of the process."""
        if self.is_finishing:
            return
        want = self.wish(Name(f"{self.key.key}-besides"))
        gives_up_at, longest = self.now() + self.settings.ttl / 2, self.settings.ttl / 2

        def asked(outcome: Any, _: StoreError | None) -> None:
            if isinstance(outcome, Grant):
                other = self.granted(outcome, want)
                self._besides.append(other)
                held_for = 0.0 if self.is_finishing else min(longest, self._span(self.habits.work))
                self.after(held_for, lambda _: self.release(other, _nothing))
            else:
                self.clean_up_abandoned(want)

        self.converse(acquire(want, self.context, gives_up_at=gives_up_at, tries_once=False), asked, gives_up_at)

    def _finish_work(self, kept: KeptLease) -> None:
        if self._held is not kept:
            return
        lease = kept.lease_state.lease
        if kept.lease_state.is_owner and lease in self.mailbox.shared:
            self.mailbox.shared.remove(lease)
        self.release(kept, lambda: self._freed(kept))

    def _lose_sight(self, kept: KeptLease) -> None:
        """Drop the last reference to the lease; an object collected with it releases it soon after, or never."""
        if self._held is not kept:
            return
        self.tell(f"drops {kept.lease_state.lease.incarnation}")
        self._forget(kept.lease_state.lease)
        self.forget(kept)
        if self._throws(0.5):
            self.after(0.1, self._gives_back, kept)
        else:
            self._freed(kept)

    def _gives_back(self, kept: KeptLease) -> None:
        self.remember(kept)
        self._finish_work(kept)

    def _freed(self, kept: KeptLease) -> None:
        if self._held is kept:
            self._held = None
            self.after(self._span(self.habits.idle), self.begin)

    def _detach(self, kept: KeptLease) -> None:
        lease_state = kept.lease_state
        if self._held is not kept:
            return
        if not lease_state.believes(self.now()):
            self._finish_work(kept)
            return
        self.tell(f"detaches from {lease_state.lease.incarnation}")
        self.leave(kept)
        is_last = lease_state.is_owner and lease_state.lease not in self.mailbox.detached

        def settled() -> None:
            if lease_state.registration is not None:
                self.converse(remove_member(lease_state.registration, self.context), _ignored)
            lease_state.left()
            if is_last:
                self.mailbox.detached.append(lease_state.lease)
            self._freed(kept)

        self.settle(kept, settled)

    # --- sharing -------------------------------------------------------------------------------------------------

    def _share(self, kept: KeptLease) -> None:
        lease_state = kept.lease_state
        if self._held is not kept or not lease_state.believes(self.now()) or lease_state.registration is not None:
            return
        lease_state.shared = True
        nonce = self.nonce()

        def joined(outcome: Any, _: StoreError | None) -> None:
            if isinstance(outcome, Over):
                self.lose(kept, outcome.reason, outcome.detail)
            if isinstance(outcome, Attached) and lease_state.believes(self.now()):
                self.register(kept, outcome)
                self.tell(f"shares {lease_state.lease.incarnation}")
                self.mailbox.shared.append(lease_state.lease)

        self.converse(
            attach(lease_state.lease, nonce, self._registration(nonce, lease_state.lease.ttl), self.context), joined
        )

    def _registration(self, nonce: str, ttl: float) -> Mapping[str, str]:
        return {"v": self._fields["v"], "identity": nonce, "ttl": number(ttl), "owner": self.name}

    def _attach(self, lease: LeaseId) -> None:
        nonce, settings = self.nonce(), self.settings.for_ttl(lease.ttl)

        def joined(outcome: Any, _: StoreError | None) -> None:
            self._asking = None
            if isinstance(outcome, Attached):
                kept = self._held = self.attached(outcome, settings)
                self._work(kept)
                return
            if isinstance(outcome, Over):
                self._forget(lease)
            self.after(self._span(self.habits.idle), self.begin)

        script = attach(lease, nonce, self._registration(nonce, lease.ttl), self.context)
        self._asking = Talk(self, script, settings.request_timeout, joined)
        self._asking.start()

    def _forget(self, lease: LeaseId) -> None:
        for tickets in (self.mailbox.shared, self.mailbox.detached):
            if lease in tickets:
                tickets.remove(lease)

    def _release_by_ticket(self, lease: LeaseId) -> None:
        self.tell(f"releases {lease.incarnation} by its ticket")
        bound_at = self.now() + self.context.drain_bound()

        def ended(_: Any, __: StoreError | None) -> None:
            self.after(self._span(self.habits.idle), self.begin)

        script = release(lease, self.context, shared=True, bound_at=bound_at, salt=lease.holder, by_ticket=True)
        self.converse(script, ended)

    # --- accidents, the end --------------------------------------------------------------------------------------

    def crash(self, comes_back_after: float) -> None:
        """Die, and restart later as a new process of the same owner."""
        self.die()
        self._asking = self._want = self._held = None
        self._besides.clear()
        self._queued.clear()
        self._has_died = True
        self.after(comes_back_after, self.begin)

    def stumble(self, is_fatal: bool) -> None:
        """Pause for about a ttl, or die and restart, while a reply is outstanding."""
        if is_fatal:
            self.crash(self.settings.ttl * self.world.dice.random() ** 2)
        else:
            super().stumble(is_fatal)

    @property
    def is_holding(self) -> bool:
        """Whether it is working under a lease now."""
        return self._held is not None

    def finish(self, _: Any = None) -> None:
        """Release what is held, stop waiting, and start nothing new."""
        self.is_finishing = True
        for queued in list(self._queued):
            self._give_up(queued)
        if self._want is not None:
            self._cancel(self._want)
        if self._held is not None:
            self._finish_work(self._held)
        for other in self._besides:
            self.release(other, _nothing)


def _ignored(_: Any, __: StoreError | None) -> None:
    """Ignore the outcome."""


def _nothing() -> None:
    """Do nothing: nothing waits for the end."""

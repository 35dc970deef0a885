"""The behaviour of simulated processes: acquire the lock, work, share it, pass it on, release it.

All choices are random. Must not know the properties of a correct protocol, which are in `invariants`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lockstead.protocol.acquire import AcquireRequest, Grant, acquire
from lockstead.protocol.commands import Script, Snapshot
from lockstead.protocol.context import LeaseId, ProtocolContext
from lockstead.protocol.members import Attached, Introduction, attach, nonce_of, take_back
from lockstead.protocol.observations import ObservationCache
from lockstead.protocol.previous_lease import NOBODY_BEFORE
from lockstead.protocol.record import Record, number, previous_lease_text
from lockstead.protocol.release import release
from lockstead.protocol.renew import Over, renew
from lockstead.settings import Settings
from lockstead.values import EXCLUSIVE, SHARED, Name
from tests.simulation.plan import KEY, OTHER_KEY
from tests.simulation.process import KeptLease, Process
from tests.simulation.runner import ScriptRunner, Then
from tests.simulation.waiter import Waiter
from tests.simulation.world import BootClock

if TYPE_CHECKING:
    from tests.simulation.run import Simulation

QUEUED_MAX = 3
"""Maximum number of further threads of one process that wait for the lock."""


@dataclass(slots=True)
class Tickets:
    """Tickets passed between processes. detached: not kept by any process, so that one must release them.

    of_readers: tickets of shared leases, each with the registration of the reader that made it.
    """

    shared: list[LeaseId] = field(default_factory=list)
    detached: list[LeaseId] = field(default_factory=list)
    of_readers: list[tuple[LeaseId, Introduction]] = field(default_factory=list)

    def discard(self, lease: LeaseId) -> None:
        """Remove the tickets of a lease."""
        for tickets in (self.shared, self.detached):
            if lease in tickets:
                tickets.remove(lease)
        self.of_readers = [ticket for ticket in self.of_readers if ticket[0] != lease]


class OldContext(ProtocolContext):
    """The context of a version that knows no readers: for it, every live record is a lock that somebody holds."""

    def decode(self, name: Name, seen: Snapshot) -> Record:
        """Decode a record without the fields that the version does not know."""
        return replace(super().decode(name, seen), mode=EXCLUSIVE, wanted="")


class Worker(Process):
    """A process that repeatedly works under one lock, until `finish` is called."""

    def __init__(self, simulation: Simulation, name: str, clock: BootClock, settings: Settings) -> None:
        self.is_finishing = self._has_died = False
        self.behaviour = simulation.plan.behaviour
        self.tickets = simulation.tickets
        super().__init__(simulation, name, clock, settings)

    def _forget(self) -> None:
        super()._forget()
        self.is_old = self.behaviour.old and self.name == f"worker{len(self.plan.settings)}"
        if self.is_old:
            self.context = OldContext(self.plan.traits, self.settings, ObservationCache())
        self._acquiring: ScriptRunner | Waiter | None = None
        self._queued: list[Waiter] = []
        self._request: AcquireRequest | None = None
        self._held: KeptLease | None = None
        self._others: list[KeptLease] = []

    def _up_to_twice(self, mean: float) -> float:
        """Return a random duration between 0 and twice the mean."""
        return 2 * mean * self.world.rng.random()

    def _work_time(self) -> float:
        return 0.0 if self.is_finishing else self._up_to_twice(self.behaviour.work)

    def _begin_again(self) -> None:
        self.after(self._up_to_twice(self.behaviour.idle), self.begin)

    # --- acquiring -----------------------------------------------------------------------------------------------

    def begin(self, _: Any = None) -> None:
        """Start working: under another process's ticket, or under a lease of its own."""
        if self.is_finishing or self._held is not None or self._acquiring is not None:
            return
        tickets = self.tickets
        if tickets.of_readers and not self.is_old and self.chance(self.behaviour.attaches / 2):
            self._attach(*tickets.of_readers[-1])
        elif tickets.shared and self.chance(self.behaviour.attaches):
            self._attach(tickets.shared[-1])
        elif tickets.detached and self.chance(0.5):
            lease = tickets.detached.pop()
            if self.chance(0.5):
                tickets.detached.append(lease)
                self._attach(lease)
            else:
                self._release_by_ticket(lease)
        else:
            self._acquire()

    def _acquire(self) -> None:
        behaviour, now = self.behaviour, self.now()
        wait = self._up_to_twice(self.settings.ttl) if self.chance(behaviour.gives_up) else math.inf
        tries_once = self.chance(0.1)
        gives_up_at = now if tries_once else now + wait
        if not self.is_old and behaviour.reads and self.chance(behaviour.reads):
            request = self.new_request(KEY, mode=SHARED)
        else:
            request = self.new_request(KEY, reclaim=self._has_died and self.chance(behaviour.reclaims))
        self._request = request
        looks_first = self.chance(0.2)
        if gives_up_at < math.inf:
            self.world.schedule(self.clock.when(gives_up_at + 1.0), self, self._check_wait, request)
        if self.chance(behaviour.cancels):
            self.after(self._up_to_twice(self.settings.request_timeout), self._cancel, request)
        if tries_once:
            script = self.acquire_script(request, gives_up_at=gives_up_at, tries_once=True, look_first=looks_first)
            self._acquiring = ScriptRunner(self, script, self._acquired, gives_up_at)
        else:
            self._acquiring = Waiter(self, request, self._acquired, gives_up_at, looks_first=looks_first)
        self._acquiring.start()
        if behaviour.queues and self.chance(behaviour.queues):
            self.after(self._up_to_twice(self.settings.ttl / 2), self._queue_up)

    def _acquired(self, outcome: Any) -> None:
        request, self._request, self._acquiring = self._request, None, None
        if request is None:
            return
        if not isinstance(outcome, Grant):
            self.clean_up_abandoned(request)
            self._begin_again()
            return
        kept = self._held = self.granted(outcome, request)
        if outcome.token is not None:
            self.checker.check_token(kept.lease_state, outcome.token, was_superseded=False)
        self._work(kept)

    def _check_wait(self, request: AcquireRequest) -> None:
        if self._request is request and self.world.now >= self.paused_until + 1.2:
            self.checker.fail(f"{request.holder} still waits a second after its timeout")

    def _cancel(self, request: AcquireRequest) -> None:
        if self._request is not request or self._acquiring is None:
            return
        self.log("cancels its acquisition")
        self._acquiring.cancel()
        self._request = self._acquiring = None
        self.clean_up_abandoned(request)
        self._begin_again()

    # --- other threads of the process ----------------------------------------------------------------------------

    def _hold_besides(self, request: AcquireRequest) -> Then:
        """Return what follows an acquisition by another thread: hold the lease for a while."""

        def acquired(outcome: Any) -> None:
            if not isinstance(outcome, Grant):
                self.clean_up_abandoned(request)
                return
            other = self.granted(outcome, request)
            self._others.append(other)
            held_for = 0.0 if self.is_finishing else min(self.settings.ttl / 2, self._work_time())
            self.after(held_for, lambda _: self.release(other))

        return acquired

    def _queue_up(self, _: Any) -> None:
        """Wait for the lock in another thread, behind the existing waiters."""
        if self.is_finishing or len(self._queued) >= QUEUED_MAX:
            return
        reads = not self.is_old and bool(self.behaviour.reads) and self.chance(self.behaviour.reads)
        request = self.new_request(KEY, mode=SHARED if reads else EXCLUSIVE)
        gives_up_at = self.now() + self._up_to_twice(2 * self.settings.ttl) if self.chance(0.5) else math.inf
        hold = self._hold_besides(request)

        def acquired(outcome: Any) -> None:
            self._queued.remove(waiter)
            hold(outcome)

        waiter = Waiter(self, request, acquired, gives_up_at)
        self._queued.append(waiter)
        waiter.start()
        if self.chance(self.behaviour.cancels):
            self.after(self._up_to_twice(self.settings.ttl), self._give_up, waiter)

    def _give_up(self, waiter: Waiter) -> None:
        if waiter in self._queued:
            self._queued.remove(waiter)
            waiter.cancel(torn=not self.is_finishing and self.chance(0.3))
            self.clean_up_abandoned(waiter.request)

    def _take_other_key(self, _: Any) -> None:
        """Hold a lock of another key for a while."""
        if not self.is_finishing:
            request, gives_up_at = self.new_request(OTHER_KEY), self.now() + self.settings.ttl / 2
            script = acquire(request, self.context, gives_up_at=gives_up_at, tries_once=False)
            self.run_script(script, self._hold_besides(request), gives_up_at=gives_up_at)

    def _rival(self, _: Any) -> None:
        """Try to acquire the lock that this process holds, with reclaim=True.

        If that succeeds, release the lease unused, like a batch of locks if one of them is not available.
        """
        request, now = self.new_request(KEY, reclaim=True), self.now()

        def acquired(outcome: Any) -> None:
            if isinstance(outcome, Grant):
                self.release(self.granted(outcome, request, unused=True))
            else:
                self.clean_up_abandoned(request)

        self.run_script(acquire(request, self.context, gives_up_at=now, tries_once=True), acquired, gives_up_at=now)

    def _attach_thread(self, kept: KeptLease) -> None:
        """Become a member once more under a shared lease."""
        lease = kept.lease_state.lease
        if not kept.lease_state.shared or not kept.lease_state.believes(self.now()):
            return
        settings = self.settings.for_ttl(lease.ttl)

        def joined(outcome: Any) -> None:
            if isinstance(outcome, Attached):
                other = self.attached(outcome, settings)
                self._others.append(other)
                self.after(self._work_time(), lambda _: self.release(other))

        self.run_script(self._attach_script(lease), joined)

    # --- working -------------------------------------------------------------------------------------------------

    def _work(self, kept: KeptLease) -> None:
        behaviour, random = self.behaviour, self.world.rng.random
        length = self._work_time()
        if self.chance(behaviour.draws):
            self.after(self._up_to_twice(length), self.draw, kept)
        if kept.lease_state.is_owner and self.chance(behaviour.shares):
            self.after(length * random() ** 2, self._share, kept)
        if behaviour.downgrades and not self.is_old and kept.lease_state.is_owner and self.chance(behaviour.downgrades):
            self.after(length * random() ** 4, self._downgrade, kept)
        if behaviour.rivals and self.chance(behaviour.rivals):
            self.after(self._up_to_twice(length), self._rival)
        if behaviour.threads and self.chance(behaviour.threads):
            self.after(length * random(), self._attach_thread, kept)
        if behaviour.other_keys and self.chance(behaviour.other_keys):
            self.after(length * random(), self._take_other_key)
        if behaviour.drops and self.chance(behaviour.drops):
            self.after(length * random(), self._drop, kept)
        self.after(length, self._detach if self.chance(behaviour.detaches) else self._finish_work, kept)

    def _finish_work(self, kept: KeptLease) -> None:
        if self._held is not kept:
            return
        lease = kept.lease_state.lease
        if kept.lease_state.is_owner and lease in self.tickets.shared:
            self.tickets.shared.remove(lease)
        self.release(kept, lambda: self._finished(kept))

    def _finished(self, kept: KeptLease) -> None:
        if self._held is kept:
            self._held = None
            self._begin_again()

    def _drop(self, kept: KeptLease) -> None:
        """Drop the last reference to the lease; an object collected with it releases it soon after, or never."""
        if self._held is not kept:
            return
        self.log(f"drops {kept.lease_state.lease.incarnation}")
        self.tickets.discard(kept.lease_state.lease)
        self.orphan(kept)
        if self.chance(0.5):
            self.after(0.1, self._release_collected, kept)
        else:
            self._finished(kept)

    def _release_collected(self, kept: KeptLease) -> None:
        self.reference(kept)
        self._finish_work(kept)

    def _detach(self, kept: KeptLease) -> None:
        lease_state = kept.lease_state
        if self._held is not kept:
            return
        if not lease_state.believes(self.now()):
            self._finish_work(kept)
            return
        self.log(f"detaches from {lease_state.lease.incarnation}")
        self.leave(kept)
        is_exclusive = lease_state.mode == EXCLUSIVE
        is_last = lease_state.is_owner and is_exclusive and lease_state.lease not in self.tickets.detached

        def settled() -> None:
            if lease_state.registration is not None and is_exclusive:
                self.run_script(take_back(lease_state.registration, self.context))
            lease_state.left()
            if is_last:
                self.tickets.detached.append(lease_state.lease)
            self._finished(kept)

        self.settle(kept, settled)

    # --- sharing -------------------------------------------------------------------------------------------------

    def _share(self, kept: KeptLease) -> None:
        lease_state = kept.lease_state
        if self._held is not kept or not lease_state.believes(self.now()):
            return
        if lease_state.registration is not None:
            if lease_state.mode == SHARED:
                own = lease_state.registration
                introduction = Introduction(nonce_of(own.name.part), own.incarnation)
                self.tickets.of_readers.append((lease_state.lease, introduction))
            return
        lease_state.shared = True

        def joined(outcome: Any) -> None:
            if isinstance(outcome, Over):
                self.lose(kept, outcome.reason, outcome.detail)
            if isinstance(outcome, Attached) and lease_state.believes(self.now()):
                self.register(kept, outcome)
                self.log(f"shares {lease_state.lease.incarnation}")
                self.tickets.shared.append(lease_state.lease)

        self.run_script(self._attach_script(lease_state.lease), joined)

    def _downgrade(self, kept: KeptLease) -> None:
        """Become a reader: register under the own lease, and let the record say so."""
        lease_state = kept.lease_state
        lease = lease_state.lease
        if self._held is not kept or lease_state.shared or lease_state.mode == SHARED:
            return
        nonce = nonce_of(lease.holder)
        fields = {**self.fields, "identity": lease.holder}

        def registered(outcome: Any) -> None:
            if isinstance(outcome, Over):
                self.lose(kept, outcome.reason, outcome.detail)
            if not isinstance(outcome, Attached):
                return
            is_ours = self._held is kept and not lease_state.shared and lease_state.believes(self.now())
            if not is_ours:
                self.run_script(take_back(outcome.registration, self.context))
                return
            self.register(kept, outcome)
            self.checker.section_ended(lease_state)
            lease_state.downgraded()
            self.log(f"downgrades {lease.incarnation}")
            shared = {"mode": SHARED, "before": previous_lease_text(NOBODY_BEFORE)}
            self.run_script(renew(lease, shared, self.context), downgraded)

        def downgraded(outcome: Any) -> None:
            if isinstance(outcome, Over):
                self.lose(kept, outcome.reason, outcome.detail)

        self.run_script(attach(lease, f"{self.name}.{nonce}", fields, self.context), registered)

    def _attach(self, lease: LeaseId, introduced_by: Introduction | None = None) -> None:
        settings = self.settings.for_ttl(lease.ttl)

        def joined(outcome: Any) -> None:
            self._acquiring = None
            if isinstance(outcome, Attached):
                self.log(f"attaches by the ticket of a {'reader' if introduced_by else 'writer'}")
                kept = self._held = self.attached(outcome, settings)
                self._work(kept)
                return
            if isinstance(outcome, Over):
                self.tickets.discard(lease)
            self._begin_again()

        script = self._attach_script(lease, introduced_by)
        self._acquiring = ScriptRunner(self, script, joined, limit=settings.request_timeout)
        self._acquiring.start()

    def _attach_script(self, lease: LeaseId, introduced_by: Introduction | None = None) -> Script[Any]:
        nonce = self.nonce()
        fields = {"v": self.fields["v"], "identity": nonce, "ttl": number(lease.ttl), "owner": self.name}
        mode = EXCLUSIVE if introduced_by is None else SHARED
        return attach(lease, nonce, fields, self.context, mode=mode, introduced_by=introduced_by)

    def _release_by_ticket(self, lease: LeaseId) -> None:
        self.log(f"releases {lease.incarnation} by its ticket")
        bound_at = self.now() + self.context.drain_bound()
        script = release(lease, self.context, shared=True, bound_at=bound_at, salt=lease.holder, by_ticket=True)
        self.run_script(script, lambda _: self._begin_again())

    # --- faults, the end -----------------------------------------------------------------------------------------

    def crash(self, comes_back_after: float) -> None:
        """Die, and restart later as a new process of the same owner."""
        self.die()
        self._has_died = True
        self.after(comes_back_after, self.begin)

    def fail(self, is_fatal: bool) -> None:
        """Pause for about a ttl, or die and restart, while a reply is outstanding."""
        if is_fatal:
            self.crash(self.settings.ttl * self.world.rng.random() ** 2)
        else:
            super().fail(is_fatal)

    @property
    def is_holding(self) -> bool:
        """Whether it is working under a lease now."""
        return self._held is not None

    def finish(self, _: Any = None) -> None:
        """Release what is held, stop waiting, and start nothing new."""
        self.is_finishing = True
        for waiter in list(self._queued):
            self._give_up(waiter)
        if self._request is not None:
            self._cancel(self._request)
        if self._held is not None:
            self._finish_work(self._held)
        for other in self._others:
            self.release(other)

"""A simulated process: an engine and a keeper in virtual time, using the real `protocol.keeping`.

It carries out the actions of a keeper step after the step, as the real keeper does outside its lock. Must not know what
the work under a lease is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from lockstead.errors import LossReason, StoreError
from lockstead.protocol.acquire import AcquireRequest, Grant
from lockstead.protocol.commands import Script
from lockstead.protocol.context import ProtocolContext
from lockstead.protocol.fence import draw_token
from lockstead.protocol.keeping import (
    KeeperAction,
    Keeping,
    NotifyLoss,
    ReportAbandoned,
    SendBatch,
    SendNext,
)
from lockstead.protocol.lifecycle import LeaseState, State
from lockstead.protocol.members import Attached, renew_member
from lockstead.protocol.record import Record, encode
from lockstead.protocol.release import Had, Outcome, give_back, may_remove_after_loss, sweep, sweep_pauses
from lockstead.protocol.renew import renew
from lockstead.protocol.turns import Turns
from lockstead.settings import Settings
from lockstead.values import Name
from tests.simulation.machine import Machine
from tests.simulation.network import Network
from tests.simulation.properties import HAIR, LATE, Watch
from tests.simulation.queueing import Waiter, check_turns, check_woken
from tests.simulation.talk import Talk
from tests.simulation.world import BootClock, World

EVER = float("inf")
WORKERS_MAX: Final = 32


class KeptLease:
    """A lease in a process: its state, the renewal in flight, and the callback for the renewal's end."""

    __slots__ = ("in_flight", "is_referred", "lease_state", "settled")

    def __init__(self, lease_state: LeaseState) -> None:
        self.lease_state = lease_state
        self.is_referred = True
        self.in_flight: Talk | None = None
        self.settled: Callable[[], None] | None = None


@lru_cache(maxsize=256)
def _fields_of(owner: str, ttl: float, lock_delay: float) -> Mapping[str, str]:
    """Return the fields that all records of one process share, that is, all but the holder."""
    return encode(Record(owner, ttl, owner=owner, lock_delay=lock_delay))


class Process(Machine):
    """A process with its own client and keeper, on its own machine."""

    __slots__ = (
        "_fields",
        "_free_workers",
        "_jobs",
        "_keeping",
        "_keeps_at",
        "_wishes",
        "batch_max",
        "is_torn_until",
        "turns",
        "waiters",
        "workers_max",
    )

    def __init__(
        self, name: str, clock: BootClock, world: World, network: Network, watch: Watch, context: ProtocolContext
    ) -> None:
        super().__init__(name, clock, world, network, watch, context)
        self.batch_max = 1
        self.workers_max = WORKERS_MAX
        self._fields = _fields_of(name, context.settings.ttl, context.settings.lock_delay)
        self._renew_state()

    def _renew_state(self) -> None:
        self._keeping = Keeping[KeptLease](self.batch_max)
        self._jobs: deque[SendNext[KeptLease] | SendBatch[KeptLease]] = deque()
        self._free_workers = self.workers_max
        self._wishes: set[str] = set()
        self.turns = Turns[Waiter]()
        self.waiters: list[Waiter] = []
        self.is_torn_until = 0.0
        self._keeps_at = EVER

    # --- acquiring -----------------------------------------------------------------------------------------------

    def wish(self, name: Name, *, reclaim: bool = False) -> AcquireRequest:
        """Return a request for one lock, with a new holder."""
        holder = self.nonce()
        self._wishes.add(holder)
        fields = {**self._fields, "identity": holder}
        return AcquireRequest(name, holder, self.name, fields, reclaim=reclaim, keeps=self._keeps)

    def _keeps(self, holder: str) -> bool:
        # the reply to a granted request may still be in flight
        return holder in self._wishes or self._keeping.of_holder(holder) is not None

    def check_turns_after(self, key: str, seconds: float) -> None:
        """Check after some seconds, plus a small allowance, that one of the waiters for a key sends requests."""
        self.after(seconds / self.clock.rate + LATE, lambda _: check_turns(self, key))

    def _key_is_free(self, key: str) -> None:
        """Wake the waiter in this process for a key that the process released."""
        woken = self.turns.freed(key)
        if woken is not None:
            woken.ring()
        self.after(2 * LATE, lambda _: check_woken(self, key, self.world.now - 2 * LATE))

    # --- keeping -------------------------------------------------------------------------------------------------

    def granted(self, grant: Grant, want: AcquireRequest, *, unused: bool = False) -> KeptLease:
        """Start keeping a granted lease. unused: no work will be done under it."""
        self._wishes.discard(want.holder)
        if want.may_keep_place:
            self.network.leave_queue(self, want.name, want.holder)
        return self.keep(
            LeaseState(
                lease=grant.lease,
                settings=self.settings,
                deadline=grant.deadline,
                renewed_at=grant.sent_at,
                jitter=self.world.dice.random(),
                unsettled=want.unsettled,
                unused=unused,
                token=grant.token,
                previous_lease=grant.previous_lease,
            )
        )

    def attached(self, joined: Attached, settings: Settings) -> KeptLease:
        """Start keeping a membership."""
        return self.keep(
            LeaseState(
                lease=joined.lease,
                settings=settings,
                deadline=min(joined.registration_deadline, joined.record_deadline),
                renewed_at=joined.sent_at,
                jitter=self.world.dice.random(),
                is_owner=False,
                shared=True,
                registration=joined.registration,
                record_deadline=joined.record_deadline,
                registration_deadline=joined.registration_deadline,
            )
        )

    def keep(self, lease_state: LeaseState) -> KeptLease:
        """Start renewing a lease."""
        kept = KeptLease(lease_state)
        self.watch.began(self, lease_state)
        self._keeping.keep(kept)
        self._wake()
        if self.world.is_told:
            left = lease_state.deadline - self.now()
            self.tell(f"holds {lease_state.lease.incarnation} as {lease_state.lease.holder}, {left:.3f} s left")
        return kept

    def hire(self, batch_max: int, workers_max: int) -> None:
        """Set how many renewals are sent in one request, and how many worker threads send them."""
        self.batch_max, self.workers_max = batch_max, workers_max
        self._renew_state()

    def forget(self, kept: KeptLease) -> None:
        """Simulate that the garbage collector has found a lease unreferenced."""
        kept.is_referred = False
        self._keeping.orphaned(kept, self.now())
        self._wake()

    def remember(self, kept: KeptLease) -> None:
        """Simulate that the block of a collected lease is closed and refers to the lease again, to release it."""
        if self._keeping.of(kept.lease_state) is not None:
            kept.is_referred = True
            self._keeping.keep(kept)
            self._wake()

    def register(self, kept: KeptLease, joined: Attached) -> None:
        """Record that an owner that shares its lease became a member too."""
        self._keeping.registered(kept.lease_state, joined, self.now())
        self.watch.moved(self, kept.lease_state)
        self._wake()

    def _wake(self) -> None:
        at = self._keeping.wake_at()
        if at < self._keeps_at:
            self._keeps_at = at
            self.world.at(max(self.world.now, self.clock.when(at) + HAIR), self, self._keep_time, at)

    def _keep_time(self, planned_at: float) -> None:
        if planned_at == self._keeps_at:
            self._keeps_at = EVER
            self._round()

    def _round(self, _: Any = None) -> None:
        actions: list[KeeperAction[KeptLease]] = []
        self._keeping.round(self.now(), actions)
        for action in actions:
            self._carry_out(action)
        self._wake()

    def _carry_out(self, action: KeeperAction[KeptLease] | None) -> None:
        match action:
            case SendNext() | SendBatch():
                self._jobs.append(action)
                self._work_off()
            case NotifyLoss(kept=kept):
                self._tell_loss(kept)
            case ReportAbandoned(kept=kept):
                self.watch.abandoned(self, kept.lease_state)
                self.tell(f"abandoned {kept.lease_state.lease.incarnation}")
            case _:
                pass

    def _work_off(self) -> None:
        """Let free workers send the pending renewals."""
        while self._jobs and self._free_workers:
            job = self._jobs.popleft()
            one = self._keeping.take_queued() if isinstance(job, SendNext) else None
            batch = job.batch if isinstance(job, SendBatch) else [] if one is None else [one]
            now = self.now()
            sent = [kept for kept in batch if self._keeping.sending(kept.lease_state, now)]
            if sent:
                self._free_workers -= 1
                left = [len(sent)]
                for kept in sent:
                    self._renew(kept, left)

    def _renew(self, kept: KeptLease, left: list[int]) -> None:
        """Renew one lease. left: number of renewals of the worker's job that have not ended yet."""
        self.watch.renews(self, kept.lease_state, is_alone=kept.in_flight is None, is_referred=kept.is_referred)
        lease_state = kept.lease_state
        script: Script[Any]
        if lease_state.registration is None:
            script = renew(lease_state.lease, {}, self.context)
        else:
            script = renew_member(lease_state.lease, lease_state.registration, {}, self.context)

        def then(outcome: Any, error: StoreError | None) -> None:
            self._renewed(kept, outcome if error is None else error)
            left[0] -= 1
            if not left[0]:
                self._free_workers += 1
                self._work_off()
            self._wake()

        kept.in_flight = Talk(self, script, lease_state.settings.request_timeout, then)
        kept.in_flight.start()

    def _renewed(self, kept: KeptLease, outcome: Any) -> None:
        kept.in_flight = None
        action = self._keeping.answered(kept, outcome, self.now())
        if not isinstance(outcome, StoreError):
            # even if the step reports nothing: a lost lease must not become held again
            self.watch.moved(self, kept.lease_state)
        self._carry_out(action)
        if kept.settled is not None:
            settled, kept.settled = kept.settled, None
            settled()

    def _tell_loss(self, kept: KeptLease) -> None:
        if not self._keeping.may_notify(kept.lease_state):
            return
        self.watch.lost(self, kept.lease_state)
        reason = kept.lease_state.reason
        self.tell(
            f"lost {kept.lease_state.lease.incarnation}: {reason.value if reason else ''} {kept.lease_state.detail}"
        )

    def lose(self, kept: KeptLease, reason: LossReason, detail: str = "") -> None:
        """Record a loss that was found outside the keeper."""
        if not kept.lease_state.is_notified:
            self._keeping.lose(kept, reason, detail)
            self._found(kept)

    def _found(self, kept: KeptLease) -> None:
        """Let the timing thread report a loss that was found elsewhere: soon, but not in the caller."""
        self.world.at(self.world.now, self, self._round)
        self.after(LATE, lambda _: self.watch.is_told(self, kept.lease_state))

    # --- leaving -------------------------------------------------------------------------------------------------

    def leave(self, kept: KeptLease) -> bool:
        """Stop holding and renewing a lease; return whether there is anything to release."""
        lease_state, now = kept.lease_state, self.now()
        self.watch.is_told_in_time(self, lease_state)
        was_lost = lease_state.state is State.LOST
        was_held = self._keeping.leave(kept, now)
        if lease_state.state is State.LOST and not was_lost:
            self._found(kept)
        if was_held and lease_state.is_owner and not lease_state.unused:
            self.watch.left(lease_state)
        if lease_state.believes(now):
            self.watch.violated(f"{self.name} believes in {lease_state.lease.incarnation} after it left")
        self.watch.ended(lease_state)
        return was_held or (lease_state.state is State.LOST and may_remove_after_loss(lease_state, now))

    def settle(self, kept: KeptLease, then: Callable[[], None]) -> None:
        """Wait for the renewal in flight, at most two request limits, then call `then`."""
        if kept.in_flight is None:
            then()
            return
        kept.settled = then

        def enough(_: Any) -> None:
            if kept.settled is then:
                kept.settled = None
                then()

        self.after(2 * kept.lease_state.settings.request_timeout, enough)

    def release(self, kept: KeptLease, then: Callable[[], None]) -> None:
        """Release a lease or membership like `Lease.release`."""
        lease_state = kept.lease_state
        if not self.leave(kept):
            then()
            return
        bound_at = self.now() + self.context.drain_bound()
        is_alone = lease_state.is_owner and not lease_state.shared

        def ended(outcome: Any, error: StoreError | None) -> None:
            self.tell(f"gave {lease_state.lease.incarnation} back: {outcome.name if outcome else error!r}")
            self._key_is_free(lease_state.lease.name.key)
            if outcome is not None and lease_state.is_owner:
                self.watch.given_back(
                    lease_state,
                    is_ours=outcome.is_free,
                    is_removed=outcome is not Outcome.LEFT,
                    is_gone_by_us=outcome is Outcome.REMOVED,
                )
            lease_state.left()
            if lease_state.unsettled or (error is not None and is_alone):
                lease = lease_state.lease
                had = Had(lease.incarnation, is_shared=not is_alone, is_clean=lease_state.reason is None)
                self.sweep(lease.name, lease.holder, None if is_alone and lease_state.unused else had)
            then()

        self.settle(
            kept, lambda: _no_talk(self.converse(give_back(lease_state, self.context, bound_at=bound_at), ended))
        )

    def clean_up_abandoned(self, want: AcquireRequest) -> None:
        """Remove what an acquisition that ended without a grant may have written."""
        self._wishes.discard(want.holder)
        if want.has_waited:
            self.network.leave_queue(self, want.name, want.holder)
        if want.unsettled or want.reclaim:
            self.sweep(want.name, want.holder)

    def sweep(self, name: Name, holder: str, had: Had | None = None) -> None:
        """Remove records of a holder whose acquisition is over: now, and again later, like the engine."""
        what, at = (name, holder, had), 0.0
        for pause in sweep_pauses(self.settings.request_timeout):
            at += pause
            if at:
                self.after(at, self._sweep, what)
            else:
                self._sweep(what)

    def _sweep(self, what: tuple[Name, str, Had | None]) -> None:
        name, holder, had = what
        looked_at = self.world.now

        def swept(_: Any, error: StoreError | None) -> None:
            if error is None and (had is None or not had.is_shared):
                self.watch.swept(name, holder, looked_at)

        self.converse(sweep(name, holder, self.context, had), swept)

    # --- tokens --------------------------------------------------------------------------------------------------

    def draw(self, kept: KeptLease) -> None:
        """Draw the fencing token of a lease."""
        lease_state = kept.lease_state
        if not lease_state.believes(self.now()):
            return
        was_superseded = self.watch.is_superseded(lease_state)

        def drawn(token: Any, error: StoreError | None) -> None:
            if error is None and token is not None:
                self.watch.got_token(lease_state, token, was_superseded=was_superseded)
                lease_state.token = token
                self.tell(f"drew the token {token} for {lease_state.lease.incarnation}")

        self.converse(draw_token(lease_state.lease, self.context, salt=self.nonce()), drawn)

    # --- the end -------------------------------------------------------------------------------------------------

    def check_quiet(self) -> None:
        """Check that no lease is kept at the end of the run."""
        if len(self._keeping):
            self.watch.violated(f"{self.name} still keeps a lease after everybody gave back")

    def die(self) -> None:
        """Die now; messages already sent still arrive."""
        for kept in self._keeping:
            self.watch.ended(kept.lease_state)
        self._renew_state()
        super().die()


def _no_talk(_: Talk) -> None:
    """Discard a Talk that will not be cancelled."""

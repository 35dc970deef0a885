"""A simulated process: an engine and a keeper in virtual time, using the real `protocol.keeping`.

It carries out the actions of a keeper step after the step, as the real keeper does outside its lock. Must not know what
the work under a lease is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lockstead.errors import LossReason, StoreError
from lockstead.protocol import keeping
from lockstead.protocol.acquire import AcquireRequest, Grant, acquire
from lockstead.protocol.commands import Script
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
from lockstead.protocol.members import Attached, member_name, nonce_of, renew_member
from lockstead.protocol.readers import attempt_shared
from lockstead.protocol.record import Record, encode
from lockstead.protocol.release import Outcome, UsedLease, give_back, may_remove_after_loss, sweep, sweep_pauses
from lockstead.protocol.renew import renew
from lockstead.runtime.local_queue import LocalQueue
from lockstead.settings import Settings
from lockstead.values import EXCLUSIVE, SHARED, Name
from tests.simulation.invariants import EPSILON, NOTICE_MAX
from tests.simulation.machine import Machine
from tests.simulation.runner import NEVER, ScriptRunner
from tests.simulation.waiter import Waiter, check_turns, check_woken
from tests.simulation.world import BootClock

if TYPE_CHECKING:
    from tests.simulation.run import Simulation

Ended = Callable[[], None]


class KeptLease:
    """A lease in a process: its state, the renewal in flight, and the callback for the renewal's end."""

    def __init__(self, lease_state: LeaseState) -> None:
        self.lease_state = lease_state
        self.is_referenced = True
        self.renewal: ScriptRunner | None = None
        self.on_renewed: Ended | None = None


@lru_cache(maxsize=256)
def _fields_of(owner: str, ttl: float, lock_delay: float) -> Mapping[str, str]:
    """Return the fields that all records of one process share, that is, all but the holder."""
    return encode(Record(owner, ttl, owner=owner, lock_delay=lock_delay))


class Process(Machine):
    """A process with its own client and keeper, on its own machine.

    polls_until: the true instant until which its waiters poll, because one was interrupted.
    """

    def __init__(self, simulation: Simulation, name: str, clock: BootClock, settings: Settings) -> None:
        self.fields = _fields_of(name, settings.ttl, settings.lock_delay)
        super().__init__(simulation, name, clock, settings)

    def _forget(self) -> None:
        super()._forget()
        self._keeping = Keeping[KeptLease](self.plan.batch_max)
        self._queue: deque[SendNext[KeptLease] | SendBatch[KeptLease]] = deque()
        self._free_workers = self.plan.workers
        self._pending_holders: set[str] = set()
        self.queue = LocalQueue()
        self.waiters: list[Waiter] = []
        self.polls_until = 0.0
        self._wakes_at = NEVER

    # --- acquiring -----------------------------------------------------------------------------------------------

    def new_request(self, name: Name, *, reclaim: bool = False, mode: str = EXCLUSIVE) -> AcquireRequest:
        """Return a request for one lock, with a new holder."""
        holder = self.nonce()
        if mode == SHARED:
            nonce = f"{self.name}.{nonce_of(holder)}"  # it names the registration, and other processes count alike
            holder = f"{self.name}/{nonce}"
            group = encode(Record(f"{SHARED}/{nonce}", self.settings.ttl, mode=SHARED))
            fields = {**self.fields, "identity": holder}
            self._pending_holders.add(holder)
            return AcquireRequest(name, holder, self.name, group, nonce=nonce, registration=fields)
        self._pending_holders.add(holder)
        fields = {**self.fields, "identity": holder}
        return AcquireRequest(name, holder, self.name, fields, reclaim=reclaim, keeps=self._keeps)

    def acquire_script(self, request: AcquireRequest, **how: Any) -> Script[Any]:
        """Return the script of an acquisition, of a reader or a writer."""
        if request.is_shared:
            context = replace(self.context, settings=replace(self.settings, lock_delay=0.0))
            return acquire(request, context, attempt=attempt_shared, **how)
        return acquire(request, self.context, **how)

    def _keeps(self, holder: str) -> bool:
        # the reply to a granted request may still be in flight
        return holder in self._pending_holders or self._keeping.of_holder(holder) is not None

    def check_turns_after(self, key: str, seconds: float) -> None:
        """Check after some seconds, plus a small allowance, that one of the waiters for a key sends requests."""
        self.after(seconds / self.clock.rate + NOTICE_MAX, lambda _: check_turns(self, key))

    def _key_is_free(self, key: str) -> None:
        """Wake the waiter in this process for a key that the process released."""
        self.queue.wake_first(key)
        self.after(2 * NOTICE_MAX, lambda _: check_woken(self, key, self.world.now - 2 * NOTICE_MAX))

    def clean_up_abandoned(self, request: AcquireRequest) -> None:
        """Remove what an acquisition that ended without a grant may have written."""
        self._pending_holders.discard(request.holder)
        if request.has_waited:
            self.network.leave_queue(self, request.name, request.holder)
        if request.unsettled or request.reclaim or request.signs:
            self.sweep(request.name, request.holder)
        if request.group is not None:
            self.sweep(member_name(request.group, request.nonce), request.holder)

    # --- keeping -------------------------------------------------------------------------------------------------

    def granted(self, grant: Grant, request: AcquireRequest, *, unused: bool = False) -> KeptLease:
        """Start keeping a granted lease. unused: no work will be done under it."""
        self._pending_holders.discard(request.holder)
        if request.may_keep_place:
            self.network.leave_queue(self, request.name, request.holder)
        settings = self.settings.for_ttl(grant.lease.ttl)
        lease_state = keeping.granted(grant, request, settings, self.world.rng.random())
        lease_state.unused = unused
        return self._keep(lease_state)

    def attached(self, joined: Attached, settings: Settings) -> KeptLease:
        """Start keeping a membership."""
        return self._keep(keeping.attached(joined, settings, self.world.rng.random()))

    def _keep(self, lease_state: LeaseState) -> KeptLease:
        """Start renewing a lease."""
        kept = KeptLease(lease_state)
        self.checker.lease_began(self, lease_state)
        self._keeping.keep(kept)
        self._plan_wake_up()
        left = lease_state.deadline - self.now()
        self.log(
            f"holds {lease_state.lease.incarnation} as {lease_state.holder}, {lease_state.mode}, {left:.3f} s left"
        )
        return kept

    def orphan(self, kept: KeptLease) -> None:
        """Simulate that the garbage collector has found a lease unreferenced."""
        kept.is_referenced = False
        self._keeping.orphaned(kept, self.now())
        self._plan_wake_up()

    def reference(self, kept: KeptLease) -> None:
        """Simulate that the block of a collected lease is closed and refers to the lease again, to release it."""
        if self._keeping.of(kept.lease_state) is not None:
            kept.is_referenced = True
            self._keeping.keep(kept)
            self._plan_wake_up()

    def register(self, kept: KeptLease, joined: Attached) -> None:
        """Record that an owner that shares its lease became a member too."""
        self._keeping.registered(kept.lease_state, joined, self.now())
        self.checker.deadline_moved(self, kept.lease_state)
        self._plan_wake_up()

    def _plan_wake_up(self) -> None:
        at = self._keeping.wake_at()
        if at < self._wakes_at:
            self._wakes_at = at
            self.world.schedule(max(self.world.now, self.clock.when(at) + EPSILON), self, self._wake_up, at)

    def _wake_up(self, planned_at: float) -> None:
        if planned_at == self._wakes_at:
            self._wakes_at = NEVER
            self._round()

    def _round(self, _: Any = None) -> None:
        actions: list[KeeperAction[KeptLease]] = []
        self._keeping.round(self.now(), actions)
        for action in actions:
            self._perform(action)
        self._plan_wake_up()

    def _perform(self, action: KeeperAction[KeptLease] | None) -> None:
        match action:
            case SendNext() | SendBatch():
                self._queue.append(action)
                self._send_queued()
            case NotifyLoss(kept=kept):
                self._notify_loss(kept.lease_state)
            case ReportAbandoned(kept=kept):
                self.checker.lease_abandoned(self, kept.lease_state)
                self.log(f"abandoned {kept.lease_state.lease.incarnation}")
            case _:
                pass

    def _send_queued(self) -> None:
        """Let free workers send the pending renewals."""
        while self._queue and self._free_workers:
            job = self._queue.popleft()
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
        lease_state = kept.lease_state
        self.checker.check_renewal(self, lease_state, is_alone=kept.renewal is None, is_referenced=kept.is_referenced)
        script: Script[Any]
        if lease_state.registration is None:
            script = renew(lease_state.lease, {}, self.context)
        else:
            script = renew_member(lease_state.lease, lease_state.registration, {}, self.context, mode=lease_state.mode)

        def then(outcome: Any) -> None:
            self._renewed(kept, outcome)
            left[0] -= 1
            if not left[0]:
                self._free_workers += 1
                self._send_queued()
            self._plan_wake_up()

        kept.renewal = ScriptRunner(self, script, then, limit=lease_state.settings.request_timeout)
        kept.renewal.start()

    def _renewed(self, kept: KeptLease, outcome: Any) -> None:
        kept.renewal = None
        action = self._keeping.answered(kept, outcome, self.now())
        if not isinstance(outcome, StoreError):
            # even if the step reports nothing: a lost lease must not become held again
            self.checker.deadline_moved(self, kept.lease_state)
        self._perform(action)
        if kept.on_renewed is not None:
            then, kept.on_renewed = kept.on_renewed, None
            then()

    def _notify_loss(self, lease_state: LeaseState) -> None:
        if self._keeping.may_notify(lease_state):
            self.checker.check_loss(self, lease_state)
            reason = lease_state.reason.value if lease_state.reason else ""
            self.log(f"lost {lease_state.lease.incarnation}: {reason} {lease_state.detail}")

    def lose(self, kept: KeptLease, reason: LossReason, detail: str = "") -> None:
        """Record a loss that was found outside the keeper."""
        if not kept.lease_state.is_notified:
            self._keeping.lose(kept, reason, detail)
            self._loss_found(kept)

    def _loss_found(self, kept: KeptLease) -> None:
        """Let the timing thread report a loss that was found elsewhere: soon, but not in the caller."""
        self.world.schedule(self.world.now, self, self._round)
        self.after(NOTICE_MAX, lambda _: self.checker.check_notified(self, kept.lease_state))

    # --- leaving -------------------------------------------------------------------------------------------------

    def leave(self, kept: KeptLease) -> bool:
        """Stop holding and renewing a lease; return whether there is anything to release."""
        lease_state, now = kept.lease_state, self.now()
        self.checker.check_notified_in_time(self, lease_state)
        was_lost = lease_state.state is State.LOST
        was_held = self._keeping.leave(kept, now)
        if lease_state.state is State.LOST and not was_lost:
            self._loss_found(kept)
        if was_held and lease_state.is_owner and not lease_state.unused:
            self.checker.section_ended(lease_state)
        if lease_state.believes(now):
            self.checker.fail(f"{self.name} holds {lease_state.lease.incarnation} after it left")
        self.checker.lease_ended(lease_state)
        return was_held or (lease_state.state is State.LOST and may_remove_after_loss(lease_state, now))

    def settle(self, kept: KeptLease, then: Ended) -> None:
        """Wait for the renewal in flight, at most two request limits, then call `then`."""
        if kept.renewal is None:
            then()
            return
        kept.on_renewed = then

        def wait_no_longer(_: Any) -> None:
            if kept.on_renewed is then:
                kept.on_renewed = None
                then()

        self.after(2 * kept.lease_state.settings.request_timeout, wait_no_longer)

    def release(self, kept: KeptLease, then: Ended | None = None) -> None:
        """Release a lease or membership like `Lease.release`."""
        lease_state = kept.lease_state
        if not self.leave(kept):
            if then is not None:
                then()
            return
        bound_at = self.now() + self.context.drain_bound()

        def released(outcome: Any) -> None:
            self._released(lease_state, outcome)
            if then is not None:
                then()

        def send() -> None:
            self.run_script(give_back(lease_state, self.context, bound_at=bound_at), released)

        self.settle(kept, send)

    def _released(self, lease_state: LeaseState, outcome: Outcome | StoreError) -> None:
        lease, is_alone = lease_state.lease, lease_state.is_owner and not lease_state.shared
        self.log(f"released {lease.incarnation}: {outcome!r}")
        self._key_is_free(lease.name.key)
        if isinstance(outcome, Outcome) and lease_state.is_owner and lease_state.mode == EXCLUSIVE:
            self.checker.check_release(lease_state, outcome)
        lease_state.left()
        if lease_state.mode == SHARED:
            own = lease_state.registration
            if own is not None and (lease_state.unsettled or not isinstance(outcome, Outcome)):
                self.sweep(own.name, own.holder)
            return
        if lease_state.unsettled or (is_alone and not isinstance(outcome, Outcome)):
            used = UsedLease(lease.incarnation, is_shared=not is_alone, is_clean=lease_state.reason is None)
            self.sweep(lease.name, lease.holder, None if is_alone and lease_state.unused else used)

    def sweep(self, name: Name, holder: str, used: UsedLease | None = None) -> None:
        """Remove records of a holder whose acquisition is over: now, and again later, like the engine."""
        what, at = (name, holder, used), 0.0
        for pause in sweep_pauses(self.settings.request_timeout):
            at += pause
            if at:
                self.after(at, self._sweep, what)
            else:
                self._sweep(what)

    def _sweep(self, what: tuple[Name, str, UsedLease | None]) -> None:
        name, holder, used = what
        sent_at = self.world.now

        def swept(outcome: Any) -> None:
            if not isinstance(outcome, StoreError) and (used is None or not used.is_shared):
                self.checker.check_sweep(name, holder, sent_at)

        self.run_script(sweep(name, holder, self.context, used), swept)

    # --- tokens, the end -----------------------------------------------------------------------------------------

    def draw(self, kept: KeptLease) -> None:
        """Draw the fencing token of a lease."""
        lease_state = kept.lease_state
        if not lease_state.believes(self.now()):
            return
        was_superseded = self.checker.is_superseded(lease_state)

        def drawn(token: Any) -> None:
            if isinstance(token, int):
                self.checker.check_token(lease_state, token, was_superseded=was_superseded)
                lease_state.token = token
                self.log(f"drew the token {token} for {lease_state.lease.incarnation}")

        self.run_script(draw_token(lease_state.lease, self.context, salt=self.nonce()), drawn)

    def check_nothing_kept(self) -> None:
        """Check that no lease is kept at the end of the run."""
        if len(self._keeping):
            self.checker.fail(f"{self.name} still keeps a lease after all were released")

    def die(self) -> None:
        """Die now; messages already sent still arrive."""
        for kept in self._keeping:
            self.checker.lease_ended(kept.lease_state)
        super().die()

"""How a simulated process keeps its leases: the simulator's twin of the engine and its keeper.

Runs the very same `RenewalSchedule`, `Tenure` and scripts as the real one. Must not know what the work under a lease
is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from lockstead.errors import LossReason, OutcomeUnknown, StoreError
from lockstead.protocol.acquire import AcquireRequest, Grant
from lockstead.protocol.commands import Script
from lockstead.protocol.fence import draw_token
from lockstead.protocol.lifecycle import Duty, State, Tenure
from lockstead.protocol.members import Attached, MemberRenewed, renew_member
from lockstead.protocol.record import Record, encode
from lockstead.protocol.release import Had, Outcome, give_back, may_remove_after_loss, sweep
from lockstead.protocol.renew import Over, renew
from lockstead.protocol.schedule import RenewalSchedule
from lockstead.protocol.terms import Terms
from lockstead.settings import Settings
from lockstead.testing.simulation.machine import Machine
from lockstead.testing.simulation.network import Network
from lockstead.testing.simulation.properties import HAIR, Watch
from lockstead.testing.simulation.talk import Talk
from lockstead.testing.simulation.world import BootClock, World
from lockstead.values import Name

EVER = float("inf")


class KeptLease:
    """A lease in a process: its tenure, the renewal in flight, and who waits for that to come back."""

    __slots__ = ("in_flight", "settled", "tenure")

    def __init__(self, tenure: Tenure) -> None:
        self.tenure = tenure
        self.in_flight: Talk | None = None
        self.settled: Callable[[], None] | None = None


@lru_cache(maxsize=256)
def _fields_of(owner: str, ttl: float, lock_delay: float) -> Mapping[str, str]:
    """Return what all records of one process say, but for their holder."""
    return encode(Record(owner, ttl, owner=owner, lock_delay=lock_delay))


class Process(Machine):
    """A process with its own client and keeper, on a machine of its own."""

    __slots__ = ("_fields", "_keeps_at", "_kept", "_rota", "_wishes")

    def __init__(self, name: str, clock: BootClock, world: World, network: Network, watch: Watch, terms: Terms) -> None:
        super().__init__(name, clock, world, network, watch, terms)
        self._fields = _fields_of(name, terms.settings.ttl, terms.settings.lock_delay)
        self._renew_state()

    def _renew_state(self) -> None:
        self._rota = RenewalSchedule()
        self._kept: dict[int, KeptLease] = {}
        self._wishes: set[str] = set()
        self._keeps_at = EVER

    # --- asking --------------------------------------------------------------------------------------------------

    def wish(self, name: Name, *, reclaim: bool = False) -> AcquireRequest:
        """Make one wish for one lock, with a holder of its own."""
        holder = self.nonce()
        self._wishes.add(holder)
        fields = {**self._fields, "identity": holder}
        return AcquireRequest(name, holder, self.name, fields, reclaim=reclaim, keeps=self._keeps)

    def _keeps(self, holder: str) -> bool:
        # the answer of one that was granted may still be on its way
        return holder in self._wishes or any(kept.tenure.lease.holder == holder for kept in self._kept.values())

    # --- keeping -------------------------------------------------------------------------------------------------

    def granted(self, grant: Grant, want: AcquireRequest, *, unused: bool = False) -> KeptLease:
        """Take a grant into care. unused: nobody will work under it."""
        self._wishes.discard(want.holder)
        return self.keep(
            Tenure(
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
        """Take a membership into care."""
        return self.keep(
            Tenure(
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

    def keep(self, tenure: Tenure) -> KeptLease:
        """Renew a lease from now on."""
        kept = self._kept[id(tenure)] = KeptLease(tenure)
        self.watch.began(self, tenure)
        self._plan(tenure)
        if self.world.is_told:
            left = tenure.deadline - self.now()
            self.tell(f"holds {tenure.lease.incarnation} as {tenure.lease.holder}, {left:.3f} s left")
        return kept

    def register(self, kept: KeptLease, joined: Attached) -> None:
        """An owner that shares its lease became a member too."""
        kept.tenure.registration = joined.registration
        kept.tenure.registered(joined.registration_deadline, self.now())
        self._plan(kept.tenure)

    def _plan(self, tenure: Tenure) -> None:
        self._rota.plan(tenure)
        self._wake()

    def _wake(self) -> None:
        at = self._rota.wake_at()
        if at < self._keeps_at:
            self._keeps_at = at
            self.world.at(max(self.world.now, self.clock.when(at) + HAIR), self, self._keep_time, at)

    def _keep_time(self, planned_at: float) -> None:
        if planned_at != self._keeps_at:
            return
        self._keeps_at = EVER
        now = self.now()
        for tenure in self._rota.due(now):
            kept = self._kept[id(tenure)]
            match tenure.duty(now):
                case Duty.RENEW:
                    tenure.sending(now)
                    self._renew(kept)
                case Duty.NOTIFY_LOSS:
                    self.drop(kept)
                    self._tell_loss(kept)
                    continue
                case Duty.NOTHING:
                    pass
            if id(tenure) in self._kept:
                self._rota.plan(tenure)
        self._wake()

    def _renew(self, kept: KeptLease) -> None:
        tenure = kept.tenure
        script: Script[Any]
        if tenure.registration is None:
            script = renew(tenure.lease, {}, self.terms)
        else:
            script = renew_member(tenure.lease, tenure.registration, {}, self.terms)

        def then(outcome: Any, error: StoreError | None) -> None:
            self._renewed(kept, outcome, error)

        kept.in_flight = Talk(self, script, tenure.settings.request_timeout, then)
        kept.in_flight.start()

    def _renewed(self, kept: KeptLease, outcome: Any, error: StoreError | None) -> None:
        tenure, now = kept.tenure, self.now()
        kept.in_flight = None
        was_held = tenure.state is State.HELD
        if outcome is None:
            tenure.failed(now, error or OutcomeUnknown("the renewal failed"))
        elif isinstance(outcome, Over):
            tenure.in_flight = False
            tenure.lose(outcome.reason, outcome.detail)
        else:
            if isinstance(outcome, MemberRenewed):
                tenure.registered(outcome.registration_deadline, now)
                tenure.renewed(outcome.sent_at, outcome.record_deadline, now)
            else:
                tenure.renewed(outcome.sent_at, outcome.deadline, now)
            self.watch.moved(self, tenure)
        if tenure.state is State.HELD and id(tenure) in self._kept:
            self._plan(tenure)
        else:
            self.drop(kept)
        if was_held and tenure.state is State.LOST:
            self._tell_loss(kept)
        if kept.settled is not None:
            settled, kept.settled = kept.settled, None
            settled()

    def drop(self, kept: KeptLease) -> None:
        """Stop renewing a lease."""
        if self._kept.pop(id(kept.tenure), None) is not None:
            self._rota.drop(kept.tenure)

    def _tell_loss(self, kept: KeptLease) -> None:
        self.watch.lost(self, kept.tenure)
        reason = kept.tenure.reason
        self.tell(f"lost {kept.tenure.lease.incarnation}: {reason.value if reason else ''} {kept.tenure.detail}")

    def lose(self, kept: KeptLease, reason: LossReason, detail: str = "") -> None:
        """Note a loss that somebody else found."""
        if kept.tenure.lose(reason, detail):
            self.drop(kept)
            self._tell_loss(kept)

    # --- leaving -------------------------------------------------------------------------------------------------

    def leave(self, kept: KeptLease) -> bool:
        """End the belief and the renewing; True if there is anything to give back."""
        tenure, now = kept.tenure, self.now()
        self.watch.is_told_in_time(self, tenure)
        if tenure.state is State.HELD and not tenure.believes(now) and tenure.lose(LossReason.EXPIRED):
            self._tell_loss(kept)
        was_held = tenure.leave()
        if was_held and tenure.is_owner and not tenure.unused:
            self.watch.left(tenure)
        self.drop(kept)
        if tenure.believes(now):
            self.watch.violated(f"{self.name} believes in {tenure.lease.incarnation} after it left")
        self.watch.ended(tenure)
        return was_held or (tenure.state is State.LOST and may_remove_after_loss(tenure, now))

    def settle(self, kept: KeptLease, then: Callable[[], None]) -> None:
        """Wait for the renewal in flight, at most two request limits, then go on."""
        if kept.in_flight is None:
            then()
            return
        kept.settled = then

        def enough(_: Any) -> None:
            if kept.settled is then:
                kept.settled = None
                then()

        self.after(2 * kept.tenure.settings.request_timeout, enough)

    def release(self, kept: KeptLease, then: Callable[[], None]) -> None:
        """Release what this process has of a lease, as `Lease.release` does."""
        tenure = kept.tenure
        if not self.leave(kept):
            then()
            return
        bound_at = self.now() + self.terms.drain_bound()
        is_alone = tenure.is_owner and not tenure.shared

        def ended(outcome: Any, error: StoreError | None) -> None:
            self.tell(f"gave {tenure.lease.incarnation} back: {outcome.name if outcome else error!r}")
            if outcome is not None and tenure.is_owner:
                self.watch.given_back(
                    tenure,
                    is_ours=outcome.is_free,
                    is_removed=outcome is not Outcome.LEFT,
                    is_gone_by_us=outcome is Outcome.REMOVED,
                )
            tenure.left()
            if tenure.unsettled or (error is not None and is_alone):
                lease = tenure.lease
                had = Had(lease.incarnation, is_shared=not is_alone, is_clean=tenure.reason is None)
                self.sweep(lease.name, lease.holder, None if is_alone and tenure.unused else had)
            then()

        self.settle(kept, lambda: _no_talk(self.converse(give_back(tenure, self.terms, bound_at=bound_at), ended)))

    def clean_up_abandoned(self, want: AcquireRequest) -> None:
        """Take back what an acquisition that ended without a grant may have written."""
        self._wishes.discard(want.holder)
        if want.unsettled or want.reclaim:
            self.sweep(want.name, want.holder)

    def sweep(self, name: Name, holder: str, had: Had | None = None) -> None:
        """Look for a record of this holder, whose acquisition is over: now, and once more later."""
        what = (name, holder, had)
        self._sweep(what)
        self.after(2 * self.settings.request_timeout, self._sweep, what)

    def _sweep(self, what: tuple[Name, str, Had | None]) -> None:
        name, holder, had = what
        looked_at = self.world.now

        def swept(_: Any, error: StoreError | None) -> None:
            if error is None and (had is None or not had.is_shared):
                self.watch.swept(name, holder, looked_at)

        self.converse(sweep(name, holder, self.terms, had), swept)

    # --- tokens --------------------------------------------------------------------------------------------------

    def draw(self, kept: KeptLease) -> None:
        """Ask for the fencing token of a lease."""
        tenure = kept.tenure
        if not tenure.believes(self.now()):
            return
        was_superseded = self.watch.is_superseded(tenure)

        def drawn(token: Any, error: StoreError | None) -> None:
            if error is None and token is not None:
                self.watch.got_token(tenure, token, was_superseded=was_superseded)
                tenure.token = token
                self.tell(f"drew the token {token} for {tenure.lease.incarnation}")

        self.converse(draw_token(tenure.lease, self.terms, salt=self.nonce()), drawn)

    # --- the end -------------------------------------------------------------------------------------------------

    def check_quiet(self) -> None:
        """At the very end nothing may be kept any more."""
        if self._kept:
            self.watch.violated(f"{self.name} still keeps a lease after everybody gave back")

    def die(self) -> None:
        """End here and now; what was sent is on its way."""
        for kept in self._kept.values():
            self.watch.ended(kept.tenure)
        self._renew_state()
        super().die()


def _no_talk(_: Talk) -> None:
    """A conversation that nobody will cancel."""

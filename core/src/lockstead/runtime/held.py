"""The common base of blocking and awaiting leases: arithmetic on a local clock, no I/O."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from lockstead.errors import LeaseLost, LossReason, StoreError
from lockstead.events import BlockEntered, BlockLeft, ReleaseFailed
from lockstead.listeners import LISTENERS
from lockstead.protocol.commands import Script
from lockstead.protocol.lifecycle import State
from lockstead.protocol.record import progress_text
from lockstead.protocol.release import UsedLease, may_remove_after_loss
from lockstead.protocol.renew import Over
from lockstead.runtime import context
from lockstead.runtime.engine import Engine, OwnerNote
from lockstead.runtime.give_back import give_back
from lockstead.runtime.inside import is_inside
from lockstead.runtime.interrupt import uninterrupted
from lockstead.runtime.keeper import KeptLease
from lockstead.values import EXCLUSIVE, SHARED, LeaseOutcome, LeaseTicket, PreviousLease

_WHY = {
    LossReason.TAKEN: "another holder has it now",
    LossReason.GONE: "its record is gone",
    LossReason.REVOKED: "it was revoked",
    LossReason.EXPIRED: "it was not renewed in time",
    LossReason.UNREACHABLE: "the store did not answer its renewals",
    LossReason.FORKED: "this is a forked child's copy of its parent's lease",
    LossReason.ENDED: "this process ended its term",
}


class HeldLease:
    """The common base of Lease and AsyncLease. Not made by users; safe to share between threads.

    A held lease does not protect the resource by itself: a paused holder may be superseded before it notices. Pass the
    sequencer to the resource.
    """

    def __init__(self, engine: Engine, kept: KeptLease, owner_note: OwnerNote | None) -> None:
        self._engine = engine
        self._kept = kept
        self._lease_state = kept.lease_state
        self._now = engine.clock.now
        self._owner_note = owner_note
        self._left_after_loss = False
        self._was_left = False
        self._is_ended = False

    @property
    def key(self) -> str:
        """The lock's name inside its store."""
        return self._lease_state.lease.name.key

    @property
    def holder(self) -> str:
        """The owner with a nonce that is fresh for every acquisition."""
        return self._lease_state.holder

    @property
    def mode(self) -> str:
        """ "exclusive"; "shared" for a reader, which holds the lock together with others; "permit/2" for slot 2."""
        return self._lease_state.mode if self.slot is None else f"permit/{self.slot}"

    @property
    def ttl(self) -> float:
        """How long the lease lives without renewal, seconds; fixed at the grant."""
        return self._lease_state.lease.ttl

    @property
    def slot(self) -> int | None:
        """The number of the permit, from 0 on: two holders never have the same one. None for a lock."""
        name = self._lease_state.lease.name
        return int(name.part) if name.is_slot else None

    @property
    def is_held(self) -> bool:
        """Whether the lease can be trusted at this instant. No I/O, about a microsecond."""
        return self._lease_state.believes(self._now())

    @property
    def is_member(self) -> bool:
        """Whether this process is attached to a lease that another one acquired."""
        return not self._lease_state.is_owner

    @property
    def time_left(self) -> float:
        """Seconds until the deadline unless it is renewed; 0 if it is not held."""
        now = self._now()
        return max(0.0, self._lease_state.deadline - now) if self._lease_state.believes(now) else 0.0

    @property
    def token(self) -> int | None:
        """The fencing token, None until `sequencer()` draws it."""
        return self._lease_state.token

    @property
    def previous_lease(self) -> PreviousLease:
        """How the lease before this one ended; UNKNOWN for a member."""
        return self._lease_state.previous_lease or PreviousLease(LeaseOutcome.UNKNOWN)

    @property
    def last_error(self) -> StoreError | None:
        """The error of the last renewal if it failed."""
        return self._lease_state.last_error

    @property
    def lost_reason(self) -> LossReason | None:
        """Why the lease was lost; None if it was not."""
        return self._lease_state.reason

    def check(self) -> None:
        """Raise LeaseLost if the lease can no longer be trusted: stop touching the resource. No I/O."""
        if not self._lease_state.believes(self._now()):
            self._raise_lost()

    def progress(self, text: str) -> None:
        """Store a progress text with the next renewal (or `renew()`), without a request of its own."""
        self._kept.progress = progress_text(str(text))

    def on_lost(self, callback: Callable[[], Any]) -> None:
        """Call this exactly once when the lease is lost, in a thread of the keeper; at once if it is lost."""
        self._engine.keeper.on_lost(self._kept, callback)

    def lost_error(self) -> LeaseLost:
        """Return the LeaseLost of this lease; an ended lease counts as lost.

        RuntimeError if it is held.
        """
        if self.is_held:
            raise RuntimeError(f"the lease of {self.holder!r} on {self.key!r} is held")
        return self._found_lost()

    @uninterrupted
    def _found_lost(self) -> LeaseLost:
        """Mark the lease as lost, even if a renewal succeeds at this moment, and return its LeaseLost."""
        lease_state = self._lease_state
        key, holder, keeper = self.key, self.holder, self._engine.keeper
        lose = partial(keeper.lose, self._kept, LossReason.EXPIRED)
        if is_inside():
            keeper.hand_over(lose, self._kept)
        else:
            lose()
        if lease_state.state in (State.LOST, State.HELD):
            reason = lease_state.reason or LossReason.EXPIRED
            detail = f" ({lease_state.detail})" if lease_state.detail else ""
            token = "" if lease_state.token is None else f", token {lease_state.token}"
            message = f"the lease of {holder!r} on {key!r}{token} is lost, {reason.value}: {_WHY[reason]}{detail}"
        else:
            reason = LossReason.GONE
            message = f"the lease of {holder!r} on {key!r} has ended: it was released, detached or left to expire"
        error = LeaseLost(message, reason=reason, key=key, holder=holder, token=lease_state.token)
        error.__cause__ = lease_state.last_error
        return error

    def _raise_lost(self) -> NoReturn:
        raise self._found_lost()

    def _ticket(self) -> LeaseTicket:
        lease_state, store = self._lease_state, self._engine.store.url
        lease = lease_state.lease
        said = (store, lease.name.key, lease_state.holder, lease.incarnation, lease.ttl)
        if lease_state.mode == EXCLUSIVE or lease_state.registration is None:
            return LeaseTicket(*said, slot=self.slot)
        return LeaseTicket(*said, lease_state.mode, lease.holder, lease_state.registration.incarnation)

    def _ended(self) -> None:
        self._is_ended = True
        if self._owner_note is not None:
            self._engine.note_released(self._owner_note)
            self._owner_note = None

    def _leave_to_others(self) -> None:
        """Stop holding the lease without releasing it; LeaseLost if it is not held."""
        if not self._engine.keeper.leave(self._kept, self._now()):
            raise self._found_lost()
        self._was_left = True

    # --- release -------------------------------------------------------------------------------------------------

    @uninterrupted
    def _hand_over(self, giving_back: Script[bool], *, unused: bool) -> bool:
        """Let the keeper release the lease: this thread may hold any lock, and must not wait."""
        self._engine.keeper.hand_over(partial(self._give_back_aside, giving_back, unused=unused), self._kept)
        return False

    def _give_back_aside(self, giving_back: Script[bool], *, unused: bool) -> None:
        try:
            give_back(self, giving_back, unused=unused)
        except StoreError as failed:
            self._engine.emit(ReleaseFailed(self.key, self.holder, failed, self._lease_state.member))

    @uninterrupted
    def _may_leave(self, now: float, *, unused: bool) -> bool:
        """Stop holding the lease; True, once, if it needs a release. unused: no work was done under the lease."""
        self._lease_state.unused = self._lease_state.unused or unused
        was_held = self._engine.keeper.leave(self._kept, now)
        self._was_left = True
        if was_held:
            return True
        lease_state = self._lease_state
        if lease_state.state is State.LOST and not self._left_after_loss and may_remove_after_loss(lease_state, now):
            self._left_after_loss = True
            if lease_state.reason is not LossReason.UNREACHABLE:
                return True
            # the store did not answer for long: raise the block's LeaseLost without waiting for it
            self._release_failed()
            self._end_release()
        self._ended()
        return False

    @uninterrupted
    def _release_failed(self) -> None:
        """Record that the store did not answer: an owner checks once more later."""
        lease_state = self._lease_state
        lease_state.unsettled = lease_state.unsettled or lease_state.is_owner

    @uninterrupted
    def _end_release(self) -> None:
        lease_state, lease = self._lease_state, self._lease_state.lease
        self._engine.keeper.left(self._kept)
        self._ended()
        if lease_state.unsettled and lease_state.mode == SHARED and lease_state.registration is not None:
            own = lease_state.registration
            self._engine.sweep(own.name, own.holder, lease_state.settings)
        elif lease_state.unsettled:
            used = None
            if lease_state.shared or not lease_state.unused:
                used = UsedLease(lease.incarnation, is_shared=lease_state.shared, is_clean=lease_state.is_clean)
            self._engine.sweep(lease.name, lease.holder, lease_state.settings, used)

    def _enter_block(self) -> None:
        """Make this lease the current one of the thread or task."""
        context.enter(self)
        if LISTENERS.every:
            LISTENERS.notify(BlockEntered(self.key, self.holder, self._lease_state.member), self._engine.store.url)

    def _leave_block(self) -> None:
        """Undo `_enter_block`."""
        if context.leave(self) and LISTENERS.every:
            LISTENERS.notify(BlockLeft(self.key, self.holder, self._lease_state.member), self._engine.store.url)

    def _loss_at_exit(self) -> LeaseLost | None:
        """Return the LeaseLost at the end of a block; None if the lease is held or was released in the block."""
        if self.is_held or (self._was_left and self._lease_state.state is not State.LOST):
            return None
        return self._found_lost()

    def _raise_at_exit(self, lost: LeaseLost | None, error: BaseException | None) -> None:
        if lost is None:
            return
        if error is None:
            raise lost
        if not (isinstance(error, LeaseLost) and error.holder == self.holder):
            error.add_note(f"lockstead: {lost}")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a lease cannot be pickled; pass lease.detach() (a ticket) and attach to it over there")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r} of {self.holder!r}: {self._lease_state.state.name}>"


def lost_by_ticket(ticket: LeaseTicket, over: Over, verb: str) -> LeaseLost:
    """Return the LeaseLost for an operation by ticket on an ended lease. verb: the operation."""
    detail = f" ({over.detail})" if over.detail else ""
    return LeaseLost(
        f"cannot {verb} the lease of {ticket.holder!r} on {ticket.key!r}, {over.reason.value}: "
        f"{_WHY[over.reason]}{detail}",
        reason=over.reason,
        key=ticket.key,
        holder=ticket.holder,
    )

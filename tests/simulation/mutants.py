"""Engines that are broken on purpose: the simulator, or a directed scenario, must catch every one of them.

A mutant is a list of (owner, attribute, replacement); tests put them in with pytest's monkeypatch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lockstead.errors import OutcomeUnknown, StoreUnavailable
from lockstead.protocol import acquire, expiry, fence, lifecycle, members, release, renew, terms
from lockstead.protocol.commands import Absent, Create, Extend, Read, Remove, Reply, Snapshot, ask
from lockstead.protocol.lifecycle import Event, State, Tenure
from lockstead.protocol.terms import draw, loss
from lockstead.testing.simulation import play
from lockstead.values import Ending, Predecessor

Patch = tuple[Any, str, Any]


def _ask_late(command: Any) -> Any:
    reply = yield from ask(command)
    return Reply(reply.answer, reply.received_at, reply.received_at)


def deadline_from_the_answer() -> list[Patch]:
    return [(acquire, "ask", _ask_late), (renew, "ask", _ask_late)]


def no_drift_for_contenders() -> list[Patch]:
    return [(expiry, "record_life", lambda ttl, lock_delay, drift: ttl + lock_delay)]


def no_drift_for_holders() -> list[Patch]:
    return [(expiry, "holder_deadline", lambda sent_at, ttl, drift: sent_at + ttl)]


def incarnation_alone_on_takeover() -> list[Patch]:
    true = acquire._take_over

    def take_over(want: Any, seen: Any, record: Any, terms: Any) -> Any:
        again = yield from ask(Read(want.name))
        if isinstance(again.answer, Snapshot) and again.answer.incarnation == seen.incarnation:
            seen = again.answer
        return (yield from true(want, seen, record, terms))

    return [(acquire, "_take_over", take_over)]


def late_success_revives() -> list[Patch]:
    def renewed(self: Any, sent_at: float, deadline: float | None, received_at: float) -> None:
        self.in_flight = False
        if self.state is State.LOST and deadline is not None:
            self.state = State.HELD
        if deadline is not None:
            self.record_deadline = deadline
        self._settle()
        self.failures, self.round_started_at = 0, None
        self._plan(sent_at)

    return [(Tenure, "renewed", renewed)]


def no_read_after_an_unknown_outcome() -> list[Patch]:
    """An unknown Create counts as granted."""

    def create(want: Any, terms: Any) -> Any:
        while True:
            try:
                reply = yield from ask(Create(want.name, want.fields, lives=terms.settings.ttl))
            except OutcomeUnknown:
                continue
            if not isinstance(reply.answer, Snapshot):
                return None
            return acquire._granted(want, reply, reply.answer, Predecessor(Ending.CLEAN), terms)

    def adopt(want: Any, seen: Any, record: Any, terms: Any) -> Any:
        yield from ()

    return [(acquire, "_create", create), (acquire, "_adopt", adopt)]


def adopted_without_extending() -> list[Patch]:
    def adopt(want: Any, seen: Any, record: Any, terms: Any) -> Any:
        reply = yield from ask(Read(want.name))
        if isinstance(reply.answer, Absent) or reply.answer.incarnation != seen.incarnation:
            return None
        return acquire._granted(want, reply, reply.answer, Predecessor(Ending.UNKNOWN), terms)

    return [(acquire, "_adopt", adopt)]


def release_removes_whatever_is_there() -> list[Patch]:
    def remove(lease: Any, terms: Any) -> Any:
        reply = yield from ask(Read(lease.name))
        if isinstance(reply.answer, Absent):
            return release.Outcome.NOT_OURS
        yield from ask(Remove(lease.name, reply.answer.incarnation))
        return release.Outcome.REMOVED

    return [(release, "remove", remove)]


def renewal_without_the_incarnation() -> list[Patch]:
    def loose(name: Any, fields: Any, incarnation: Any, revision: Any = None, lives: float = 0.0) -> Any:
        return Extend(name, fields, None, revision, lives)

    def no_loss(lease: Any, answer: Any, terms: Any) -> Any:
        return None

    return [(renew, "Extend", loose), (renew, "over", no_loss)]


def member_reads_before_registering() -> list[Patch]:
    true_join = members._join

    def attach(lease: Any, nonce: str, fields: Mapping[str, str], terms: Any) -> Any:
        joined = yield from true_join(lease, terms)
        if isinstance(joined, renew.Over):
            return joined
        name = members.member_name(lease, nonce)
        registration, at = yield from members._register(name, nonce, lease.ttl, fields, terms)
        return members.Attached(lease, registration, terms.deadline(at, lease.ttl), joined, at)

    return _everywhere("attach", attach)


def member_ignores_closing() -> list[Patch]:
    true = terms.Terms.decode

    def decode(self: Any, name: Any, seen: Any) -> Any:
        return lifecycle_replace(true(self, name, seen))

    def lifecycle_replace(record: Any) -> Any:
        from dataclasses import replace

        return replace(record, closing=False)

    return [(terms.Terms, "decode", decode), (release, "_close", _close_blindly)]


def _close_blindly(lease: Any, terms: Any, bound_at: float) -> Any:
    try:
        yield from ask(Extend(lease.name, {"closing": "1"}, lease.incarnation))
    except (StoreUnavailable, OutcomeUnknown):
        return release.Outcome.LEFT


def release_without_closing() -> list[Patch]:
    def close(lease: Any, terms: Any, bound_at: float) -> Any:
        yield from ()

    return [(release, "_close", close)]


def release_without_draining() -> list[Patch]:
    def drain(lease: Any, terms: Any, *, bound_at: float, salt: str) -> Any:
        yield from ()
        return True

    return [(release, "drain", drain)]


def reclaim_without_draining() -> list[Patch]:
    def drain(lease: Any, terms: Any, *, bound_at: float, salt: str) -> Any:
        yield from ()
        return True

    return [(acquire, "drain", drain)]


def removed_at_the_drains_bound() -> list[Patch]:
    true = members.drain

    def drain(lease: Any, terms: Any, *, bound_at: float, salt: str) -> Any:
        yield from true(lease, terms, bound_at=bound_at, salt=salt)
        return True

    return [(release, "drain", drain), (acquire, "drain", drain)]


def members_removed_by_incarnation_alone() -> list[Patch]:
    def loose(name: Any, incarnation: str, revision: str | None = None) -> Any:
        return Remove(name, incarnation)

    return [(members, "Remove", loose)]


def member_believes_its_registration_alone() -> list[Patch]:
    def settle(self: Any) -> None:
        self.deadline = self.registration_deadline if self.registration is not None else self.record_deadline

    return [(Tenure, "_settle", settle)]


def member_believes_the_record_alone() -> list[Patch]:
    def settle(self: Any) -> None:
        self.deadline = self.record_deadline

    return [(Tenure, "_settle", settle)]


def members_read_without_age() -> list[Patch]:
    def by_read(sent_at: float, now: float, updated: float, ttl: float, drift: float, *_: float) -> float:
        return sent_at + ttl * (1 - drift)

    return [(expiry, "deadline_by_read", by_read)]


def members_trust_any_date() -> list[Patch]:
    return [(expiry, "calibrated", lambda *_: True)]


def token_drawn_but_not_published() -> list[Patch]:
    def draw_token(lease: Any, terms: Any, *, salt: str) -> Any:
        reply = yield from ask(Read(lease.name))
        if isinstance(reply.answer, Absent) or loss(lease, reply.answer, terms) is not None:
            return None
        if reply.answer.token is not None:
            return reply.answer.token
        drawn = yield from draw(lease.name.key, salt, terms)
        return drawn.token

    return _everywhere("draw_token", draw_token)


def token_published_without_the_revision() -> list[Patch]:
    def loose(name: Any, fields: Any, incarnation: Any, revision: Any = None, lives: float = 0.0) -> Any:
        return Extend(name, fields, incarnation, None, lives)

    return [(fence, "Extend", loose)]


def native_token_without_a_look() -> list[Patch]:
    def no_loss(lease: Any, answer: Any, terms: Any) -> Any:
        return None

    return [(fence, "loss", no_loss)]


def observation_from_the_send() -> list[Patch]:
    true: Callable[..., bool] = expiry.expired_by_observation

    def early(first: float, last: float, ttl: float, lock_delay: float, drift: float) -> bool:
        return true(first - 0.05 * ttl, last, ttl, lock_delay, drift)

    return [(expiry, "expired_by_observation", early)]


def observation_ignores_the_revision() -> list[Patch]:
    def see(self: Any, name: Any, seen: Any, received_at: float) -> Any:
        known = self.first_seen.get(name)
        if known is not None and known[0] == seen.incarnation:
            return known[2]
        self.first_seen[name] = (seen.incarnation, "", received_at)
        return received_at

    return [(terms.Book, "see", see)]


def contenders_judge_by_their_own_ttl() -> list[Patch]:
    from dataclasses import replace

    true = terms.is_over

    def is_over(name: Any, record: Any, reply: Any, seen: Any, salt: str, terms: Any) -> Any:
        return (yield from true(name, replace(record, ttl=terms.settings.ttl), reply, seen, salt, terms))

    return [(acquire, "is_over", is_over)]


def sweep_takes_what_members_hold() -> list[Patch]:
    true = release.sweep

    def sweep(name: Any, holder: str, terms: Any, *, spare: str | None = None) -> Any:
        return (yield from true(name, holder, terms))

    return _everywhere("sweep", sweep)


def nothing_is_swept() -> list[Patch]:
    def sweep(name: Any, holder: str, terms: Any, *, spare: str | None = None) -> Any:
        yield from ask(Read(name))
        return False

    return _everywhere("sweep", sweep)


def loss_is_never_told() -> list[Patch]:
    def duty(self: Any, now: float) -> Any:
        if self.state is not State.HELD or self.in_flight or now < self.due_at:
            return lifecycle.Duty.NOTHING
        return lifecycle.Duty.RENEW

    def wake_at(self: Any) -> float:
        return self.due_at if self.state is State.HELD and not self.in_flight else float("inf")

    def believes(self: Any, now: float) -> bool:
        return self.state is State.HELD

    return [(Tenure, "believes", believes), (Tenure, "duty", duty), (Tenure, "wake_at", wake_at)]


def released_lease_goes_on_believing() -> list[Patch]:
    table = {**lifecycle.TABLE, (State.HELD, Event.LEAVE): State.HELD}
    return [(lifecycle, "TABLE", table)]


def _everywhere(name: str, replacement: Any) -> list[Patch]:
    """Replace a script in every module that has it by name."""
    owners = (acquire, fence, members, release)
    true = next(getattr(module, name) for module in owners if hasattr(module, name))
    return [(module, name, replacement) for module in list(sys.modules.values()) if getattr(module, name, None) is true]


MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    maker.__name__: maker
    for maker in (
        deadline_from_the_answer,
        no_drift_for_contenders,
        no_drift_for_holders,
        incarnation_alone_on_takeover,
        late_success_revives,
        no_read_after_an_unknown_outcome,
        adopted_without_extending,
        release_removes_whatever_is_there,
        renewal_without_the_incarnation,
        member_reads_before_registering,
        member_ignores_closing,
        release_without_closing,
        release_without_draining,
        reclaim_without_draining,
        removed_at_the_drains_bound,
        members_removed_by_incarnation_alone,
        member_believes_its_registration_alone,
        member_believes_the_record_alone,
        members_read_without_age,
        members_trust_any_date,
        token_drawn_but_not_published,
        token_published_without_the_revision,
        native_token_without_a_look,
        observation_from_the_send,
        observation_ignores_the_revision,
        contenders_judge_by_their_own_ttl,
        sweep_takes_what_members_hold,
        nothing_is_swept,
        loss_is_never_told,
        released_lease_goes_on_believing,
    )
}


@contextmanager
def broken(name: str) -> Iterator[None]:
    """Break the engine in one way for a while."""
    patches = MUTANTS[name]()
    intact = [(owner, attribute, getattr(owner, attribute)) for owner, attribute, _ in patches]
    try:
        for owner, attribute, replacement in patches:
            setattr(owner, attribute, replacement)
        yield
    finally:
        for owner, attribute, true in intact:
            setattr(owner, attribute, true)


def main(arguments: list[str]) -> None:
    """Show how many of so many seeds catch each mutant: `python -m tests.simulation.mutants 1000 [NAME...]`."""
    count = int(arguments[0])
    for name in arguments[1:] or MUTANTS:
        with broken(name):
            caught = [run for run in map(play, range(count)) if run.violation is not None]
        first = f"first {caught[0].seed}: {caught[0].violation}" if caught else ""
        print(f"{name:42} {len(caught):5} of {count}  {first}"[:200], flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

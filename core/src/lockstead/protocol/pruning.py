"""Pruning: removing the records that nobody else removes, such as those of processes that died.

Each removal is a step that another client may take at any time: of a registration, that of a writer that waits; of a
lock, a group, a permit or the turn, an acquisition that is released unused. So a record is judged like a contender
judges it, and removed by incarnation and revision. The age only keeps what people may still want to look at.

A record that tells the next holder of an unclean end is kept, unless the caller wants it in the history instead.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from lockstead.errors import OutcomeUnknown, StoreRefused, StoreUnavailable
from lockstead.frozen import frozen
from lockstead.protocol.commands import (
    Absent,
    Create,
    Cursors,
    List,
    Listing,
    Pause,
    Read,
    Remove,
    Removed,
    Reply,
    Script,
    Snapshot,
    ask,
)
from lockstead.protocol.context import Judge, ProtocolContext, over_in, seems_over
from lockstead.protocol.permits import slot_of
from lockstead.protocol.previous_lease import is_written, previous_for_next
from lockstead.protocol.record import Record, Revocation, is_gate
from lockstead.protocol.release import Broken, audit_entry
from lockstead.reading import instant
from lockstead.values import BENCH_PREFIX, EXCLUSIVE, SCRATCH_KEY, SHARED, TURN, Name, Space

ABANDONED_AFTER: Final = 3600.0
"""Seconds after which a scratch record of `doctor` counts as abandoned by a killed command."""

COMPANION_AFTER: Final = 86400.0
"""Minimum age of a companion that is removed, in seconds: far more than the clocks of one store's servers differ by."""

FAILURES_MAX: Final = 3
"""Number of removals without effect in a row after which a space is skipped: its rows may be protected."""

DRIFT_SLACK: Final = 1.5
"""A lock's own setting of drift is not known here: a record is judged as by the largest one, which is below 0.5."""

PAGE: Final = 500
"""Number of records listed at once: at 50 removals a second they are 10 seconds old at most."""

NAMES_MAX: Final = 1000
"""Maximum number of removed records that are named in the result."""

_BENCH: Final = re.compile(rf"{re.escape(BENCH_PREFIX)}-[0-9a-f]{{16}}-[0-9]+")


class Leftover(Enum):
    """The kinds of what is removed; entries of queues are no records, and removed by the store itself."""

    REGISTRATION = "registrations"
    GROUP = "groups"
    LOCK = "locks"
    PERMIT = "permits"
    TURN = "turns"
    HISTORY = "history"
    QUEUE = "queues"
    SCRATCH = "scratch"
    COMPANION = "companions"


class Kept(Enum):
    """Why a leftover is kept."""

    UNCLEAN = "unclean"
    """It tells the next holder that the last one was lost or broken."""
    UNDECIDED = "undecided"
    """Its store shows no age, and it was not watched for as long as it can live."""
    UNREADABLE = "unreadable"
    """It cannot be read, so nobody can tell whether it is one."""
    CHANGED = "changed"
    """It changed while it was looked at."""


@frozen
class PruneRequest:
    """What is removed. older_than, history_older_than, between (two removals): seconds. wall_now: since the epoch.

    salt: a text that no other call uses. by: who prunes, for the history. is_dry: write nothing. forgets: remove
    records of unclean ends, too, each after an entry in the history. removals_max: of all kinds together.
    """

    older_than: float
    history_older_than: float
    between: float
    wall_now: float
    salt: str
    by: str
    is_dry: bool = False
    forgets: bool = False
    removals_max: int = 10_000


@dataclass(slots=True)
class Pruned:
    """What was removed, or would be, and what was kept. refused: why a space could not be pruned.

    is_complete: False if `removals_max` or a listing that went out of
    date ended it. again_in: seconds after which the same client can decide more.
    """

    removed: Counter[Leftover] = field(default_factory=Counter)
    kept: Counter[Kept] = field(default_factory=Counter)
    names: list[tuple[Leftover, Name]] = field(default_factory=list)
    refused: dict[Space, str] = field(default_factory=dict)
    is_complete: bool = True
    again_in: float | None = None


def prune(request: PruneRequest, context: ProtocolContext) -> Script[Pruned]:
    """Remove the leftovers of a store. A space that the store refuses to list or does not change is skipped.

    Raises StoreUnavailable or OutcomeUnknown if a space cannot be listed; what was removed before stays removed.
    """
    pruning = _Pruning(request, context)
    for space in _RULES:
        try:
            yield from pruning.space(space)
        except StoreRefused as error:
            pruning.done.refused[space] = str(error)
    return pruning.done


@frozen
class _Look:
    """One record of a listing. judge: of all records of the listing."""

    name: Name
    seen: Snapshot
    listed: Reply[Listing]
    judge: Judge


class _Full(Exception):  # noqa: N818 - not an error
    """As many records were removed as the caller allows."""


@dataclass(slots=True)
class _Pruning:
    request: PruneRequest
    context: ProtocolContext
    done: Pruned = field(default_factory=Pruned)
    failures: int = 0
    gate: tuple[str, bool] = ("", False)

    def space(self, space: Space) -> Script[None]:
        """Remove the leftovers of one space, a page at a time."""
        cursor, cursors = None, Cursors(self.context.traits.scheme)
        while True:
            try:
                listed = yield from ask(List(space, page=PAGE, cursor=cursor))
            except StoreRefused:
                if cursor is None:
                    raise
                self.done.is_complete = False  # removing took so long that the cursor is out of date
                return
            judge = Judge(self.request.salt, self.context)
            try:
                for name, seen in listed.answer.entries:
                    yield from self._record(_Look(name, seen, listed, judge))
            except _Full:
                self.done.is_complete = False
                return
            if (cursor := cursors.passed(listed.answer.next_cursor)) is None:
                return

    def _record(self, look: _Look) -> Script[None]:
        found = yield from _RULES[look.name.space](self, look)
        if isinstance(found, Kept):
            self.done.kept[found] += 1
        elif found is not None:
            yield from self._removed(found, look)

    # --- rules: each returns the kind of a leftover, why it is kept, or None for a record that is in use ----------

    def _of_members(self, look: _Look) -> Script[Leftover | Kept | None]:
        """A registration whose member is dead. One whose lease is gone expires like the others."""
        if look.name.key == SCRATCH_KEY:
            is_abandoned = look.seen.dead or self._age(look) >= max(self.request.older_than, ABANDONED_AFTER)
            return Leftover.SCRATCH if is_abandoned else None
        return (yield from self._over(look, lambda _record: Leftover.REGISTRATION))

    def _of_locks(self, look: _Look) -> Script[Leftover | Kept | None]:
        """A lock or a group that is over. Its record is kept if the next holder must learn of its predecessor."""
        if is_gate(look.seen.fields):
            return None

        def kind(record: Record) -> Leftover | Kept:
            if _BENCH.fullmatch(look.name.key):
                return Leftover.SCRATCH
            informs = is_written(previous_for_next(record, "", self.context), self.context)
            return Kept.UNCLEAN if informs else Leftover.GROUP if record.is_group else Leftover.LOCK

        return (yield from self._forgotten(look, (yield from self._over(look, kind))))

    def _of_permits(self, look: _Look) -> Script[Leftover | Kept | None]:
        """The turn, which protects nothing, and a slot, like a lock; of a semaphore that was removed, any dead slot."""
        if look.name.part == TURN:
            return (yield from self._over(look, lambda _record: Leftover.TURN))
        if slot_of(look.name) is None:
            return None

        def kind(record: Record) -> Leftover | Kept:
            informs = is_written(previous_for_next(record, "", self.context), self.context)
            return Kept.UNCLEAN if informs else Leftover.PERMIT

        found = yield from self._over(look, kind)
        if found is Kept.UNCLEAN and not (yield from self._has_gate(look.name.key)):
            return Leftover.PERMIT
        return (yield from self._forgotten(look, found))

    def _of_history(self, look: _Look) -> Script[Leftover | Kept | None]:
        """An entry past its retention. No decision of a lock depends on it, so a wall clock will do."""
        yield from ()
        if self.context.shows_age(look.name, look.seen):
            age = self._age(look)
        else:
            at = instant(look.seen.fields.get("at", ""))
            if at is None:
                return Kept.UNREADABLE
            age = self.request.wall_now - at
        return Leftover.HISTORY if age >= self.request.history_older_than else None

    def _of_companions(self, look: _Look) -> Script[Leftover | Kept | None]:
        """The counter of a key without a record, only where a new one continues above it."""
        if not self.context.traits.draws_by_clock or not self.context.shows_age(look.name, look.seen):
            return None
        if self._age(look) < max(self.request.older_than, COMPANION_AFTER):
            return None
        answer = yield from self._read(Name(look.name.key))
        return Leftover.COMPANION if isinstance(answer, Absent) else None

    # --- judging -------------------------------------------------------------------------------------------------

    def _over(self, look: _Look, kind: Callable[[Record], Leftover | Kept]) -> Script[Leftover | Kept | None]:
        """Return the kind of a record that is over, as a contender judges it, and old enough."""
        if self._age(look) < self.request.older_than:
            return None
        name, seen, context = look.name, look.seen, self.context
        try:
            record = context.decode(name, seen)
        except StoreRefused:
            return Kept.UNREADABLE
        if record.ttl is None or record.mode not in (EXCLUSIVE, SHARED):
            return None
        patient = replace(record, ttl=record.ttl * DRIFT_SLACK)
        if self.request.is_dry:
            is_over = seems_over(name, patient, look.listed, seen, context) is not False
        else:
            is_over = yield from look.judge.is_over(name, patient, look.listed, seen)
        if is_over:
            return kind(record)
        if context.shows_age(name, seen):
            return None
        left = over_in(name, patient, look.listed, seen, context)
        self.done.again_in = left if self.done.again_in is None else min(self.done.again_in, left)
        return Kept.UNDECIDED

    def _age(self, look: _Look) -> float:
        """Return the seconds since a record's last change by the store's clock, or else as far as anybody can tell.

        Then it is a hint: for how long this client has watched it, or how long ago it should have expired by the wall
        clock of its writer. It never decides that a record is over.
        """
        seen, reply = look.seen, look.listed
        watched = reply.sent_at - self.context.observe(look.name, reply, seen).first_received_at
        if seen.store_now is not None and seen.updated_at is not None and self.context.shows_age(look.name, seen):
            return seen.store_now - seen.updated_at
        expires_at = instant(seen.fields.get("expires_at", ""))
        return max(watched, 0.0 if expires_at is None else self.request.wall_now - expires_at)

    def _has_gate(self, key: str) -> Script[bool]:
        if self.gate[0] != key:
            answer = yield from self._read(Name(key))
            self.gate = key, isinstance(answer, Snapshot) and is_gate(answer.fields)
        return self.gate[1]

    def _read(self, name: Name) -> Script[Snapshot | Absent]:
        """Read a record that decides on another, no faster than others are removed."""
        yield from ask(Pause(name, self.request.between, self.request.between, wake_on_change=False))
        return (yield from ask(Read(name))).answer

    # --- removing ------------------------------------------------------------------------------------------------

    def _removed(self, kind: Leftover, look: _Look) -> Script[bool]:
        """Remove exactly the state that was judged; return whether this did."""
        done, request, name = self.done, self.request, look.name
        if done.removed.total() >= request.removals_max:
            raise _Full
        if not request.is_dry:
            yield from ask(Pause(name, request.between, request.between, wake_on_change=False))
            try:
                reply = yield from ask(Remove(name, look.seen.incarnation, look.seen.revision))
            except (StoreUnavailable, OutcomeUnknown) as error:
                self.failures += 1
                if self.failures >= FAILURES_MAX:
                    self.failures = 0
                    raise StoreRefused(f"the last {FAILURES_MAX} removals had no effect: {error}") from error
                done.kept[Kept.CHANGED] += 1  # the next call finds out
                return False
            self.failures = 0
            self.context.observations.discard(name)
            if not isinstance(reply.answer, Removed):
                done.kept[Kept.CHANGED] += not isinstance(reply.answer, Absent)
                return False
        done.removed[kind] += 1
        if len(done.names) < NAMES_MAX:
            done.names.append((kind, name))
        return True

    def _forgotten(self, look: _Look, found: Leftover | Kept | None) -> Script[Leftover | Kept | None]:
        """Remove a record of an unclean end, if the caller wants it; the history has it before the record is gone."""
        if found is not Kept.UNCLEAN or not self.request.forgets:
            return found
        if self.request.is_dry:
            return Leftover.LOCK if look.name.space is Space.LOCK else Leftover.PERMIT
        if self.done.removed.total() >= self.request.removals_max:
            raise _Full
        part, entry = self._entry(look)
        name = Name(look.name.key, Space.AUDIT, part)
        written = yield from ask(Create(name, {"v": "1", **entry}))
        kind = Leftover.LOCK if look.name.space is Space.LOCK else Leftover.PERMIT
        is_gone = yield from self._removed(kind, look)
        if not is_gone and isinstance(written.answer, Snapshot):
            yield from ask(Remove(name, written.answer.incarnation))
        return None

    def _entry(self, look: _Look) -> tuple[str, dict[str, str]]:
        record, request = self.context.decode(look.name, look.seen), self.request
        before = previous_for_next(record, "", self.context)
        of = replace(record, holder=before.holder, owner=before.owner)
        why = Revocation(request.by, f"pruned: the next holder is not told that it ended {before.ending.value}")
        mode = f"permit/{look.name.part}" if look.name.is_slot else EXCLUSIVE
        return audit_entry(Broken(of, look.seen, False, True, 0.0), why, request.wall_now, mode, "forgotten")


_Rule = Callable[[_Pruning, _Look], Script[Any]]
_RULES: Final[Mapping[Space, _Rule]] = {
    Space.MEMBER: _Pruning._of_members,
    Space.LOCK: _Pruning._of_locks,
    Space.PERMIT: _Pruning._of_permits,
    Space.AUDIT: _Pruning._of_history,
    Space.COMPANION: _Pruning._of_companions,
}
"""Registrations go before the groups that they belong to, so that a group is not gone while its readers are shown."""

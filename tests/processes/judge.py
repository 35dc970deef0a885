"""Whether a journal keeps the promise: one holder at a time, growing tokens, nothing lost, nothing revived.

A holder counts as holding until the last deadline that it wrote, dead or alive: whoever acquires before that
overlaps. Every fault is one line that names the key.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise

from tests.processes.counter import Write
from tests.processes.journal import Event


@dataclass(frozen=True, slots=True)
class Holding:
    """One lease as its holder told of it. It was believed at least from began_at until `until`."""

    key: str
    holder: str
    pid: int
    began_at: float
    until: float
    ending: str
    token: int | None
    removed_at: float | None


def holdings(events: Iterable[Event]) -> list[Holding]:
    """Put together what each holder told."""
    told: dict[str, list[Event]] = {}
    for event in events:
        if event.holder:
            told.setdefault(event.holder, []).append(event)
    found = []
    for holder, its in told.items():
        held = [one for one in its if one.what == "holds"]
        if held:
            leaves = [one.at for one in its if one.what == "leaves"]
            found.append(
                Holding(
                    key=held[0].key,
                    holder=holder,
                    pid=held[0].pid,
                    began_at=held[0].at,
                    until=min([max(one.until for one in held), *leaves]),
                    ending=held[0].word,
                    token=next((one.token for one in its if one.token is not None), None),
                    removed_at=next((one.at for one in its if one.what == "removed"), None),
                )
            )
    return found


def judge(events: list[Event], counters: Mapping[str, list[Write]]) -> list[str]:
    """Return every broken promise; an empty list is the proof."""
    held = holdings(events)
    looks = [one for one in events if one.what == "looks"]
    return [
        *_overlaps(held),
        *_tokens(held, looks),
        *_unseen(held, looks),
        *_revived(held, looks),
        *_unjust_losses(events, held),
        *_lost_increments(events, counters),
        *_locked_out(events),
    ]


def _by_key(held: Iterable[Holding]) -> Iterator[tuple[str, list[Holding]]]:
    ordered = sorted(held, key=lambda one: (one.key, one.began_at))
    for key, group in groupby(ordered, key=lambda one: one.key):
        yield key, list(group)


def _overlaps(held: list[Holding]) -> Iterator[str]:
    for key, its in _by_key(held):
        latest = its[0]
        for one in its[1:]:
            if one.began_at < latest.until:
                early = latest.until - one.began_at
                yield f"{key}: {one.holder} came in {early:.3f} s before {latest.holder} had to stop"
            latest = max(latest, one, key=lambda holding: holding.until)


def _tokens(held: list[Holding], looks: list[Event]) -> Iterator[str]:
    for key, its in _by_key(one for one in held if one.token is not None):
        for before, after in pairwise(its):
            if (after.token or 0) <= (before.token or 0):
                yield f"{key}: {after.holder} has token {after.token} after {before.holder} had {before.token}"
    highest: dict[str, tuple[str, int]] = {}
    for look in looks:
        for key, (holder, token) in (look.shown or {}).items():
            if token is None:
                continue
            owner_filter, seen = highest.get(key, (holder, token))
            if token < seen or (token == seen and holder != owner_filter):
                yield f"{key}: the store shows {holder} with token {token} after {owner_filter} with {seen}"
            highest[key] = (holder, token)


def _unseen(held: list[Holding], looks: list[Event]) -> Iterator[str]:
    """Every possible holder, including the killed ones, has a record in the store."""
    for look in looks:
        for one in held:
            if one.began_at <= look.at and look.until < one.until:
                shown = (look.shown or {}).get(one.key, ("nobody",))[0]
                if shown != one.holder:
                    yield f"{one.key}: the store shows {shown} while {one.holder} may believe"


def _revived(held: list[Holding], looks: list[Event]) -> Iterator[str]:
    removed = {one.holder: one.removed_at for one in held if one.removed_at is not None}
    for look in looks:
        for key, (holder, _token) in (look.shown or {}).items():
            if holder in removed and removed[holder] < look.at:
                yield f"{key}: {holder} stands in the store again after it was removed"


def _unjust_losses(events: list[Event], held: list[Holding]) -> Iterator[str]:
    until = {one.holder: one.until for one in held}
    for event in events:
        # no operator breaks anything here, so a loss can only be silence or lateness
        # who lost what it was just granted, before it said so, had no time
        ends_at = until.get(event.holder, event.at)
        if event.what == "lost" and event.word in ("TAKEN", "GONE", "REVOKED") and event.at < ends_at:
            yield f"{event.key}: {event.holder} lost its lease ({event.word}) before its time"


def _lost_increments(events: list[Event], counters: Mapping[str, list[Write]]) -> Iterator[str]:
    for key, history in counters.items():
        values = [value for _token, value in history if value is not None]
        if values != list(range(1, len(values) + 1)):
            wrong = next(number for number, value in enumerate(values, 1) if value != number)
            yield f"{key}: increment {wrong} wrote {values[wrong - 1]}: an increment was lost"
        tokens = [token for token, _value in history]
        if tokens != sorted(tokens):
            yield f"{key}: the counter let a superseded token pass"
    for event in events:
        if event.what == "wrote" and (event.token, event.value) not in counters.get(event.key, []):
            yield f"{event.key}: the increment to {event.value} of {event.holder} is not in the counter"


def _locked_out(events: list[Event]) -> Iterator[str]:
    wanted = {one.key for one in events if one.key}
    got_in = {one.key for one in events if one.what == "finally"}
    for key in sorted(wanted - got_in):
        yield f"{key}: nobody got in after the last one was killed"


@dataclass(frozen=True, slots=True)
class Kills:
    """What a run was made of, to see that it showed something: counts by what the victim had told last."""

    during: Mapping[str, int]
    holding: int
    taken_over: int
    tokens: int
    writes: int

    @property
    def all(self) -> int:
        return sum(self.during.values())


def kills(events: list[Event]) -> Kills:
    """Count what was killed and what followed."""
    last: dict[int, Event] = {}
    killed: Tally[str] = Tally()
    holding = 0
    held = {one.holder: one for one in holdings(events)}
    for event in events:
        if event.what == "killed":
            before = last.get(event.pid)
            killed[before.what if before else "start"] += 1
            holding += before is not None and before.holder in held and before.what in ("holds", "token", "wrote")
        elif event.what != "looks":
            last[event.pid] = event
    return Kills(
        during=killed,
        holding=holding,
        taken_over=sum(one.ending == "EXPIRED" for one in held.values()),
        tokens=sum(one.token is not None for one in held.values()),
        writes=sum(one.what == "wrote" for one in events),
    )

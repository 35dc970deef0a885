"""Tests of the guarantees that a lock depends on, by requests like those of a lock, and by invalid ones.

The requests use the store's own commands, so they are the same as the engine would send. Each refusal is also judged by
its effect, because a request with an unclear reply may have been carried out. Must not know any store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from lockstead.cli.doctor.judging import created, kind, one_winner, other, refusal
from lockstead.cli.doctor.prober import Prober, attempts
from lockstead.errors import StoreError, StoreUnavailable
from lockstead.protocol.commands import (
    Absent,
    Command,
    Create,
    Extend,
    Read,
    Remove,
    Removed,
    Replace,
    Snapshot,
    TokenSource,
)
from lockstead.stores.examination import Finding, Guarantee, Severity
from lockstead.values import Name

RACERS: Final = 16
ODD: Final = ("é ?#%&+'\"/x", "A", "a", "\u00c4", "A\u0308", " a", "a ")
"""Parts that need escaping, or differ only in case, Unicode composition or spaces."""

FAILED_MAX: Final = 2
"""Number of consecutive trials without a reply after which the store is not tested further."""

REMEDY: Final = "locks are not safe here: use a store with this guarantee"


Verdict: TypeAlias = tuple[Guarantee, str]
"""A guarantee, and how it is violated, "" if it holds."""

Trial: TypeAlias = Callable[[Prober], Iterator[Verdict]]


def tried(prober: Prober, behind: Mapping[Guarantee, str]) -> Iterator[Finding]:
    """Test every guarantee and yield one finding each. A guarantee that could not be tested is a failure."""
    failed = 0
    for promises, trial in TRIALS:
        told: set[Guarantee] = set()
        try:
            for promise, broken in trial(prober):
                told.add(promise)
                yield _finding(promise, broken, behind.get(promise, ""))
            failed = 0
        except StoreError as error:
            yield from (_untold(promise, error) for promise in promises if promise not in told)
            failed += 1
            if isinstance(error, StoreUnavailable) or failed == FAILED_MAX:
                yield _rest(error)
                return


def _finding(promise: Guarantee, broken: str, by: str) -> Finding:
    """Return the finding on a guarantee. by: the mechanism of the store behind it, if it names one."""
    if not broken:
        return Finding(Severity.OK, promise.check, f"{promise.value} ({by})" if by else promise.value)
    blamed = f"{by} is not honoured: " if by else ""
    return Finding(Severity.FAILURE, promise.check, f"{blamed}{broken} (needed: {promise.value})", REMEDY)


def _untold(promise: Guarantee, error: StoreError) -> Finding:
    text = f"{error} (needed: {promise.value})"
    return Finding(Severity.FAILURE, promise.check, text, "fix this and run it again")


def _rest(error: StoreError) -> Finding:
    text = f"no other promise could be tested: {error}"
    return Finding(Severity.FAILURE, "promise.others", text, "fix this and run it again", stops=True)


def shows(seen: Snapshot, fields: Mapping[str, str]) -> bool:
    """Return whether a record has the fields that were written. A server may add other fields."""
    return fields.items() <= seen.fields.items()


# --- create ------------------------------------------------------------------------------------------------------


def _creates(prober: Prober) -> Iterator[Verdict]:
    name, fields = prober.fresh(), {"n": "1", "text": "grün \"'\\ \n{}"}
    made = prober.settled(Create(name, fields))
    seen = prober.clear(Read(name))
    broken = ""
    if not isinstance(made, Snapshot) or not isinstance(seen, Snapshot):
        broken = f"the answers were {kind(made)} and, to a Read, {kind(seen)}"
    elif not shows(seen, fields) or seen.incarnation != made.incarnation:
        broken = "a Read shows another record than was written"
    yield Guarantee.CREATE, broken
    yield Guarantee.CREATE_PRESENT, refusal(prober, Create(name, {"n": "2"}), seen)


def _create_race(prober: Prober) -> Iterator[Verdict]:
    def once(_pause: float) -> tuple[Name, list[Any]]:
        name = prober.fresh()
        return name, prober.race([Create(name, {"n": str(n)}) for n in range(RACERS)])

    yield Guarantee.CREATE_RACE, one_winner(prober, once)


# --- extend ------------------------------------------------------------------------------------------------------


def _extends(prober: Prober) -> Iterator[Verdict]:
    name = prober.fresh()
    made = created(prober, name, {"n": "1", "kept": "1"})
    extend = Extend(name, {"n": "2", "empty": ""}, made.incarnation)
    yield Guarantee.EXTEND, _answers(prober, extend)
    now = prober.standing(name)
    is_kept = shows(now, {"n": "2", "kept": "1", "empty": ""})
    yield Guarantee.EXTEND_KEEPS, "" if is_kept else f"the record is {dict(now.fields)}"
    broken = ""
    if now.incarnation != made.incarnation:
        broken = "the incarnation changed"
    elif now.revision == made.revision:
        broken = f"the revision is still {now.revision}"
    yield Guarantee.EXTEND_REVISION_MOVES, broken
    if made.updated_at is not None or now.updated_at is not None:
        has_moved = None not in (made.updated_at, now.updated_at) and now.updated_at > made.updated_at  # type: ignore[operator]  # neither is None here
        yield Guarantee.EXTEND_UPDATED_MOVES, "" if has_moved else "it does not change"
    yield from _tokens(prober, made, now)
    wrong = Extend(name, {"n": "3"}, other(now.incarnation))
    yield Guarantee.EXTEND_INCARNATION, refusal(prober, wrong, now)
    now = prober.standing(name)
    past = made.revision if made.revision != now.revision else other(now.revision)
    late = Extend(name, {"n": "4"}, now.incarnation, past)
    yield Guarantee.EXTEND_REVISION, refusal(prober, late, now)


def _answers(prober: Prober, extend: Extend) -> str:
    """Extend until the reply is a record; return what is wrong with the replies, "" if nothing."""
    answer: object = None
    for _pause in attempts():
        extended = prober.once(extend)
        if isinstance(extended, Snapshot):
            return "" if extended.fields.get("n") == extend.fields["n"] else "the answer does not show the change"
        answer = extended
        if not isinstance(answer, StoreError):
            break
    return f"the answer was: {kind(answer)}"


def _tokens(prober: Prober, made: Snapshot, extended: Snapshot) -> Iterator[Verdict]:
    match prober.store.traits.tokens:
        case TokenSource.NATIVE:
            later = created(prober, prober.fresh())
        case TokenSource.DRAWN:
            later = extended
        case TokenSource.NONE:
            return
    grows = made.token is not None and later.token is not None and later.token > made.token
    yield Guarantee.TOKEN, "" if grows else f"after {made.token} came {later.token}"


def _extend_race(prober: Prober) -> Iterator[Verdict]:
    def once(pause: float) -> tuple[Name, list[Any]]:
        name = prober.fresh()
        made = created(prober, name)
        time.sleep(pause)
        return name, prober.race(
            [Extend(name, {"n": str(n)}, made.incarnation, made.revision) for n in range(RACERS)],
        )

    yield Guarantee.EXTEND_RACE, one_winner(prober, once)


# --- replace, remove ---------------------------------------------------------------------------------------------


def _replaces(prober: Prober) -> Iterator[Verdict]:
    name = prober.fresh()
    now = created(prober, name, {"n": "1", "old": "1"})
    wrong = Replace(name, {"n": "2"}, other(now.incarnation), now.revision)
    yield Guarantee.REPLACE_INCARNATION, refusal(prober, wrong, now)
    now = prober.standing(name)
    wrong = Replace(name, {"n": "3"}, now.incarnation, other(now.revision))
    yield Guarantee.REPLACE_REVISION, refusal(prober, wrong, now)
    now = prober.standing(name)
    prober.settled(Replace(name, {"n": "4"}, now.incarnation, now.revision))
    after = prober.standing(name)
    broken = ""
    if after.incarnation == now.incarnation:
        broken = "the incarnation is the old one"
    elif not shows(after, {"n": "4"}) or "old" in after.fields:
        broken = f"the record is {dict(after.fields)}"
    yield Guarantee.REPLACE, broken


def _removes(prober: Prober) -> Iterator[Verdict]:
    name = prober.fresh()
    now = created(prober, name)
    yield Guarantee.REMOVE_INCARNATION, refusal(prober, Remove(name, other(now.incarnation)), now)
    name, now = _again(prober, name, now)
    wrong = Remove(name, now.incarnation, other(now.revision))
    yield Guarantee.REMOVE_REVISION, refusal(prober, wrong, now)
    name, now = _again(prober, name, now)
    answer = prober.settled(Remove(name, now.incarnation))
    seen = prober.once(Read(name))
    broken = "" if isinstance(answer, Removed) else f"the answer was {kind(answer)}"
    yield Guarantee.REMOVE, "the record is still there" if isinstance(seen, Snapshot) else broken
    yield Guarantee.ABSENT, _absence(prober, now)


def _absence(prober: Prober, like: Snapshot) -> str:
    """Send commands for a record that never existed; return the first wrong reply, "" if all are Absent."""
    name = prober.fresh()
    commands: tuple[Command[Any], ...] = (
        Read(name),
        Extend(name, {"n": "1"}, like.incarnation),
        Remove(name, like.incarnation),
    )
    for command in commands:
        answer: object = prober.once(command)
        if not isinstance(answer, Absent):
            return f"{type(command).__name__} answers: {kind(answer)}"
    return ""


def _again(prober: Prober, name: Name, now: Snapshot) -> tuple[Name, Snapshot]:
    """Return the current record, or a new one if it was wrongly deleted."""
    seen = prober.once(Read(name))
    if isinstance(seen, Snapshot):
        return name, seen
    another = prober.fresh()
    return another, created(prober, another, dict(now.fields))


# --- re-creation -------------------------------------------------------------------------------------------------


def _re_creates(prober: Prober) -> Iterator[Verdict]:
    name = prober.fresh()
    old = created(prober, name, {"n": "old"})
    prober.settled(Remove(name, old.incarnation))
    now = created(prober, name, {"n": "new"})
    is_new = now.incarnation != old.incarnation
    yield Guarantee.FRESH_INCARNATION, "" if is_new else f"{now.incarnation} came back"
    late: tuple[tuple[Guarantee, Command[Any]], ...] = (
        (Guarantee.STALE_EXTEND, Extend(name, {"n": "late"}, old.incarnation)),
        (Guarantee.STALE_EXTEND, Extend(name, {"n": "late"}, old.incarnation, old.revision)),
        (Guarantee.STALE_REPLACE, Replace(name, {"n": "late"}, old.incarnation, old.revision)),
        (Guarantee.STALE_REMOVE, Remove(name, old.incarnation)),
        # many stores count revisions from 1 in every incarnation, so the revision alone would match
        (Guarantee.STALE_REMOVE, Remove(name, old.incarnation, old.revision)),
    )
    broken: dict[Guarantee, str] = {}
    for promise, command in late:
        if not broken.get(promise):
            broken[promise] = _refused_late(prober, name, command) if is_new else "the old incarnation is the new one"
    yield from broken.items()


def _refused_late(prober: Prober, name: Name, command: Command[Any]) -> str:
    seen = prober.clear(Read(name))
    return refusal(prober, command, seen) if isinstance(seen, Snapshot) else "the new record is gone"


def _lists(prober: Prober) -> Iterator[Verdict]:
    wanted = {prober.scratch(f"list/{part}") for part in ODD}
    for name in wanted:
        created(prober, name)
    created(prober, prober.scratch("list-not/1"))
    found = {name for name, _ in prober.listed("list/")}
    broken = ""
    if wanted - found:
        broken = f"{len(wanted - found)} of {len(wanted)} records are missing"
    elif found - wanted:
        broken = f"it shows {len(found - wanted)} records more"
    yield Guarantee.LIST, broken


TRIALS: Final[tuple[tuple[tuple[Guarantee, ...], Trial], ...]] = (
    ((Guarantee.CREATE, Guarantee.CREATE_PRESENT), _creates),
    ((Guarantee.CREATE_RACE,), _create_race),
    (
        (
            Guarantee.EXTEND,
            Guarantee.EXTEND_KEEPS,
            Guarantee.EXTEND_REVISION_MOVES,
            Guarantee.EXTEND_INCARNATION,
            Guarantee.EXTEND_REVISION,
        ),
        _extends,
    ),
    ((Guarantee.EXTEND_RACE,), _extend_race),
    ((Guarantee.REPLACE_INCARNATION, Guarantee.REPLACE_REVISION, Guarantee.REPLACE), _replaces),
    ((Guarantee.REMOVE_INCARNATION, Guarantee.REMOVE_REVISION, Guarantee.REMOVE, Guarantee.ABSENT), _removes),
    (
        (Guarantee.FRESH_INCARNATION, Guarantee.STALE_EXTEND, Guarantee.STALE_REPLACE, Guarantee.STALE_REMOVE),
        _re_creates,
    ),
    ((Guarantee.LIST,), _lists),
)
"""The trials in order, each with the guarantees that it must report. Guarantees that depend on the store's traits
(times, tokens) are reported only where they apply."""

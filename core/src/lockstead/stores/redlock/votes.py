"""Decides, from what masters answered, what all of them together answer: pure counting.

Must not know how masters are asked. N masters, a quorum of N // 2 + 1: any two quorums have a master in common, and
no master has two records under one name. That is all that exclusion rests on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.protocol.commands import Absent, Conflict, Removed, Snapshot
from lockstead.stores.redlock.scripts import NUMBERS, Seen, Words, seen


def quorum_of(masters: int) -> int:
    """Return how many masters decide."""
    return masters // 2 + 1


@dataclass(slots=True)
class Tally:
    """What has come of one question so far. The keys of all maps are the places of masters in the URL.

    seen: clear answers. silent: asked, and nothing known. failed: certainly not done there, and why; it says nothing
    of what stands there. young: restarted lately, so that an absent record there means nothing.
    """

    masters: int
    seen: dict[int, Seen] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)
    failed: dict[int, StoreError] = field(default_factory=dict)
    young: set[int] = field(default_factory=set)

    @property
    def quorum(self) -> int:
        """How many masters decide."""
        return quorum_of(self.masters)

    @property
    def done(self) -> list[int]:
        """The masters that did what they were asked."""
        return [place for place, one in self.seen.items() if one.is_done]

    @property
    def refusing(self) -> list[Seen]:
        """What those showed that did not, where that means something."""
        return [
            one
            for place, one in self.seen.items()
            if not one.is_done and (one.incarnation is not None or place not in self.young)
        ]

    @property
    def is_hopeless(self) -> bool:
        """Whether so many refuse that no quorum can stand for what was expected."""
        return len(self.refusing) > self.masters - self.quorum

    @property
    def doubtful(self) -> set[int]:
        """The masters on which it may have been done, or may yet be."""
        return {*self.done, *self.silent, *(at for at, why in self.failed.items() if isinstance(why, OutcomeUnknown))}

    def shortage(self, where: Callable[[int], str], *, may_be_done: bool) -> StoreError:
        """Say that too few masters answered: as refused for good where no quorum is left that does not refuse."""
        refused = [error for error in self.failed.values() if isinstance(error, StoreRefused)]
        whys = [f"{where(place)}: {error}" for place, error in sorted(self.failed.items())]
        whys += [f"{where(place)}: no answer in time" for place in sorted(self.silent)]
        answered = self.masters - len(self.failed) - len(self.silent)
        text = (
            f"only {answered} of {self.masters} masters answered, {self.quorum} are needed; {'; '.join(whys)}"
            if answered < self.quorum
            else f"{answered} of {self.masters} masters answered, and no {self.quorum} of them alike"
            + (f"; {'; '.join(whys)}" if whys else "")
        )
        if len(refused) > self.masters - self.quorum:
            return StoreRefused(text)
        return OutcomeUnknown(text) if may_be_done else StoreUnavailable(text)


@dataclass(slots=True)
class Ballot:
    """One question to all masters. decide(tally, is_last) gives the answer, or None while more answers matter.

    words: what each master is asked. needs_vote: only masters may be asked that have not restarted lately. read: how
    an answer of the script is read; ValueError for none. clears: the incarnation that is gone from a master once that
    has answered. lists: the answers may be long.
    """

    words: Words
    decide: Callable[[Tally, bool], object]
    tally: Tally
    needs_vote: bool = False
    read: Callable[[Any], Seen | dict[bytes, Seen]] = seen
    clears: str = ""
    lists: bool = False
    listings: dict[int, dict[bytes, Seen]] = field(default_factory=dict)
    packed: bytes = b""


class Vote(Enum):
    """How a vote went."""

    WON = "a quorum voted for it"
    LOST = "there will be no quorum for it"


def by_read(tally: Tally, is_last: bool) -> Snapshot | Absent | None:
    """Decide what a Read shows: what stands on a quorum; Absent where nothing can stand on one."""
    standing = [one for one in tally.seen.values() if one.incarnation is not None]
    counts = Counter(one.incarnation for one in standing)
    most = counts.most_common(1)
    if most and most[0][1] >= tally.quorum:
        return shown([one for one in standing if one.incarnation == most[0][0]], tally, is_last)
    unclear = (
        tally.masters
        - len(standing)
        - len([place for place, one in tally.seen.items() if one.incarnation is None and place not in tally.young])
    )
    if (most[0][1] if most else 0) + unclear < tally.quorum:
        return Absent()
    return None


def by_extend(tally: Tally, is_last: bool) -> Snapshot | Conflict | Absent | None:
    """Decide what an Extend without a revision answers: done where a quorum did it."""
    done = tally.done
    if len(done) >= tally.quorum:
        one = Counter(tally.seen[place].incarnation for place in done).most_common(1)[0]
        if one[1] >= tally.quorum:
            return shown(
                [tally.seen[place] for place in done if tally.seen[place].incarnation == one[0]], tally, is_last
            )
    if tally.is_hopeless:
        return Conflict() if any(one.incarnation is not None for one in tally.refusing) else Absent()
    return None


def by_remove(tally: Tally, _is_last: bool) -> Removed | Conflict | Absent | None:
    """Decide what a Remove answers. What stood on no quorum any more was not removed by this command alone."""
    done = len(tally.done)
    if done >= tally.quorum:
        return Removed()
    refusing = [one for one in tally.seen.values() if not one.is_done]
    if done == 0 and len(refusing) > tally.masters - tally.quorum:
        return Conflict() if any(one.incarnation is not None for one in refusing) else Absent()
    return None


def by_vote(tally: Tally, is_last: bool) -> Vote | None:
    """Decide how a vote went; rivals are looked at only after it."""
    if len(tally.done) >= tally.quorum:
        return Vote.WON
    if is_last or rival(tally) is not None:
        return Vote.LOST
    return None


def rival(tally: Tally) -> Conflict | Absent | None:
    """Return what stands in the way of a vote on a quorum: another record or state, or none at all."""
    states = Counter(one.state if one.incarnation is not None else None for one in tally.refusing)
    by_incarnation = Counter(one.incarnation for one in tally.refusing)
    for state, count in states.items():
        if count >= tally.quorum:
            return Absent() if state is None else Conflict()
    for incarnation, count in by_incarnation.items():
        # the same record in different states is still somebody's record, but a vote that expects a state of it may
        # have been refused by votes of others, which come and go
        votes = any(one.vote for one in tally.refusing if one.incarnation == incarnation)
        if incarnation is not None and count >= tally.quorum and not votes:
            return Conflict()
    return None


def shown(alike: list[Seen], tally: Tally, is_last: bool) -> Snapshot | None:
    """Return one record from what a quorum has of it; None while masters that were asked might agree better.

    The revision is what a quorum agrees on. Where none does, some master missed a write, or writes came in different
    orders: fields are merged, those of who applied most last, so that what was added anywhere shows; and the
    revision is marked, so that nothing can expect it.
    """
    agreed, count = Counter(one.state for one in alike).most_common(1)[0]
    if count >= tally.quorum:
        best = next(one for one in alike if one.state == agreed)
        return Snapshot(best.fields(), best.incarnation or "", f"{best.count}.{best.total}")
    if not is_last:
        return None
    fields: dict[str, str] = {}
    for one in sorted(alike, key=lambda one: (one.count, one.total)):
        fields |= one.fields()
    best = max(alike, key=lambda one: (one.count, one.total))
    mark = ".".join(sorted(one.total for one in alike))
    return Snapshot(fields, best.incarnation or "", f"{best.count}.{best.total}~{mark}")


def by_list(by_place: Mapping[int, Seen], answered: set[int], tally: Tally) -> Snapshot | None:
    """Show, of one name of a listing, what may stand on a quorum; None where too many are known not to have it."""
    most: dict[str, list[Seen]] = {}
    for one in by_place.values():
        most.setdefault(one.incarnation or "", []).append(one)
    alike = max(most.values(), key=len)
    lacking = len([place for place in answered if place not in by_place and place not in tally.young])
    others = len(by_place) - len(alike)
    return shown(alike, tally, True) if lacking + others <= tally.masters - tally.quorum else None


def target_of(alike: list[Seen], quorum: int) -> dict[bytes, bytes] | None:
    """Return the hash that all who have this record should have; None where they have it, or nobody can say.

    A state that came of a vote which may be taken back again is passed on only if a quorum has it.
    """
    if not all(one.is_whole for one in alike):
        return None
    states = {one.state for one in alike}
    agreed = next((one for one in alike if sum(one.state == other.state for other in alike) >= quorum), None)
    rest = [one for one in alike if agreed is None or one.state != agreed.state]
    if agreed is not None and all(one.count < agreed.count and one.raw.keys() <= agreed.raw.keys() for one in rest):
        return _plain(agreed.raw)
    if len(states) < 2 or any(one.vote for one in rest):
        return None
    raw: dict[bytes, bytes] = {}
    for one in sorted(alike, key=lambda one: (one.count, one.total)):
        raw |= one.raw
    raw[b"n"] = str(max(one.count for one in alike) + 1).encode()
    raw[b"x"] = str(sum(int(total) for _i, _n, total in states) % NUMBERS).encode()
    return _plain(raw)


def _plain(raw: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Leave out what a master notes of its own votes."""
    return {name: value for name, value in raw.items() if name not in (b"b", b"h")}

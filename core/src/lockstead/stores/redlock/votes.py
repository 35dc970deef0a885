"""Deciding the answer of all masters together from the answers of each. Pure.

Must not know how masters are asked. N masters, a quorum of N // 2 + 1: any two quorums have a master in common, and
no master has two records under one name. Mutual exclusion rests on nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.protocol.commands import Absent, Conflict, Removed, Snapshot
from lockstead.stores.redis.resp import Words, encoded
from lockstead.stores.redlock.scripts import NUMBERS, Part, Seen, seen


def quorum_of(masters: int) -> int:
    """Return the number of masters in a quorum."""
    return masters // 2 + 1


@dataclass(slots=True)
class Votes:
    """The answers to one question so far. The keys of all maps are the positions of masters in the URL.

    seen: definite answers. silent: asked, outcome unknown. failed: certainly not done, and why; nothing is known of the
    record there. young: recently restarted, so an absent record there means nothing.
    """

    masters: int
    seen: dict[int, Seen] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)
    failed: dict[int, StoreError] = field(default_factory=dict)
    young: set[int] = field(default_factory=set)

    @property
    def quorum(self) -> int:
        """The number of masters in a quorum."""
        return quorum_of(self.masters)

    @property
    def done(self) -> list[int]:
        """The masters that carried out the request."""
        return [place for place, one in self.seen.items() if one.is_done]

    @property
    def refusing(self) -> list[Seen]:
        """The records shown by masters that did not, except absent ones on young masters."""
        return [
            one
            for place, one in self.seen.items()
            if not one.is_done and (one.incarnation is not None or place not in self.young)
        ]

    @property
    def is_hopeless(self) -> bool:
        """Whether so many masters refuse that no quorum is possible."""
        return len(self.refusing) > self.masters - self.quorum

    @property
    def doubtful(self) -> set[int]:
        """The masters on which the request was or may still be carried out."""
        return {*self.done, *self.silent, *(at for at, why in self.failed.items() if isinstance(why, OutcomeUnknown))}

    def shortage(self, where: Callable[[int], str], *, may_be_done: bool) -> StoreError:
        """Return the error for too few answers: StoreRefused where the refusing masters leave no quorum."""
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
class Question:
    """One question to all masters. decide(votes, is_last) returns its answer, or None while more of theirs matter.

    needs_vote: recently restarted masters are not asked. read: decodes an
    answer of the script, or raises ValueError. clears: the incarnation that a master has removed once it answers.
    lists: the answers may be long.
    """

    command: Words
    decide: Callable[[Votes, bool], object]
    votes: Votes
    needs_vote: bool = False
    read: Callable[[Any], Seen | Part] = seen
    clears: str = ""
    lists: bool = False
    listings: dict[int, Part] = field(default_factory=dict)
    packed: bytes = field(init=False)

    answer: object = None

    def __post_init__(self) -> None:
        self.packed = encoded([self.command])

    def is_decided(self, *, is_last: bool = False) -> bool:
        """Return whether there is an answer, by the votes so far. is_last: no more votes are waited for."""
        if self.answer is None:
            self.answer = self.decide(self.votes, is_last)
        return self.answer is not None


class Vote(Enum):
    """How a vote went."""

    WON = "a quorum voted for it"
    LOST = "there will be no quorum for it"


def by_read(votes: Votes, is_last: bool) -> Snapshot | Absent | None:
    """Decide what a Read shows: the record on a quorum; Absent where no record can be on one."""
    standing = [one for one in votes.seen.values() if one.incarnation is not None]
    counts = Counter(one.incarnation for one in standing)
    most = counts.most_common(1)
    if most and most[0][1] >= votes.quorum:
        return shown([one for one in standing if one.incarnation == most[0][0]], votes, is_last)
    unclear = (
        votes.masters
        - len(standing)
        - len([place for place, one in votes.seen.items() if one.incarnation is None and place not in votes.young])
    )
    if (most[0][1] if most else 0) + unclear < votes.quorum:
        return Absent()
    return None


def by_extend(votes: Votes, is_last: bool) -> Snapshot | Conflict | Absent | None:
    """Decide what an Extend without a revision answers: done if a quorum did it."""
    done = votes.done
    if len(done) >= votes.quorum:
        one = Counter(votes.seen[place].incarnation for place in done).most_common(1)[0]
        if one[1] >= votes.quorum:
            return shown(
                [votes.seen[place] for place in done if votes.seen[place].incarnation == one[0]], votes, is_last
            )
    if votes.is_hopeless:
        return Conflict() if any(one.incarnation is not None for one in votes.refusing) else Absent()
    return None


def by_remove(votes: Votes, _is_last: bool) -> Removed | Conflict | Absent | None:
    """Decide what a Remove answers. A record on less than a quorum was not removed by this command alone."""
    done = len(votes.done)
    if done >= votes.quorum:
        return Removed()
    refusing = [one for one in votes.seen.values() if not one.is_done]
    if done == 0 and len(refusing) > votes.masters - votes.quorum:
        return Conflict() if any(one.incarnation is not None for one in refusing) else Absent()
    return None


def by_vote(votes: Votes, is_last: bool) -> Vote | None:
    """Decide how a vote went; rivals are examined afterwards."""
    if len(votes.done) >= votes.quorum:
        return Vote.WON
    if is_last or rival(votes) is not None:
        return Vote.LOST
    return None


def rival(votes: Votes) -> Conflict | Absent | None:
    """Return why a quorum cannot vote for a write: another record or state (Conflict), or no record (Absent)."""
    states = Counter(one.state if one.incarnation is not None else None for one in votes.refusing)
    by_incarnation = Counter(one.incarnation for one in votes.refusing)
    for state, count in states.items():
        if count >= votes.quorum:
            return Absent() if state is None else Conflict()
    for incarnation, count in by_incarnation.items():
        # the same record in different states is still a record, but a vote that expects one of its states may have been
        # refused because of other contenders' votes, which may be withdrawn
        has_votes = any(one.vote for one in votes.refusing if one.incarnation == incarnation)
        if incarnation is not None and count >= votes.quorum and not has_votes:
            return Conflict()
    return None


def shown(alike: list[Seen], votes: Votes, is_last: bool) -> Snapshot | None:
    """Return one record from a quorum's copies of it; None while outstanding answers might give an agreement.

    The revision is the one that a quorum agrees on. Without agreement, a master missed a write or applied writes in
    another order: then the fields are merged, those of the master with most writes last, and the revision gets a suffix
    that no command can expect.
    """
    agreed, count = Counter(one.state for one in alike).most_common(1)[0]
    if count >= votes.quorum:
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


def by_list(by_place: Mapping[int, Seen], answered: set[int], votes: Votes) -> Snapshot | None:
    """Return the record of one name in a listing that may be on a quorum; None if too many masters lack it."""
    most: dict[str, list[Seen]] = {}
    for one in by_place.values():
        most.setdefault(one.incarnation or "", []).append(one)
    alike = max(most.values(), key=len)
    lacking = len([place for place in answered if place not in by_place and place not in votes.young])
    others = len(by_place) - len(alike)
    return shown(alike, votes, True) if lacking + others <= votes.masters - votes.quorum else None


def target_of(alike: list[Seen], quorum: int) -> dict[bytes, bytes] | None:
    """Return the hash that all masters with this record should have; None where they have it or it is unclear.

    A state that came from a vote, which may be withdrawn, is copied only if a quorum has it.
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
    """Return the hash without a master's notes on its own votes."""
    return {name: value for name, value in raw.items() if name not in (b"b", b"h")}

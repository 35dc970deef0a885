"""Records on N independent Redis masters of which a quorum decides: the Redlock algorithm.

A write that grants is a vote: every master stores the record if it has none, and a quorum is the grant; otherwise the
vote is withdrawn from every master. Each attempt has its own incarnation, so withdrawing one attempt cannot hit the
next. Must not know what the fields of a record mean.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

from lockstead.errors import StoreError, StoreRefused, StoreUnavailable
from lockstead.protocol.commands import (
    Absent,
    Command,
    Conflict,
    Create,
    Extend,
    List,
    Listing,
    Read,
    Remove,
    Replace,
    Snapshot,
    StoreClock,
    TokenSource,
    Traits,
)
from lockstead.stores import paging
from lockstead.stores.kept import outcome
from lockstead.stores.port import StoreBase
from lockstead.stores.redis.resp import Words, encoded
from lockstead.stores.redlock.masters import Exchange, MasterGroup
from lockstead.stores.redlock.scripts import (
    NUMBERS,
    Keys,
    Part,
    Seen,
    call,
    flat_fields,
    inner_name,
    listed,
    milliseconds,
    outer_name,
    ranges,
)
from lockstead.stores.redlock.votes import (
    Question,
    Vote,
    Votes,
    by_extend,
    by_list,
    by_read,
    by_remove,
    by_vote,
    rival,
    shown,
    target_of,
)
from lockstead.values import Name

if TYPE_CHECKING:
    from lockstead.stores.examination import Finding

A = TypeVar("A")

TRAITS: Final = Traits(
    scheme="redlock",
    guarantee=(
        "a majority of N independent Redis masters, as long as their clocks and ours run alike and none forgets: "
        "good for efficiency, and without fencing tokens"
    ),
    clock=StoreClock.SERVER_EXPIRES,
    tokens=TokenSource.NONE,
    ttl_recommended=5.0,
)

VOTES_MAX: Final = 12
"""Votes of one command until it fails because all were split."""

AGAIN_MIN: Final = 0.004
AGAIN_MAX: Final = 0.1
"""Maximum seconds until a split vote is repeated; random, so that two contenders do not collide forever."""

REMOVAL_KEPT_FOR: Final = 600.0
"""Seconds for which a removal is kept for a master that did not answer."""

_Simple: TypeAlias = Read | Extend | Remove
_Voted: TypeAlias = Create | Replace | Extend


class RedlockStore(StoreBase):
    """Records on N independent Redis masters. Promises nothing if a quorum of them loses data, or a clock jumps."""

    traits = TRAITS

    def __init__(self, group: MasterGroup, url: str, prefix: str, restart_delay: float) -> None:
        self._group = group
        self.url = url
        self._keys = Keys(prefix)
        self._restart_delay = restart_delay

    def perform(self, command: Command[A], limit: float) -> A:
        """Carry out one command as one question to all masters, within `limit` seconds.

        Raises StoreUnavailable (certainly not done, nor will be), OutcomeUnknown (deciding masters did not answer) or
        StoreRefused.
        """
        (answer,) = self.perform_many([command], limit)
        if isinstance(answer, StoreError):
            raise answer
        return cast(A, answer)

    def perform_many(self, commands: Sequence[Command[Any]], limit: float) -> list[Any]:
        """Return an answer or an error for each; commands without a vote go to each master in one pipeline."""
        ends_at = time.monotonic() + limit
        answers: dict[int, Any] = {}
        simple: dict[int, _Simple] = {}
        for at, command in enumerate(commands):
            if isinstance(command, Read | Remove) or (isinstance(command, Extend) and command.revision is None):
                simple[at] = command
        if simple:
            try:
                answers |= zip(simple, self._simple(list(simple.values()), limit), strict=True)
            except StoreError as error:
                answers |= dict.fromkeys(simple, error)
        for at, command in enumerate(commands):
            if at not in simple:
                answers[at] = outcome(self._alone, command, max(0.001, ends_at - time.monotonic()))
        return [answers[at] for at in range(len(commands))]

    def _alone(self, command: Command[Any], limit: float) -> Listing | Snapshot | Conflict | Absent:
        match command:
            case Create() | Replace() | Extend():
                return self._vote(command, limit)
            case List():
                return self._list(command, limit)
            case _:
                raise TypeError(f"not a command for a store: {type(command).__name__}")

    # --- without a vote ------------------------------------------------------------------------------------------

    def _simple(self, commands: Sequence[_Simple], limit: float) -> list[Any]:
        questions = [self._question_of(command) for command in commands]
        with self._group.exchange(limit) as exchange:
            exchange.ask(questions)
            self._follow_up(exchange, commands, questions)
        return [
            self._short(question.votes, command) if question.answer is None else question.answer
            for command, question in zip(commands, questions, strict=True)
        ]

    def _follow_up(self, exchange: Exchange, commands: Sequence[_Simple], questions: Sequence[Question]) -> None:
        # no loop directly in a `with` statement: a Ctrl-C at its jump back would skip the exit
        for command, question in zip(commands, questions, strict=True):
            if isinstance(command, Remove):
                self._defer_removal(command, question)
            elif isinstance(question.answer, Snapshot):
                self._repair(exchange, command, question.votes, question.answer)

    def _question_of(self, command: _Simple) -> Question:
        decide: Callable[[Votes, bool], object]
        words: tuple[str | int, ...]
        clears = ""
        match command:
            case Read():
                words, decide = ("read",), by_read
            case Extend():
                words = ("extend", command.incarnation or "", _number(), *flat_fields(command.fields))
                decide = by_extend
            case Remove():
                words = ("remove", command.incarnation, inner_name(command.name), *_writes(command.revision))
                decide, clears = by_remove, command.incarnation if command.revision is None else ""
        return Question(self._call(command.name, *words), decide, Votes(len(self._group.masters)), clears=clears)

    def _defer_removal(self, command: Remove, question: Question) -> None:
        """Keep a removal for masters that it did not reach: otherwise only the ttl would free the key there."""
        if command.revision is not None:
            return
        for place in {*question.votes.silent, *question.votes.failed}:
            self._group.masters[place].defer_removal(
                command.incarnation, question.packed, self._restart_delay or REMOVAL_KEPT_FOR
            )

    def _repair(self, exchange: Exchange, command: Read | Extend, votes: Votes, answer: Snapshot) -> None:
        """Copy the quorum's state to masters that missed writes; a renewal also copies it to masters without a record.

        Each copy expects exactly the state that was read there, and nobody waits for it. Only an Extend that a quorum
        carried out copies to a master without a record: then its holder is certain, and the copy expires with that
        Extend.
        """
        alike = {place: one for place, one in votes.seen.items() if one.incarnation == answer.incarnation}
        target = target_of(list(alike.values()), votes.quorum)
        if target is None:
            return
        flat = [text for pair in target.items() for text in pair]
        state = (answer.incarnation, int(target[b"n"]), target[b"x"].decode())
        for place, one in alike.items():
            if one.state != state:
                copy = self._call(command.name, "copy", inner_name(command.name), *one.state, 0, *flat)
                exchange.post(place, encoded([copy]), _nobody)
        if not isinstance(command, Extend):
            return
        min_retention = int(target[b"s"])
        for place, one in votes.seen.items():
            if one.incarnation is None and not self._group.masters[place].has_pending_removal(answer.incarnation):
                copy = self._call(
                    command.name, "copy", inner_name(command.name), "", "", "", min_retention, *flat, "h", 0
                )
                exchange.post(place, encoded([copy]), _nobody)

    # --- what is voted on ----------------------------------------------------------------------------------------

    def _vote(self, command: _Voted, limit: float) -> Snapshot | Conflict | Absent:
        """Hold a vote; repeat it while votes are split among contenders of which none can win."""
        min_retention = 0.0 if isinstance(command, Extend) else command.min_retention
        if self._restart_delay and min_retention > self._restart_delay:
            raise StoreRefused(
                f"a record that lives for {min_retention:.0f} s outlives restart_delay ({self._restart_delay:.0f} s), "
                "so a master could lose it and vote again; shorten the ttl, or set a longer ?restart_delay= everywhere"
            )
        ends_at = time.monotonic() + limit
        longest = AGAIN_MIN
        for turn in range(VOTES_MAX):
            answer = self._vote_once(command, min_retention, max(0.001, ends_at - time.monotonic()))
            if not isinstance(answer, Votes):
                return answer
            left = ends_at - time.monotonic()
            if left <= longest:
                break
            if turn < VOTES_MAX - 1:
                time.sleep(random.uniform(0.0, longest))
            longest = min(AGAIN_MAX, longest * 2)
        raise StoreUnavailable(
            f"the votes for {command.name.key!r} are split: no {self._group.quorum} of {len(self._group.masters)} "
            "masters have the same record; remaining copies expire with their ttl"
        )

    def _vote_once(self, command: _Voted, min_retention: float, limit: float) -> Snapshot | Conflict | Absent | Votes:
        """Hold one vote, with its own incarnation; return the Votes if no contender could win it."""
        voted = os.urandom(12).hex()
        votes = Votes(len(self._group.masters))
        question = Question(self._voting(command, voted), by_vote, votes, needs_vote=not isinstance(command, Extend))
        with self._group.exchange(limit) as exchange:
            exchange.ask([question])
            if question.answer is Vote.WON:
                if isinstance(command, Extend):
                    return shown([votes.seen[place] for place in votes.done], votes, True) or Conflict()
                return Snapshot(dict(command.fields), voted, "1.0")
            owing = self._take_back(exchange, command.name, voted, votes, min_retention)
        found = rival(votes)
        if found is not None:
            return found
        if owing >= votes.quorum:
            raise votes.shortage(self._where, may_be_done=True)
        if len(votes.seen) < votes.quorum:
            # the remaining copies cannot become a quorum any more
            raise votes.shortage(self._where, may_be_done=False)
        return votes

    def _voting(self, command: _Voted, voted: str) -> Words:
        name, fields = command.name, flat_fields(command.fields)
        if isinstance(command, Extend):
            expected = (command.incarnation or "", *_writes(command.revision))
            return self._call(name, "amend", voted, _number(), *expected, *fields)
        granted = (voted, inner_name(name), milliseconds(command.min_retention))
        if isinstance(command, Create):
            return self._call(name, "create", *granted, *fields)
        return self._call(name, "replace", *granted, command.incarnation, *_writes(command.revision), *fields)

    def _take_back(self, exchange: Exchange, name: Name, voted: str, votes: Votes, min_retention: float) -> int:
        """Withdraw a vote from all masters that may have it; return on how many that is not confirmed yet.

        An unconfirmed removal stays pending: it follows the vote on the same connection, or is sent when the master is
        reachable again.
        """
        packed = encoded([self._call(name, "undo", voted, inner_name(name))])
        owing = votes.doubtful
        for place in owing:
            master = self._group.masters[place]
            master.defer_removal(voted, packed, min_retention or REMOVAL_KEPT_FOR)
            exchange.post(place, packed, master.removal_confirmed(voted))

        def owed() -> list[int]:
            return [place for place in owing if self._group.masters[place].has_pending_removal(voted)]

        exchange.settle(lambda: not owed())
        return len(owed())

    # --- listing -------------------------------------------------------------------------------------------------

    def _list(self, command: List, limit: float) -> Listing:
        place = paging.place(command, 1)
        if place is not None and command.key is not None:
            raise paging.refused_cursor()  # the records of one key are all in one page
        limit_of_page = -1 if command.page is None or command.key is not None else command.page
        try:
            after = None if place is None else place[0].encode(errors="surrogateescape")
        except UnicodeEncodeError as error:
            raise paging.refused_cursor() from error
        under = ranges(command.key, command.part_prefix, after)
        asked = call(self._keys.listing(command.space), "list", limit_of_page, *under)
        votes = Votes(len(self._group.masters))
        listings: dict[int, Part] = {}
        decide = partial(self._listing, command, listings)
        question = Question(asked, decide, votes, read=listed, lists=True, listings=listings)
        with self._group.exchange(limit) as exchange:
            exchange.ask([question])
        if isinstance(question.answer, Listing):
            return question.answer
        raise votes.shortage(self._where, may_be_done=False)

    def _listing(self, command: List, listings: Mapping[int, Part], votes: Votes, is_last: bool) -> Listing | None:
        """Return the page, up to where the first of the masters' pages ends: beyond it, what others have is unknown."""
        if len(listings) < (votes.quorum if is_last else votes.masters):
            return None
        end = min((part.last for part in listings.values() if part.last is not None), default=None)
        found: dict[bytes, dict[int, Seen]] = {}
        for place, part in listings.items():
            for inner, one in part.found.items():
                is_within = end is None or inner <= end
                if is_within and not self._group.masters[place].has_pending_removal(one.incarnation or ""):
                    found.setdefault(inner, {})[place] = one
        shown = (
            (outer_name(command.space, inner), by_list(by_place, set(listings), votes))
            for inner, by_place in found.items()
        )
        entries = tuple((name, one) for name, one in shown if name is not None and one is not None)
        if end is None:
            return Listing(entries)
        return Listing(entries, paging.cursor(command, end.decode(errors="surrogateescape")))

    # --- arguments ---------------------------------------------------------------------------------------------------

    def _call(self, name: Name, *arguments: str | bytes | int) -> Words:
        return call(self._keys.of(name), *arguments)

    def _where(self, place: int) -> str:
        return self._group.masters[place].where

    def _short(self, votes: Votes, command: _Simple) -> StoreError:
        may_be_done = not isinstance(command, Read) and bool(votes.doubtful)
        return votes.shortage(self._where, may_be_done=may_be_done)

    # --- examining -----------------------------------------------------------------------------------------------

    def examine(self, scratch: Callable[[str], Name], limit: float) -> Iterator[Finding]:  # noqa: ARG002 - as the port
        """Diagnose every master: whether it may vote, loses data, evicts keys, and how its clock differs."""
        from lockstead.stores.redlock.doctor import examination

        yield self._group.transport()
        yield from examination(self._group, self._restart_delay, limit)

    # --- life ----------------------------------------------------------------------------------------------------

    def after_fork(self) -> None:
        """Drop every inherited connection without closing it."""
        self._group.after_fork()

    def close(self) -> None:
        """Close every connection; those in use when they are returned."""
        self._group.close()


def _writes(revision: str | None) -> tuple[str, str]:
    """Return the number of writes and the sum of their numbers that a revision expects; empty for any."""
    count, _, total = (revision or "").partition(".")
    return count, total


def _number() -> int:
    """Return a unique number for a write, the same on every master."""
    return int.from_bytes(os.urandom(7), "big") % NUMBERS


def _nobody(_answer: object) -> None:
    """Ignore an answer that nobody waits for."""

"""How records are kept on N independent Redis masters of which a quorum decides: the Redlock algorithm.

A write that grants is a vote: every master takes the record if it has none, a quorum of yes is the grant, and whatever
else comes of it is taken back from every master. Each attempt has an incarnation of its own, so that taking back the
first cannot hit the second. Must not know what the fields of a record mean.
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
from lockstead.stores.redlock.panel import Panel, Session
from lockstead.stores.redlock.scripts import (
    NUMBERS,
    SHA,
    Keys,
    Seen,
    Words,
    flat_fields,
    inner_name,
    listed,
    milliseconds,
    outer_name,
    ranges,
)
from lockstead.stores.redlock.votes import (
    Ballot,
    Tally,
    Vote,
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
    from lockstead.stores.examination import Finding, Guarantee

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
"""Votes of one command, until one that was split every time ends with that."""

AGAIN_MIN: Final = 0.004
AGAIN_MAX: Final = 0.1
"""Seconds, at most, until a vote that was split is held again; drawn, so that two contenders do not meet forever."""

OWED_FOR: Final = 600.0
"""Seconds for which a removal is remembered for a master that did not answer."""

_Simple: TypeAlias = Read | Extend | Remove
_Voted: TypeAlias = Create | Replace | Extend


class RedlockStore:
    """Records on N independent Redis masters. Promises nothing where a quorum of them forgets, or a clock jumps."""

    def __init__(self, panel: Panel, url: str, prefix: str, restart_delay: float) -> None:
        self._panel = panel
        self._url = url
        self._keys = Keys(prefix)
        self._restart_delay = restart_delay

    def __repr__(self) -> str:
        return f"RedlockStore({self._url!r})"

    @property
    def traits(self) -> Traits:
        """What the protocol must know of this store."""
        return TRAITS

    @property
    def url(self) -> str:
        """The store's URL without credentials."""
        return self._url

    def perform(self, command: Command[A], limit: float) -> A:
        """Carry out one command as one question to all masters, within `limit` seconds.

        Raises StoreUnavailable (certainly not done, nor will be), OutcomeUnknown (masters that would decide are silent)
        or StoreRefused.
        """
        answer: object
        match command:
            case Create() | Replace():
                answer = self._vote(command, limit)
            case Extend() if command.revision is not None:
                answer = self._vote(command, limit)
            case Read() | Extend() | Remove():
                answer = self._simple([command], limit)[0]
            case List():
                answer = self._list(command, limit)
            case _:
                raise TypeError(f"not a command for a store: {type(command).__name__}")
        if isinstance(answer, StoreError):
            raise answer
        return cast(A, answer)

    def perform_many(self, commands: Sequence[Command[Any]], limit: float) -> list[Any]:
        """Return an answer or an error for each; what needs no vote goes to each master in one pipeline."""
        ends_at = time.monotonic() + limit
        answers: list[Any] = [None] * len(commands)
        simple: dict[int, _Simple] = {}
        for at, command in enumerate(commands):
            if isinstance(command, Read | Remove) or (isinstance(command, Extend) and command.revision is None):
                simple[at] = command
        try:
            if simple:
                for at, answer in zip(simple, self._simple(list(simple.values()), limit), strict=True):
                    answers[at] = answer
        except StoreError as error:
            answers = [error if at in simple else None for at in range(len(commands))]
        for at, command in enumerate(commands):
            if at not in simple:
                try:
                    answers[at] = self.perform(command, max(0.001, ends_at - time.monotonic()))
                except StoreError as error:
                    answers[at] = error
        return answers

    # --- what every master does by itself ------------------------------------------------------------------------

    def _simple(self, commands: Sequence[_Simple], limit: float) -> list[Any]:
        ballots = [self._ballot(command) for command in commands]
        with self._panel.session(limit) as session:
            decided = session.ask(ballots)
            for command, ballot, answer in zip(commands, ballots, decided, strict=True):
                self._follow_up(session, command, ballot, answer)
        return [
            self._short(ballot.tally, command) if answer is None else answer
            for command, ballot, answer in zip(commands, ballots, decided, strict=True)
        ]

    def _follow_up(self, session: Session, command: _Simple, ballot: Ballot, answer: object) -> None:
        if isinstance(command, Remove):
            self._owe_removal(command, ballot)
        elif isinstance(answer, Snapshot):
            self._repair(session, command, ballot.tally, answer)

    def _ballot(self, command: _Simple) -> Ballot:
        match command:
            case Read():
                return self._question(self._words(command.name, "read"), by_read)
            case Extend():
                words = self._words(
                    command.name, "extend", command.incarnation or "", _number(), *flat_fields(command.fields)
                )
                return self._question(words, by_extend)
            case Remove():
                clears = command.incarnation if command.revision is None else ""
                return self._question(self._removal(command), by_remove, clears=clears)

    def _question(self, words: Words, decide: Callable[[Tally, bool], object], *, clears: str = "") -> Ballot:
        return Ballot(words, decide, Tally(len(self._panel.masters)), clears=clears)

    def _removal(self, command: Remove) -> Words:
        count, _, total = (command.revision or "").partition(".")
        return self._words(command.name, "remove", command.incarnation, inner_name(command.name), count, total)

    def _owe_removal(self, command: Remove, ballot: Ballot) -> None:
        """What did not reach a master is sent there when it is reached again: else the ttl would have to free it."""
        if command.revision is not None or not ballot.packed:
            return
        for place in {*ballot.tally.silent, *ballot.tally.failed}:
            self._panel.masters[place].owe(command.incarnation, ballot.packed, self._restart_delay or OWED_FOR)

    def _repair(self, session: Session, command: Read | Extend, tally: Tally, answer: Snapshot) -> None:
        """Bring masters up to what a quorum has: those that missed writes, and, by who renews, those that have nothing.

        Each copy expects the very state that was read there, and nobody waits for it. A record is copied to where
        there is none only by an Extend that a quorum did: its holder is then certain, and it lives no longer than
        that Extend lets it.
        """
        alike = {place: one for place, one in tally.seen.items() if one.incarnation == answer.incarnation}
        target = target_of(list(alike.values()), tally.quorum)
        if target is None:
            return
        flat = [text for pair in target.items() for text in pair]
        state = (answer.incarnation, int(target[b"n"]), target[b"x"].decode())
        for place, one in alike.items():
            if one.state != state:
                words = self._words(command.name, "copy", inner_name(command.name), *one.state, 0, *flat)
                session.post(place, words, _nobody)
        if not isinstance(command, Extend):
            return
        min_retention = int(target[b"s"])
        for place, one in tally.seen.items():
            if one.incarnation is None and not self._panel.masters[place].owes(answer.incarnation):
                words = self._words(
                    command.name, "copy", inner_name(command.name), "", "", "", min_retention, *flat, "h", 0
                )
                session.post(place, words, _nobody)

    # --- what is voted on ----------------------------------------------------------------------------------------

    def _vote(self, command: _Voted, limit: float) -> Snapshot | Conflict | Absent:
        """Hold a vote, and again while votes are split among contenders of whom none can win."""
        min_retention = 0.0 if isinstance(command, Extend) else command.min_retention
        if self._restart_delay and min_retention > self._restart_delay:
            raise StoreRefused(
                f"a record that stands for {min_retention:.0f} s outlives restart_delay ({self._restart_delay:.0f} s), "
                "so a master could forget it and vote anew; shorten the ttl, or set a longer ?restart_delay= everywhere"
            )
        ends_at = time.monotonic() + limit
        longest = AGAIN_MIN
        for turn in range(VOTES_MAX):
            answer = self._vote_once(command, min_retention, max(0.001, ends_at - time.monotonic()))
            if not isinstance(answer, Tally):
                return answer
            left = ends_at - time.monotonic()
            if left <= longest:
                break
            if turn < VOTES_MAX - 1:
                time.sleep(random.uniform(0.0, longest))
            longest = min(AGAIN_MAX, longest * 2)
        raise StoreUnavailable(
            f"the votes for {command.name.key!r} are split: no {self._panel.quorum} of {len(self._panel.masters)} "
            "masters have the same record; what was left behind there ends with its ttl"
        )

    def _vote_once(self, command: _Voted, min_retention: float, limit: float) -> Snapshot | Conflict | Absent | Tally:
        """Hold one vote, with an incarnation of its own; a Tally where nobody could win it."""
        voted = os.urandom(12).hex()
        tally = Tally(len(self._panel.masters))
        ballot = Ballot(self._voting(command, voted), by_vote, tally, needs_vote=not isinstance(command, Extend))
        with self._panel.session(limit) as session:
            if session.ask([ballot])[0] is Vote.WON:
                if isinstance(command, Extend):
                    return shown([tally.seen[place] for place in tally.done], tally, True) or Conflict()
                return Snapshot(dict(command.fields), voted, "1.0")
            owing = self._take_back(session, command.name, voted, tally, min_retention)
        found = rival(tally)
        if found is not None:
            return found
        if owing >= tally.quorum:
            raise tally.shortage(self._where, may_be_done=True)
        if len(tally.seen) < tally.quorum:
            # what is left of it cannot become a quorum any more
            raise tally.shortage(self._where, may_be_done=False)
        return tally

    def _voting(self, command: _Voted, voted: str) -> Words:
        name, fields = command.name, flat_fields(command.fields)
        match command:
            case Create():
                return self._words(
                    name, "create", voted, inner_name(name), milliseconds(command.min_retention), *fields
                )
            case Replace():
                count, _, total = command.revision.partition(".")
                min_retention = milliseconds(command.min_retention)
                expected = (command.incarnation, count, total)
                return self._words(name, "replace", voted, inner_name(name), min_retention, *expected, *fields)
            case Extend():
                count, _, total = (command.revision or "").partition(".")
                return self._words(name, "amend", voted, _number(), command.incarnation or "", count, total, *fields)

    def _take_back(self, session: Session, name: Name, voted: str, tally: Tally, min_retention: float) -> int:
        """Take a vote back wherever it may have been cast; give on how many masters that is not certain yet.

        What is not answered stays owed: it is behind the vote on the same connection, or is sent when the master is
        reached again.
        """
        words = self._words(name, "undo", voted, inner_name(name))
        packed = session.pack(words) or b""
        owing = tally.doubtful
        for place in owing:
            master = self._panel.masters[place]
            master.owe(voted, packed, min_retention or OWED_FOR)
            session.post(place, words, master.paid(voted))

        def owed() -> list[int]:
            return [place for place in owing if self._panel.masters[place].owes(voted)]

        session.settle(lambda: not owed())
        return len(owed())

    # --- listing -------------------------------------------------------------------------------------------------

    def _list(self, command: List, limit: float) -> Listing:
        words: Words = (
            *("EVALSHA", SHA, 3, *self._keys.listing(command.space), "list"),
            *ranges(command.key, command.part_prefix),
        )
        tally = Tally(len(self._panel.masters))
        listings: dict[int, dict[bytes, Seen]] = {}
        decide = partial(self._listing, command, listings)
        ballot = Ballot(words, decide, tally, read=listed, lists=True, listings=listings)
        with self._panel.session(limit) as session:
            answer = session.ask([ballot])[0]
        if isinstance(answer, Listing):
            return answer
        raise tally.shortage(self._where, may_be_done=False)

    def _listing(
        self, command: List, listings: dict[int, dict[bytes, Seen]], tally: Tally, is_last: bool
    ) -> Listing | None:
        if len(listings) < (tally.quorum if is_last else tally.masters):
            return None
        found: dict[bytes, dict[int, Seen]] = {}
        for place, listing in listings.items():
            for inner, one in listing.items():
                if not self._panel.masters[place].owes(one.incarnation or ""):
                    found.setdefault(inner, {})[place] = one
        shown = (
            (outer_name(command.space, inner), by_list(by_place, set(listings), tally))
            for inner, by_place in found.items()
        )
        return Listing(tuple((name, one) for name, one in shown if name is not None and one is not None))

    # --- words ---------------------------------------------------------------------------------------------------

    def _words(self, name: Name, *arguments: str | bytes | int) -> Words:
        return ("EVALSHA", SHA, 3, *self._keys.of(name), *arguments)

    def _where(self, place: int) -> str:
        return self._panel.masters[place].where

    def _short(self, tally: Tally, command: _Simple) -> StoreError:
        may_be_done = not isinstance(command, Read) and bool(tally.doubtful)
        return tally.shortage(self._where, may_be_done=may_be_done)

    # --- examining -----------------------------------------------------------------------------------------------

    @property
    def behind(self) -> Mapping[Guarantee, str]:
        """One script on each master, and the count of their answers."""
        return {}

    def examine(self, scratch: Callable[[str], Name], limit: float) -> Iterator[Finding]:  # noqa: ARG002 - as the port
        """Look at every master: whether it may vote, what it forgets, whether it evicts, how its clock stands."""
        from lockstead.stores.redlock.doctor import examination

        yield self._panel.transport()
        yield from examination(self._panel, self._restart_delay, limit)

    # --- life ----------------------------------------------------------------------------------------------------

    def after_fork(self) -> None:
        """Forget every inherited connection without closing it."""
        self._panel.after_fork()

    def close(self) -> None:
        """Close every connection; those in use when they are given back."""
        self._panel.close()


def _number() -> int:
    """Return the number of a write: the same on every master, and no other write's."""
    return int.from_bytes(os.urandom(7), "big") % NUMBERS


def _nobody(_answer: object) -> None:
    """Take an answer that nobody waits for."""

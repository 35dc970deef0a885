"""The complete contract of a store: its commands, names and races, and here its times, tokens, opening and closing."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any, cast

import pytest

from lockstead.errors import StoreUnavailable
from lockstead.protocol.commands import (
    Command,
    Create,
    List,
    Read,
    Remove,
    Removed,
    Replace,
    StoreClock,
    TokenSource,
)
from lockstead.stores.port import Store
from lockstead.testing.conformance.base import APT, Perform, Suite, created, is_a, require, same_state, shows, touched
from lockstead.testing.conformance.commands import CommandsConformance
from lockstead.testing.conformance.names import NamesConformance
from lockstead.testing.conformance.pages import PagesConformance
from lockstead.testing.conformance.permits import PermitsConformance
from lockstead.testing.conformance.races import RacesConformance
from lockstead.testing.conformance.readers import ReadersConformance
from lockstead.values import Name, Space


class TimeConformance(Suite):
    """The store's times in results, and its tokens."""

    def test_the_time_of_an_answer_is_what_the_traits_say(self, store: Store, perform: Perform) -> None:
        made = created(perform, APT)
        seen = shows(perform(Read(APT)))
        if store.traits.clock in (StoreClock.NONE, StoreClock.SERVER_EXPIRES):
            require(made.updated_at is None and made.store_now is None, f"a store without a clock shows time: {made}")
            return
        for answer in (made, seen):
            updated_at, now = answer.updated_at, answer.store_now
            if updated_at is None or now is None:
                raise AssertionError(f"a store with a clock shows no time: {answer}")
            if store.traits.clock is StoreClock.ONE_CLOCK:
                require(now >= updated_at, f"on one clock the record changed after the answer: {answer}")
            else:
                error = store.traits.clock_skew_max + store.traits.clock_resolution
                require(now >= updated_at - error, f"the two clocks differ by more than the traits say: {answer}")
        require(seen.updated_at == made.updated_at, "a Read moved updated_at")

    def test_h07_updated_at_moves_with_every_write_and_never_back(self, store: Store, perform: Perform) -> None:
        if store.traits.clock in (StoreClock.NONE, StoreClock.SERVER_EXPIRES):
            return
        made = created(perform, APT)
        instants = [_updated(made)]
        ends_at = time.monotonic() + self.limit
        while instants[-1] == instants[0]:
            require(time.monotonic() < ends_at, "updated_at does not move, although nothing else but writes happen")
            instants.append(_updated(touched(perform, APT)))
        seen = shows(perform(Read(APT)))
        instants.append(_updated(shows(perform(Replace(APT, {}, seen.incarnation, seen.revision)))))
        require(instants == sorted(instants), f"updated_at went back: {instants}")

    def test_tokens_grow_with_every_grant(self, store: Store, perform: Perform, twin: Store) -> None:
        tokens: list[int | None] = []
        if store.traits.tokens is TokenSource.NATIVE:
            for turn in range(4):
                made = created(perform, APT)
                tokens.append(made.token)
                extended = touched(perform, APT)
                require(extended.token == made.token, "a token changed within an incarnation")
                if turn % 2:
                    extended = shows(perform(Replace(APT, {}, made.incarnation, extended.revision)))
                    tokens.append(extended.token)
                is_a(Removed, twin.perform(Remove(APT, extended.incarnation), self.limit))
        elif store.traits.tokens is TokenSource.DRAWN:
            companion = Name("apt", Space.COMPANION)
            tokens.append(created(perform, companion).token)
            tokens += [touched(perform, companion, {"drawn_by": str(turn)}).token for turn in range(6)]
            if store.traits.draws_by_clock:
                tokens.append(self._drawn_anew(perform, companion, tokens[-1] or 0))
        known = [token for token in tokens if token is not None]
        require(len(known) == len(tokens), f"an answer has no token: {tokens}")
        require(all(one < two for one, two in pairwise(known)), f"tokens do not grow: {tokens}")

    def _drawn_anew(self, perform: Perform, companion: Name, last: int) -> int:
        """Return the token of a companion that was removed and made anew, once the clock went on by what was drawn."""
        ends_at = time.monotonic() + self.limit
        while True:
            is_a(Removed, perform(Remove(companion, shows(perform(Read(companion))).incarnation)))
            token = created(perform, companion).token
            if token is not None and token > last:
                return token
            require(time.monotonic() < ends_at, f"a new companion begins at {token}, below {last}")


class LifeConformance(Suite):
    """Opening, closing and printing a store."""

    def test_records_outlive_the_handle_that_wrote_them(self, store: Store, twin: Store) -> None:
        made = shows(twin.perform(Create(APT, {"identity": "detached"}), self.limit))
        twin.close()
        require(same_state(shows(store.perform(Read(APT), self.limit)), made), "the record went with its handle")

    def test_a_closed_store_is_unavailable_and_may_be_closed_again(self, store: Store, twin: Store) -> None:
        store.perform(Create(APT, {}), self.limit)
        store.close()
        store.close()
        for command in (Read(APT), Create(APT, {}), List(Space.LOCK)):
            with pytest.raises(StoreUnavailable):
                store.perform(cast(Command[Any], command), self.limit)
        shows(twin.perform(Read(APT), self.limit))

    def test_h22_what_is_printed_has_no_credentials(self, store: Store) -> None:
        for text in (store.url, repr(store), str(store)):
            require("@" not in text and "password" not in text.lower(), f"credentials may show in {text!r}")


def _updated(answer: object) -> float:
    updated_at = shows(answer).updated_at
    if updated_at is None:
        raise AssertionError(f"a store with a clock shows no updated_at: {answer}")
    return updated_at


class StoreConformance(
    CommandsConformance,
    TimeConformance,
    NamesConformance,
    PagesConformance,
    PermitsConformance,
    RacesConformance,
    ReadersConformance,
    LifeConformance,
):
    """The complete contract of a store. Override the fixtures `store` and `twin`."""

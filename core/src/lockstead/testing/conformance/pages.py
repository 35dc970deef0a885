"""The contract of listings in pages. A store that answers each in one page, with no next cursor, keeps it, too."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from lockstead.errors import StoreError, StoreRefused
from lockstead.protocol.commands import Create, Extend, List, Listing, Read, Remove, Replace, Snapshot
from lockstead.stores.port import Store
from lockstead.testing.conformance.base import Perform, Suite, created, performing, require, same_state
from lockstead.values import Name, Space

PAGES_MAX: Final = 5000
"""A listing of this suite that has more pages does not end."""

LASTING: Final = [Name(f"key-{number:02}") for number in range(0, 48, 2)]
"""Keys that exist throughout a listing; `Churn` writes these and their neighbours."""


class PagesConformance(Suite):
    """The contract of listings in pages, with and without changes between the pages."""

    def test_the_pages_of_a_listing_show_every_record(self, perform: Perform) -> None:
        spaces = (Space.MEMBER, Space.AUDIT, Space.PERMIT)
        names = [
            *LASTING,
            *(Name(key, space, str(part)) for key in ("apt", "b") for space in spaces for part in range(5)),
        ]
        made = {name: created(perform, name, {"n": str(number)}) for number, name in enumerate(names)}
        for space in Space:
            expected = {name for name in names if name.space is space}
            for page in (2, len(expected) or 1, 1000):
                require_shown(list(paged(perform, List(space, page=page))), expected, made)
            of_apt = {name for name in expected if name.key == "apt"}
            require_shown(list(paged(perform, List(space, "apt", page=3))), of_apt, made)

    def test_a_page_is_about_as_large_as_asked_for(self, perform: Perform) -> None:
        for name in LASTING:
            created(perform, name)
        sizes = [len(listing.entries) for listing in paged(perform, List(Space.LOCK, page=2))]
        if len(sizes) > 1:
            require(max(sizes) <= 8, f"pages of about 2 records have {sizes}")

    def test_what_exists_throughout_is_shown_whatever_changes_between_pages(
        self, perform: Perform, twin: Store
    ) -> None:
        churn = Churn(performing(twin, self.limit), seed=1)
        for page in (1, 3, 8):
            pages = list(paged(perform, List(Space.LOCK, page=page), churn.step))
            require_shown(pages, set(LASTING))

    def test_what_exists_throughout_is_shown_beside_a_writer(self, perform: Perform, twin: Store) -> None:
        churn, ends = Churn(performing(twin, self.limit), seed=2), threading.Event()
        writer = threading.Thread(target=churn.run, args=(ends,), daemon=True)
        writer.start()
        try:
            for page in (2, 5, 7):
                require_shown(list(paged(perform, List(Space.LOCK, page=page))), set(LASTING))
        finally:
            ends.set()
            writer.join(60.0)

    def test_a_cursor_that_the_store_did_not_give_is_refused(self, perform: Perform) -> None:
        for name in LASTING:
            created(perform, name)
        if perform(List(Space.LOCK, page=2)).next_cursor is None:
            return
        for cursor in ("", "?", "\0", "é日", "\ud800", "-1", "[]", '["lock", "key-02"]', "[" * 9999, "A" * 99_999):
            try:
                answer = perform(List(Space.LOCK, page=2, cursor=cursor))
            except StoreRefused as refusal:
                require(len(str(refusal)) < 999, "the refusal of a cursor repeats it")
            else:
                pytest.fail(f"the cursor {cursor[:40]!r} is not refused, the store answered {answer!r}")


class Churn:
    """A writer that changes everything but that the keys of LASTING exist. Creates them first."""

    def __init__(self, perform: Perform, seed: int) -> None:
        self._perform = perform
        self._random = random.Random(seed)
        self._passing: dict[Name, Snapshot] = {}
        for name in LASTING:
            self._passing[Name(f"{name.key}-")] = created(perform, Name(f"{name.key}-"))
            created(perform, name)

    def step(self) -> None:
        """Replace or extend a lasting record, create or remove a few others."""
        name = self._random.choice(LASTING)
        seen = self._perform(Read(name))
        if isinstance(seen, Snapshot):
            if self._random.random() < 0.7:
                self._try(lambda: self._perform(Replace(name, {"v": "1"}, seen.incarnation, seen.revision)))
            else:
                self._try(lambda: self._perform(Extend(name, {"n": "1"}, seen.incarnation)))
        for _ in range(self._random.randint(0, 3)):
            if self._passing and self._random.random() < 0.5:
                name, made = self._passing.popitem() if self._random.random() < 0.5 else self._oldest()
                self._try(lambda: self._perform(Remove(name, made.incarnation)))  # noqa: B023 - called at once
            else:
                name = Name(f"key-{self._random.randint(-1, 48):02}{self._random.choice(['-', '+', 'x'])}")
                answer = self._try(lambda: self._perform(Create(name, {"v": "1"})))  # noqa: B023 - called at once
                if isinstance(answer, Snapshot):
                    self._passing[name] = answer

    def _oldest(self) -> tuple[Name, Snapshot]:
        name = next(iter(self._passing))
        return name, self._passing.pop(name)

    def run(self, ends: threading.Event) -> None:
        """Change on until the event is set."""
        while not ends.is_set():
            self._try(self.step)

    @staticmethod
    def _try(change: Callable[[], object]) -> object:
        try:
            return change()
        except StoreError as error:
            return error


def paged(perform: Perform, command: List, between: Callable[[], object] = lambda: None) -> Iterator[Listing]:
    """Yield the pages of a listing, and call `between` after each but the last."""
    cursors: set[str] = set()
    while True:
        listing = perform(command)
        yield listing
        cursor = listing.next_cursor
        if cursor is None:
            return
        require(cursor not in cursors, f"the listing gives the cursor {cursor!r} again")
        cursors.add(cursor)
        require(len(cursors) < PAGES_MAX, f"the listing does not end after {PAGES_MAX} pages")
        between()
        command = List(command.space, command.key, command.part_prefix, command.page, cursor)


def require_shown(pages: list[Listing], expected: set[Name], made: dict[Name, Snapshot] | None = None) -> None:
    """Require that the pages show these records; with made, no others, and as they are there."""
    shown = dict(entry for page in pages for entry in page.entries)
    require(expected <= set(shown), f"{len(pages)} pages lack {expected - set(shown)}, which were there throughout")
    if made is not None:
        require(set(shown) == expected, f"{len(pages)} pages also show {set(shown) - expected}")
        require(all(same_state(shown[name], made[name]) for name in expected), "a page shows another record")

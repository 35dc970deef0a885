"""What the pages say of times: by the store's clock, and as of the listing that they show."""

from __future__ import annotations

import asyncio

from lockstead.dashboard.board import Board, Listing
from lockstead.dashboard.filters import Filter
from lockstead.dashboard.rows import Row, row_of
from lockstead.monitor.rounds import Round
from lockstead.views import LockInfo

NOW = 1_800_000_000.0


def info(**fields: object) -> LockInfo:
    said = {"key": "apt", "holder": "me/1", "owner": "me", "incarnation": "1", "ttl": 60.0, "age": 20.0, **fields}
    return LockInfo(**said)  # type: ignore[arg-type]


def test_the_end_of_a_lease_is_by_the_stores_clock_whatever_the_writers_says() -> None:
    for off in (-5 * 3600.0, 0.0, 5 * 3600.0):
        row = row_of("store", info(expires_epoch=NOW + 40 + off), NOW)
        assert (row.left, row.until) == (40, NOW + 40)
    assert row_of("store", info(age=None, expires_epoch=NOW + 7), NOW).until == NOW + 7


def test_a_store_that_is_down_does_not_prolong_what_it_said_last() -> None:
    clock = [NOW]
    board = Board(lambda: clock[0])
    listing = Listing("store", board.changed, lambda *_: None)
    board.listings.append(listing)

    def round_at(at: float, error: str | None) -> Row:
        clock[0] = at
        listing.began(at)
        if error is None:
            listing.saw(info())
        listing.ended(Round("store", 1, at, 0.0, 1, error))
        (row,) = asyncio.run(board.view(Filter())).rows
        return row

    first = round_at(NOW, None)
    assert first.until == NOW + 40
    assert round_at(NOW + 600, "no answer") == first
    assert board.stores()[0].age == 600

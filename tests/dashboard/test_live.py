"""Live pages: one listing for all of them, none while nobody looks, and no growth while a page stays open."""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

import pytest

from lockstead.dashboard.access import Visitor
from lockstead.dashboard.describing import Details
from lockstead.dashboard.filters import Filter
from lockstead.dashboard.live import HEARTBEAT, SEND_TAKES, STREAM_LASTS, TABS_MAX, EventStream, message
from lockstead.dashboard.pages import list_events, lock_events
from lockstead.dashboard.watching import LINGER
from lockstead.monitor.rounds import Round
from lockstead.protocol.commands import List
from lockstead.views import LockInfo
from tests.dashboard.asked import Asker, Prompt, asking, in_virtual_time
from tests.runtime.faulty import Faulty

if TYPE_CHECKING:
    from lockstead import AsyncClient

EVERY = 2.0


def listings(store: Faulty) -> int:
    """Return how often the store was listed."""
    return sum(isinstance(command, List) and command.cursor is None for command in store.seen)


def events_of(text: str) -> list[str]:
    """Return the names of the events in what was sent."""
    return re.findall(r"^event: (\w+)$", text, re.MULTILINE)


class Tab:
    """An open page of a browser, as the server sees it: what it was sent, and whether it still reads."""

    def __init__(self, app: Any, path: str = "/events", query: str = "") -> None:
        self.got = ""
        self.status = 0
        self.is_reading = asyncio.Event()
        self.is_reading.set()
        self._left = asyncio.Event()
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(b"host", b"localhost")],
            "server": ("127.0.0.1", 8123),
            "scheme": "http",
        }
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, part: dict[str, Any]) -> None:
        await self.is_reading.wait()
        self.status = part.get("status", self.status)
        self.got += part.get("body", b"").decode()

    async def close(self) -> None:
        """Close the page."""
        self._left.set()
        await self.task

    async def until(self, condition: Callable[[str], object]) -> None:
        """Wait until what was sent fulfils a condition."""
        while not condition(self.got):
            assert not self.task.done(), self.got
            await asyncio.sleep(0.1)


def in_time(body: Callable[[Asker], Awaitable[None]], **given: Any) -> None:
    """Run a test with an application of one store, in virtual time."""

    async def run() -> None:
        async with asking(Prompt(), **{"every": EVERY, **given}) as asker:
            await body(asker)

    in_virtual_time(run)


# --- rounds ---------------------------------------------------------------------------------------------------------


def test_fifty_pages_cost_one_listing_in_each_round() -> None:
    async def body(asker: Asker) -> None:
        async with asker.client.lock("apt").hold():
            tabs = [Tab(asker.app, query=f"q={number % 3}") for number in range(50)]
            for tab in tabs:
                await tab.until(lambda got: "event: summary" in got)
            before = listings(asker.store)
            await asyncio.sleep(20 * EVERY)
            assert 19 <= listings(asker.store) - before <= 21
            assert all(events_of(tab.got).count("summary") >= 19 for tab in tabs)
            for tab in tabs:
                await tab.close()

    in_time(body)


def test_nobody_looks_and_the_store_is_left_alone_until_somebody_does() -> None:
    async def body(asker: Asker) -> None:
        assert listings(asker.store) == 0
        await asker.page()
        assert listings(asker.store) == 1
        await asyncio.sleep(3 * LINGER)
        told = listings(asker.store)
        assert told <= (LINGER + 2 * LINGER) / EVERY
        await asyncio.sleep(10_000)
        assert listings(asker.store) == told
        async with asker.client.lock("apt").hold():
            # what is known is old, so the page waits for a listing
            assert "apt" in await asker.page()
            assert listings(asker.store) == told + 1

    in_time(body)


def test_an_open_page_keeps_the_rounds_going_and_a_closed_one_does_not() -> None:
    async def body(asker: Asker) -> None:
        tab = Tab(asker.app)
        await asyncio.sleep(1000)
        told = listings(asker.store)
        assert told >= 1000 / EVERY - 2
        await tab.close()
        await asyncio.sleep(3 * LINGER)
        told = listings(asker.store)
        await asyncio.sleep(1000)
        assert listings(asker.store) == told

    in_time(body)


def test_with_a_history_the_store_is_listed_even_if_nobody_looks(tmp_path: Any) -> None:
    async def body(asker: Asker) -> None:
        await asker.page()
        told = listings(asker.store)
        await asyncio.sleep(1000)
        assert 1000 / EVERY - 2 <= listings(asker.store) - told <= 1000 / EVERY + 2

    in_time(body, history=tmp_path / "seen.db")


# --- what is sent ---------------------------------------------------------------------------------------------------


def test_a_page_is_sent_the_rows_that_changed_and_all_of_it_if_locks_came_or_went() -> None:
    async def body(asker: Asker) -> None:
        async with asker.client.lock("apt").hold() as lease, asker.client.lock("yum").hold():
            tab = Tab(asker.app)
            await tab.until(lambda got: "event: list" in got)
            assert "apt" in tab.got
            assert "yum" in tab.got
            tab.got = ""
            await asyncio.sleep(5 * EVERY)
            assert set(events_of(tab.got)) == {"summary"}
            lease.progress("4 of 9")
            await lease.renew()
            tab.got = ""
            await tab.until(lambda got: "event: rows" in got)
            changed = tab.got.partition("event: summary")[0]
            assert "4 of 9" in changed
            assert "yum" not in changed
            assert "event: list" not in tab.got
            async with asker.client.lock("zoo").hold():
                await tab.until(lambda got: "event: list" in got)
                assert "zoo" in tab.got
            await tab.close()

    in_time(body)


def test_a_page_of_one_lock_is_sent_what_happens_to_it() -> None:
    async def body(asker: Asker) -> None:
        tab = Tab(asker.app, "/lock-events", f"store={asker.url}&key=apt")
        await tab.until(lambda got: "Nobody holds it" in got)
        async with asker.client.lock("apt", owner="ci-7").hold():
            await tab.until(lambda got: "ci-7" in got)
        tab.got = ""
        await tab.until(lambda got: "released" in got)
        await tab.close()

    in_time(body)


def test_a_filtered_page_is_sent_what_the_filter_admits() -> None:
    async def body(asker: Asker) -> None:
        async with asker.client.lock("apt").hold(), asker.client.lock("yum").hold():
            tab = Tab(asker.app, query="q=apt")
            await tab.until(lambda got: "event: list" in got)
            assert "key=apt" in tab.got
            assert "key=yum" not in tab.got
            await tab.close()

    in_time(body)


def test_hostile_text_ends_no_event() -> None:
    sent = message("list", "a\rb\r\n\ndata: c\n\nevent: evil\ndata: d")
    lines = sent.split("\n")
    assert lines[0] == "event: list"
    assert all(line.startswith("data: ") for line in lines[1:-2])
    assert lines[-2:] == ["", ""]
    assert "\r" not in sent


# --- tabs that do not read, are gone, or stay ---------------------------------------------------------------------


def test_a_page_that_does_not_read_is_dropped_and_holds_up_no_other() -> None:
    async def body(asker: Asker) -> None:
        slow, quick = Tab(asker.app), Tab(asker.app)
        await slow.until(lambda got: "event: list" in got)
        slow.is_reading.clear()
        quick.got = ""
        await asyncio.sleep(SEND_TAKES + 2 * EVERY)
        assert slow.task.done()
        assert events_of(quick.got).count("summary") >= SEND_TAKES / EVERY
        assert asker.dash.tabs == 1
        await quick.close()
        assert asker.dash.tabs == 0

    in_time(body)


def test_a_page_that_was_slow_is_sent_the_present_and_not_what_it_missed() -> None:
    async def body(asker: Asker) -> None:
        async with asker.client.lock("apt").hold() as lease:
            tab = Tab(asker.app)
            await tab.until(lambda got: "event: list" in got)
            tab.is_reading.clear()
            for number in range(7):
                lease.progress(f"step {number}")
                await lease.renew()
                await asyncio.sleep(EVERY)
            tab.got = ""
            tab.is_reading.set()
            await tab.until(lambda got: "step 6" in got)
            assert len(events_of(tab.got)) <= 5
            assert "step 4" not in tab.got
            await tab.close()

    in_time(body)


def test_a_quiet_stream_is_told_that_somebody_is_there_and_ends_when_the_page_is_gone() -> None:
    async def body() -> None:
        never = asyncio.Event()

        async def nothing() -> Any:
            await never.wait()
            yield ""

        sent: list[bytes] = []
        gone = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(part: Any) -> None:
            sent.append(part.get("body", b""))

        task = asyncio.ensure_future(EventStream(nothing())({"type": "http"}, receive, send))
        await asyncio.sleep(3.5 * HEARTBEAT)
        assert sent == [b"", *[b": still here\n\n"] * 3]
        gone.set()
        await asyncio.wait_for(task, 1)

    in_virtual_time(body)


def test_a_page_that_stays_open_for_an_hour_costs_no_growth() -> None:
    """The browser connects again after an hour, so that it is asked again who it is."""

    async def body(asker: Asker) -> None:
        async with asker.client.lock("apt", ttl="2h").hold() as lease:
            tab = Tab(asker.app)
            await tab.until(lambda got: "event: list" in got)
            counted = []
            for minute in range(0, 56, 4):
                lease.progress(f"{minute} of 56")
                await lease.renew()
                await asyncio.sleep(240)
                tab.got = ""
                asker.store.seen.clear()
                gc.collect()
                counted.append(len(gc.get_objects()))
            # of 24 rounds between two counts, each would leave an object at least
            assert min(counted[8:]) - min(counted[2:8]) < 100
            assert not tab.task.done()
            await asyncio.sleep(STREAM_LASTS - 56 * 60 + 20)
            assert tab.task.done()
            assert asker.dash.tabs == 0

    in_time(body, every=10.0)


def test_there_are_at_most_so_many_open_pages() -> None:
    async def body(asker: Asker) -> None:
        tabs = [Tab(asker.app) for _ in range(TABS_MAX)]
        for tab in tabs:
            await tab.until(lambda got: got)
        one_more = Tab(asker.app)
        await one_more.task
        assert one_more.status == 503
        await tabs[0].close()
        again = Tab(asker.app)
        await again.until(lambda got: "event: list" in got)
        for tab in (*tabs[1:], again):
            await tab.close()

    in_time(body)


def test_a_stop_ends_the_streams() -> None:
    async def body(asker: Asker) -> None:
        tabs = [Tab(asker.app), Tab(asker.app, "/lock-events", f"store={asker.url}&key=apt")]
        for tab in tabs:
            await tab.until(lambda got: got)
        asker.dash.board.close()
        # no limit: a page of one lock reads the history in a thread, for which time in this loop does not wait
        await asyncio.gather(*(tab.task for tab in tabs))

    in_time(body)


# --- failures -------------------------------------------------------------------------------------------------------


class Broken:
    """A watcher with a bug."""

    def began(self, at: float) -> None:
        raise RuntimeError("a bug")

    def saw(self, info: LockInfo) -> None: ...

    def ended(self, done: Round) -> None: ...


def test_a_round_that_fails_in_a_way_nobody_expects_is_shown_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def body(asker: Asker) -> None:
        (watch,) = asker.dash.watches.values()
        watch.watchers.append(Broken())
        tab = Tab(asker.app)
        await tab.until(lambda got: "internal error: RuntimeError" in got)
        watch.watchers.pop()
        async with asker.client.lock("apt").hold():
            await tab.until(lambda got: "key=apt" in got)
        await tab.close()

    in_time(body)
    assert [record.exc_info is not None for record in caplog.records if "rounds of" in record.message] == [True]


def test_the_pages_of_one_lock_ask_the_store_together() -> None:
    async def body(asker: Asker) -> None:
        visitor = Visitor(may_read=True)
        (listing,) = asker.dash.board.listings
        await asker.page()
        pages = [lock_events(asker.dash, listing, "apt", visitor) for _ in range(20)]
        before = len(asker.store.seen)
        await asyncio.gather(*(anext(page) for page in pages))
        asked = asker.store.seen[before:]
        assert len(asked) <= 2  # the audit, and perhaps a round
        for page in pages:
            await page.aclose()

    in_time(body)


@pytest.mark.parametrize("query", ["", "q=a", "state=held&owner=b"])
def test_a_view_is_rendered_once_for_all_pages(query: str) -> None:
    async def body(asker: Asker) -> None:
        await asker.page()
        wanted = Filter.parse(dict(part.split("=") for part in query.split("&") if part))
        again = Filter.parse(dict(_pairs(wanted.query)))
        assert await asker.dash.rendered(wanted) is await asker.dash.rendered(again)
        page = list_events(asker.dash, wanted)
        await anext(page)
        assert len(asker.dash._rendered) <= 2
        await page.aclose()

    in_time(body)


def _pairs(query: str) -> Iterable[tuple[str, str]]:
    return [(part.split("=")[0], part.split("=")[1]) for part in query.split("&") if part]


def test_a_page_is_shown_while_more_locks_are_asked_for_than_answers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstead.dashboard.describing.KEPT_MAX", 2)

    class Silent:
        async def history(self, _key: str) -> None:
            await asyncio.Event().wait()

    async def body() -> None:
        details, client = Details(), cast("AsyncClient", Silent())
        said = await asyncio.gather(*(details.of("s", client, f"job-{number}") for number in range(4)))
        assert [one.problem for one in said] == ["the store does not answer"] * 4

    in_virtual_time(body)

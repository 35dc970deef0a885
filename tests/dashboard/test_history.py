"""What two listings tell of the time between them, and the file that keeps it."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstead.dashboard import create_app
from lockstead.dashboard.changes import LONG, TEXT_MAX, Event, Seen, changes, unwatched
from lockstead.dashboard.describing import timeline
from lockstead.dashboard.history import History
from lockstead.dashboard.rows import row_of
from lockstead.views import AuditEntry, LockInfo, Permits
from tests.dashboard.asked import Asker, asking
from tests.runtime.faulty import Faulty

HELD = LockInfo(
    key="apt",
    holder="ci/7/aa",
    owner="ci/7",
    incarnation="1",
    ttl=60.0,
    age=1.0,
    acquired_epoch=1000.5,
    expires_epoch=1060.5,
    token=7,
)


def between(was: LockInfo | None, now: LockInfo | None, *, took: float = 2.0) -> list[tuple[str, str]]:
    """Return what happened to a lock between two listings, 1000 and 1002, and the holders."""
    return [(event.what, event.holder) for event in events(was, now, took=took)]


def events(was: LockInfo | None, now: LockInfo | None, *, took: float = 2.0) -> list[Event]:
    before, after = ({} if one is None else {one.key: one} for one in (was, now))
    return list(changes(Seen(1000.0, before), Seen(1000.0 + took, after)))


# --- two listings ---------------------------------------------------------------------------------------------------


def test_nothing_happened_if_a_lease_was_only_renewed() -> None:
    later = replace(HELD, age=0.0, expires_epoch=1070.0, progress="3 of 5")
    assert between(HELD, later) == []


def test_a_grant_is_told_with_the_time_that_the_holder_says() -> None:
    (event,) = events(None, HELD)
    assert (event.what, event.at, event.owner, event.token) == ("granted", 1000.5, "ci/7", 7)
    # its clock may be wrong
    (event,) = events(None, replace(HELD, acquired_epoch=5.0))
    assert event.at == 1002.0


def test_a_lock_that_went_was_released_or_lost() -> None:
    assert between(HELD, None) == [("released", "ci/7/aa")]
    assert between(replace(HELD, is_expired=True), None) == [("lost", "ci/7/aa")]
    assert between(replace(HELD, expires_epoch=999.0), None) == [("lost", "ci/7/aa")]
    assert between(replace(HELD, revoked_by="anna"), None) == [("lost", "ci/7/aa")]


def test_a_lock_that_passed_on_was_left_by_one_and_granted_to_the_other() -> None:
    next_one = replace(HELD, holder="ci/8/bb", owner="ci/8", incarnation="2")
    assert between(HELD, next_one) == [("released", "ci/7/aa"), ("granted", "ci/8/bb")]
    assert between(replace(HELD, is_expired=True), next_one) == [("lost", "ci/7/aa"), ("granted", "ci/8/bb")]


def test_the_same_owner_again_is_another_lease() -> None:
    assert between(HELD, replace(HELD, holder="ci/7/cc")) == [("released", "ci/7/aa"), ("granted", "ci/7/cc")]


def test_what_happens_to_a_lease_is_told_once() -> None:
    revoked = replace(HELD, revoked_by="anna", revoke_reason="it hangs")
    assert [event.text for event in events(HELD, revoked)] == ["by anna: it hangs"]
    assert between(revoked, revoked) == []
    expired = replace(HELD, is_expired=True)
    assert between(HELD, expired) == [("expired", "ci/7/aa")]
    assert between(expired, expired) == []
    late = replace(HELD, alert_epoch=1001.0)
    assert [(event.what, event.at) for event in events(late, late)] == [("overdue", 1001.0)]
    assert between(replace(HELD, alert_epoch=999.0), replace(HELD, alert_epoch=999.0)) == []


def test_a_record_that_cannot_be_read_any_more_is_told() -> None:
    damaged = LockInfo(key="apt", holder="", owner="", incarnation="2", decode_error="it has no version")
    assert [what for what, _ in between(None, damaged)] == ["unreadable"]
    assert between(damaged, damaged) == []


def test_readers_and_permits_come_and_go_one_by_one() -> None:
    one, two = (replace(HELD, holder=f"r/{n}", incarnation=str(n), registration=str(n)) for n in (1, 2))
    shared = replace(HELD, mode="shared", readers=(one,))
    assert between(shared, replace(shared, readers=(one, two))) == [("granted", "r/2")]
    assert between(replace(shared, readers=(one, two)), replace(shared, readers=(two,))) == [("released", "r/1")]
    assert {event.part for event in events(None, shared)} == {"reader"}
    slots = [replace(one, mode=f"permit/{n}", holder=f"p/{n}", registration=None) for n in (0, 1)]
    some, more = (
        LockInfo(key="apt", holder="", owner="", incarnation="", permits=Permits("apt", 3, tuple(held)))
        for held in (slots[:1], slots)
    )
    assert [(event.what, event.part) for event in events(some, more)] == [("granted", "permit 1")]


def test_after_a_long_time_without_a_look_no_event_pretends_to_know_when() -> None:
    (event,) = events(HELD, None, took=LONG + 1)
    assert "some time after" in event.text


def test_the_first_listing_tells_what_was_granted_since_the_last_one_of_before() -> None:
    told = list(unwatched(1000.0, Seen(2000.0, {"apt": HELD, "old": replace(HELD, key="old", acquired_epoch=900.0)})))
    assert [(event.what, event.key) for event in told] == [("unwatched", ""), ("granted", "apt")]


def test_texts_are_bounded() -> None:
    long = replace(HELD, owner="x" * 5000, purpose="y" * 5000)
    (event,) = events(None, long)
    assert max(len(event.owner), len(event.text)) <= TEXT_MAX


# --- the timeline ---------------------------------------------------------------------------------------------------


def test_the_timeline_has_a_break_once_and_the_newest_first() -> None:
    entry = AuditEntry("apt", 1001.0, "anna", "it hangs", "revoked", "ci/7/aa", "ci/7", "1", 7)
    seen = [Event(1002.0, "apt", "revoked", "ci/7", "ci/7/aa"), Event(1000.5, "apt", "granted", "ci/7", "ci/7/aa")]
    told = timeline(row_of("s", HELD, 1002.0), seen, [entry])
    assert [(event.what, event.at) for event in told] == [("revoked", 1001.0), ("granted", 1000.5)]
    assert told[0].text == "by anna: it hangs"


def test_the_grant_of_a_holder_is_shown_even_if_nobody_watched() -> None:
    assert [event.what for event in timeline(row_of("s", HELD, 1002.0), [], [])] == ["granted"]


# --- the file -------------------------------------------------------------------------------------------------------


def event_of(number: int, key: str = "apt") -> Event:
    return Event(float(number), key, "granted", "ci", f"ci/{number}", 2**70 + number)


def test_what_was_seen_is_there_after_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "seen.db")
    history = History(path)
    history.add("s", 1000.0, [event_of(1), event_of(2, "yum")])
    history.close()
    again = History(path)
    assert again.of("s", "apt") == [event_of(1)]
    assert again.watched_until("s") == 1000.0
    assert again.watched_until("other") is None
    assert again.of("other", "apt") == []
    again.close()


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    History(str(tmp_path / "seen.db")).close()
    assert stat.S_IMODE((tmp_path / "seen.db").stat().st_mode) == 0o600


def test_it_keeps_the_last_events_and_few_of_one_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstead.dashboard.history.OF_A_LOCK_MAX", 10)
    history = History(None, most=50)
    history.add("s", 1.0, [event_of(0, "quiet")])
    for number in range(100):  # more than the file keeps in all
        history.add("s", 2.0, [event_of(number)])
    assert [event.at for event in history.of("s", "apt")] == list(map(float, range(99, 89, -1)))
    assert len(history.of("s", "quiet")) == 1
    for number in range(60):
        history.add("s", 3.0, [event_of(number, f"key-{number}")])
    (count,) = history._database.execute("SELECT COUNT(*) FROM events").fetchone()
    assert count == 50
    assert history.of("s", "quiet") == []
    history.close()


def test_the_size_of_the_file_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "seen.db"
    history = History(str(path), most=200)
    sizes = []
    for number in range(60):
        history.add("s", 1.0, [event_of(number * 50 + each, f"key-{each}") for each in range(50)])
        sizes.append(path.stat().st_size)
    history.close()
    assert sizes[-1] <= 1.25 * sizes[10]


def test_two_dashboards_over_one_file_are_refused_in_one_line(tmp_path: Path) -> None:
    path = str(tmp_path / "seen.db")
    first = History(path)
    with pytest.raises(
        ValueError, match=r"^another dashboard uses the history '.*seen\.db': give each a file of its own$"
    ):
        History(path)
    first.add("s", 1.0, [event_of(1)])
    first.close()
    again = History(path)
    assert len(again.of("s", "apt")) == 1
    again.close()


@pytest.mark.parametrize("content", [b"not a database, but a text of some length" * 100, b"x"])
def test_another_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^'.*other' is not a dashboard's history"):
        History(str(path))
    assert path.read_bytes() == content


def test_another_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE record (a)")
    database.close()
    with pytest.raises(ValueError, match="is not a dashboard's history"):
        History(str(path))
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == [("record",)]
    database.close()


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "seen.db"
    History(str(path)).close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(ValueError, match="of a newer version of lockstead"):
        History(str(path))


@pytest.mark.parametrize("name", ["absent/seen.db", "."])
def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"^the history '.*' cannot be opened: ") as refused:
        create_app(["sqlite:///x.db"], history=tmp_path / name)
    assert "\n" not in str(refused.value)


# --- with the pages -------------------------------------------------------------------------------------------------


def test_the_history_of_a_lock_outlives_the_dashboard(tmp_path: Path) -> None:
    store = Faulty()

    async def look(body: Any) -> None:
        async with asking(Faulty(store.beside()), history=tmp_path / "seen.db") as asker:
            await asker.round()
            await body(asker)

    async def first(asker: Asker) -> None:
        lease = await asker.client.lock("apt", owner="ci-7").acquire()
        await asker.round()
        await lease.release()
        await asker.round()
        page = await asker.lock("apt")
        assert page.index("<strong>released</strong>") < page.index("<strong>granted</strong>")

    async def second(asker: Asker) -> None:
        page = await asker.lock("apt")
        told = ("<strong>unwatched</strong>", "<strong>released</strong>", "<strong>granted</strong>")
        assert sorted(told, key=page.index) == list(told)

    asyncio.run(look(first))
    asyncio.run(look(second))


def test_a_disk_that_is_full_stops_no_page(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with asking() as asker:
            history = asker.dash.recorder._history
            history._database.execute(
                f"PRAGMA max_page_count = {history._database.execute('PRAGMA page_count').fetchone()[0]}"
            )
            for number in range(40):
                async with asker.client.lock(f"job-{number}", purpose="x" * 200).hold():
                    await asker.round()
            assert "full" in asker.dash.recorder.problem
            async with asker.client.lock("apt").hold():
                await asker.round()
                assert "key=apt" in await asker.page()
                assert "apt" in await asker.lock("apt")

    asyncio.run(run())
    assert len([record for record in caplog.records if "the history is not written" in record.message]) == 1

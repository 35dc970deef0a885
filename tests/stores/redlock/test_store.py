"""Redlock on real masters: some down, stopped, restarted empty, or in conflict; and what is left behind."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import lockstead
from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.protocol.commands import (
    Absent,
    Conflict,
    Create,
    Extend,
    List,
    Read,
    Remove,
    Removed,
    Replace,
    Snapshot,
)
from lockstead.protocol.expiry import holder_deadline, record_lifetime
from lockstead.stores import url
from lockstead.stores.bootclock import boot_now
from lockstead.stores.examination import Severity
from lockstead.stores.redlock.masters import Exchange
from lockstead.stores.redlock.scripts import RIGHTS
from lockstead.stores.redlock.store import RedlockStore
from lockstead.testing.conformance.pages import paged, require_shown
from lockstead.values import Name, Space
from tests.servers.redis import RedisServer
from tests.servers.redlock import PATIENT, RedlockPlace

APT = Name("apt")
LIMIT = 20.0
ENOUGH = 60.0


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedlockPlace]:
    place = RedlockPlace(tmp_path_factory.mktemp("three"))
    yield place
    place.stop()


@pytest.fixture(scope="session")
def five(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedlockPlace]:
    place = RedlockPlace(tmp_path_factory.mktemp("five"), 5)
    yield place
    place.stop()


@pytest.fixture(autouse=True)
def all_are_well(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    for name in ("three", "five"):
        if name in request.fixturenames:
            for server in request.getfixturevalue(name).servers:
                server.resume()
                if not server.is_running:
                    server.start()


@pytest.fixture
def space() -> str:
    return "s" + uuid4().hex[:11]


@pytest.fixture
def opened(three: RedlockPlace, space: str) -> Iterator[Callable[..., RedlockStore]]:
    stores: list[RedlockStore] = []

    def open_one(options: str = PATIENT, place: RedlockPlace = three) -> RedlockStore:
        store = place.open(space, options=options)
        assert isinstance(store, RedlockStore)
        stores.append(store)
        return store

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture
def store(opened: Callable[..., RedlockStore]) -> RedlockStore:
    return opened()


def create(identity: str = "me", ttl: float = 30.0) -> Create:
    return Create(
        APT, {"v": "1", "identity": identity, "ttl": f"{ttl:g}"}, ttl, identity, record_lifetime(ttl, 0.0, 0.01)
    )


def made(store: RedlockStore, identity: str = "me", ttl: float = 30.0) -> Snapshot:
    answer = store.perform(create(identity, ttl), LIMIT)
    assert isinstance(answer, Snapshot)
    return answer


def until(condition: Callable[[], bool], otherwise: str) -> None:
    ends_at = time.monotonic() + ENOUGH
    while not condition():
        assert time.monotonic() < ends_at, otherwise
        time.sleep(0.02)


def on(server: RedisServer, *words: object) -> Any:
    with server.client() as client:
        return client.execute_command(*words)


def holders(place: RedlockPlace, space: str) -> list[str]:
    """Return the holder on each master; empty where there is no record."""
    found = (on(server, "HGET", f"{space}:lock:apt", ".identity") for server in place.servers)
    return ["" if one is None else one.decode() for one in found]


def forget(server: RedisServer, space: str) -> None:
    on(server, "DEL", f"{space}:lock:apt")


# --- one attempt ------------------------------------------------------------------------------------------------------


def test_h25_a_cycle_is_one_request_to_each_master_for_each_command(store: RedlockStore, three: RedlockPlace) -> None:
    store.perform(Read(APT), LIMIT)
    for server in three.servers:
        on(server, "CONFIG", "RESETSTAT")
    for _ in range(10):
        store.perform(Remove(APT, made(store).incarnation), LIMIT)
    store.perform(Read(APT), LIMIT)
    for server in three.servers:
        with server.client() as client:
            counted = client.info("commandstats")
        scripts = counted["cmdstat_evalsha"]["calls"]
        # the last read is answered by two; the third's may still be on its way
        assert scripts in (20, 21)


def test_a_failed_attempt_leaves_nothing_on_any_master(store: RedlockStore, three: RedlockPlace, space: str) -> None:
    made(store, "holder")
    forget(three.servers[2], space)
    assert store.perform(create("loser"), LIMIT) == Conflict()
    assert holders(three, space) == ["holder", "holder", ""]


def test_h28_what_a_master_does_late_is_taken_back_behind_it(
    opened: Callable[..., RedlockStore], three: RedlockPlace, space: str
) -> None:
    store = opened("restart_delay=0&master_limit=0.2")
    store.perform(Read(APT), LIMIT)
    for server in three.servers[1:]:
        server.pause()
    with pytest.raises(OutcomeUnknown, match="no answer in time"):
        store.perform(create("first"), LIMIT)
    assert on(three.servers[0], "EXISTS", f"{space}:lock:apt") == 0
    for server in three.servers[1:]:
        server.resume()
    until(lambda: holders(three, space) == ["", "", ""], "the late votes stand")
    second: list[Snapshot] = []

    def granted() -> bool:
        try:
            second.append(made(store, "second"))
        except StoreError:
            return False
        return True

    until(granted, "the second attempt does not get through")
    for _ in range(3):
        assert isinstance(store.perform(Extend(APT, {}, second[0].incarnation), LIMIT), Snapshot)
    until(lambda: holders(three, space) == ["second"] * 3, "a late removal of the first attempt hit the second")


def test_a_busy_process_does_not_count_a_master_as_silent(
    opened: Callable[..., RedlockStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened("restart_delay=0&master_limit=0.5")
    until(lambda: len(store._group.connections(0.5)) == 3, "not all masters can be reached")
    as_ever = Exchange._collect

    def kept_from_running(session: Exchange, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)
        else:
            as_ever(session, seconds)

    monkeypatch.setattr(Exchange, "_collect", kept_from_running)
    first = made(store)
    assert store.perform(Remove(APT, first.incarnation), LIMIT) == Removed()


def test_every_attempt_has_its_own_incarnation(store: RedlockStore) -> None:
    first = made(store)
    assert store.perform(Remove(APT, first.incarnation), LIMIT) == Removed()
    second = made(store)
    assert second.incarnation != first.incarnation
    assert store.perform(Remove(APT, first.incarnation), LIMIT) == Conflict()
    assert isinstance(store.perform(Read(APT), LIMIT), Snapshot)


def test_what_is_to_be_taken_back_is_not_taken_up_again(store: RedlockStore, three: RedlockPlace, space: str) -> None:
    first = made(store)
    for master in store._group.masters:
        master.defer_removal(first.incarnation, b"", 60.0)
    assert store.perform(Read(APT), LIMIT) == Absent()
    assert store.perform(Extend(APT, {}, first.incarnation), LIMIT) == Absent()


def test_a_missed_removal_is_repeated_when_the_master_is_back(
    opened: Callable[..., RedlockStore], three: RedlockPlace, space: str
) -> None:
    store = opened("restart_delay=0&master_limit=0.2")
    first = made(store, ttl=600.0)
    until(lambda: holders(three, space) == ["me"] * 3, "not everywhere")
    three.servers[2].pause()
    for line in store._group.masters[2].idle:
        line.close()  # so that it cannot stand behind on the old connection
    assert store.perform(Remove(APT, first.incarnation), LIMIT) == Removed()
    three.servers[2].resume()

    def is_gone() -> bool:
        store.perform(Read(APT), LIMIT)
        return holders(three, space) == [""] * 3

    until(is_gone, "it stands until its ttl is over")


def test_no_key_is_without_a_ttl(store: RedlockStore, three: RedlockPlace, space: str) -> None:
    record = made(store)
    for name in (Name("apt", Space.MEMBER, "1/a"), Name("apt", Space.AUDIT, "0-1"), Name("apt", Space.COMPANION)):
        store.perform(Create(name, {"v": "1"}), LIMIT)
    store.perform(Extend(APT, {"n": "1"}, record.incarnation), LIMIT)
    seen = store.perform(Read(APT), LIMIT)
    assert isinstance(seen, Snapshot)
    seen = store.perform(Replace(APT, {"v": "1"}, seen.incarnation, seen.revision, min_retention=30.0), LIMIT)
    assert isinstance(seen, Snapshot)
    keep_their_ttl(three, space, 8)
    store.perform(Extend(APT, {"n": "2"}, seen.incarnation, seen.revision), LIMIT)
    keep_their_ttl(three, space, 8)


def keep_their_ttl(three: RedlockPlace, space: str, keys_min: int) -> None:
    for server in three.servers:
        with server.client() as client:
            keys = list(client.scan_iter(match=f"{space}:*"))
            assert len(keys) >= keys_min
            assert [key for key in keys if client.pttl(key) <= 0] == []


def test_the_index_of_names_does_not_keep_what_has_expired(
    store: RedlockStore, three: RedlockPlace, space: str
) -> None:
    store.perform(Create(Name("long"), {"v": "1"}, min_retention=300.0), LIMIT)
    for number in range(40):
        name = Name(f"key-{number:02}")
        store.perform(Create(name, {"v": "1"}, min_retention=0.05), LIMIT)
    until(lambda: all(on(server, "EXISTS", f"{space}:lock:key-39") == 0 for server in three.servers), "still there")
    for number in range(0, 40, 2):
        store.perform(Create(Name(f"key-{number:02}"), {"v": "1"}, min_retention=30.0), LIMIT)
    assert all(on(server, "ZCARD", f"{space}:index:lock") <= 22 for server in three.servers)


def test_a_listing_shows_what_is_renewed_past_its_first_lifetime(
    store: RedlockStore, three: RedlockPlace, space: str
) -> None:
    """The index outlives each record: a writer that lists readers, or a release its members, must see all."""
    seen = made(store)
    for server in three.servers:
        with server.client() as client:
            assert client.pexpire(f"{space}:index:lock", 2_000)  # as if nothing else had been registered since
    assert isinstance(store.perform(Extend(APT, {}, seen.incarnation, lifetime=30.0), LIMIT), Snapshot)
    for server in three.servers:
        with server.client() as client:
            assert client.pttl(f"{space}:index:lock") >= client.pttl(f"{space}:lock:apt") - 1


def test_scripts_that_a_master_has_flushed_are_sent_again(store: RedlockStore, three: RedlockPlace) -> None:
    first = made(store)
    for server in three.servers:
        on(server, "SCRIPT", "FLUSH")
    assert isinstance(store.perform(Extend(APT, {}, first.incarnation), LIMIT), Snapshot)
    assert store.perform(Remove(APT, first.incarnation), LIMIT) == Removed()


# --- votes ------------------------------------------------------------------------------------------------------------


def test_contenders_who_split_the_votes_come_through(
    opened: Callable[..., RedlockStore], five: RedlockPlace, space: str
) -> None:
    stores = [opened(PATIENT, five) for _ in range(4)]
    for turn in range(25):
        begun = threading.Barrier(len(stores))
        answers: list[object] = []

        def contend(store: RedlockStore, begun: threading.Barrier, answers: list[object]) -> None:
            begun.wait(ENOUGH)
            try:
                answers.append(store.perform(create(), LIMIT))
            except StoreError as error:
                answers.append(error)

        threads = [threading.Thread(target=contend, args=(one, begun, answers)) for one in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(ENOUGH)
        won = [answer for answer in answers if isinstance(answer, Snapshot)]
        assert len(won) == 1, f"turn {turn}: {answers}"
        assert stores[0].perform(Remove(APT, won[0].incarnation), LIMIT) == Removed()
    until(lambda: five.left(space) == [], "something was left behind")


def test_minority_leftovers_hold_no_lock_and_are_polled_slowly(
    opened: Callable[..., RedlockStore], three: RedlockPlace, space: str
) -> None:
    store = opened()
    names = ("one", "two")
    for number, name in enumerate(names):
        made(store, name, ttl=4.0)
        for server in three.servers:
            if server is not three.servers[number]:
                forget(server, space)
        if number == 0:
            kept = on(three.servers[0], "DUMP", f"{space}:lock:apt")
            forget(three.servers[0], space)
    on(three.servers[0], "RESTORE", f"{space}:lock:apt", 4000, kept)
    assert holders(three, space) == ["one", "two", ""]
    assert store.perform(Read(APT), LIMIT) == Absent()
    for server in three.servers:
        on(server, "CONFIG", "RESETSTAT")
    with pytest.raises(StoreUnavailable, match="split"):
        store.perform(create("three"), LIMIT)
    with three.servers[0].client() as client:
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] <= 40
    # the votes of the dead end with their ttl, and a waiter is through
    with lockstead.Client(store) as client:
        lease = client.lock("apt", ttl=30).acquire(timeout=ENOUGH)
        assert holders(three, space).count(lease.holder) >= 2
        lease.release()


def test_a_take_over_that_is_lost_puts_back_what_was_there(
    store: RedlockStore, three: RedlockPlace, space: str
) -> None:
    ended = made(store, "ended")
    # on one master it has moved, on another it is gone: a vote for what was read cannot win
    on(three.servers[1], "HSET", f"{space}:lock:apt", "n", "7")
    on(three.servers[2], "HSET", f"{space}:lock:apt", "n", "7")
    before = on(three.servers[0], "HGETALL", f"{space}:lock:apt")
    command = Replace(APT, {"v": "1", "identity": "next"}, ended.incarnation, ended.revision, min_retention=30.0)
    assert store.perform(command, LIMIT) == Conflict()
    assert on(three.servers[0], "HGETALL", f"{space}:lock:apt") == before
    assert on(three.servers[0], "PTTL", f"{space}:lock:apt") > 0


# --- masters that are away --------------------------------------------------------------------------------------------


def test_with_one_master_down_everything_works(
    opened: Callable[..., RedlockStore], three: RedlockPlace, space: str
) -> None:
    store = opened()
    three.servers[1].kill()
    first = made(store)
    extended = store.perform(Extend(APT, {"n": "1"}, first.incarnation), LIMIT)
    assert isinstance(extended, Snapshot)
    seen = store.perform(Read(APT), LIMIT)
    assert isinstance(seen, Snapshot)
    assert (seen.revision, dict(seen.fields)) == (extended.revision, dict(extended.fields))
    assert [name for name, _ in store.perform(List(Space.LOCK), LIMIT).entries] == [APT]
    assert store.perform(create("other"), LIMIT) == Conflict()
    assert store.perform(Remove(APT, first.incarnation), LIMIT) == Removed()


def test_masters_whose_pages_end_at_different_names_hide_no_lock(
    opened: Callable[..., RedlockStore], three: RedlockPlace, space: str
) -> None:
    store = opened()
    names = [Name(f"key-{number:02}") for number in range(24)]
    for name in names:
        assert isinstance(store.perform(Create(name, {"v": "1"}, 60.0, "", 66.0), LIMIT), Snapshot)
    # each lock is still on two masters; the first has few of the first half, the second few of the other
    for number, name in enumerate(names):
        lacking = number // 12 if number % 4 else 2
        assert on(three.servers[lacking], "DEL", f"{space}:lock:{name.key}") == 1
    for page in (1, 2, 5, 11):
        perform = partial(store.perform, limit=LIMIT)
        require_shown(list(paged(perform, List(Space.LOCK, page=page))), set(names))


def test_with_two_of_five_down_everything_works(opened: Callable[..., RedlockStore], five: RedlockPlace) -> None:
    store = opened(PATIENT, five)
    for server in five.servers[:2]:
        server.kill()
    first = made(store)
    assert isinstance(store.perform(Extend(APT, {}, first.incarnation), LIMIT), Snapshot)
    assert store.perform(create("other"), LIMIT) == Conflict()
    assert store.perform(Remove(APT, first.incarnation), LIMIT) == Removed()


def test_a_waiter_acquires_when_the_majority_is_back(
    opened: Callable[..., RedlockStore], three: RedlockPlace, space: str
) -> None:
    store = opened()
    for server in three.servers[1:]:
        server.kill()
    for command in (create(), Read(APT), List(Space.LOCK)):
        with pytest.raises(StoreUnavailable, match="1 of 3 masters answered, 2 are needed"):
            store.perform(command, LIMIT)  # type: ignore[arg-type]  # commands of several kinds
    assert on(three.servers[0], "EXISTS", f"{space}:lock:apt") == 0
    with lockstead.Client(store) as client:
        taken: list[str] = []

        def take() -> None:
            lease = client.lock("apt", ttl=30).acquire(timeout=ENOUGH)
            taken.append(lease.holder)
            lease.release()

        waiter = threading.Thread(target=take)
        waiter.start()
        time.sleep(0.5)
        assert not taken
        three.servers[1].start()
        waiter.join(ENOUGH)
        assert taken


def test_with_a_majority_silent_a_grant_is_unknown_and_bounded(
    opened: Callable[..., RedlockStore], three: RedlockPlace
) -> None:
    store = opened("restart_delay=0&master_limit=0.2")
    store.perform(Read(APT), LIMIT)
    for server in three.servers[1:]:
        server.pause()
    began_at = time.monotonic()
    with pytest.raises(OutcomeUnknown):
        store.perform(create(), LIMIT)
    assert time.monotonic() - began_at < LIMIT / 2


def test_a_silent_master_is_waited_for_only_once(
    opened: Callable[..., RedlockStore], three: RedlockPlace, space: str
) -> None:
    store = opened("restart_delay=0&master_limit=2")
    made(store)
    forget(three.servers[1], space)
    three.servers[2].pause()
    # one master has it and one has not: only the third could tell
    began_at = time.monotonic()
    with pytest.raises(StoreUnavailable, match="no answer in time"):
        store.perform(Read(APT), LIMIT)
    assert time.monotonic() - began_at >= 1.9
    began_at = time.monotonic()
    for _ in range(20):
        with pytest.raises(StoreUnavailable):
            store.perform(Read(APT), LIMIT)
    assert time.monotonic() - began_at < 20.0, "every request waited for the silent master"
    three.servers[2].resume()

    def is_heard() -> bool:
        try:
            return isinstance(store.perform(Read(APT), LIMIT), Snapshot)
        except StoreUnavailable:
            return False

    until(is_heard, "a master that answers again is not heard")


# --- masters that forget ----------------------------------------------------------------------------------------------


def overlap(three: RedlockPlace, space: str, holder: RedlockStore, contender: RedlockStore, ttl: float) -> float:
    """Return how long before the first holder's deadline a second one was granted; negative if it was after it."""

    def voted() -> bool:
        try:
            return isinstance(holder.perform(create("probe", ttl), LIMIT), Snapshot)
        except StoreUnavailable:
            return False

    until(voted, "the masters do not grow old enough to vote")
    seen = holder.perform(Read(APT), LIMIT)
    assert isinstance(seen, Snapshot)
    holder.perform(Remove(APT, seen.incarnation), LIMIT)
    three.servers[2].kill()
    sent_at = 0.0

    def is_made() -> bool:
        nonlocal sent_at
        sent_at = boot_now()
        try:
            return bool(made(holder, "first", ttl))
        except StoreUnavailable:  # one of the two is not old enough yet
            return False

    until(is_made, "the masters that are left do not grow old enough to vote")
    deadline = holder_deadline(sent_at, ttl, 0.01)
    three.servers[1].kill()
    # the one that had the record comes back empty, and the one that was away all the time is back, too
    three.servers[1].start()
    three.servers[2].start()
    granted_at = 0.0

    def granted() -> bool:
        nonlocal granted_at
        try:
            answer = contender.perform(create("second", ttl), LIMIT)
        except StoreUnavailable:
            return False
        granted_at = boot_now()
        return isinstance(answer, Snapshot)

    until(granted, "the contender is never granted")
    return deadline - granted_at


def test_h21_an_empty_master_abstains_while_leases_may_live(
    opened: Callable[..., RedlockStore], three: RedlockPlace, space: str
) -> None:
    delay = "restart_delay=4&master_limit=5"
    assert overlap(three, space, opened(delay), opened(delay), ttl=3.9) < 0


def test_h21_without_the_restart_delay_two_hold_one_lock(
    opened: Callable[..., RedlockStore], three: RedlockPlace, space: str
) -> None:
    assert overlap(three, space, opened(), opened(), ttl=300.0) > 0


def test_a_ttl_that_does_not_fit_the_restart_delay_is_refused(opened: Callable[..., RedlockStore]) -> None:
    with pytest.raises(StoreRefused, match="outlives restart_delay"):
        opened("restart_delay=10").perform(create(ttl=10.0), LIMIT)


def test_another_server_at_the_address_counts_as_a_restart(
    opened: Callable[..., RedlockStore], three: RedlockPlace
) -> None:
    # as old as the hills: only the run id tells that it is another one
    master = opened("restart_delay=0.001")._group.masters[0]
    first = master.dial()
    assert first is not None
    master.restart_delay = 0.5
    until(lambda: master.may_vote_at(first) <= boot_now(), "it does not grow old enough")
    master.run_id = "of the server that was here before"
    found_at = boot_now()
    second = master.dial()
    assert second is not None
    assert master.may_vote_at(second) >= found_at + 0.5
    first.close()
    second.close()


def test_masters_may_restart_empty_in_turn_during_a_lease(
    opened: Callable[..., RedlockStore], three: RedlockPlace, space: str
) -> None:
    store = opened()
    lease = made(store, ttl=300.0)
    for turn, server in enumerate(three.servers):
        server.kill()
        server.start()

        def is_whole() -> bool:
            assert isinstance(store.perform(Extend(APT, {"turn": str(turn)}, lease.incarnation), LIMIT), Snapshot)  # noqa: B023
            return holders(three, space) == ["me"] * 3

        until(is_whole, "a master that came back empty got no copy")
    seen = store.perform(Read(APT), LIMIT)
    assert isinstance(seen, Snapshot)
    assert (seen.incarnation, seen.fields["turn"]) == (lease.incarnation, "2")
    assert store.perform(Remove(APT, lease.incarnation), LIMIT) == Removed()
    until(lambda: three.left(space) == [], "a copy was left behind")


def test_h10_a_renewal_never_brings_a_removed_record_back(store: RedlockStore, three: RedlockPlace, space: str) -> None:
    lease = made(store)
    store.perform(Remove(APT, lease.incarnation), LIMIT)
    until(lambda: holders(three, space) == [""] * 3, "not removed")
    assert store.perform(Extend(APT, {}, lease.incarnation), LIMIT) == Absent()
    assert holders(three, space) == [""] * 3


def test_a_record_on_a_minority_is_lost_for_its_holder(store: RedlockStore, three: RedlockPlace, space: str) -> None:
    lease = made(store)
    until(lambda: holders(three, space) == ["me"] * 3, "not everywhere")
    for server in three.servers[:2]:
        forget(server, space)
    assert store.perform(Extend(APT, {}, lease.incarnation), LIMIT) == Absent()
    assert holders(three, space) == ["", "", "me"]


# --- masters that disagree --------------------------------------------------------------------------------------------


def test_h12_a_revocation_by_majority_is_seen_by_every_majority(
    opened: Callable[..., RedlockStore], three: RedlockPlace, space: str
) -> None:
    for missing in range(3):
        store = opened()
        lease = made(store)
        until(lambda: holders(three, space) == ["me"] * 3, "not everywhere")
        server = three.servers[missing]
        before = on(server, "DUMP", f"{space}:lock:apt")
        store.perform(Extend(APT, {"revoked": "by somebody"}, lease.incarnation), LIMIT)
        until(lambda: all(holders(three, space)), "not everywhere")
        on(server, "RESTORE", f"{space}:lock:apt", 30000, before, "REPLACE")  # as if it had missed the write
        three.servers[(missing + 1) % 3].kill()
        renewed = store.perform(Extend(APT, {"n": "1"}, lease.incarnation), LIMIT)
        assert isinstance(renewed, Snapshot)
        assert renewed.fields["revoked"] == "by somebody"
        until(
            lambda: on(server, "HGET", f"{space}:lock:apt", ".revoked") == b"by somebody",  # noqa: B023
            "who lags is not brought up",
        )
        store.perform(Remove(APT, lease.incarnation), LIMIT)
        three.servers[(missing + 1) % 3].start()


def test_a_read_repairs_lagging_masters_without_renewing(store: RedlockStore, three: RedlockPlace, space: str) -> None:
    lease = made(store)
    server = three.servers[0]
    until(lambda: holders(three, space) == ["me"] * 3, "not everywhere")
    before = on(server, "DUMP", f"{space}:lock:apt")
    store.perform(Extend(APT, {"n": "1"}, lease.incarnation), LIMIT)
    until(lambda: on(server, "HGET", f"{space}:lock:apt", ".n") == b"1", "not everywhere")
    on(server, "RESTORE", f"{space}:lock:apt", 9000, before, "REPLACE")

    def is_brought_up() -> bool:
        seen = store.perform(Read(APT), LIMIT)
        assert isinstance(seen, Snapshot)
        assert seen.fields["n"] == "1"
        return bool(on(server, "HGET", f"{space}:lock:apt", ".n") == b"1")

    until(is_brought_up, "who lags is not brought up")
    assert on(server, "PTTL", f"{space}:lock:apt") <= 9000


# --- masters that cannot be used --------------------------------------------------------------------------------------


HEAD = ("i", "ab", "n", "1", "x", "0", "s", "30000")
HOSTILE: dict[str, tuple[object, ...]] = {
    "another type": ("SET", "{rec}", "x"),
    "no head": ("HSET", "{rec}", ".v", "1", ".identity", "x", ".ttl", "60"),
    "half a head": ("HSET", "{rec}", "i", "ab", "n", "1"),
    "a count that is not a number": ("HSET", "{rec}", *HEAD, "n", "nan"),
    "a count of thousands of digits": ("HSET", "{rec}", *HEAD, "n", "9" * 5000),
    "an incarnation that is not text": ("HSET", "{rec}", *HEAD, "i", b"\xff"),
    "a life that is not a number": ("HSET", "{rec}", *HEAD, "s", ""),
    "a field that is not text": ("HSET", "{rec}", *HEAD, ".v", "1", ".owner", b"\xff"),
    "a giant": ("HSET", "{rec}", *HEAD, ".v", "1", ".identity", "x", ".ttl", "60", ".purpose", "y" * 3_000_000),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("differs", [False, True], ids=["alike everywhere", "not alike"])
def test_h24_a_row_without_a_record_is_shown_and_can_be_removed(
    kind: str, differs: bool, opened: Callable[..., RedlockStore], three: RedlockPlace, space: str
) -> None:
    store = opened()
    with lockstead.Client(store) as client:
        yum = client.lock("yum", ttl=60).acquire(timeout=LIMIT)
        for at, server in enumerate(three.servers):
            words = HOSTILE["no head" if differs and at == 0 else kind]
            on(server, *(f"{space}:lock:apt" if word == "{rec}" else word for word in words))
            on(server, "ZADD", f"{space}:index:lock", 0, "apt", 0, b"\xff")
        apt = client.lock("apt", ttl=60)
        for ask in (apt.inspect, apt.try_acquire, lambda: apt.break_lease(reason="it is damaged")):
            with pytest.raises(StoreRefused, match=r"damaged|not written by lockstead") as refused:
                ask()
            assert "\n" not in str(refused.value)
            assert len(str(refused.value)) < 300
        shown = {one.key: one for one in client.list()}
        assert set(shown) == {"apt", "yum"}
        assert shown["yum"].decode_error is None
        assert shown["apt"].decode_error is not None
        done = apt.break_lease(reason="it is damaged", now=True)
        assert done is not None
        assert done.removed
        assert apt.acquire(timeout=LIMIT).release()
        assert yum.release()


def test_h24_an_invalid_index_prevents_grants_and_leaves_nothing(
    store: RedlockStore, three: RedlockPlace, space: str
) -> None:
    for server in three.servers:
        on(server, "SET", f"{space}:index:lock", "x")
    with pytest.raises(StoreRefused, match="another program keeps something under our key"):
        made(store)
    assert holders(three, space) == ["", "", ""]


def test_out_of_memory_counts_as_down_and_says_so(opened: Callable[..., RedlockStore], three: RedlockPlace) -> None:
    store = opened()
    on(three.servers[0], "CONFIG", "SET", "maxmemory", "1")
    try:
        store.perform(Remove(APT, made(store).incarnation), LIMIT)
        on(three.servers[1], "CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(StoreUnavailable, match="out of memory"):
            store.perform(create(), LIMIT)
    finally:
        for server in three.servers[:2]:
            on(server, "CONFIG", "SET", "maxmemory", "0")
    store.perform(Remove(APT, made(store).incarnation), LIMIT)


def test_one_server_under_two_names_is_refused(three: RedlockPlace, space: str) -> None:
    ports = list(three.ports)
    store = url.open_store(f"redlock://127.0.0.1:{ports[0]},localhost:{ports[0]},127.0.0.1:{ports[1]}?restart_delay=0")

    def connections() -> int:
        with three.servers[0].client() as client:
            return int(client.info("clients")["connected_clients"])

    before = connections()
    for _ in range(5):
        with pytest.raises(StoreRefused, match="are the same server"):
            store.perform(Read(APT), LIMIT)
    store.close()
    until(lambda: connections() <= before, "connections to it were left open")


def test_replicas_are_no_masters(opened: Callable[..., RedlockStore], three: RedlockPlace) -> None:
    on(three.servers[2], "REPLICAOF", "127.0.0.1", str(three.ports[0]))
    on(three.servers[1], "REPLICAOF", "127.0.0.1", str(three.ports[0]))
    try:
        with pytest.raises(StoreUnavailable, match="is a replica and not a master"):
            opened().perform(create(), LIMIT)
    finally:
        for server in three.servers[1:]:
            on(server, "REPLICAOF", "NO", "ONE")


def test_h22_a_wrong_password_is_refused_and_not_shown(three: RedlockPlace, space: str) -> None:
    for server in three.servers:
        on(server, "ACL", "SETUSER", "somebody", "on", ">right", "~*", "+@all")
    hosts = ",".join(f"127.0.0.1:{port}" for port in three.ports)
    store = url.open_store(f"redlock://somebody:wr%6Fng@{hosts}?restart_delay=0")
    with pytest.raises(StoreRefused, match="does not accept user and password") as refused:
        store.perform(Read(APT), LIMIT)
    assert "wrong" not in f"{refused.value} {store!r} {store.url}"
    store.close()
    store = url.open_store(f"redlock://somebody:right@{hosts}?restart_delay=0")
    assert store.perform(Read(Name("nowhere")), LIMIT) == Absent()
    for server in three.servers:
        on(server, "ACL", "SETUSER", "somebody", "-evalsha")
    with pytest.raises(StoreRefused, match=re.escape(f"may not do that: grant it {RIGHTS}")):
        store.perform(Read(APT), LIMIT)
    page = (Path(__file__).parents[3] / "docs/access.md").read_text("utf-8")
    assert RIGHTS.replace("PREFIX", "lockstead") in page
    store.close()


def test_a_sequencer_is_refused_with_what_to_use_instead(three: RedlockPlace, space: str) -> None:
    with lockstead.connect(three.url(space)) as client, client.lock("apt", ttl=30).hold(timeout=ENOUGH) as lease:
        with pytest.raises(StoreRefused, match=r"no fencing tokens.* take a store that has them: etcd:, zk:"):
            lease.sequencer()


def test_the_doctor_looks_at_every_master(opened: Callable[..., RedlockStore], three: RedlockPlace) -> None:
    on(three.servers[0], "CONFIG", "SET", "maxmemory", "100mb")
    on(three.servers[0], "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        found = {one.check for one in opened().examine(Name, LIMIT)}
    finally:
        on(three.servers[0], "CONFIG", "SET", "maxmemory-policy", "noeviction")
        on(three.servers[0], "CONFIG", "SET", "maxmemory", "0")
    assert {"masters.quorum", "master.eviction", "master.persistence", "masters.clocks", "fencing"} <= found
    young = {one.check for one in opened("restart_delay=100000").examine(Name, LIMIT)}
    assert "master.age" in young
    assert "master.persistence" not in young


def test_the_doctor_goes_on_where_it_may_read_neither_clocks_nor_settings(three: RedlockPlace, space: str) -> None:
    for server in three.servers:
        on(server, "ACL", "SETUSER", "somebody", "on", ">right", "~*", "+@all", "-time", "-config")
    hosts = ",".join(f"127.0.0.1:{port}" for port in three.ports)
    store = url.open_store(f"redlock://somebody:right@{hosts}?restart_delay=0")
    assert isinstance(store, RedlockStore)
    noted = {one.check for one in store.examine(Name, LIMIT) if one.severity is Severity.NOTE}
    assert {"master.settings", "masters.clocks"} <= noted
    store.close()


def test_nothing_of_the_tests_is_left(tmp_path: Path) -> None:
    place = RedlockPlace(tmp_path)
    with lockstead.connect(place.url("leak")) as client:
        for _ in range(200):
            client.lock("apt", ttl=30).acquire(timeout=ENOUGH).release()
    try:
        until(lambda: place.left("leak") == [], "something is left behind")
    finally:
        place.stop()

"""An unreadable record is never acquired: every call reports it, and leaves it unchanged, byte for byte (H24)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lockstead
from lockstead import Client, LeaseTicket, NotAcquired, StoreRefused
from lockstead.protocol.commands import Create, Snapshot
from lockstead.protocol.record import Record, decode, encode
from lockstead.stores.memory import MemoryStore
from lockstead.values import Name
from tests.bad_input.cases import NOT_OURS, RECORDS, changed
from tests.bad_input.world import World
from tests.runtime.faulty import quiet

KINDS = {name: fields for name, _, fields in RECORDS} | {NOT_OURS[0]: {"owner": "somebody"}}
DAMAGED = ("damaged record", "record without a ttl", "record of nobody")
"""Those that are ours beyond doubt, so that an operator may remove them."""

OWNER = "x"
QUICK = {"ttl": 60, "owner": OWNER, "backoff_min": 0.01, "backoff_max": 0.02}

CALLS: dict[str, Callable[[Any, LeaseTicket], Any]] = {
    "try_acquire": lambda client, _: client.lock("apt", **QUICK).try_acquire(),
    "acquire": lambda client, _: client.lock("apt", **QUICK).acquire(timeout=5),
    "reclaim": lambda client, _: client.lock("apt", **QUICK).acquire(timeout=5, reclaim=True),
    "inspect": lambda client, _: client.lock("apt").inspect(),
    "attach": lambda client, ticket: client.lock("apt").attach(ticket),
    "release": lambda client, ticket: client.lock("apt").release(ticket, drain=1),
    "release by the client": lambda client, ticket: client.release(ticket, drain=1),
    "renew": lambda client, ticket: client.lock("apt").renew(ticket),
    "acquire_all": lambda client, _: client.acquire_all(["apt"], timeout=5),
    "verify": lambda client, _: client.verify("1:exclusive:apt"),
    "break": lambda client, _: client.lock("apt").break_lease(reason="in the way", by="ops"),
}


# on Cloud Storage a foreign object is another implementation's lock, and respected as one
EVERYWHERE = [(kind, where) for kind in KINDS for where in ("gs", "sqlite") if (kind, where) != (NOT_OURS[0], "gs")]


def opened(world: World, where: str) -> str:
    if where == "gs":
        world.bucket()
        return world.gs
    return world.file()


def ticket_of(url: str, there: Snapshot) -> LeaseTicket:
    """Return a ticket that names the record as precisely as possible."""
    with lockstead.connect(url, listener=quiet) as client:
        store = client._engine.store.url
    return LeaseTicket(store, "apt", there.fields.get("identity", "x/1"), there.incarnation, 60.0)


@pytest.mark.parametrize(("kind", "where"), EVERYWHERE)
def test_h24_every_call_refuses_it_and_leaves_it_byte_for_byte(world: World, kind: str, where: str) -> None:
    url = opened(world, where)
    ticket = ticket_of(url, world.record(url, KINDS[kind]))
    before = world.kept()
    with lockstead.connect(url, listener=quiet) as client:
        for name, call in CALLS.items():
            with pytest.raises(StoreRefused, match=r"the record of 'apt'"):
                call(client, ticket)
            assert world.kept() == before, name
        # a listing shows it among the others, and that it cannot be read
        shown = {one.key: one for one in client.list()}
        assert set(shown) == {"apt", "theirs"}
        assert "the record of 'apt'" in str(shown["apt"].decode_error)
        assert shown["theirs"].decode_error is None

    async def use() -> None:
        async with await lockstead.connect_async(url, listener=quiet) as awaiting:
            for name, call in CALLS.items():
                with pytest.raises(StoreRefused, match=r"the record of 'apt'"):
                    await call(awaiting, ticket)
                assert world.kept() == before, name

    asyncio.run(use())


@pytest.mark.parametrize(("kind", "where"), EVERYWHERE)
def test_h24_only_an_operator_removes_a_damaged_record(world: World, kind: str, where: str) -> None:
    url = opened(world, where)
    untouched = world.kept()
    world.record(url, KINDS[kind])
    before = world.kept()
    with lockstead.connect(url, listener=quiet) as client:
        lock = client.lock("apt", **QUICK)
        if kind not in DAMAGED:
            with pytest.raises(StoreRefused):
                lock.break_lease(reason="in the way", by="ops", now=True)
            assert world.kept() == before
            return
        broken = lock.break_lease(reason="in the way", by="ops", now=True)
        assert broken is not None
        assert broken.removed
        assert [entry.reason for entry in lock.history()] == ["in the way"]
        assert {one.key for one in client.list()} == {"theirs"}
        if url.startswith("gs:"):
            kept = world.kept()
            assert {name: kept[name] for name in untouched} == untouched
        lock.acquire(timeout=5).release()


ROWS = [
    "fields = '{'",
    "fields = ''",
    "fields = 'null'",
    """fields = '{"v": 1}'""",
    "fields = x'00ff'",
    "fields = '" + "[" * 5000 + "'",
    "updated = 'yesterday'",
    "granted = 'first'",
    "revision = 'last'",
]


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_h24_a_row_changed_by_another_program_must_be_removed(world: World, row: str) -> None:
    url = world.file()
    world.record(url, {"v": "1", "identity": "x/1", "owner": OWNER, "ttl": "60"})
    changed(world, f"UPDATE record SET {row} WHERE key = 'apt'")
    before = world.kept()
    with lockstead.connect(url, listener=quiet) as client:
        lock = client.lock("apt", **QUICK)
        for name in ("try_acquire", "acquire", "reclaim", "inspect", "break"):
            with pytest.raises(StoreRefused, match=r"the record of 'apt' is damaged: .*; break it with now=True"):
                CALLS[name](client, LeaseTicket("", "", "", "", 1.0))
            assert world.kept() == before
        assert {one.key for one in client.list()} == {"apt", "theirs"}
        assert lock.break_lease(reason="in the way", by="ops", now=True) is not None
        lock.acquire(timeout=5).release()
        assert {one.key for one in client.list()} == {"theirs"}


# --- any damage ----------------------------------------------------------------------------------------------------

SOUND = encode(
    Record(
        "x/0123456789abcdef",
        600.0,
        owner=OWNER,
        acquired_at=1.7e9,
        expires_at=1.7e9 + 600,
        purpose="p",
        token=7,
        lock_delay=5.0,
        pid=1,
        labels={"a": "b"},
    )
)


def refusal(ask: Callable[[], Any]) -> str | None:
    """Return the line of a refusal; None if it was none. A grant is a fault, and so is any other error."""
    try:
        answer = ask()
    except StoreRefused as refused:
        return str(refused)
    assert not isinstance(answer, lockstead.Lease)
    return None


odd = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        ["", "nan", "inf", "-1", "1e999", "\u00b2", "\u0667", "9" * 5000, "[" * 4000, '{"a":' * 900, "{}", "[]"]
    ),
)


@pytest.mark.parametrize("where", ["token", "pid", "ttl", "lock_delay", "expires_at", "v"])
@pytest.mark.parametrize("digits", ["\u00b2", "\u0667", "9" * 5000, "1_0", "0x7", "+-7"])
def test_h24_text_that_looks_like_a_number_is_damage(where: str, digits: str) -> None:
    if digits == "9" * 5000 and where == "v":
        digits = "9"
    with pytest.raises(StoreRefused, match=r"the record of 'apt'"):
        decode(Name("apt"), {**SOUND, where: digits})


@given(where=st.sampled_from([*SOUND, "closing", "revoked", "tombstone", "expected", "alert_at"]), text=odd)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_h24_no_single_field_makes_a_fresh_record_free(where: str, text: str) -> None:
    fields = {**SOUND, where: text}
    with suppress(StoreRefused):
        read = decode(Name("apt"), fields)
        if where == "ttl" or (read.ttl is not None and read.ttl < 60):
            return  # a short life is a life that may be over
    store = MemoryStore()
    made = store.perform(Create(Name("apt"), fields), 1.0)
    assert isinstance(made, Snapshot)
    with Client(store, listener=quiet) as client:
        for line in (refusal(client.lock("apt", **QUICK).try_acquire), refusal(client.lock("apt").inspect)):
            assert line is None or ("'apt'" in line and "\n" not in line)
    entry = store._memory.entries[Name("apt")]
    assert (entry.fields, entry.revision) == (fields, 1)


@given(text=odd)
@settings(max_examples=60, deadline=None)
def test_h24_any_version_is_ours_newer_or_refused(text: str) -> None:
    line = refusal(lambda: decode(Name("apt"), {**SOUND, "v": text}))
    assert "'apt'" in line if line is not None else int(text.split(".", maxsplit=1)[0]) <= 1


def test_h24_who_waits_for_a_record_that_gets_damaged_is_told(world: World) -> None:
    url = world.file()
    with lockstead.connect(url, listener=quiet) as holder, lockstead.connect(url, listener=quiet) as client:
        holder.lock("apt", ttl=3600).acquire(timeout=5).detach()
        with pytest.raises(NotAcquired):
            client.lock("apt", **QUICK).acquire(timeout=0.05)
        changed(world, "UPDATE record SET fields = '{}' WHERE key = 'apt'")
        before = world.kept()
        with pytest.raises(StoreRefused, match="'apt'"):
            client.lock("apt", **QUICK).acquire(timeout=60)
        assert world.kept() == before

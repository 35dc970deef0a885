"""What is given to a call and cannot be: tickets, sequencers, keys and settings by name. In both colours."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import lockstead
from lockstead import Client, FenceGuard, LeaseLost, LeaseTicket, LossReason, Sequencer, StoreRefused
from lockstead.stores.memory import MemoryStore
from lockstead.values import TICKET_PREFIX
from tests.bad_input.lines import (
    CLOSED,
    EMPTY_KEY,
    KEY_TYPE,
    LATE_TICKET,
    MISTYPED_SETTING,
    NEWER_TICKET,
    NO_MODE,
    NO_SEQUENCER,
    NO_TICKET,
    OLDER_TICKET,
    OTHER_KEY,
    OTHER_STORE,
    REASON,
    RECLAIM,
    SEQUENCER_TYPE,
    TICKET_TYPE,
    UNKNOWN_SETTING,
    pattern,
)
from tests.bad_input.world import World
from tests.runtime.faulty import Faulty, quiet


def both(
    store: Any, kind: type[Exception], says: str, ask: Callable[[Any], Any], *, given: tuple[object, ...] = ()
) -> list[Exception]:
    """Ask of a blocking and of an awaiting client; each has to raise this, in one line."""
    raised = []
    with Client(store, listener=quiet) as client:
        with pytest.raises(kind) as blocking:
            ask(client)
        raised.append(blocking.value)

    async def use() -> None:
        client = lockstead.AsyncClient(store, listener=quiet)
        answer = ask(client)
        if isinstance(answer, Awaitable):
            await answer

    with pytest.raises(kind) as awaiting:
        asyncio.run(use())
    raised.append(awaiting.value)
    for error in raised:
        assert pattern(says).fullmatch(str(error)), error
        assert "\n" not in str(error)
    return raised


def store() -> Faulty:
    """A memory that survives the client which uses it."""

    class Stays(Faulty):
        def close(self) -> None:
            pass

    return Stays()


def text_of(fields: object) -> str:
    """Write a ticket as one would who knows how."""
    body = json.dumps(fields).encode()
    return TICKET_PREFIX + base64.urlsafe_b64encode(zlib.crc32(body).to_bytes(4, "big") + body).decode().rstrip("=")


# --- names and settings ------------------------------------------------------------------------------------------


def test_an_empty_key_is_refused() -> None:
    both(store(), ValueError, EMPTY_KEY, lambda client: client.lock(""))


@pytest.mark.parametrize("key", [None, 7, b"apt", ["apt"]])
def test_a_key_is_text(key: Any) -> None:
    both(store(), TypeError, KEY_TYPE, lambda client: client.lock(key))


def test_a_setting_that_is_none_is_named_with_those_there_are() -> None:
    raised = both(store(), TypeError, UNKNOWN_SETTING, lambda client: client.lock("apt", colour="red"))
    assert "'colour'" in str(raised[0])
    assert "ttl" in str(raised[0])
    raised = both(store(), TypeError, MISTYPED_SETTING, lambda client: client.lock("apt", tll=5))
    assert str(raised[0]) == "unknown setting 'tll', did you mean 'ttl'?"
    with pytest.raises(TypeError, match="unknown setting 'tll'"):
        lockstead.Lock("memory:#apt", tll=5)


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("timeout", "hold() or acquire()"),
        ("reclaim", "hold(), acquire() or try_acquire()"),
        ("interrupt", "hold()"),
        ("permits", "lockstead.Semaphore, at the command line to run -n"),
    ],
)
def test_a_misplaced_argument_is_named_with_its_place(name: str, where: str) -> None:
    told = re.escape(f"is not a setting of a lock: give it to {where}")
    with pytest.raises(TypeError, match=f"^'{name}' {told}"):
        lockstead.Lock("memory:#apt", **{name: 1})  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ValueError, match=f"^'{name}' in the URL {told}"):
        lockstead.AsyncLock(f"memory:#apt?{name}=1")


@pytest.mark.parametrize("kind", [lockstead.Lock, lockstead.AsyncLock])
def test_a_lock_without_its_url_is_told_by_the_name_of_its_class(kind: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{kind.__name__}\.__init__\(\) missing .*'url'"):
        kind(key="apt")


def test_who_waits_for_ever_leaves_the_timeout_out() -> None:
    both(
        store(),
        ValueError,
        "timeout must be a finite, non-negative duration, not …; leave it out to wait forever",
        lambda client: client.lock("apt").acquire(-1),
    )


def test_a_block_of_the_other_colour_is_told_which_one_it_is() -> None:
    with pytest.raises(TypeError, match=r"use 'async with lock\.hold\(\)"), lockstead.AsyncLock("memory:#apt").hold():
        pytest.fail("entered")

    async def use() -> None:
        async with lockstead.Lock("memory:#apt").hold():
            pytest.fail("entered")

    with pytest.raises(TypeError, match=r"use 'with lock.hold\(\):', or in a coroutine AsyncLock"):
        asyncio.run(use())


def test_reclaiming_needs_an_owner() -> None:
    both(store(), ValueError, RECLAIM, lambda client: client.lock("apt").try_acquire(reclaim=True))


@pytest.mark.parametrize("reason", ["", "  "])
def test_breaking_needs_a_reason(reason: str) -> None:
    kept = store()
    with Client(kept, listener=quiet) as client:
        lease = client.lock("apt").acquire()
        before = dict(kept.inner._memory.entries)
        both(kept, ValueError, REASON, lambda other: other.lock("apt").break_lease(reason=reason, now=True))
        assert dict(kept.inner._memory.entries) == before
        assert lease.is_held


def test_a_client_that_was_closed_says_so() -> None:
    client = Client(store(), listener=quiet)
    client.close()
    asking: list[Callable[[], object]] = [
        client.lock("apt").try_acquire,
        client.lock("apt").inspect,
        client.list,
        client.history,
        lambda: client.verify("7:exclusive:apt"),
        lambda: client.lock("apt").break_lease(reason="stuck"),
    ]
    for ask in asking:
        with pytest.raises(StoreRefused) as raised:
            ask()
        assert pattern(CLOSED).fullmatch(str(raised.value))


# --- tickets -----------------------------------------------------------------------------------------------------

NONE_AT_ALL = [
    "",
    "lockstead1.",
    "lockstead1.x",
    "lockstead1.\u00e9\u00e9",
    TICKET_PREFIX + base64.urlsafe_b64encode(b"[" * 100_000).decode(),
    text_of("memory:"),
    text_of(["memory:", "apt", "me/1", "1"]),
    text_of(["memory:", "apt", "me/1", 1, 60]),
    # an empty expectation would be none, and whatever stands there would be removed
    text_of(["memory:", "apt", "me/1", "", 60]),
    text_of(["memory:", "apt", "", "1", 60]),
    text_of(["memory:", "", "me/1", "1", 60]),
    text_of(["memory:", "apt", "me/1", "1", 0]),
    text_of(["memory:", "apt", "me/1", "1", "60"]),
    text_of({"store": "memory:"}),
    text_of(["memory:", "apt", "me/1", "1", 10**400]),
    text_of(["memory:", "apt", "me/1", "1", True]),
    text_of(["memory:", "apt", "me/1", "1", 1e300]),
    text_of(["memory:", "apt", "me/1\x1b[2J", "1", 60]),
    text_of(["memory:", "apt", "me/1", "1\n2", 60]),
    text_of(["memory:", "apt\ud800", "me/1", "1", 60]),
    text_of(["memory:", "k" * 600, "me/1", "1", 60]),
    text_of(["memory:", "apt", "m" * 70_000, "1", 60]),
]

USES: list[Callable[[Any, Any], Any]] = [
    lambda client, ticket: client.lock("apt").attach(ticket),
    lambda client, ticket: client.lock("apt").release(ticket),
    lambda client, ticket: client.release(ticket),
]


@pytest.mark.parametrize("use", USES, ids=["attach", "lock.release", "client.release"])
@pytest.mark.parametrize("text", NONE_AT_ALL, ids=range(len(NONE_AT_ALL)))
def test_what_is_no_ticket_is_told_and_asks_nothing(text: str, use: Callable[[Any, Any], Any]) -> None:
    kept = store()
    both(kept, ValueError, NO_TICKET, lambda client: use(client, text))
    assert not kept.seen


@pytest.mark.parametrize("use", USES, ids=["attach", "lock.release", "client.release"])
@pytest.mark.parametrize(("version", "says"), [("3", NEWER_TICKET), ("0", OLDER_TICKET)])
def test_h30_a_ticket_of_another_version_is_told(version: str, says: str, use: Callable[[Any, Any], Any]) -> None:
    kept = store()
    both(kept, ValueError, says, lambda client: use(client, f"lockstead{version}.AAAA"))
    assert not kept.seen


@pytest.mark.parametrize("use", USES, ids=["attach", "lock.release", "client.release"])
@pytest.mark.parametrize("ticket", [None, 7, b"lockstead1."])
def test_a_ticket_is_text(ticket: Any, use: Callable[[Any, Any], Any]) -> None:
    both(store(), TypeError, TICKET_TYPE, lambda client: use(client, ticket))


def test_one_character_of_a_ticket_that_is_another_one_is_noticed() -> None:
    text = str(LeaseTicket("memory:", "apt", "me/0123456789abcdef", "17", 60.0))
    for place in range(len(TICKET_PREFIX), len(text)):
        for other in "Ab_":
            damaged = text[:place] + other + text[place + 1 :]
            if damaged != text:
                with pytest.raises(ValueError, match="not a lease ticket"):
                    LeaseTicket.parse(damaged)
        with pytest.raises(ValueError, match="not a lease ticket"):
            LeaseTicket.parse(text[:place])
    assert str(LeaseTicket.parse(text)) == text


def test_a_ticket_of_another_key_or_store_is_told_and_harms_nobody() -> None:
    kept = store()
    with Client(kept, listener=quiet) as client:
        lease = client.lock("apt").acquire()
        ticket = lease.share()
        elsewhere = LeaseTicket("gs://b/locks", "apt", ticket.holder, ticket.incarnation, ticket.ttl)
        before = dict(kept.inner._memory.entries)
        for use in (lambda one, said: one.attach(said), lambda one, said: one.release(said)):
            both(kept, ValueError, OTHER_KEY, lambda other, use=use: use(other.lock("deb"), ticket))
            both(kept, ValueError, OTHER_STORE, lambda other, use=use: use(other.lock("apt"), elsewhere))
        both(kept, ValueError, OTHER_STORE, lambda other: other.release(elsewhere))
        assert dict(kept.inner._memory.entries) == before
        lease.check()
        assert lease.release() is True


def test_h24_another_memory_stores_ticket_closes_no_lease() -> None:
    """Two memories count incarnations from 1 each: the ticket names exactly what somebody else holds over here."""
    with Client(MemoryStore(), listener=quiet) as there, Client(kept := store(), listener=quiet) as here:
        ticket = there.lock("apt").acquire().detach()
        lease = here.lock("apt").acquire()
        assert (ticket.store, ticket.incarnation) == (kept.url, lease._lease_state.lease.incarnation)
        before = {name: dict(entry.fields) for name, entry in kept.inner._memory.entries.items()}
        assert here.release(ticket, drain=5) is False
        assert here.lock("apt").release(ticket, drain=5) is False
        raised = both(kept, LeaseLost, LATE_TICKET, lambda client: client.lock("apt").attach(ticket))
        assert isinstance(raised[0], LeaseLost)
        assert raised[0].reason is LossReason.TAKEN
        assert {name: dict(entry.fields) for name, entry in kept.inner._memory.entries.items()} == before
        lease.check()


@pytest.mark.parametrize("successor", [False, True], ids=["nobody since", "a successor"])
def test_a_ticket_that_is_long_over_says_so_and_harms_nobody(world: World, successor: bool) -> None:
    url = world.file()
    with lockstead.connect(url, listener=quiet) as client:
        lock = client.lock("apt", ttl=3600)
        ticket = lock.acquire(timeout=5).detach()
        assert client.release(ticket) is True
        lease = lock.acquire(timeout=5) if successor else None
        before = world.kept()
        for _ in range(2):
            assert client.release(str(ticket)) is False
            with pytest.raises(LeaseLost) as raised:
                lock.attach(ticket)
            assert pattern(LATE_TICKET).fullmatch(str(raised.value))
            assert raised.value.reason is (LossReason.TAKEN if successor else LossReason.GONE)

        async def use() -> None:
            async with await lockstead.connect_async(url, listener=quiet) as awaiting:
                assert await awaiting.release(str(ticket)) is False
                with pytest.raises(LeaseLost, match="cannot attach"):
                    await awaiting.lock("apt").attach(ticket)

        asyncio.run(use())
        assert world.kept() == before
        if lease is not None:
            lease.check()
            assert lease.release() is True


# --- sequencers --------------------------------------------------------------------------------------------------

NO_SEQUENCERS = [
    "",
    "7",
    "7:exclusive",
    "7:exclusive:",
    "7::apt",
    ":exclusive:apt",
    "-7:exclusive:apt",
    "\u00b2:exclusive:apt",
    "\u0667:exclusive:apt",
    "9" * 5000 + ":exclusive:apt",
    "7:Exclusive!:apt",
    "7:wish:apt",
    "7:exclusive/2:apt",
    "7:permit:apt",
    "7:permit/:apt",
    "7:permit/02:apt",
    "7:permit/-1:apt",
    "7:permit/turn:apt",
    "7:permit/\u0662:apt",
    "7:permit/1234567890:apt",
    "7:permit/2",
    "seven:exclusive:apt",
    " 7:exclusive:apt",
]


@pytest.mark.parametrize("text", NO_SEQUENCERS, ids=range(len(NO_SEQUENCERS)))
def test_what_is_no_sequencer_is_told_and_admitted_nowhere(text: str) -> None:
    both(store(), ValueError, NO_SEQUENCER, lambda client: client.verify(text))
    guard = FenceGuard()
    for admit in (guard.admit, guard.admit_reader):
        with pytest.raises(ValueError, match="not a sequencer"):
            admit(text)
    guard.admit("0:exclusive:apt")


@pytest.mark.parametrize("mode", ["", "wish", "Shared", "permit", "permit/02", "permit/2:x", "shared\n", "x" * 5000])
def test_a_sequencer_of_an_unknown_mode_cannot_be_made(mode: str) -> None:
    with pytest.raises(ValueError, match="the mode of a sequencer") as raised:
        Sequencer("apt", 7, mode)
    assert pattern(NO_MODE).fullmatch(str(raised.value))


@pytest.mark.parametrize("mode", ["exclusive", "shared", "permit/0", "permit/2", "permit/999999999"])
def test_a_sequencer_is_read_as_it_was_written(mode: str) -> None:
    for key in ("apt", "permit/2:apt", "7:shared:apt"):
        assert Sequencer.parse(f"7:{mode}:{key}") == Sequencer(key, 7, mode)
        assert str(Sequencer(key, 7, mode)) == f"7:{mode}:{key}"


@pytest.mark.parametrize("text", [None, 7, b"7:exclusive:apt"])
def test_a_sequencer_is_text(text: Any) -> None:
    with pytest.raises(TypeError) as raised:
        Sequencer.parse(text)
    assert pattern(SEQUENCER_TYPE).fullmatch(str(raised.value))
    both(store(), TypeError, SEQUENCER_TYPE, lambda client: client.verify(text))
    with pytest.raises(TypeError) as refused:
        FenceGuard().admit(text)
    assert pattern(SEQUENCER_TYPE).fullmatch(str(refused.value))


@pytest.mark.parametrize("key", ["a\nb", "k" * 600])
def test_a_sequencer_with_an_invalid_key_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=re.escape("the key")):
        Sequencer.parse(f"7:exclusive:{key}")


def test_a_sequencer_of_another_store_names_no_lease_here() -> None:
    with Client(store(), listener=quiet) as client:
        assert client.verify("7:exclusive:apt") is False
        with client.lock("apt").hold() as lease:
            token = lease.sequencer().token
            assert client.verify(Sequencer("deb", token)) is False
            assert client.verify(Sequencer("apt", token + 1)) is False
            assert client.verify(Sequencer("apt", token, "shared")) is False
            assert client.verify(Sequencer("apt", token)) is True

"""Objects in a bucket as an earlier version wrote them: respected, shown, carried on with, taken over."""

from __future__ import annotations

from typing import Any

import pytest

import lockstead
from gcs_emulator import GcsServer
from gcs_emulator.clock import ManualClock
from lockstead.values import LeaseOutcome, LeaseTicket
from tests.interop.recordings import look, put, recording

EARLIER = recording("lockstead-e829f36")
KEYS = ["closing", "full", "plain", "revoked"]
FULL = EARLIER["objects"]["locks/full"]["metadata"]


@pytest.fixture
def tickets(server: GcsServer) -> dict[str, LeaseTicket]:
    """Put all recorded objects into the bucket; give the recorded tickets, for the generations they have here."""
    objects: dict[str, Any] = EARLIER["objects"]
    locks = {name: one for name, one in objects.items() if "/." not in name}
    generations = {name: put(server, one, name)["generation"] for name, one in locks.items()}
    read = {key: LeaseTicket.parse(text) for key, text in EARLIER["tickets"].items()}
    made = {
        key: LeaseTicket(one.store, one.key, one.holder, generations[f"locks/{key}"], one.ttl)
        for key, one in read.items()
    }
    moved = {f"/{one.incarnation}/": f"/{made[key].incarnation}/" for key, one in read.items()}
    for name, one in objects.items():
        if name not in locks:
            # a member's name contains the incarnation that it belongs to
            old = next((old for old in moved if old in name), "/")
            put(server, one, name.replace(old, moved.get(old, "/")))
    return made


@pytest.mark.usefixtures("tickets")
def test_h30_what_an_earlier_version_holds_is_held_and_shown(client: lockstead.Client) -> None:
    shown = {one.key: one for one in client.list()}
    assert list(shown) == KEYS
    for key in KEYS:
        assert client.lock(key, owner="ours").try_acquire() is None
        assert not shown[key].is_expired
        assert not shown[key].is_foreign
    full = shown["full"]
    assert (full.owner, full.purpose, full.expected) == ("recorder:full", "publish APT packages", 600.0)
    assert (full.token, full.labels["run"], full.backtrace) == (int(FULL["token"]), "7", FULL["backtrace"])
    assert shown["revoked"].revoked_by == "operator"
    assert shown["closing"].closing
    (entry,) = client.history()
    assert (entry.key, entry.what) == ("revoked", "revoked")


@pytest.mark.usefixtures("tickets")
def test_h30_an_earlier_versions_expired_record_is_taken_over(clock: ManualClock, client: lockstead.Client) -> None:
    clock.advance(300 * 1.01 + 2)
    assert all(client.lock(key).try_acquire() is None for key in KEYS)
    clock.advance(5 + 2)  # the recorded lock-delay, and the resolution of Date
    for key in KEYS:
        with client.lock(key, owner="ours").acquire(timeout=10) as lease:
            assert lease.previous_lease is not None
            assert lease.previous_lease.ending is (LeaseOutcome.REVOKED if key == "revoked" else LeaseOutcome.EXPIRED)


def test_h17_h30_a_lease_of_an_earlier_version_keeps_its_token(
    server: GcsServer, client: lockstead.Client, tickets: dict[str, LeaseTicket]
) -> None:
    with client.lock("full").attach(tickets["full"]) as lease:
        assert lease.sequencer().token == int(FULL["token"])
        assert client.verify(lease.sequencer())
        kept = look(server, "locks/full")["metadata"]
        assert {name: kept[name] for name in FULL if name != "expires_at"} == {
            name: text for name, text in FULL.items() if name != "expires_at"
        }


def test_h27_h30_members_of_an_earlier_version_are_waited_for(
    client: lockstead.Client, tickets: dict[str, LeaseTicket]
) -> None:
    assert client.release(tickets["closing"], drain=0.3) is False
    assert client.release(tickets["plain"])
    assert [one.key for one in client.list()] == ["closing", "full", "revoked"]


@pytest.mark.usefixtures("tickets")
def test_h30_this_version_writes_all_fields_the_earlier_one_reads(server: GcsServer, client: lockstead.Client) -> None:
    lock = client.lock("plain2", ttl=300, owner="recorder:plain")
    with lock.acquire(timeout=10):
        plain = EARLIER["objects"]["locks/plain"]["metadata"]
        now = look(server, "locks/plain2")["metadata"]
        assert plain.keys() <= now.keys()
        assert now["identity"].startswith("recorder:plain/")
        assert {name: now[name] for name in ("v", "ttl", "owner")} == {
            name: plain[name] for name in ("v", "ttl", "owner")
        }

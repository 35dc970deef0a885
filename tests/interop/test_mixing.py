"""What is lost if other programs contend for our locks: their requests, as recorded, meet records they do not know.

Each test shows a hole of the mixture, not of lockstead: `docs/interop.md` lists them. If one of these fails because
the hole is gone, correct the page.
"""

from __future__ import annotations

import time

import httpx
import pytest

import lockstead
from gcs_emulator import GcsServer
from gcs_emulator.clock import ManualClock
from lockstead.protocol.commands import Conflict, Extend, Read, Remove, Replace, Snapshot
from lockstead.stores import url
from lockstead.values import Name
from tests.interop.recordings import BUCKET, Exchange, asked, go_reads, look, put, recording, replay, ruby_reads

GDLOCK = recording("gdlock")
RUBY = recording("ruby")

LATE_RELEASES = [
    pytest.param(asked(GDLOCK["life"], "DELETE"), id="gdlock"),
    pytest.param(asked(RUBY["life"], "DELETE"), id="ruby"),
]


def held(client: lockstead.Client) -> lockstead.Lease:
    """Hold the lock, and look often whether we still do."""
    often = {"renew_every": 0.3, "request_timeout": 0.25, "max_failures": 20}
    return client.lock("apt", ttl=20, owner="ours", **often).acquire(timeout=10)


def reason(lease: lockstead.Lease) -> lockstead.LossReason:
    """Wait until the lease is lost, and say why."""
    ends_at = time.monotonic() + 60
    while lease.is_held:
        assert time.monotonic() < ends_at
        time.sleep(0.02)
    with pytest.raises(lockstead.LeaseLost) as lost:
        lease.check()
    return lost.value.reason


def at_its_state(server: GcsServer, exchange: Exchange, **changed: object) -> httpx.Response:
    """Send a request that names the metageneration as it is, again if a renewal of ours came in between."""
    ends_at = time.monotonic() + 60
    while time.monotonic() < ends_at:
        answer = replay(server, exchange, ifMetagenerationMatch=look(server)["metageneration"], **changed)
        if answer.status_code != 412:
            break
    return answer


@pytest.mark.parametrize("late", LATE_RELEASES)
def test_h02_is_void_their_late_release_removes_our_record(
    server: GcsServer, client: lockstead.Client, late: Exchange
) -> None:
    lease = held(client)
    assert at_its_state(server, late).status_code == 204
    assert reason(lease) is lockstead.LossReason.GONE


def test_h02_is_void_their_late_refresh_changes_our_record(server: GcsServer, client: lockstead.Client) -> None:
    lease = client.lock("apt", owner="ours").acquire(timeout=10)
    late = asked(RUBY["life"], "PATCH")
    assert at_its_state(server, late).status_code == 200
    now = look(server)["metadata"]
    assert now["expires_at"] == RUBY["refreshed"]["metadata"]["expires_at"]
    assert now["identity"] == lease.holder
    assert lease.is_held
    assert lease.release()


def test_h02_holds_where_we_are_late_ours_name_the_generation(server: GcsServer, client: lockstead.Client) -> None:
    store = url.open_store(f"gs://{BUCKET}/locks")
    lease = client.lock("apt").acquire(timeout=10)
    ours = store.perform(Read(Name("apt")), 10.0)
    assert isinstance(ours, Snapshot)
    lease.release()
    theirs = put(server, GDLOCK["object"])
    assert theirs["metageneration"] == ours.revision
    for late in (
        Remove(Name("apt"), ours.incarnation),
        Extend(Name("apt"), {}, ours.incarnation, lifetime=300.0),
        Replace(Name("apt"), {}, ours.incarnation, ours.revision),
    ):
        assert isinstance(store.perform(late, 10.0), Conflict)
    assert look(server) == theirs
    store.close()


def test_h11_their_refresh_before_our_takeover_is_respected(
    server: GcsServer, clock: ManualClock, client: lockstead.Client
) -> None:
    store = url.open_store(f"gs://{BUCKET}/locks")
    clock.advance(float(RUBY["object"]["metadata"]["expires_at"]) + 100 - clock())
    put(server, RUBY["object"])
    seen = store.perform(Read(Name("apt")), 10.0)
    assert isinstance(seen, Snapshot)
    assert replay(server, asked(RUBY["life"], "PATCH")).status_code == 200
    take_over = Replace(Name("apt"), {"v": "1"}, seen.incarnation, seen.revision)
    assert isinstance(store.perform(take_over, 10.0), Conflict)
    assert look(server)["metadata"] == RUBY["refreshed"]["metadata"]
    store.close()


def test_h07_is_void_a_contender_with_a_fast_clock_takes_ours(server: GcsServer, client: lockstead.Client) -> None:
    lease = held(client)
    seen = look(server)
    ahead = time.time() + 3600
    assert ahead > go_reads(seen["metadata"]["expires_at"])
    assert ahead > ruby_reads(seen["metadata"]["expires_at"])
    takes_over = GDLOCK["takes_over"]
    assert at_its_state(server, asked(takes_over, "DELETE")).status_code == 204
    assert replay(server, takes_over[-2]).status_code == 200
    assert reason(lease) in (lockstead.LossReason.TAKEN, lockstead.LossReason.GONE)
    assert look(server)["metadata"]["identity"] == "recorder-2/thr-7"


def test_their_stale_second_takeover_removes_the_first(
    server: GcsServer, clock: ManualClock, client: lockstead.Client
) -> None:
    """Two waiters see one stale lock at metageneration 1. We take it over; their delete still fits."""
    clock.advance(float(RUBY["object"]["metadata"]["expires_at"]) + 100 - clock())
    stale = put(server, RUBY["object"])
    lease = client.lock("apt", owner="ours").acquire(timeout=10)
    assert look(server)["metageneration"] == stale["metageneration"]
    assert replay(server, asked(RUBY["life"], "DELETE"), ifMetagenerationMatch=1).status_code == 204
    assert lease.is_held, "and we believe for up to a round of renewal"


def test_gcslock_removes_whatever_stands_there(server: GcsServer, client: lockstead.Client) -> None:
    lease = held(client)
    release = asked(recording("gcslock")["life"], "DELETE")
    assert "if" not in release["target"].partition("?")[2]
    assert replay(server, {**release, "target": release["target"].replace("/o/apt", "/o/locks%2Fapt")}).is_success
    assert reason(lease) is lockstead.LossReason.GONE


def test_go_gcslock_looks_for_a_field_of_its_own_and_overwrites_ours(
    server: GcsServer, client: lockstead.Client
) -> None:
    lease = held(client)
    seen = look(server)
    assert "nbf" not in seen["metadata"], "which it takes for 'free'"
    write = asked(recording("nbf")["takes_over"], "POST")
    assert at_its_state(server, write, ifGenerationMatch=seen["generation"]).status_code == 200
    assert reason(lease) is lockstead.LossReason.TAKEN


def test_the_python_gcslock_writes_itself_into_ours_and_both_believe(
    server: GcsServer, client: lockstead.Client
) -> None:
    lease = client.lock("apt", owner="ours").acquire(timeout=10)
    write = asked(recording("py_gcslock")["takes_over"], "PATCH")
    there = {**write, "target": write["target"].replace("/o/apt", "/o/locks%2Fapt")}
    assert at_its_state(server, there).status_code == 200
    now = look(server)["metadata"]
    assert (now["lock_owner"], now["identity"]) == ("recorder", lease.holder)
    assert lease.is_held
    assert lease.release()

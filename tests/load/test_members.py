"""Fifty short tasks under one lease, each a process of its own, on a store where an object takes one change a
second."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import lockstead
from gcs_emulator import GcsServer
from lockstead.events import LockEvent, Lost, ReleaseFailed
from tests.load.crowd import crowd, said
from tests.runtime.faulty import until

MEMBERS = 50
AT_ONCE = 16
TTL = 80.0
RENEW_EVERY = TTL / 8

MEMBER = """
with lockstead.Lock(URL + "#apt").attach(os.environ["TICKET"]) as member:
    token = member.sequencer().token
    time.sleep(1)
    member.check()
told(token)
"""


def test_h27_fifty_short_members_do_not_write_the_lock_record(shared_url: str, request: pytest.FixtureRequest) -> None:
    server: GcsServer | None = request.getfixturevalue("gcs") if shared_url.startswith("gs:") else None
    if server is not None:
        server.faults.one_mutation_per_second = True
    told: list[LockEvent] = []
    with lockstead.connect(shared_url, listener=told.append) as client:
        began_at = time.monotonic()
        lease = client.lock("apt", ttl=TTL, purpose="fifty tasks").acquire(timeout=30)
        token = lease.sequencer().token
        ticket = str(lease.share())
        with crowd(MEMBER, shared_url, MEMBERS, AT_ONCE, TICKET=ticket) as members:
            tokens = said(members)
        lease.check()
        assert tokens == [str(token)] * MEMBERS
        writes = own_writes(server, began_at)
        assert lease.release(drain=60) is True
        assert client.lock("apt").inspect() is None
        assert not [event for event in told if isinstance(event, Lost | ReleaseFailed)]
        # a later client does not wait for a member's registration, or for a ttl
        client.lock("apt").acquire(timeout=30).release()
    if server is not None:
        # what its owner writes: the grant, the token, and its own renewals
        assert writes <= 2 + (time.monotonic() - began_at) / (RENEW_EVERY * 0.75) + 1
        assert not [name for name in server.objects("b") if "/member/" in name]


def own_writes(server: GcsServer | None, began_at: float) -> int:
    """Count the changes of the lock's own object that were not turned away."""
    if server is None:
        return 0
    return sum(
        line.kind in ("insert", "patch", "delete") and line.name == "locks/apt" and line.status in (200, 204)
        for line in server.requests
    )


FIRST_TOKEN = """
with lockstead.Lock(URL + "#apt").attach(os.environ["TICKET"]) as member:
    while not os.path.exists(os.environ["GO"]):
        time.sleep(0.002)
    told(member.sequencer().token)
"""


def test_h17_sixteen_members_that_draw_at_once_share_one_token(gcs: GcsServer, tmp_path: Path) -> None:
    gcs.faults.one_mutation_per_second = True
    go = tmp_path / "go"
    with lockstead.connect("gs://b/locks") as client:
        lease = client.lock("apt", ttl=TTL).acquire(timeout=30)
        ticket = str(lease.share())
        with crowd(FIRST_TOKEN, "gs://b/locks", AT_ONCE, AT_ONCE, TICKET=ticket, GO=str(go)) as members:
            until(lambda: sum("/member/" in name for name in gcs.objects("b")) == AT_ONCE + 1, 60)
            go.touch()
            tokens = said(members)
        assert tokens == [str(lease.sequencer().token)] * AT_ONCE
        assert lease.release(drain=60) is True


def test_a_section_shorter_than_the_stores_pace_leaves_the_lock_free(gcs: GcsServer) -> None:
    gcs.faults.one_mutation_per_second = True
    with lockstead.connect("gs://b/locks") as client:
        for _ in range(2):
            lease = client.lock("apt", ttl=60).acquire(timeout=60)
            assert lease.release() is True
            assert "locks/apt" not in gcs.objects("b")
            # a key that was just changed is read after a pause, not in a burst
        turned_away = gcs.requests.count("insert", status=429)
        assert turned_away <= 10
        with client.lock("deb", ttl=60).hold(timeout=60) as lease:
            assert lease.sequencer().token > 0
        assert "locks/deb" not in gcs.objects("b")
        member = client.lock("rpm", ttl=60).acquire(timeout=60)
        ticket = member.share()
        assert client.lock("rpm").attach(ticket).release() is True
        assert member.release(drain=30) is True
    assert not [name for name in gcs.objects("b") if not name.startswith("locks/.lockstead/companion/")]

"""Objects that other programs wrote, as recorded, are respected; what can be known of them is shown."""

from __future__ import annotations

from typing import Any

import pytest

import lockstead
from gcs_emulator import GcsServer
from gcs_emulator.clock import ManualClock
from lockstead.cli.format import FOREIGN, details, facts, lock_row
from lockstead.values import LeaseOutcome
from tests.interop.recordings import OBJECT, asked, look, put, recording, replay

YEAR = 365 * 24 * 3600.0

ALLOWANCE = 60.0
"""Seconds by which a foreign writer's clock may be ahead, as `docs/interop.md` says."""

TIMED = ["gdlock", "ruby"]
"""Those that say when they end in a way that we share."""

UNTIMED = ["gcslock", "nbf", "py_gcslock", "gcs_lock_thing"]
"""Those that never end, or say it in words of their own."""


def place_recorded(server: GcsServer, clock: ManualClock, name: str, which: str = "object") -> dict[str, Any]:
    """Put a recorded object into the bucket, at the time at which it was recorded where it names one."""
    resource: dict[str, Any] = recording(name)[which]
    expires_at = resource.get("metadata", {}).get("expires_at")
    if expires_at is not None:
        clock.advance(float(expires_at) - 300 - clock())
    return put(server, resource)


@pytest.mark.parametrize(("name", "which"), [("gdlock", "object"), ("ruby", "object"), ("ruby", "refreshed")])
def test_a_foreign_lock_is_held_until_its_expiry_plus_the_margin(
    server: GcsServer, clock: ManualClock, client: lockstead.Client, name: str, which: str
) -> None:
    theirs = place_recorded(server, clock, name, which)["metadata"]
    lock = client.lock("apt", owner="ours")
    assert lock.try_acquire() is None
    ends_at = int(float(theirs["expires_at"])) + ALLOWANCE  # Date has whole seconds
    clock.advance(ends_at - clock())
    assert lock.try_acquire() is None
    assert look(server)["metadata"] == theirs
    clock.advance(1.0)
    with lock.acquire(timeout=0) as lease:
        assert lease.previous_lease is not None
        assert (lease.previous_lease.ending, lease.previous_lease.owner) == (LeaseOutcome.EXPIRED, theirs["identity"])
        assert look(server)["metadata"]["identity"] == lease.holder


def test_h07_the_clock_of_this_machine_decides_nothing(
    server: GcsServer, clock: ManualClock, client: lockstead.Client
) -> None:
    """The recording is of the past, so by the clock of this machine it ended long ago."""
    place_recorded(server, clock, "ruby")
    assert client.lock("apt").try_acquire() is None
    clock.advance(YEAR)
    server.faults.date_offset = -YEAR
    assert client.lock("apt").try_acquire() is None
    server.faults.hides_date = True
    assert client.lock("apt").try_acquire() is None


@pytest.mark.parametrize("name", UNTIMED)
def test_a_lock_that_does_not_say_when_it_ends_never_does(
    server: GcsServer, clock: ManualClock, client: lockstead.Client, name: str
) -> None:
    theirs = place_recorded(server, clock, name)
    for _ in range(3):
        assert client.lock("apt").try_acquire() is None
        clock.advance(YEAR)
    with pytest.raises(lockstead.NotAcquired, match="'apt' is held by 'an unknown holder'"):
        client.lock("apt").acquire(timeout=0)
    assert look(server)["generation"] == theirs["generation"]


@pytest.mark.parametrize("name", UNTIMED)
def test_assume_ttl_says_how_long_such_a_lock_may_live(
    server: GcsServer, clock: ManualClock, client: lockstead.Client, name: str
) -> None:
    place_recorded(server, clock, name)
    lock = client.lock("apt", foreign_ttl=100)
    clock.advance(100.0)
    assert lock.try_acquire() is None
    assert not held(lock).is_expired
    clock.advance(4.0)  # 1 % of drift, two seconds of granularity, one of Date
    assert held(lock).is_expired
    assert not held(client.lock("apt")).is_expired
    with lock.acquire(timeout=0) as lease:
        assert lease.is_held


def held(lock: lockstead.Lock) -> lockstead.LockInfo:
    """Inspect a held lock."""
    shown = lock.inspect()
    assert shown is not None
    return shown


@pytest.mark.parametrize("name", TIMED)
def test_it_is_shown_as_another_programs_with_what_is_known(
    server: GcsServer, clock: ManualClock, client: lockstead.Client, name: str
) -> None:
    theirs = place_recorded(server, clock, name)["metadata"]
    clock.advance(10.0)
    for shown in (held(client.lock("apt")), *client.list()):
        assert shown.is_foreign
        assert (shown.key, shown.holder, shown.owner) == ("apt", theirs["identity"], theirs["identity"])
        assert (shown.ttl, shown.token, shown.decode_error) == (None, None, None)
        assert shown.expires_epoch == pytest.approx(float(theirs["expires_at"]))
        assert shown.age == pytest.approx(10.0, abs=1.0)
        assert not shown.is_expired
    clock.advance(300.0 + ALLOWANCE)
    assert all(shown.is_expired for shown in (held(client.lock("apt")), *client.list()))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gcslock", set()),
        ("nbf", {"nbf"}),
        ("py_gcslock", {"expires_sec", "lock_owner"}),
        ("gcs_lock_thing", {"expiration_timestamp", "lock_id"}),
    ],
)
def test_what_it_says_in_words_of_its_own_is_shown_as_it_stands(
    server: GcsServer, clock: ManualClock, client: lockstead.Client, name: str, says: set[str]
) -> None:
    theirs = place_recorded(server, clock, name)
    (shown,) = client.list()
    assert shown.is_foreign
    assert not shown.is_expired
    assert set(shown.labels) == says
    assert dict(shown.labels) == theirs.get("metadata", {})


@pytest.mark.parametrize(("name", "change"), [("ruby", "PATCH"), ("gdlock", "DELETE")])
def test_breaking_a_foreign_object_keeps_its_content(
    server: GcsServer, clock: ManualClock, client: lockstead.Client, name: str, change: str
) -> None:
    """Its next refresh or release, which names the metageneration alone, is refused: it was told, in its own way."""
    theirs = place_recorded(server, clock, name)
    done = client.lock("apt").break_lease(reason="a test", by="operator")
    assert done is not None
    assert (done.was.owner, done.removed, done.max_overlap) == (theirs["metadata"]["identity"], False, None)
    having = "ifMetagenerationMatch=1" if change == "PATCH" else "ifMetagenerationMatch"
    assert replay(server, asked(recording(name)["life"], change, having)).status_code == 412
    now = look(server)
    assert (now["generation"], now["metageneration"]) == (theirs["generation"], "2")
    assert theirs["metadata"].items() <= now["metadata"].items()
    shown = held(client.lock("apt"))
    assert (shown.revoked_by, shown.revoke_reason) == ("operator", "a test")
    assert client.lock("apt").try_acquire() is None
    clock.advance(300.0 + ALLOWANCE + 1)
    with client.lock("apt").acquire(timeout=0) as lease:
        assert lease.previous_lease is not None
        assert lease.previous_lease.ending is LeaseOutcome.REVOKED


@pytest.mark.parametrize("name", [*TIMED, *UNTIMED])
def test_breaking_one_now_removes_it_and_leaves_an_entry(
    server: GcsServer, clock: ManualClock, client: lockstead.Client, name: str
) -> None:
    place_recorded(server, clock, name)
    done = client.lock("apt").break_lease(reason="a test", by="operator", now=True)
    assert done is not None
    assert done.removed
    assert look(server) == {}
    (entry,) = client.history()
    assert (entry.key, entry.by, entry.what) == ("apt", "operator", "removed")


def test_h24_an_unreadable_time_is_refused_and_not_zero(
    server: GcsServer, clock: ManualClock, client: lockstead.Client
) -> None:
    """Both parsers of the others make 0 of it, and 0 is long past."""
    put(server, {"metadata": {"identity": "somebody", "expires_at": "soon"}})
    with pytest.raises(lockstead.StoreRefused, match=r"'apt', written by another program, is damaged.*'soon'.*by hand"):
        client.lock("apt").acquire(timeout=0)
    with pytest.raises(lockstead.StoreRefused, match="by hand"):
        client.lock("apt").break_lease(reason="a test", now=True)
    assert look(server)["metadata"]["expires_at"] == "soon"


def test_a_field_that_is_called_as_one_of_ours_says_nothing_to_us(server: GcsServer, client: lockstead.Client) -> None:
    put(server, {"metadata": {"identity": "x", "revoked": "no", "closing": "1", "ttl": "1", "token": "9"}})
    shown = held(client.lock("apt"))
    assert (shown.is_foreign, shown.revoked_by, shown.closing, shown.token) == (True, None, False, None)
    assert client.lock("apt").try_acquire() is None


def test_an_object_of_theirs_elsewhere_is_no_lock_of_ours(server: GcsServer, client: lockstead.Client) -> None:
    put(server, recording("ruby")["object"], "locks/deeper/apt")
    put(server, recording("ruby")["object"], "apt")
    assert client.list() == []
    with client.lock("apt").acquire(timeout=0):
        assert look(server, OBJECT) != {}


def test_the_command_line_says_that_it_is_another_programs(
    server: GcsServer, clock: ManualClock, client: lockstead.Client
) -> None:
    place_recorded(server, clock, "py_gcslock")
    with client.lock("ours").acquire(timeout=10):
        ours, theirs = sorted(client.list(), key=lambda one: one.is_foreign)
        assert (facts("apt", theirs, 0.0)["foreign"], facts("ours", ours, 0.0)["foreign"]) == (True, False)
        assert lock_row(theirs, 0.0)[-1] == FOREIGN
        assert FOREIGN not in lock_row(ours, 0.0)
        told = dict(details(theirs, 0.0))
        assert FOREIGN in told["program"]
        assert "lock_owner=recorder" in told["labels"]
        assert "program" not in dict(details(ours, 0.0))

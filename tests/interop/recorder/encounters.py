"""Encounters of lockstead and a published program under one key, both running at once.

Each is a function that notes what it saw. Nothing is judged here: the notes are `../recorded/encounters.json`; their
consequences are in `docs/interop.md` and tested by `../test_mixing.py` and `../test_foreign_objects.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from programs import BUCKET, Programs

import lockstead
from gcs_emulator import GcsServer

PATH = "locks/apt"


class Meeting:
    """The tools of an encounter, and its notes."""

    def __init__(self, programs: Programs, server: GcsServer, look: Callable[..., dict[str, Any]]) -> None:
        self.programs, self.server, self.look = programs, server, look
        self.seen: dict[str, Any] = {}

    def ours(self, key: str = "apt", prefix: str = "locks", **settings: Any) -> lockstead.Lock:
        """Name a lock of ours with a short ttl."""
        url = f"gs://{BUCKET}/{prefix}#{key}" if prefix else f"gs://{BUCKET}#{key}"
        return lockstead.Lock(url, **{"ttl": 4, "renew_every": 0.5, "owner": "ours", **settings})


def reason(lease: lockstead.Lease, within: float = 10.0) -> str | None:
    """Wait until a lease of ours is lost, and say why; None if it still is held."""
    ends_at = time.monotonic() + within
    while time.monotonic() < ends_at:
        try:
            lease.check()
        except lockstead.LeaseLost as lost:
            return lost.reason.value
        time.sleep(0.05)
    return None


def gdlock_waits_for_ours(meeting: Meeting) -> None:
    """The Go port wants what we hold and renew for more than two ttl, then what we released."""
    lease = meeting.ours().acquire(timeout=10)
    first = meeting.look()["metadata"]["expires_at"]
    with meeting.programs.gdlock(PATH, ttl=300, wait=9) as theirs:
        meeting.seen["while we renew"] = theirs.hear()
    meeting.seen["ours is held"] = lease.is_held
    meeting.seen["expires_at moved by"] = round(float(meeting.look()["metadata"]["expires_at"]) - float(first), 1)
    lease.release()
    with meeting.programs.gdlock(PATH, ttl=300, wait=9) as theirs:
        meeting.seen["after our release"] = theirs.hear()
        theirs.say("release")


def gdlock_takes_over_what_we_left(meeting: Meeting) -> None:
    """The Go port wants what we stopped renewing: it waits for our expires_at and no longer."""
    meeting.ours().acquire(timeout=10).detach()
    expires_at = float(meeting.look()["metadata"]["expires_at"])
    with meeting.programs.gdlock(PATH, ttl=300, wait=20) as theirs:
        meeting.seen["then"] = theirs.hear()
        meeting.seen["seconds after our expires_at"] = round(time.time() - expires_at, 1)
        theirs.say("release")


def we_wait_for_gdlock(meeting: Meeting) -> None:
    """We want what the Go port holds, then what it abandoned, by the Date of the store."""
    lock = meeting.ours()
    with meeting.programs.gdlock(PATH, ttl=30, identity="theirs") as theirs:
        theirs.hear()
        shown = lock.inspect()
        assert shown is not None
        meeting.seen["inspect"] = {
            "is_foreign": shown.is_foreign,
            "owner": shown.owner,
            "ttl": shown.ttl,
            "is_expired": shown.is_expired,
            "seconds until expires_at": round((shown.expires_epoch or 0) - time.time(), -1),
        }
        meeting.seen["while they hold"] = lock.try_acquire()
        theirs.say("abandon")
    for ahead in (80.0, 95.0):
        meeting.server.faults.date_offset = ahead
        lease = lock.try_acquire()
        meeting.seen[f"Date {ahead:g} s on"] = None if lease is None else lease.previous_lease.ending.value
        if lease is not None:
            lease.release()
    meeting.server.faults.date_offset = 0.0


def gdlock_loses_its_refresh(meeting: Meeting) -> None:
    """The Go port, left alone, refreshes once: it names the metageneration where the generation belongs."""
    with meeting.programs.gdlock(PATH, ttl=300, refresh=0.5) as theirs:
        theirs.hear()
        time.sleep(2)
        meeting.seen["after its first refresh"] = theirs.say("health")
        meeting.seen["metageneration"] = meeting.look()["metageneration"]
        theirs.say("release")


def we_break_gdlock(meeting: Meeting) -> None:
    """We revoke what the Go port holds: its release then removes nothing, and the lock is free by expires_at."""
    with meeting.programs.gdlock(PATH, ttl=300, identity="theirs") as theirs:
        theirs.hear()
        broken = meeting.ours().break_lease(reason="for the record", by="operator")
        assert broken is not None
        shown = meeting.ours().inspect()
        assert shown is not None
        meeting.seen["shown"] = {"revoked_by": shown.revoked_by, "owner": shown.owner}
        meeting.seen["believed for"] = broken.max_overlap
        meeting.seen["their release"] = theirs.say("release")
        meeting.seen["left"] = meeting.look()["metadata"]["identity"]


def a_late_release_of_gdlock_hits_us(meeting: Meeting) -> None:
    """An operator removes what the Go port holds, we take the lock, and it releases by metageneration alone."""
    with meeting.programs.gdlock(PATH, ttl=300) as theirs:
        theirs.hear()
        meeting.ours().break_lease(reason="for the record", by="operator", now=True)
        lease = meeting.ours(renew_every=2.0, request_timeout=1, ttl=20).acquire(timeout=10)
        meeting.seen["their release"] = theirs.say("release")
        meeting.seen["our lease"] = reason(lease)


def gcslock_waits_for_ours(meeting: Meeting) -> None:
    """gcslock wants what we hold, then what we released."""
    lease = meeting.ours(prefix="").acquire(timeout=10)
    with meeting.programs.gcslock("apt", wait=3) as theirs:
        meeting.seen["while we hold"] = theirs.hear()
    lease.release()
    with meeting.programs.gcslock("apt", wait=9) as theirs:
        meeting.seen["after our release"] = theirs.hear()
        theirs.say("release")


def we_wait_for_gcslock(meeting: Meeting) -> None:
    """We want the lock that gcslock holds: never, or after foreign_ttl; its release removes whatever object is
    there."""
    with meeting.programs.gcslock("apt") as theirs:
        theirs.hear()
        shown = meeting.ours(prefix="").inspect()
        assert shown is not None
        meeting.seen["inspect"] = {"is_foreign": shown.is_foreign, "owner": shown.owner, "is_expired": shown.is_expired}
        meeting.server.faults.date_offset = 3600 * 24 * 365.0
        meeting.seen["a year later"] = meeting.ours(prefix="").try_acquire()
        meeting.server.faults.date_offset = 0.0
        lease = meeting.ours(prefix="", foreign_ttl=3, ttl=20, renew_every=2.0, request_timeout=1).acquire(timeout=30)
        meeting.seen["with foreign_ttl"] = lease.previous_lease.ending.value
        meeting.seen["their release"] = theirs.say("release")
        meeting.seen["our lease"] = reason(lease)


def nbf_overtakes_us(meeting: Meeting) -> None:
    """go-gcslock wants what we hold: it looks for `nbf` alone and takes the lock at once."""
    lease = meeting.ours().acquire(timeout=10)
    with meeting.programs.nbf(PATH, ttl=30) as theirs:
        meeting.seen["while we hold"] = theirs.hear()
    meeting.seen["our lease"] = reason(lease)
    meeting.seen["we want it back"] = meeting.ours().try_acquire()
    shown = meeting.ours().inspect()
    assert shown is not None
    meeting.seen["labels"] = sorted(shown.labels)


def py_gcslock_overtakes_us(meeting: Meeting) -> None:
    """The Python gcslock wants what we hold: it looks for `expires_sec` alone, and both believe."""
    lease = meeting.ours(prefix="").acquire(timeout=10)
    with meeting.programs.py_gcslock("apt", ttl=30, owner="theirs") as theirs:
        meeting.seen["while we hold"] = theirs.hear()["event"]
        time.sleep(1.5)
        meeting.seen["our lease is held"] = lease.is_held
        theirs.say("release")
    lease.release()


def we_wait_for_py_gcslock(meeting: Meeting) -> None:
    """We want what the Python gcslock held and cannot give back once its time is past: never, without foreign_ttl."""
    with meeting.programs.py_gcslock("apt", ttl=1, owner="theirs") as theirs:
        theirs.hear()
        shown = meeting.ours(prefix="").inspect()
        assert shown is not None
        meeting.seen["inspect"] = {"is_foreign": shown.is_foreign, "labels": dict(shown.labels)}
        time.sleep(2)
        meeting.seen["past its time"] = meeting.ours(prefix="").try_acquire()


def the_thing_cannot_read_ours(meeting: Meeting) -> None:
    """gcs-lock-thing wants what we hold, and ends with an error; we respect what it holds."""
    lease = meeting.ours().acquire(timeout=10)
    with meeting.programs.thing(PATH, ttl=30) as theirs:
        meeting.seen["while we hold"] = theirs.hear()
    meeting.seen["our lease is held"] = lease.is_held
    lease.release()
    with meeting.programs.thing(PATH, ttl=1) as theirs:
        theirs.hear()
        time.sleep(2)
        meeting.seen["we want theirs"] = meeting.ours().try_acquire()
        theirs.say("free")


def ruby_reads_ours(meeting: Meeting) -> None:
    """Ruby reads what we hold, as the gem does (String#to_f, Time.now.to_f)."""
    lease = meeting.ours().acquire(timeout=10)
    read = meeting.programs.ruby("read", PATH)
    assert read is not None
    written = meeting.look()["metadata"]
    meeting.seen["identity"] = read["identity"] == written["identity"] == lease.holder
    meeting.seen["class"] = read["class"]
    meeting.seen["stale"] = read["stale"]
    meeting.seen["seconds until it is"] = round(read["to_f"] - time.time())
    lease.release()


ENCOUNTERS: tuple[Callable[[Meeting], None], ...] = (
    gdlock_waits_for_ours,
    gdlock_takes_over_what_we_left,
    we_wait_for_gdlock,
    gdlock_loses_its_refresh,
    we_break_gdlock,
    a_late_release_of_gdlock_hits_us,
    gcslock_waits_for_ours,
    we_wait_for_gcslock,
    nbf_overtakes_us,
    py_gcslock_overtakes_us,
    we_wait_for_py_gcslock,
    the_thing_cannot_read_ours,
    ruby_reads_ours,
)

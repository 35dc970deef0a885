"""Keys that look like names of ours: each is its own, and none reaches what stores keep for themselves (H23)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import lockstead
from lockstead.urls import lock_url
from tests.bad_input.world import World
from tests.runtime.faulty import quiet

KEYS = [
    "apt",
    ".lockstead",
    ".lockstead/lock/apt",
    ".lockstead/member/apt",
    ".lockstead/companion/apt",
    ".lockstead/audit/apt/00000000000001-x",
    "%2Elockstead",
    "%252Elockstead",
    ".",
    "..",
    "../apt",
    "../../b/apt",
    "a/../b",
    "/apt",
    "apt/",
    "a//b",
    "=YXB0",
    "lock",
    "member",
    "theirs/x",
    "'; DROP TABLE record; --",
    "apt#x",
    "apt?ttl=1",
    "apt%23x",
    "grün",
    "日本語",
    "k" * 512,
]


@pytest.fixture(params=["memory", "sqlite", "gs"])
def url(request: pytest.FixtureRequest, world: World) -> Iterator[str]:
    if request.param == "gs":
        world.bucket()
        yield world.gs
    else:
        yield world.file() if request.param == "sqlite" else f"memory:{world.slug}"


def test_h23_keys_that_look_reserved_do_not_collide(url: str) -> None:
    with lockstead.connect(url, listener=quiet) as client:
        theirs = {one.key for one in client.list()}
        # somebody has a member, a token and an audit entry, which all have names of the store's own
        client.lock("apt").acquire(timeout=5).detach()
        client.lock("apt").break_lease(reason="to leave an entry", by="ops", now=True)
        apt = client.lock("apt").acquire(timeout=5)
        apt.share()
        token = apt.sequencer().token
        leases = {"apt": apt}
        for key in KEYS[1:]:
            lease = client.lock(key).try_acquire()
            assert lease is not None, f"{key!r} is somebody else's"
            leases[key] = lease
        assert {one.key for one in client.list()} == set(KEYS) | theirs
        for key, lease in leases.items():
            seen = client.lock(key).inspect()
            assert seen is not None
            assert seen.holder == lease.holder
            assert client.lock(key).try_acquire() is None
        for key in reversed(KEYS[1:]):
            assert leases.pop(key).release() is True
            assert {one.key for one in client.list()} == set(leases) | theirs
        assert apt.sequencer().token == token
        assert client.verify(apt.sequencer())
        assert [entry.reason for entry in client.lock("apt").history()] == ["to leave an entry"]
        assert apt.release(drain=30) is True
        assert {one.key for one in client.list()} == theirs


@pytest.mark.parametrize("key", KEYS)
def test_h23_a_key_that_looks_reserved_is_the_same_one_in_a_url(key: str) -> None:
    lock = lockstead.Lock(lock_url("memory:urls-of-odd-keys", key))
    assert lock.key == key
    with lock.hold(timeout=5):
        assert [one.key for one in lockstead.connect("memory:urls-of-odd-keys").list()] == [key]

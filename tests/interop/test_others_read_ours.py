"""The other programs' parsers can read what we write, and find nothing else of ours where they look."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lockstead
from gcs_emulator import GcsServer
from lockstead.protocol.record import number
from tests.interop.recordings import BUCKET, OBJECT, asked, go_reads, look, put, recording, replay, ruby_reads

Read = Callable[[str], float]
READERS = pytest.mark.parametrize("read", [go_reads, ruby_reads])


@given(st.floats(min_value=0.0, max_value=4e9))
def test_our_instants_are_read_by_both_parsers_to_the_millisecond(instant: float) -> None:
    text = number(instant)
    assert re.fullmatch(r"\d+(\.\d{1,6})?", text)
    assert go_reads(text) == pytest.approx(instant, abs=0.0011)
    assert ruby_reads(text) == pytest.approx(instant, abs=0.0011)


def test_an_instant_of_theirs_is_read_by_us_as_by_themselves(server: GcsServer, client: lockstead.Client) -> None:
    for name, read in (("gdlock", go_reads), ("ruby", ruby_reads)):
        text = put(server, recording(name)["object"], f"locks/{name}")["metadata"]["expires_at"]
        shown = client.lock(name).inspect()
        assert shown is not None
        assert shown.expires_epoch == pytest.approx(read(text), abs=0.001)


@READERS
def test_they_see_who_holds_ours_and_until_when(server: GcsServer, client: lockstead.Client, read: Read) -> None:
    before = time.time()
    with client.lock("apt", ttl=300, owner="ours").acquire(timeout=10) as lease:
        seen = look(server)
        assert seen["metadata"]["identity"] == lease.holder
        assert lease.holder.startswith("ours/")
        assert before + 299 < read(seen["metadata"]["expires_at"]) < time.time() + 301
        assert (seen["size"], seen["cacheControl"]) == ("0", "no-store")
        theirs = recording("gdlock")["object"]
        assert theirs["metadata"].keys() <= seen["metadata"].keys()
        assert all(isinstance(value, str) for value in seen["metadata"].values())


@READERS
def test_h04_each_renewal_moves_what_they_wait_for(server: GcsServer, client: lockstead.Client, read: Read) -> None:
    lock = client.lock("apt", ttl=20, renew_every=0.3, request_timeout=0.25, max_failures=20)
    seen: dict[int, tuple[float, str]] = {}
    with lock.acquire(timeout=10) as lease:
        ends_at = time.monotonic() + 60
        while len(seen) < 4:
            assert time.monotonic() < ends_at
            now = look(server)
            instant = read(now["metadata"]["expires_at"])
            seen[int(now["metageneration"])] = (instant, now["metadata"]["identity"])
            time.sleep(0.05)
        assert lease.is_held
        assert {identity for _, identity in seen.values()} == {lease.holder}
    instants = [instant for _, (instant, _) in sorted(seen.items())]
    assert instants == sorted(set(instants))


def test_h05_our_release_leaves_the_key_as_they_expect_it(server: GcsServer, client: lockstead.Client) -> None:
    life = recording("gdlock")["life"]
    with client.lock("apt").acquire(timeout=10):
        assert replay(server, asked(life, "POST")).status_code == 412
        assert replay(server, asked(life, "GET")).status_code == 200
    assert replay(server, asked(life, "GET")).status_code == 404
    assert replay(server, asked(life, "POST")).status_code == 200
    assert client.lock("apt").try_acquire() is None


def test_h23_nothing_of_ours_stands_under_a_name_that_they_use(server: GcsServer, client: lockstead.Client) -> None:
    lock = client.lock("apt", owner="ours")
    lease = lock.acquire(timeout=10)
    lease.sequencer()
    lease.share()
    lock.break_lease(reason="a test", by="operator")
    names = set(server.objects(BUCKET))
    assert OBJECT in names
    reserved = {name.removeprefix("locks/.lockstead/").partition("/")[0] for name in names - {OBJECT}}
    assert reserved == {"member", "companion", "audit"}
    assert all(name.startswith("locks/.lockstead/") for name in names - {OBJECT})


@pytest.mark.parametrize("key", ["apt", "apt_2-x.y~z", "täglich"])
def test_a_plain_key_is_the_name_that_they_are_given(server: GcsServer, client: lockstead.Client, key: str) -> None:
    put(server, recording("ruby")["object"], f"locks/{key}")
    assert [shown.key for shown in client.list()] == [key]
    assert client.lock(key).try_acquire() is None

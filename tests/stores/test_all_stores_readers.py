"""What holds of readers and writers on every store with a server."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import lockstead
from lockstead import Client, LeaseOutcome, LossReason
from lockstead.errors import LocksteadError
from lockstead.views import LockInfo
from tests.runtime.faulty import quiet, until
from tests.servers.bench import ENOUGH, LONG_TTL, WELL_BELOW_TTL, Bench, at, bench, in_background, renewed
from tests.servers.contenders import program

__all__ = ["at", "bench"]

ROOT = Path(__file__).parents[2]
UNWOKEN = 12.0
ASLEEP: dict[str, Any] = {"ttl": 60, "backoff_min": UNWOKEN, "backoff_max": 50}
"""A waiter that is not woken looks after so many seconds at the earliest."""

TTL = 2.0
SHORT: dict[str, Any] = {"ttl": TTL, "renew_every": 0.4, "request_timeout": 0.35, "max_failures": 3, "backoff_max": 0.3}


def seen(client: Client, key: str = "apt") -> LockInfo:
    found = client.lock(key).inspect()
    assert found is not None, "nobody holds it"
    return found


def owners(client: Client, key: str = "apt") -> set[str]:
    found = client.lock(key).inspect()
    return set() if found is None else {one.owner for one in found.readers}


def test_readers_share_and_the_last_one_wakes_the_writer(bench: Bench) -> None:
    a, b, c, writing = (bench.client() for _ in range(4))
    first = a.lock("apt", owner="a", **LONG_TTL).acquire(ENOUGH, mode="shared")
    second = b.lock("apt", owner="b", **LONG_TTL).acquire(ENOUGH, mode="shared")
    assert first.token == second.token
    token = first.sequencer().token if bench.has_tokens else 0
    assert (seen(c).mode, owners(c)) == ("shared", {"a", "b"})
    # one that only tries keeps nobody out
    assert c.lock("apt", **LONG_TTL).try_acquire() is None
    assert not seen(c).wanted_by
    asleep = ASLEEP if bench.place.wakes else LONG_TTL
    writer = in_background(lambda: writing.lock("apt", owner="w", **asleep).acquire(ENOUGH))
    until(lambda: seen(c).wanted_by, ENOUGH)
    marked_at = time.monotonic()
    assert str(seen(c).wanted_by).startswith("w/")
    # a new reader stays out, a ticket of one inside lets its bearer in
    assert c.lock("apt", **LONG_TTL).try_acquire(mode="shared") is None
    third = c.lock("apt", **LONG_TTL).attach(second.share())
    assert (third.mode, third.token) == ("shared", first.token)
    assert first.release()
    second.release(drain=0)
    renewed(third)
    assert not writer.is_over
    third.release()
    written = writer.result()
    assert time.monotonic() - marked_at < UNWOKEN, "it was not woken"
    assert written.previous_lease.ending in (LeaseOutcome.CLEAN, LeaseOutcome.UNKNOWN)
    if bench.has_tokens:
        assert written.sequencer().token > token
    assert written.release()
    assert a.lock("apt").inspect() is None


def test_a_downgraded_lease_lets_readers_in_and_no_writer(bench: Bench) -> None:
    a, b, writing = (bench.client() for _ in range(3))
    lease = a.lock("apt", owner="a", **LONG_TTL).acquire(ENOUGH)
    token = lease.token
    reader = in_background(lambda: b.lock("apt", owner="b", **LONG_TTL).acquire(ENOUGH, mode="shared"))
    lease.downgrade()
    assert (lease.mode, lease.token) == ("shared", token)
    joined = reader.result()
    assert joined.token == token
    assert owners(b) == {"a", "b"}
    writer = in_background(lambda: writing.lock("apt", **LONG_TTL).acquire(ENOUGH))
    until(lambda: seen(b).wanted_by, ENOUGH)
    renewed(lease)
    assert lease.release()
    renewed(joined)
    assert not writer.is_over
    joined.release()
    assert writer.result(WELL_BELOW_TTL).release()


@pytest.mark.parametrize("how", ["downgrade", "release"])
def test_a_reader_in_a_queue_wakes_the_reader_behind_it(bench: Bench, how: str) -> None:
    if not bench.place.is_fifo:
        pytest.skip("this store has no queue")
    holding, *reading = (bench.client() for _ in range(4))
    lease = holding.lock("apt", ttl=300, renew_every=60).acquire(ENOUGH)
    readers = []
    for client in reading:
        standing = len(bench.place.left(bench.space))
        lock = client.lock("apt", **{**ASLEEP, "backoff_min": ENOUGH})
        readers.append(in_background(partial(lock.acquire, 2 * ENOUGH, mode="shared")))
        until(lambda standing=standing: len(bench.place.left(bench.space)) > standing, ENOUGH)
    getattr(lease, how)()
    tokens = {reader.result(UNWOKEN).token for reader in readers}
    assert len(tokens) == 1


def test_one_reader_is_broken_and_the_others_read_on(bench: Bench) -> None:
    a, b, watcher = (bench.client() for _ in range(3))
    broken = a.lock("apt", owner="a", **LONG_TTL).acquire(ENOUGH, mode="shared")
    spared = b.lock("apt", owner="b", **LONG_TTL).acquire(ENOUGH, mode="shared")
    (target,) = (one for one in seen(watcher).readers if one.owner == "a")
    assert watcher.lock("apt").break_lease(reason="a test", reader=target) is not None
    until(lambda: not broken.is_held, ENOUGH)
    assert broken.lost_reason is LossReason.REVOKED
    broken.release()
    renewed(spared)
    until(lambda: owners(watcher) == {"b"}, ENOUGH)
    assert watcher.lock("apt", **LONG_TTL).try_acquire() is None
    spared.release()
    watcher.lock("apt", **LONG_TTL).acquire(WELL_BELOW_TTL).release()


@contextmanager
def reader_process(bench: Bench) -> Iterator[subprocess.Popen[str]]:
    """Run a process that reads under `held` until it is killed."""
    words = program(bench.url(), ".", "--hold", f"{TTL}", "--mode", "shared")
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "held\n"
            yield running
        finally:
            running.kill()


@pytest.mark.slow
def test_m03_a_killed_reader_holds_a_writer_up_until_its_ttl_is_over(bench: Bench) -> None:
    client = bench.client()
    with reader_process(bench) as reader:
        writer = in_background(lambda: client.lock("held", **SHORT).acquire(120))
        until(lambda: seen(client, "held").wanted_by, ENOUGH)
        assert not writer.is_over
        reader.kill()
    killed_at = time.monotonic()
    lease = writer.result(120)
    # by observation two ttls, and the rest is for a server that looks now and then, and a machine that is busy
    assert time.monotonic() - killed_at < 2 * TTL * 1.01 + 0.3 + 2 * 0.2 + 12
    lease.check()
    lease.release()


@pytest.mark.slow
def test_m05_a_group_outlives_the_process_that_founded_it(bench: Bench) -> None:
    a, b, watcher = (bench.client() for _ in range(3))
    lock = b.lock("held", owner="b", ttl=60, backoff_max=0.3)
    with reader_process(bench) as founder:
        joined = a.lock("held", owner="a", **SHORT).acquire(ENOUGH, mode="shared")
        founded = seen(watcher, "held")
        founder.kill()
    ends_at = time.monotonic() + 3 * TTL
    while time.monotonic() < ends_at:
        written = lock.try_acquire()
        joined.check()
        assert written is None
        time.sleep(0.1)
    assert seen(watcher, "held").incarnation == founded.incarnation
    late = lock.acquire(ENOUGH, mode="shared")
    assert late.token == joined.token
    joined.release()
    late.release()
    lock.acquire(WELL_BELOW_TTL).release()


def test_readers_and_writers_that_are_awaited(bench: Bench) -> None:
    watcher = bench.client()

    async def use() -> None:
        async with (
            await lockstead.connect_async(bench.url(), listener=quiet) as a,
            await lockstead.connect_async(bench.url(), listener=quiet) as b,
        ):
            reading, writing = a.lock("apt", owner="a", **LONG_TTL), b.lock("apt", owner="b", **LONG_TTL)
            first = await reading.acquire(ENOUGH, mode="shared")
            second = await b.lock("apt", owner="b", **LONG_TTL).acquire(ENOUGH, mode="shared")
            found = await reading.inspect()
            assert found is not None
            assert {one.owner for one in found.readers} == {"a", "b"}
            with pytest.raises(LocksteadError, match="already"):
                await reading.acquire(ENOUGH, mode="shared")
            await second.release()
            writer = asyncio.create_task(writing.acquire(ENOUGH))
            await asyncio.to_thread(until, lambda: seen(watcher).wanted_by, ENOUGH)
            ticket = await first.share()
            joined = await b.lock("apt", **LONG_TTL).attach(ticket)
            await joined.release()
            assert not writer.done()
            await first.release()
            lease = await asyncio.wait_for(writer, WELL_BELOW_TTL)
            await lease.downgrade()
            again = await reading.try_acquire(mode="shared")
            assert again is not None
            assert again.token == lease.token
            await again.release()
            await lease.release()
            assert await reading.inspect() is None

    asyncio.run(use())

"""What holds on every store with a server when many contend for one lock, and when one client acquires it many
times.

LOCKSTEAD_LONG=1 lets the sixteen processes count for a minute instead of eight seconds.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from lockstead import Lease
from tests.runtime.faulty import until
from tests.servers.bench import ENOUGH, LONG_TTL, Background, Bench, at, bench, in_background
from tests.servers.contenders import program
from tests.servers.proxy import Proxy

__all__ = ["at", "bench"]

ROOT = Path(__file__).parents[2]
PROCESSES = 16
SECONDS = 60.0 if os.environ.get("LOCKSTEAD_LONG") else 8.0

ASLEEP = {"ttl": 60, "backoff_min": 50, "backoff_max": 50}
"""A waiter that is not woken is late: between two polls it sleeps for longer than any wait of these tests."""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_sixteen_processes_under_one_lock_lose_no_increment(bench: Bench, tmp_path: Path) -> None:
    command = program(bench.url(), str(tmp_path), "--processes", f"{PROCESSES}", "--seconds", f"{SECONDS}")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    came_in = [int(file.read_text()) for file in tmp_path.glob("came-in-*")]
    assert len(came_in) == PROCESSES
    assert int((tmp_path / "counter").read_text()) == sum(came_in)
    assert sum(came_in) > PROCESSES, came_in
    if bench.has_tokens:
        tokens = [int(line.split()[0]) for line in (tmp_path / "tokens").read_text().splitlines()]
        assert len(tokens) == sum(came_in)
        assert all(earlier < later for earlier, later in pairwise(tokens)), "tokens do not grow as the lock is held"
    if bench.place.is_fifo:
        # nobody is overtaken, so nobody comes in much more often than another
        assert min(came_in) > 0


def test_nobody_is_overtaken_where_that_is_promised(bench: Bench) -> None:
    if not bench.place.is_fifo:
        pytest.skip("waiting is not in order on this store, and it says so")
    order: list[int] = []
    holder = bench.client().lock("apt", **ASLEEP).acquire(ENOUGH)

    def wait(number: int) -> None:
        with clients[number].lock("apt", **ASLEEP).hold(timeout=ENOUGH):
            order.append(number)

    clients = [bench.client() for _ in range(6)]
    waiting: list[Background] = []
    for number in range(6):
        standing = len(bench.place.left(bench.space))
        waiting.append(in_background(lambda number=number: wait(number)))
        until(lambda standing=standing: len(bench.place.left(bench.space)) > standing, ENOUGH)
    assert holder.release() is True
    for one in waiting:
        one.result()
    assert order == list(range(6))


def test_h15_a_hand_overs_cost_is_independent_of_the_waiters(bench: Bench) -> None:
    if not bench.place.wakes:
        pytest.skip("this store wakes nobody, and says so")
    few, many = requests_per_hand_over(bench, 3), requests_per_hand_over(bench, 12)
    assert many <= 1.5 * few + 3, f"{few:.1f} requests among 3 who wait, {many:.1f} among 12"


def requests_per_hand_over(bench: Bench, waiters: int) -> float:
    """Let this many wait, each in its own client, and return the number of requests of one hand-over."""
    proxy, key = bench.proxy(), f"crowd-{waiters}"
    holder = bench.client().lock(key, **ASLEEP).acquire(ENOUGH)
    clients = [bench.client(proxy) for _ in range(waiters)]
    counted = proxy.count()
    began = threading.Barrier(waiters + 1)

    def wait(number: int) -> None:
        began.wait()
        clients[number].lock(key, **ASLEEP).acquire(ENOUGH).release()

    waiting = [in_background(lambda number=number: wait(number)) for number in range(waiters)]
    began.wait()
    quiet(proxy, counted.total)
    before = counted.total
    assert holder.release() is True
    for one in waiting:
        one.result()
    return (counted.total - before) / waiters


def quiet(proxy: Proxy, at_first: int) -> None:
    """Wait until all waiters sleep: for a while no request is sent."""
    counted = proxy.count()
    ends_at = time.monotonic() + 5.0
    still_since, last = time.monotonic(), counted.total
    while time.monotonic() < ends_at and time.monotonic() - still_since < 1.0:
        time.sleep(0.05)
        if counted.total != last:
            still_since, last = time.monotonic(), counted.total


@pytest.mark.slow
def test_a_thousand_cycles_leave_nothing_behind(bench: Bench) -> None:
    client = bench.client()
    lock = client.lock("apt", **LONG_TTL)
    for _ in range(20):
        lock.acquire(ENOUGH).release()
    before = bench.place.left(bench.space)
    for _ in range(bench.place.cycles):
        lock.acquire(ENOUGH).release()
    # of several masters the slowest may have yet to do what the others have answered
    until(lambda: len(bench.place.left(bench.space)) <= len(before), ENOUGH)
    client.close()
    assert len(bench.place.left(bench.space)) <= len(before)


def test_who_waited_and_who_gave_up_leave_nothing_behind(bench: Bench) -> None:
    clients = [bench.client() for _ in range(3)]
    before = len(bench.place.left(bench.space))

    def cycle(number: int) -> None:
        for _ in range(15):
            with clients[number].lock("apt", **LONG_TTL).hold(timeout=ENOUGH):
                clients[(number + 1) % 3].lock("apt", **LONG_TTL).try_acquire()

    running = [in_background(lambda number=number: cycle(number)) for number in range(3)]
    for one in running:
        one.result(120)
    # what a lock itself may leave (a node, a row) it leaves once
    until(lambda: len(bench.place.left(bench.space)) <= before + 1, ENOUGH)


def test_h01_a_waiter_behind_a_killed_holder_acquires_in_time(bench: Bench) -> None:
    ttl = 2.0
    client = bench.client()
    with subprocess.Popen(
        program(bench.url(), ".", "--hold", f"{ttl}"), cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        lock = client.lock("held", ttl=ttl, backoff_max=0.3)
        assert lock.try_acquire() is None
        waiting = in_background(lambda: lock.acquire(120))
        time.sleep(0.3)
        holder.kill()
    killed_at = time.monotonic()
    lease: Lease = waiting.result(120)
    # by observation two ttls, and the rest is for a server that looks now and then, and a machine that is busy
    assert time.monotonic() - killed_at < 2 * ttl * 1.01 + 0.3 + 2 * 0.2 + 12
    lease.check()
    lease.release()

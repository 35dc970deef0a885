"""The lock's store is away while a body works: the body ends in time, and the lock is had again afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import lockstead
from dagster_lockstead import LockResource
from tests.dagster import bodies
from tests.dagster.runs import failure_of, in_process, job_with, metadata_of
from tests.dagster.taking import Beside, Place, until
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisPlace

TTL = 6.0
"""Seconds; a sixth of it is what two busy processors may take to end a body."""


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisPlace]:
    """Return a server."""
    made = RedisPlace(tmp_path_factory.mktemp("redis"))
    yield made
    made.stop()


def job(url: str, *, retries: bool) -> Any:
    """Return a job whose body waits for the processes that it started."""
    op = bodies.shells.with_retry_policy(dg.RetryPolicy(max_retries=3)) if retries else bodies.shells
    return job_with(op, {"lock": LockResource(store=url, ttl=TTL)})


def test_an_unavailable_store_ends_the_body_before_the_ttl(place: Place, redis: RedisPlace, tmp_path: Path) -> None:
    url = redis.url(tmp_path.name)
    took: list[float] = []
    tokens: list[int] = []

    def outage() -> None:
        until(lambda: len(place.sleepers()) >= 2, "its processes run")
        began_at = time.monotonic()
        redis.pause()
        try:
            until(lambda: not place.sleepers(), "they are gone")
            took.append(time.monotonic() - began_at)
            until(lambda: place.has("finally"), "the body is over")
        finally:
            redis.resume()
        with lockstead.Lock(f"{url}#k", owner="somebody/else").hold(timeout=30) as lease:
            tokens.append(lease.sequencer().token)

    with Beside(outage):
        result = in_process(job(url, retries=True))
    said = metadata_of(failure_of(result, "shells"))
    assert said["lockstead/reason"] in ("UNREACHABLE", "EXPIRED")
    assert took[0] < TTL
    assert (place.count("in"), place.count("finally")) == (1, 1)
    assert tokens[0] > said["lockstead/token"]


def test_a_waiter_follows_a_cut_off_holder_after_its_processes(place: Place, redis: RedisPlace, tmp_path: Path) -> None:
    seen: list[list[int]] = []
    with Proxy(redis.ports) as proxy:

        def contend() -> None:
            until(lambda: len(place.sleepers()) >= 2, "its processes run")
            with proxy.silent():
                direct = lockstead.Lock(f"{redis.url(tmp_path.name)}#k", owner="somebody/else")
                with direct.hold(timeout=50) as lease:
                    seen.append(place.sleepers())
                    assert lease.previous_lease.ending is lockstead.LeaseOutcome.EXPIRED
                until(lambda: place.has("finally"), "the body is over")

        with Beside(contend):
            result = in_process(job(redis.url(tmp_path.name, ports=proxy.ports), retries=False))
    assert metadata_of(failure_of(result, "shells"))["lockstead/reason"] in ("UNREACHABLE", "EXPIRED")
    assert seen == [[]], "the lock was granted while a process of the body lived"

"""Two real reapers on real stores; the one that acts is killed between listing, revoking and audit."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lockstead
from lockstead import LeaseLost, LossReason
from tests.runtime.faulty import quiet, until
from tests.runtime.processes import Child
from tests.servers.redis import RedisServer

REAPER = """
import inspect, logging, time
from lockstead.cli.main import call
from lockstead.monitor.rounds import Rounds
from lockstead.protocol.commands import Create, Extend
from lockstead.reaper import service
from lockstead.stores import url as urls
from lockstead.values import Space

logging.getLogger("lockstead").propagate = False
service.TTL = 3.0
opens = urls.open_store

def is_it(command):
    if os.environ["STOPS"] == "before the revocation":
        return isinstance(command, Extend) and "revoked" in command.fields
    if os.environ["STOPS"] == "before the audit":
        return isinstance(command, Create) and command.name.space is Space.AUDIT

def stop(command):
    if is_it(command):
        say("at it")
        time.sleep(600)

def stopping(original):
    if inspect.iscoroutinefunction(original):
        async def perform(self, command, limit):
            stop(command)
            return await original(self, command, limit)
    else:
        def perform(self, command, limit):
            stop(command)
            return original(self, command, limit)
    return perform

def opened(*given):
    store = opens(*given)
    kind = type(store)
    for name in ("perform", "aperform"):
        if hasattr(kind, name) and os.environ["STOPS"]:
            setattr(kind, name, stopping(getattr(kind, name)))
    return store

urls.open_store = opened
once = Rounds.once

async def listed(self):
    done = await once(self)
    if not os.environ["STOPS"] and self._number == 1:
        say("listed")
    return done

Rounds.once = listed
raise SystemExit(call(["reap", URL, "--every", "1s", "--owner", os.environ["NAME"]]))
"""


@pytest.fixture
def url(store: str, tmp_path: Path) -> Iterator[str]:
    if store == "sqlite":
        yield f"sqlite:///{tmp_path}/locks.db"
        return
    with RedisServer(tmp_path / "redis") as server:
        yield f"redis://127.0.0.1:{server.port}/0"


@pytest.mark.parametrize(
    ("store", "stops"),
    [("sqlite", "before the revocation"), ("sqlite", "before the audit"), ("redis", "before the audit")],
)
def test_h37_each_lock_is_revoked_once_and_audited_once_whenever_the_acting_reaper_is_killed(
    url: str, stops: str
) -> None:
    due: dict[str, Any] = {"ttl": 120, "alert_after": 0, "auto_unlock_after": 0}
    fine: dict[str, Any] = {"ttl": 120, "expected": 3600, "auto_unlock_after": 7200}
    with lockstead.connect(url, listener=quiet) as client:
        asked = [
            *(client.lock(f"due-{number}", **due) for number in range(3)),
            client.lock("index", mode="shared", **due),
            client.semaphore("pool", 3, **due),
        ]
        spared = [
            client.lock("fine", **fine),
            client.lock("slow", ttl=120, alert_after=0),
            client.lock("index", mode="shared", **fine),
            client.semaphore("pool", 3, **fine),
        ]
        leases = [one.try_acquire() for one in asked]
        others = [one.try_acquire() for one in spared]
        with Child(REAPER, url, NAME="first", STOPS=stops) as first:
            assert first.hear() == "at it"
            with Child(REAPER, url, NAME="second", STOPS="") as second:
                assert second.hear() == "listed"
                assert client.history() == []
                os.kill(first.process.pid, signal.SIGKILL)
                until(lambda: len(client.history()) >= len(leases), seconds=60)
                second.process.send_signal(signal.SIGTERM)
                assert second.end() == 0
        entries = client.history()
        assert sorted(entry.holder for entry in entries) == sorted(
            lease.holder for lease in leases if lease is not None
        )
        assert {entry.what for entry in entries} == {"revoked"}
        by_first = [entry for entry in entries if entry.by == "lockstead reap first"]
        assert len(by_first) == (1 if stops == "before the audit" else 0)
        for lease in leases:
            assert lease is not None
            with pytest.raises(LeaseLost) as lost:
                lease.renew()
            assert lost.value.reason is LossReason.REVOKED
        for lease in others:
            assert lease is not None
            lease.renew()
        assert lockstead.Election(f"{url}#lockstead-reaper").leader() is None, "the second resigned"

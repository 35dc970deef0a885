"""Processes whose wall clock is wrong by hours, or jumps: holder and contender are unaffected (H7)."""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.processes.shims import preloaded
from tests.runtime.processes import Child

HOUR = 3600.0
JUMPS = (5 * HOUR, -5 * HOUR, 0.0, 40 * 24 * HOUR, -0.9)

CLOCKS = """
import sqlite3, threading
from lockstead.stores.bootclock import boot_now

def clocks():
    now = sqlite3.connect(":memory:").execute("SELECT (julianday('now') - 2440587.5) * 86400").fetchone()[0]
    say(time.time(), now, time.clock_gettime(time.CLOCK_REALTIME))
"""

HOLDER = (
    CLOCKS
    + """
clocks()
client = lockstead.connect(URL)
# patient with a store that is slow because the machine is busy
patience = {"renew_every": 0.3, "request_timeout": 0.29, "max_failures": 5}
lease = client.lock(os.environ["KEY"], ttl=3, **patience).acquire(timeout=60)
token = lease.sequencer().token
say("held", lease.holder, token)
while hear():
    now = boot_now()
    say(lease.is_held, lease.lost_reason, now + lease.time_left)
"""
)

CONTENDER = (
    CLOCKS
    + """
clocks()
client = lockstead.connect(URL)
lock = client.lock(os.environ["KEY"], ttl=60, backoff_max=0.1)
hear()
try:
    say("in", lock.acquire(timeout=7))
except lockstead.NotAcquired:
    say("refused")
hear()
lease = lock.acquire(timeout=100)
say(boot_now(), lease.sequencer().token, lease.previous_lease.ending.value, lease.previous_lease.holder)
say(lease.release())
"""
)


class WallClock:
    """The wall clock of one child: right but for an offset in seconds, which may change while the child runs."""

    def __init__(self, path: Path, offset: float) -> None:
        self.path = path
        path.write_bytes(struct.pack("d", offset))

    def jump(self, offset: float) -> None:
        with self.path.open("r+b") as file:
            file.write(struct.pack("d", offset))


@dataclass(frozen=True, slots=True)
class Pair:
    """A holder and a contender of one key, and how far their wall clocks are off."""

    key: str
    holder: Child
    contender: Child
    clocks: tuple[WallClock, WallClock]
    offsets: tuple[float, float]


OFFSETS = {
    "holder-ahead": (5 * HOUR, 0.0),
    "holder-behind": (-5 * HOUR, 0.0),
    "contender-ahead": (0.0, 5 * HOUR),
    "contender-behind": (0.0, -5 * HOUR),
    "jumping": (0.0, 0.0),
}


@pytest.fixture
def pairs(shared_url: str, tmp_path: Path) -> Iterator[list[Pair]]:
    """Run all pairs at once, each on its own key: they wait for the same ttl."""
    shim = preloaded("clock", tmp_path)
    with ExitStack() as stack:
        made = []
        for key, offsets in OFFSETS.items():
            clocks = tuple(WallClock(tmp_path / f"{key}.{number}", by) for number, by in enumerate(offsets))
            holder, contender = (
                stack.enter_context(Child(script, shared_url, KEY=key, CLOCK_OFFSET_FILE=str(clock.path), **shim))
                for script, clock in zip((HOLDER, CONTENDER), clocks, strict=True)
            )
            made.append(Pair(key, holder, contender, (clocks[0], clocks[1]), offsets))
        yield made


@pytest.mark.slow
def test_h07_wall_clocks_off_by_hours_or_jumping_change_nothing(pairs: list[Pair]) -> None:
    held: dict[str, tuple[str, int]] = {}
    until: dict[str, float] = {}
    for pair in pairs:
        for child, offset in zip((pair.holder, pair.contender), pair.offsets, strict=True):
            readings = [float(word) - time.time() - offset for word in child.hear().split()]
            # the shim does what it is for: Python, SQLite and the system call itself all see the shifted time
            assert len(readings) == 3
            assert max(abs(error) for error in readings) < HOUR
        word, holder, token = pair.holder.hear().split()
        assert word == "held"
        held[pair.key] = (holder, int(token))

    jumping = next(pair for pair in pairs if pair.key == "jumping")
    for pair in pairs:
        pair.contender.say("try")
    for offset in itertools.islice(itertools.cycle(JUMPS), 100):
        for clock in jumping.clocks:
            clock.jump(offset)
        time.sleep(0.05)
    for pair in pairs:
        assert pair.contender.hear() == "refused", pair.key
        pair.holder.say("are you there?")
        still, reason, deadline = pair.holder.hear().split()
        assert (still, reason) == ("True", "None"), pair.key
        until[pair.key] = float(deadline)
        pair.holder.process.kill()
        pair.contender.say("try for longer")
    for clock in jumping.clocks:
        clock.jump(-5 * HOUR)
    for pair in pairs:
        at, token, ending, before = pair.contender.hear().split()
        assert float(at) >= until[pair.key], f"{pair.key}: it came in before the holder had to stop"
        assert (ending, before) == ("EXPIRED", held[pair.key][0])
        assert int(token) > held[pair.key][1]
        assert pair.contender.hear() == "True"
        assert pair.contender.end() == 0

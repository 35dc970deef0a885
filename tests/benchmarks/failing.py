"""How long a key has no leader after `kill -9` of the one it had: ours, and the election that kazoo brings.

Both have the same time to live: the ttl of a term, the timeout of a session, of which the server allows 10 s.

As a program (`python -m tests.benchmarks.failing KIND WHERE TTL`) it is a candidate, which prints the instant at which
it leads.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

from tests.benchmarks import running
from tests.benchmarks.figures import Row, Size, paired

SETTLED: Final = 2.0
"""Seconds that a leader leads, and up to twice as many: it is killed at no fixed distance from a renewal."""


class Candidate:
    """A process that campaigns, from here."""

    def __init__(self, kind: str, where: str, ttl: float) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.failing", kind, where, f"{ttl:g}"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._hear()

    def leads_at(self) -> float:
        """Wait until it leads; return when that was."""
        return float(self._hear())

    def kill(self) -> float:
        """Kill it; return when."""
        at = time.monotonic()
        self._process.kill()
        self._process.communicate()
        return at

    def _hear(self) -> str:
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said:
            raise RuntimeError(f"a candidate ended with {self._process.wait()}")
        return said


def failing(size: Size) -> Iterator[Row]:
    """Kill leaders of ours on SQLite, Redis and ZooKeeper, and of kazoo's on ZooKeeper, all at once."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        redis, zookeeper = (stack.enter_context(run()) for run in (running.redis, running.zookeeper))
        places = {
            "SQLite": ("lockstead", f"sqlite:///{folder}/locks.db"),
            "Redis": ("lockstead", redis.url),
            "ZooKeeper": ("lockstead", zookeeper.url),
            "kazoo": ("kazoo", zookeeper.where),
        }
        taken: dict[str, list[float]] = {name: [] for name in places}
        for number in range(size.fail_overs):
            for name, seconds in _round(places, size.ttl_fail_over, number).items():
                taken[name].append(seconds)
    for name in ("SQLite", "Redis", "ZooKeeper"):
        pair = paired(taken[name], taken["kazoo"])
        what = f"{name}: leader killed, ttl {size.ttl_fail_over:g} s: until the next leads, p50"
        spread = f"{pair.low:.2f}-{pair.high:.2f}"
        against = "kazoo's `Election` on ZooKeeper"
        yield Row(what, pair.ours, "s", size.ttl_fail_over * 1.1, against, pair.theirs, pair.ratio, spread)


def _round(places: dict[str, tuple[str, str]], ttl: float, number: int) -> dict[str, float]:
    """Elect a leader at each place, kill them, and return the seconds until each next one."""
    words = {name: (kind, where + f"#k{number}" * (kind != "kazoo")) for name, (kind, where) in places.items()}
    first = {name: Candidate(*one, ttl) for name, one in words.items()}
    for one in first.values():
        one.leads_at()
    second = {name: Candidate(*one, ttl) for name, one in words.items()}
    time.sleep(SETTLED * random.uniform(1, 2))
    killed_at = {name: one.kill() for name, one in first.items()}
    taken = {name: one.leads_at() - killed_at[name] for name, one in second.items()}
    for one in second.values():
        one.kill()
    return taken


def _say(said: object) -> None:
    sys.stdout.write(f"{said}\n")
    sys.stdout.flush()


def _leads() -> None:
    _say(time.monotonic())
    time.sleep(3600)


def main(kind: str, where: str, ttl: float) -> None:
    """Campaign, and lead until killed."""
    if kind == "lockstead":
        import lockstead

        _say("campaigns")
        with lockstead.Election(where, ttl=ttl).lead():
            _leads()
    else:
        from kazoo.client import KazooClient

        client = KazooClient(hosts=where, timeout=ttl)
        client.start()
        _say("campaigns")
        client.Election("/kazoo/election").run(_leads)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))

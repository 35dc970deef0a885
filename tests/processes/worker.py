"""The work of a process of a kill run: acquire, hold, renew, draw tokens, count, release, until it is killed.

It decides by random numbers alone and writes each step to the journal before and after. It uses the public API only.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

import lockstead
from lockstead import Client, Lease
from lockstead.events import LockEvent
from lockstead.stores.bootclock import boot_now
from tests.processes.counter import Counter
from tests.processes.journal import Journal

SAMPLE = 0.004
"""Seconds between two looks at the own lease."""


@dataclass(frozen=True, slots=True)
class Course:
    """The settings of a run on one store. ttl, renew_every and request_timeout are in seconds; keys is the number of
    locks.

    Renewals are frequent, so that many are in flight when the kill comes.
    """

    url: str
    folder: Path
    keys: int
    ttl: float = 1.0
    renew_every: float = 0.06
    request_timeout: float = 0.055
    max_failures: int = 10

    def key(self, number: int) -> str:
        return f"k{number}"

    def counter(self, key: str) -> Counter:
        return Counter(self.folder / f"{key}.counter")

    def lock(self, client: Client, key: str) -> lockstead.Lock:
        return client.lock(
            key,
            ttl=self.ttl,
            renew_every=self.renew_every,
            request_timeout=self.request_timeout,
            max_failures=self.max_failures,
            backoff_min=0.005,
            backoff_max=0.1,
        )


def quiet(_event: LockEvent) -> None:
    """Hear nothing."""


def work(course: Course, journal: Journal, seed: str) -> None:
    """Go round forever, with a fresh client now and then, so that opening and closing are hit too."""
    dice = random.Random(seed)
    while True:
        with lockstead.connect(course.url, listener=quiet) as client:
            for _turn in range(dice.randint(1, 12)):
                _turn_of(course, client, journal, dice)


def _turn_of(course: Course, client: Client, journal: Journal, dice: random.Random) -> None:
    key = course.key(dice.randrange(course.keys))
    journal.note("asks", key)
    try:
        lease = course.lock(client, key).acquire(timeout=dice.choice((0.0, 0.02, 0.2)))
    except lockstead.NotAcquired:
        journal.note("refused", key)
    except (lockstead.StoreUnavailable, lockstead.OutcomeUnknown):
        journal.note("silent", key)
    else:
        _hold(course, lease, journal, dice)


def _hold(course: Course, lease: Lease, journal: Journal, dice: random.Random) -> None:
    try:
        tell(lease, journal)
        if dice.random() < 0.7:
            increment(course, lease, journal, pause=dice.choice((0.0, 0.002, 0.01)))
        if dice.random() < 0.5:
            lease.progress(f"{dice.random()}")
        ends_at = boot_now() + dice.choice((0.0, 0.0, 0.01, 0.2))
        while boot_now() < ends_at:
            tell(lease, journal)
            time.sleep(SAMPLE)
    except lockstead.LeaseLost as lost:
        journal.note("lost", lease.key, lease.holder, word=lost.reason.value)
    except (lockstead.StoreUnavailable, lockstead.OutcomeUnknown):
        journal.note("silent", lease.key)
    give_back(lease, journal)


def tell(lease: Lease, journal: Journal) -> None:
    """Say until when this process may believe: read before it is written, so never too long."""
    now = boot_now()
    lease.check()
    ending = lease.previous_lease.ending.value
    journal.note("holds", lease.key, lease.holder, at=now, token=lease.token, until=now + lease.time_left, word=ending)


def increment(course: Course, lease: Lease, journal: Journal, *, pause: float = 0.0) -> None:
    """Count one up, as a holder with a fenced resource does; LeaseLost if it is not ours to count any more."""
    counter = course.counter(lease.key)
    sequencer = lease.sequencer()
    journal.note("token", lease.key, lease.holder, token=sequencer.token)
    value = counter.read(sequencer) + 1
    time.sleep(pause)
    lease.check()
    journal.note("writes", lease.key, lease.holder, token=sequencer.token, value=value)
    counter.write(sequencer, value)
    journal.note("wrote", lease.key, lease.holder, token=sequencer.token, value=value)


def give_back(lease: Lease, journal: Journal) -> None:
    journal.note("leaves", lease.key, lease.holder)
    try:
        removed = lease.release()
        journal.note("removed" if removed else "left", lease.key, lease.holder)
    except (lockstead.StoreUnavailable, lockstead.OutcomeUnknown):
        journal.note("silent", lease.key)


def come_last(course: Course, journal: Journal) -> None:
    """Take every lock once more and count one up, after all the killing."""
    with lockstead.connect(course.url, listener=quiet) as client:
        for number in range(course.keys):
            key = course.key(number)
            # long enough for a busy machine: no store may stay closed forever
            lock = client.lock(key, ttl=60, backoff_max=0.1)
            with lock.hold(timeout=60) as lease:
                tell(lease, journal)
                increment(course, lease, journal)
                journal.note("finally", key)
                journal.note("leaves", key, lease.holder)

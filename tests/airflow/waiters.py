"""What the triggers do for the tests of `triggers`: run by an Airflow's Python, with no Airflow around.

    python waiters.py SCENARIO LOCK_URL

Says on its last line, as JSON, what was seen.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import sqlite3
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import lockstead
from airflow_lockstead import LockSensor, acquiring, compat, connection, grants, triggers, unbegun
from airflow_lockstead.spec import LockSpec
from lockstead.stores.bootclock import BootIdentity, boot_now

TTL = 12.0
NOBODY = "etcd://127.0.0.1:9#apt"
"""A port where nobody listens."""


class Counted:
    """What is asked of all stores of one kind, however many objects there are of it."""

    def __init__(self, url: str) -> None:
        self.lock = lockstead.AsyncLock(url, ttl=TTL)
        kind = type(self.lock._open_now().store)
        self._numbers, perform = itertools.count(1), kind.perform
        self.requests = 0

        def counted(store: Any, command: Any, limit: float) -> Any:
            self.requests = next(self._numbers)
            return perform(store, command, limit)

        kind.perform = counted


def spec_of(url: str, ttl: float = TTL) -> dict[str, Any]:
    return triggers.plain(LockSpec(lock=url, ttl=ttl, keeper=False))


def waiter(url: str, owner: str, gives_up_at: float | None = None, ttl: float = TTL) -> triggers.WaitTrigger:
    made = triggers.WaitTrigger(spec_of(url, ttl), owner, time.time(), gives_up_at)
    path, words = made.serialize()
    assert path == "airflow_lockstead.triggers.WaitTrigger"
    return triggers.WaitTrigger(**json.loads(json.dumps(words)))


async def fired(trigger: Any) -> dict[str, Any]:
    async for event in trigger.run():
        return event.payload
    raise AssertionError("it did not fire")


async def many(url: str) -> dict[str, Any]:
    """Let a thousand wait, count what they ask; then let some of them have it, one after the other."""
    count, began_at = Counted(url), time.monotonic()
    held = await count.lock.acquire(timeout=5)
    waiting = [
        asyncio.create_task(fired(waiter(url, f"airflow:d/r/t{number}/-1")), name=f"t{number}")
        for number in range(1000)
    ]
    free = [asyncio.create_task(fired(triggers.FreeTrigger(spec_of(url), time.time() + 60))) for _ in range(1000)]
    await asyncio.sleep(3)
    begun = count.requests
    await asyncio.sleep(10)
    asked = count.requests - begun
    still = sum(not one.done() for one in [*waiting, *free])
    await held.release()
    tokens, owners, released_at = [], [], time.monotonic()
    for _ in range(10):
        done, _rest = await asyncio.wait(waiting, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1, done
        [one] = done
        waiting.remove(one)
        grant = one.result()
        tokens.append(grant["token"])
        owners.append(one.get_name())
        await lockstead.AsyncLock(url, ttl=TTL).release(grant["ticket"])
    took = time.monotonic() - released_at
    for one in [*waiting, *free]:
        one.cancel()
    await asyncio.gather(*waiting, *free, return_exceptions=True)
    return {
        "begun": begun,
        "asked": asked,
        "still": still,
        "tokens": tokens,
        "owners": owners,
        "took": took,
        "all": time.monotonic() - began_at,
    }


async def shared(url: str) -> dict[str, Any]:
    """Readers are granted together; a writer waits for both, and who waits for a writer's turn with it."""
    log, lock = logging.getLogger("task"), lockstead.AsyncLock(url, ttl=TTL)
    spec = LockSpec(lock=url, ttl=120.0, keeper=False, mode="shared")

    def reader(owner: str) -> triggers.WaitTrigger:
        made = triggers.WaitTrigger(triggers.plain(spec), owner, time.time())
        return triggers.WaitTrigger(**json.loads(json.dumps(made.serialize()[1])))

    tries = [await fired(reader("airflow:d/r/mine/-1")) for _ in range(2)]
    at_once = await asyncio.to_thread(acquiring.at_once, spec, "airflow:d/r/mine/-1", log)
    assert at_once is not None
    free = [
        asyncio.create_task(fired(triggers.FreeTrigger(triggers.plain(replace(spec, mode=mode)))))
        for mode in ("shared", "exclusive")
    ]
    beside = await asyncio.wait_for(free[0], 20)
    keeper = asyncio.create_task(triggers.KeepTrigger(triggers.plain(spec), tries[0]["ticket"])._kept())
    writer = asyncio.create_task(fired(waiter(url, "airflow:d/r/writer/-1")))
    while (held := await lock.inspect()) is None or held.wanted_by is None:  # noqa: ASYNC110 - no event tells it
        await asyncio.sleep(0.05)
    kept_out = await asyncio.to_thread(acquiring.at_once, spec, "airflow:d/r/late/-1", log)
    waited = not writer.done() and not free[1].done()
    released = [await lock.release(one) for one in (tries[0]["ticket"], tries[1]["ticket"], at_once.ticket)]
    granted = await asyncio.wait_for(writer, 60)
    await lock.release(granted["ticket"])
    return {
        "tokens": [one["token"] for one in tries] + [at_once.token],
        "mode": at_once.mode,
        "beside": beside["state"],
        "kept_out": kept_out is None,
        "waited": waited,
        "released": released,
        "keeper": (await asyncio.wait_for(keeper, 60))["state"],
        "free": (await asyncio.wait_for(free[1], 60))["state"],
        "grows": granted["token"] > at_once.token,
    }


async def permits(url: str) -> dict[str, Any]:
    """Two have a permit, a third waits for one; a lease is kept, given back by its ticket, and taken from no other."""
    log, semaphore = logging.getLogger("task"), lockstead.AsyncSemaphore(url, 2)
    spec = LockSpec(lock=url, ttl=120.0, keeper=False, permits=2)

    def trigger(owner: str) -> triggers.WaitTrigger:
        made = triggers.WaitTrigger(triggers.plain(spec), owner, time.time())
        return triggers.WaitTrigger(**json.loads(json.dumps(made.serialize()[1])))

    first = grants.Grant.read(await fired(trigger("airflow:d/r/first/-1")))
    second = await asyncio.to_thread(acquiring.at_once, spec, "airflow:d/r/second/-1", log)
    assert second is not None
    keeper = asyncio.create_task(triggers.KeepTrigger(triggers.plain(spec), first.ticket)._kept())
    # a retry of the same owner does not take over the permit of the earlier try
    full = await asyncio.to_thread(acquiring.at_once, spec, "airflow:d/r/second/-1", log)
    sensor, free = LockSensor(task_id="f", lock=url, permits=2), triggers.FreeTrigger(triggers.plain(spec))
    freed = asyncio.create_task(fired(free))
    third = asyncio.create_task(fired(trigger("airflow:d/r/third/-1")))
    while (state := await semaphore.inspect()) is None or state.next_waiter is None:  # noqa: ASYNC110 - no event tells it
        await asyncio.sleep(0.05)
    waited = not third.done() and not freed.done() and not await asyncio.to_thread(sensor.poke, {})
    lock = await connection.async_lock(spec)
    released = await lock.release(first.ticket)
    granted = grants.Grant.read(await asyncio.wait_for(third, 60))
    settled = [await unbegun._is_settled(lock, granted, log) for _ in range(2)]
    state = await semaphore.inspect()
    free_again = (await asyncio.wait_for(freed, 60))["state"], await asyncio.to_thread(sensor.poke, {})
    left = await semaphore.renew(second.ticket)
    refused = ""
    try:
        await asyncio.to_thread(LockSensor(task_id="s", lock=url).poke, {})
    except compat.AirflowFailException as error:
        refused = str(error)
    return {
        "slots": [first.slot, second.slot, granted.slot],
        "mode": first.mode,
        "text": str(first),
        "full": full is None,
        "free_again": free_again,
        "waited": waited,
        "released": released,
        "keeper": (await asyncio.wait_for(keeper, 60))["state"],
        "settled": settled,
        "held": state and [one.owner for one in state.held],
        "left": left,
        "refused": refused,
    }


async def refused_reader(url: str) -> dict[str, Any]:
    """A reader that must fail after an unclean end leaves the other readers, and the next holder is told as well."""
    log, lock = logging.getLogger("task"), lockstead.AsyncLock(url, ttl=TTL, owner="who died")
    await lock.acquire(timeout=5)
    await lock.break_lease(reason="a test", now=True)
    spec = LockSpec(lock=url, ttl=120.0, keeper=False, mode="shared", on_unclean="fail")
    other = await lockstead.AsyncLock(url, ttl=120.0, mode="shared").acquire(timeout=5)
    grant = await asyncio.to_thread(acquiring.at_once, spec, "airflow:d/r/mine/-1", log)
    assert grant is not None
    failed = ""
    try:
        await asyncio.to_thread(acquiring.judge, spec, "airflow:d/r/mine/-1", grant, log)
    except compat.AirflowFailException as error:
        failed = str(error)
    held = await lock.inspect()
    left = await other.renew()
    again = await asyncio.to_thread(acquiring.at_once, spec, "airflow:d/r/mine/-1", log)
    assert again is not None
    return {"failed": failed, "readers": held and len(held.readers), "left": left, "again": again.unclean}


async def unbegun_reader(url: str) -> dict[str, Any]:
    """A reader whose task ended before its body began gives back its own lease, and that of no other reader."""
    log = logging.getLogger("task")
    lock = lockstead.AsyncLock(url, ttl=120.0, mode="shared", owner="other")
    other = await lock.acquire(timeout=5)
    spec = LockSpec(lock=url, ttl=120.0, keeper=False, mode="shared")
    grant = await asyncio.to_thread(acquiring.at_once, spec, "airflow:d/r/mine/-1", log)
    assert grant is not None
    settled = [await unbegun._is_settled(lock, grant, log) for _ in range(2)]
    held = await lock.inspect()
    return {"settled": settled, "left": held and [one.owner for one in held.readers], "time": await other.renew()}


async def poked(url: str) -> dict[str, Any]:
    """Let sensors of both modes look at a lock that is free, that a reader holds, and that a writer holds."""
    sensors = [LockSensor(task_id=f"s-{mode}", lock=url, lock_mode=mode) for mode in ("shared", "exclusive")]

    async def poke() -> list[bool]:
        return [await asyncio.to_thread(sensor.poke, {}) for sensor in sensors]

    seen: dict[str, Any] = {"free": await poke()}
    for mode in ("shared", "exclusive"):
        async with lockstead.AsyncLock(url, ttl=120.0, mode=mode).hold(timeout=5):
            seen[mode] = await poke()
    return seen


async def unconsumed(url: str) -> dict[str, Any]:
    """A grant whose event nobody takes: cleanup gives nothing back, and its ttl frees it."""
    trigger = waiter(url, "airflow:d/r/first/-1")
    event = await fired(trigger)
    await trigger.cleanup()
    lock = lockstead.AsyncLock(url, ttl=TTL)
    held = await lock.inspect()
    began_at = time.monotonic()
    other = await fired(waiter(url, "airflow:d/r/second/-1"))
    return {
        "held_after_cleanup": held is not None and held.holder == event["holder"],
        "state": event["state"],
        "other": other["state"],
        "took": time.monotonic() - began_at,
        "unclean": other["unclean"],
    }


async def again(url: str) -> dict[str, Any]:
    """The same owner asks again, behind others: it takes over its own earlier grant and does not wait for its end."""
    long = 120.0
    first = await fired(waiter(url, "airflow:d/r/mine/-1", ttl=long))
    others = [asyncio.create_task(fired(waiter(url, f"airflow:d/r/{name}/-1", ttl=long))) for name in "abc"]
    await asyncio.sleep(triggers.SHARED_READ_TTL + 1)
    began_at = time.monotonic()
    second = await asyncio.wait_for(fired(waiter(url, "airflow:d/r/mine/-1", ttl=long)), 60)
    for one in others:
        one.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    return {
        "first": first["token"],
        "second": second["token"],
        "took": time.monotonic() - began_at,
        "unclean": second["unclean"],
    }


async def retried(url: str) -> dict[str, Any]:
    """A try was granted and failed just then: its retry, in a worker, takes that over; others are told to wait."""
    first = await fired(waiter(url, "airflow:d/r/mine/-1", ttl=120.0))
    spec, log = LockSpec(lock=url, ttl=120.0, keeper=False), logging.getLogger("task")
    other = await asyncio.to_thread(acquiring.at_once, spec, "airflow:d/r/other/-1", log)
    again = await asyncio.to_thread(acquiring.at_once, spec, "airflow:d/r/mine/-1", log)
    assert again is not None
    held = await lockstead.AsyncLock(url).inspect()
    await lockstead.AsyncLock(url, ttl=120.0).release(again.ticket)
    free = await asyncio.to_thread(acquiring.at_once, spec, "airflow:d/r/other/-1", log)
    return {
        "other": other is None,
        "grows": again.token > first["token"],
        "unclean": again.unclean,
        "where": None if held is None else held.where,
        "free": free is not None,
    }


async def unclean(url: str) -> dict[str, Any]:
    """What went before ended unclean, a trigger was told, and its task was failed before it could say so."""
    spec, log = LockSpec(lock=url, ttl=120.0, keeper=False, on_unclean="fail"), logging.getLogger("task")
    # all of it within the time for which one look at who holds a lock serves all who wait for it
    await (
        await lockstead.AsyncLock(url, ttl=triggers.SHARED_READ_TTL / 5, owner="who died").acquire(timeout=5)
    ).detach()
    first = await fired(triggers.WaitTrigger(triggers.plain(spec), "airflow:d/r/mine/-1", time.time()))
    # its triggerer died before anybody was told
    once_more = await fired(triggers.WaitTrigger(triggers.plain(spec), "airflow:d/r/mine/-1", time.time()))
    again = await asyncio.to_thread(acquiring.at_once, spec, "airflow:d/r/mine/-1", log)
    assert again is not None
    failed = ""
    try:
        await asyncio.to_thread(acquiring.judge, spec, "airflow:d/r/mine/-1", again, log)
    except Exception as error:
        failed = f"{type(error).__name__}: {error}"
    free = await lockstead.AsyncLock(url).inspect() is None
    cleared = await asyncio.to_thread(acquiring.at_once, spec, "airflow:d/r/mine/-1", log)
    assert cleared is not None
    # refused once more, and not cleared: others are told, each in turn, until somebody has repaired
    others = []
    refused = replace(cleared, unclean=first["unclean"])
    for owner, after in (("mine", "other"), ("other", "another")):
        with suppress(Exception):
            await asyncio.to_thread(acquiring.judge, spec, f"airflow:d/r/{owner}/-1", refused, log)
        told = await asyncio.to_thread(acquiring.at_once, spec, f"airflow:d/r/{after}/-1", log)
        assert told is not None
        refused = told
        others.append(refused.unclean)
    with suppress(Exception):
        await asyncio.to_thread(acquiring.judge, spec, "airflow:d/r/another/-1", refused, log)
    await (await lockstead.AsyncLock(url).acquire(timeout=5)).release()
    repaired = await asyncio.to_thread(acquiring.at_once, spec, "airflow:d/r/other/-1", log)
    return {
        "first": first["unclean"],
        "again": again.unclean,
        "once_more": once_more["unclean"],
        "failed": failed,
        "free": free,
        "cleared": cleared.unclean is None,
        "others": others,
        "repaired": repaired is not None and repaired.unclean is None,
    }


async def untold(_url: str) -> dict[str, Any]:
    """A store that cannot tell how a holder ended is asked for a lock; nobody listens there."""
    log, seen = logging.getLogger("task"), []
    for ask in (acquiring.at_once, acquiring.inline):
        try:
            await asyncio.to_thread(ask, LockSpec(lock=NOBODY, keeper=False, on_unclean="fail"), "a", log)
        except Exception as error:
            seen.append(f"{type(error).__name__}: {error}")
    warned = ""
    try:
        await asyncio.to_thread(acquiring.inline, LockSpec(lock=NOBODY, timeout=0, keeper=False), "a", log)
    except lockstead.StoreError as error:
        warned = type(error).__name__
    return {"fail": seen, "warn": warned}


async def cancelled(url: str) -> dict[str, Any]:
    """Cancel a trigger in the midst of each of its requests, until there are no more; then one that has fired."""
    lock = lockstead.AsyncLock(url, ttl=1, owner="who died")
    kind = type(lock._open_now().store)
    perform, left = kind.perform, []
    # what is read of who died makes the grant a longer way
    await (await lock.acquire(timeout=5)).detach()
    for number in itertools.count(1):
        is_there, may_go_on, asked = threading.Event(), threading.Event(), itertools.count(1)

        def slow(store: Any, command: Any, limit: float) -> Any:
            answer = perform(store, command, limit)
            if next(asked) == number:  # noqa: B023 - it is put back before the next one
                is_there.set()  # noqa: B023
                may_go_on.wait(60)  # noqa: B023
            return answer

        trigger = triggers.WaitTrigger(spec_of(url, 300.0), "airflow:d/r/t", time.time())
        kind.perform = slow
        task = asyncio.create_task(fired(trigger))
        waiting = asyncio.ensure_future(asyncio.to_thread(is_there.wait))
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        kind.perform = perform
        if task.done():
            is_there.set()
            break
        task.cancel()
        await asyncio.sleep(0)
        may_go_on.set()
        await asyncio.gather(task, return_exceptions=True)
        try:
            await asyncio.wait_for(lockstead.AsyncLock(url, owner="the test").wait_until_free(), 60)
        except TimeoutError:
            left.append(number)
    event = task.result()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    held = await lock.inspect()
    return {
        "requests": number,
        "left": left,
        "unclean": event["unclean"],
        "still": held is not None and held.holder == event["holder"],
    }


async def kept(url: str) -> dict[str, Any]:
    """A lease is kept for longer than it would live, and the keeper fires when it is released."""
    grant = await fired(waiter(url, "airflow:d/r/t/-1"))
    keeper = triggers.KeepTrigger(spec_of(url), grant["ticket"])
    again = triggers.KeepTrigger(**json.loads(json.dumps(keeper.serialize()[1])))
    task = asyncio.create_task(fired(again))
    await asyncio.sleep(1.5 * TTL)
    lock = lockstead.AsyncLock(url, ttl=TTL)
    held = await lock.inspect()
    lives = held is not None and held.holder == grant["holder"] and not held.is_expired and not task.done()
    released = await lock.release(grant["ticket"])
    event = await asyncio.wait_for(task, 20)
    if compat.HAS_TASK_SDK:  # it ends its task itself, and no worker is needed for that
        assert event == "success"
        event = await again._kept()
    return {"lives": lives, "released": released, **event}


async def ended(url: str) -> dict[str, Any]:
    """Keepers whose next renewal is far away, of a lease that is given back and of one that the next in line has."""
    long, seen = 900.0, {}
    for name in ("released", "passed_on"):
        grant = await fired(waiter(url, "airflow:d/r/t/-1", ttl=long))
        keeper = asyncio.create_task(triggers.KeepTrigger(spec_of(url, long), grant["ticket"])._kept())
        next_one = (
            asyncio.create_task(fired(waiter(url, "airflow:d/r/u/-1", ttl=long))) if name == "passed_on" else None
        )
        await asyncio.sleep(1)
        assert not keeper.done()
        await lockstead.AsyncLock(url, ttl=long).release(grant["ticket"])
        # the condition is that it does not wait for its renewal, which is due when 112 seconds are over
        seen[name] = (await asyncio.wait_for(keeper, long / 8 - 20))["reason"]
        if next_one is not None:
            await lockstead.AsyncLock(url, ttl=long).release((await next_one)["ticket"])
    return seen


async def free(url: str) -> dict[str, Any]:
    """Who waits until a lock is free is told, and has not taken it; who has no time left is told who holds it."""
    lock = lockstead.AsyncLock(url, ttl=TTL, owner="somebody")
    lease = await lock.acquire(timeout=5)
    late = await fired(triggers.FreeTrigger(spec_of(url), time.time() + 1))
    task = asyncio.create_task(fired(triggers.FreeTrigger(spec_of(url))))
    await asyncio.sleep(1)
    waited = not task.done()
    await lease.release()
    event = await asyncio.wait_for(task, 20)
    return {"late": late, "waited": waited, "event": event, "taken": await lock.inspect() is not None}


async def timeout(url: str) -> dict[str, Any]:
    """A wait that ends, and a lock that cannot be."""
    lock = lockstead.AsyncLock(url, ttl=60, owner="somebody", purpose="being first")
    (await lock.acquire(timeout=5)).detach()
    late = await fired(waiter(url, "airflow:d/r/t/-1", time.time() + 1))
    wrong = triggers.WaitTrigger({**spec_of(url), "lock": "nonsense://x#y"}, "o", time.time())
    return {"late": late, "wrong": await fired(wrong)}


def write(url: str, space: str, part: str, fields: dict[str, str], updated: float | None = None) -> None:
    """Write what somebody might who may write the store, and means no good."""
    here = BootIdentity.here()
    path = url.removeprefix("sqlite:///").partition("#")[0]
    with sqlite3.connect(path, isolation_level=None) as database:
        row = (space, "apt", part, 1, 1, boot_now() if updated is None else updated, here.boot, here.namespace)
        database.execute("INSERT OR REPLACE INTO record VALUES (?,?,?,?,?,?,?,?,?)", (*row, json.dumps(fields)))


EVIL = {"v": "1", "identity": "evil/1", "owner": "evil", "ttl": "300"}


async def hostile(url: str) -> dict[str, Any]:
    """Read what nobody could have written honestly: who holds the lock, and who broke it before."""
    log = logging.getLogger("task")
    await (await lockstead.AsyncLock(url, ttl=TTL).acquire(timeout=5)).release()  # the file is made
    write(url, "lock", "", {**EVIL, "acquired_at": "1e300"})
    waiting = {
        "wait": asyncio.create_task(fired(waiter(url, "airflow:d/r/t/-1"))),
        "free": asyncio.create_task(fired(triggers.FreeTrigger(spec_of(url)))),
    }
    await asyncio.sleep(2)
    seen: dict[str, Any] = {name: "waits" if not task.done() else task.result() for name, task in waiting.items()}
    seen["at_once"] = await asyncio.to_thread(acquiring.at_once, LockSpec(lock=url, keeper=False), "x", log)
    for task in waiting.values():
        task.cancel()
    await asyncio.gather(*waiting.values(), return_exceptions=True)
    # one who died long ago, and an entry of the history that cannot be read
    write(url, "lock", "", {**EVIL, "ttl": "1"}, updated=0.0)
    write(
        url, "audit", "01795000000001-bb",
        {"v": "1", "at": "1", "by": "x", "reason": "r", "what": "revoked", "token": "\N{SUPERSCRIPT TWO}"},
    )  # fmt: skip
    event = await fired(waiter(url, "airflow:d/r/t/-1"))
    seen["event"] = event["state"], event.get("unclean")
    await lockstead.AsyncLock(url, ttl=TTL).release(event["ticket"])
    write(url, "lock", "", {**EVIL, "ttl": "1"}, updated=0.0)
    grant = await asyncio.to_thread(acquiring.at_once, LockSpec(lock=url, keeper=False), "airflow:d/r/u/-1", log)
    seen["granted"] = grant is not None and grant.unclean
    return seen


async def tokenless(url: str) -> dict[str, Any]:
    """Lose the store between the grant and the token that belongs to it: for a trigger, and for a task."""
    log, seen = logging.getLogger("task"), {}

    def failing(_lease: Any) -> Any:
        raise lockstead.StoreUnavailable("no token now")

    lockstead.Lease.sequencer = lockstead.AsyncLease.sequencer = failing  # type: ignore[method-assign]
    spec = LockSpec(lock=url, ttl=300, keeper=False)
    for name in ("trigger", "at_once", "inline"):
        ended = ""
        try:
            if name == "trigger":
                ended = (await fired(waiter(url, "airflow:d/r/t/-1", ttl=300)))["state"]
            else:
                await asyncio.to_thread(getattr(acquiring, name), spec, "airflow:d/r/t/-1", log)
        except Exception as error:
            ended = type(error).__name__
        held = await lockstead.AsyncLock(url).inspect()
        seen[name] = [ended, "free" if held is None else "held"]
    return seen


if __name__ == "__main__":
    print(json.dumps(asyncio.run(globals()[sys.argv[1]](sys.argv[2]))), flush=True)

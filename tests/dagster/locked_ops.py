"""The bodies of the ops that the tests on a live Dagster run. No annotation is a text here: Dagster reads them.

A run's tag `test/name` names the lock of its ops, the file of notes in which their bodies say what they do, and what
their processes carry in the environment.
"""

import asyncio
import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_lockstead import LockResource, locked

NAME = "test/name"
BODY = "LOCKSTEAD_TEST_BODY"
FOR_EVER = 600.0


def name_of(context: Any) -> str:
    """Return the name in the tags of the context's run: the key of its lock."""
    return str(context.run.tags[NAME])


def note(context: Any, what: str, **more: Any) -> None:
    """Say at once what a body does, where others can read it though the body is killed."""
    line = {"what": what, "run": context.run.run_id, "pid": os.getpid(), "at": time.monotonic(), **more}
    there = os.open(Path(os.environ["LOCKSTEAD_TEST_NOTES"]) / name_of(context), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(there, f"{json.dumps(line)}\n".encode())
    finally:
        os.close(there)


@contextmanager
def staying(context: Any, **more: Any) -> Iterator[None]:
    """Note that the body is in the section, that its clean-up ran, and that it has left."""
    note(context, "enters", retry=context.retry_number, **more)
    try:
        yield
    finally:
        note(context, "cleans up")


def carried(context: Any) -> dict[str, str]:
    """Return the environment of a body's processes."""
    return {**os.environ, BODY: name_of(context)}


LOOP = """
import os, sys, time
notes = sys.argv[1]
while True:
    with open(notes, "a") as there:
        there.write('{"what": "ticks", "at": %f}\\n' % time.monotonic())
    time.sleep(0.05)
"""
"""What goes on noting that it works."""

RETRIES = dg.RetryPolicy(max_retries=3)
"""Of what must never be tried again."""

TTL = 18
"""Seconds of the leases that are lost in tests: who hears of it at the next renewal has not just let them run out."""

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
from dagster_pipes import open_dagster_pipes
with open_dagster_pipes():
    time.sleep(600)
"""
"""A process of Pipes that SIGINT does not end, with a child in a session of its own."""


@dg.op
def plain(context) -> int:  # type: ignore[no-untyped-def]
    """Do nothing that could fail."""
    context.log.info("plain runs in %s", os.getpid())
    return 1


@dg.op
def sleeps() -> None:
    """Sleep until somebody ends it."""
    time.sleep(FOR_EVER)


@dg.op
@locked(name_of)
def quick(context) -> int:  # type: ignore[no-untyped-def]
    """Stay until the file in the tags is there, if they name one, and come to a good end."""
    with staying(context):
        until_there = context.run.tags.get("test/until")
        while until_there and not Path(until_there).exists():
            time.sleep(0.1)
    return 7


@dg.op
@locked(name_of, ttl=TTL)
def sync_body(context) -> None:  # type: ignore[no-untyped-def]
    """Sleep in Python."""
    with staying(context):
        time.sleep(FOR_EVER)


@dg.op
@locked(name_of, ttl=TTL)
def shell_body(context) -> None:  # type: ignore[no-untyped-def]
    """Wait for a shell that has a child in the background."""
    with staying(context):
        subprocess.run(["bash", "-c", "sleep 600 & sleep 600"], env=carried(context), check=True)


@dg.op
@locked(name_of, ttl=TTL)
async def async_body(context) -> None:  # type: ignore[no-untyped-def]
    """Sleep on the event loop, with a clean-up that awaits."""
    note(context, "enters")
    try:
        await asyncio.sleep(FOR_EVER)
    finally:
        await asyncio.sleep(0.05)
        note(context, "cleans up")


@dg.op
@locked(name_of, ttl=TTL)
def pipes_body(context, pipes: dg.PipesSubprocessClient) -> None:  # type: ignore[no-untyped-def]
    """Wait for a process of Pipes that ignores SIGINT."""
    with staying(context):
        pipes.run(command=[sys.executable, "-c", STUBBORN], context=context, env=carried(context))


@dg.op
@locked(name_of, ttl=TTL)
def swallowing_body(context) -> int:  # type: ignore[no-untyped-def]
    """Take whatever is raised for nothing, and come to a good end."""
    with staying(context):
        try:
            time.sleep(FOR_EVER)
        except BaseException:
            note(context, "swallows")
    return 1


@dg.op
@locked(name_of, ttl=TTL)
def busy_body(context) -> None:  # type: ignore[no-untyped-def]
    """Compute."""
    turns = 0
    with staying(context):
        while True:
            turns += 1


@dg.op
@locked(name_of, ttl=3)
def silent_body(context) -> None:  # type: ignore[no-untyped-def]
    """Keep the interpreter for longer than the lease lives: nothing renews it, and nothing is heard of that."""
    with staying(context):
        ctypes.PyDLL(None).sleep(5)
        note(context, "back")
        time.sleep(FOR_EVER)


@dg.op(retry_policy=dg.RetryPolicy(max_retries=1))
@locked(name_of, ttl=6)
def retried_body(context) -> None:  # type: ignore[no-untyped-def]
    """Sleep at the first attempt; come to a good end at the next."""
    with staying(context):
        time.sleep(FOR_EVER if context.retry_number == 0 else 0)


@dg.op
@locked(name_of, ttl=60)
def ticking_body(context) -> None:  # type: ignore[no-untyped-def]
    """Start what goes on working though nobody waits for it, and wait for it. The lease outlives any test."""
    notes = str(Path(os.environ["LOCKSTEAD_TEST_NOTES"]) / name_of(context))
    with staying(context):
        subprocess.run([sys.executable, "-c", LOOP, notes], env=carried(context), check=True)


@dg.op
@locked(name_of, ttl=600)
def counting_body(context) -> None:  # type: ignore[no-untyped-def]
    """Note that it works as long as it does. The lease outlives what is waited for."""
    with staying(context):
        while True:
            note(context, "ticks")
            time.sleep(0.05)


@dg.op
@locked(name_of, ttl=4)
def deaf_body(context) -> None:  # type: ignore[no-untyped-def]
    """Note that it works as long as it does, and hear nothing."""
    note(context, "enters")
    while True:
        try:
            note(context, "ticks")
            time.sleep(0.05)
        except BaseException:
            note(context, "hears")


@dg.op
def crossed_body(context, lock: LockResource) -> None:  # type: ignore[no-untyped-def]
    """Hold one lock, twice, and ask for another for a while, once the other run holds that."""
    first, second = context.run.tags["test/first"], context.run.tags["test/second"]
    with lock.hold(context, first):
        with lock.hold(context, first):
            pass
        seen = lock.inspect(first)
        note(context, "has", key=first, owner=seen and seen.owner)
        while not lock.inspect(second):
            time.sleep(0.05)
        with lock.hold(context, second, timeout=3):
            note(context, "has both")


@dg.op(out=dg.DynamicOut(int))
@locked(name_of)
def dynamic_body(context) -> Iterator[dg.DynamicOutput[int]]:  # type: ignore[no-untyped-def]
    """Return as many outputs as it likes."""
    with staying(context):
        for number in range(2):
            yield dg.DynamicOutput(number, mapping_key=f"part_{number}")


@dg.op
@locked(name_of, resource="guarded")
def secret(context) -> None:  # type: ignore[no-untyped-def]
    """Come to a good end under a lock of a store that wants a password."""
    with staying(context):
        context.log.info("in the section")


@dg.op
@locked(name_of, resource="misguided", timeout=2)
def wrong_secret(context) -> None:  # type: ignore[no-untyped-def]
    """Ask for a lock of a store that does not take the password."""
    note(context, "enters")


@dg.op
def unguarded(context) -> None:  # type: ignore[no-untyped-def]
    """Do what ticking_body does, with no lock of its own."""
    notes = str(Path(os.environ["LOCKSTEAD_TEST_NOTES"]) / name_of(context))
    with staying(context):
        subprocess.run([sys.executable, "-c", LOOP, notes], env=carried(context), check=True)


@dg.op
def quick_unguarded(context) -> None:  # type: ignore[no-untyped-def]
    """Come to a good end, with no lock of its own."""
    with staying(context):
        pass

"""The ops that are interrupted in tests, and jobs of them. Loaded by path, also in step processes.

Where they write what they went through, and which process they start, is said by the environment. No annotation is a
text here: Dagster reads them.
"""

import asyncio
import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg

import lockstead
from dagster_lockstead import LockResource, leased, locked
from tests.dagster.taking import until

LOCK = LockResource(store=dg.EnvVar("LOCKSTEAD_TEST_STORE"), ttl="2s")

PIPES_CHILD = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
open(sys.argv[1], "a").write("child\\n")
time.sleep(float(sys.argv[2]))
"""


def note(name: str) -> None:
    """Say in the test's folder that this point was come to."""
    with (Path(os.environ["LOCKSTEAD_TEST_FOLDER"]) / name).open("a") as file:
        file.write(f"{os.getpid()}\n")


def nap() -> str:
    """Return the seconds for which this test's processes sleep; no others sleep for so long."""
    return os.environ["LOCKSTEAD_TEST_NAP"]


class SlowWrites(dg.IOManager):
    """Writes for a minute; swallows what interrupts it, if it is told to."""

    def __init__(self, *, swallows: bool = False) -> None:
        self._swallows = swallows

    def handle_output(self, context, obj):
        note("in")
        try:
            time.sleep(60)
        except Exception:
            if not self._swallows:
                raise
        note("written")

    def load_input(self, context):
        return None


@dg.op
@locked("k")
def sleeps(context):
    try:
        note("in")
        time.sleep(60)
        note("undisturbed")
    finally:
        note("finally")


@dg.op
@locked("k")
def computes(context):
    turns = 0
    try:
        note("in")
        while True:
            turns += 1
    finally:
        note("finally")


@dg.op
@locked("k")
def shells(context):
    try:
        note("in")
        subprocess.run(["bash", "-c", f"sleep {nap()} & sleep {nap()}"], check=False)
    finally:
        note("finally")


@dg.op
@locked("k")
def leaves_behind(context):
    note("in")
    subprocess.Popen(["setsid", "bash", "-c", f"(trap '' TERM; sleep {nap()}; sleep {nap()}) & exec sleep {nap()}"])
    time.sleep(60)


@dg.op
@locked("k")
def pipes(context, pipes_client: dg.PipesSubprocessClient):
    try:
        name = str(Path(os.environ["LOCKSTEAD_TEST_FOLDER"]) / "in")
        pipes_client.run(command=[sys.executable, "-c", PIPES_CHILD, name, nap()], context=context)
    finally:
        note("finally")


@dg.op
@locked("k")
async def awaits(context):
    try:
        note("in")
        await asyncio.sleep(60)
        note("undisturbed")
    finally:
        await asyncio.sleep(0.05)
        note("finally")


@dg.op
@locked("k")
async def awaits_and_blocks(context):
    try:
        note("in")
        time.sleep(60)  # noqa: ASYNC251 - that it is wrong is the point
        note("undisturbed")
    finally:
        note("finally")


@dg.op
@locked("k")
async def awaits_and_yields(context):
    try:
        note("in")
        await asyncio.sleep(60)
        note("undisturbed")
        yield dg.Output(1)
    finally:
        await asyncio.sleep(0.05)
        note("finally")


@dg.op
@locked("k")
def generates(context):
    try:
        note("in")
        time.sleep(60)
        note("undisturbed")
        yield dg.Output(1)
    finally:
        note("finally")


@dg.op
@locked("k")
def swallows(context):
    note("in")
    try:
        time.sleep(60)
        note("undisturbed")
    except BaseException:
        note("finally")
    return 1


@dg.op
def holds(context, lock: LockResource):
    with lock.hold(context, "k"):
        try:
            note("in")
            time.sleep(60)
            note("undisturbed")
        finally:
            note("finally")


@dg.op(out=dg.Out(io_manager_key="slow"))
@locked("k")
def writes(context):
    return 1


@dg.op(out=dg.Out(io_manager_key="slow_and_deaf"))
@locked("k")
def writes_and_swallows(context):
    return 1


@dg.op
@locked("k")
def keeps_the_interpreter(context):
    note("in")
    try:
        ctypes.PyDLL(None).sleep(6)
        time.sleep(60)
        note("undisturbed")
    finally:
        # the interrupt may come before the first line after the call
        note("back")


@dg.op
@locked("k")
def never_returns(context):
    note("in")
    subprocess.Popen(["sleep", nap()])
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    while True:  # who waits for a mutex is not woken by a signal
        libc.pthread_mutex_lock(mutex)


@dg.op
@locked("k")
def deaf(context):
    note("in")
    while True:
        try:
            time.sleep(60)
        except BaseException:
            note("deaf")


@dg.op
@locked("k")
def goes_on(context):
    try:
        note("in")
        lease = lockstead.current_lease()
        until(lambda: not lease.is_held, "the lease is lost")
        time.sleep(0.2)  # who would interrupt it has told by then
    finally:
        note("finally")


@dg.op
@locked("k")
def returns(context) -> int:
    note("in")
    return 1


@dg.op(retry_policy=dg.RetryPolicy(max_retries=3))
@locked("k", on_unclean="fail")
def careful(context) -> int:
    note("in")
    return 1


@dg.op
@locked("k")
def fails_once(context) -> int:
    note("in")
    if context.retry_number == 0:
        raise ValueError("once")
    return 1


@dg.op
@locked("other")
def wants_another(context):
    note("in")


RESOURCES = {
    "lock": LOCK,
    "slow": SlowWrites(),
    "slow_and_deaf": SlowWrites(swallows=True),
    "pipes_client": dg.PipesSubprocessClient(),
}


def job_of(op, *, retries=False, executor=None):
    """Return a job of one op."""
    chosen = op.with_retry_policy(dg.RetryPolicy(max_retries=3)) if retries else op

    @dg.job(name=f"job_{op.name}", resource_defs=RESOURCES, executor_def=executor or dg.in_process_executor)
    def made():
        chosen()

    return made


PRELOADED = ["tests.dagster.bodies", "dagster._utils.test.definitions"]
FORKS = {"start_method": {"forkserver": {"preload_modules": PRELOADED}}}
"""One server for all tests of a process forks their steps: what imports Dagster anew takes seconds."""


def apart(name: str, retries: str, told: str) -> dg.JobDefinition:
    """Return a job whose step runs in a process of its own. told: the test's environment, which the server has not."""
    os.environ.update(json.loads(told))
    executor = dg.multiprocess_executor.configured(FORKS)
    return job_of(globals()[name], retries=retries == "retries", executor=executor)


def within_a_lease(name: str) -> dg.JobDefinition:
    """Return a job whose run holds a lease on "k" and runs its step in the run worker."""
    return job_of(globals()[name], executor=leased(dg.in_process_executor, key="k"))

"""The jobs whose whole run holds one lease, and jobs that are killed. Loaded by path, also in step processes.

No annotation is a text here: Dagster reads them.
"""

import gc
import os
import subprocess
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import dagster as dg

import lockstead
from dagster_lockstead import LockResource, leased, locked
from tests.dagster.bodies import nap, note
from tests.dagster.taking import until

LOCK = LockResource(store=dg.EnvVar("LOCKSTEAD_TEST_STORE"), ttl=os.environ.get("LOCKSTEAD_TEST_TTL", "6s"))
EXECUTORS = {"here": dg.in_process_executor, "apart": dg.multiprocess_executor}


def say(name, text):
    """Say in the test's folder what was seen."""
    with (Path(os.environ["LOCKSTEAD_TEST_FOLDER"]) / name).open("a") as file:
        file.write(f"{text}\n")


def shell():
    """Run a program that goes on forever, and has a child."""
    return subprocess.Popen(["bash", "-c", "while :; do sleep 0.1; done & while :; do sleep 0.1; done", nap()])


@dg.op
def looks(lock: LockResource):
    seen = lock.inspect("k")
    say("seen", f"{seen.owner} {seen.holder} {seen.token}")


@dg.op(ins={"after": dg.In(dg.Nothing)})
def guarded_within(context, lock: LockResource):
    with lock.hold(context, "k") as lease:
        say("seen", f"{'dagster:' + context.run_id} {lease.holder} {lease.token or lease.sequencer().token}")
    seen = lock.inspect("k")
    say("seen", f"{seen.owner} {seen.holder} {seen.token}")


@dg.op
def sleeps():
    try:
        note("in")
        time.sleep(60)
    finally:
        time.sleep(0.3)
        note("finally")


@dg.op
def dies_with_the_lock_of_its_event():
    """End as a step process may that ends by itself just when it is told to."""
    [told_by] = [one for one in gc.get_objects() if isinstance(one, Event)]
    told_by._cond._lock.acquire()
    try:
        note("in")
        time.sleep(60)
    finally:
        os._exit(1)


@dg.op
def shells():
    running = shell()
    note("in")
    running.wait()


@dg.op
@locked("k")
def guarded_shells(context):
    running = shell()
    note("in")
    running.wait()


@dg.op
@locked("k")
def guarded_sleeps(context):
    try:
        note("in")
        time.sleep(60)
    finally:
        note("finally")


@dg.op
@locked("k")
def says_who(context):
    lease = lockstead.current_lease()
    say("seen", f"{time.time()} {lease.holder} {lease.token} {lease.previous_lease.ending.name}")
    note("in")
    if context.retry_number == 0:
        time.sleep(60)


@dg.op
def comes_again(context, lock: LockResource):
    seen = lock.inspect("k")
    say("seen", f"{seen.owner} {seen.holder} {seen.token}")
    note("in")
    if context.retry_number == 0:
        raise dg.RetryRequested(seconds_to_wait=3)


def is_wanted():
    held = lockstead.Lock(f"{os.environ['LOCKSTEAD_TEST_STORE']}#k").inspect()
    return held is not None and held.wanted_by is not None


@dg.op
def sleeps_until_a_writer_waits():
    note("in")
    until(is_wanted, "a writer waits")


@dg.op
@locked("k", permits=2)
def uses_a_permit():
    state = lockstead.Semaphore(f"{os.environ['LOCKSTEAD_TEST_STORE']}#k").inspect()
    say("seen", f"{lockstead.current_lease().slot} {[one.slot for one in state.held]}")


@dg.op(ins={"after": dg.In(dg.Nothing)})
@locked("k", mode="shared")
def reads():
    note("in")
    until(is_wanted, "a writer waits")
    assert lockstead.current_lease().mode == "shared"
    say("order", "reader")


@dg.op
def swallows():
    note("in")
    try:
        time.sleep(60)
    except BaseException:
        note("swallowed")


@dg.op
def raises_another():
    note("in")
    try:
        time.sleep(60)
    except BaseException as error:
        raise ValueError("another") from error


@dg.op
def deaf():
    running = shell()
    note("in")
    while True:
        try:
            running.wait()
            running = shell()
        except BaseException:
            note("deaf")


@dg.op(ins={"start": dg.In(dg.Nothing)})
def follows():
    note("after")


def say_lease(name):
    """Say in the test's folder under which lease this process works, and with which token."""
    lease = lockstead.current_lease()
    say(name, f"{lease.holder} {lease.sequencer().token}")


@dg.op
@locked("k")
def works():
    note("in")
    for _second in range(9):
        say_lease("leases")
        time.sleep(1)
    note("worked")


@dg.op(retry_policy=dg.RetryPolicy(max_retries=1, delay=3))
@locked("k")
def fails_once_and_waits(context):
    say_lease("attempts")
    if context.retry_number == 0:
        note("in")
        raise ValueError("once")


def job_named(op: str, where: str, settings: str) -> dg.JobDefinition:
    """Return a job of an op. settings: words, of which each turns something on."""
    words = settings.split()
    chosen = globals()[op]
    if "retries" in words:
        chosen = chosen.with_retry_policy(dg.RetryPolicy(max_retries=3))
    executor = EXECUTORS[where]
    if "many" in words and where == "apart":
        executor = executor.configured({"max_concurrent": 4})
    if "forked" in words:
        executor = executor.configured({"start_method": {"forkserver": {}}})
    if "plain" not in words:
        fails = "fail" if "fail" in words else "warn"
        timeout = 1 if "impatient" in words else None
        mode = "shared" if "shared" in words else None
        permits = 2 if "permits" in words else None
        executor = leased(executor, key="k", on_unclean=fails, timeout=timeout, mode=mode, permits=permits)

    @dg.job(name=f"job_{op}", resource_defs={"lock": LOCK}, executor_def=executor)
    def made():
        if "many" in words:
            for number in range(4):
                chosen.alias(f"{op}_{number}")()
        elif "guarded" in words:
            guarded_within(chosen())
        elif "reads" in words:
            reads(chosen())
        elif "then" in words:
            follows(chosen())
        else:
            chosen()

    return made

"""Which bodies the tests of aborts lose the lock of, as one DAG: each in a locked group of its own.

This is a DAG file behind the head of `sections`, which brings `note`; DIRECTORY, TTL and BODIES are put before it. Each
body says when it began, how it was stopped, and what it had done by then. All may be retried, so that a retry would be
seen.
"""

from __future__ import annotations

import asyncio
import ctypes
import subprocess

# the longest that a body may go on is what one of them waits for; a task parses this file in its own process
os.environ["AIRFLOW__LOCKSTEAD__ABORT_GRACE"] = "10"  # noqa: F821

STUBBORN = "trap '' TERM; (setsid sleep 1000 &) ; sleep 1000 & trap '' TERM; while true; do sleep 1; done"
"""Ignores SIGTERM, and leaves a process whose parent is gone in a session of its own."""


def url(name):
    return f"sqlite:///{DIRECTORY}/{name}.db#{name}"  # noqa: F821 - put before this


def stay(name):
    """Be in the section until stopped, and say how it came."""
    note("began", name=name)  # noqa: F821
    try:
        return WAYS[name.partition("-")[0]](name)
    except BaseException as error:
        note("stopped", name=name, kind=type(error).__name__, text=str(error))  # noqa: F821
        raise


def sleep(_name):
    time.sleep(600)  # noqa: F821


def awaiting(_name):
    asyncio.run(asyncio.sleep(600))


def child(name):
    """Wait for a child that ignores SIGTERM, and has one itself."""
    started = subprocess.Popen(["bash", "-c", STUBBORN], start_new_session=True)
    note("child", name=name, child=started.pid)  # noqa: F821
    started.wait()


def gil(name):
    """Hold the interpreter in a C call for longer than the lease lives: no thread of ours can run meanwhile."""
    note("holds", name=name)  # noqa: F821
    ctypes.PyDLL(None).sleep(int(TTL) + 6)  # noqa: F821
    note("came back", name=name)  # noqa: F821
    return "as if nothing had happened"


def swallow(name):
    try:
        time.sleep(600)  # noqa: F821
    except BaseException as error:
        note("stopped", name=name, kind=type(error).__name__, text=str(error))  # noqa: F821
    return "as if nothing had happened"


def swallow_for_ever(name):
    while True:
        try:
            time.sleep(0.2)  # noqa: F821
        except BaseException as error:
            note("stopped", name=name, kind=type(error).__name__, text=str(error))  # noqa: F821


def asking(name, set_one, get_one):
    """Ask for one value after the other; when stopped, go on asking, and compare every answer."""
    for number in range(5):
        set_one(f"{name}_{number}", f"of {number}")
    note("asks", name=name)  # noqa: F821
    done, left = 0, 1_000_000
    while left:
        left -= 1
        number = done % 5
        try:
            got = get_one(f"{name}_{number}")
            if got != f"of {number}":
                note("wrong", name=name, wanted=number, got=repr(got))  # noqa: F821
        except BaseException as error:
            note("stopped", name=name, kind=type(error).__name__, text=str(error), after=done)  # noqa: F821
            left = 5
        done += 1
    note("asked", name=name, times=done)  # noqa: F821


def variables(name):
    asking(name, Variable.set, Variable.get)


def xcoms(name):
    ti = get_current_context()["ti"]
    asking(
        name,
        lambda key, value: ti.xcom_push(key=key, value=value),
        lambda key: ti.xcom_pull(task_ids=ti.task_id, key=key, map_indexes=-1),
    )


try:
    from airflow.sdk import Variable, get_current_context
except ImportError:
    from airflow.models import Variable
    from airflow.operators.python import get_current_context

WAYS = {
    "sleep": sleep,
    "taken": sleep,
    "asyncio": awaiting,
    "child": child,
    "gil": gil,
    "swallow": swallow,
    "swallow_for_ever": swallow_for_ever,
    "variables": variables,
    "xcoms": xcoms,
}

# these tests are about bodies; waiting in the triggerer takes its own time
AT_ONCE = {"deferrable": False}
AGAIN = {"retries": 3, "retry_delay": timedelta(seconds=1)}  # noqa: F821

with DAG("aborted", schedule=None, start_date=datetime(2024, 1, 1)):  # noqa: F821
    for name in [name for name in BODIES if name.partition("-")[0] in WAYS]:  # noqa: F821
        with LockedTaskGroup(name, lock=url(name), ttl=TTL, keeper=False, acquire_args=AT_ONCE):  # noqa: F821
            task(task_id="work", **AGAIN)(stay)(name)  # noqa: F821
    if "bash" in BODIES:  # noqa: F821
        with LockedTaskGroup("bash", lock=url("bash"), ttl=TTL, keeper=False, acquire_args=AT_ONCE):  # noqa: F821
            BashOperator(task_id="work", bash_command=f"echo $$ >> {DIRECTORY}/bash.pid; {STUBBORN}", **AGAIN)  # noqa: F821

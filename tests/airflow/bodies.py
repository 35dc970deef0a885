"""What the bodies are that the tests of `body` lose the lease of: run by an Airflow's Python, in no Airflow.

    python bodies.py SCENARIO LOCK_URL

Takes the lock, hands it on as acquire does, and runs a body under it by `body.run`; where the scenario's name ends in
`-lost`, the lease is removed half a second after the body began. Says on its last line, as JSON, what came of it.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from jinja2 import StrictUndefined
from jinja2.sandbox import SandboxedEnvironment

import lockstead
from airflow_lockstead import body, compat
from airflow_lockstead.spec import LockSpec, Section

TTL = 20.0
"""Of a lease that is held: longer than a busy machine stands still."""

TTL_OF_WHAT_IS_LOST = 8.0


class Task:
    """What `body` needs of an operator."""

    task_id = "work"
    log = logging.getLogger("task")

    def get_template_env(self) -> Any:
        return SandboxedEnvironment(undefined=StrictUndefined)

    def render_template(self, text: str, context: Any, jinja: Any = None) -> str:
        return str((jinja or self.get_template_env()).from_string(text).render(context))


class WhenItWaits(logging.Filter):
    """Does something half a second after the task has said that it waits for somebody."""

    def __init__(self, then: Callable[[], object]) -> None:
        super().__init__()
        self.then = then

    def filter(self, record: logging.LogRecord) -> bool:
        if record.msg.startswith("waiting for members that have not ended"):
            threading.Timer(0.5, self.then).start()
        return True


class TaskInstance:
    """What `body` needs of a task instance: who it is, and XCom."""

    dag_id, run_id, task_id, map_index, try_number = "dag", "run", "work", -1, 1

    def __init__(self, acquired: dict[str, Any] | None) -> None:
        self.xcom = {("acquire", "return_value"): acquired}

    def xcom_pull(self, *, task_ids: str, key: str, map_indexes: int) -> Any:
        assert map_indexes == -1
        return self.xcom.get((task_ids, key))

    def xcom_push(self, *, key: str, value: Any) -> None:
        self.xcom["work", key] = value


def bash() -> None:
    """Ignore SIGTERM, in a session of its own, and leave a grandchild whose parent is gone."""
    script = "trap '' TERM; (setsid sleep 1000 &) ; sleep 1000 & wait; sleep 1000"
    child = subprocess.Popen(["bash", "-c", script], start_new_session=True)
    while True:
        try:
            child.wait()
        except OSError:
            continue


def swallow_and_return() -> str:
    try:
        time.sleep(60)
    except BaseException:
        pass
    return "finished all the same"


def swallow_for_ever() -> None:
    while True:
        try:
            time.sleep(0.5)
        except BaseException:
            pass


def hold_the_interpreter() -> str:
    ctypes.PyDLL(None).sleep(int(TTL_OF_WHAT_IS_LOST) + 2)
    return "came back"


def look(context: Any) -> dict[str, Any]:
    lease = lockstead.current_lease()
    seen = context["lockstead"]
    said = {"token": seen.token, "sequencer": str(seen.sequencer), "is_member": lease.is_member, "key": lease.key}
    return said if seen.slot is None else {**said, "slots": [seen.slot, lease.slot]}


def defer() -> None:
    raise compat.TaskDeferred(trigger=SimpleNamespace(), method_name="resumed")


def skip() -> None:
    raise compat.AirflowSkipException("nothing to do")


def bodies(context: Any) -> dict[str, Any]:
    return {
        "look": lambda: look(context),
        "raise": lambda: 1 / 0,
        "skip": skip,
        "defer": defer,
        "sleep": lambda: time.sleep(60),
        "outlast": lambda: [time.sleep(TTL_OF_WHAT_IS_LOST + 2), look(context)][1],
        "asyncio": lambda: asyncio.run(asyncio.sleep(60)),
        "bash": bash,
        "swallow-return": swallow_and_return,
        "swallow": swallow_for_ever,
        "gil": hold_the_interpreter,
    }


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    scenario, url = sys.argv[1:]
    what, _, fate = scenario.partition("+")
    if "child" in fate:  # the body's process is a child of this one, as a task's is of its supervisor
        child = subprocess.Popen([sys.executable, __file__, scenario.replace("child", "grown"), url])
        print(f"child {child.pid}", flush=True)
        child.wait()
        return
    ttl = TTL_OF_WHAT_IS_LOST if fate in ("lost", "shared") else TTL
    settings: dict[str, Any] = {"ttl": ttl}
    if fate == "shared":
        settings["mode"] = "shared"
    permits = 2 if fate == "permit" else None
    lock = LockSpec(lock=url, keeper=False, permits=permits).of_permits(
        lockstead.Lock(url, owner="airflow:dag/run/group/-1", **settings)
    )
    lease = lock.acquire(timeout=10)
    token = lease.sequencer().token
    ticket = lease.detach()
    acquired = {"ticket": str(ticket), "token": token, "key": ticket.key, "holder": ticket.holder}
    listener = socket.create_server(("127.0.0.1", 0))
    if fate == "forged":
        elsewhere = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        acquired["ticket"] = str(replace(ticket, store=elsewhere))
    stale = fate if fate in ("fail", "reacquire") else None
    if stale:
        lock.release(ticket)
    context: dict[str, Any] = {"ti": TaskInstance(acquired), "where": url}
    if fate == "renamed":  # a template that renders otherwise than when the lock was acquired
        context["where"] = f"{url}-renamed"
    spec = LockSpec(lock="{{ where }}", keeper=False, on_stale_lease=stale or "fail", permits=permits, **settings)
    killed: list[int] = []
    began = threading.Event()
    over: list[str] = []
    beside: lockstead.Lease | None = None

    def call() -> Any:
        said["began_behind"] = list(over)
        began.set()
        print("began", flush=True)
        return bodies(context)[what]()

    def take_away() -> None:
        began.wait()
        time.sleep(0.5)
        lock.break_lease(reason="a test", now=True)

    if fate == "behind":  # one body directly upstream lives until it is waited for, and one beside it until all is over
        first, second = (lockstead.Lock(url, ttl=ttl, owner=f"airflow:dag/run/{name}/-1/1") for name in ("first", "b"))
        upstream, beside = first.attach(ticket), second.attach(ticket)
        Task.log.addFilter(WhenItWaits(lambda: (over.append("first"), upstream.release())))
    if fate == "shared":  # a writer waits before the body begins
        writer = lockstead.Lock(url, owner="writer")
        writing = threading.Thread(target=lambda: over.append(writer.acquire(90).holder), daemon=True)
        writing.start()
        while getattr(lock.inspect(), "wanted_by", None) is None:
            time.sleep(0.05)
    if fate == "lost":
        threading.Thread(target=take_away, daemon=True).start()
    began_at = time.monotonic()
    said: dict[str, Any] = {}
    try:
        said["gave"] = body.run(
            Task(), context, Section(spec, "group", "acquire", upstream=("first",)), call, lambda: killed.append(1)
        )
    except BaseException as error:
        said |= {
            "raised": type(error).__name__,
            "message": str(error),
            "final": isinstance(error, compat.AirflowFailException),
        }
    if fate == "shared":
        said["written"] = [len(over), lock.release(ticket), writing.join(90), len(over)]
    said |= {
        "asked_elsewhere": bool(select.select([listener], [], [], 0)[0]),
        "took": time.monotonic() - began_at,
        "beside": "lived on" if beside is not None and beside.release() else "",
        "killed": len(killed),
        "members": len(lock.members(ticket)),
        "held_by": getattr(lock.inspect(), "holder", None),
        "acquired": acquired,
        "marked": os.environ.get("LOCKSTEAD_TASK"),
    }
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()

"""What is seen of connections for the tests of `test_stores`: run by an Airflow's Python, no Airflow around.

    python connections.py CONN_ID ...

Says on its last line, as JSON, for each connection what the test button, a task and a triggerer get of it; and what
could have shown a secret: errors with their causes, reprs, and all that was logged, as it was before Airflow masks it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import traceback
from typing import Any

from airflow_lockstead import acquiring, connection, errors
from airflow_lockstead.hook import LocksteadHook
from airflow_lockstead.spec import LockSpec

OWNER = "airflow:d/r/t/-1"


class KeptLease(logging.Handler):
    """Keeps what is logged, as it was said."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


def by_task(conn_id: str, log: logging.Logger, shown: list[str]) -> dict[str, Any]:
    """Ask for a lock as a task does, and give it back."""
    spec = LockSpec(key="apt", conn_id=conn_id, ttl=30, keeper=False)
    shown.append(repr(spec))
    try:
        with errors.refusing():
            grant = acquiring.at_once(spec, OWNER, log)
            if grant is None:
                return {"grant": None}
            shown += [repr(grant), str(grant), json.dumps(grant.xcom)]
            lock = connection.lock(spec, OWNER)
            shown += [repr(lock), str(lock)]
            renewed = acquiring.is_still_held(spec, OWNER, grant, log)
            return {"renewed": renewed, "released": lock.release(grant.ticket)}
    except Exception as error:
        shown += ["".join(traceback.format_exception(error)), repr(error)]
        return {"ended": type(error).__name__, "line": str(error)}


async def by_trigger(conn_id: str, shown: list[str]) -> dict[str, Any]:
    """Hold a lock as the triggerer does."""
    hook = LocksteadHook(conn_id)
    try:
        lock = await hook.async_lock("awaited", ttl=30, owner=OWNER)
        shown += [repr(lock), str(lock)]
        lease = await lock.acquire(timeout=60)
        held = await lock.inspect()
        return {"owner": held.owner if held else None, "released": await lease.release()}
    except Exception as error:
        shown += ["".join(traceback.format_exception(error)), repr(error)]
        return {"ended": type(error).__name__}


def by_hook(conn_id: str, shown: list[str]) -> dict[str, Any]:
    """Press the test button, also while a lock is held."""
    hook = LocksteadHook(conn_id)
    tested = hook.test_connection()
    shown += [repr(hook), tested[1]]
    if not tested[0]:
        return {"tested": tested}
    with hook.get_conn() as client, hook.lock("apt", ttl=30).hold(timeout=10):
        shown += [repr(client), str(client)]
        shown += [repr(place := connection.PLACES.place(conn_id)), repr(place.client), repr(connection.PLACES)]
        shown += [repr(connection.PLACES._known)]
        return {"tested": tested, "while_held": hook.test_connection()[1], "listed": [one.key for one in client.list()]}


def main(conn_ids: list[str]) -> dict[str, Any]:
    kept, log = KeptLease(), logging.getLogger("task")
    logging.getLogger().addHandler(kept)
    logging.getLogger().setLevel(logging.DEBUG)
    seen = {}
    for conn_id in conn_ids:
        shown: list[str] = []
        seen[conn_id] = {
            **by_hook(conn_id, shown),
            "task": by_task(conn_id, log, shown),
            "trigger": asyncio.run(by_trigger(conn_id, shown)),
            "shown": shown,
        }
    return {"seen": seen, "logged": kept.lines}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])), flush=True)

# Generated from aio_drive.py by `make blocking`: edit that file instead.
"""Driver of one script: sends its commands, records when each was sent and answered, and applies the time limits.

Exceptions of a request are thrown into the script. Must not know what a script is about.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

from lockstead.listeners import LISTENERS
from lockstead.protocol.commands import Pause, Reply, Script
from lockstead.protocol.record import with_timestamps
from lockstead.runtime.blocking import REQUEST_LATE, ThreadWaker, perform
from lockstead.runtime.clock import Clock
from lockstead.runtime.local_queue import RECHECK_INTERVAL
from lockstead.runtime.observed import report, report_failed
from lockstead.runtime.run import Limits, thrown
from lockstead.runtime.watching import Watching
from lockstead.stores.port import Store

if TYPE_CHECKING:
    from lockstead.runtime.engine import Engine

T = TypeVar("T")


def run(script: Script[T], store: Store, clock: Clock, limits: Limits, waker: ThreadWaker) -> T:
    """Drive a script to its end and return its result. Raises what the script raises.

    If it is cancelled, the outcome of the last request is unknown. The process or its event loop may be stopped beyond
    the end of a wait; what the script saw before is then outdated, so it gets the time for another request.
    """
    late_from = math.inf
    watching: Watching | None = None
    try:
        command = next(script)
        while True:
            sent_at = clock.now()
            if sent_at >= late_from:
                limits = limits.resumed(sent_at)
            late_from = math.inf
            answer: Any
            try:
                if isinstance(command, Pause):
                    late_from = limits.back_by(sent_at)
                    if watching is None:
                        watching = Watching(store, waker)
                    seconds = limits.pause(command, sent_at)
                    if not watching.begin(command):
                        waker.wait(seconds)
                    answer = watching.end(command, seconds)
                    limits.refuse_if_closed()
                else:
                    limit = limits.of(sent_at)
                    late_from = sent_at + limit + REQUEST_LATE
                    stamped = with_timestamps(command, clock.wall(), store.traits.clock)
                    answer = perform(stamped, store, limit, waker)
                    if LISTENERS.every:
                        report(command, store, clock.now() - sent_at)
            except BaseException as error:  # noqa: BLE001 - `thrown` raises what is not about the request
                report_failed(command, store, clock.now() - sent_at, error)
                command = script.throw(thrown(error))
            else:
                command = script.send(Reply(answer, sent_at, clock.now()))
    except StopIteration as ended:
        result: T = ended.value
        return result
    finally:
        script.close()
        if watching is not None:
            watching.close()


def wait_in_line(engine: Engine, key: str, waker: ThreadWaker, gives_up_at: float) -> bool:
    """Wait until this waiter is first in the local queue; return False if the time ran out before."""
    while not engine.is_closed:
        left = gives_up_at - engine.clock.now()
        if left <= 0:
            return False
        if engine.local_queue.is_first(key, waker):
            return True
        waker.wait(min(left, RECHECK_INTERVAL))
        waker.take()
    return True

"""Looks at what every thread runs: they freeze no process, and leave the garbage collector as it was."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import pytest

from lockstead.runtime.frames import looks
from tests.runtime.processes import Child

INTERRUPTS_AMID_COLLECTIONS = """
import gc, threading
from lockstead.runtime.interrupt import ThreadInterrupter
from lockstead.stores.memory import MemoryStore

THROWS = ThreadInterrupter._throw_unless_left.__code__

def while_collecting(phase, info):
    if sys._getframe(1).f_code is THROWS:
        time.sleep(0.002)  # as what is collected may do: others run, and start threads

def starts_threads():
    while True:
        thread = threading.Thread(target=time.sleep, args=(0,))
        thread.start()
        thread.join()

client = lockstead.Client(MemoryStore(), listener=lambda event: None)

def guarded(key):
    try:
        with client.lock(key).hold(interrupt=True) as lease:
            keeper = client._engine.keeper
            threading.Thread(target=keeper.lose, args=(lease._kept, lockstead.LossReason.TAKEN)).start()
            while True:
                time.sleep(0.001)
    except lockstead.LeaseLost:
        pass

threading.Thread(target=starts_threads, daemon=True).start()
gc.callbacks.append(while_collecting)
gc.set_threshold(1)  # a collection whenever two objects are made
for number in range(50):
    thread = threading.Thread(target=guarded, args=(str(number),))
    thread.start()
    thread.join()
say("all were interrupted")
os._exit(0)
"""


def test_a_collection_while_a_thread_is_interrupted_freezes_no_process() -> None:
    """Up to Python 3.11 the interpreter itself stands still for good, if it collects while it gives all frames."""
    with Child(INTERRUPTS_AMID_COLLECTIONS, "memory:") as child:
        assert child.end() == 0, "the process was frozen, or failed"


@pytest.fixture
def collector() -> Iterator[None]:
    was_enabled = gc.isenabled()
    yield
    (gc.enable if was_enabled else gc.disable)()


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("is_enabled", [True, False])
def test_a_look_shows_all_threads_and_leaves_the_collector_as_it_was(is_enabled: bool) -> None:
    (gc.enable if is_enabled else gc.disable)()
    goes_on = threading.Event()
    thread = threading.Thread(target=goes_on.wait, args=(60,))
    thread.start()
    try:
        for number, frames in enumerate(looks()):
            assert frames[threading.get_ident()] is sys._getframe()
            assert thread.ident in frames
            assert gc.isenabled() is is_enabled
            if number == 200:
                break
    finally:
        goes_on.set()
        thread.join()


@pytest.mark.usefixtures("collector")
def test_a_collector_that_is_switched_between_two_looks_stays_switched() -> None:
    steps = looks()
    for is_enabled in (True, False, True):
        (gc.enable if is_enabled else gc.disable)()
        next(steps)
        assert gc.isenabled() is is_enabled

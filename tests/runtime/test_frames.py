"""What is thrown into another thread and when; it freezes no process, and leaves the garbage collector unchanged."""

from __future__ import annotations

import dis
import gc
import sys
import threading
import time
from collections.abc import Iterator
from itertools import repeat
from types import CodeType, SimpleNamespace
from typing import Any

import pytest

from lockstead.runtime import frames
from lockstead.runtime.frames import throws, uncollected, would_skip_exit
from tests.runtime.processes import Child

INTERRUPTS_AMID_COLLECTIONS = """
import gc, threading
from lockstead.runtime.interrupt import Interrupter
from lockstead.stores.memory import MemoryStore

THROWS = Interrupter.send.__code__

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


def test_a_collection_during_an_interrupt_hangs_no_process() -> None:
    """Up to Python 3.11 the interpreter itself hangs if it collects while it returns all frames."""
    with Child(INTERRUPTS_AMID_COLLECTIONS, "memory:") as child:
        assert child.end() == 0, "the process was frozen, or failed"


@pytest.fixture
def collector() -> Iterator[None]:
    was_enabled = gc.isenabled()
    yield
    (gc.enable if was_enabled else gc.disable)()


class Thrown(BaseException):
    pass


def goes_on_until(is_over: threading.Event) -> None:
    while not is_over.is_set():
        time.sleep(0.001)


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("is_enabled", [True, False])
def test_a_thread_is_interrupted_unless_protected_or_gone(is_enabled: bool) -> None:
    (gc.enable if is_enabled else gc.disable)()
    is_over, hit = threading.Event(), list[bool]()

    def works() -> None:
        try:
            goes_on_until(is_over)
        except Thrown:
            hit.append(True)

    def deeper() -> None:
        works()

    thread = threading.Thread(target=deeper)
    thread.start()
    ident = thread.ident or 0
    while works.__code__ not in codes_of(ident):
        time.sleep(0.001)
    try:
        for code in (goes_on_until.__code__, works.__code__, deeper.__code__):
            assert next(throws(ident, Thrown, [code])) == 0
        assert next(throws(ident, Thrown, [], repeat(False))) == 0
        time.sleep(0.05)
        assert hit == []
        assert next(throws(ident, Thrown, [codes_of.__code__], repeat(True))) == 1
        thread.join(60)
        assert hit == [True]
        assert next(throws(ident, Thrown, [])) == 0
        assert gc.isenabled() is is_enabled
    finally:
        is_over.set()
        thread.join(60)


def codes_of(ident: int) -> list[CodeType]:
    """Return what a thread runs now, the innermost first."""
    codes, frame = [], sys._current_frames().get(ident)
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back
    return codes


@pytest.mark.usefixtures("collector")
def test_the_collectors_setting_is_kept_between_two_steps() -> None:
    within: list[bool] = []
    steps = uncollected(iter(lambda: within.append(gc.isenabled()), True))
    for is_enabled in (True, False, True):
        (gc.enable if is_enabled else gc.disable)()
        next(steps)
        assert gc.isenabled() is is_enabled
    if sys.version_info < (3, 12):
        assert within == [False] * 3


@pytest.mark.parametrize(
    ("opname", "at", "there", "covered", "passes"),
    [
        ("JUMP_BACKWARD", 10, 4, [(2, 8)], True),
        ("JUMP_BACKWARD", 10, 2, [(2, 8)], True),
        ("JUMP_BACKWARD", 8, 7, [(2, 8)], True),
        ("JUMP_BACKWARD", 10, 8, [(2, 8)], False),
        ("JUMP_BACKWARD", 10, 1, [(2, 8)], False),
        ("JUMP_BACKWARD", 10, 4, [(2, 8), (10, 12)], False),
        ("JUMP_BACKWARD", 10, 4, [(0, 1), (2, 8)], True),
        ("JUMP_BACKWARD", 10, 4, [], False),
        ("JUMP_BACKWARD", 10, "elsewhere", [(2, 8)], False),
        ("JUMP_FORWARD", 10, 4, [(2, 8)], False),
    ],
)
def test_a_jump_back_into_a_with_block_would_skip_its_exit(
    monkeypatch: pytest.MonkeyPatch, opname: str, at: int, there: object, covered: list[tuple[int, int]], passes: bool
) -> None:
    jump = SimpleNamespace(offset=at, opname=opname, argval=there)
    entries = [SimpleNamespace(start=start, end=end) for start, end in covered]
    monkeypatch.setattr(dis, "get_instructions", lambda _code: [SimpleNamespace(offset=0), jump])
    monkeypatch.setattr(dis, "Bytecode", lambda _code: SimpleNamespace(exception_entries=entries))
    frame: Any = SimpleNamespace(f_code=None, f_lasti=at)
    monkeypatch.setattr(frames, "SKIPS_EXITS", True)
    assert would_skip_exit(frame) is passes
    assert not would_skip_exit(SimpleNamespace(f_code=None, f_lasti=99))  # type: ignore[arg-type] # as above
    monkeypatch.setattr(frames, "SKIPS_EXITS", False)
    assert not would_skip_exit(frame)

"""What an interrupter does when it is fired, step by step: the test itself plays the thread that retries."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from lockstead.runtime import fork, interrupt
from lockstead.runtime.context import current_task
from lockstead.runtime.interrupt import (
    DEFERRALS_MAX,
    RETRY_EVERY,
    SIGNAL,
    SIGNALS_MAX,
    Interrupter,
    LeaseLostInterrupt,
    _interrupt_until_left,
    _ThreadNest,
    _Unraisable,
    uninterrupted,
)


@pytest.fixture
def insisting(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Return what those who would insist were told; none of them does anything."""
    told: list[tuple[Any, ...]] = []
    monkeypatch.setattr(interrupt, "_interrupt_until_left", lambda *words: told.append(words))
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.run)
    return told


@pytest.fixture
def guard() -> Iterator[Interrupter]:
    before = signal.getsignal(SIGNAL)
    one = Interrupter()
    one.arm()
    yield one
    one.disarm()
    assert signal.getsignal(SIGNAL) is before


def test_one_thread_insists_however_often_a_block_is_fired(guard: Interrupter, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        started.append(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    guard.fire()
    guard.fire()
    assert [(one.name, one.daemon) for one in started] == [("lockstead-interrupt", True)]
    assert guard.disarm()


@pytest.mark.parametrize(("finder", "patience"), [("this thread", RETRY_EVERY), ("another", 0.0), ("nobody", 0.0)])
def test_who_found_the_loss_by_itself_is_given_the_time_to_leave(
    guard: Interrupter, insisting: list[tuple[Any, ...]], finder: str, patience: float
) -> None:
    own = threading.get_ident()
    guard.fire({"this thread": own, "another": own + 1}.get(finder))
    assert insisting == [(weakref.ref(guard), None, patience)]


@pytest.mark.parametrize("finds_it", [False, True])
def test_without_a_retry_the_signal_is_sent_at_once(
    guard: Interrupter, monkeypatch: pytest.MonkeyPatch, finds_it: bool
) -> None:
    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    raised: list[bool] = []
    try:
        guard.fire(threading.get_ident() if finds_it else None)
    except LeaseLostInterrupt as error:
        raised.append(guard.has_thrown(error))
    assert raised == [True] * (not finds_it)


def test_nothing_is_sent_to_a_block_whose_turn_it_is_not(guard: Interrupter, insisting: list[tuple[Any, ...]]) -> None:
    heard: list[int] = []
    guard._around._previous = lambda number, _frame: heard.append(number)
    guard.send()
    assert heard == []
    signal.raise_signal(SIGNAL)
    assert heard == [SIGNAL], "somebody else's signal is handed on"
    guard._around._previous = None
    within = Interrupter()
    within.arm()
    within.fire()
    guard.send()
    assert insisting
    assert within.disarm()


def test_a_signal_counts_as_handled_after_handler_or_exit(guard: Interrupter, insisting: list[tuple[Any, ...]]) -> None:
    guard.fire()
    assert guard.was_received()
    signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})
    try:
        guard.send()
        assert insisting
        assert not guard.was_received()
    finally:
        with pytest.raises(LeaseLostInterrupt):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {SIGNAL})
    assert guard.was_received()
    guard._around.has_received = False
    guard.disarm()
    assert guard.was_received()
    guard._around.has_received = True


def test_a_thrown_interrupt_is_remembered_if_the_next_misses(
    guard: Interrupter, insisting: list[tuple[Any, ...]]
) -> None:
    guard.fire()
    assert insisting
    ours = signal.signal(SIGNAL, signal.SIG_IGN)
    guard._throws = iter([0, 1, 0])
    thrown: list[bool] = []
    for _ in range(3):
        guard.send()
        thrown.append(guard._was_thrown)
    signal.signal(SIGNAL, ours)
    assert thrown == [False, True, True]


def test_an_interrupt_that_would_skip_the_exit_is_postponed(
    guard: Interrupter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupt, "would_skip_exit", lambda _frame: True)
    assert guard.may_be_raised_in(None), "where it is raised by the exit of a block within"
    assert [guard.may_be_raised_in(sys._getframe()) for _ in range(DEFERRALS_MAX)] == [False] * DEFERRALS_MAX
    assert guard.may_be_raised_in(sys._getframe())


def test_whether_its_task_runs_is_asked_without_a_step_of_python_code() -> None:
    """Between two such steps another thread might run, and the task be another one by then."""
    events: list[str] = []

    async def asked() -> list[bool]:
        (steps,) = Interrupter()._only_in_its_task()
        sys.setprofile(lambda _frame, event, _argument: events.append(event))
        answers = [next(steps)]
        sys.setprofile(None)
        return [*answers, await asyncio.create_task(elsewhere(steps))]

    async def elsewhere(steps: Iterator[bool]) -> bool:
        return next(steps)

    assert asyncio.run(asked()) == [True, False]
    assert "call" not in events


def test_a_blocked_signal_is_dropped_with_the_last_block(insisting: list[tuple[Any, ...]]) -> None:
    heard: list[int] = []
    before = signal.signal(SIGNAL, lambda number, _frame: heard.append(number))
    theirs = signal.getsignal(SIGNAL)
    try:
        guard = Interrupter()
        guard.arm()
        guard.fire()
        assert insisting
        signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})
        guard.send()
        assert SIGNAL in signal.sigpending()
        assert guard.disarm()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {SIGNAL})
        assert heard == []
        assert signal.getsignal(SIGNAL) is theirs
    finally:
        signal.signal(SIGNAL, before)


def test_signal_handlers_are_restored_or_reset_to_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    as_ever, installed = signal.signal, list[object]()

    def noted(number: int, handler: Any) -> Any:
        installed.append(handler)
        return as_ever(number, handler)

    guard = Interrupter()
    guard.arm()
    monkeypatch.setattr(signal, "signal", noted)
    guard._around._previous = None
    guard.disarm()
    assert installed == [signal.SIG_DFL]


def test_a_signal_is_passed_to_its_handler_unless_a_block_exits(guard: Interrupter) -> None:
    heard: list[int] = []
    guard._around._previous = lambda number, _frame: heard.append(number)
    within = Interrupter()
    within.arm()
    signal.raise_signal(SIGNAL)
    assert heard == [SIGNAL]
    guard.is_lost = True
    guard._around.raised.append(guard.number)
    signal.raise_signal(SIGNAL)
    assert heard == [SIGNAL], "one of ours that came late, most likely"
    guard.is_lost = False
    guard._around._previous = signal.SIG_DFL
    signal.raise_signal(SIGNAL)
    within.disarm()


class Insisted:
    """A block that hears of its loss with so many signals, or never, and is left two turns later."""

    def __init__(self, mutex: threading.Lock | None, heard_with: int) -> None:
        self._mutex, self._heard_with = mutex, heard_with
        self.is_due, self.is_over = True, False
        self.seen: list[tuple[str, bool]] = []
        self._turns = 0

    def _note(self, what: str) -> bool:
        is_locked = self._mutex is not None and self._mutex.locked()
        self.seen.append((what, is_locked))
        return is_locked

    def send(self) -> None:
        self._note("sent")

    def sleep(self, seconds: float) -> None:
        is_locked = self._note(f"slept {seconds}")
        self._turns += not is_locked
        self.is_over = self._turns == 3

    def was_received(self) -> bool:
        return sum(what == "sent" for what, _ in self.seen) >= self._heard_with


SHORT = f"slept {RETRY_EVERY}"


def insisted(monkeypatch: pytest.MonkeyPatch, block: Insisted, *, is_gone: bool = False) -> list[tuple[str, bool]]:
    monkeypatch.setattr(interrupt.time, "sleep", block.sleep)
    ref = (lambda: None) if is_gone else weakref.ref(block)
    _interrupt_until_left(ref, block._mutex, 7.0)  # type: ignore[arg-type] # what it asks of an interrupter
    monkeypatch.undo()
    return block.seen


def test_who_insists_sends_every_time_until_the_block_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = [("sent", False), (SHORT, False)]
    assert insisted(monkeypatch, Insisted(None, 1)) == [("slept 7.0", False), *turn, *turn]
    waits = Insisted(None, 99)
    waits.is_due = False
    assert insisted(monkeypatch, waits) == [("slept 7.0", False), *[(SHORT, False)] * 2]
    assert insisted(monkeypatch, Insisted(None, 99), is_gone=True) == [("slept 7.0", False)]


def test_who_insists_keeps_no_block_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    owners = [Insisted(None, 1)]
    ref, is_alive = weakref.ref(owners[0]), list[bool]()

    def sleep(_seconds: float) -> None:
        if is_alive:
            owners.clear()
        is_alive.append(ref() is not None)
        assert len(is_alive) < 5

    monkeypatch.setattr(interrupt.time, "sleep", sleep)
    _interrupt_until_left(ref, None, 7.0)  # type: ignore[arg-type] # what it asks of an interrupter
    assert is_alive == [True, False]


def test_the_mutex_is_held_until_a_signal_is_handled_or_times_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = [("sent", True), (SHORT, True)]
    for heard_with, expected in ((2, [*sent, *sent]), (10_000, [*sent * SIGNALS_MAX, ("sent", True)])):
        block = Insisted(threading.Lock(), heard_with)
        first = insisted(monkeypatch, block)[1 : len(expected) + 2]
        assert first == [*expected, (SHORT, False)]


def test_an_unused_signal_is_passed_on_once_unless_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, ended, noted = list[object](), list[object](), list[str]()

    class Ours(LeaseLostInterrupt):
        @staticmethod
        def was_swallowed() -> None:
            noted.append("reached nobody")

    odd, within = (SimpleNamespace(exc_value=error) for error in (ValueError("odd"), ValueError("within")))
    within.exc_value.__context__ = KeyError("one more")
    within.exc_value.__context__.__context__ = Ours()
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    monkeypatch.setattr(sys, "__unraisablehook__", ended.append)
    hook = _Unraisable()
    assert hook._next == ended.append
    hook.listen()
    hook.listen()
    assert (sys.unraisablehook, hook._next) == (hook, told.append)
    hook(within)
    assert (told, noted) == ([], ["reached nobody"])
    hook(odd)
    hook(SimpleNamespace(exc_value=None))
    assert told[0] is odd
    assert (len(told), ended) == (2, [])
    hook._next = hook
    hook(odd)
    assert ended == [odd], "whoever was installed later hands on to us in turn"

    def fails(_unraisable: object) -> None:
        raise ValueError("a hook of somebody's")

    hook._next = fails
    with pytest.raises(ValueError, match="a hook of"):
        hook(odd)
    hook._next = told.append
    hook(odd)
    assert (len(told), len(ended)) == (3, 1)


def test_the_running_task_is_returned_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    async def asks() -> bool:
        asyncio.get_running_loop().call_soon(lambda: seen.append(current_task()))
        await asyncio.sleep(0)
        return current_task() is asyncio.current_task()

    assert asyncio.run(asks())
    assert (seen, current_task()) == ([None], None)
    monkeypatch.delitem(sys.modules, "asyncio")
    assert current_task() is None


def test_an_interrupt_during_the_exit_ends_there_unless_of_another(
    guard: Interrupter, insisting: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    within = Interrupter()
    within.arm()
    for one in (guard, within):
        one.fire()
    assert len(insisting) == 2
    late = [guard.thrown(), within.thrown()]
    as_ever = within._around.end

    def end(block: Interrupter) -> None:
        if late:
            raise late.pop()
        as_ever(block)

    monkeypatch.setattr(within._around, "end", end)
    with pytest.raises(LeaseLostInterrupt) as caught:
        within.disarm()
    assert guard.has_thrown(caught.value)
    assert within.disarm()


def test_a_thrown_interrupt_is_caught_before_the_block_ends(
    guard: Interrupter, insisting: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    caught: list[Interrupter] = []

    def catch(one: Interrupter) -> None:
        caught.append(one)

    monkeypatch.setattr(Interrupter, "_catch", catch)
    for was_thrown in (False, True):
        within = Interrupter()
        within.arm()
        within._was_thrown = was_thrown
        within.disarm()
        assert caught == [within] * was_thrown
    caught.clear()
    guard.fire()
    assert insisting
    for was_thrown in (False, True):
        guard._was_thrown = was_thrown
        guard._around.raised.clear()
        with pytest.raises(LeaseLostInterrupt):
            guard.raise_pending()
        assert caught == [guard] * was_thrown
    guard._was_thrown = False


def test_it_is_thrown_until_it_is_caught(guard: Interrupter, monkeypatch: pytest.MonkeyPatch) -> None:
    as_ever, throws = ctypes.pythonapi.PyThreadState_SetAsyncExc, list[object]()

    def throw(ident: object, thrown: object) -> None:
        throws.append(ident)
        if len(throws) > 1:  # the first one is swallowed by a finalizer
            as_ever(ident, thrown)

    monkeypatch.setattr(ctypes.pythonapi, "PyThreadState_SetAsyncExc", throw)
    guard._catch()
    assert len(throws) == 2


def test_a_forked_child_starts_without_pending_interrupts() -> None:
    nest = _ThreadNest()
    assert nest.has_received
    assert nest in fork._INHERITED
    lock = nest.lock
    nest.after_fork()
    assert nest.lock is not lock


def test_a_function_is_marked_by_its_code() -> None:
    def quiet() -> None:
        pass

    assert uninterrupted(quiet) is quiet
    assert quiet.__code__ in interrupt._UNINTERRUPTED
    interrupt._UNINTERRUPTED.discard(quiet.__code__)


AFTER_FORK = """
import _thread, os, threading
os.register_at_fork(after_in_parent=_thread.interrupt_main)
from lockstead.runtime import fork
try:
    if os.fork() == 0:
        os._exit(0)
    for _ in range(10):
        pass
except KeyboardInterrupt:
    pass
loaded = threading.Event()
threading.Thread(target=fork.loading, args=(loaded.set,), daemon=True).start()
assert loaded.wait(10)
"""


def test_h34_ctrl_c_during_a_fork_leaves_no_lock_held() -> None:
    assert subprocess.run([sys.executable, "-c", AFTER_FORK], timeout=60, check=False).returncode == 0

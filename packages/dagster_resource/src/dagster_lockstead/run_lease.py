"""The lease of a run: acquire it, run the executor, end the steps if the lease is lost, release it.

All of this runs in the run worker. Steps in this process are interrupted; step processes are ended by their executor,
as when the run is terminated, and later by signals. Raises what the executor raised, or a Failure that names the loss;
nothing is retried after a loss.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

import dagster

from dagster_lockstead import acquiring, compat, errors, held_leases
from dagster_lockstead.aborting import Abort
from dagster_lockstead.ending import TERMS, ended
from dagster_lockstead.frames import bears_interrupts
from dagster_lockstead.multiprocessing_workaround import SemaphoreRepair
from dagster_lockstead.reporting import Reporter
from dagster_lockstead.watching import Watch, is_ending
from lockstead import Lease, LeaseLost, Lock, StoreError
from lockstead.supervise.child_processes import ChildProcesses
from lockstead.values import SHARED
from lockstead.wrapping.acquiring import draw_token, give_back, look, marked, take_back_granted, try_at_once
from lockstead.wrapping.locks import leases_of, store_of, ticket_of

if TYPE_CHECKING:
    from dagster_lockstead.spec import LockSpec

    Events = Generator[dagster.DagsterEvent, None, None]

PATIENCE: Final = 8.0
"""Seconds that step processes have to end after their executor's request, before they are signalled."""

DRAIN: Final = 30.0
"""Seconds to wait for steps on other machines before the lease is left to expire."""


class RunLease:
    """The lease of one run. Used once. is_apart: the steps run in separate processes."""

    def __init__(self, plan_context: Any, lock: Lock, spec: LockSpec, timeout: float | None, *, is_apart: bool) -> None:
        self._context = plan_context
        self._lock = marked(lock)
        self._spec = spec
        self._timeout = timeout
        self._is_apart = is_apart
        self._abort = Abort()
        self._ends_its_steps = False
        self._reporter = Reporter(plan_context)

    def around(self, execute: Callable[[], Iterator[dagster.DagsterEvent]]) -> Events:
        """Run the steps under the lease, and release it in any case."""
        # started before the wait: a run that has ended must not get the lock
        watch = Watch(self._context.instance, self._context.run_id, gone=self._abort.now)
        watch.start()
        try:
            began_at = time.monotonic()
            lease = self._wait()
            try:
                yield from self._under(lease, began_at, execute)
            except GeneratorExit:
                raise
            except BaseException as error:
                if not self._has_failed(lease):
                    raise
                self._say_lost(lease)
                raise self._failure(lease) from error
            if self._has_failed(lease):
                self._say_lost(lease)
                raise self._failure(lease)
            self._reporter.released(lease)
        finally:
            watch.stop()
            self._reporter.close()

    # --- acquiring ------------------------------------------------------------------------------------------------

    def _wait(self) -> Lease:
        """Wait for the lock, before any step process starts; an interrupt leaves no granted lease behind."""
        lease = try_at_once(self._lock, acquiring.LOG)
        if lease is None:
            self._reporter.waiting(self._lock.key, look(self._lock, acquiring.LOG))
            lease = self._waited()
        if self._abort.why is not None:
            give_back(lease, acquiring.LOG)
            raise self._over()
        return lease

    @bears_interrupts
    def _waited(self) -> Lease:
        try:
            with compat.interruptible(), self._abort:
                return self._lock.acquire(self._timeout)
        except BaseException as error:
            if not isinstance(error, Exception):
                take_back_granted(self._lock, acquiring.LOG)
            if self._abort.why is not None:
                raise self._over() from error
            raise

    # --- the steps ------------------------------------------------------------------------------------------------

    def _under(self, lease: Lease, began_at: float, execute: Callable[[], Iterator[dagster.DagsterEvent]]) -> Events:
        run_key = held_leases.RunKey(self._context.run_id, None, store_of(self._lock), lease.key)
        with lease, self._left_to_the_living(lease), acquiring.unused_until_begun(lease) as begin:
            acquiring.judged(self._lock, lease, self._spec, self._reporter)
            draw_token(lease, acquiring.LOG)
            self._reporter.acquired(lease, time.monotonic() - began_at)
            with held_leases.recorded(run_key, lease), self._ending(lease):
                begin()
                yield from self._steps(lease, execute)

    @contextmanager
    def _ending(self, lease: Lease) -> Iterator[None]:
        """End the steps, and the processes that they started, when the block has to end."""
        with ChildProcesses() as self._child_processes:
            if not self._is_apart:
                with ended(self._child_processes, self._abort, lease), self._abort:
                    lease.on_lost(self._on_lost)
                    yield
                return
            with ended(self._child_processes, self._abort, lease, patience=PATIENCE):
                # an executor in another thread does not notice an interrupt
                self._ends_its_steps = threading.current_thread() is threading.main_thread()
                self._abort.listen(self._end_steps)
                lease.on_lost(self._on_lost)
                yield

    @bears_interrupts
    def _steps(self, lease: Lease, execute: Callable[[], Iterator[dagster.DagsterEvent]]) -> Events:
        inner = execute()
        with SemaphoreRepair(lambda: compat.step_processes(inner)) if self._is_apart else nullcontext():
            try:
                for event in inner:
                    yield event
                    end = self._end_after(event, lease)
                    if end is not None and not self._ends_its_steps:
                        # raised where the executor yielded the event: it closes an unfinished step, and starts no other
                        yield inner.throw(end)  # type: ignore[attr-defined]
                        # only once: its later events belong to its own shutdown, which must complete
                        yield from inner
            finally:
                inner.close()  # type: ignore[attr-defined]

    def _end_after(self, event: dagster.DagsterEvent, lease: Lease) -> BaseException | None:
        """Return the exception with which to end the executor after one of its events; None to continue."""
        if not lease.is_held:
            self._abort.now("the lease is lost")
        if self._abort.why is not None:
            return self._failure(lease)
        if self._is_apart or not event.is_step_up_for_retry:
            return None
        # Dagster retries a step that a user terminated as if it had failed, and the lock would stay held
        if is_ending(self._context.instance, self._context.run_id):
            return _interrupted(
                f"the run {self._context.run_id} is being terminated: {event.step_key!r} is not retried"
            )
        return None

    def _on_lost(self) -> None:
        self._abort.now("the lease is lost")

    def _end_steps(self) -> None:
        """Make the executor end its steps; may be called in any thread."""
        if self._ends_its_steps:
            compat.interrupt_executor()
        else:
            # the executor sees its processes end, and then the loss is raised in it
            threading.Thread(target=self._child_processes.end, kwargs={"grace": TERMS}, daemon=True).start()

    # --- releasing ------------------------------------------------------------------------------------------------

    @contextmanager
    def _left_to_the_living(self, lease: Lease) -> Iterator[None]:
        """At the end of the block, wait up to `DRAIN` seconds for steps on other machines.

        If some still run then, the lease is not released but left to expire.
        """
        try:
            yield
        finally:
            if self._is_apart and lease.is_held and not self._is_alone(lease):
                with suppress(LeaseLost, StoreError):
                    lease.detach()

    def _is_alone(self, lease: Lease) -> bool:
        if lease.mode == SHARED:
            return True  # each step is a reader in its own right
        # step processes on this machine have ended: the executor waited for them, or they were killed
        try:
            seen = self._lock.inspect()
            own = next((one for one in leases_of(seen) if one.holder == lease.holder), None)
            if seen is None or own is None:
                return True
            ticket = ticket_of(self._lock, seen, own)
            here = socket.gethostname()
            away = {one.owner for one in self._lock.members(ticket) if one.host != here}
            return not away or self._lock.wait_for_members(ticket, owner_filter=away.__contains__, timeout=DRAIN)
        except StoreError:
            # unknown: the ttl frees the lock, and the next holder sees an unclean end
            return False

    def _has_failed(self, lease: Lease) -> bool:
        return self._abort.why is not None or lease.lost_reason is not None

    def _failure(self, lease: Lease) -> BaseException:
        """Return the exception that ends the run: the loss, or an interrupt if the run has already ended."""
        return errors.lost(lease.lost_error()) if lease.lost_reason is not None else self._over()

    def _over(self) -> BaseException:
        # not a Failure: Dagster does not change a run that has ended
        return _interrupted(self._abort.why or "")

    def _say_lost(self, lease: Lease) -> None:
        if lease.lost_reason is not None:
            self._reporter.lost(lease, lease.lost_error())


def _interrupted(why: str) -> BaseException:
    """Return the exception that ends a run as its termination would."""
    made: BaseException = dagster.DagsterExecutionInterruptedError(why)
    return made

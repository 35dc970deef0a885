"""One section of a step, from the wait for its lock to the result of its body."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

import dagster

from dagster_lockstead import acquiring, compat, errors, held_leases, names
from dagster_lockstead.aborting import Abort, LeaseLostInterrupt, goes_on_outwards
from dagster_lockstead.ending import ended
from dagster_lockstead.frames import bears_interrupts
from dagster_lockstead.watching import Watch, is_ending
from lockstead import Lease, LeaseLost, Lock, StoreError, nesting
from lockstead.supervise.child_processes import ChildProcesses
from lockstead.wrapping.acquiring import draw_token, give_back, marked, take_back_granted
from lockstead.wrapping.locks import leases_of

if TYPE_CHECKING:
    from dagster_lockstead.reporting import Reporter
    from dagster_lockstead.spec import LockSpec

OTHERS: Final = 600.0
"""Maximum seconds that the end of a section waits for other threads that work under its lease."""

TURN: Final = 0.02
"""Seconds between two checks for these threads."""


class Section:
    """One section of a step. Used once."""

    def __init__(self, step: Any, reporter: Reporter, lock: Lock, spec: LockSpec) -> None:
        self._step = step
        self._reporter = reporter
        self._lock = marked(lock)
        self._spec = spec
        self._lease: Lease | None = None
        self._loss: LeaseLost | None = None
        self._is_guest = False
        self._has_begun = False
        self._abort = Abort(self._failure_now)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Abort if the run ends meanwhile: a run that has ended must not get the lock."""
        watch = Watch(self._step.instance, self._step.run_id, gone=self._abort.now)
        watch.start()
        try:
            yield
        finally:
            watch.stop()

    def check_wanted(self) -> None:
        """Raise a Failure if this is a retry and the run is being terminated.

        Dagster retries a terminated step as if it had failed.
        """
        if self._step.previous_attempt_count and is_ending(self._step.instance, self._step.run_id):
            self._abort.now(f"the run {self._step.run_id} is being terminated, so the step is not retried")
            raise self._failure_now()

    def acquire(self, run_key: held_leases.RunKey, timeout: float | None, *, is_whole: bool) -> Lease:
        """Wait for the lock, or attach to the run's lease."""
        began_at = time.monotonic()
        other_lock = self._other_lock(run_key) if timeout is None else None
        within = timeout if other_lock is None else nesting.LIMIT
        try:
            with self._abort:
                # assigned at once, so that the handling of an exception from here on finds the lease
                self._lease = acquiring.acquire(self._lock, within, self._step, self._reporter, other_lock=other_lock)
        except BaseException as error:
            if self._lease is None and not isinstance(error, Exception):
                take_back_granted(self._lock, acquiring.LOG)
            if self._abort.why is not None:
                raise self._failure_now() from error
            if isinstance(error, LeaseLost):
                # the run's lease was lost: a retry would continue without it
                raise errors.lost(error) from error
            raise
        lease = self._lease
        if self._abort.why is not None:
            raise self._failure_now()
        if not lease.is_member:
            acquiring.judged(self._lock, lease, self._spec, self._reporter)
        if is_whole:
            draw_token(lease, acquiring.LOG)
            self._reporter.acquired(lease, time.monotonic() - began_at)
        return lease

    def _other_lock(self, run_key: held_leases.RunKey) -> str | None:
        """Return a description of another lock that is held; None if there is none."""
        other = held_leases.other_held(run_key)
        if other is not None:
            return f"{other.key!r} is held by this {'run' if other.attempt is None else 'step'}"
        return "the run holds another lock" if _is_leased(self._step) else None

    def guest(self, lease: Lease) -> Lease:
        """Use the lease that the run holds in this process."""
        acquiring.refuse_upgrade(self._lock, lease.mode)
        self._lease, self._is_guest = lease, True
        if not lease.is_held:
            raise errors.lost(lease.lost_error())
        return lease

    def begin(self) -> None:
        """Note that work under the lease begins now."""
        self._has_begun = True

    def settle(self) -> None:
        """Release the lease if it is still held, for example after an interrupt between the wait and the body."""
        if self._lease is not None and not self._is_guest:
            give_back(self._lease, acquiring.LOG, unused=not self._has_begun)

    @contextmanager
    def working(self, run_key: held_leases.RunKey, lease: Lease) -> Iterator[held_leases.HeldLease]:
        """Record the lease for other threads of the step, and release it at the end unless one still works under it."""
        with nullcontext() if self._is_guest else lease:
            try:
                with held_leases.recorded(run_key, lease) as held:
                    yield held
            finally:
                if not self._has_begun:
                    self.settle()
                elif not self._is_guest and held.has_others and lease.is_held:
                    self._reporter.warn(f"{lease.key!r} is left to expire: another thread still works under it")
                    with suppress(LeaseLost, StoreError):
                        lease.detach()

    @bears_interrupts
    def wait_for_others(self, held: held_leases.HeldLease) -> None:
        """Wait until no other thread of the step works under the lease, the body has to end, or `OTHERS` has passed."""
        ends_at = time.monotonic() + OTHERS
        while held.has_others and held.lease.is_held and self._abort.why is None and time.monotonic() < ends_at:
            time.sleep(TURN)

    @contextmanager
    def guarded(self, lease: Lease) -> Iterator[Abort]:
        """Interrupt the block when it has to end, and end the processes that it started."""
        with (
            ChildProcesses() as child_processes,
            ended(child_processes, self._abort, lease, leaving=self._leave_word),
            self._abort,
        ):
            told = _Told(self._on_lost)
            lease.on_lost(told)
            try:
                yield self._abort
            finally:
                told.call = None

    @contextmanager
    def judged(self, lease: Lease) -> Iterator[None]:
        """Raise a Failure in place of the block's exception or return, if the block had to end."""
        try:
            yield
        except GeneratorExit:
            self._say_lost(lease)
            raise
        except BaseException as error:
            if not self._has_failed(lease, error):
                raise
            self._say_lost(lease)
            if isinstance(error, LeaseLostInterrupt) and goes_on_outwards():
                # the outer body has to end as well, and an `except Exception` in it would catch a Failure
                raise
            raise self._failure_now() from error
        if self._has_failed(lease, None):
            self._say_lost(lease)
            raise self._failure_now()

    def _leave_word(self) -> None:
        # without this report Dagster would retry the step after the process exits
        compat.fails_for_good(self._step, self._failure_now())

    def _on_lost(self) -> None:
        # read here: when interrupted, the main thread may hold the keeper's lock
        if self._lease is not None and self._lease.lost_reason is not None:
            self._loss = self._lease.lost_error()
        self._abort.now("the lease is lost")

    def _has_failed(self, lease: Lease, error: BaseException | None) -> bool:
        is_ended = isinstance(error, dagster.DagsterExecutionInterruptedError)
        if is_ended and not isinstance(error, LeaseLostInterrupt) and self._abort.why is None:
            # a run that a user terminates must be cancelled, even if its lease is lost as well; but a run worker that
            # lost the run's lease ends its steps in the same way, before they could detect the loss
            return lease.is_member and self._is_gone(lease)
        if self._abort.why is not None or lease.lost_reason is not None:
            return True
        return isinstance(error, LeaseLost) and error.holder == lease.holder

    def _is_gone(self, lease: Lease) -> bool:
        """Return whether the store reports that a lease has ended; False if the store does not answer."""
        try:
            seen = self._lock.inspect()
        except StoreError:
            return False
        own = next((one for one in leases_of(seen) if one.holder == lease.holder), None)
        return (
            seen is None or own is None or seen.revoked_by is not None or own.revoked_by is not None or own.is_expired
        )

    def _say_lost(self, lease: Lease) -> None:
        if lease.lost_reason is not None:
            self._reporter.lost(lease, lease.lost_error())

    def _failure_now(self) -> errors.LockFailure:
        lease = self._lease
        if lease is not None and lease.lost_reason is not None:
            return errors.lost(self._loss or lease.lost_error())
        why = self._abort.why or "the lease is lost"
        said = {names.KEY: self._lock.key, names.REASON: why}
        if lease is not None:
            said[names.HOLDER] = lease.holder
        return errors.StepLostLease(f"the step ends: {why}", said)


class _Told:
    """The callback for a lost lease. The run's lease outlives a section, and must not keep an ended section alive."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def __call__(self) -> None:
        call = self.call
        if call is not None:
            call()


def _is_leased(step: Any) -> bool:
    """Return whether the whole run holds a lease."""
    created = getattr(step.job_def.executor_def, "executor_creation_fn", None)
    return getattr(created, "__module__", None) == "dagster_lockstead.leasing"

"""The critical section of a step, for `@locked` and `hold`.

Watch for the run's end, attach to the run's lease or wait for the lock, check the previous lease, run the body; then
disarm the interrupt, end leftover child processes if the body failed, release the lease, report the result. Raises what
the body raised, or a Failure that Dagster does not retry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from dagster_lockstead import acquiring, compat, errors, held_leases, names, template_values
from dagster_lockstead.aborting import Abort
from dagster_lockstead.closing import closed_with
from dagster_lockstead.frames import bears_interrupts
from dagster_lockstead.reporting import Reporter
from dagster_lockstead.resource import LockResource, checked_resource
from dagster_lockstead.spec import NOTHING, LockSpec
from dagster_lockstead.working import Section
from lockstead import Lease, Lock, urls
from lockstead.values import seconds
from lockstead.wrapping.locks import store_of


@dataclass(frozen=True, slots=True)
class Entry:
    """The lease of a running body, and the `Abort` that interrupts it; None outside of steps."""

    lease: Lease
    abort: Abort | None = None

    def has_to_end(self) -> bool:
        """Return whether the body must end."""
        return not self.lease.is_held or (self.abort is not None and self.abort.why is not None)


@contextmanager
def held(context: Any, resource: LockResource, spec: LockSpec) -> Iterator[Lease]:
    """Hold the lock for a block and yield the lease; in a step, a sensor, or anywhere else.

    Outside of a step the body is not interrupted and no process ended: LeaseLost is raised at the end of the block.
    """
    step = compat.step_of(context)
    if step is None:
        with outside(context, resource, spec) as entry:
            yield entry.lease
        return
    section = entered(context, resource, spec)
    # in a generator the section is open while an I/O manager handles an output
    with closed_with(step, section.gen), section as entry:
        yield entry.lease


@contextmanager
@bears_interrupts
def outside(
    context: Any, resource: LockResource, spec: LockSpec, arguments: Mapping[str, Any] = NOTHING
) -> Iterator[Entry]:
    """Hold the lock where there is no step."""
    spec = named(spec, context, arguments)
    lock = lock_of(context, resource, spec)
    run_key = held_leases.key_outside_runs(lock)
    around = held_leases.lease_of(run_key)
    if around is not None:
        acquiring.refuse_upgrade(lock, around.mode)
        yield Entry(around)
        return
    with lock.acquire(limit(resource, spec)) as lease, acquiring.unused_until_begun(lease) as begin:
        acquiring.judged(lock, lease, spec, None)
        with held_leases.recorded(run_key, lease):
            begin()
            yield Entry(lease)


@contextmanager
def entered(
    context: Any,
    resource: LockResource,
    spec: LockSpec,
    arguments: Mapping[str, Any] = NOTHING,
    *,
    is_whole: bool = False,
) -> Iterator[Entry]:
    """Hold the lock in a step. is_whole: for the whole body; then the token is drawn and the acquisition reported."""
    step = compat.step_of(context)
    if step is None:
        raise errors.InvalidLockConfig(f"the lock {spec.key!r} can only be held in a step, not in {context!r}")
    spec = named(spec, context, arguments)
    lock = lock_of(context, resource, spec)
    store, key = store_of(lock), lock.key
    # the key is of one attempt: the next attempt must not work under a lease that this one left
    run_key = held_leases.RunKey(step.run_id, f"{step.step.key}:{step.previous_attempt_count}", store, key)
    runs = held_leases.lease_of(held_leases.RunKey(step.run_id, None, store, key))
    with held_leases.joined(run_key) as above:
        if above is not None and above is not runs:
            acquiring.refuse_upgrade(lock, above.mode)
            # the outer section, perhaps in another thread, interrupts the body, ends processes and releases the lease
            yield Entry(above)
            if not above.is_held:
                raise errors.lost(above.lost_error())
            return
    with ExitStack() as stack:
        reporter = Reporter(step)
        stack.callback(reporter.close)
        section = Section(step, reporter, lock, spec)
        section.check_wanted()
        stack.enter_context(section.watched())
        stack.callback(section.settle)
        if runs is None:
            lease = section.acquire(run_key, limit(resource, spec), is_whole=is_whole)
        else:
            lease = section.guest(runs)
        with section.judged(lease), section.working(run_key, lease) as held, section.guarded(lease) as abort:
            section.begin()
            yield Entry(lease, abort)
            section.wait_for_others(held)


def named(spec: LockSpec, context: Any, arguments: Mapping[str, Any] = NOTHING) -> LockSpec:
    """Return a spec with the key and purpose for a call; InvalidLockConfig, with one line, if there is none."""
    try:
        return spec.named(context, NOTHING if spec.is_final else template_values.of_call(context, arguments))
    except (TypeError, ValueError) as error:
        raise errors.InvalidLockConfig(str(error)) from error


def lock_of(context: Any, resource: LockResource, spec: LockSpec) -> Lock:
    """Return the lock of a spec in a resource's store; InvalidLockConfig, with one line, if it is invalid."""
    owner = owner_of(context)
    settings = spec.settings if owner is None else {**spec.settings, "owner": owner}
    try:
        lock = spec.checked(checked_resource(spec.resource, resource).lock(str(spec.key), **settings))
    except (TypeError, ValueError) as error:
        raise errors.InvalidLockConfig(str(error)) from error
    refuse_private(resource, is_apart=compat.is_step_process())
    return lock


def refuse_private(resource: LockResource, *, is_apart: bool) -> None:
    """Raise InvalidLockConfig for a store of one process if steps have processes of their own (is_apart)."""
    if is_apart and not urls.spans_processes(resource.store.url):
        raise errors.InvalidLockConfig(
            f"a {resource.store.url.partition(':')[0]}: lock lives in one process, and each step has a process of its "
            "own here, so it excludes no one: use sqlite: or another store"
        )


def limit(resource: LockResource, spec: LockSpec) -> float | None:
    """Return the seconds to wait for a lock; None to wait forever."""
    given = spec.timeout if spec.timeout is not None else resource.timeout
    return None if given is None else seconds(given, "timeout")


def owner_of(context: Any) -> str | None:
    """Return the owner name of a step, which identifies it for people; None outside of a step."""
    step = compat.step_of(context)
    if step is None:
        return None
    return names.step_owner(step.run_id, step.step.key, step.previous_attempt_count)

"""Sensors for locks: a gate that requests a run when a lock is free, and a janitor that frees stale locks.

Both run in the code server and acquire no lock, so nothing is interrupted or swept here. The gate holds nothing while
it waits and guarantees nothing: another holder may acquire the lock between its read and the run's own `@locked`.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import dagster

from dagster_lockstead import names
from dagster_lockstead.resource import checked_resource
from dagster_lockstead.spec import LockSpec, refuse_template
from lockstead.renewal import default_renew_every
from lockstead.supervise import processes
from lockstead.values import EXCLUSIVE, SHARED
from lockstead.wrapping.locks import keeps_out, leases_of
from lockstead.wrapping.messages import is_held
from lockstead.wrapping.spec import check_choice, of_permits

if TYPE_CHECKING:
    from lockstead import LockInfo

SENSOR: Final = "dagster/sensor_name"
"""The tag with which Dagster marks the runs of a sensor."""

ENDED: Final = frozenset({"SUCCESS", "FAILURE", "CANCELED"})
UNDER_WAY: Final = [status for status in dagster.DagsterRunStatus if status.value not in ENDED]

MISSED: Final = 2
"""Number of renewal intervals without a renewal after which a lease is late."""

AT_ONCE: Final = 500
"""Maximum number of runs read with one query, and of leases freed in one evaluation."""


def lock_free_sensor(
    name: str,
    *,
    key: str | Callable[[Any], str],
    target: Any,
    requests: Callable[[dagster.SensorEvaluationContext], Any] | None = None,
    resource: str = "lock",
    mode: str = EXCLUSIVE,
    permits: int | None = None,
    **more: Any,
) -> dagster.SensorDefinition:
    """Return a sensor that requests a run of its target when the lock is free, and otherwise reports the holder.

    target: a job, its name, or assets. requests: called with the context when the lock is free; returns what a sensor
    may return: run requests or a SkipReason; without it one run is requested. While a run of this sensor is queued or
    in progress, nothing is requested: that run will acquire the lock. The run itself has to acquire it, with `@locked`
    or `leased`. mode: "shared" if the run is a reader: other readers then do not count. permits: the
    limit of a semaphore; it is free while a permit is. more: parameters of `dagster.sensor`.
    """
    refuse_template(key, "give a callable of the sensor's context")
    check_choice("mode", mode, (EXCLUSIVE, SHARED))
    shared = mode if mode == SHARED or permits is None else None
    spec = LockSpec(key=key, resource=resource, mode=shared, permits=permits)

    def gate(context: dagster.SensorEvaluationContext) -> Any:
        store = checked_resource(resource, getattr(context.resources, resource))
        lock = spec.of_permits(store.lock(str(spec.named(context).key), mode=mode))
        held = lock.inspect()
        if keeps_out(lock, held):
            return dagster.SkipReason(is_held(lock.key, held))
        if run := _under_way(context.instance, name):
            return dagster.SkipReason(f"{lock.key!r} is free, and run {run}, which will acquire it, has not ended")
        return requests(context) if requests is not None else dagster.RunRequest()

    wanted = {"job_name": target} if isinstance(target, str) else {"target": target}
    return dagster.SensorDefinition(name=name, evaluation_fn=gate, required_resource_keys={resource}, **wanted, **more)


def _under_way(instance: dagster.DagsterInstance, sensor: str) -> str | None:
    """Return the id of a run of this sensor that has not ended; None if there is none."""
    chosen = dagster.RunsFilter(tags={SENSOR: sensor}, statuses=UNDER_WAY)
    runs = instance.get_runs(chosen, limit=1)
    return runs[0].run_id if runs else None


def stale_lock_sensor(
    name: str = "lockstead_janitor",
    *,
    resource: str = "lock",
    grace: float = 60.0,
    minimum_interval_seconds: int = 60,
    **more: Any,
) -> dagster.SensorDefinition:
    """Return a sensor that frees locks left by runs that ended at least `grace` seconds ago. Only a safety net.

    A lease whose process was on this machine and is gone, and that has missed renewals, is removed; any other lease of
    such a run is revoked, so that a live holder loses it at its next renewal, and a dead one's expires. Locks that no
    run of this Dagster instance holds are left alone.
    """

    def sweep(context: dagster.SensorEvaluationContext) -> dagster.SkipReason:
        locks = checked_resource(resource, getattr(context.resources, resource))
        leases = [one for held in locks.list() for one in leases_of(held)]
        held = [one for one in leases if names.run_of(one.owner) is not None and not one.is_expired]
        ended = _ended(context.instance, {_run_of(one) for one in held}, time.time() - grace)
        left = [one for one in held if _run_of(one) in ended and (one.revoked_by is None or is_gone(one))]
        did = []
        for one in left[:AT_ONCE]:
            why = f"run {_run_of(one)} ended {ended[_run_of(one)]} and left it locked"
            lock = locks.lock(one.key)
            # the limit of a semaphore does not matter for breaking a lease
            broken = (lock if one.slot is None else of_permits(lock, 1)).break_lease(
                reason=why,
                by=f"dagster:{name}",
                now=is_gone(one),
                incarnation=one.incarnation,
                reader=None if one.registration is None and one.slot is None else one,
            )
            if broken is not None:
                verb = "removed" if broken.removed else "revoked"
                did.append(f"{verb} the lease of {one.owner!r} on {one.key!r}: {why}")
        for line in did:
            context.log.warning(line)
        return dagster.SkipReason("; ".join(did) or f"{len(held)} locks are held by runs, none of which has ended")

    return dagster.SensorDefinition(
        name=name,
        evaluation_fn=sweep,
        required_resource_keys={resource},
        minimum_interval_seconds=minimum_interval_seconds,
        **more,
    )


def _run_of(held: LockInfo) -> str:
    return names.run_of(held.owner) or ""


def _ended(instance: dagster.DagsterInstance, runs: Iterable[str], before: float) -> dict[str, str]:
    """Return the status of those of these runs that ended before an instant (seconds since the epoch).

    A run that is unknown here counts as not ended.
    """
    wanted = sorted(set(runs))
    records = [
        one
        for first in range(0, len(wanted), AT_ONCE)
        for one in instance.get_run_records(dagster.RunsFilter(run_ids=wanted[first : first + AT_ONCE]))
    ]
    return {
        one.dagster_run.run_id: one.dagster_run.status.value
        for one in records
        if one.dagster_run.is_finished and (one.end_time or one.update_timestamp.timestamp()) < before
    }


def is_gone(held: LockInfo) -> bool:
    """Return whether a holder is certainly gone: its process was on this machine and has ended, and renewals are late.

    Never true if the store does not report the time since the last renewal. Two containers with the same host name have
    separate process tables, so a live holder in the other one is recognized by its renewals.
    """
    if held.host != socket.gethostname() or held.pid is None or held.ttl is None or held.age is None:
        return False
    return held.age > MISSED * default_renew_every(held.ttl) and not _runs(held.pid)


def _runs(pid: int) -> bool:
    """Return whether a process with this id runs; a zombie does not."""
    try:
        return processes.stat_of(pid)[0] not in (b"Z", b"X")
    except FileNotFoundError:
        pass
    except (OSError, IndexError):
        return True
    if processes.HAS_PROC:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True

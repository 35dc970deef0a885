"""What sensors do with locks: a gate that asks for a run when a lock is free, and a janitor.

Both run in the code server: they look, and take no lock. There is no interrupt and no sweep here. The gate holds
nothing while it waits, and promises nothing: between its look and the run's own `@locked` somebody else may come.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import dagster

from dagster_lockstead import names
from dagster_lockstead.resources import resource_in
from dagster_lockstead.spec import LockSpec, refuse_template
from lockstead.renewal import default_renew_every
from lockstead.supervise import processes
from lockstead.wrapping.messages import is_held

if TYPE_CHECKING:
    from lockstead import LockInfo

SENSOR: Final = "dagster/sensor_name"
"""The tag by which Dagster says which sensor asked for a run."""

ENDED: Final = frozenset({"SUCCESS", "FAILURE", "CANCELED"})
UNDER_WAY: Final = [status for status in dagster.DagsterRunStatus if status.value not in ENDED]

MISSED: Final = 2
"""A lease is late when it was not renewed for the time of so many renewals."""

AT_ONCE: Final = 500
"""So many runs are asked for in one question, and so many leases are freed in one evaluation."""


def lock_free_sensor(
    name: str,
    *,
    key: str | Callable[[Any], str],
    target: Any,
    requests: Callable[[dagster.SensorEvaluationContext], Any] | None = None,
    resource: str = "lock",
    **more: Any,
) -> dagster.SensorDefinition:
    """Return a sensor that asks for a run of its target when the lock is free, and says who holds it when it is not.

    target: a job, its name, or assets. requests: called with the context when the lock is free, it gives what a sensor
    may give, which runs or a SkipReason; without it one run is asked for. While a run that this sensor asked for is
    under way, or in the queue, nothing is asked for: it will take the lock. The run itself has to take it, by `@locked`
    or `leased`. more: as of `dagster.sensor`.
    """
    refuse_template(key, "give a callable of the sensor's context")
    spec = LockSpec(key=key, resource=resource)

    def gate(context: dagster.SensorEvaluationContext) -> Any:
        lock = resource_in(context.resources, resource).lock(str(spec.named(context).key))
        held = lock.inspect()
        if held is not None and not held.is_expired:
            return dagster.SkipReason(is_held(lock.key, held))
        if run := _under_way(context.instance, name):
            return dagster.SkipReason(f"{lock.key!r} is free, and run {run} is under way, which will ask for it")
        return requests(context) if requests is not None else dagster.RunRequest()

    wanted = {"job_name": target} if isinstance(target, str) else {"target": target}
    return dagster.SensorDefinition(name=name, evaluation_fn=gate, required_resource_keys={resource}, **wanted, **more)


def _under_way(instance: dagster.DagsterInstance, sensor: str) -> str | None:
    """Return a run that this sensor asked for and that has not ended."""
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
    """Return a sensor that frees what runs left locked that ended at least `grace` seconds ago. A net, and no more.

    A holder whose process was on this machine and is gone, and that has missed renewals, is removed; every other one
    is revoked, so that it ends itself at its next renewal if it still lives, and expires if it does not. What nobody
    of this Dagster holds is left alone.
    """

    def sweep(context: dagster.SensorEvaluationContext) -> dagster.SkipReason:
        locks = resource_in(context.resources, resource)
        held = [one for one in locks.list() if names.run_of(one.owner) is not None and not one.is_expired]
        ended = _ended(context.instance, {_run_of(one) for one in held}, time.time() - grace)
        left = [one for one in held if _run_of(one) in ended and (one.revoked_by is None or is_gone(one))]
        did = []
        for one in left[:AT_ONCE]:
            why = f"run {_run_of(one)} ended {ended[_run_of(one)]} and left it locked"
            broken = locks.lock(one.key).break_lease(
                reason=why, by=f"dagster:{name}", now=is_gone(one), incarnation=one.incarnation
            )
            if broken is not None:
                verb = "removed" if broken.removed else "revoked"
                did.append(f"{verb} the lease of {one.owner!r} on {one.key!r}: {why}")
        for line in did:
            context.log.warning(line)
        return dagster.SkipReason("; ".join(did) or f"{len(held)} locks are held by runs, none of one that has ended")

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
    """Return the status of those of these runs that ended before an instant. A run that is unknown here has not."""
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
    """Return whether a holder is known to be gone: its process was on this machine and is not, and nobody renews.

    Never true where the store does not tell the time since the last renewal. Two containers of one host name have two
    tables of processes: who lives in the other one renews.
    """
    if held.host != socket.gethostname() or held.pid is None or held.ttl is None or held.age is None:
        return False
    return held.age > MISSED * default_renew_every(held.ttl) and not _runs(held.pid)


def _runs(pid: int) -> bool:
    """Return whether there is such a process; one that only waits to be reaped does not run."""
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

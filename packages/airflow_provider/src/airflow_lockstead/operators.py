"""The operators that acquire, keep and release a lock. `body` runs the tasks between them.

The triggerer waits, so a waiting task has no worker slot. Imported when a DAG file is parsed, so it imports no store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow_lockstead import compat, config
from airflow_lockstead.links import HolderLink
from airflow_lockstead.names import Attempt
from airflow_lockstead.spec import NAMES, LockSpec, check_keeper
from airflow_lockstead.templates import RendersLock
from lockstead.wrapping.spec import OnUnclean

if TYPE_CHECKING:
    from airflow_lockstead.grants import Grant
    from lockstead import Lock
    from lockstead.values import Duration

RETRIES: Final = 3
RETRY_DELAY: Final = timedelta(seconds=10)
"""Retries are the default: a stale event of the executor can fail a deferred task just after its trigger fired, and a
retry takes over the lease."""

LOCK_COLOR: Final = "#e8d9f1"
"""The colour in Airflow's UI of the tasks that acquire, keep and release."""

INSTEAD: Final = ", or set deferrable=False"
"""The alternative named in the warning that no triggerer runs."""


class _LockOperator(RendersLock, compat.BaseOperator):  # type: ignore[misc]  # the base class is found at run time
    """Base class of the three operators: the lock's parameters, their templates, and retries."""

    template_fields: Sequence[str] = tuple(NAMES)

    def __init__(
        self,
        *,
        lock: str | None = None,
        key: str | None = None,
        lockstead_conn_id: str | None = None,
        ttl: Duration | None = None,
        timeout: Duration | None = None,
        purpose: str | None = None,
        expected: Duration | None = None,
        on_unclean: OnUnclean = "warn",
        labels: Mapping[str, str] | None = None,
        mode: str | None = None,
        permits: int | None = None,
        spec: LockSpec | None = None,
        **kwargs: Any,
    ) -> None:
        # default_args apply only to parameters of the class's own signature, so they do not change these two; without
        # a retry, a stale event of the executor would fail the run
        kwargs["retries"] = max(1, int(kwargs.get("retries", RETRIES) or 0))
        kwargs.setdefault("retry_delay", RETRY_DELAY)
        super().__init__(**kwargs)
        words = {
            "lock": lock,
            "key": key,
            "lockstead_conn_id": lockstead_conn_id,
            "ttl": ttl,
            "timeout": timeout,
            "purpose": purpose,
            "expected": expected,
            "on_unclean": None if on_unclean == "warn" else on_unclean,
            "labels": labels,
            "mode": mode,
            "permits": permits,
        }
        if spec is not None:
            _check_alone(self.task_id, words, kwargs.get("default_args") or {})
        given: dict[str, Any] = {NAMES.get(name, name): word for name, word in words.items() if word is not None}
        spec = spec or LockSpec(**{**given, "on_unclean": on_unclean, "keeper": False})
        lock, key, lockstead_conn_id, purpose, mode = spec.lock, spec.key, spec.conn_id, spec.purpose, spec.mode
        self._spec = spec
        self.lock = lock
        self.key = key
        self.lockstead_conn_id = lockstead_conn_id
        self.purpose = purpose
        self.mode = mode

    @property
    def spec(self) -> LockSpec:
        """Return the lock's spec with the current field values: in a running task, with templates rendered."""
        return self._spec.named({name: getattr(self, name) for name in NAMES})


def _check_alone(task_id: str, words: Mapping[str, Any], shared: Mapping[str, Any]) -> None:
    """Raise TypeError for lock parameters of a task whose lock is defined by a spec: they would be ignored silently.

    shared: the default_args, whose values are allowed, since they may be meant for other kinds of tasks.
    """
    beside = sorted(name for name, given in words.items() if given is not None and given != shared.get(name))
    if beside:
        raise TypeError(f"{task_id}: say {', '.join(f'{name}=' for name in beside)} where the lock is named, not here")


class AcquireLockOperator(_LockOperator):
    """Waits for a lock without a worker slot, and returns its ticket, token, key and holder.

    Nothing renews the lease after the task has ended: it expires after its ttl.

    :param lock: the lock's URL, as in `gs://bucket/locks#apt`. (templated)
    :param key: instead of `lock`: the lock's name in the store of a connection. (templated)
    :param lockstead_conn_id: the connection of the type lockstead that names the store. (templated)
    :param ttl: how long the lease lasts without a renewal, as seconds or text (`"5m"`).
    :param timeout: how long to wait for the lock; then the task fails, without a retry. By default it waits forever.
    :param purpose: the reason, shown to waiters. (templated)
    :param expected: how long the work should take; after that it counts as overdue.
    :param on_unclean: what to do if the previous holder did not end cleanly: "warn" or "fail".
    :param labels: texts that are stored in the record of the lock.
    :param mode: "exclusive", or "shared" for a reader. A retry of a reader acquires again, and its earlier lease
        expires. (templated)
    :param permits: the limit of a semaphore, which is acquired in place of a lock. A retry acquires another permit, and
        the earlier one expires.
    :param deferrable: wait in the triggerer; if False, in the worker slot.
    :param scope: for a group: the group's id, from which the owner's name is made.
    :param spec: for a group: the lock, defined once for all of its tasks.
    """

    ui_color = LOCK_COLOR

    operator_extra_links = (HolderLink(),)

    def __init__(self, *, scope: str | None = None, deferrable: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scope = scope
        self.deferrable = deferrable

    def execute(self, context: Any) -> dict[str, Any]:
        """Acquire the lock if it is free; otherwise defer, so that the triggerer waits for it."""
        from airflow_lockstead import acquiring, errors

        with errors.refusing():
            spec, owner, me = self.spec, self._owner(context), Attempt.of(context["ti"])
            if self.deferrable and not compat.runs_inline():
                if (grant := acquiring.at_once(spec, owner, self.log, me)) is not None:
                    return self._taken(spec, owner, grant)
                self.log.info("deferring: the triggerer waits for the lock, as %r", owner)
                raise self._deferral(spec, owner, me)
            why = acquiring.INLINE_DEFAULT if self.deferrable else "deferrable=False"
            return self._taken(spec, owner, acquiring.inline(spec, owner, self.log, why, me))

    def granted(self, context: Any, event: Mapping[str, Any]) -> dict[str, Any]:
        """Resume with the trigger's grant; if its lease has ended meanwhile, defer again."""
        from airflow_lockstead import acquiring, connection, errors

        with errors.refusing():
            grant = acquiring.told(event)
            spec, owner = connection.as_granted(self.spec, self._spec, grant.ticket), self._owner(context)
            if not acquiring.is_still_held(spec, owner, grant, self.log):
                raise self._deferral(spec, owner, Attempt.of(context["ti"]))
            return self._taken(spec, owner, grant)

    def _deferral(self, spec: LockSpec, owner: str, me: Attempt) -> Exception:
        from airflow_lockstead import acquiring

        return acquiring.deferral(spec, owner, me, "granted", self.log, hands_on=True, otherwise=INSTEAD)

    def _owner(self, context: Any) -> str:
        return Attempt.of(context["ti"]).acquirer(self.scope or self.task_id)

    def _taken(self, spec: LockSpec, owner: str, grant: Grant) -> dict[str, Any]:
        from airflow_lockstead import acquiring

        acquiring.judge(spec, owner, grant, self.log)
        self.log.info("%s", grant)
        return grant.xcom


class _FromAcquire(_LockOperator):
    """Base class of operators that use the lease of an acquire task. acquire: that task, or its full id."""

    def __init__(self, *, acquire: Any = None, acquire_id: str | None = None, **kwargs: Any) -> None:
        if isinstance(acquire, _LockOperator) and not {"spec", "lock", "key"} & set(kwargs):
            kwargs["spec"] = acquire._spec
        super().__init__(**kwargs)
        if isinstance(acquire, str):
            acquire_id = acquire
        elif acquire is not None:
            acquire_id = acquire.task_id
            self.set_upstream(acquire)
        if not acquire_id:
            raise ValueError(f"{self.task_id} needs acquire=, the task that acquires its lock")
        self.acquire_id = acquire_id

    def _grant(self, context: Any) -> Grant | None:
        from airflow_lockstead.tickets import grant_of

        return grant_of(context["ti"], self.acquire_id)

    def _spec_of(self, grant: Grant) -> LockSpec:
        """Return the spec with the lock's name as it was acquired."""
        from airflow_lockstead import connection

        return connection.as_granted(self.spec, self._spec, grant.ticket)


class ReleaseLockOperator(_FromAcquire):
    """Releases a lease, after no task works under it any more. A lease that is already gone is not a failure.

    :param acquire: the task that acquires the lock; it also defines the lock, unless that is given here again.
    :param acquire_id: instead of `acquire`: the full id of that task.
    :param drain: how many seconds to wait for tasks that still work under the lease; by default the value of the lock's
        URL, or long enough for a task that is killed meanwhile to expire. A task that works longer loses the lease, and
        is stopped.
    """

    ui_color = LOCK_COLOR

    operator_extra_links = (HolderLink(),)

    def __init__(self, *, drain: Duration | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.drain = drain

    def execute(self, context: Any) -> bool:
        """Release the lease; return True if it was held until then."""
        from airflow_lockstead import connection, errors
        from lockstead.wrapping.locks import leases_of

        grant = self._grant(context)
        if grant is None:
            self.log.info("%s was granted no lease: nothing to release", self.acquire_id)
            return False
        with errors.refusing():
            lock = connection.lock(self._spec_of(grant), Attempt.of(context["ti"]).member)
            self._wait_for_the_living(lock, grant)
            if lock.release(grant.ticket):
                self.log.info("released %r, held by %r with token %s", grant.key, grant.holder, grant.token)
                return True
            held = lock.inspect()
        if any(one.holder == grant.holder for one in leases_of(held)):
            still = ", ".join(sorted(one.owner for one in lock.members(grant.ticket)))
            self.log.warning("members still work under the lease (%s): %r is left to expire", still, grant.key)
        else:
            now = "it is free" if held is None or not leases_of(held) else f"{held.owner!r} holds it"
            self.log.warning("the lease of %r on %r had already ended; now %s", grant.holder, grant.key, now)
        return False

    def _wait_for_the_living(self, lock: Lock, grant: Grant) -> None:
        """Wait for the live members before the release begins: from then on they can no longer renew."""
        from airflow_lockstead import liveness
        from lockstead.values import SHARED, LeaseTicket, seconds

        if LeaseTicket.parse(grant.ticket).mode == SHARED:
            return  # its members are readers in their own right
        working = [one.owner for one in lock.members(grant.ticket) if not one.is_expired]
        if not working:
            return
        limit = self.drain if self.drain is not None else lock.settings.drain
        if limit is None:
            limit = liveness.member_wait_limit(grant.ticket)
        self.log.info("waiting for members that still work under the lease: %s", ", ".join(sorted(working)))
        if not liveness.wait_for_members(
            lock, grant.ticket, owner_filter=lambda _owner: True, limit=seconds(limit, "drain"), log=self.log
        ):
            self.log.warning("members still work after %s s; releasing: they lose the lease and are stopped", limit)


class KeepLockOperator(_FromAcquire):
    """Renews a lease from the triggerer, between the tasks that work under it, until the lease ends.

    It succeeds no matter how the lease ended: a task that lost it fails itself, and a task that acquires the lock again
    must not fail its run. If the run is marked failed while it waits, it fails too, so that the run stays failed.
    Raises ValueError for a ttl that is too short to survive the death of a triggerer.

    :param acquire: the task that acquires the lock; it also defines the lock, unless that is given here again.
    :param acquire_id: instead of `acquire`: the full id of that task.
    :param release_id: the full id of the task that releases the lease; once that has failed without further retries,
        the lease is no longer renewed.
    """

    ui_color = LOCK_COLOR

    is_weighed = False
    """Whether its group sets its priority weight."""

    def __init__(self, *, release_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.release_id = release_id
        self._spec = replace(self._spec, keeper=True)
        check_keeper(self._spec, config.KEEPER_TTL_MIN.value)

    def execute(self, context: Any) -> None:
        """Defer, so that the triggerer renews the lease."""
        from airflow_lockstead import acquiring, errors
        from airflow_lockstead.triggers import KeepTrigger, plain

        if compat.runs_inline():
            raise compat.AirflowSkipException(
                "dag.test() runs one task after the other, and this one would wait for the release forever: between "
                "the tasks nobody keeps the lease, each renews it while it runs"
            )
        grant = self._grant(context)
        if grant is None:
            raise compat.AirflowSkipException(f"{self.acquire_id} was granted no lease: nothing to keep")
        with errors.refusing():
            spec = self._spec_of(grant)
            # a templated URL may have another ttl than was known when the file was parsed
            check_keeper(spec, config.KEEPER_TTL_MIN.value)
        acquiring.warn_without_triggerer(self.log, ", and nothing renews the lease meanwhile; or set keeper=False")
        self.log.info("renewing %r for %r in the triggerer, until it is released", grant.key, grant.holder)
        self.defer(trigger=KeepTrigger(plain(spec), grant.ticket, self._release(context["ti"])), method_name="ended")

    def _release(self, ti: Any) -> dict[str, Any] | None:
        if self.release_id is None:
            return None
        return {**Attempt.of(ti).place, "task_id": self.release_id}

    def ended(self, context: Any, event: Mapping[str, Any]) -> None:  # noqa: ARG002 - Airflow passes it
        """End the task after the lease has ended, where the trigger could not do so itself."""
        from airflow_lockstead.triggers import ENDED, tell_ended

        if event.get("state") != ENDED:
            raise compat.AirflowException(f"lockstead: the lease is no longer renewed: {event.get('message')}")
        tell_ended(event, self.log)

"""What acquire, keep and release are as tasks. What is done between them is `body`'s.

Waiting is the triggerer's: a task that waits holds no worker slot. Imported at parse, so nothing here imports a store.
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
"""A deferred task can be failed by an executor's stale event just after its trigger fired; a retry loses nothing."""

LOCK_COLOR: Final = "#e8d9f1"
"""Of the tasks that acquire, keep and release, where Airflow shows a colour."""

INSTEAD: Final = ", or take deferrable=False"
"""What else could be done where no triggerer runs."""


class _LockOperator(RendersLock, compat.BaseOperator):  # type: ignore[misc]  # a class that is found when Airflow is there
    """What the three have in common: which lock, rendered, and retries that lose nothing."""

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
        spec: LockSpec | None = None,
        **kwargs: Any,
    ) -> None:
        # default_args reach only what the class's own signature names, so they change neither of the two; and one
        # without a retry would end its run for an executor's stale event
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
        }
        if spec is not None:
            _check_alone(self.task_id, words, kwargs.get("default_args") or {})
        given: dict[str, Any] = {NAMES.get(name, name): word for name, word in words.items() if word is not None}
        spec = spec or LockSpec(**{**given, "on_unclean": on_unclean, "keeper": False})
        lock, key, lockstead_conn_id, purpose = spec.lock, spec.key, spec.conn_id, spec.purpose
        self._spec = spec
        self.lock = lock
        self.key = key
        self.lockstead_conn_id = lockstead_conn_id
        self.purpose = purpose

    @property
    def spec(self) -> LockSpec:
        """Return the lock as it is named now: in a running task, with its templates rendered."""
        return self._spec.named({name: getattr(self, name) for name in NAMES})


def _check_alone(task_id: str, words: Mapping[str, Any], shared: Mapping[str, Any]) -> None:
    """Raise TypeError for words of a lock that is named elsewhere: they would be dropped without a word.

    shared: the default_args, which may mean another kind of task by the same word.
    """
    beside = sorted(name for name, given in words.items() if given is not None and given != shared.get(name))
    if beside:
        raise TypeError(f"{task_id}: say {', '.join(f'{name}=' for name in beside)} where the lock is named, not here")


class AcquireLockOperator(_LockOperator):
    """Waits for a lock without a worker slot, and returns its ticket, token, key and holder.

    Nothing keeps the lease when the task has ended: it lives for its ttl.

    :param lock: the lock's URL, as in `gs://bucket/locks#apt`. (templated)
    :param key: instead of `lock`: the lock's name in the store of a connection. (templated)
    :param lockstead_conn_id: the connection of the type lockstead that names the store. (templated)
    :param ttl: how long the lease lives if nobody renews it, as seconds or text (`"5m"`).
    :param timeout: how long to wait for the lock; then the task fails, without a retry. For ever by default.
    :param purpose: why the lock is wanted; shown to whoever waits for it. (templated)
    :param expected: how long the work should take; later it counts as overdue.
    :param on_unclean: what to do if the holder before did not end cleanly: "warn", or "fail".
    :param labels: plain words for the record of the lock.
    :param deferrable: wait in the triggerer; with False in the worker slot.
    :param scope: for a group: the group's id, which the owner is named after.
    :param spec: for a group: the lock, named once for all of its tasks.
    """

    ui_color = LOCK_COLOR

    operator_extra_links = (HolderLink(),)

    def __init__(self, *, scope: str | None = None, deferrable: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scope = scope
        self.deferrable = deferrable

    def execute(self, context: Any) -> dict[str, Any]:
        """Take the lock if it is free; else have the triggerer wait for it."""
        from airflow_lockstead import acquiring, errors

        with errors.refusing():
            spec, owner, me = self.spec, self._owner(context), Attempt.of(context["ti"])
            if self.deferrable and not compat.runs_inline():
                if (grant := acquiring.at_once(spec, owner, self.log, me)) is not None:
                    return self._taken(spec, owner, grant)
                self.log.info("asking for the lock in the triggerer, as %r", owner)
                raise self._deferral(spec, owner, me)
            why = acquiring.INLINE_DEFAULT if self.deferrable else "deferrable=False"
            return self._taken(spec, owner, acquiring.inline(spec, owner, self.log, why, me))

    def granted(self, context: Any, event: Mapping[str, Any]) -> dict[str, Any]:
        """Go on with what the trigger was granted, if it still is."""
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
    """What works with the lease of an acquire task: acquire is that task, or its full id."""

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
        """Return the lock as it was named when it was acquired."""
        from airflow_lockstead import connection

        return connection.as_granted(self.spec, self._spec, grant.ticket)


class ReleaseLockOperator(_FromAcquire):
    """Gives a lease back, once nobody works under it any more. A lease that is gone already is not a failure.

    :param acquire: the task that acquires, whose lock this is unless it is named here again.
    :param acquire_id: instead of `acquire`: the full id of that task.
    :param drain: seconds for which those who still work under it may go on; by default what the lock's URL says, or
        long enough for one who is killed meanwhile to expire. Who works on after that loses the lease, and is stopped.
    """

    ui_color = LOCK_COLOR

    operator_extra_links = (HolderLink(),)

    def __init__(self, *, drain: Duration | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.drain = drain

    def execute(self, context: Any) -> bool:
        """Release; True if the lease was ours to the end."""
        from airflow_lockstead import connection, errors

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
        if held is not None and held.holder == grant.holder:
            still = ", ".join(sorted(one.owner for one in lock.members(grant.ticket)))
            self.log.warning("somebody still works under the lease (%s): %r is left to expire", still, grant.key)
        else:
            now = "nobody holds it" if held is None else f"{held.owner!r} holds it"
            self.log.warning("the lease of %r on %r was gone already; %s now", grant.holder, grant.key, now)
        return False

    def _wait_for_the_living(self, lock: Lock, grant: Grant) -> None:
        """Wait for those who work, while they can still renew: from the beginning of a release on they cannot."""
        from airflow_lockstead import liveness
        from lockstead.values import seconds

        working = [one.owner for one in lock.members(grant.ticket) if not one.is_expired]
        if not working:
            return
        limit = self.drain if self.drain is not None else lock.settings.drain
        if limit is None:
            limit = liveness.member_wait_limit(grant.ticket)
        self.log.info("waiting for who still works under the lease: %s", ", ".join(sorted(working)))
        if not liveness.wait_for_members(
            lock, grant.ticket, owner_filter=lambda _owner: True, limit=seconds(limit, "drain"), log=self.log
        ):
            self.log.warning("they work on after %s s; releasing: they lose the lease, and are stopped", limit)


class KeepLockOperator(_FromAcquire):
    """Renews a lease from the triggerer, between the tasks that work under it, until it ends.

    It ends well however the lease ended: a body that lost it fails by itself, and one that acquires anew must not fail
    its run. While it waits, marking its run failed fails it too, and so the run ends failed and not well. ValueError
    for a ttl that a triggerer's death would outlast.

    :param acquire: the task that acquires, whose lock this is unless it is named here again.
    :param acquire_id: instead of `acquire`: the full id of that task.
    :param release_id: the full id of the task that gives the lease back; when it has failed for good, the lease is kept
        no longer.
    """

    ui_color = LOCK_COLOR

    is_weighed = False
    """Whether its group says with which priority it is queued."""

    def __init__(self, *, release_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.release_id = release_id
        self._spec = replace(self._spec, keeper=True)
        check_keeper(self._spec, config.KEEPER_TTL_MIN.value)

    def execute(self, context: Any) -> None:
        """Hand the keeping to the triggerer."""
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
            # a URL that was a template may say another ttl than was known at parse
            check_keeper(spec, config.KEEPER_TTL_MIN.value)
        acquiring.warn_without_triggerer(self.log, ", and nobody keeps the lease meanwhile; or take keeper=False")
        self.log.info("keeping %r for %r from the triggerer, until it is released", grant.key, grant.holder)
        self.defer(trigger=KeepTrigger(plain(spec), grant.ticket, self._release(context["ti"])), method_name="ended")

    def _release(self, ti: Any) -> dict[str, Any] | None:
        if self.release_id is None:
            return None
        return {**Attempt.of(ti).place, "task_id": self.release_id}

    def ended(self, context: Any, event: Mapping[str, Any]) -> None:  # noqa: ARG002 - as Airflow calls it
        """End with the lease, where the trigger could not do so itself."""
        from airflow_lockstead.triggers import ENDED, tell_ended

        if event.get("state") != ENDED:
            raise compat.AirflowException(f"lockstead: the lease is not kept any more: {event.get('message')}")
        tell_ended(event, self.log)

"""The definitions that the tests on a live Dagster load. No annotation is a text here: Dagster reads them."""

import time
from types import SimpleNamespace
from typing import Any

import dagster as dg

from dagster_lockstead import (
    LockResource,
    LockStore,
    fencing_token_check,
    leased,
    lock_free_sensor,
    locked,
    stale_lock_sensor,
)
from tests.dagster.locked_ops import (
    FOR_EVER,
    NAME,
    RETRIES,
    TTL,
    async_body,
    busy_body,
    counting_body,
    crossed_body,
    deaf_body,
    dynamic_body,
    name_of,
    note,
    pipes_body,
    plain,
    quick,
    quick_unguarded,
    retried_body,
    secret,
    shell_body,
    silent_body,
    sleeps,
    swallowing_body,
    sync_body,
    ticking_body,
    unguarded,
    wrong_secret,
)


def job(op: Any) -> Any:
    """Return the job of one op, in the run worker or in a process of its own, as a run's config says."""

    @dg.job(name=f"{op.name}_job", executor_def=dg.multi_or_in_process_executor)
    def made() -> None:
        op()

    return made


def retried(op: Any) -> Any:
    """Return the job of one op that would be tried again."""

    @dg.job(name=f"{op.name}_retries_job", executor_def=dg.multi_or_in_process_executor)
    def made() -> None:
        op.with_retry_policy(RETRIES)()

    return made


def leased_job(op: Any, where: str, resource: str = "lock", *, retries: bool = False) -> Any:
    """Return job of one op whose runs hold one lease, in the run worker (here) or in a process of its own (apart)."""
    inner = dg.in_process_executor if where == "here" else dg.multiprocess_executor
    executor = leased(inner, key=lambda run: str(run.tags[NAME]), ttl=8, resource=resource)
    suffix = "_retries" if retries else ""

    @dg.job(name=f"{op.name}{suffix}_leased_{where}_job", executor_def=executor)
    def made() -> None:
        (op.with_retry_policy(RETRIES) if retries else op)()

    return made


@dg.job(executor_def=dg.multiprocess_executor)
def undecorated() -> None:
    """Run one op in a process of its own."""
    plain()


@dg.job(executor_def=dg.in_process_executor)
def undecorated_sleep() -> None:
    """Run one op that sleeps, in the run worker."""
    sleeps()


BODIES = [
    sync_body,
    shell_body,
    async_body,
    pipes_body,
    swallowing_body,
    busy_body,
    silent_body,
    retried_body,
    ticking_body,
    counting_body,
    deaf_body,
    crossed_body,
    dynamic_body,
    secret,
    wrong_secret,
]


RETRIED = [sync_body, shell_body, async_body, pipes_body, swallowing_body, busy_body, silent_body]
"""What loses its lease, and must not be tried again."""


class SlowWrites(dg.IOManager):
    """Writes for minutes, and notes when it begins and that it came to the end."""

    def handle_output(self, context, obj) -> None:  # type: ignore[no-untyped-def]
        """Take long."""
        note(SimpleNamespace(run=context.step_context.dagster_run), "writes", obj=obj)
        time.sleep(FOR_EVER)
        note(SimpleNamespace(run=context.step_context.dagster_run), "has written")

    def load_input(self, context) -> None:  # type: ignore[no-untyped-def]
        """Nobody asks."""


@dg.asset(io_manager_key="slow", retry_policy=RETRIES)
@locked(name_of, ttl=TTL)
def slow_asset(context) -> int:  # type: ignore[no-untyped-def]
    """An asset that takes long to write."""
    note(context, "gives")
    return 7


@dg.asset
@locked("repository")
def repository() -> int:
    """An asset that is written under a lock."""
    return 1


@dg.asset(partitions_def=dg.StaticPartitionsDefinition([f"part-{number:02d}" for number in range(20)]))
@locked(lambda context: f"part:{context.partition_key}")
def partitioned(context) -> str:  # type: ignore[no-untyped-def]
    """An asset that is written under one lock for each partition."""
    return str(context.partition_key)


LOCKS = LockResource(store=LockStore(url=dg.EnvVar("LOCKSTEAD_TEST_STORE")), ttl="30s")
GUARDED = LockResource(
    store=LockStore(url=dg.EnvVar("LOCKSTEAD_TEST_REDIS"), password=dg.EnvVar("LOCKSTEAD_TEST_PASSWORD")), ttl="30s"
)

MISGUIDED = LockResource(
    store=LockStore(url=dg.EnvVar("LOCKSTEAD_TEST_REDIS"), password=dg.EnvVar("LOCKSTEAD_TEST_WRONG")), ttl="30s"
)

LEASED = [leased_job(op, where) for op in (unguarded, quick_unguarded) for where in ("here", "apart")]
LEASED.append(leased_job(plain, "apart", "guarded"))
LEASED += [leased_job(unguarded, where, retries=True) for where in ("here", "apart")]

gated = job(quick)

defs = dg.Definitions(
    assets=[repository, partitioned, slow_asset],
    asset_checks=[fencing_token_check(repository, key="repository")],
    jobs=[
        undecorated,
        undecorated_sleep,
        *map(job, BODIES),
        *map(retried, RETRIED),
        gated,
        *LEASED,
    ],
    sensors=[
        lock_free_sensor(
            "gate",
            key="gate",
            target=gated,
            requests=lambda _context: dg.RunRequest(run_key="once", tags={NAME: "gate"}),
            minimum_interval_seconds=1,
        ),
        stale_lock_sensor(grace=0.0, minimum_interval_seconds=1),
    ],
    resources={
        "lock": LOCKS,
        "guarded": GUARDED,
        "misguided": MISGUIDED,
        "slow": SlowWrites(),
        "pipes": dg.PipesSubprocessClient(termination_timeout_seconds=2.0),
    },
    # each run of a backfill is one process
    executor=dg.in_process_executor,
)

"""A key with a template is one lock for each value; a value that is missing fails the step before the body."""

import asyncio
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run

import lockstead
from dagster_lockstead import InvalidLockConfig, LockResource, fencing_token_check, leased, lock_free_sensor, locked
from tests.dagster.runs import failure_of, in_process, job_with
from tests.dagster.taking import Place

PARTS = dg.StaticPartitionsDefinition(["contrib", "main"])


class Settings(dg.Config):
    """What an op may be configured by."""

    dist: str = "trixie"


def test_a_key_names_arguments_config_and_the_run(place: Place) -> None:
    keys: dict[str, str] = {}
    purposes: list[str | None] = []

    @dg.op
    def gives() -> str:
        return "from/above"

    @dg.op
    @locked("{text}-{number:02d}", purpose="publish {text}")
    def by_arguments(lock: LockResource, text: str, number: int = 7) -> None:
        keys["arguments"] = lockstead.current_lease().key
        held = lock.inspect(keys["arguments"])
        purposes.append(held and held.purpose)

    @dg.op
    @locked("{dist}-{config.dist}")
    def by_config(config: Settings) -> None:
        keys["config"] = lockstead.current_lease().key

    @dg.op(config_schema={"dist": str})
    @locked("{dist}")
    def by_schema(context: dg.OpExecutionContext) -> None:
        keys["schema"] = lockstead.current_lease().key

    @dg.op
    @locked("{job_name}-{tags[team]}-{run_id}")
    def by_run() -> None:
        keys["run"] = lockstead.current_lease().key

    @dg.job(resource_defs={"lock": LockResource(store=place.url)})
    def everything() -> None:
        by_arguments(gives())
        by_config()
        by_schema()
        by_run()

    config = {"ops": {"by_schema": {"config": {"dist": "sid"}}}}
    result = in_process(everything, run_config=config, tags={"team": "release"})
    assert result.success
    assert keys == {
        "arguments": "from/above-07",
        "config": "trixie-trixie",
        "schema": "sid",
        "run": f"everything-release-{result.run_id}",
    }
    assert purposes == ["publish from/above"]


def test_a_key_names_the_partition_in_runs_checks_and_unit_tests(place: Place) -> None:
    keys: list[str] = []

    @dg.asset(partitions_def=PARTS)
    @locked("part-{partition_key}")
    def part() -> None:
        keys.append(lockstead.current_lease().key)

    check = fencing_token_check(part, key="part-{partition_key}")
    resources = {"lock": LockResource(store=place.url)}
    result = dg.materialize([part, check], resources=resources, partition_key="main")
    assert result.success
    (judged,) = result.get_asset_check_evaluations()
    assert judged.passed, judged.description
    part(dg.build_asset_context(partition_key="contrib", resources=resources))
    assert keys == ["part-main", "part-contrib"]


def test_a_direct_call_renders_the_key_for_every_kind(place: Place) -> None:
    keys: list[str] = []

    @locked("apt-{dist}", purpose="{dist}")
    def plain(dist: str) -> None:
        keys.append(lockstead.current_lease().key)

    @locked("apt-{dist}")
    async def awaits(dist: str) -> None:
        keys.append(lockstead.current_lease().key)

    @locked("apt-{dist}-{more}")
    def generates(**rest: str) -> Any:
        keys.append(lockstead.current_lease().key)
        yield 1

    lock = LockResource(store=place.url)
    plain(None, dist="a", lock=lock)  # type: ignore[call-arg]
    asyncio.run(awaits(None, dist="b", lock=lock))  # type: ignore[call-arg]
    list(generates(None, dist="c", more="d", lock=lock))
    assert keys == ["apt-a", "apt-b", "apt-c-d"]
    with pytest.raises(InvalidLockConfig, match="cannot be written: it is None"):
        plain(None, dist=None, lock=lock)  # type: ignore[call-arg, arg-type]


@pytest.mark.parametrize(
    ("key", "purpose", "said"),
    [
        (
            "{nothing}",
            None,
            "key='{nothing}' names 'nothing', which is not known here: known are dist, job_name,",
        ),
        ("{partition_key}", None, "{partition_key} cannot be written: this run has no partition"),
        ("{dist}", None, "key='{dist}': {dist} cannot be written: it is None"),
        ("{tags}", None, "it is of the type dict"),
        ("{tags[nobody]}", None, "{tags[nobody]} cannot be written: 'nobody'"),
        ("k", "for {dist}", "purpose='for {dist}': {dist} cannot be written: it is None"),
    ],
)
def test_a_value_that_makes_no_key_fails_the_step_once(place: Place, key: str, purpose: str | None, said: str) -> None:
    ran: list[int] = []

    @dg.op(retry_policy=dg.RetryPolicy(max_retries=3))
    @locked(key, purpose=purpose)
    def works(number: int = 1, dist: Any = None) -> None:
        ran.append(1)

    failed = failure_of(in_process(job_with(works, {"lock": LockResource(store=place.url)})), "works")
    assert said in failed.user_failure_data.description
    assert "\n" not in failed.user_failure_data.description
    assert ran == []
    assert place.lock().inspect() is None


def test_a_run_of_a_range_is_told_how_its_partitions_are_locked(place: Place) -> None:
    @dg.asset(partitions_def=PARTS, backfill_policy=dg.BackfillPolicy.single_run())
    @locked("part-{partition_key}")
    def part() -> None: ...

    tags = {"dagster/asset_partition_range_start": "contrib", "dagster/asset_partition_range_end": "main"}
    result = dg.materialize([part], resources={"lock": LockResource(store=place.url)}, tags=tags, raise_on_error=False)
    failed = failure_of(result, "part")
    assert "this run has a range of partitions: acquire a lock for each" in failed.user_failure_data.description


def test_a_leased_run_has_a_key_of_its_own_values(place: Place, instance: dg.DagsterInstance) -> None:
    keys: list[str] = []

    @dg.op
    def works() -> None:
        keys.append(lockstead.current_lease().key)

    resources = {"lock": LockResource(store=place.url)}

    def run_of(key: str, tags: dict[str, str]) -> Any:
        @dg.job(executor_def=leased(dg.in_process_executor, key=key, purpose="{job_name}"), resource_defs=resources)
        def made() -> None:
            works()

        run = instance.create_run_for_job(made, tags=tags)
        return execute_run(InMemoryJob(made), run, instance, raise_on_error=False), run

    tags = {"dagster/partition": "main", "team": "release"}
    assert run_of("{partition_key}-{tags[team]}", tags)[0].success
    assert keys == ["main-release"]
    result, run = run_of("{partition_key}", {})
    assert not result.success
    told = [one.user_message for one in instance.all_logs(run.run_id)]
    assert keys == ["main-release"], told


def test_a_template_is_refused_where_no_values_are_known(place: Place) -> None:
    with pytest.raises(ValueError, match="is not a template here: give a callable of the sensor's context"):
        lock_free_sensor("gate", key="apt-{dist}", target="j")
    with pytest.raises(ValueError, match="is not a template here: write an f-string"):
        LockResource(store=place.url).hold(None, "apt-{dist}")
    with LockResource(store=place.url).hold(None, "apt", purpose="{as it stands}"):
        held = place.lock("apt").inspect()
        assert held is not None
        assert held.purpose == "{as it stands}"


def test_a_brace_is_written_twice(place: Place) -> None:
    keys: list[str] = []

    @dg.op
    @locked("{{dist}}")
    def works() -> None:
        keys.append(lockstead.current_lease().key)

    assert in_process(job_with(works, {"lock": LockResource(store=place.url)})).success
    assert keys == ["{dist}"]


@pytest.mark.parametrize("chosen", [["contrib", "main"], ["main"]])
def test_a_range_takes_the_locks_of_its_partitions_one_by_one(place: Place, chosen: list[str]) -> None:
    keys: list[str] = []

    @dg.asset(partitions_def=PARTS, backfill_policy=dg.BackfillPolicy.single_run())
    def parts(context: dg.AssetExecutionContext, lock: LockResource) -> None:
        with lock.try_many([f"part-{one}" for one in context.partition_keys], context=context) as batch:
            for lease in batch.iter_as_acquired():
                keys.append(lockstead.current_lease().key)
                assert lease.is_held

    tags = {"dagster/asset_partition_range_start": chosen[0], "dagster/asset_partition_range_end": chosen[-1]}
    assert dg.materialize([parts], resources={"lock": LockResource(store=place.url)}, tags=tags).success
    assert sorted(keys) == [f"part-{one}" for one in chosen]

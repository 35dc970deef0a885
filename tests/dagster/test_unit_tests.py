"""A unit test of what has a lock: by `fake_locks` as it was before, by a mock, by a resource of the test's own."""

import asyncio
from typing import Any

import dagster as dg
import pytest

import lockstead
from dagster_lockstead import LockResource, locked
from dagster_lockstead.testing import fake_locks
from tests.dagster.taking import Place


class Settings(dg.Config):
    """What an op may be configured by."""

    dist: str = "trixie"


def key() -> str:
    """Return the key under which this runs."""
    return lockstead.current_lease().key


@dg.asset
@locked("apt")
def without_context() -> str:
    return key()


@dg.asset
@locked("apt")
def with_context(context: dg.AssetExecutionContext) -> str:
    assert context.log is not None
    return key()


@dg.op
@locked("apt-{dist}-{number}")
def with_values(config: Settings, number: int) -> str:
    return key()


@dg.op
@locked("apt")
async def awaits() -> str:
    return key()


@dg.op
@locked("apt")
def with_lock(lock: LockResource) -> int:
    return len(lock.list())


@dg.asset(partitions_def=dg.StaticPartitionsDefinition(["main"]))
@locked("part-{partition_key}")
def part() -> str:
    return key()


@dg.asset
def unlocked() -> str:
    return "free"


def test_what_has_a_lock_is_called_as_it_was_before_it_had_one() -> None:
    with fake_locks() as lock:
        assert without_context() == "apt"
        assert without_context(dg.build_op_context()) == "apt"
        assert without_context(dg.build_asset_context()) == "apt"
        assert with_context(dg.build_asset_context()) == "apt"
        assert with_context(context=dg.build_asset_context()) == "apt"
        assert with_values(Settings(dist="sid"), 3) == "apt-sid-3"
        assert with_values(config=Settings(), number=4) == "apt-trixie-4"
        assert asyncio.run(awaits()) == "apt"
        assert with_lock() == 1
        assert part(dg.build_asset_context(partition_key="main")) == "part-main"
        assert unlocked() == "free"
        assert lock.list() == []
    with pytest.raises(dg.DagsterInvalidInvocationError):
        without_context()


def test_a_tests_own_resource_is_used_and_a_fake_can_be_held(place: Place) -> None:
    mine = LockResource(store=place.url)
    with fake_locks(timeout=0) as lock:
        with lock.hold(None, "apt"):
            assert without_context(dg.build_op_context(resources={"lock": mine})) == "apt"
            assert without_context(lock=mine) == "apt"
        result = dg.materialize([without_context], resources={"lock": lock})
        assert result.output_for_node("without_context") == "apt"
        with fake_locks() as other:
            assert without_context() == "apt"
            assert other is not lock


@pytest.mark.parametrize("call", ["run", "call"])
def test_a_mock_stands_for_a_lock_in_this_process(call: str) -> None:
    mocked = dg.ResourceDefinition.mock_resource()
    if call == "run":
        result = dg.materialize([without_context], resources={"lock": mocked})
        assert result.output_for_node("without_context") == "apt"
    else:
        context: Any = dg.build_op_context(resources={"lock": mocked})
        assert without_context(context) == "apt"

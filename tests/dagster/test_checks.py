"""What the asset check says: passed only where the newest materialization carries the newest token that is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_lockstead import names
from dagster_lockstead.checks import NAME, fencing_token_check
from dagster_lockstead.resource import LockResource, LockStore

DAYS = dg.StaticPartitionsDefinition(["mon", "tue"])
SAID: dict[str, Any] = {}
"""What the next materialization says of its lock."""


@dg.asset
def whole() -> Any:
    """An asset without partitions."""
    return dg.MaterializeResult(metadata=dict(SAID))


@dg.asset(partitions_def=DAYS)
def daily() -> Any:
    """An asset with partitions."""
    return dg.MaterializeResult(metadata=dict(SAID))


class World:
    """An instance, a store of locks, and what is written and checked there."""

    def __init__(self, directory: Path) -> None:
        self.instance = dg.DagsterInstance.ephemeral()
        self.locks = LockResource(store=LockStore(url=f"sqlite:///{directory / 'locks.db'}"))

    def token(self, key: str = "apt") -> int:
        """Take the lock and give it back; the token that was drawn."""
        with self.locks.lock(key, ttl=60).hold() as lease:
            assert lease.token is not None
            return lease.token

    def write(self, asset: Any, partition: str | None = None, **said: Any) -> None:
        SAID.clear()
        SAID.update({f"lockstead/{name}": value for name, value in said.items()})
        assert dg.materialize([asset], instance=self.instance, partition_key=partition).success

    def check(self, asset: Any, partition: str | None = None, key: Any = "apt", target: Any = None) -> tuple[bool, str]:
        """Run the check alone, in a run of a partition or of none."""
        check = fencing_token_check(target if target is not None else asset, key=key)
        result = dg.materialize(
            [asset, check],
            instance=self.instance,
            tags=_tags(partition),
            resources={"lock": self.locks},
            selection=dg.AssetSelection.checks(check),
        )
        (found,) = result.get_asset_check_evaluations()
        assert found.check_name == NAME
        assert found.description is not None
        assert "\n" not in found.description
        assert found.metadata[names.KEY].value == (key if isinstance(key, str) else key(None))
        return found.passed, found.description


def _tags(partition: str | None) -> dict[str, str]:
    """Return the tags by which Dagster names the partition of a run, or the range from one to another ("mon...tue")."""
    first, is_range, last = (partition or "").partition("...")
    if is_range:
        return {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
    return {"dagster/partition": first} if first else {}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("by_key", [False, True], ids=["definition", "key"])
def test_what_the_last_holder_wrote_is_passed(world: World, by_key: bool):
    world.write(whole, key="apt", token=world.token())
    assert world.check(whole, target=whole.key if by_key else None) == (
        True,
        "written by the last holder of the lock",
    )


def test_a_key_may_be_worked_out(world: World):
    world.write(whole, key="apt", token=world.token())
    assert world.check(whole, key=lambda _context: "apt")[0]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({}, "has no lock key"),
        ({"key": "apt"}, "has no fencing token"),
        ({"token": 7}, "has no lock key"),
        ({"key": "apt", "token": "7"}, "has no fencing token"),
        ({"key": "apt", "token": True}, "has no fencing token"),
        ({"key": "rpm", "token": 7}, "was written under 'rpm', not 'apt'"),
    ],
)
def test_what_is_missing_or_unknown_is_failed(world: World, said: dict[str, Any], why: str):
    world.write(whole, key="apt", token=world.token())
    world.write(whole, **said)
    passed, told = world.check(whole)
    assert not passed
    assert why in told


def test_an_asset_that_was_never_written_is_failed(world: World):
    assert world.check(whole) == (False, "'whole' was never materialized")


def test_somebody_who_holds_it_now_under_a_newer_token_fails_it(world: World):
    world.write(whole, key="apt", token=world.token())
    with world.locks.lock("apt", ttl=60, owner="somebody", purpose="repair").hold():
        passed, told = world.check(whole)
    assert not passed
    assert "'apt' is held by 'somebody'" in told
    assert "repair" in told
    assert world.check(whole)[0]


def test_who_holds_it_under_the_very_token_does_not_fail_it(world: World):
    with world.locks.lock("apt", ttl=60).hold() as lease:
        world.write(whole, key="apt", token=lease.token)
        assert world.check(whole)[0]


def test_readers_under_a_newer_token_do_not_fail_it(world: World):
    written = world.token()
    world.write(whole, key="apt", token=written)
    with world.locks.lock("apt", ttl=60, mode="shared").hold() as lease:
        assert lease.sequencer().token > written
        assert world.check(whole)[0]


def test_a_later_lease_that_was_broken_fails_it(world: World):
    world.write(whole, key="apt", token=world.token())
    lock = world.locks.lock("apt", ttl=60, owner="somebody")
    lease = lock.acquire()
    assert lock.break_lease(reason="stuck", now=True) is not None
    lease.release()
    passed, told = world.check(whole)
    assert not passed
    assert "'somebody' held it later" in told


@pytest.mark.parametrize("one", [True, False], ids=["one", "all"])
def test_readers_that_were_broken_do_not_fail_it(world: World, one: bool):
    written = world.token()
    world.write(whole, key="apt", token=written)
    lock = world.locks.lock("apt", ttl=60, mode="shared")
    lock.acquire().detach()
    held = lock.inspect()
    assert held is not None
    assert lock.break_lease(reason="stuck", now=True, reader=held.readers[0] if one else None) is not None
    assert (lock.history()[-1].token or 0) > written
    assert world.check(whole)[0]


def test_a_late_writer_with_an_older_token_fails_the_check(world: World):
    old, new = world.token(), world.token()
    world.write(whole, key="apt", token=new)
    assert world.check(whole)[0]
    world.write(whole, key="apt", token=old)
    passed, told = world.check(whole)
    assert not passed
    assert f"token {old}" in told
    assert f"had written it under token {new}" in told


def test_another_asset_under_the_same_lock_does_not_fail_it(world: World):
    world.write(whole, key="apt", token=world.token())
    world.write(daily, "mon", key="apt", token=world.token())
    assert world.check(whole)[0]


# --- partitions -----------------------------------------------------------------------------------------------------


def test_each_partition_is_judged_by_its_own_materializations(world: World):
    old, new = world.token(), world.token()
    world.write(daily, "mon", key="apt", token=new)
    world.write(daily, "mon", key="apt", token=old)
    world.write(daily, "tue", key="apt", token=old)
    assert not world.check(daily, "mon")[0]
    assert world.check(daily, "tue")[0]


def test_another_partition_does_not_pass_for_this_one(world: World):
    world.write(daily, "mon", key="apt", token=world.token())
    passed, told = world.check(daily, "tue")
    assert not passed
    assert told == "partition 'tue' of 'daily' was never materialized"


def test_a_partitioned_asset_fails_in_a_run_without_a_partition(world: World):
    world.write(daily, "mon", key="apt", token=world.token())
    for target in (None, daily.key):
        passed, told = world.check(daily, target=target)
        assert not passed
        assert "has partitions, and this run has none" in told


def test_a_run_of_a_range_judges_each_of_its_partitions(world: World):
    old, new = world.token(), world.token()
    for day in ("mon", "tue"):
        world.write(daily, day, key="apt", token=new)
    assert world.check(daily, "mon...tue")[0]
    world.write(daily, "tue", key="apt", token=old)
    passed, told = world.check(daily, "mon...tue")
    assert not passed
    assert "partition 'tue' of 'daily'" in told


def test_an_unpartitioned_asset_is_judged_by_its_newest_write(world: World):
    old, new = world.token(), world.token()
    world.write(whole, key="apt", token=new)

    def checked() -> bool:
        check = fencing_token_check(whole.key, key="apt")
        result = dg.materialize(
            [whole, daily, check],
            instance=world.instance,
            partition_key="mon",
            resources={"lock": world.locks},
            selection=dg.AssetSelection.assets(daily) | dg.AssetSelection.checks(check),
        )
        (found,) = result.get_asset_check_evaluations()
        return bool(found.passed)

    assert checked()
    world.write(whole, key="apt", token=old)
    assert not checked()


# --- what cannot be -------------------------------------------------------------------------------------------------


def test_a_key_that_raises_is_failed_with_one_line(world: World):
    def key(_context: Any) -> str:
        raise RuntimeError("no\nway")

    world.write(whole, key="apt", token=world.token())
    check = fencing_token_check(whole, key=key)
    result = dg.materialize([whole, check], instance=world.instance, resources={"lock": world.locks})
    (found,) = result.get_asset_check_evaluations()
    assert not found.passed
    assert found.description == "the lock's key 'key' raised RuntimeError: no way"


def test_a_resource_that_is_not_for_locks_fails_in_one_line(world: World):
    check = fencing_token_check(whole, key="apt")
    result = dg.materialize(
        [whole, check], instance=world.instance, resources={"lock": dg.ResourceDefinition.hardcoded_resource(7)}
    )
    (found,) = result.get_asset_check_evaluations()
    assert found.description == "the resource 'lock' must be a LockResource, and is int"


def test_an_empty_key_is_refused_where_the_check_is_declared():
    with pytest.raises(ValueError, match="empty"):
        fencing_token_check(whole, key="")

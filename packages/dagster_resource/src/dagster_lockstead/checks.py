"""An asset check that compares fencing tokens: was the asset written by the last holder of its lock?

It only reads. The newest known token of a lock is the greatest of three: that of the holder, also of one that died;
those of broken leases; and those of the materializations of this asset or partition. Tokens of readers do not count. A
lease that was released normally leaves no trace in a store, so if several assets share a lock, a check fails because of
another asset only while that is being written. Annotations here are not strings, since Dagster reads them.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import dagster

from dagster_lockstead import names, template_values
from dagster_lockstead.resource import checked_resource
from dagster_lockstead.spec import LockSpec
from lockstead.wrapping.messages import is_held

if TYPE_CHECKING:
    from lockstead import Lock

NAME: Final = "materialized_under_newest_token"

LOOKED_AT: Final = 50
"""Maximum number of materializations, newest first, that are searched for one with a newer token."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The lock metadata of one materialization; None for missing values."""

    key: str | None
    token: int | None
    run_id: str

    @classmethod
    def of(cls, record: dagster.EventLogRecord) -> "Seen":
        """Return the metadata of an event."""
        said = record.asset_materialization.metadata if record.asset_materialization else {}
        key, token = (getattr(said.get(name), "value", None) for name in (names.KEY, names.TOKEN))
        is_number = isinstance(token, int) and not isinstance(token, bool)
        return cls(key if isinstance(key, str) else None, token if is_number else None, record.run_id)


def fencing_token_check(
    asset: Any,
    *,
    key: str | Callable[[Any], str],
    resource: str = "lock",
    name: str = NAME,
    description: str | None = None,
    **more: Any,
) -> dagster.AssetChecksDefinition:
    """Return an asset check: was the asset, or this run's partition of it, written under the newest token of its lock?

    asset: its definition or key. key: as in `@locked`: a template may name values of the run, and a callable gets the
    context of an op. more: parameters of `dagster.asset_check`, such as `blocking=True`. The check fails, with one
    line, if the answer is unknown.
    """
    spec = LockSpec(key=key, resource=resource)
    asset_key = dagster.AssetKey.from_coercible_or_definition(asset)
    said = description or "The newest materialization carries the newest fencing token of its lock."

    @dagster.asset_check(  # type: ignore[untyped-decorator] # Dagster is not installed where types are checked
        asset=asset, name=name, description=said, required_resource_keys={resource}, **more
    )
    def check(context: dagster.AssetCheckExecutionContext) -> dagster.AssetCheckResult:
        return _judged(context, asset, asset_key, spec)

    return check


def _judged(
    context: dagster.AssetCheckExecutionContext, asset: Any, asset_key: dagster.AssetKey, spec: LockSpec
) -> dagster.AssetCheckResult:
    try:
        step = context.op_execution_context
        key = spec.named(step, template_values.of_call(step, {})).key
        lock = checked_resource(spec.resource, getattr(context.resources, spec.resource)).lock(str(key))
    except (TypeError, ValueError) as error:
        return _result(f"{error}", {})
    partitions = _partitions(context, asset, asset_key)
    if isinstance(partitions, str):
        return _result(partitions, {names.KEY: lock.key})
    newest: dict[str, Any] = {names.KEY: lock.key}
    for partition in partitions:
        where = f"partition {partition!r} of {asset_key.to_user_string()!r}" if partition else ""
        found = [Seen.of(one) for one in _records(context.instance, asset_key, partition)]
        wrong, token = judge(where or f"{asset_key.to_user_string()!r}", lock, found)
        if token is not None:
            newest[names.TOKEN] = token
        if wrong is not None:
            return _result(wrong, newest)
    return _result(None, newest)


def judge(what: str, lock: "Lock", found: Sequence[Seen]) -> tuple[str | None, int | None]:
    """Return (what is wrong with the newest of these materializations or None, its token). found: newest first."""
    if not found:
        return f"{what} was never materialized", None
    last = found[0]
    if last.key is None or last.token is None:
        lack = "lock key" if last.key is None else "fencing token"
        return f"the newest materialization of {what} has no {lack}: written by run {last.run_id}", last.token
    if last.key != lock.key:
        return f"the newest materialization of {what} was written under {last.key!r}, not {lock.key!r}", last.token
    ours = f"the newest materialization of {what} was written under token {last.token}"
    held = lock.inspect()
    if held is not None and held.mode != "shared" and held.token is not None and held.token > last.token:
        return f"{ours}, and {is_held(lock.key, held)}", last.token
    for one in found:
        if one.key == lock.key and one.token is not None and one.token > last.token:
            return f"{ours}, after run {one.run_id} had written it under token {one.token}", last.token
    broken = [
        entry
        for entry in lock.history()
        if entry.mode != "shared" and entry.token is not None and entry.token > last.token
    ]
    if broken:
        return f"{ours}, and {broken[-1].owner!r} held it later, under token {broken[-1].token}: broken", last.token
    return None, last.token


def _partitions(
    context: dagster.AssetCheckExecutionContext, asset: Any, asset_key: dagster.AssetKey
) -> Sequence[str | None] | str:
    """Return the partitions to check, [None] for an unpartitioned asset; or a text that says why they are unknown."""
    step, name = context.op_execution_context, asset_key.to_user_string()
    is_partitioned, known = _partitioning(context, asset, asset_key)
    if not is_partitioned:
        return [None]
    if step.has_partition_key:
        return [str(step.partition_key)]
    if not step.has_partition_key_range:
        return f"{name!r} has partitions, and this run has none: check it in a run of one partition"
    if known is None:
        return f"{name!r} is defined elsewhere, so the partitions of this run's range are not known"
    return list(known.get_partition_keys_in_range(step.partition_key_range))


def _partitioning(
    context: dagster.AssetCheckExecutionContext, asset: Any, asset_key: dagster.AssetKey
) -> tuple[bool, dagster.PartitionsDefinition | None]:
    """Return whether an asset has partitions, and which: by its definition, else by its newest event."""
    if isinstance(asset, dagster.AssetsDefinition):
        return asset.partitions_def is not None, asset.partitions_def
    # a run made by a test has no repository; Dagster then raises an error of a private class
    with contextlib.suppress(Exception):
        node = context.repository_def.asset_graph.get(asset_key)
        if node.is_materializable:
            return node.partitions_def is not None, node.partitions_def
    records = _records(context.instance, asset_key, None)
    return bool(records and records[0].partition_key is not None), None


def _records(
    instance: dagster.DagsterInstance, asset_key: dagster.AssetKey, partition: str | None
) -> Sequence[dagster.EventLogRecord]:
    chosen = dagster.AssetRecordsFilter(asset_key=asset_key, asset_partitions=[partition] if partition else None)
    records: Sequence[dagster.EventLogRecord] = instance.fetch_materializations(chosen, limit=LOOKED_AT).records
    return records


def _result(wrong: str | None, said: dict[str, Any]) -> dagster.AssetCheckResult:
    told = "written by the last holder of the lock" if wrong is None else " ".join(wrong.split())
    return dagster.AssetCheckResult(passed=wrong is None, description=told, metadata=said)

"""Ops and assets of every kind give and tell the same with a lock as without one, wherever their steps run."""

import asyncio
import inspect
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.reconstruct import build_reconstructable_job

from dagster_lockstead import LockResource, locked
from tests.dagster import kinds
from tests.dagster.taking import Place

ROOT = str(Path(__file__).parents[2])
LEFT_OUT = ("ENGINE_EVENT", "RESOURCE", "STEP_WORKER", "LOGS_CAPTURED", "STEP_SUCCESS")


def told_by(result: Any) -> dict[str, list[tuple[Any, ...]]]:
    """Return what each step told, but for what a lock adds and for times and paths."""
    told: dict[str, list[tuple[Any, ...]]] = {}
    for event in result.all_events:
        if event.step_key is None or event.event_type_value.startswith(LEFT_OUT):
            continue
        said = getattr(event.event_specific_data, "materialization", event.event_specific_data)
        metadata = {name: one.value for name, one in (getattr(said, "metadata", None) or {}).items()}
        own = {name: one for name, one in metadata.items() if not name.startswith("lockstead/") and name != "path"}
        text = (event.message or "").partition(" in ")[0]
        told.setdefault(event.step_key, []).append((event.event_type_value, text, own))
    return told


def outputs_of(result: Any) -> dict[tuple[str, str], Any]:
    """Return what the steps gave, as the I/O manager has it."""
    names = {
        (event.step_key.partition("[")[0], event.step_output_data.output_name)
        for event in result.all_events
        if event.is_successful_output and event.step_key != "nothing"
    }
    return {(step, name): result.output_for_node(step, name) for step, name in names}


@pytest.mark.parametrize(("where", "many"), [("here", "all"), ("apart", "few")], ids=["here", "apart"])
def test_a_job_of_every_kind_behaves_the_same_as_without_a_lock(
    place: Place, instance: dg.DagsterInstance, where: str, many: str
) -> None:
    seen = []
    for given in (("bare", "here", many), ("locked", where, many)):
        job = build_reconstructable_job(
            "tests.dagster.kinds", "job_of", reconstructable_args=given, reconstructor_working_directory=ROOT
        )
        with dg.execute_job(job, instance=instance) as result:
            assert result.success
            seen.append((told_by(result), outputs_of(result)))
            outputs = [event.step_output_data for event in result.all_events if event.is_successful_output]
    bare, with_lock = seen
    assert len(bare[0]) == (len(kinds.ALONE) + 8 if many == "all" else len(kinds.FEW) + 5)
    assert with_lock == bare
    # each step is a section of its own, and all of its outputs bear one token
    assert len({one.metadata["lockstead/token"].value for one in outputs}) == len(bare[0])
    assert place.lock().inspect() is None


def assets(*, is_locked: bool) -> list[Any]:
    """Return assets of every kind."""
    lock: Any = locked("k") if is_locked else lambda function: function

    @dg.asset
    @lock
    def returned() -> int:
        return 1

    @dg.asset
    @lock
    def downstream(returned: int) -> dg.MaterializeResult:
        return dg.MaterializeResult(metadata={"mine": returned})

    @dg.asset(check_specs=[dg.AssetCheckSpec("good", asset="checked")])
    @lock
    def checked():
        yield dg.Output(1, metadata={"mine": 2})
        yield dg.AssetCheckResult(passed=True)

    @dg.asset
    @lock
    async def awaited() -> int:
        await asyncio.sleep(0)
        return 4

    @dg.multi_asset(
        specs=[dg.AssetSpec(name, skippable=True) for name in ("one", "two", "three")], can_subset=True, name="many"
    )
    @lock
    def many(context: dg.AssetExecutionContext):
        for key in sorted(context.selected_asset_keys):
            yield dg.MaterializeResult(asset_key=key, metadata={"mine": key.path[0]})

    @dg.op
    @lock
    def inside() -> int:
        return 5

    @dg.graph_asset
    def graph() -> int:
        return inside()

    return [returned, downstream, checked, awaited, many, graph]


@pytest.mark.parametrize("selection", [None, ["two", "three"]], ids=["all", "subset"])
def test_assets_of_every_kind_tell_the_same_as_without_a_lock(place: Place, selection: list[str] | None) -> None:
    told = []
    for is_locked in (False, True):
        resources = {"lock": LockResource(store=place.url)} if is_locked else {}
        given = assets(is_locked=is_locked)
        chosen = None if selection is None else [dg.AssetKey(name) for name in selection]
        result = dg.materialize(given, selection=chosen, resources=resources)
        assert result.success
        told.append(told_by(result))
    assert told[1] == told[0]
    assert len(told[0]) == (6 if selection is None else 1)
    assert place.lock().inspect() is None


def called(asset: Any, resources: dict[str, Any], *given: Any) -> Any:
    """Return what an asset gives that is called as a function."""
    takes_context = resources or "context" in inspect.signature(asset.op.compute_fn.decorated_fn).parameters
    result = asset(*((dg.build_asset_context(resources=resources),) if takes_context else ()), *given)
    if inspect.iscoroutine(result):
        return asyncio.run(result)
    if inspect.isgenerator(result):
        return [(type(one), getattr(one, "value", None), getattr(one, "passed", None)) for one in result]
    return result


@pytest.mark.parametrize("number", range(4), ids=["returned", "downstream", "checked", "awaited"])
def test_a_direct_call_of_a_locked_asset_returns_the_same_result(place: Place, number: int) -> None:
    given = (3,) if number == 1 else ()
    bare = called(assets(is_locked=False)[number], {}, *given)
    with_lock = called(assets(is_locked=True)[number], {"lock": LockResource(store=place.url)}, *given)
    assert with_lock == bare
    assert place.lock().inspect() is None

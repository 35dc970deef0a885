"""`@locked` changes nothing but that a lock is held: what Dagster reads of a function, and what comes of it, stays."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import dagster as dg
import pytest

import lockstead
from dagster_lockstead import LockResource, locked
from tests.dagster.runs import in_process, job_with
from tests.dagster.taking import Place


class Settings(dg.Config):
    """What an op may be configured by."""

    factor: int = 2


def held() -> bool:
    try:
        return lockstead.current_lease().key == "k"
    except LookupError:
        return False


def plain() -> int:
    """Return a number."""
    return 1


def with_context(context: dg.OpExecutionContext) -> str:
    return context.op_def.name


def with_input(number: int = 3) -> int:
    return number + 1


def with_config(context: dg.OpExecutionContext, config: Settings) -> int:
    return config.factor * 2


def nothing() -> None:
    return None


def unannotated(number=5):
    return number


def with_metadata() -> dg.Output[int]:
    return dg.Output(7, metadata={"mine": 1})


def generator() -> Iterator[dg.Output[int]]:
    yield dg.Output(8)


def returned_generator() -> Any:
    def inner() -> Iterator[Any]:
        yield dg.AssetMaterialization("seen")
        yield dg.Output(9)

    return inner()


async def coroutine(number: int = 3) -> int:
    await asyncio.sleep(0)
    return number * 3


async def async_generator() -> AsyncIterator[dg.Output[int]]:
    await asyncio.sleep(0)
    yield dg.Output(10)


def with_rest(number: int = 1, **rest: int) -> int:
    return number + len(rest)


def quoted(number: "int" = 2) -> "int":
    return number


ONE = [
    plain,
    with_context,
    with_input,
    with_config,
    nothing,
    unannotated,
    with_metadata,
    generator,
    returned_generator,
    coroutine,
    quoted,
]


def both(function: Callable[..., Any], **given: Any) -> tuple[dg.OpDefinition, dg.OpDefinition]:
    return dg.op(**given)(function), dg.op(**given)(locked("k")(function))


def run_of(op: dg.OpDefinition, url: str) -> Any:
    result = in_process(job_with(op, {"lock": LockResource(store=url)}))
    assert result.success
    return result


def events_of(result: Any) -> list[tuple[Any, ...]]:
    """Return what a step told, but for what a lock adds."""
    told = []
    for event in result.all_events:
        if event.step_key is None or event.event_type_value.startswith("RESOURCE"):
            continue
        said = event.event_specific_data
        metadata = {k: v for k, v in (getattr(said, "metadata", None) or {}).items() if not k.startswith("lockstead/")}
        told.append((event.event_type_value, event.message, metadata if event.is_successful_output else None))
    return [(kind, text.partition(" in ")[0], metadata) for kind, text, metadata in told if kind != "STEP_SUCCESS"]


@pytest.mark.parametrize("function", [*ONE, async_generator, with_rest], ids=lambda one: one.__name__)
def test_dagster_reads_the_same_of_a_locked_function(function: Callable[..., Any]) -> None:
    given = {"out": dg.Out(int)} if function is async_generator else {}
    bare, with_lock = both(function, **given)
    assert with_lock.name == bare.name
    assert with_lock.description == bare.description
    assert {n: (d.dagster_type.display_name, d.has_default_value) for n, d in with_lock.input_dict.items()} == {
        n: (d.dagster_type.display_name, d.has_default_value) for n, d in bare.input_dict.items()
    }
    assert {n: (d.dagster_type.display_name, d.is_required) for n, d in with_lock.output_dict.items()} == {
        n: (d.dagster_type.display_name, d.is_required) for n, d in bare.output_dict.items()
    }
    assert str(with_lock.config_schema.config_type.key) == str(bare.config_schema.config_type.key)
    assert with_lock.required_resource_keys == bare.required_resource_keys | {"lock"}
    made = locked("k")(function)
    assert not hasattr(made, "__wrapped__")
    assert made.__module__ == function.__module__
    assert inspect.signature(made).parameters["lock"].annotation is LockResource


@pytest.mark.parametrize("function", ONE, ids=lambda one: one.__name__)
def test_a_run_of_a_locked_op_tells_and_gives_the_same(function: Callable[..., Any], place: Place) -> None:
    bare, with_lock = both(function)
    first, second = run_of(bare, place.url), run_of(with_lock, place.url)
    assert second.output_for_node(bare.name) == first.output_for_node(bare.name)
    assert type(second.output_for_node(bare.name)) is type(first.output_for_node(bare.name))
    assert events_of(second) == events_of(first)
    assert place.lock().inspect() is None


@pytest.mark.parametrize("function", ONE, ids=lambda one: one.__name__)
def test_a_direct_call_of_a_locked_op_returns_the_same_result(function: Callable[..., Any], place: Place) -> None:
    def call(op: dg.OpDefinition, resources: dict[str, Any]) -> Any:
        result = op(dg.build_op_context(resources=resources))
        if inspect.isgenerator(result):
            return [(type(one), getattr(one, "value", None)) for one in result]
        if inspect.iscoroutine(result):
            return asyncio.run(result)
        return (type(result), getattr(result, "value", result))

    bare, with_lock = both(function)
    if function is with_config:
        assert with_lock(dg.build_op_context(), config=Settings(factor=4), lock=LockResource(store=place.url)) == 8
        return
    assert call(with_lock, {"lock": LockResource(store=place.url)}) == call(bare, {})
    assert place.lock().inspect() is None


def test_a_locked_op_takes_its_resource_by_keyword(place: Place) -> None:
    op = dg.op(locked("k")(with_input))
    assert op(dg.build_op_context(), number=4, lock=LockResource(store=place.url)) == 5


def test_the_body_runs_under_the_lease_whatever_its_kind(place: Place) -> None:
    seen: dict[str, bool] = {}

    @dg.op
    @locked("k")
    def returns() -> int:
        seen["returns"] = held()
        return 1

    @dg.op
    @locked("k")
    def generates():
        seen["generates"] = held()
        yield dg.Output(1)
        seen["generates, later"] = held()

    @dg.op
    @locked("k")
    async def awaits() -> int:
        await asyncio.sleep(0)
        seen["awaits"] = held()
        return 1

    @dg.op
    @locked("k")
    async def awaits_and_yields():
        await asyncio.sleep(0)
        seen["awaits and yields"] = held()
        yield dg.Output(1)
        seen["awaits and yields, later"] = held()

    @dg.job(resource_defs={"lock": LockResource(store=place.url)})
    def everything() -> None:
        returns()
        generates()
        awaits()
        awaits_and_yields()

    assert in_process(everything).success
    assert len(seen) == 6
    assert all(seen.values())

    context = dg.build_op_context(resources={"lock": LockResource(store=place.url)})
    seen.clear()
    returns(context)
    list(generates(context))
    asyncio.run(awaits(context))

    async def drain() -> None:
        async for _ in awaits_and_yields(context):
            pass

    asyncio.run(drain())
    assert len(seen) == 6
    assert all(seen.values())
    assert place.lock().inspect() is None


def test_a_cancelled_direct_call_of_an_async_op_frees_the_lock(place: Place) -> None:
    @dg.op
    @locked("k")
    async def waits() -> int:
        await asyncio.sleep(60)
        return 1

    async def cancel() -> None:
        task = asyncio.create_task(waits(dg.build_op_context(resources={"lock": LockResource(store=place.url)})))
        while await asyncio.to_thread(place.lock().inspect) is None:
            assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert place.lock().inspect() is None


def test_several_outputs_and_the_choice_among_them(place: Place) -> None:
    @dg.op(out={"a": dg.Out(int), "b": dg.Out(str, is_required=False)})
    @locked("k")
    def two() -> tuple[int, str]:
        return 1, "b"

    @dg.op(out={"a": dg.Out(int), "b": dg.Out(str, is_required=False)})
    @locked("k")
    def one():
        yield dg.Output(2, output_name="a")

    @dg.job(resource_defs={"lock": LockResource(store=place.url)})
    def made() -> None:
        two()
        one()

    result = in_process(made)
    assert result.output_for_node("two", "a") == 1
    assert result.output_for_node("two", "b") == "b"
    assert result.output_for_node("one", "a") == 2
    for event in result.all_events:
        if event.is_successful_output:
            assert event.step_output_data.metadata["lockstead/key"].value == "k"
            assert isinstance(event.step_output_data.metadata["lockstead/token"].value, int)


@pytest.mark.parametrize("yields", [True, False], ids=["yields", "returns"])
def test_dynamic_outputs_keep_their_keys_and_bear_the_token(place: Place, yields: bool) -> None:
    def by_return() -> list[dg.DynamicOutput[int]]:
        return [dg.DynamicOutput(n, mapping_key=f"n{n}", metadata={"mine": n}) for n in range(3)]

    def by_yield():
        yield from by_return()

    function = by_yield if yields else by_return
    function.__name__ = "fan"
    fan = dg.op(out=dg.DynamicOut(int))(locked("k")(function))

    @dg.op
    @locked(lambda context: f"part:{context.get_mapping_key()}")
    def double(number: int) -> int:
        return number * 2

    @dg.job(resource_defs={"lock": LockResource(store=place.url)})
    def made() -> None:
        fan().map(double)

    result = in_process(made)
    assert result.output_for_node("double") == {"n0": 0, "n1": 2, "n2": 4}
    said = [e.step_output_data.metadata for e in result.all_events if e.is_successful_output and e.step_key == "fan"]
    assert [m["mine"].value for m in said] == [0, 1, 2]
    assert all(m["lockstead/key"].value == "k" for m in said)
    keys = {
        e.step_output_data.metadata["lockstead/key"].value
        for e in result.all_events
        if e.is_successful_output and e.step_key.startswith("double")
    }
    assert keys == {"part:n0", "part:n1", "part:n2"}


def materialized(result: Any, key: str) -> dict[str, Any]:
    (event,) = [one for one in result.get_asset_materialization_events() if one.asset_key == dg.AssetKey(key)]
    return {name: value.value for name, value in event.materialization.metadata.items()}


def test_assets_of_every_kind_bear_the_token(place: Place) -> None:
    @dg.asset
    @locked("k")
    def value() -> int:
        return 1

    @dg.asset
    @locked("k")
    def with_result(value: int) -> dg.MaterializeResult:
        return dg.MaterializeResult(metadata={"mine": value})

    @dg.asset
    @locked("k")
    def empty() -> None: ...

    @dg.asset
    @locked("k")
    async def awaited(context: dg.AssetExecutionContext) -> int:
        return len(context.asset_key.path)

    @dg.multi_asset(specs=[dg.AssetSpec("one", skippable=True), dg.AssetSpec("two", skippable=True)], can_subset=True)
    @locked("k")
    def many(context: dg.AssetExecutionContext):
        for key in sorted(context.selected_asset_keys):
            yield dg.MaterializeResult(asset_key=key)

    @dg.op
    @locked("k")
    def inside() -> int:
        return 5

    @dg.graph_asset
    def graph() -> int:
        return inside()

    resources = {"lock": LockResource(store=place.url)}
    result = dg.materialize([value, with_result, empty, awaited, many, graph], resources=resources)
    assert result.success
    for key in ("value", "with_result", "empty", "awaited", "one", "two", "graph"):
        said = materialized(result, key)
        assert said["lockstead/key"] == "k", key
        assert isinstance(said["lockstead/token"], int), key
    assert materialized(result, "with_result")["mine"] == 1
    chosen = dg.materialize([many], selection=[dg.AssetKey("two")], resources=resources)
    assert [one.asset_key.path for one in chosen.get_asset_materialization_events()] == [["two"]]


def test_manual_materializations_and_asset_checks_pass_through(place: Place) -> None:
    @dg.op
    @locked("k")
    def by_hand():
        yield dg.AssetMaterialization("by_hand", metadata={"mine": 1})
        yield dg.ExpectationResult(success=True, label="fine")
        yield dg.Output(1)

    @dg.asset(check_specs=[dg.AssetCheckSpec("good", asset="checked")])
    @locked("k")
    def checked():
        yield dg.Output(1)
        yield dg.AssetCheckResult(passed=True)

    @dg.job(resource_defs={"lock": LockResource(store=place.url)})
    def made() -> None:
        by_hand()

    result = in_process(made)
    (told,) = [e for e in result.all_events if e.event_type_value == "ASSET_MATERIALIZATION"]
    said = told.event_specific_data.materialization.metadata
    assert said["mine"].value == 1
    assert said["lockstead/key"].value == "k"
    assert dg.materialize([checked], resources={"lock": LockResource(store=place.url)}).success


def test_partitions_have_keys_of_their_own(place: Place) -> None:
    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(["a", "b"]))
    @locked(lambda context: f"part:{context.partition_key}")
    def parts(context: dg.AssetExecutionContext) -> str:
        return lockstead.current_lease().key

    result = dg.materialize([parts], partition_key="b", resources={"lock": LockResource(store=place.url)})
    assert result.output_for_node("parts") == "part:b"


def test_a_function_that_wants_the_lock_itself_gets_it(place: Place) -> None:
    @dg.op
    @locked("k")
    def inspects(lock: LockResource) -> str:
        found = lock.inspect("k")
        return "" if found is None else found.owner

    @dg.job(resource_defs={"lock": LockResource(store=place.url)})
    def made() -> None:
        inspects()

    result = in_process(made)
    assert result.output_for_node("inspects") == f"dagster:{result.run_id}:inspects:0"


def test_a_type_that_does_not_fit_is_refused_as_without_a_lock(place: Place) -> None:
    def wrong() -> int:
        return "no number"  # type: ignore[return-value]

    for op in both(wrong):
        with pytest.raises(dg.DagsterTypeCheckDidNotPass):
            job_with(op, {"lock": LockResource(store=place.url)}).execute_in_process()
        with pytest.raises(dg.DagsterTypeCheckDidNotPass):
            op(dg.build_op_context(resources={"lock": LockResource(store=place.url)}))
    assert place.lock().inspect() is None


def test_a_retry_is_an_asker_of_its_own_with_a_higher_token(place: Place) -> None:
    seen: list[tuple[str, int | None]] = []

    @dg.op(retry_policy=dg.RetryPolicy(max_retries=2))
    @locked("k")
    def fails_twice(context: dg.OpExecutionContext) -> int:
        lease = lockstead.current_lease()
        seen.append((lease.holder.partition("/")[0], lease.token))
        if context.retry_number < 2:
            raise ValueError("again")
        return 1

    @dg.job(resource_defs={"lock": LockResource(store=place.url)})
    def made() -> None:
        fails_twice()

    result = in_process(made)
    assert result.success
    assert [holder.rpartition(":")[2] for holder, _ in seen] == ["0", "1", "2"]
    tokens = [token for _, token in seen]
    assert tokens == sorted(set(tokens))  # type: ignore[type-var]

"""What a leased executor takes over from the inner one, and what is said of one that cannot be."""

from __future__ import annotations

import dagster as dg
import pytest

from dagster_lockstead import LockResource, leased
from tests.dagster.executed import executed
from tests.dagster.taking import Place


def test_a_leased_executor_has_the_inner_config_and_requirements() -> None:
    inner = dg.multiprocess_executor
    outer = leased(inner, key="k")
    assert outer.name == inner.name
    assert outer.config_schema is inner.config_schema
    assert outer.description == inner.description
    assert outer.get_requirements({}) == inner.get_requirements({})
    configured = leased(inner.configured({"max_concurrent": 2}), key="k")
    assert configured.get_requirements({}) == inner.get_requirements({})


def test_what_is_no_executor_is_refused_in_one_line() -> None:
    with pytest.raises(TypeError, match=r"^leased\(\) needs an executor definition, .*, not str$"):
        leased("multiprocess", key="k")
    with pytest.raises(ValueError, match="on_unclean must be"):
        leased(dg.in_process_executor, key="k", on_unclean="perhaps")


@dg.op
def nothing() -> None:
    """Do nothing."""


def failure(executor: dg.ExecutorDefinition, resources: dict[str, object]) -> str:
    """Return what a run fails with before its first step."""

    @dg.job(executor_def=executor, resource_defs=resources)
    def made() -> None:
        nothing()

    with pytest.raises(dg.Failure) as raised:
        executed(made)
    return str(raised.value.description)


def test_a_resource_that_is_not_there_is_said_in_one_line() -> None:
    said = failure(leased(dg.in_process_executor, key="k", resource="locks"), {})
    assert "\n" not in said
    assert said.startswith("leased() needs the resource 'locks', which the job 'made' does not have")


def test_a_resource_of_another_kind_is_said_in_one_line() -> None:
    said = failure(leased(dg.in_process_executor, key="k"), {"lock": dg.ResourceDefinition.hardcoded_resource(1)})
    assert said == "the resource 'lock' must be a LockResource, and is int"


def test_a_key_that_cannot_be_worked_out_is_said_in_one_line(place: Place) -> None:
    def wrong(run: object) -> str:
        raise KeyError("team")

    said = failure(leased(dg.in_process_executor, key=wrong), {"lock": LockResource(store=place.url)})
    assert "'wrong' raised KeyError" in said
    assert "\n" not in said


def test_a_key_is_worked_out_from_what_the_run_is(place: Place) -> None:
    views, held = [], []

    def key(run):
        views.append(run)
        return f"part:{run.partition_key}"

    @dg.op
    def looks(lock: LockResource) -> None:
        held.extend(one.key for one in lock.list())

    @dg.job(
        executor_def=leased(dg.in_process_executor, key=key),
        resource_defs={"lock": LockResource(store=place.url)},
        partitions_def=dg.StaticPartitionsDefinition(["a", "b"]),
    )
    def made() -> None:
        looks()

    result = executed(made, **{"dagster/partition": "b", "team": "core"})
    assert result.success
    assert held == ["part:b"]
    [view] = views
    assert (view.job_name, view.partition_key, view.tags["team"]) == ("made", "b", "core")
    assert view.run_id == result.run_id

"""What cannot be is refused with one clear line, where it is declared if it can be known there."""

from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

from dagster_lockstead import InvalidLockConfig, LockResource, LockSpec, LockStore, locked
from tests.dagster.runs import failure_of, in_process, job_with
from tests.dagster.taking import Place


def line_of(call: Callable[[], object], kind: type[Exception]) -> str:
    with pytest.raises(kind) as raised:
        call()
    text = str(raised.value)
    assert text
    assert "\n" not in text
    return text


def takes(context) -> None: ...


def takes_nothing() -> None: ...


STANDS_UNDER: dict[str, Callable[[Any], object]] = {
    "@op": dg.op,
    "@asset": dg.asset,
    "@asset_check": dg.asset_check(asset="a"),
    "@sensor": dg.sensor(job_name="j"),
    "@schedule": dg.schedule(cron_schedule="* * * * *", job_name="j"),
}

NOT_FOR: dict[str, tuple[Callable[[Any], object], str]] = {
    "success hook": (dg.success_hook, "with context.resources.lock.hold(None, 'apt')"),
    "failure hook": (dg.failure_hook, "with context.resources.lock.hold(None, 'apt')"),
    "observable source asset": (dg.observable_source_asset, "with lock.hold(context, 'apt')"),
    "graph": (dg.graph, "put it below the @op of its ops"),
    "graph asset": (dg.graph_asset, "put it below the @op of its ops"),
    "graph multi-asset": (dg.graph_multi_asset(outs={"a": dg.AssetOut()}), "put it below the @op of its ops"),
    "job": (dg.job, "put it below the @op of its ops"),
}


@pytest.mark.parametrize("name", STANDS_UNDER)
@pytest.mark.parametrize("function", [takes, takes_nothing])
def test_locked_is_refused_above_a_decorator_and_accepted_below(name: str, function: Any) -> None:
    decorate = STANDS_UNDER[name]
    assert line_of(lambda: locked("k")(decorate(function)), TypeError) == (
        f"put @locked below {name}, directly above the function"
    )
    decorate(locked("k")(function))


@dg.op
def one() -> int:
    return 1


def composes() -> Any:
    return one()


def composes_two() -> Any:
    return {"a": one()}


def composes_nothing() -> None:
    one()


COMPOSED = {"graph multi-asset": composes_two, "job": composes_nothing}


@pytest.mark.filterwarnings("ignore:.*observable_source_asset")
@pytest.mark.parametrize("name", NOT_FOR)
@pytest.mark.parametrize("place", ["above", "below"])
def test_where_it_cannot_work_it_is_refused_in_either_order(name: str, place: str) -> None:
    decorate, instead = NOT_FOR[name]
    function = takes if "hook" in name else COMPOSED.get(name, composes)
    with_both = {
        "above": lambda: locked("k")(decorate(function)),
        "below": lambda: decorate(locked("k")(function)),
    }
    said = line_of(with_both[place], TypeError)
    assert said.startswith("@locked is ")
    assert instead in said


def test_an_op_that_is_declared_within_a_graph_may_have_a_lock(place: Place) -> None:
    @dg.job(resource_defs={"lock": LockResource(store=place.url)})
    def made() -> None:
        @dg.op
        @locked("k")
        def within() -> None: ...

        within()

    assert in_process(made).success


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda: locked(lambda: None), TypeError, "must take the context alone"),
        (lambda: locked(5), TypeError, "the key must be text, or a callable of the context, not int"),
        (lambda: locked(""), ValueError, "the key is empty"),
        (lambda: locked("apt-{dist"), ValueError, "key='apt-{dist' is not a valid template"),
        (
            lambda: locked("apt-{}"),
            ValueError,
            "key='apt-{}': {} names nothing; write {name}",
        ),
        (lambda: locked("k", purpose="{"), ValueError, "purpose='{' is not a valid template"),
        (lambda: locked("a\nb"), ValueError, "control or unprintable"),
        (lambda: locked("sqlite:///t.db#apt-{dist}"), ValueError, "the key is a name such as 'apt-dist', not the URL"),
        (lambda: locked("gs://bucket/locks#apt"), ValueError, "the key is a name such as 'apt', not the URL of a lock"),
        (lambda: locked("k", on_unclean="maybe"), ValueError, "on_unclean must be 'warn' or 'fail', not 'maybe'"),
        (lambda: locked("k", ttl="soon"), ValueError, "ttl 'soon' is not a duration"),
        (lambda: locked("k", ttl=0.1), ValueError, "ttl is 0.1 s; it must be at least 1 s"),
        (lambda: locked("k", resource="my lock"), ValueError, "resource must be the name of a resource"),
        (lambda: locked("k")(5), TypeError, "@locked is for a function below @op or @asset, not int"),
        (lambda: locked("k")(dict), TypeError, "@locked is for a function below @op or @asset, not dict"),
        (lambda: LockResource(store="nonsense"), ValueError, "URL"),
        (lambda: LockResource(store="sqlite:///a#k"), ValueError, "remove '#' and what follows"),
        (lambda: LockStore(url="nowhere://x"), ValueError, "nowhere"),
        (lambda: LockStore(url="sqlite:///a", password="p"), ValueError, "has neither user nor password"),
        (lambda: LockResource(store="sqlite:///a", ttl="soon"), ValueError, "not a duration"),
        (lambda: LockResource(store="sqlite:///a", gcs=object()), TypeError, "get_client()"),
        (
            lambda: LockResource(store="sqlite:///a", timout=5),
            TypeError,
            "LockResource has no argument 'timout'; it",
        ),
        (lambda: LockStore(url="sqlite:///a", user="me"), TypeError, "LockStore has no argument 'user'; it has"),
        (LockResource.configure_at_launch, TypeError, "cannot be configured at launch"),
        (lambda: LockSpec(key="k", expected=-1), ValueError, "expected"),
    ],
)
def test_what_is_declared_wrongly_is_refused_there(call: Callable[[], object], kind: Any, said: str) -> None:
    assert said in line_of(call, kind)


@pytest.mark.parametrize("key", ["s3://bucket/table", "s3://bucket/table#part", "redis://host", "a#b"])
def test_a_key_may_look_like_the_url_of_something_else(key: str) -> None:
    assert LockSpec(key=key).key == key


def test_without_a_key_it_says_what_it_wants() -> None:
    def one(context: object, number: int) -> None: ...

    def two(context: object) -> None: ...

    assert "a key comes first, as in @locked('apt')" in line_of(lambda: locked(one), TypeError)
    for decorator in (dg.op, dg.asset):
        assert "@locked needs a key" in line_of(lambda decorator=decorator: decorator(locked(two)), TypeError)


def test_a_parameter_that_shadows_the_resource_is_refused() -> None:
    def one(lock: int) -> None: ...

    assert "is not a LockResource" in line_of(lambda: locked("k")(one), TypeError)


def test_a_resource_that_is_missing_is_named_before_any_run() -> None:
    @dg.op
    @locked("k", resource="locks")
    def one() -> None: ...

    with pytest.raises(dg.DagsterInvalidDefinitionError, match="resource with key 'locks' required by op 'one'"):
        job_with(one, {}).execute_in_process()


def raises(context: object) -> str:
    raise KeyError("no such tag")


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (raises, "the lock's key 'raises' raised KeyError: 'no such tag'"),
        (lambda context: "", "the lock's key '<lambda>' returned an empty text"),
        (lambda context: None, "the lock's key '<lambda>' returned NoneType, not text"),
        (lambda context: "a\0b", "control or unprintable"),
    ],
    ids=["raises", "empty", "none", "control"],
)
def test_an_invalid_computed_key_fails_the_step_without_the_body(place: Place, key: Any, said: str) -> None:
    ran: list[int] = []

    @dg.op(retry_policy=dg.RetryPolicy(max_retries=3))
    @locked(key)
    def one() -> None:
        ran.append(1)

    failed = failure_of(in_process(job_with(one, {"lock": LockResource(store=place.url)})), "one")
    assert said in failed.user_failure_data.description
    assert "\n" not in failed.user_failure_data.description
    assert ran == []


def test_a_resource_that_is_something_else_fails_the_step_once(place: Place) -> None:
    @dg.op(retry_policy=dg.RetryPolicy(max_retries=3))
    @locked("k")
    def one() -> None: ...

    failed = failure_of(in_process(job_with(one, {"lock": dg.ResourceDefinition.hardcoded_resource("text")})), "one")
    assert failed.user_failure_data.description == "the resource 'lock' must be a LockResource, and is str"


def test_a_hold_with_an_invalid_key_raises_where_it_is_called(place: Place) -> None:
    lock = LockResource(store=place.url)
    assert "the key is empty" in line_of(lambda: lock.hold(None, "").__enter__(), ValueError)


def test_gcs_is_for_gcs_alone(place: Place) -> None:
    class Gives:
        def get_client(self) -> None: ...

    with pytest.raises(InvalidLockConfig, match="gcs= is for a store at gs:, not at sqlite:"):
        LockResource(store=place.url, gcs=Gives()).hold(None, "k").__enter__()

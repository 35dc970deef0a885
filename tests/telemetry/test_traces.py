"""Spans of acquisitions and leases, as an exporter in memory receives them."""

from __future__ import annotations

import asyncio
import contextvars
import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import lockstead
from lockstead import LeaseLost, NotAcquired, StoreUnavailable
from lockstead.events import (
    Acquired,
    Attached,
    BlockEntered,
    Detached,
    HolderChanged,
    LeaseDropped,
    ReleaseFailed,
    RenewalFailed,
    Renewed,
    Waiting,
)
from lockstead.listeners import LISTENERS
from lockstead.stores.memory import MemoryStore
from lockstead.telemetry import otel, spans
from lockstead.telemetry.counts import HOLD_BUCKETS, REQUEST_BUCKETS, WAIT_BUCKETS
from lockstead.telemetry.spans import LINKS_MAX, Tracing, span_context, traceparent

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Traced:
    """The providers of a test, and what they exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("tests")
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def one(self, name: str) -> ReadableSpan:
        (found,) = [one for one in self.spans if one.name == name]
        return found

    def close(self) -> None:
        self.provider.shutdown()
        self.meters.shutdown()


@pytest.fixture
def traced() -> Iterator[Traced]:
    one = Traced()
    otel.install(locks=["*"], tracer_provider=one.provider, meter_provider=one.meters)
    yield one
    otel.uninstall()
    one.close()


@pytest.fixture
def alone() -> Iterator[tuple[Traced, Tracing]]:
    """Return a listener that hears only what the test says."""
    one = Traced()
    yield one, Tracing(one.tracer)
    one.close()


def context_of(span: ReadableSpan) -> trace.SpanContext:
    assert span.context is not None
    return span.context


def test_a_cycle_is_two_spans_of_one_trace(traced: Traced, client: lockstead.Client) -> None:
    with client.lock("apt").hold() as lease:
        inside = trace.get_current_span().get_span_context()
        shown = client.lock("apt").inspect()
    assert [one.name for one in traced.spans] == ["lock acquire apt", "lock hold apt"]
    acquire, hold = traced.spans
    assert shown is not None
    assert shown.traceparent == traceparent(context_of(acquire))
    assert inside == context_of(hold)
    assert (acquire.parent, hold.parent) == (None, context_of(acquire))
    about = {"lockstead.key": "apt", "lockstead.store": "memory:", "lockstead.holder": lease.holder}
    assert hold.attributes == {**about, "lockstead.token": 1}
    assert dict(acquire.attributes or {}).items() >= {**about, "lockstead.result": "granted"}.items()
    assert {one.status.status_code for one in traced.spans} == {StatusCode.UNSET}
    assert not trace.get_current_span().get_span_context().is_valid


def test_inside_another_trace_both_are_children_of_its_span(traced: Traced, client: lockstead.Client) -> None:
    with traced.tracer.start_as_current_span("job") as job, client.lock("apt").hold():
        traced.tracer.start_span("work").end()
    assert [one.parent for one in traced.spans if one.name.startswith("lock")] == [job.get_span_context()] * 2
    assert traced.one("work").parent == context_of(traced.one("lock hold apt"))


def test_each_thread_and_task_has_its_own_current_span(traced: Traced) -> None:
    async def hold(client: lockstead.AsyncClient, key: str) -> None:
        async with client.lock(key).hold():
            await asyncio.sleep(0)
            traced.tracer.start_span(f"work {key}").end()

    async def both() -> None:
        async with lockstead.AsyncClient(MemoryStore()) as client:
            await asyncio.gather(hold(client, "apt"), hold(client, "yum"))

    def in_a_thread() -> None:
        with lockstead.Client(MemoryStore()) as client, client.lock("zip").hold():
            asyncio.run(both())
            traced.tracer.start_span("work zip").end()

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join(60)
    for key in ("apt", "yum", "zip"):
        assert traced.one(f"work {key}").parent == context_of(traced.one(f"lock hold {key}"))


def test_a_waiter_links_to_each_holder_it_waited_for(alone: tuple[Traced, Tracing]) -> None:
    traced, tracing = alone
    other = TRACE.replace("b7", "c8")
    tracing.begin("apt", "me/1", "s")
    tracing(Waiting("apt", "me/1", "one", "publish", 2.0, None, TRACE), "s")
    tracing(HolderChanged("apt", "me/1", "two", None, None, None, other), "s")
    tracing(HolderChanged("apt", "me/1", "three", None, None, None, None), "s")
    tracing(Acquired("apt", "me/1.1", 7, 3.0), "s")
    span = traced.one("lock acquire apt")
    assert [traceparent(link.context) for link in span.links] == [TRACE, other]
    assert [(one.name, (one.attributes or {})["lockstead.held_by"]) for one in span.events] == [
        ("waiting", "one"),
        ("holder changed", "two"),
        ("holder changed", "three"),
    ]
    assert (span.attributes or {})["lockstead.held_by"] == "three"
    assert (span.attributes or {})["lockstead.token"] == 7


def test_the_number_of_holders_in_a_span_and_of_open_spans_is_bounded(
    alone: tuple[Traced, Tracing], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "SPANS_MAX", 3)
    traced, tracing = alone

    def enter(number: str) -> None:
        tracing.begin("apt", f"me/{number}", "s")
        tracing(Attached("yum", "me", number), "s")
        tracing(BlockEntered("yum", "me", number), "s")

    for number in range(5):
        contextvars.copy_context().run(enter, str(number))
    assert (len(tracing._asking), len(tracing._holding), len(tracing._blocks)) == (3, 3, 3)
    for number in range(5):
        tracing(Detached("yum", "me", str(number)), "s")
    assert [one.name for one in traced.spans].count("lock hold yum") == 5
    for number in range(LINKS_MAX + 5):
        tracing(HolderChanged("apt", "me/4", str(number), None), "s")
    tracing(Acquired("apt", "me/4", 1, 0.0), "s")
    assert len(traced.spans[-1].events) == LINKS_MAX


def test_a_lost_lease_is_an_error_and_its_block_still_ends(traced: Traced, client: lockstead.Client) -> None:
    with pytest.raises(LeaseLost), client.lock("apt").hold() as lease:
        client.lock("apt").break_lease(reason="test", now=True)
        lease.renew()
    hold = traced.one("lock hold apt")
    assert [one.name for one in hold.events] == ["lost"]
    assert (hold.events[0].attributes or {})["lockstead.reason"] == "revoked"
    assert hold.status.status_code is StatusCode.ERROR
    assert not trace.get_current_span().get_span_context().is_valid
    tracing = otel._INSTALLED.tracing
    assert tracing is not None
    assert (len(tracing._holding), len(tracing._blocks), len(tracing._asking)) == (0, 0, 0)


def test_what_happens_to_a_lease_are_events_of_its_span(alone: tuple[Traced, Tracing]) -> None:
    traced, tracing = alone
    error = StoreUnavailable("no")
    for key, end in (
        ("a", Detached("a", "me")),
        ("b", LeaseDropped("b", "me")),
        ("c", ReleaseFailed("c", "me", error)),
    ):
        tracing(Acquired(key, "me", None, 0.0), "s")
        tracing(Renewed(key, "me", 1.0), "s")
        tracing(RenewalFailed(key, "me", error, 2.5), "s")
        tracing(end, "s")
        tracing(end, "s")
    told = [[event.name for event in one.events] for one in traced.spans]
    assert told == [["renewed", "renewal failed", *more] for more in ([], ["dropped"], ["release failed"])]
    failed = traced.spans[0].events[1]
    assert failed.attributes == {"lockstead.error": "no", "lockstead.time_left": 2.5}


@pytest.mark.parametrize(("limit", "is_error"), [(0.01, True), (0, False)])
def test_an_acquisition_without_a_lease_is_a_span(
    traced: Traced, client: lockstead.Client, limit: float, is_error: bool
) -> None:
    def ask() -> None:
        with suppress(NotAcquired):
            client.lock("apt").acquire(limit)

    with client.lock("apt").hold():
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(30)
    (span,) = [one for one in traced.spans if (one.attributes or {}).get("lockstead.result") in ("timeout", "held")]
    assert span.name == "lock acquire apt"
    assert (span.status.status_code is StatusCode.ERROR) == is_error


def test_without_a_trace_nothing_is_written_and_a_foreign_context_is_passed_on(client: lockstead.Client) -> None:
    otel.install(tracer_provider=trace.NoOpTracerProvider())
    try:
        with client.lock("apt").hold():
            shown = client.lock("apt").inspect()
            assert shown is not None
            assert shown.traceparent is None
        theirs = span_context(TRACE)
        assert theirs is not None
        with trace.use_span(trace.NonRecordingSpan(theirs)), client.lock("apt").hold():
            shown = client.lock("apt").inspect()
            assert shown is not None
            assert shown.traceparent == TRACE
    finally:
        otel.uninstall()
    assert LISTENERS.every == ()


def test_a_forked_child_leaves_the_open_spans_to_its_parent(traced: Traced, client: lockstead.Client) -> None:
    with client.lock("apt").hold():
        pid = os.fork()
        if pid == 0:
            tracing = otel._INSTALLED.tracing
            os._exit(0 if tracing is not None and not tracing._holding and not tracing._asking else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert traced.one("lock hold apt").end_time is not None


def test_the_instruments_are_those_of_prometheus(traced: Traced, client: lockstead.Client) -> None:
    with client.lock("apt").hold():
        pass
    data = traced.reader.get_metrics_data()
    assert data is not None
    found = {
        metric.name: {tuple(sorted(dict(point.attributes or {}).items())) for point in metric.data.data_points}
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
    }
    apt = (("lock", "apt"), ("store", "memory:"))
    assert found["lockstead.wait"] == found["lockstead.hold"] == found["lockstead.leases"] == {apt}
    assert found["lockstead.acquired"] == {(("lock", "apt"), ("result", "granted"), ("store", "memory:"))}
    assert {dict(one)["command"] for one in found["lockstead.store_request"]} == {"create", "remove"}
    bounds = {
        metric.name: point.explicit_bounds
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
        for point in metric.data.data_points
        if isinstance(point, HistogramDataPoint)
    }
    assert bounds == {
        "lockstead.wait": WAIT_BUCKETS,
        "lockstead.hold": HOLD_BUCKETS,
        "lockstead.store_request": REQUEST_BUCKETS,
    }


PROCESS = """
    import json, sys
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    import lockstead
    from lockstead.events import Waiting
    from lockstead.telemetry import otel
    exporter = InMemorySpanExporter()
    trace.set_tracer_provider(TracerProvider())
    trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
    otel.install()
    lockstead.add_listener(lambda event, _: isinstance(event, Waiting) and print("waiting", flush=True))
    lock = lockstead.Lock(sys.argv[1], owner=sys.argv[2], purpose="publish", backoff_min=0.02, backoff_max=0.05)
    with trace.get_tracer("job").start_as_current_span(f"job {sys.argv[2]}"):
        with lock.hold():
            print("held", flush=True)
            sys.stdin.readline()
    print(json.dumps([json.loads(span.to_json()) for span in exporter.get_finished_spans()]), flush=True)
"""


def test_a_waiter_in_another_process_links_to_the_trace_of_its_holder(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.db#apt"

    def start(owner: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", textwrap.dedent(PROCESS), url, owner]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def said(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def ended(process: subprocess.Popen[str]) -> dict[str, dict[str, Any]]:
        out, _ = process.communicate("\n", timeout=60)
        return {span["name"]: span for span in json.loads(out.splitlines()[-1])}

    with start("one") as one:
        assert said(one) == "held"
        shown = lockstead.Lock(url).inspect()
        with start("two") as two:
            assert said(two) == "waiting"
            theirs, ours = ended(one), ended(two)
    held, waited = theirs["lock acquire apt"], ours["lock acquire apt"]
    ((link,),) = [waited["links"]]
    assert {name: link["context"][name] for name in ("trace_id", "span_id")} == {
        name: held["context"][name] for name in ("trace_id", "span_id")
    }
    assert shown is not None
    assert shown.traceparent is not None
    assert shown.traceparent.split("-")[1] == held["context"]["trace_id"].removeprefix("0x")
    for spans_of, owner in ((theirs, "one"), (ours, "two")):
        job = spans_of[f"job {owner}"]["context"]["span_id"]
        assert spans_of["lock acquire apt"]["parent_id"] == spans_of["lock hold apt"]["parent_id"] == job
    assert theirs["job one"]["context"]["trace_id"] != ours["job two"]["context"]["trace_id"]
    assert waited["events"][0]["attributes"]["lockstead.held_by"] == "one"

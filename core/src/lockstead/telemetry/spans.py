"""Spans of the acquisitions and leases of this process.

`lock acquire KEY` lasts as long as the acquisition, and links to the trace of each holder that it waited for: a record
names its holder's trace. `lock hold KEY` follows it, and is the current span of a `with` block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from contextvars import Token
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, Status, StatusCode, TraceFlags, Tracer

from lockstead.errors import LossReason
from lockstead.events import (
    Acquired,
    Attached,
    BlockEntered,
    BlockLeft,
    Detached,
    HolderChanged,
    LeaseDropped,
    Lost,
    NotGranted,
    ProcessEvent,
    Released,
    ReleaseFailed,
    RenewalFailed,
    Renewed,
    Waiting,
)
from lockstead.runtime import fork

PREFIX: Final = "lockstead."
SPANS_MAX: Final = 10_000
"""Number of open spans of each kind; the oldest is ended before another one begins."""

LINKS_MAX: Final = 100
"""Number of holders that a span of a waiter names."""

Hold: TypeAlias = tuple[str, str, str]
"""Key, holder and member of a lease."""


@dataclass(slots=True)
class Asking:
    """An acquisition under way: its span, and the context in which it began."""

    span: Span
    around: Context
    holders: int = 0


class Tracing:
    """A listener of the process that makes spans."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._asking: OrderedDict[str, Asking] = OrderedDict()
        self._holding: OrderedDict[Hold, Span] = OrderedDict()
        self._blocks: OrderedDict[Hold, list[Token[Context]]] = OrderedDict()
        fork.watch(self)

    def after_fork(self) -> None:
        """Leave the open spans to the parent."""
        self._asking.clear()
        self._holding.clear()

    def begin(self, key: str, holder: str, store: str) -> str | None:
        """Begin the span of an acquisition; return its `traceparent`, None if it is not part of a trace."""
        around = context.get_current()
        about = _about(key=key, store=store, holder=holder)
        span = self._tracer.start_span(f"lock acquire {key}", around, attributes=about)
        if len(self._asking) >= SPANS_MAX:
            self._asking.popitem(last=False)[1].span.end()
        self._asking[holder] = Asking(span, around)
        return traceparent(span.get_span_context())

    def __call__(self, event: ProcessEvent, store: str) -> None:
        """Record one event."""
        match event:
            case Waiting() | HolderChanged():
                self._waits(event)
            case Acquired():
                self._granted(event, store)
            case NotGranted():
                self._not_granted(event)
            case Attached():
                span = self._tracer.start_span(
                    f"lock hold {event.key}",
                    attributes=_about(key=event.key, store=store, holder=event.holder, member=event.member),
                )
                self._hold((event.key, event.holder, event.member), span)
            case BlockEntered() | BlockLeft():
                self._block(event)
            case Renewed() | RenewalFailed():
                self._renewed(event)
            case Lost() | Released() | ReleaseFailed() | Detached() | LeaseDropped():
                self._ended(event)
            case _:
                pass

    # --- acquiring -----------------------------------------------------------------------------------------------

    def _waits(self, event: Waiting | HolderChanged) -> None:
        asking = self._asking.get(_begun_as(event.holder))
        if asking is None or asking.holders >= LINKS_MAX:
            return
        asking.holders += 1
        theirs = _about(held_by=event.held_by, purpose=event.purpose, held_for=event.held_for)
        asking.span.add_event("waiting" if isinstance(event, Waiting) else "holder changed", theirs)
        asking.span.set_attributes(theirs)
        linked = span_context(event.traceparent)
        if linked is not None:
            asking.span.add_link(linked, theirs)

    def _granted(self, event: Acquired, store: str) -> None:
        asking = self._asking.pop(_begun_as(event.holder), None)
        around = context.get_current()
        if asking is not None:
            asking.span.set_attributes(_about(result="granted", token=event.token, waited=event.waited))
            asking.span.end()
            # without a trace around both, the lease belongs to the trace that the record names
            is_traced = trace.get_current_span(asking.around).get_span_context().is_valid
            around = asking.around if is_traced else trace.set_span_in_context(asking.span, asking.around)
        about = _about(key=event.key, store=store, holder=event.holder, token=event.token)
        self._hold(
            (event.key, event.holder, ""), self._tracer.start_span(f"lock hold {event.key}", around, attributes=about)
        )

    def _not_granted(self, event: NotGranted) -> None:
        asking = self._asking.pop(_begun_as(event.holder), None)
        if asking is None:
            return
        asking.span.set_attributes(_about(result=event.result, waited=event.waited))
        if event.result not in ("held", "cancelled"):
            asking.span.set_status(Status(StatusCode.ERROR, str(event.error or event.result)))
        asking.span.end()

    # --- holding -------------------------------------------------------------------------------------------------

    def _hold(self, lease: Hold, span: Span) -> None:
        if len(self._holding) >= SPANS_MAX:
            self._holding.popitem(last=False)[1].end()
        self._holding[lease] = span

    def _block(self, event: BlockEntered | BlockLeft) -> None:
        lease = (event.key, event.holder, event.member)
        if isinstance(event, BlockLeft):
            tokens = self._blocks.pop(lease, None)
            if tokens:
                context.detach(tokens.pop())
            if tokens:
                self._blocks[lease] = tokens
            return
        span = self._holding.get(lease)
        if span is not None:
            if len(self._blocks) >= SPANS_MAX:
                self._blocks.popitem(last=False)
            self._blocks.setdefault(lease, []).append(context.attach(trace.set_span_in_context(span)))

    def _renewed(self, event: Renewed | RenewalFailed) -> None:
        span = self._holding.get((event.key, event.holder, event.member))
        if span is None:
            return
        if isinstance(event, Renewed):
            span.add_event("renewed")
        else:
            span.add_event("renewal failed", _about(error=str(event.error), time_left=event.left))

    def _ended(self, event: Lost | Released | ReleaseFailed | Detached | LeaseDropped) -> None:
        member = "" if isinstance(event, Released) else event.member
        span = self._holding.pop((event.key, event.holder, member), None)
        if span is None:
            return
        match event:
            case Lost(reason=LossReason.ENDED):
                span.add_event("ended")
            case Lost():
                span.add_event("lost", _about(reason=event.reason.name.lower(), detail=event.detail))
                span.set_status(Status(StatusCode.ERROR, f"the lease was lost: {event.reason.value}"))
            case ReleaseFailed():
                span.add_event("release failed", _about(error=str(event.error)))
            case LeaseDropped():
                span.add_event("dropped")
            case _:
                pass
        span.end()


def _begun_as(holder: str) -> str:
    """Return the holder of a request as it began: a number is appended if it had to go on under another name."""
    head, slash, nonce = holder.rpartition("/")
    return f"{head}{slash}{nonce.partition('.')[0]}"


def _about(**said: str | float | None) -> Mapping[str, Any]:
    """Return attributes of a span or event, without those that are unknown."""
    return {PREFIX + name: value for name, value in said.items() if value is not None and value != ""}


def traceparent(of: SpanContext) -> str | None:
    """Format the position of a span, by W3C Trace Context; None if it has none."""
    if not of.is_valid:
        return None
    return f"00-{of.trace_id:032x}-{of.span_id:016x}-{of.trace_flags & 0xFF:02x}"


def span_context(traceparent: str | None) -> SpanContext | None:
    """Return the span that a valid `traceparent` names."""
    if traceparent is None:
        return None
    _version, trace_id, span_id, flags = traceparent.split("-")
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))

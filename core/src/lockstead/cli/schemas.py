"""JSON Schemas (draft 2020-12) of what the commands print with `--json`: the one source of its keys and their order.

They describe this version exactly: every key is required, and no other is allowed. Must not import the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lockstead import __version__

Schema = Mapping[str, Any]


def _or_null(schema: Schema) -> Schema:
    return {**schema, "type": [schema["type"], "null"]}


def _object(properties: Mapping[str, Schema]) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _map(values: Schema) -> Schema:
    return {"type": ["object", "null"], "additionalProperties": values}


TEXT: Final[Schema] = {"type": "string"}
WHETHER: Final[Schema] = {"type": "boolean"}
WHOLE: Final[Schema] = {"type": "integer"}
SECONDS: Final[Schema] = {"type": "number", "description": "seconds"}
INSTANT: Final[Schema] = {"type": "string", "format": "date-time", "description": "ISO 8601, UTC"}
TEXT_0, WHETHER_0, WHOLE_0, SECONDS_0, INSTANT_0 = map(_or_null, (TEXT, WHETHER, WHOLE, SECONDS, INSTANT))

A_LOCK: Final[Schema] = {"$ref": "#/$defs/lock"}

_LEASE: Final[Mapping[str, Schema]] = {
    "key": TEXT,
    "state": {"enum": ["free", "held", "overdue", "closing", "revoked", "expired", "unreadable"]},
    "mode": TEXT_0,
    "foreign": WHETHER_0,
    **dict.fromkeys(("owner", "holder", "purpose", "progress", "value", "url"), TEXT_0),
    "labels": _map(TEXT_0),
    "acquired_at": INSTANT_0,
    "held_for": SECONDS_0,
    "expires_at": INSTANT_0,
    **dict.fromkeys(("time_left", "ttl", "age", "expected"), SECONDS_0),
    "alert_at": INSTANT_0,
    "overdue_for": SECONDS_0,
    "auto_unlock_at": INSTANT_0,
    "token": WHOLE_0,
    **dict.fromkeys(("sequencer", "incarnation", "host"), TEXT_0),
    "pid": WHOLE_0,
    **dict.fromkeys(("where", "backtrace", "traceparent", "revoked_by", "revoke_reason", "decode_error"), TEXT_0),
    "slot": WHOLE_0,
}
_OF_THE_LOCK: Final = ("key", "mode", "foreign", "value", "token", "sequencer", "decode_error", "slot")
READER: Final = {name: schema for name, schema in _LEASE.items() if name not in _OF_THE_LOCK}
"""The keys of each reader of a shared lock."""

_PERMITS: Final = _object({"limit": WHOLE, "free": WHOLE, "held": _array(A_LOCK), "next_waiter": TEXT_0})
LOCK: Final[Mapping[str, Schema]] = {
    **_LEASE,
    "permits": _or_null(_PERMITS),
    "readers": _or_null(_array(_object(READER))),
    "wanted_by": TEXT_0,
}
"""The keys of a lock, and of each permit of a semaphore."""

ENTRY: Final[Mapping[str, Schema]] = {
    "key": TEXT_0,
    "at": INSTANT_0,
    **dict.fromkeys(("what", "by", "reason", "owner", "holder", "incarnation"), TEXT_0),
    "token": WHOLE_0,
    "mode": TEXT_0,
    "slot": WHOLE_0,
}
"""The keys of an audit entry."""

_WAITER: Final = _object({"owner": TEXT_0, "holder": TEXT_0, "since": INSTANT_0, "waited": SECONDS_0, "stray": WHETHER})
_RENEWED: Final[Mapping[str, Schema]] = {"ttl": SECONDS, "time_left": SECONDS, "renew_before": INSTANT}
_FINDING: Final = _object(
    {
        "check": TEXT,
        "severity": {"enum": ["ok", "note", "warning", "failure"]},
        "text": TEXT,
        "remedy": TEXT_0,
        "figures": _map({"type": "number"}),
    }
)
_MEASURE: Final = _object(
    {
        "count": WHOLE,
        "p50": SECONDS_0,
        "p99": SECONDS_0,
        "floor": TEXT_0,
        "floor_p50": SECONDS_0,
        "floor_p99": SECONDS_0,
    }
)

OUTPUTS: Final[Mapping[str, Schema]] = {
    "acquire": _object(
        {
            **dict.fromkeys(("ticket", "key", "store", "holder"), TEXT),
            **_RENEWED,
            "token": WHOLE_0,
            "sequencer": TEXT_0,
            "incarnation": TEXT,
            "slot": WHOLE_0,
        }
    ),
    "bench": _object(
        {
            "store": TEXT,
            "requests_per_cycle": _map(WHOLE),
            "measures": _object(dict.fromkeys(("cycle", "renewal", "hand-over"), _MEASURE)),
        }
    ),
    "break": _object(
        {
            "key": TEXT,
            "broken": WHETHER,
            "removed": WHETHER,
            "by": TEXT,
            "reason": TEXT,
            "max_overlap": SECONDS_0,
            "overlap_until": INSTANT_0,
            "was": {"anyOf": [A_LOCK, {"type": "null"}]},
        }
    ),
    "doctor": _object({"store": TEXT, "is_usable": WHETHER, "guarantee": TEXT_0, "findings": _array(_FINDING)}),
    "history": _object(ENTRY),
    "inspect": _object({**LOCK, "waiting": _or_null(_array(_WAITER))}),
    "leader": _object({"key": TEXT, "owner": TEXT_0, "value": TEXT_0, "token": WHOLE_0, "since": INSTANT_0}),
    "list": _object(LOCK),
    "permits": _object({**LOCK, "done": WHETHER}),
    "prune": _object(
        {
            "store": TEXT,
            "dry_run": WHETHER,
            "removed": _map(WHOLE),
            "kept": _map(WHOLE),
            "names": _array(_object({"kind": TEXT, "name": TEXT_0})),
            "refused": _array(TEXT),
        }
    ),
    "release": _object({"key": TEXT, "holder": TEXT, "released": WHETHER}),
    "renew": _object({"key": TEXT, "holder": TEXT, **_RENEWED}),
    "wait": _object({**LOCK, "waited": SECONDS}),
}
"""The schema of each line that a command prints on standard output with `--json`."""

ERROR_KINDS: Final = {
    "usage": "wrong usage",
    "store_unavailable": "the request was not applied; try again",
    "outcome_unknown": "the request may have been applied; read before you repeat it",
    "store_refused": "the request will never be applied",
    "not_acquired": "another client holds the lock",
    "lease_lost": "the lease is lost",
    "output": "standard output could not be written",
    "interrupted": "a signal ended the command",
    "internal": "a bug of lockstead",
}
ERROR: Final = _object(
    {
        "error": _object(
            {
                "code": {**WHOLE, "description": "the exit code"},
                "kind": {"oneOf": [{"const": kind, "description": text} for kind, text in ERROR_KINDS.items()]},
                "message": TEXT,
                "key": TEXT_0,
                "owner": {**TEXT_0, "description": "of not_acquired: the holder"},
                "held_for": SECONDS_0,
                "lost_reason": {**TEXT_0, "description": "of lease_lost"},
            }
        )
    }
)
"""The last line of standard error of a command that failed, with `--json`."""


ALERT: Final = _object(
    {
        "version": {"const": 1, "description": "within it keys are only added"},
        "event": {"enum": ["overdue", "unlocked"]},
        "id": {**TEXT, "description": "the same if another reaper repeats the alert"},
        "number": {**WHOLE, "description": "which alert on this lease, from 1"},
        "at": INSTANT,
        **dict.fromkeys(("by", "store", "key", "name", "mode"), TEXT),
        "slot": WHOLE_0,
        **dict.fromkeys(("owner", "holder", "purpose", "progress", "value", "url"), TEXT_0),
        "labels": _map(TEXT_0),
        "acquired_at": INSTANT_0,
        "expected": SECONDS_0,
        "alert_at": INSTANT_0,
        "auto_unlock_at": INSTANT_0,
        "token": WHOLE_0,
        **dict.fromkeys(("incarnation", "host"), TEXT_0),
        "pid": WHOLE_0,
        **dict.fromkeys(("where", "backtrace"), TEXT_0),
    }
)
"""What `reap` sends to a webhook, and to a command on standard input."""

OTHERS: Final = {"error": ERROR, "alert": ALERT}
"""Schemas that do not describe the output of a command."""


def document(name: str) -> dict[str, Any]:
    """Return the schema of a command's lines, of `error` or of `alert`, as a document of its own."""
    schema = OTHERS[name] if name in OTHERS else OUTPUTS[name]
    what = {"error": "the last line of standard error with --json", "alert": "an alert of 'lockstead reap'"}.get(
        name, f"each line of 'lockstead {name}' with --json"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:lockstead:{__version__}:{name}",
        "title": f"lockstead {__version__}: {what}",
        **schema,
        "$defs": {"lock": _object(LOCK)},
    }

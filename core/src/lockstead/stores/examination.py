"""Results of examining a store: findings, each with a severity, and the guarantees that a lock depends on.

Must not know any store, nor how findings are displayed. The commands that test the guarantees belong to the command
line; what only a store can see of itself is its own `examine` (see `port.SupportsDiagnostics`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Severity(Enum):
    """The severity of a finding."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; no action needed."""
    WARNING = "warning"
    """Locks work, but there may be trouble later: costs, a lock that disappears, a slow takeover."""
    FAILURE = "failure"
    """Locks do not work here, or do not exclude other holders."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: text describes it in one line, remedy says what to do about it.

    check is its name for scripts and does not depend on the result. figures are the numbers behind the text; each name
    ends with its unit. stops: no later check is possible.
    """

    severity: Severity
    check: str
    text: str
    remedy: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    stops: bool = False


class Guarantee(Enum):
    """What a lock depends on, as seen through a store's commands. The value is a sentence true of a correct store."""

    CREATE = "Create writes a record if there is none"
    CREATE_PRESENT = "Create refuses where there is a record"
    CREATE_RACE = "of many Creates at once exactly one wins"
    EXTEND = "Extend answers with the current record"
    EXTEND_KEEPS = "Extend keeps the fields that it was not given"
    EXTEND_REVISION_MOVES = "Extend changes the revision and keeps the incarnation"
    EXTEND_UPDATED_MOVES = "Extend moves the time of the last change"
    EXTEND_INCARNATION = "Extend refuses a wrong incarnation"
    EXTEND_REVISION = "Extend refuses a stale revision"
    EXTEND_RACE = "of many Extends of one revision exactly one wins"
    REPLACE = "Replace writes a new incarnation"
    REPLACE_INCARNATION = "Replace refuses a wrong incarnation"
    REPLACE_REVISION = "Replace refuses a wrong revision"
    REMOVE = "Remove deletes the record that it expects"
    REMOVE_INCARNATION = "Remove refuses a wrong incarnation"
    REMOVE_REVISION = "Remove refuses a wrong revision"
    FRESH_INCARNATION = "a new record gets a new incarnation"
    STALE_EXTEND = "Extend refuses the incarnation before a re-creation"
    STALE_REPLACE = "Replace refuses the incarnation before a re-creation"
    STALE_REMOVE = "Remove refuses the incarnation before a re-creation"
    ABSENT = "an absent record is distinguished from a failure"
    LIST = "List shows exactly the existing records, each under its own name"
    TOKEN = "tokens grow"  # noqa: S105 - a fencing token is not a secret

    @property
    def check(self) -> str:
        """The `check` name of this guarantee in a finding."""
        return f"promise.{self.name.lower().replace('_', '-')}"

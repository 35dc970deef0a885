"""What an examination of a store can say: findings, each with a severity, and the promises a lock rests on.

Must not know any store, nor how findings are shown. The commands that put the promises to the test stand with the
command line; what only a store can see of itself is its own `examine` (see `port.SupportsDiagnostics`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Severity(Enum):
    """How much a finding matters."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing to do."""
    WARNING = "warning"
    """Locks work, but something will hurt some day: costs, a lock that vanishes, a take-over that takes long."""
    FAILURE = "failure"
    """Locks do not work here, or do not exclude anybody."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: text says in one line what is so, remedy what to do about it.

    check names it for scripts and stays the same whatever was found. figures are numbers behind the text, each with
    its unit last in its name. stops: nothing that would be looked at afterwards can be looked at any more.
    """

    severity: Severity
    check: str
    text: str
    remedy: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    stops: bool = False


class Guarantee(Enum):
    """What a lock rests on, as a store's commands show it. The value is a sentence that is true of a good store."""

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
        """The name of this promise in a finding."""
        return f"promise.{self.name.lower().replace('_', '-')}"

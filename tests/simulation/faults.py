"""The faults that a run can have, by the description that the report shows, and how likely those of messages are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class MessageFault(StrEnum):
    """The faults of one message."""

    REQUEST_LOST = "request lost"
    REQUEST_LATE = "request late, it may commit after its sender gave up"
    REPLY_LOST = "reply lost"
    DUPLICATED = "request duplicated"
    REFUSED = "never sent"
    FAILED_BEFORE = "error before the commit"
    FAILED_AFTER = "error after the commit"
    SENDER_PAUSES = "sender pauses before the reply"
    SENDER_DIES = "sender dies before the reply"


STALE: Final = "arrived after its sender gave up"
TOO_MANY: Final = "too many changes of one record"
UNREACHABLE: Final = "store unreachable"

INJECTED: Final = {
    "pause": "a process pauses",
    "kill": "a process dies",
    "isolate": "a process is cut off",
    "outage": "the store is down",
    "jump": "a wall clock jumps",
    "revoke": "an operator revokes the lease",
    "break": "an operator removes the lease at once",
    "delete": "an administrator deletes the record",
    "delete_companion": "an administrator deletes the companion",
    "damage": "the record is damaged",
    "foreign": "another implementation takes the lock",
    "set_clock": "the store's clock is set",
    "empty": "the store comes back empty",
    "contend": "another implementation contends, and judges by its own clock",
}
"""The faults of a process, the store or the record, which happen at random instants: short name, and description."""

FAULTS: Final = (*MessageFault, STALE, TOO_MANY, UNREACHABLE, *INJECTED.values())
"""All kinds of faults, in the order of the report."""


@dataclass(frozen=True, slots=True)
class MessageFaults:
    """The probability of each fault of a message, and how long messages take (seconds).

    latest: maximum delay of a late or duplicated request. changes_every: the store may refuse to change a record again
    within this many seconds, like Cloud Storage for one object; 0: never.
    """

    odds: Mapping[MessageFault, float] = field(default_factory=dict)
    latency: float = 0.02
    latest: float = 60.0
    changes_every: float = 0.0

    def cumulative(self) -> list[tuple[float, MessageFault]]:
        """Return the cumulative probabilities with their faults, for one random number."""
        steps, total = [], 0.0
        for fault, odds in self.odds.items():
            if odds:
                total += odds
                steps.append((total, fault))
        return steps

"""The properties of the models, and the faults that must violate them.

A fault is a switch in a model's text. It must violate the property that is named here; any other failure is not
enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

EXCLUSIVE: Final = "assertion violated  !((((state[0]==2)&&(left[0]>0))&&((state[1]==2)&&(left[1]>0))))"
FINAL: Final = "assertion violated ((state[me]==2)&&(left[me]>0))"
STANDS: Final = "assertion violated (stands||"
ONE_TOKEN: Final = "assertion violated ((known[lease]==0)||"
ORDER: Final = "assertion violated (((known["
STILL: Final = "assertion violated  !((left>0))"


@dataclass(frozen=True, slots=True)
class Proof:
    """A model whose promises hold in every state that can be reached. states_min: fewer would be an empty proof."""

    model: str
    says: str
    states_min: int
    switches: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """A model with something left out, and how the text of the promise that it breaks begins."""

    model: str
    breaks: str
    switches: tuple[str, ...]

    @property
    def name(self) -> str:
        """How a test and a table call it."""
        return "+".join(self.switches).lower()


PROOFS: Final = (
    Proof("contenders", "two contenders never both believe; what is lost stays lost", 1_000_000),
    Proof("members", "nobody works under a lease whose record is gone", 500_000),
    Proof("tokens", "tokens grow in the order of holding; one lease, one token", 500_000),
    Proof("observation", "who watches a record takes it over only when its holder believes no more", 5_000),
)

SECOND_LINES: Final = (
    Proof(
        "members", "a dead registration is removed by its revision too", 500_000, ("DEAD_REMOVED_BY_INCARNATION_ALONE",)
    ),
    Proof("members", "a member's belief, once past, is over for good", 500_000, ("LATE_SUCCESS_REVIVES",)),
)
"""Rules that the promises can spare one at a time, but not both: see the fault that switches on both."""

DEEP: Final = (Proof("members", "the same, with a release and a reclaim at once", 5_000_000, ("ENDERS=2",)),)
"""What takes minutes."""

FAULTS: Final = (
    Fault("contenders", EXCLUSIVE, ("NO_MARGIN_OF_THE_HOLDER",)),
    Fault("contenders", EXCLUSIVE, ("NO_MARGIN_OF_THE_CONTENDER",)),
    Fault("contenders", EXCLUSIVE, ("DEADLINE_FROM_THE_ANSWER",)),
    Fault("contenders", EXCLUSIVE, ("TAKEOVER_BY_INCARNATION_ALONE",)),
    Fault("contenders", EXCLUSIVE, ("TAKEOVER_BY_REVISION_ALONE",)),
    Fault("contenders", EXCLUSIVE, ("RENEWAL_WITHOUT_INCARNATION",)),
    Fault("contenders", EXCLUSIVE, ("REMOVAL_WITHOUT_CONDITION",)),
    Fault("contenders", FINAL, ("LATE_SUCCESS_REVIVES",)),
    Fault("members", STANDS, ("READ_BEFORE_REGISTERING",)),
    Fault("members", STANDS, ("ATTACH_WITHOUT_LOOKING",)),
    Fault("members", STANDS, ("BELIEVES_THE_REGISTRATION_ALONE",)),
    Fault("members", STANDS, ("BELIEVES_THE_RECORD_ALONE",)),
    Fault("members", STANDS, ("READ_WITHOUT_AGE",)),
    Fault("members", STANDS, ("MEMBER_REMOVES_AT_RELEASE",)),
    Fault("members", STANDS, ("LISTED_WITHOUT_AN_ANSWER_THAT_SHOWS_CLOSING",)),
    Fault("members", STANDS, ("REMOVED_WITHOUT_DRAIN",)),
    Fault("members", STANDS, ("REMOVED_AT_THE_BOUND",)),
    Fault("members", STANDS, ("DEAD_REMOVED_BY_INCARNATION_ALONE", "LATE_SUCCESS_REVIVES")),
    Fault("tokens", ORDER, ("TOKEN_WITHOUT_PROOF", "ONLY_THE_ORDER")),
    Fault("tokens", ORDER, ("DRAWN_BEFORE_THE_LOOK", "ONLY_THE_ORDER")),
    Fault("tokens", ORDER, ("PUBLISHED_WITHOUT_THE_INCARNATION", "ONLY_THE_ORDER")),
    Fault("tokens", ONE_TOKEN, ("PUBLISHED_WITHOUT_THE_REVISION",)),
    Fault("tokens", ONE_TOKEN, ("TOKEN_NOT_SHARED",)),
    Fault("observation", STILL, ("NO_MARGIN_OF_THE_OBSERVER",)),
    Fault("observation", STILL, ("OBSERVED_FROM_THE_SEND",)),
    Fault("observation", STILL, ("OBSERVED_WITHOUT_THE_REVISION",)),
)
